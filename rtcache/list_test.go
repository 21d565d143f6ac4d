package rtcache

import (
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"testing"
)

func TestRoutesListed(t *testing.T) {
	b := hostBed(t, 256)
	gw := netip.MustParseAddr("192.0.2.2")
	b.resolve(gw, neighValid)
	b.m.add(pfx("198.51.100.0/24"), modelRoute{prio: 7, kind: setMulti, hops: []nextHop{
		{index: 2, gateway: gw, weight: 3}, {index: 3, weight: 1}}}, routeAdd)
	b.m.add(pfx("198.51.101.0/24"), modelRoute{kind: setBlackhole}, routeAdd)
	b.m.add(pfx("198.51.102.0/24"), modelRoute{kind: setOne, hops: []nextHop{{index: 9, weight: 1}}}, routeAdd)
	b.step(1)

	line := func(r RouteInfo) string {
		s := fmt.Sprintf("%v %s metric %d", r.Prefix, r.Type, r.Metric)
		for _, p := range r.Paths {
			s += fmt.Sprintf(", %s weight %d", p.Name, p.Weight)
			if p.HopInfo != nil {
				s += fmt.Sprintf(" via %v %s %s", p.Gateway, p.HopInfo.MAC, p.HopInfo.State)
			}
		}
		return s
	}
	list := func(within netip.Prefix) (all []string) {
		b.table.Routes(within, func(r RouteInfo) bool { all = append(all, line(r)); return true })
		return all
	}
	want := []string{
		"0.0.0.0/0 unicast metric 0, dev2 weight 1 via 192.0.2.2 02:01:01:01:01:01 ready",
		"192.0.0.0/16 unicast metric 0, dev2 weight 1",
		"198.51.100.0/24 unicast metric 7, dev2 weight 3 via 192.0.2.2 02:01:01:01:01:01 ready, dev3 weight 1",
		"198.51.101.0/24 blackhole metric 0",
		"198.51.102.0/24 elsewhere metric 0",
	}
	if got := list(netip.Prefix{}); !slices.Equal(got, want) {
		t.Errorf("all routes:\n%q, want\n%q", got, want)
	}
	if got := list(pfx("198.51.100.0/23")); !slices.Equal(got, want[2:4]) {
		t.Errorf("within a prefix:\n%q, want\n%q", got, want[2:4])
	}
	n := 0
	b.table.Routes(netip.Prefix{}, func(RouteInfo) bool { n++; return n < 2 })
	if n != 2 {
		t.Errorf("%d visits after the second said no more", n)
	}
	for addr, want := range map[string]string{"198.51.100.9": want[2], "203.0.113.1": want[0], "198.51.101.1": want[3]} {
		if r, ok := b.table.RouteTo(netip.MustParseAddr(addr)); !ok || line(r) != want {
			t.Errorf("route to %s: %v %q, want %q", addr, ok, line(r), want)
		}
	}
	if r, ok := b.table.RouteTo(netip.MustParseAddr("2001:db8::1")); ok {
		t.Errorf("a route where there is none: %q", line(r))
	}
}

func TestNextHopsListed(t *testing.T) {
	b := hostBed(t, 1024)
	gw := netip.MustParseAddr("192.0.2.2")
	b.resolve(gw, neighStale)
	b.step(1)
	const hosts = 2 * hopSlice // more than one slice
	for i := range hosts {
		a := netip.AddrFrom4([4]byte{192, 0, byte(4 + i>>8), byte(i)})
		b.verdict(a.String())
		b.step(1)
		if i%2 == 0 {
			b.resolve(a, neighValid)
		}
	}
	b.step(1)
	count := map[string]int{}
	b.table.NextHops(func(h HopInfo) bool {
		count[h.State]++
		switch {
		case h.Address == gw:
			if h.Routes != 1 || h.OnLink || !h.Stale || !h.Managed || h.MAC != "02:01:01:01:01:01" || h.Name != "dev2" {
				t.Errorf("the router: %+v", h)
			}
		case h.Routes != 0 || !h.OnLink || (h.MAC != "") != (h.State == "ready"):
			t.Errorf("a host: %+v", h)
		}
		return true
	})
	if count["ready"] != hosts/2+1 || count["unresolved"] != hosts/2 {
		t.Errorf("next hops by state: %v", count)
	}
	n := 0
	b.table.NextHops(func(HopInfo) bool { n++; return n < 3 })
	if n != 3 {
		t.Errorf("%d visits after the third said no more", n)
	}
}

// Listing goes on beside changes; the race detector looks on.
func TestListingBesideChanges(t *testing.T) {
	b := hostBed(t, 256)
	var wait sync.WaitGroup
	stop := make(chan struct{})
	wait.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			b.table.Routes(netip.Prefix{}, func(r RouteInfo) bool { return r.Prefix.IsValid() })
			b.table.NextHops(func(h HopInfo) bool { return h.Address.IsValid() })
		}
	})
	for i := range 2000 {
		p := netip.PrefixFrom(netip.AddrFrom4([4]byte{198, 51, byte(i), 0}), 24)
		r := modelRoute{kind: setOne, hops: []nextHop{{index: 2, gateway: netip.AddrFrom4([4]byte{192, 0, 2, byte(3 + i%20)}), weight: 1}}}
		b.m.add(p, r, routeReplace)
		b.step(1)
	}
	close(stop)
	wait.Wait()
}
