package config

import (
	"slices"
	"strings"

	"pollux/nat"
)

// Change is one key that two configurations give differently, as the file would say it. Of lists Old and New hold the items
// that the other has not.
type Change struct {
	Key     string `json:"key"`
	Old     string `json:"old"`
	New     string `json:"new"`
	Restart bool   `json:"needs_restart"` // a running gateway can't follow
}

// live lists the keys, and sections that end in a dot, that a running gateway can follow. A key that is not here needs a
// restart. The replay section concerns no gateway.
var live = []string{"nat.", "routing.rtcache", "routing.reverse_path", "replay."}

func isLive(path string) bool {
	return slices.ContainsFunc(live, func(l string) bool { return path == l || strings.HasSuffix(l, ".") && strings.HasPrefix(path, l) })
}

// Diff lists what differs from one configuration to another, in the order of the contract.
func Diff(from, to *Config) []Change {
	var list []Change
	for i := range keys {
		k := &keys[i]
		if a, b := k.codec.encode(from.s), k.codec.encode(to.s); a.flow() != b.flow() {
			was, now := differing(a, b)
			list = append(list, Change{k.path, was, now, !isLive(k.path)})
		}
	}
	return list
}

// differing prints two values; of two lists only the items that the other has not, unless it is their order that differs.
func differing(a, b *node) (was, now string) {
	if a.kind == list && b.kind == list {
		onlyA, onlyB := a.without(b), b.without(a)
		if len(onlyA.items)+len(onlyB.items) > 0 {
			a, b = onlyA, onlyB
		}
	}
	return a.flow(), b.flow()
}

func (n *node) without(other *node) *node {
	has := map[string]bool{}
	for _, item := range other.items {
		has[item.flow()] = true
	}
	out := &node{kind: list}
	for _, item := range n.items {
		if !has[item.flow()] {
			out.items = append(out.items, item)
		}
	}
	return out
}

// Redirect is one redirect in the words of the configuration.
type Redirect struct {
	Kind string `json:"kind"` // port | addr | proto: of the key nat.redirect_KIND
	Text string `json:"redirect"`
}

// RedirectKinds are the words for Redirect.Kind.
var RedirectKinds = []string{"port", "addr", "proto"}

// RedirectSyntax says how a redirect is written in one line.
func RedirectSyntax(kind string) string {
	return map[string]string{
		"port":  "PROTO,PUBLIC=LOCAL[+LOCAL...][,remote=REMOTE][,pick=PICK]",
		"addr":  "PUBLIC=LOCAL[+LOCAL...][,inbound=true|false][,pick=PICK]",
		"proto": "PROTO,PUBLIC=LOCAL[,remote=ADDRESS]",
	}[kind]
}

// WithRedirect returns the configuration with one more redirect, as newest of its kind, written as its flag is. It is
// checked as the file is. The error names what the redirect says, not a place in a file.
func (c *Config) WithRedirect(r Redirect) (*Config, error) {
	s, at := *c.s, place{name: "redirect " + r.Kind}
	s.redirectPort, s.redirectAddr, s.redirectProto = slices.Clip(s.redirectPort), slices.Clip(s.redirectAddr), slices.Clip(s.redirectProto)
	if !slices.Contains(RedirectKinds, r.Kind) {
		return nil, errorAt(place{name: "redirect"}, "%s is no kind of redirect; allowed: %s", (&node{text: r.Kind}).show(), join(RedirectKinds))
	}
	k := keyOf("nat.redirect_" + r.Kind)
	n, err := flagValue(k, r.Text, at)
	if err != nil {
		return nil, err
	}
	// The codec appends: one list serves all keys of this kind.
	if err := k.codec.decode(&s, k.path, &node{kind: list, at: at, items: []*node{n}}); err != nil {
		return nil, err
	}
	switch r.Kind {
	case "port":
		s.redirectPort[len(s.redirectPort)-1].added = true
	case "addr":
		s.redirectAddr[len(s.redirectAddr)-1].added = true
	case "proto":
		s.redirectProto[len(s.redirectProto)-1].added = true
	}
	total := 0
	for i := range s.redirectPort {
		total += s.redirectPort[i].public.size()
	}
	if total > redirectsMax {
		return nil, errorAt(at, "%d ports would be published; allowed: up to %d in all", total, redirectsMax)
	}
	if err := s.check(Use{}); err != nil {
		return nil, err
	}
	return &Config{s: &s}, nil
}

// Public returns what identifies a redirect: its text without the local side, with the remote if it has one.
func (r Redirect) Public() string {
	var keep []string
	for i, part := range strings.Split(r.Text, ",") {
		name, _, _ := strings.Cut(part, "=")
		switch {
		case i == 0 || i == 1 && r.Kind != "addr":
			keep = append(keep, name)
		case name == "remote":
			keep = append(keep, part)
		}
	}
	return strings.Join(keep, ",")
}

// Redirects lists all redirects, each written as its flag is.
func (c *Config) Redirects() []Redirect {
	var list []Redirect
	for i := range c.s.redirectPort {
		r := &c.s.redirectPort[i]
		text := protoText(r.proto) + "," + r.public.String() + "=" + plus(r.local, endpoint.String)
		if r.remote != (nat.Remote{}) {
			text += ",remote=" + remoteText(r.remote)
		}
		list = append(list, Redirect{"port", text + pickSuffix(r.pool, r.pick)})
	}
	for i := range c.s.redirectAddr {
		r := &c.s.redirectAddr[i]
		text := publicText(r.public) + "=" + plus(r.local, publicText)
		if !r.inbound {
			text += ",inbound=false"
		}
		list = append(list, Redirect{"addr", text + pickSuffix(r.pool, r.pick)})
	}
	for i := range c.s.redirectProto {
		r := &c.s.redirectProto[i]
		text := protoText(r.proto) + "," + publicText(r.public) + "=" + r.local.String()
		if r.remote != 0 {
			text += ",remote=" + r.remote.String()
		}
		list = append(list, Redirect{"proto", text})
	}
	return list
}

func plus[T any](list []T, text func(T) string) string {
	var parts []string
	for _, x := range list {
		parts = append(parts, text(x))
	}
	return strings.Join(parts, "+")
}

func pickSuffix(pool bool, p nat.Pick) string {
	if !pool || p == nat.Rotate {
		return ""
	}
	return ",pick=" + pickText(p)
}
