package rtcache

import (
	"errors"
	"fmt"
	"net/netip"
)

// StaticOptions describe a table that no kernel feeds: for replay, tests and benchmarks.
type StaticOptions struct {
	Ports       []Port        // MAC, MTU (0: 1500), Addr and Inside count; Index is the place in the list
	NextHops    [][6]byte     // per port: the MAC of whatever is behind it; missing: 02:00:00:00:01:<port>
	Routes      []StaticRoute // none needed: what no route covers goes to the first outside port
	NoDefault   bool          // without the default route: NoRoute
	ReversePath ReversePathMode
	Unresolved  bool // next hops start unresolved; SetStaticHop resolves them
}

// StaticRoute is a prefix and where it goes.
type StaticRoute struct {
	Prefix  netip.Prefix
	Port    uint16
	Verdict Verdict // OK: forwarded; Unreachable, Prohibit, Blackhole: the route types; Local: the gateway's own
}

// NewStatic makes a table with fixed routes. The ports' own addresses are Local. It has no goroutine and needs no Close.
func NewStatic(o StaticOptions) (*Table, error) {
	if err := checkPorts(o.Ports); err != nil {
		return nil, err
	}
	ports := make([]Port, len(o.Ports))
	copy(ports, o.Ports)
	for i := range ports {
		ports[i].IfIndex = i + 1 // a static table has netdev numbers of its own
		if ports[i].MTU == 0 {
			ports[i].MTU = 1500
		}
	}
	t := newTable(ports, 2*len(ports)+2, o.ReversePath)
	c := t.c
	for i, p := range ports {
		c.link(&linkEvent{index: p.IfIndex, name: p.Name, mac: p.MAC, mtu: p.MTU, up: true})
		if p.Addr != 0 {
			own := netip.PrefixFrom(p.Addr.Netip(), 32)
			c.addr(&addrEvent{index: p.IfIndex, addr: own})
			c.route(&routeEvent{local: true, prefix: own, kind: setLocal})
		}
		if p.AddrV6.IsValid() {
			own := netip.PrefixFrom(p.AddrV6, 128)
			c.addr(&addrEvent{index: p.IfIndex, addr: own})
			c.route(&routeEvent{local: true, prefix: own, kind: setLocal})
		}
		if !o.Unresolved {
			mac := [6]byte{2, 0, 0, 0, 1, byte(i)}
			if i < len(o.NextHops) {
				mac = o.NextHops[i]
			}
			t.setStaticNeighbour(uint16(i), mac, neighValid)
		}
	}
	routes := o.Routes
	for i, p := range ports {
		if !p.Inside && !o.NoDefault {
			routes = append([]StaticRoute{{Prefix: netip.MustParsePrefix("0.0.0.0/0"), Port: uint16(i)},
				{Prefix: netip.MustParsePrefix("::/0"), Port: uint16(i)}}, routes...)
			break
		}
	}
	kinds := map[Verdict]setKind{OK: setOne, Unreachable: setUnreachable, Prohibit: setProhibit, Blackhole: setBlackhole, Local: setLocal}
	for _, r := range routes {
		kind, ok := kinds[r.Verdict]
		if !ok || int(r.Port) >= len(ports) || !r.Prefix.IsValid() {
			return nil, fmt.Errorf("rtcache: static route %v to port %d with verdict %d: no such prefix, port or route type", r.Prefix, r.Port, r.Verdict)
		}
		e := routeEvent{prefix: r.Prefix, kind: kind, mode: routeReplace, local: kind == setLocal}
		if kind == setOne {
			e.hops = []nextHop{{index: int(r.Port) + 1, gateway: staticGateway(r.Port), weight: 1}}
		}
		c.route(&e)
	}
	t.flush()
	return t, nil
}

// staticGateway names what is behind a port.
func staticGateway(port uint16) netip.Addr {
	return netip.AddrFrom4([4]byte{0, 255, byte(port >> 8), byte(port)})
}

func (t *Table) setStaticNeighbour(port uint16, mac [6]byte, s neighState) {
	t.c.neigh(&neighEvent{index: int(port) + 1, addr: staticGateway(port), mac: mac, state: s})
}

// SetStaticHop changes what is behind a port of a static table: OK: resolved to mac, Unresolved or Failed.
func (t *Table) SetStaticHop(port uint16, mac [6]byte, v Verdict) error {
	state, ok := map[Verdict]neighState{OK: neighValid, Unresolved: neighIncomplete, Failed: neighFailed}[v]
	if t.c.asks != nil || !ok || int(port) >= len(t.c.ports) {
		return errors.New("rtcache: SetStaticHop: not a static table, no such port, or neither OK, Unresolved nor Failed")
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if v == Failed { // twice: the first only makes a usable neighbour doubtful
		t.setStaticNeighbour(port, mac, neighNone)
		if i := t.c.hopOf[hopKey{staticGateway(port), uint16(port)}]; i != 0 {
			t.c.info[i].asked = t.c.now
		}
	}
	t.setStaticNeighbour(port, mac, state)
	t.flush()
	return nil
}

// SetStaticRoute adds or replaces a route of a static table; with withdraw, removes it.
func (t *Table) SetStaticRoute(r StaticRoute, withdraw bool) error {
	if t.c.asks != nil || r.Verdict != OK || int(r.Port) >= len(t.c.ports) || !r.Prefix.IsValid() {
		return errors.New("rtcache: SetStaticRoute: not a static table, no such port or prefix, or a verdict that is not OK")
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	t.c.route(&routeEvent{prefix: r.Prefix, kind: setOne, mode: routeReplace, deleted: withdraw,
		hops: []nextHop{{index: int(r.Port) + 1, gateway: staticGateway(r.Port), weight: 1}}})
	t.flush()
	return nil
}
