package config

import (
	"pollux/internal/packet"
)

// aliasesMax bounds the owner table: an alias address costs 256 KiB there.
const aliasesMax = 4096

// aliasSpec is one entry of nat.alias: addresses, or the outside port's own.
type aliasSpec struct {
	text string
	span span
	port bool
	at   place
}

// aliasList is the key nat.alias.
type aliasList struct{}

const aliasAllowed = `IPv4 addresses, networks without host bits as 203.0.113.8/30, "port" for the outside port's own`

func (aliasList) allowed() string { return "a list of " + aliasAllowed }

func (c aliasList) decode(s *settings, path string, n *node) error {
	if err := n.is(list, path, c.allowed()); err != nil {
		return err
	}
	if len(n.items) == 0 {
		return errorAt(n.at, "%s is empty; needed: %s", path, aliasAllowed)
	}
	seen, count := newSpans(), uint64(0)
	var port *aliasSpec
	for _, item := range n.items {
		a, err := decodeAlias(path, item)
		if err != nil {
			return err
		}
		switch {
		case a.port && port != nil:
			return errorAt(item.at, "%s: \"port\" is given at %s already; allowed: once", path, port.at)
		case a.port:
			port = &a
		default:
			if other, clash := seen.add(a.span, item.at); clash {
				return errorAt(item.at, "%s: %s overlaps what %s gives; allowed: each address once", path, a.text, other)
			}
			if count += uint64(a.span.last-a.span.first) + 1; count > aliasesMax {
				return errorAt(item.at, "%s holds more than %d addresses with this entry, each costs 256 KiB; allowed: up to %d", path, aliasesMax, aliasesMax)
			}
		}
		s.alias = append(s.alias, a)
	}
	return nil
}

func decodeAlias(path string, n *node) (aliasSpec, error) {
	if err := n.is(scalar, path, aliasAllowed); err != nil {
		return aliasSpec{}, err
	}
	if n.text == "port" {
		return aliasSpec{text: "port", port: true, at: n.at}, nil
	}
	p, ok := parsePrefix(n.text)
	if !ok {
		return aliasSpec{}, n.refuse(path, aliasAllowed)
	}
	v := spanOf(p)
	if !isHost(v.first) || !isHost(v.last) || p.Bits() == 0 {
		return aliasSpec{}, n.refuse(path, "unicast "+aliasAllowed)
	}
	return aliasSpec{text: n.text, span: v, at: n.at}, nil
}

func (aliasList) encode(s *settings) *node {
	n := &node{kind: list}
	for _, a := range s.alias {
		n.items = append(n.items, quoted(a.text))
	}
	return n
}

// aliasPort reports whether the outside port's own address is an alias address.
func (s *settings) aliasPort() bool {
	for _, a := range s.alias {
		if a.port {
			return true
		}
	}
	return false
}

// aliasAddrs returns the fixed addresses in the order written.
func (s *settings) aliasAddrs() []packet.Addr {
	var out []packet.Addr
	for _, a := range s.alias {
		if a.port {
			continue
		}
		for v := a.span.first; ; v++ {
			out = append(out, v)
			if v == a.span.last {
				break
			}
		}
	}
	return out
}

// pool returns the addresses for dynamic links: those of nat.alias that no redirect_addr has taken.
func (s *settings) pool() []packet.Addr {
	taken := map[packet.Addr]bool{}
	for _, r := range s.redirectAddr {
		taken[r.public] = true
	}
	var out []packet.Addr
	for _, a := range s.aliasAddrs() {
		if !taken[a] {
			out = append(out, a)
		}
	}
	return out
}
