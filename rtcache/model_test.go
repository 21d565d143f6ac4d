package rtcache

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"pollux/internal/packet"
)

// kernelModel is a slow and obvious kernel: lists of routes, links and neighbours. It changes as the kernel does (RTNETLINK
// semantics of add, append, prepend, replace, link down) and tells what it did as events, in fakeSource's queue.
type kernelModel struct {
	v6     bool
	routes map[netip.Prefix][]modelRoute // best first
	up     map[int]bool                  // absent: deleted
	neighs map[neighKey]neighInfo
	fake   *fakeSource
}

type modelRoute struct {
	prio uint32
	kind setKind
	hops []nextHop
}

// fakeSource is a kernel that a test plays.
type fakeSource struct {
	queue    []func(sink)
	overrun  bool // the next read reports lost messages
	dumpFrom func(sink)
	asked    []neighKey
	dumps    int
	failDump error
}

func (f *fakeSource) dump(s sink) error {
	f.dumps++
	if f.failDump != nil {
		return f.failDump
	}
	f.dumpFrom(s)
	return nil
}

func (f *fakeSource) read(s sink) (bool, error) {
	if f.overrun {
		f.overrun = false
		return false, errOverrun
	}
	for _, e := range f.queue {
		e(s)
	}
	f.queue = nil
	return false, nil
}

func (f *fakeSource) forget()              { f.queue, f.overrun = nil, false }
func (f *fakeSource) wait(d time.Duration) { time.Sleep(min(d, time.Millisecond)) }
func (f *fakeSource) close()               {}
func (f *fakeSource) resolve(index int, a netip.Addr, managed bool) error {
	f.asked = append(f.asked, neighKey{index, a})
	return nil
}

const modelForeign = 9 // a netdev that is no port

func newModel(v6 bool) *kernelModel {
	m := &kernelModel{v6: v6, routes: map[netip.Prefix][]modelRoute{}, neighs: map[neighKey]neighInfo{}, fake: &fakeSource{},
		up: map[int]bool{1: true, 2: true, 3: true, modelForeign: true}}
	m.fake.dumpFrom = m.dump
	return m
}

func (m *kernelModel) say(f func(sink)) { m.fake.queue = append(m.fake.queue, f) }

func (m *kernelModel) linkEvent(index int) *linkEvent {
	up, there := m.up[index]
	return &linkEvent{index: index, name: fmt.Sprint("dev", index), mac: [6]byte{2, 0, 0, 0, 0, byte(index)}, mtu: 1500, up: up, deleted: !there}
}

func (m *kernelModel) dump(s sink) {
	for _, index := range []int{1, 2, 3, modelForeign} {
		if _, there := m.up[index]; there {
			s.link(m.linkEvent(index))
		}
	}
	for k, n := range m.neighs {
		s.neigh(&neighEvent{index: k.index, addr: k.addr, mac: n.mac, state: n.state})
	}
	for p, list := range m.routes {
		for _, r := range list {
			s.route(&routeEvent{prefix: p, prio: r.prio, kind: r.kind, hops: r.hops})
		}
	}
}

func (m *kernelModel) gone(r modelRoute) bool {
	for _, h := range r.hops {
		if m.up[h.index] {
			return false
		}
	}
	return len(r.hops) > 0
}

func (m *kernelModel) add(p netip.Prefix, r modelRoute, mode routeMode) {
	list := m.routes[p]
	same := func(x modelRoute) bool { return x.prio == r.prio }
	equal := func(x modelRoute) bool { return same(x) && x.kind == r.kind && slices.Equal(x.hops, r.hops) }
	switch i := slices.IndexFunc(list, same); {
	case m.gone(r), slices.ContainsFunc(r.hops, func(h nextHop) bool { _, there := m.up[h.index]; return !there }), slices.ContainsFunc(list, equal), m.v6 && i >= 0 && mode != routeReplace:
		return // refused
	case mode == routeReplace && i >= 0:
		list = slices.Clone(list)
		list[i] = r
	default:
		at := 0
		for at < len(list) && (list[at].prio < r.prio || same(list[at]) && mode != routePrepend) {
			at++
		}
		list = slices.Insert(slices.Clone(list), at, r)
	}
	m.routes[p] = list
	m.say(func(s sink) {
		s.route(&routeEvent{prefix: p, prio: r.prio, kind: r.kind, hops: slices.Clone(r.hops), mode: mode})
	})
}

func (m *kernelModel) remove(p netip.Prefix, i int) {
	r := m.routes[p][i]
	m.routes[p] = slices.Delete(slices.Clone(m.routes[p]), i, i+1)
	m.say(func(s sink) {
		s.route(&routeEvent{prefix: p, prio: r.prio, kind: r.kind, hops: r.hops, deleted: true})
	})
}

// link changes a netdev. Routes that lose their last one go without a word, as in the kernel; so do IPv4 routes one of whose
// netdevs is deleted, whereas IPv6 ones lose only that path, and it is told.
func (m *kernelModel) link(index int, up, deleted bool) {
	if deleted {
		delete(m.up, index)
		for p, list := range m.routes {
			m.routes[p] = m.cut(p, list, index)
		}
	} else {
		m.up[index] = up
	}
	if !up {
		for p, list := range m.routes {
			m.routes[p] = slices.DeleteFunc(slices.Clone(list), m.gone)
		}
		for k := range m.neighs {
			if k.index == index {
				m.neigh(k, neighInfo{})
			}
		}
	}
	e := m.linkEvent(index)
	m.say(func(s sink) { s.link(e) })
}

// cut takes a deleted netdev out of a prefix's routes.
func (m *kernelModel) cut(p netip.Prefix, list []modelRoute, index int) (rest []modelRoute) {
	by := func(h nextHop) bool { return h.index == index }
	for _, r := range list {
		if slices.ContainsFunc(r.hops, by) {
			if !m.v6 || m.gone(r) {
				continue
			}
			var part []nextHop
			for _, h := range r.hops {
				if by(h) {
					part = append(part, h)
				}
			}
			gone := routeEvent{prefix: p, prio: r.prio, kind: setOne, hops: part, deleted: true}
			r.hops = slices.DeleteFunc(slices.Clone(r.hops), by)
			if len(part) > 1 {
				gone.kind = setMulti
			}
			if len(r.hops) == 1 {
				r.kind = setOne
			}
			m.say(func(s sink) { s.route(&gone) })
		}
		rest = append(rest, r)
	}
	return rest
}

func (m *kernelModel) neigh(k neighKey, n neighInfo) {
	e := &neighEvent{index: k.index, addr: k.addr, mac: n.mac, state: n.state, deleted: n.state == neighNone}
	if e.deleted {
		delete(m.neighs, k)
	} else {
		m.neighs[k] = n
	}
	m.say(func(s sink) { s.neigh(e) })
}

// lookup gives the route of an address: the longest prefix, its first route.
func (m *kernelModel) lookup(a netip.Addr) *modelRoute {
	var best *modelRoute
	bits := -1
	for p, list := range m.routes {
		if len(list) > 0 && p.Bits() > bits && p.Contains(a) {
			best, bits = &list[0], p.Bits()
		}
	}
	return best
}

// judge says what is wrong with an answer of Route for dst, "": nothing.
func (m *kernelModel) judge(dst netip.Addr, h *Hop, v Verdict) string {
	r := m.lookup(dst)
	want := NoRoute
	if r != nil {
		switch r.kind {
		case setBlackhole:
			want = Blackhole
		case setUnreachable:
			want = Unreachable
		case setProhibit:
			want = Prohibit
		default:
			want = OK
		}
	}
	if want != OK {
		if v != want {
			return fmt.Sprintf("verdict %d, want %d", v, want)
		}
		return ""
	}
	ours, valid := 0, 0
	for _, next := range r.hops {
		if next.index == modelForeign {
			continue
		}
		ours++
		gw := next.gateway
		if !gw.IsValid() {
			gw = dst
		}
		n := m.neighs[neighKey{next.index, gw}]
		if m.up[next.index] && (n.state == neighValid || n.state == neighStale) {
			valid++
			if v == OK && int(h.Port()) == next.index-1 && h.MAC() == n.mac {
				return ""
			}
		}
	}
	switch {
	case ours == 0 && v == NoRoute, ours > 0 && valid < ours && (v == Unresolved || v == Failed):
		return ""
	case v == OK:
		return fmt.Sprintf("port %d MAC %x: none of the usable paths of %+v (%d of %d valid)", h.Port(), h.MAC(), r, valid, ours)
	}
	return fmt.Sprintf("verdict %d for %+v with %d of %d paths valid", v, r, valid, ours)
}

// modelPrefixes nest in one another, over one and over many stamp buckets.
var modelPrefixes = []netip.Prefix{
	pfx("0.0.0.0/0"), pfx("10.0.0.0/8"), pfx("10.0.0.0/14"), pfx("10.1.0.0/16"), pfx("10.1.0.0/17"), pfx("10.1.2.0/24"), pfx("10.1.2.3/32"),
	pfx("10.2.0.0/16"), pfx("172.16.0.0/12"), pfx("172.17.3.0/24"),
}

var modelDestinations = []netip.Addr{
	netip.MustParseAddr("10.1.2.3"), netip.MustParseAddr("10.1.2.4"), netip.MustParseAddr("10.1.200.1"), netip.MustParseAddr("10.2.0.1"),
	netip.MustParseAddr("10.200.0.1"), netip.MustParseAddr("172.17.3.9"), netip.MustParseAddr("172.31.0.1"), netip.MustParseAddr("192.0.2.1"),
}

// widen puts an IPv4 address into the top 32 bits of an IPv6 one, so that both families run the same model.
func widen(a netip.Addr) netip.Addr {
	b := a.As4()
	return netip.AddrFrom16([16]byte{b[0], b[1], b[2], b[3], 15: 1})
}

// modelBed is a table fed by the model, with flows that keep their slots.
type modelBed struct {
	m     *kernelModel
	table *Table
	view  *View
	retry time.Duration
	slots map[netip.Addr]*[2]uint64
}

func newBed(t rapid.TB, v6 bool) *modelBed {
	b := &modelBed{m: newModel(v6), slots: map[netip.Addr]*[2]uint64{}}
	var err error
	ports := []Port{{Name: "dev1", IfIndex: 1, Inside: true}, {Name: "dev2", IfIndex: 2}, {Name: "dev3", IfIndex: 3}}
	if b.table, err = start(Options{Hops: 256, ReversePath: Off}, ports, b.m.fake); err != nil {
		t.Fatal(err)
	}
	b.view = b.table.View()
	return b
}

func (b *modelBed) step(d time.Duration) {
	b.table.mu.Lock()
	defer b.table.mu.Unlock()
	b.table.c.now += d
	b.table.step(&b.retry)
}

func (b *modelBed) route(slot *[2]uint64, dst netip.Addr, hash uint32) (*Hop, Verdict) {
	if dst.Is4() {
		before, last := b.view.C, b.view.last
		peeked, word, _ := b.view.Peek(slot, 0, 1, packet.AddrFrom(dst), hash)
		if b.view.C != before || b.view.last != last {
			panic("Peek left a trace")
		}
		h, v := b.view.Route(slot, 0, 1, packet.AddrFrom(dst), hash)
		if h != peeked || v != word {
			panic(fmt.Sprintf("%v: Peek said %v, Route %v", dst, word, v))
		}
		return h, v
	}
	src, d := netip.IPv6Loopback().As16(), dst.As16()
	return b.view.RouteV6(slot, 0, &src, &d, hash)
}

// check compares fresh lookups and all flows' slots with the model.
func (b *modelBed) check(t rapid.TB) {
	for round := range 2 { // the second after the control side has served on-link requests
		b.step(time.Millisecond)
		for i, dst := range modelDestinations {
			if b.m.v6 {
				dst = widen(dst)
			}
			hash := uint32(i) * 0x9e3779b9
			h, v := b.route(nil, dst, hash)
			if wrong := b.m.judge(dst, h, v); wrong != "" && round == 1 {
				t.Fatalf("%v: fresh lookup: %s", dst, wrong)
			}
			if b.slots[dst] == nil {
				b.slots[dst] = new([2]uint64)
			}
			h, v = b.route(b.slots[dst], dst, hash)
			if wrong := b.m.judge(dst, h, v); wrong != "" && round == 1 {
				t.Fatalf("%v: flow: %s", dst, wrong)
			}
		}
	}
}

// whole checks the bookkeeping: every reference is accounted for.
func (b *modelBed) whole(t rapid.TB) {
	c := b.table.c
	refs := make([]int, len(c.sets.info))
	for _, f := range []*fib{&c.main, &c.local} {
		for p, r := range f.table.All() {
			if list, several := f.more[p]; several {
				if list[0] != r || len(list) < 2 {
					t.Fatalf("%v: the table has %v, the list %v", p, r, list)
				}
				continue
			}
			refs[r.set]++
		}
		for _, list := range f.more {
			for _, r := range list {
				refs[r.set]++
			}
		}
	}
	hopRefs := make([]int32, len(c.info))
	for i := range c.sets.info {
		if c.sets.info[i].refs != refs[i] {
			t.Fatalf("set %d: %d references, counted %d", i, c.sets.info[i].refs, refs[i])
		}
		set := c.sets.chunks.at(uint32(i))
		for _, p := range append(slices.Clone(set.members), set.one) {
			hopRefs[p.hop]++
		}
	}
	for i := 1; i < len(c.info); i++ {
		if c.info[i].refs != hopRefs[i] {
			t.Fatalf("hop %d: %d references, counted %d", i, c.info[i].refs, hopRefs[i])
		}
		if k := c.info[i].key; c.info[i].inUse && k.addr.IsValid() && c.hopOf[k] != uint32(i) {
			t.Fatalf("hop %d is not found by its key", i)
		}
	}
}

func testModel(t *testing.T, v6 bool) {
	rapid.Check(t, func(t *rapid.T) {
		b := newBed(t, v6)
		m := b.m
		address := func(a netip.Addr) netip.Addr {
			if v6 {
				return widen(a)
			}
			return a
		}
		prefix := func() netip.Prefix {
			p := rapid.SampledFrom(modelPrefixes).Draw(t, "prefix")
			if v6 {
				p = netip.PrefixFrom(widen(p.Addr()), p.Bits()).Masked()
			}
			return p
		}
		gateway := func(index int) netip.Addr {
			return address(netip.AddrFrom4([4]byte{198, 51, byte(index), byte(rapid.IntRange(1, 2).Draw(t, "router"))}))
		}
		next := func() nextHop {
			h := nextHop{index: rapid.SampledFrom([]int{1, 2, 3, modelForeign}).Draw(t, "netdev"), weight: uint16(rapid.IntRange(1, 3).Draw(t, "weight"))}
			if rapid.IntRange(0, 3).Draw(t, "on-link") > 0 {
				h.gateway = gateway(h.index)
			}
			return h
		}
		macs := byte(0)
		actions := map[string]func(*rapid.T){
			"announce": func(t *rapid.T) {
				r := modelRoute{prio: uint32(rapid.IntRange(0, 2).Draw(t, "metric")), kind: setOne}
				switch n := rapid.IntRange(0, 7).Draw(t, "type"); n {
				case 0:
					r.kind = rapid.SampledFrom([]setKind{setBlackhole, setUnreachable, setProhibit}).Draw(t, "kind")
				case 1, 2:
					r.kind = setMulti
					for range n + 1 {
						h := next()
						if !hasHop(r.hops, h) {
							r.hops = append(r.hops, h)
						}
					}
					if len(r.hops) == 1 {
						r.kind = setOne
					}
				default:
					r.hops = []nextHop{next()}
				}
				mode := rapid.SampledFrom([]routeMode{routeAdd, routePrepend, routeReplace}).Draw(t, "mode")
				m.add(prefix(), r, mode)
			},
			"withdraw": func(t *rapid.T) {
				p := prefix()
				if n := len(m.routes[p]); n > 0 {
					m.remove(p, rapid.IntRange(0, n-1).Draw(t, "which"))
				}
			},
			"link": func(t *rapid.T) {
				index := rapid.SampledFrom([]int{1, 2, 3, modelForeign}).Draw(t, "netdev")
				up, there := m.up[index]
				if there {
					m.link(index, !up, up && rapid.IntRange(0, 9).Draw(t, "delete") == 0)
				} else if rapid.IntRange(0, 3).Draw(t, "make") == 0 { // as a netdev that visited another namespace
					for b.step(rereadAgain); b.table.c.suspect; { // what was lost before is known
						b.step(rereadAgain)
					}
					m.link(index, true, false)
					b.step(rereadAgain)
					if index != modelForeign {
						if err := b.table.Attach(uint16(index-1), index); err != nil {
							t.Fatal(err)
						}
					}
				}
			},
			"neighbour": func(t *rapid.T) {
				index := rapid.SampledFrom([]int{1, 2, 3}).Draw(t, "netdev")
				if !m.up[index] {
					return
				}
				a := gateway(index)
				if rapid.Bool().Draw(t, "host") {
					a = address(rapid.SampledFrom(modelDestinations).Draw(t, "address"))
				}
				macs++
				n := neighInfo{state: rapid.SampledFrom([]neighState{neighNone, neighIncomplete, neighValid, neighValid, neighStale, neighFailed}).Draw(t, "state")}
				if n.state == neighValid || n.state == neighStale {
					n.mac = [6]byte{2, byte(index), 0, 0, 0, macs}
				}
				m.neigh(neighKey{index, a}, n)
			},
			"overrun": func(t *rapid.T) { // what was queued is lost, the state is not
				m.fake.overrun = true
			},
			"time": func(t *rapid.T) {
				b.step(time.Duration(rapid.IntRange(1, 40).Draw(t, "seconds")) * time.Second)
			},
			"": func(t *rapid.T) {
				b.step(rereadAgain) // a failed or too early reading is made up for
				b.check(t)
				b.whole(t)
			},
		}
		t.Repeat(actions)
	})
}

func TestModelV4(t *testing.T) { testModel(t, false) }
func TestModelV6(t *testing.T) { testModel(t, true) }
