package config

import (
	"strings"
)

// Flag describes one command-line flag that stands for a key.
type Flag struct {
	Names   []string // without dashes, short ones last
	Key     string   // the key's path
	Usage   string
	Default string
	Bool    bool     // takes no value, or =true or =false
	Multi   bool     // may be repeated; each is one element, and together they replace the file's list
	Choices []string // all values that there are; nil: more than can be listed
}

// Arg is one flag as it was given.
type Arg struct {
	Name  string // without dashes
	Value string
}

// Roles of ports have flags of their own.
const insideFlag, outsideFlag = "inside", "outside"

// Flags returns a flag for every key, in the order of the contract. Those of the replay block are for `pollux replay`;
// it has no --inside and --outside, which name captures there.
func Flags() []Flag {
	flags := []Flag{
		{Names: []string{insideFlag}, Key: "ports", Usage: "network device on the inside", Multi: true},
		{Names: []string{outsideFlag}, Key: "ports", Usage: "network device on the outside", Multi: true},
	}
	s := defaults()
	for _, k := range keys {
		if k.path == "ports" {
			continue
		}
		f := Flag{Names: []string{longName(k.path)}, Key: k.path, Usage: k.help, Multi: k.multi}
		if k.flag != "" && k.flag != f.Names[0] {
			f.Names = append(f.Names, k.flag)
		}
		if !k.multi {
			f.Default = k.codec.encode(s).text
		}
		_, f.Bool = k.codec.(boolean)
		if c, ok := k.codec.(interface{ choices() []string }); ok {
			f.Choices = c.choices()
		}
		flags = append(flags, f)
	}
	return flags
}

func longName(path string) string {
	return strings.NewReplacer(".", "-", "_", "-").Replace(path)
}

func keyOfFlag(name string) *key {
	for i := range keys {
		if k := &keys[i]; longName(k.path) == name || k.flag == name {
			return k
		}
	}
	return nil
}

// overlay lays flags over the tree of a file. A list given by flags replaces the file's; --inside and --outside replace
// the ports of their role.
func overlay(root *node, args []Arg) error {
	started := map[string]bool{}
	for _, a := range args {
		at := place{name: "--" + a.Name}
		if a.Name == insideFlag || a.Name == outsideFlag {
			overlayPort(root, a, at, started)
			continue
		}
		k := keyOfFlag(a.Name)
		if k == nil {
			return errorAt(at, "no such flag")
		}
		value, err := flagValue(k, a.Value, at)
		if err != nil {
			return err
		}
		e, err := descend(root, k.path, at)
		if err != nil {
			return err
		}
		switch {
		case !k.multi && started[k.path]:
			return errorAt(at, "%s is given twice; allowed: once", k.path)
		case k.multi && started[k.path]:
			e.value.items = append(e.value.items, value)
		case k.multi:
			*e = entry{e.key, at, &node{kind: list, at: at, items: []*node{value}}}
		default:
			*e = entry{e.key, at, value}
		}
		started[k.path] = true
	}
	return nil
}

// descend finds the entry of a path and makes what lacks on the way.
func descend(n *node, path string, at place) (*entry, error) {
	for {
		name, rest, deeper := strings.Cut(path, ".")
		e := n.find(name)
		if e == nil {
			n.entries = append(n.entries, entry{name, at, &node{kind: mapping, at: at}})
			e = &n.entries[len(n.entries)-1]
		}
		if !deeper {
			return e, nil
		}
		if e.value.kind != mapping {
			return nil, errorAt(e.value.at, "%s is %s; allowed: a mapping", e.key, e.value.kind)
		}
		n, path = e.value, rest
	}
}

func overlayPort(root *node, a Arg, at place, started map[string]bool) {
	e := root.find("ports")
	if e == nil {
		root.entries = append(root.entries, entry{"ports", at, &node{kind: list, at: at}})
		e = &root.entries[len(root.entries)-1]
	}
	if e.value.kind != list {
		return // its own error comes when the tree is read
	}
	if !started[a.Name] {
		started[a.Name] = true
		kept := make([]*node, 0, len(e.value.items))
		for _, item := range e.value.items {
			if role := item.find("role"); role == nil || role.value.text != a.Name {
				kept = append(kept, item)
			}
		}
		e.value.items = kept
	}
	item := &node{kind: mapping, at: at}
	item.entries = []entry{
		{"name", at, &node{at: at, text: a.Value}},
		{"role", at, &node{at: at, text: a.Name}},
	}
	e.value.items = append(e.value.items, item)
}

// flagValue turns a flag's text into the node that the file would have given.
func flagValue(k *key, text string, at place) (*node, error) {
	switch k.codec.(type) {
	case redirectPorts:
		return redirectFlag(text, at, true, "PROTO,PUBLIC=LOCAL[+LOCAL...][,remote=REMOTE][,pick=PICK]")
	case redirectAddrs:
		return redirectFlag(text, at, false, "PUBLIC=LOCAL[+LOCAL...][,inbound=true|false][,pick=PICK]")
	case redirectProtos:
		return redirectFlag(text, at, true, "PROTO,PUBLIC=LOCAL[,remote=ADDRESS]")
	}
	return &node{at: at, text: text}, nil
}

// redirectFlag reads [PROTO,]PUBLIC=LOCAL[+LOCAL...][,KEY=VALUE...]; the keys and values are checked as the file's are.
func redirectFlag(text string, at place, proto bool, syntax string) (*node, error) {
	n := &node{kind: mapping, at: at}
	add := func(key, value string) {
		n.entries = append(n.entries, entry{key, at, &node{at: at, text: value}})
	}
	parts := strings.Split(text, ",")
	if proto {
		add("proto", parts[0])
		parts = parts[1:]
	}
	for i, part := range parts {
		name, value, ok := strings.Cut(part, "=")
		if !ok {
			return nil, errorAt(at, "%s is not understood; allowed: %s", (&node{text: text}).show(), syntax)
		}
		if i > 0 {
			add(name, value)
			continue
		}
		add("public", name)
		if local := strings.Split(value, "+"); len(local) > 1 {
			pool := &node{kind: list, at: at}
			for _, l := range local {
				pool.items = append(pool.items, &node{at: at, text: l})
			}
			n.entries = append(n.entries, entry{"local", at, pool})
		} else {
			add("local", value)
		}
	}
	if n.find("public") == nil {
		return nil, errorAt(at, "%s is not understood; allowed: %s", (&node{text: text}).show(), syntax)
	}
	return n, nil
}
