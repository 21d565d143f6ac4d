package rtcache

import (
	"net/netip"
	"testing"

	"pollux/internal/packet"
)

func addr4(s string) packet.Addr { return packet.AddrFrom(netip.MustParseAddr(s)) }

func pfx(s string) netip.Prefix { return netip.MustParsePrefix(s) }

// twoPorts is an inside port 0 (10.0.0.1) and an outside port 1 (192.0.2.1).
func twoPorts() []Port {
	return []Port{
		{Name: "in", Inside: true, MAC: [6]byte{2, 0, 0, 0, 0, 1}, MTU: 1500, Addr: addr4("10.0.0.1")},
		{Name: "out", MAC: [6]byte{2, 0, 0, 0, 0, 2}, MTU: 1400, Addr: addr4("192.0.2.1")},
	}
}

func static(t testing.TB, o StaticOptions) *Table {
	t.Helper()
	if o.Ports == nil {
		o.Ports = twoPorts()
		o.Routes = append(o.Routes, StaticRoute{Prefix: pfx("10.0.0.0/8"), Port: 0})
	}
	table, err := NewStatic(o)
	if err != nil {
		t.Fatal(err)
	}
	return table
}

func TestStaticRoutes(t *testing.T) {
	table := static(t, StaticOptions{Routes: []StaticRoute{
		{Prefix: pfx("198.51.100.0/24"), Verdict: Blackhole},
		{Prefix: pfx("198.51.101.0/24"), Verdict: Unreachable},
		{Prefix: pfx("198.51.102.0/24"), Verdict: Prohibit},
		{Prefix: pfx("198.51.103.0/24"), Verdict: Local},
	}})
	v := table.View()
	const inside, outside = 0, 1
	for _, c := range []struct {
		name     string
		ingress  uint16
		src, dst string
		verdict  Verdict
		port     uint16
		mtu      int
	}{
		{"out by the default", inside, "10.0.0.5", "203.0.113.9", OK, outside, 1400},
		{"back in", outside, "203.0.113.9", "10.0.0.5", OK, inside, 1500},
		{"inside to inside", inside, "10.0.0.5", "10.1.2.3", OK, inside, 1500},
		{"own address", inside, "10.0.0.5", "192.0.2.1", Local, 0, 0},
		{"multicast", inside, "10.0.0.5", "224.0.0.251", Local, 0, 0},
		{"limited broadcast", inside, "10.0.0.5", "255.255.255.255", Local, 0, 0},
		{"blackhole", inside, "10.0.0.5", "198.51.100.1", Blackhole, 0, 0},
		{"unreachable", inside, "10.0.0.5", "198.51.101.1", Unreachable, 0, 0},
		{"prohibit", inside, "10.0.0.5", "198.51.102.1", Prohibit, 0, 0},
		{"local prefix", inside, "10.0.0.5", "198.51.103.1", Local, 0, 0},
		{"inside source from outside", outside, "10.0.0.5", "10.0.0.6", ReversePath, 0, 0},
		{"outside source from inside", inside, "203.0.113.9", "203.0.113.10", ReversePath, 0, 0},
		{"own source", inside, "10.0.0.1", "203.0.113.10", ReversePath, 0, 0},
		{"blackholed source", outside, "198.51.100.1", "10.0.0.6", ReversePath, 0, 0},
	} {
		h, verdict := v.Route(nil, c.ingress, addr4(c.src), addr4(c.dst), 1)
		if verdict != c.verdict {
			t.Errorf("%s: verdict %d, want %d", c.name, verdict, c.verdict)
			continue
		}
		if verdict != OK {
			continue
		}
		frame := make([]byte, 14)
		h.WriteMACs(frame)
		want := string([]byte{2, 0, 0, 0, 1, byte(c.port), 2, 0, 0, 0, 0, byte(c.port) + 1, 0, 0})
		if h.Port() != c.port || h.MTU() != c.mtu || string(frame) != want {
			t.Errorf("%s: port %d mtu %d frame %x, want %d %d %x", c.name, h.Port(), h.MTU(), frame, c.port, c.mtu, want)
		}
	}
}

func TestSlotReuse(t *testing.T) {
	table := static(t, StaticOptions{})
	v := table.View()
	var slot [2]uint64
	src, dst := addr4("10.0.0.5"), addr4("203.0.113.9")
	route := func(ingress uint16, want Verdict) {
		t.Helper()
		if _, verdict := v.Route(&slot, ingress, src, dst, 1); verdict != want {
			t.Fatalf("verdict %d, want %d", verdict, want)
		}
	}
	expect := func(what string, want Counters) {
		t.Helper()
		if v.C != want {
			t.Fatalf("%s: counters %+v, want %+v", what, v.C, want)
		}
		v.C = Counters{}
	}
	route(0, OK)
	expect("first packet", Counters{Unattached: 1, ReverseChecked: 1})
	route(0, OK)
	route(0, OK)
	expect("next packets", Counters{Hits: 2})

	route(1, ReversePath)
	expect("by the wrong port", Counters{IngressChanged: 1, ReverseChecked: 1, ReverseFailed: 1})
	route(0, OK)
	expect("the flow keeps its next hop", Counters{Hits: 1})

	if err := table.SetStaticRoute(StaticRoute{Prefix: pfx("198.51.100.0/24"), Port: 0}, false); err != nil {
		t.Fatal(err)
	}
	route(0, OK)
	expect("a route that does not concern the flow", Counters{Hits: 1})

	if err := table.SetStaticRoute(StaticRoute{Prefix: pfx("203.0.113.0/24"), Port: 0}, false); err != nil {
		t.Fatal(err)
	}
	h, verdict := v.Route(&slot, 0, src, dst, 1)
	if verdict != OK || h.Port() != 0 {
		t.Fatalf("verdict %d port %d, want the more specific route by port 0", verdict, h.Port())
	}
	expect("a more specific route: no reverse-path check for a known ingress", Counters{RouteChanged: 1})

	if err := table.SetStaticRoute(StaticRoute{Prefix: pfx("203.0.113.0/24"), Port: 0}, true); err != nil {
		t.Fatal(err)
	}
	h, _ = v.Route(&slot, 0, src, dst, 1)
	if h.Port() != 1 {
		t.Fatal("the withdrawn route is still used")
	}
	expect("withdrawn", Counters{RouteChanged: 1})

	table.SetReversePath(Loose)
	route(0, OK)
	expect("another reverse-path mode", Counters{ModeChanged: 1, ReverseChecked: 1})

	table.SetCache(false)
	route(0, OK)
	route(0, OK)
	expect("cache off", Counters{CacheOff: 2, ReverseChecked: 2})
	table.SetCache(true)
	route(0, OK)
	expect("cache on again", Counters{Hits: 1})

	if _, verdict := v.Route(&slot, 0, src, addr4("203.0.113.10"), 1); verdict != OK {
		t.Fatal(verdict)
	}
	expect("the slot of another destination", Counters{ModeChanged: 1, ReverseChecked: 1})
}

func TestStaticNeighbour(t *testing.T) {
	table := static(t, StaticOptions{Unresolved: true})
	v := table.View()
	var slot [2]uint64
	route := func() (*Hop, Verdict) { return v.Route(&slot, 0, addr4("10.0.0.5"), addr4("203.0.113.9"), 1) }
	h, verdict := route()
	if verdict != Unresolved || h == nil {
		t.Fatalf("verdict %d, want Unresolved with its hop", verdict)
	}
	epoch := table.ResolvedEpoch()
	mac := [6]byte{2, 9, 9, 9, 9, 9}
	if err := table.SetStaticHop(1, mac, OK); err != nil {
		t.Fatal(err)
	}
	if table.ResolvedEpoch() == epoch {
		t.Error("no word that the hop is resolved")
	}
	again, verdict := route()
	if verdict != OK || again != h || again.MAC() != mac {
		t.Fatalf("verdict %d MAC %x, want the same hop with %x", verdict, again.MAC(), mac)
	}
	// A changed MAC is edited in place: no flow pays.
	mac[5] = 8
	table.SetStaticHop(1, mac, OK)
	v.C = Counters{}
	if h, _ := route(); h.MAC() != mac || v.C.Hits != 1 {
		t.Errorf("MAC %x and counters %+v, want %x by a hit", h.MAC(), v.C, mac)
	}
	table.SetStaticHop(1, mac, Failed)
	if _, verdict := route(); verdict != Failed {
		t.Errorf("verdict %d, want Failed", verdict)
	}
	table.SetStaticHop(1, mac, OK)
	if _, verdict := route(); verdict != OK {
		t.Errorf("verdict %d after the neighbour came back", verdict)
	}
}

func TestRouteDoesNotAllocate(t *testing.T) {
	table := static(t, StaticOptions{})
	v := table.View()
	var slot [2]uint64
	src, dst := addr4("10.0.0.5"), addr4("203.0.113.9")
	src6, dst6 := netip.MustParseAddr("2001:db8::1").As16(), netip.MustParseAddr("2001:db8:1::1").As16()
	for name, f := range map[string]func(){
		"hit":    func() { v.Route(&slot, 0, src, dst, 1) },
		"lookup": func() { v.Route(nil, 0, src, dst, 1) },
		"v6":     func() { v.RouteV6(nil, 1, &src6, &dst6, 1) },
	} {
		if n := testing.AllocsPerRun(100, f); n != 0 {
			t.Errorf("%s allocates %v times", name, n)
		}
	}
}
