package rtcache

import (
	"encoding/binary"
	"net"
	"net/netip"
	"time"

	"pollux/internal/packet"
)

// Listings are for people who look inside. Routes come from the published snapshot, which nobody ever changes: no lock is
// held, however long the reader takes. Next hops are copied in slices under the control side's lock.

// RouteInfo is the route in force for a prefix. Worse ones of the same prefix wait in the kernel and are not shown.
type RouteInfo struct {
	Prefix netip.Prefix `json:"prefix"`
	Local  bool         `json:"local"`  // of table local: the kernel's own addresses
	Metric uint32       `json:"metric"` // the kernel's, lower is better
	// Type is unicast | elsewhere (leaves by no port of ours) | unreachable | prohibit | blackhole | throw | local | broadcast |
	// gone (its devices are down; the kernel is taking it out).
	Type  string     `json:"type"`
	Paths []PathInfo `json:"paths,omitempty"` // unicast: those that leave by our ports
}

// PathInfo is one way of a route.
type PathInfo struct {
	Port    uint16     `json:"port"`
	Name    string     `json:"name"`             // of the port
	Gateway netip.Addr `json:"gateway,omitzero"` // the zero Addr: directly connected
	Weight  uint32     `json:"weight"`
	HopInfo *HopInfo   `json:"next_hop,omitempty"` // of the gateway; nil: directly connected
}

// HopInfo is one neighbour that packets are, or were, sent to.
type HopInfo struct {
	Index   uint32     `json:"index"`
	Port    uint16     `json:"port"`
	Name    string     `json:"name"` // of the port
	Address netip.Addr `json:"address"`
	MAC     string     `json:"mac"`   // as last learned, empty: never
	MTU     int        `json:"mtu"`   // of packets that leave by it, bytes
	State   string     `json:"state"` // ready | unresolved | failed | down
	// Set by NextHops alone.
	Routes  int           `json:"routes"`  // sets of paths that name it as a gateway
	OnLink  bool          `json:"on_link"` // made for a directly connected host that a packet went to
	Managed bool          `json:"managed"` // the kernel was asked to keep it resolved
	Stale   bool          `json:"stale"`   // usable, but the kernel has not confirmed it lately
	Used    bool          `json:"used"`    // by a worker, in the last half minute
	Since   time.Duration `json:"since"`   // how long it has been in this state
}

var kindNames = [...]string{
	setNone: "none", setOne: "unicast", setMulti: "unicast", setElsewhere: "elsewhere", setUnreachable: "unreachable",
	setProhibit: "prohibit", setBlackhole: "blackhole", setThrow: "throw", setLocal: "local", setBroadcast: "broadcast",
	setGone: "gone",
}

// Routes visits the routes in force that lie within a prefix (the zero Prefix: all), those of table main first, sorted, until
// visit returns false. They are those of one moment. The RouteInfo is the visitor's to keep.
func (t *Table) Routes(within netip.Prefix, visit func(RouteInfo) bool) {
	s := t.snap.Load()
	for _, local := range []bool{false, true} {
		table := s.main
		if local {
			table = s.local
		}
		each := table.AllSorted()
		if within.IsValid() {
			each = table.Subnets(within)
		}
		for p, r := range each {
			if !visit(t.describe(s, p, r, local)) {
				return
			}
		}
	}
}

// RouteTo gives the route that packets to an address take now; ok is false when there is none.
func (t *Table) RouteTo(a netip.Addr) (info RouteInfo, ok bool) {
	s := t.snap.Load()
	whole := netip.PrefixFrom(a, a.BitLen())
	if p, r, ok := s.local.LookupPrefixLPM(whole); ok {
		return t.describe(s, p, r, true), true
	}
	for whole.IsValid() {
		p, r, ok := s.main.LookupPrefixLPM(whole)
		if !ok {
			break
		}
		if s.sets.at(r.set).kind != setGone {
			return t.describe(s, p, r, false), true
		}
		whole = netip.PrefixFrom(p.Addr(), p.Bits()-1) // invalid below the default route
	}
	return RouteInfo{}, false
}

func (t *Table) describe(s *snapshot, p netip.Prefix, r route, local bool) RouteInfo {
	set := s.sets.at(r.set)
	info := RouteInfo{Prefix: p, Local: local, Metric: r.prio, Type: kindNames[set.kind]}
	add := func(m *path) {
		way := PathInfo{Port: m.port, Name: s.ports[m.port].Name, Weight: m.weight}
		if m.hop != 0 {
			h := t.hop(s.ports, m.hop)
			way.Gateway, way.HopInfo = h.Address, &h
		}
		info.Paths = append(info.Paths, way)
	}
	switch set.kind {
	case setOne:
		add(&set.one)
	case setMulti:
		for i := range set.members {
			add(&set.members[i])
		}
	}
	return info
}

// hop reads what workers see of a next hop.
func (t *Table) hop(ports []Port, i uint32) HopInfo {
	h := &t.hops[i]
	info := HopInfo{Index: i, Port: h.Port(), MTU: h.MTU(), Address: address(h.hi.Load(), h.lo.Load())}
	info.Name = ports[info.Port].Name
	if mac := h.MAC(); mac != [6]byte{} {
		info.MAC = net.HardwareAddr(mac[:]).String()
	}
	state := h.state.Load()
	info.Used = state&usedBit != 0
	switch state & stateLow {
	case hopReady:
		info.State = "ready"
	case hopFailed:
		info.State = "failed"
	case hopUnresolved:
		info.State = "unresolved"
	default:
		info.State = "down"
	}
	return info
}

// address is the opposite of words.
func address(hi, lo uint64) netip.Addr {
	if hi == 0 && lo>>32 == 0 {
		return packet.Addr(lo).Netip()
	}
	var b [16]byte
	binary.BigEndian.PutUint64(b[:8], hi)
	binary.BigEndian.PutUint64(b[8:], lo)
	return netip.AddrFrom16(b)
}

// hopSlice is how many entries are copied while the control side waits.
const hopSlice = 256

// NextHops visits every neighbour that routes name or packets went to, by index, until visit returns false. Those that come or
// go meanwhile may be missed. visit runs without a lock.
func (t *Table) NextHops(visit func(HopInfo) bool) {
	buffer := make([]HopInfo, 0, hopSlice)
	for at := 1; ; {
		buffer = buffer[:0]
		t.mu.Lock()
		c := t.c
		end := min(at+hopSlice, len(c.info))
		ports := t.snap.Load().ports
		for ; at < end; at++ {
			info := &c.info[at]
			if !info.inUse || !info.key.addr.IsValid() {
				continue
			}
			h := t.hop(ports, uint32(at))
			h.Address = info.key.addr
			h.Routes, h.OnLink, h.Managed, h.Stale = int(info.refs), info.onLink, info.managed, info.stale
			h.Used = h.Used || info.idle == 0
			h.Since = c.now - info.since
			buffer = append(buffer, h)
		}
		more := at < len(c.info)
		t.mu.Unlock()
		for i := range buffer {
			if !visit(buffer[i]) {
				return
			}
		}
		if !more {
			return
		}
	}
}
