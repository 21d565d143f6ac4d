package rtcache

import (
	"bytes"
	"encoding/hex"
	"errors"
	"net/netip"
	"os"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"pollux/internal/packet"
)

// hostBed is a table whose port 1 (netdev 2) has 192.0.0.0/16 on-link, and a default route by 192.0.2.2.
func hostBed(t *testing.T, hops int) *modelBed {
	t.Helper()
	m := newModel(false)
	b := &modelBed{m: m}
	m.add(pfx("192.0.0.0/16"), modelRoute{kind: setOne, hops: []nextHop{{index: 2, weight: 1}}}, routeAdd)
	m.add(pfx("0.0.0.0/0"), modelRoute{kind: setOne, hops: []nextHop{{index: 2, gateway: netip.MustParseAddr("192.0.2.2"), weight: 1}}}, routeAdd)
	ports := []Port{{Name: "dev1", IfIndex: 1, Inside: true}, {Name: "dev2", IfIndex: 2}, {Name: "dev3", IfIndex: 3}}
	var err error
	if b.table, err = start(Options{Hops: hops, ReversePath: Off}, ports, m.fake); err != nil {
		t.Fatal(err)
	}
	b.view = b.table.View()
	return b
}

func (b *modelBed) resolve(a netip.Addr, state neighState) {
	b.m.neigh(neighKey{2, a}, neighInfo{mac: [6]byte{2, 1, 1, 1, 1, 1}, state: state})
}

func (b *modelBed) verdict(dst string) Verdict {
	_, v := b.route(nil, netip.MustParseAddr(dst), 1)
	return v
}

func TestNeighbourLife(t *testing.T) {
	b := hostBed(t, 256)
	gw := neighKey{2, netip.MustParseAddr("192.0.2.2")}
	asked := func(what string, want int) {
		t.Helper()
		n := 0
		for _, k := range b.m.fake.asked {
			if k == gw {
				n++
			}
		}
		if n != want {
			t.Errorf("%s: the kernel was asked %d times, want %d", what, n, want)
		}
		b.m.fake.asked = nil
	}
	asked("a router is resolved before anybody needs it", 1)
	if v := b.verdict("203.0.113.9"); v != Unresolved {
		t.Errorf("verdict %d", v)
	}
	b.resolve(gw.addr, neighIncomplete)
	b.step(2 * time.Second)
	if v := b.verdict("203.0.113.9"); v != Unresolved {
		t.Errorf("being asked: verdict %d", v)
	}
	asked("while it is being asked", 0)
	b.step(2 * time.Second) // the kernel says nothing: we give up ourselves
	if v := b.verdict("203.0.113.9"); v != Failed {
		t.Errorf("after 4 s: verdict %d", v)
	}
	b.step(askAgain)
	asked("a failed router is asked again", 1)
	b.resolve(gw.addr, neighIncomplete)
	b.step(time.Millisecond)
	if v := b.verdict("203.0.113.9"); v != Failed {
		t.Errorf("asked again: verdict %d, packets must not wait a second time", v)
	}
	b.resolve(gw.addr, neighValid)
	epoch := b.table.ResolvedEpoch()
	b.step(time.Millisecond)
	if v := b.verdict("203.0.113.9"); v != OK || b.table.ResolvedEpoch() == epoch {
		t.Errorf("resolved: verdict %d, epoch %d", v, b.table.ResolvedEpoch())
	}
	asked("done", 0)
	b.resolve(gw.addr, neighFailed) // the unicast probes to the old MAC failed
	b.step(time.Millisecond)
	if v := b.verdict("203.0.113.9"); v != Unresolved {
		t.Errorf("a lost router: verdict %d, want another try", v)
	}
	asked("everybody is asked at once", 1)
	b.resolve(gw.addr, neighFailed)
	b.step(time.Millisecond)
	if v := b.verdict("203.0.113.9"); v != Failed {
		t.Errorf("really lost: verdict %d", v)
	}
}

// A stale neighbour is used, and confirmed when somebody uses it.
func TestStaleNeighbour(t *testing.T) {
	b := hostBed(t, 256)
	gw := netip.MustParseAddr("192.0.2.2")
	b.resolve(gw, neighStale)
	b.step(time.Millisecond)
	b.m.fake.asked = nil
	b.step(sweepEvery)
	b.step(sweepEvery)
	if len(b.m.fake.asked) != 0 {
		t.Errorf("asked %v for nobody", b.m.fake.asked)
	}
	if v := b.verdict("203.0.113.9"); v != OK {
		t.Errorf("verdict %d", v)
	}
	b.step(sweepEvery)
	if len(b.m.fake.asked) != 1 {
		t.Errorf("asked %v, want the router confirmed", b.m.fake.asked)
	}
}

// 65k on-link hosts, most of them nobody: bounded, and the routers keep their place.
func TestOnLinkBounded(t *testing.T) {
	b := hostBed(t, 4096)
	b.resolve(netip.MustParseAddr("192.0.2.2"), neighValid)
	for i := range 1 << 16 {
		if _, v := b.route(nil, packet.Addr(192<<24|i).Netip(), 1); v != Unresolved && v != Failed && i != 0x202 {
			t.Fatalf("host %d: verdict %d", i, v)
		}
		if i%512 == 511 {
			b.step(time.Millisecond)
		}
	}
	s := b.table.Stats()
	if s.Hops > 4096 || s.Waiting > pendingMax+1 || s.HopsRefused == 0 {
		t.Errorf("%+v: not bounded by %d being resolved", s, pendingMax)
	}
	if len(b.m.fake.asked) > pendingMax+1 {
		t.Errorf("the kernel was asked %d times", len(b.m.fake.asked))
	}
	// Those that have failed are no obstacle to new ones, up to the room that hosts may take.
	for i := range 1 << 16 {
		b.route(nil, packet.Addr(192<<24|i).Netip(), 1)
		if i%512 == 511 {
			b.step(4 * time.Second)
		}
	}
	if s = b.table.Stats(); s.Hops < 2500 || s.Hops > 4096*7/8+1 {
		t.Errorf("%d hops, want 7 of 8 of 4096 at most", s.Hops)
	}
	b.route(nil, netip.MustParseAddr("192.0.99.99"), 1)
	b.step(reuseAfter)
	b.route(nil, netip.MustParseAddr("192.0.99.99"), 1)
	b.resolve(netip.MustParseAddr("192.0.99.99"), neighValid)
	b.step(time.Millisecond)
	if v := b.verdict("192.0.99.99"); v != OK {
		t.Errorf("a host that answers, amid 65k that do not: verdict %d", v)
	}
	// They idle away.
	for range idleSweeps + 2 {
		b.step(sweepEvery)
	}
	if s = b.table.Stats(); s.Hops > 8 {
		t.Errorf("%d hops are left of idle hosts", s.Hops)
	}
	if v := b.verdict("203.0.113.9"); v != OK {
		t.Errorf("the router's hop went with them: verdict %d", v)
	}
	b.route(nil, netip.MustParseAddr("192.0.77.77"), 1)
	b.resolve(netip.MustParseAddr("192.0.77.77"), neighValid)
	b.step(time.Millisecond)
	if v := b.verdict("192.0.77.77"); v != OK {
		t.Errorf("a new host after that: verdict %d", v)
	}
	b.whole(t)
}

// All hosts of a /16 answer: each has its hop, and an idle one goes without misleading a flow that comes back.
func TestOnLinkMany(t *testing.T) {
	b := hostBed(t, hopsMax)
	const n = 1 << 16
	mac := func(i int) [6]byte { return [6]byte{2, 3, 0, 0, byte(i >> 8), byte(i)} }
	for i := range n {
		a := packet.Addr(192<<24 | i).Netip()
		b.m.neighs[neighKey{2, a}] = neighInfo{mac: mac(i), state: neighValid}
		e := &neighEvent{index: 2, addr: a, mac: mac(i), state: neighValid}
		b.m.say(func(s sink) { s.neigh(e) })
	}
	b.step(time.Millisecond)
	slots := make([][2]uint64, n)
	for round := range 3 {
		for i := range n {
			h, v := b.route(&slots[i], packet.Addr(192<<24|i).Netip(), 1)
			switch {
			case round == 0 && v == Unresolved:
			case v != OK || h.MAC() != mac(i) || h.Port() != 1:
				t.Fatalf("round %d host %d: verdict %d hop %v", round, i, v, h)
			}
			if i%512 == 511 {
				b.step(time.Millisecond)
			}
		}
	}
	if s := b.table.Stats(); s.Hops < n {
		t.Errorf("%d hops for %d hosts", s.Hops, n)
	}
	for range idleSweeps + 2 {
		b.step(sweepEvery)
	}
	if s := b.table.Stats(); s.Hops > 16 {
		t.Errorf("%d hops are left of idle hosts", s.Hops)
	}
	// Other hosts take the indexes; the old slots must not lead to them.
	b.step(reuseAfter)
	for i := range 500 {
		b.route(nil, packet.Addr(192<<24|(n-1-i)).Netip(), 1)
	}
	b.step(time.Millisecond)
	for i := range n {
		if h, v := b.route(&slots[i], packet.Addr(192<<24|i).Netip(), 1); v == OK && h.MAC() != mac(i) {
			t.Fatalf("host %d: an old slot leads to MAC %x", i, h.MAC())
		}
		if i%512 == 511 {
			b.step(time.Millisecond)
		}
	}
	b.whole(t)
}

func TestOverrun(t *testing.T) {
	b := hostBed(t, 256)
	m := b.m
	gw := netip.MustParseAddr("192.0.2.2")
	b.resolve(gw, neighValid)
	b.step(time.Millisecond)
	var concerned, other [2]uint64
	near, far := netip.MustParseAddr("203.0.113.9"), netip.MustParseAddr("100.0.0.1")
	b.route(&concerned, near, 1)
	b.route(&other, far, 1)

	// A change is lost; the reading finds it and disturbs nobody else.
	m.add(pfx("203.0.113.0/24"), modelRoute{kind: setOne, hops: []nextHop{{index: 3, gateway: netip.MustParseAddr("198.51.3.1"), weight: 1}}}, routeAdd)
	m.neigh(neighKey{3, netip.MustParseAddr("198.51.3.1")}, neighInfo{mac: [6]byte{2, 3, 3, 3, 3, 3}, state: neighValid})
	m.fake.overrun = true
	b.step(time.Second)
	b.view.C = Counters{}
	if h, v := b.route(&other, far, 1); v != OK || h.Port() != 1 || b.view.C.Hits != 1 {
		t.Errorf("a flow that the change does not concern: verdict %d, %+v", v, b.view.C)
	}
	if h, v := b.route(&concerned, near, 1); v != OK || h.Port() != 2 || b.view.C.RouteChanged != 1 {
		t.Errorf("the flow that it concerns: verdict %d, %+v", v, b.view.C)
	}

	// The reading fails: what is known stays in use, and it is tried again.
	m.fake.failDump = errors.New("no memory")
	m.fake.overrun = true
	b.step(time.Second)
	if _, v := b.route(&other, far, 1); v != OK {
		t.Errorf("after a failed reading: verdict %d", v)
	}
	if w := b.table.Warnings(); len(w) != 1 {
		t.Errorf("warnings %q, want one about the failed reading", w)
	}
	m.remove(pfx("203.0.113.0/24"), 0)
	m.fake.queue = nil // lost
	m.fake.failDump = nil
	b.step(time.Second)
	if h, v := b.route(&concerned, near, 1); v != OK || h.Port() != 1 {
		t.Errorf("after the next reading: verdict %d", v)
	}
	if w := b.table.Warnings(); len(w) != 0 {
		t.Errorf("warnings %q", w)
	}
	b.whole(t)
}

// A port goes down under a full table: from the first publication on, long before the routes are out of the table, lookups
// find the routes that are left; and a route that comes back at once is not mistaken for the lost one.
func TestLostRoutesAreLookedPast(t *testing.T) {
	for _, n := range []int{10, 3 * rebuildAbove} {
		b := hostBed(t, 256)
		m := b.m
		router := func(index int) netip.Addr { return netip.AddrFrom4([4]byte{198, 51, byte(index), 1}) }
		for _, index := range []int{2, 3} {
			m.neigh(neighKey{index, router(index)}, neighInfo{mac: [6]byte{2, 0, 0, 0, 0, byte(index)}, state: neighValid})
		}
		via := func(index int) modelRoute {
			return modelRoute{kind: setOne, hops: []nextHop{{index: index, gateway: router(index), weight: 1}}}
		}
		m.add(pfx("0.0.0.0/0"), via(3), routeReplace)
		for i := range n {
			m.add(netip.PrefixFrom(packet.Addr(100<<24|i<<8).Netip(), 24), via(2), routeAdd)
		}
		m.add(pfx("100.0.0.0/9"), via(2), routeAdd)
		backup := via(3)
		backup.prio, backup.hops[0].weight = 9, 2
		m.add(pfx("100.0.1.0/24"), backup, routeAdd)
		b.step(time.Millisecond)
		leaves := func(dst string, port uint16, when string) {
			t.Helper()
			h, v := b.route(nil, netip.MustParseAddr(dst), 1)
			if v != OK || h.Port() != port {
				t.Errorf("%d routes, %s: %s has verdict %d", n, when, dst, v)
			}
		}
		leaves("100.0.1.1", 1, "before")
		leaves("100.0.2.1", 1, "before")

		c := b.table.c
		c.links[2] = linkState{name: "dev2"}
		lost := c.lose(2, false)
		c.publish()
		leaves("100.0.1.1", 2, "marked") // by its own second route
		leaves("100.0.2.1", 2, "marked") // past its /24 and the /9
		c.links[2] = linkState{up: true, name: "dev2"}
		again := via(2)
		c.route(&routeEvent{prefix: pfx("100.200.3.0/24"), kind: setOne, hops: again.hops})
		c.publish()
		c.sweepLost(&c.main, lost)
		c.publish()
		leaves("100.0.2.1", 2, "removed")
		leaves("100.200.3.1", 1, "come back")
		b.whole(t)
		if s := b.table.Stats(); s.Routes > 5 {
			t.Errorf("%d routes are left", s.Routes)
		}
	}
}

// Messages older than the dump that are read after it must not show an older state in between.
func TestReadingHidesThePast(t *testing.T) {
	b := hostBed(t, 256)
	b.resolve(netip.MustParseAddr("192.0.2.2"), neighValid)
	b.step(time.Millisecond)
	m := b.m
	list := m.routes[pfx("0.0.0.0/0")]
	dump := m.fake.dumpFrom
	m.fake.dumpFrom = func(s sink) {
		dump(s)
		// The events of a removal and an addition that happened before the dump read the table.
		e := routeEvent{prefix: pfx("0.0.0.0/0"), kind: setOne, hops: list[0].hops}
		m.say(func(s sink) { gone := e; gone.deleted = true; s.route(&gone) })
		m.say(func(s sink) {
			if _, v := b.route(nil, netip.MustParseAddr("203.0.113.9"), 1); v != OK {
				t.Errorf("a worker saw the past: verdict %d", v)
			}
			back := e
			s.route(&back)
		})
	}
	m.fake.overrun = true
	b.step(time.Second)
	if v := b.verdict("203.0.113.9"); v != OK {
		t.Errorf("verdict %d", v)
	}
	b.whole(t)
}

// One goroutine changes everything that can change without losing the way, another routes: never anything but OK, and no
// frame with a mixture of two MACs. Under -race this also proves that workers and the control side share only atomics.
func TestWorkersRaceWithControl(t *testing.T) {
	b := hostBed(t, 256)
	gw := netip.MustParseAddr("192.0.2.2")
	b.m.neigh(neighKey{2, gw}, neighInfo{state: neighValid})
	b.step(time.Millisecond)
	var stop atomic.Bool
	var wg sync.WaitGroup
	for w := range 2 {
		view := b.table.View()
		wg.Go(func() {
			var slots [64][2]uint64
			frame := make([]byte, 14)
			for n := 0; !stop.Load(); n++ {
				i := n % len(slots)
				h, v := view.Route(&slots[i], 0, 1, packet.Addr(203<<24|i<<12|w), uint32(i))
				if v != OK {
					t.Errorf("verdict %d", v)
					return
				}
				h.WriteMACs(frame)
				if !bytes.Equal(frame[:6], bytes.Repeat(frame[:1], 6)) {
					t.Errorf("torn MAC %x", frame[:6])
					return
				}
				if n%1024 == 0 {
					runtime.Gosched()
				}
			}
		})
	}
	via := []nextHop{{index: 2, gateway: gw, weight: 1}}
	for n := range 2000 {
		mac := [6]byte(bytes.Repeat([]byte{byte(n%127) * 2}, 6))
		b.m.neigh(neighKey{2, gw}, neighInfo{mac: mac, state: neighValid})
		p := netip.PrefixFrom(packet.Addr(203<<24|n%64<<12).Netip(), 20)
		if n%128 < 64 {
			b.m.add(p, modelRoute{prio: 1, kind: setOne, hops: via}, routeAdd)
		} else if len(b.m.routes[p]) > 0 {
			b.m.remove(p, 0)
		}
		b.m.fake.overrun = n%100 == 99
		b.step(time.Millisecond)
	}
	stop.Store(true)
	wg.Wait()
}

func TestChooseFollowsWeights(t *testing.T) {
	set := pathSet{kind: setMulti, total: 10, members: []path{{weight: 1, port: 0}, {weight: 2, port: 1}, {weight: 7, port: 2}}}
	var n [3]int
	const rounds = 100000
	for i := range uint32(rounds) {
		n[set.choose(i*0x9e3779b9, nil, 0).port]++
	}
	for port, weight := range []int{1, 2, 7} {
		if want := rounds / 10 * weight; n[port] < want*95/100 || n[port] > want*105/100 {
			t.Errorf("path %d of weight %d got %d of %d", port, weight, n[port], rounds)
		}
	}
	usable := [pathsMax]bool{0: true, 1: true}
	for i := range uint32(1000) {
		if set.choose(i*0x9e3779b9, &usable, 3).port == 2 {
			t.Fatal("an unusable path was chosen")
		}
	}
}

func TestAnnouncement(t *testing.T) {
	frame := make([]byte, 64)
	n := Announcement(frame, [6]byte{2, 0, 0, 0, 0, 7}, addr4("192.0.2.77"))
	want := "ffffffffffff020000000007" + "0806" + "0001080006040001" + "020000000007c000024d" + "000000000000c000024d"
	if got := hex.EncodeToString(frame[:n]); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

// The first packet to an on-link host asks for its hop and wakes the control goroutine: without allocating, and only once.
func TestRequestDoesNotAllocate(t *testing.T) {
	b := hostBed(t, 256)
	var err error
	fd, err := unix.Eventfd(0, unix.EFD_NONBLOCK|unix.EFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	b.table.wakeup = os.NewFile(uintptr(fd), "eventfd")
	defer b.table.wakeup.Close()
	a := packet.Addr(192<<24 | 1)
	n := testing.AllocsPerRun(100, func() {
		a++
		b.table.asleep.Store(1)
		b.view.Route(nil, 0, 1, a, 1)
		b.view.Route(nil, 0, 1, a, 1)
	})
	if n != 0 {
		t.Errorf("allocates %v times", n)
	}
	if r := b.view.C.Requests; r != 101 { // AllocsPerRun runs once more to warm up
		t.Errorf("%d requests for 101 hosts", r)
	}
	var count [8]byte
	if _, err := b.table.wakeup.Read(count[:]); err != nil || count[0] != 101 {
		t.Errorf("%d wake-ups (%v), want one for each sleep", count[0], err)
	}
}

func TestPortSource(t *testing.T) {
	table := static(t, StaticOptions{Ports: []Port{
		{Name: "in", Inside: true, Addr: addr4("10.0.0.1")}, {Name: "in2", Inside: true}, {Name: "out"}, {Name: "out2", Addr: addr4("192.0.2.1")},
	}})
	for port, want := range []string{"10.0.0.1", "10.0.0.1", "192.0.2.1", "192.0.2.1"} {
		if got := table.Source(uint16(port)); got != addr4(want) {
			t.Errorf("port %d speaks as %v, want %s", port, got, want)
		}
	}
	if table.Source(4) != 0 {
		t.Error("a port that is not there has an address")
	}
}
