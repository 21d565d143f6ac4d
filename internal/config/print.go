package config

import (
	"encoding/json"
	"strconv"
	"strings"
)

// tree prints every key with its present value, in the order of the contract.
func (s *settings) tree() *node {
	root := &node{kind: mapping}
	for _, k := range keys {
		n, parts := root, strings.Split(k.path, ".")
		for _, section := range parts[:len(parts)-1] {
			e := n.find(section)
			if e == nil {
				n.add(section, &node{kind: mapping})
				e = n.find(section)
			}
			n = e.value
		}
		n.add(parts[len(parts)-1], k.codec.encode(s))
	}
	return root
}

const flowMax = 110 // characters of a list or mapping on one line

// writeYAML prints a tree: short lists and mappings in flow style, the rest in block style.
func (n *node) writeYAML(b *strings.Builder, indent string) {
	for _, e := range n.entries {
		b.WriteString(indent + e.key + ":")
		e.value.writeValue(b, indent)
	}
}

func (n *node) writeValue(b *strings.Builder, indent string) {
	if f := n.flow(); n.kind == scalar || len(n.items)+len(n.entries) == 0 || n.shallow() && len(f) <= flowMax {
		b.WriteString(" " + f + "\n")
		return
	}
	b.WriteByte('\n')
	if n.kind == mapping {
		n.writeYAML(b, indent+"  ")
		return
	}
	for _, item := range n.items {
		b.WriteString(indent + "  - " + item.flow() + "\n")
	}
}

// shallow reports whether a value reads well on one line.
func (n *node) shallow() bool {
	for _, item := range n.items {
		if item.kind != scalar {
			return false
		}
	}
	for _, e := range n.entries {
		if e.value.kind != scalar {
			return false
		}
	}
	return true
}

func (n *node) flow() string {
	var parts []string
	switch n.kind {
	case list:
		for _, item := range n.items {
			parts = append(parts, item.flow())
		}
		return "[" + strings.Join(parts, ", ") + "]"
	case mapping:
		for _, e := range n.entries {
			parts = append(parts, e.key+": "+e.value.flow())
		}
		return "{" + strings.Join(parts, ", ") + "}"
	}
	if n.quoted {
		return strconv.Quote(n.text)
	}
	return n.text
}

// writeJSON prints the same tree as JSON, keys in the same order.
func (n *node) writeJSON(b *strings.Builder) {
	switch n.kind {
	case list:
		b.WriteByte('[')
		for i, item := range n.items {
			if i > 0 {
				b.WriteByte(',')
			}
			item.writeJSON(b)
		}
		b.WriteByte(']')
	case mapping:
		b.WriteByte('{')
		for i, e := range n.entries {
			if i > 0 {
				b.WriteByte(',')
			}
			b.WriteString(strconv.Quote(e.key) + ":")
			e.value.writeJSON(b)
		}
		b.WriteByte('}')
	default:
		if _, isNumber := decimal(n.text); !n.quoted && (isNumber || n.text == "true" || n.text == "false") {
			b.WriteString(n.text)
			return
		}
		text, _ := json.Marshal(n.text) // a string always marshals
		b.Write(text)
	}
}
