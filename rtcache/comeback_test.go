package rtcache

import (
	"net/netip"
	"testing"
	"time"
)

// comeBed is a hostBed with a router on port 1 (dev2, netdev 2), a host of its net known, and a flow by each.
func comeBed(t *testing.T) (b *modelBed, told *[]Port) {
	t.Helper()
	b = hostBed(t, 256)
	told = new([]Port)
	b.table.onPort = func(p Port) { *told = append(*told, p) }
	b.resolve(netip.MustParseAddr("192.0.2.2"), neighValid)
	b.step(1)
	return b, told
}

// made says that a netdev is there, and all that the kernel says of it when it gets its address back.
func (b *modelBed) made(index int, name string) {
	b.m.say(func(s sink) {
		s.link(&linkEvent{index: index, name: name, mac: [6]byte{2, 0, 0, 0, 9, byte(index)}, mtu: 1400, up: true})
		s.addr(&addrEvent{index: index, addr: pfx("192.0.0.1/16")})
		s.route(&routeEvent{prefix: pfx("192.0.0.0/16"), kind: setOne, hops: []nextHop{{index: index, weight: 1}}})
		s.route(&routeEvent{prefix: pfx("0.0.0.0/0"), kind: setOne, hops: []nextHop{{index: index, gateway: netip.MustParseAddr("192.0.2.2"), weight: 1}}})
		s.neigh(&neighEvent{index: index, addr: netip.MustParseAddr("192.0.2.2"), mac: [6]byte{2, 7, 7, 7, 7, 7}, state: neighValid})
	})
}

func (b *modelBed) deleted(index int) {
	b.m.say(func(s sink) { s.link(&linkEvent{index: index, deleted: true}) })
}

func TestNetdevMadeAgain(t *testing.T) {
	b, told := comeBed(t)
	slot := new([2]uint64)
	route := func() (*Hop, Verdict) { return b.route(slot, netip.MustParseAddr("203.0.113.9"), 1) }
	if _, v := route(); v != OK {
		t.Fatalf("before: verdict %d", v)
	}
	b.deleted(2)
	b.step(1)
	if _, v := route(); v != NoRoute {
		t.Errorf("deleted: verdict %d", v)
	}
	if p := b.table.Ports()[1]; !p.Gone || p.Waiting || p.Up {
		t.Errorf("deleted: %+v", p)
	}
	b.made(7, "other")
	b.step(1)
	if p := b.table.Ports()[1]; !p.Gone {
		t.Errorf("a netdev of another name took the port: %+v", p)
	}
	b.deleted(7)
	b.step(1)

	b.made(8, "dev2")
	b.step(1)
	p := b.table.Ports()[1]
	if p.Gone || !p.Waiting || p.Up || p.IfIndex != 8 || p.MTU != 1400 {
		t.Errorf("made again: %+v", p)
	}
	if last := (*told)[len(*told)-1]; !last.Waiting || last.IfIndex != 8 || last.MAC != p.MAC {
		t.Errorf("told %+v", last)
	}
	if _, v := route(); v != Unresolved { // packets wait: nothing may go to a netdev without sockets
		t.Errorf("waiting: verdict %d", v)
	}
	if err := b.table.Attach(1, 2); err == nil {
		t.Error("attached to a netdev that the port has not")
	}
	epoch := b.table.ResolvedEpoch()
	if err := b.table.Attach(1, 8); err != nil {
		t.Fatal(err)
	}
	if b.table.ResolvedEpoch() == epoch {
		t.Error("nobody is told that the next hops came up")
	}
	h, v := route()
	if v != OK || h.Port() != 1 || h.MAC() != [6]byte{2, 7, 7, 7, 7, 7} || h.MTU() != 1400 {
		t.Errorf("attached: verdict %d, %+v", v, h)
	}
	b.step(1)
	if p := b.table.Ports()[1]; p.Waiting || !p.Up || (*told)[len(*told)-1] != p {
		t.Errorf("attached: %+v, told %+v", p, (*told)[len(*told)-1])
	}
	if err := b.table.Attach(1, 8); err != nil {
		t.Errorf("attached twice: %v", err)
	}
}

// A netdev made under another name, given its routes, and then renamed, as container tools do it.
func TestNetdevMadeAgainUnderAnotherName(t *testing.T) {
	b, _ := comeBed(t)
	b.deleted(2)
	b.made(7, "tmp0")
	b.step(1)
	if v := b.verdict("203.0.113.9"); v != NoRoute {
		t.Errorf("by a netdev that is no port: verdict %d", v)
	}
	b.m.say(func(s sink) { s.link(&linkEvent{index: 7, name: "dev2", mtu: 1500, up: true}) })
	b.m.fake.dumpFrom = func(s sink) { // the neighbours were passed over, so everything is read once more
		for i, name := range []string{"dev1", "", "dev3"} {
			if name != "" {
				s.link(&linkEvent{index: i + 1, name: name, mtu: 1500, up: true})
			}
		}
		s.link(&linkEvent{index: 7, name: "dev2", mtu: 1500, up: true})
		s.neigh(&neighEvent{index: 7, addr: netip.MustParseAddr("192.0.2.2"), mac: [6]byte{2, 7, 7, 7, 7, 7}, state: neighValid})
		s.route(&routeEvent{prefix: pfx("0.0.0.0/0"), kind: setOne, hops: []nextHop{{index: 7, gateway: netip.MustParseAddr("192.0.2.2"), weight: 1}}})
	}
	b.step(time.Second)
	b.step(time.Second)
	if err := b.table.Attach(1, 7); err != nil {
		t.Fatal(err)
	}
	if h, v := b.route(nil, netip.MustParseAddr("203.0.113.9"), 1); v != OK || h.Port() != 1 || h.MAC() != [6]byte{2, 7, 7, 7, 7, 7} {
		t.Errorf("verdict %d", v)
	}
}

// The kernel's messages about the end of one netdev and the beginning of the next are lost.
func TestNetdevMadeAgainAmidOverrun(t *testing.T) {
	b, told := comeBed(t)
	dump := func(s sink) {
		for i, name := range map[int]string{1: "dev1", 8: "dev2", 3: "dev3"} {
			s.link(&linkEvent{index: i, name: name, mac: [6]byte{2, 0, 0, 0, 9, byte(i)}, mtu: 1500, up: true})
		}
		s.neigh(&neighEvent{index: 8, addr: netip.MustParseAddr("192.0.2.2"), mac: [6]byte{2, 7, 7, 7, 7, 7}, state: neighValid})
		s.route(&routeEvent{prefix: pfx("0.0.0.0/0"), kind: setOne, hops: []nextHop{{index: 8, gateway: netip.MustParseAddr("192.0.2.2"), weight: 1}}})
	}
	b.m.fake.dumpFrom, b.m.fake.overrun = dump, true
	b.step(time.Second)
	b.step(time.Second)
	b.step(time.Second)
	if p := b.table.Ports()[1]; p.IfIndex != 8 || !p.Waiting || p.MAC != [6]byte{2, 0, 0, 0, 9, 8} {
		t.Fatalf("%+v, told %+v", p, *told)
	}
	if err := b.table.Attach(1, 8); err != nil {
		t.Fatal(err)
	}
	if h, v := b.route(nil, netip.MustParseAddr("203.0.113.9"), 1); v != OK || h.MAC() != [6]byte{2, 7, 7, 7, 7, 7} {
		t.Errorf("verdict %d", v)
	}
}
