package lport

import (
	"fmt"
	"net/netip"

	"pollux/internal/packet"
)

// Plan is deterministic mapping (RFC 7422): every inside address of a prefix has its own alias address and port range, by
// arithmetic alone, so nothing needs to be logged. A Plan never changes and may be shared.
//
// Host number n of the prefix has the ports low+k*size .. low+k*size+size-1 of alias number n/perAlias, k being n%perAlias.
type Plan struct {
	base     packet.Addr
	hosts    uint64
	aliases  []packet.Addr
	low      uint32
	size     uint32 // ports a host
	perAlias uint32 // hosts an alias
}

// NewPlan divides the ports [low, high] of the aliases, in their order, among the hosts of the prefix. With portsPerHost 0 each
// gets as many as fit. The error says what does not fit.
func NewPlan(inside netip.Prefix, aliases []packet.Addr, low, high uint16, portsPerHost int) (*Plan, error) {
	inside = inside.Masked()
	switch {
	case !inside.IsValid() || !inside.Addr().Is4():
		return nil, fmt.Errorf("lport: deterministic inside %s: must be an IPv4 prefix", inside)
	case len(aliases) == 0:
		return nil, fmt.Errorf("lport: deterministic ports need at least one alias address")
	case low > high:
		return nil, fmt.Errorf("lport: port range %d-%d: the first port is above the last", low, high)
	case portsPerHost < 0:
		return nil, fmt.Errorf("lport: %d ports per host: must not be negative", portsPerHost)
	}
	p := &Plan{base: packet.AddrFrom(inside.Addr()), hosts: 1 << (32 - inside.Bits()), aliases: append([]packet.Addr(nil), aliases...), low: uint32(low)}
	ports := uint64(high) - uint64(low) + 1
	p.size = uint32(portsPerHost)
	if portsPerHost == 0 {
		each := (p.hosts + uint64(len(aliases)) - 1) / uint64(len(aliases))
		p.size = uint32(ports / each)
	}
	if p.size == 0 || uint64(portsPerHost) > ports || ports/uint64(p.size)*uint64(len(aliases)) < p.hosts {
		return nil, fmt.Errorf("lport: %d hosts of %s do not fit: %d alias addresses have %d ports each, %d per host wanted",
			p.hosts, inside, len(aliases), ports, max(portsPerHost, 1))
	}
	p.perAlias = uint32(ports / uint64(p.size))
	return p, nil
}

// Forward returns the alias address and the inclusive port range of an inside address; false: outside the prefix.
func (p *Plan) Forward(host packet.Addr) (alias packet.Addr, low, high uint16, ok bool) {
	n := uint64(host) - uint64(p.base)
	if host < p.base || n >= p.hosts {
		return 0, 0, 0, false
	}
	lo := p.low + uint32(n)%p.perAlias*p.size
	return p.aliases[uint32(n)/p.perAlias], uint16(lo), uint16(lo + p.size - 1), true
}

// Inverse returns the inside address whose range holds the port of the alias address; false: nobody's.
func (p *Plan) Inverse(alias packet.Addr, port uint16) (host packet.Addr, ok bool) {
	if uint32(port) < p.low {
		return 0, false
	}
	k := (uint32(port) - p.low) / p.size
	if k >= p.perAlias {
		return 0, false
	}
	for i, a := range p.aliases {
		if n := uint64(i)*uint64(p.perAlias) + uint64(k); a == alias && n < p.hosts {
			return p.base + packet.Addr(n), true
		}
	}
	return 0, false
}
