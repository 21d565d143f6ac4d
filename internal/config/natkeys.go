package config

import (
	"net/netip"
	"strconv"
	"strings"

	"pollux/nat"
)

// portRange is the key nat.port_range.
type portRange struct{}

func (portRange) allowed() string { return `LOW-HIGH as "1024-65535", both from 1 to 65535` }

func (c portRange) decode(s *settings, path string, n *node) error {
	if err := n.is(scalar, path, c.allowed()); err != nil {
		return err
	}
	first, last, _ := strings.Cut(n.text, "-")
	low, ok1 := decimal(first)
	high, ok2 := decimal(last)
	if !ok1 || !ok2 || low < 1 || low > 65535 || high < 1 || high > 65535 {
		return n.refuse(path, c.allowed())
	}
	if low > high {
		return errorAt(n.at, "%s %q is upside down; allowed: %s", path, n.text, c.allowed())
	}
	s.rules.PortRange = nat.PortRange{Low: uint16(low), High: uint16(high)}
	return nil
}

func (portRange) encode(s *settings) *node {
	r := s.rules.PortRange
	return quoted(strconv.Itoa(int(r.Low)) + "-" + strconv.Itoa(int(r.High)))
}

// mssClamp is the key nat.mss_clamp.
type mssClamp struct{}

const mssMin, mssMax = 64, 65495 // 65495: what fits an IPv4 packet of 65535 bytes

func (mssClamp) allowed() string {
	return `"" for off, auto for the outside MTU less 40, or a number from 64 to 65495`
}

func (c mssClamp) decode(s *settings, path string, n *node) error {
	if err := n.is(scalar, path, c.allowed()); err != nil {
		return err
	}
	s.mssAuto, s.rules.MSSClamp = false, 0
	switch n.text {
	case "":
		return nil
	case "auto":
		s.mssAuto = true
		return nil
	}
	v, ok := decimal(n.text)
	if !ok || v < mssMin || v > mssMax {
		return n.refuse(path, c.allowed())
	}
	s.rules.MSSClamp = v
	return nil
}

func (mssClamp) encode(s *settings) *node {
	switch {
	case s.mssAuto:
		return word("auto")
	case s.rules.MSSClamp == 0:
		return quoted("")
	}
	return word(strconv.Itoa(s.rules.MSSClamp))
}

// insideNetwork is the key nat.deterministic.inside.
type insideNetwork struct{}

func (insideNetwork) allowed() string {
	return `one IPv4 network as 100.64.0.0/16 without host bits, or "" for off`
}

func (c insideNetwork) decode(s *settings, path string, n *node) error {
	if err := n.is(scalar, path, c.allowed()); err != nil {
		return err
	}
	s.rules.Deterministic.Inside = netip.Prefix{}
	if n.text == "" {
		return nil
	}
	p, ok := parsePrefix(n.text)
	if !ok || p.Bits() == 0 {
		return n.refuse(path, c.allowed())
	}
	s.rules.Deterministic.Inside = p
	return nil
}

func (insideNetwork) encode(s *settings) *node {
	if p := s.rules.Deterministic.Inside; p.IsValid() {
		return quoted(p.String())
	}
	return quoted("")
}

// fileMode is the key control.mode.
type fileMode struct{}

func (fileMode) allowed() string { return `permission bits in octal, as "0660"` }

func (c fileMode) decode(s *settings, path string, n *node) error {
	if err := n.is(scalar, path, c.allowed()); err != nil {
		return err
	}
	v, err := strconv.ParseUint(n.text, 8, 32)
	if err != nil || v > 0o777 || len(n.text) < 3 || len(n.text) > 4 {
		return n.refuse(path, c.allowed())
	}
	s.control.Mode = uint32(v)
	return nil
}

func (fileMode) encode(s *settings) *node {
	return quoted("0" + strconv.FormatUint(uint64(0o1000|s.control.Mode), 8)[1:])
}
