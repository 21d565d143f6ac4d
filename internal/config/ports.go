package config

import (
	"fmt"
	"strings"

	"pollux/nat"
)

const portsMax = 64

type port struct {
	name string
	side nat.Side
}

// portList is the key ports: netdevs and their roles.
type portList struct{}

func (portList) allowed() string { return "a list of {name: NETDEV, role: inside | outside}" }

func (c portList) decode(s *settings, path string, n *node) error {
	if err := n.is(list, path, c.allowed()); err != nil {
		return err
	}
	seen := map[string]place{}
	for i, item := range n.items {
		p, err := decodePort(fmt.Sprintf("%s[%d]", path, i), item)
		if err != nil {
			return err
		}
		if other, twice := seen[p.name]; twice {
			return errorAt(item.at, "%s: %q is given at %s already; allowed: each netdev once", path, p.name, other)
		}
		if len(s.ports) == portsMax {
			return errorAt(item.at, "%s has more than %d entries; allowed: up to %d", path, portsMax, portsMax)
		}
		seen[p.name] = item.at
		s.ports = append(s.ports, p)
	}
	for _, side := range []nat.Side{nat.Inside, nat.Outside} {
		if !s.hasRole(side) {
			return errorAt(n.at, "%s: none has the role %s; needed: at least one inside and one outside", path, side)
		}
	}
	return nil
}

func decodePort(path string, n *node) (port, error) {
	f, err := n.fields(path, []string{"name", "role"}, nil)
	if err != nil {
		return port{}, err
	}
	const nameAllowed = "a network device's name, 1 to 15 characters without space, / or :"
	name, role := f["name"], f["role"]
	if err := name.is(scalar, path+".name", nameAllowed); err != nil {
		return port{}, err
	}
	if !validNetdev(name.text) {
		return port{}, name.refuse(path+".name", nameAllowed)
	}
	if err := role.is(scalar, path+".role", "inside | outside"); err != nil {
		return port{}, err
	}
	switch role.text {
	case "inside":
		return port{name.text, nat.Inside}, nil
	case "outside":
		return port{name.text, nat.Outside}, nil
	}
	return port{}, role.refuse(path+".role", "inside | outside")
}

// validNetdev is the kernel's rule for names (dev_valid_name).
func validNetdev(name string) bool {
	if name == "" || len(name) > 15 || name == "." || name == ".." {
		return false
	}
	return !strings.ContainsFunc(name, func(r rune) bool { return r <= ' ' || r == '/' || r == ':' || r == 0x7f })
}

func (s *settings) hasRole(side nat.Side) bool {
	for _, p := range s.ports {
		if p.side == side {
			return true
		}
	}
	return false
}

func (portList) encode(s *settings) *node {
	n := &node{kind: list}
	for _, p := range s.ports {
		item := &node{kind: mapping}
		item.add("name", quoted(p.name)).add("role", word(p.side.String()))
		n.items = append(n.items, item)
	}
	return n
}
