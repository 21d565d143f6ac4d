package config

import (
	"fmt"
	"strconv"
)

// place is where something was written: a spot in a file, or a flag (then line is 0).
type place struct {
	name      string
	line, col int
}

func (p place) String() string {
	if p.line == 0 {
		return p.name
	}
	return p.name + ":" + strconv.Itoa(p.line) + ":" + strconv.Itoa(p.col)
}

// Error is a mistake in a configuration. Its text is one line.
type Error struct {
	where place
	what  string
}

// Error returns `where: what is wrong, what is allowed`.
func (e *Error) Error() string { return e.where.String() + ": " + e.what }

func errorAt(p place, format string, args ...any) error {
	return &Error{where: p, what: fmt.Sprintf(format, args...)}
}

type kind uint8

const (
	scalar kind = iota
	list
	mapping
	empty // a key without a value, or null
)

func (k kind) String() string {
	return [...]string{"a single value", "a list", "a mapping", "nothing"}[k]
}

// node is one value with the place it was written at. The same tree serves reading and printing.
type node struct {
	kind    kind
	at      place
	text    string // scalar: unquoted content
	quoted  bool   // scalar: written in quotes; never a number or a boolean then
	items   []*node
	entries []entry
}

type entry struct {
	key   string
	at    place
	value *node
}

// word makes a scalar that prints bare: a number, a boolean, a word of the contract.
func word(text string) *node { return &node{text: text} }

// quoted makes a scalar that prints in quotes.
func quoted(text string) *node { return &node{text: text, quoted: true} }

func quotedList[T fmt.Stringer](values []T) *node {
	n := &node{kind: list}
	for _, v := range values {
		n.items = append(n.items, quoted(v.String()))
	}
	return n
}

func (n *node) add(key string, value *node) *node {
	n.entries = append(n.entries, entry{key: key, value: value})
	return n
}

func (n *node) find(key string) *entry {
	for i := range n.entries {
		if n.entries[i].key == key {
			return &n.entries[i]
		}
	}
	return nil
}

// is checks the node's kind; path names the key in the error.
func (n *node) is(k kind, path, allowed string) error {
	if n.kind == k {
		return nil
	}
	return errorAt(n.at, "%s is %s; allowed: %s", path, n.kind, allowed)
}

// refuse says that a scalar's value won't do.
func (n *node) refuse(path, allowed string) error {
	return errorAt(n.at, "%s is %s; allowed: %s", path, n.show(), allowed)
}

const shownMax = 60 // characters of a value repeated in an error

func (n *node) show() string {
	text := n.text
	if r := []rune(text); len(r) > shownMax {
		text = string(r[:shownMax]) + "..."
	}
	return strconv.Quote(text)
}

// fields checks a mapping of fixed keys, as the items of ports and the redirects are, and returns its values by key.
func (n *node) fields(path string, required, optional []string) (map[string]*node, error) {
	allowed := append(append([]string{}, required...), optional...)
	if err := n.is(mapping, path, "a mapping with the keys "+join(allowed)); err != nil {
		return nil, err
	}
	got := make(map[string]*node, len(n.entries))
	for _, e := range n.entries {
		if !contains(allowed, e.key) {
			return nil, errorAt(e.at, "unknown key %q in %s; allowed: %s", e.key, path, join(allowed))
		}
		if got[e.key] != nil {
			return nil, errorAt(e.at, "%s.%s is given twice; allowed: once", path, e.key)
		}
		if e.value.kind == empty {
			return nil, errorAt(e.value.at, "%s.%s has no value; give one or leave the key out", path, e.key)
		}
		got[e.key] = e.value
	}
	for _, key := range required {
		if got[key] == nil {
			return nil, errorAt(n.at, "%s lacks %s; needed: %s", path, key, join(required))
		}
	}
	return got, nil
}
