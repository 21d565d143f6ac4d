package rtcache

import (
	"maps"
	"net/netip"
	"slices"
)

// SourceV6 is the IPv6 address that the gateway speaks from on a port (RFC 4443 2.2): a global one of the port itself, else of
// another port on the same side, of any port, of any netdev; without any, the port's link-local one. ok false: none.
func (t *Table) SourceV6(port uint16) (addr [16]byte, ok bool) {
	s := t.snap.Load()
	if int(port) >= len(s.sourceV6) || !s.sourceV6[port].IsValid() {
		return addr, false
	}
	return s.sourceV6[port].As16(), true
}

// LocalV6 tells whether an IPv6 address is the kernel's own or a group.
func (t *Table) LocalV6(a *[16]byte) bool {
	_, ok := t.snap.Load().local.Lookup(netip.AddrFrom16(*a))
	return ok || a[0] == 0xff
}

func (c *control) sourcesV6() []netip.Addr {
	all := make([]netip.Addr, len(c.ports))
	for i := range c.ports {
		all[i] = c.globalV6(c.ports[i].IfIndex)
		for _, same := range []bool{true, false} {
			for j := range c.ports {
				if !all[i].IsValid() && (c.ports[j].Inside == c.ports[i].Inside) == same {
					all[i] = c.globalV6(c.ports[j].IfIndex)
				}
			}
		}
		for _, index := range slices.Sorted(maps.Keys(c.addrs)) {
			if !all[i].IsValid() {
				all[i] = c.globalV6(index)
			}
		}
		if !all[i].IsValid() {
			all[i] = c.anyV6(c.ports[i].IfIndex, netip.Addr.IsLinkLocalUnicast)
		}
	}
	return all
}

// globalV6 is a netdev's first IPv6 address that others can answer to, unique local ones included.
func (c *control) globalV6(index int) netip.Addr {
	return c.anyV6(index, func(a netip.Addr) bool { return a.IsGlobalUnicast() })
}

// anyV6 is a netdev's first lasting IPv6 address of a kind; temporary ones (RFC 8981) are marked secondary.
func (c *control) anyV6(index int, is func(netip.Addr) bool) netip.Addr {
	for _, a := range c.addrs[index] {
		if addr := a.addr.Addr(); addr.Is6() && !a.secondary && is(addr) {
			return addr
		}
	}
	return netip.Addr{}
}
