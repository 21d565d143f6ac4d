package pmd

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"pollux/internal/lab"
)

// The kernel loses routing messages for a mirror whose buffer is tiny. The state is read anew beside the traffic, which
// loses nothing by it and follows a route whose message was among the lost ones.
func TestRoutingOverrunBesideTraffic(t *testing.T) {
	l := newLab(t, lab.Options{OutsideHosts: 2})
	in := l.Inside[0]
	service := netip.MustParseAddrPort("198.51.100.7:9000")
	for _, h := range l.Outside {
		err := h.AddAddress("lo", netip.PrefixFrom(service.Addr(), 32))
		for _, dev := range []string{"all", "eth0"} {
			err = errors.Join(err, h.Sysctl("net.ipv4.conf."+dev+".rp_filter", "0"))
		}
		if err != nil {
			t.Fatal(err)
		}
	}
	if err := l.Gateway.IP("route add 198.51.100.0/24 via 203.0.113.100"); err != nil {
		t.Fatal(err)
	}
	serviceV6 := netip.MustParseAddrPort("[2001:db8:f::7]:9000")
	prepareV6(t, l, serviceV6.Addr())
	o := labOptions()
	o.IPv6Forward = true
	o.RouteBuffer = 1 // the kernel makes it as small as it goes
	g, err := startIn(t, l, o)
	if err != nil {
		t.Fatal(err)
	}
	s, err := lab.StartStream(in.Namespace, lab.StreamOptions{Src: in.Addr, Dst: service, Flows: 8}, l.Outside[0].Namespace, l.Outside[1].Namespace)
	if err != nil {
		t.Fatal(err)
	}
	s6, err := lab.StartStream(in.Namespace, lab.StreamOptions{Src: netip.MustParseAddr("2001:db8:1::2"), Dst: serviceV6, Flows: 8}, l.Outside[0].Namespace, l.Outside[1].Namespace)
	if err != nil {
		t.Fatal(err)
	}
	arrive := func(s *lab.Stream, receiver, first int) {
		t.Helper()
		for start := time.Now(); s.ArrivedSince(receiver, first) < 300; time.Sleep(5 * time.Millisecond) {
			if time.Since(start) > 60*time.Second {
				t.Fatalf("nothing arrives at receiver %d; drops %v, %+v", receiver, dropsOf(g), g.table.Stats())
			}
		}
	}
	arrive(s, 0, 0)
	arrive(s6, 0, 0)
	var batch strings.Builder
	for i := range 2000 {
		fmt.Fprintf(&batch, "route add 100.%d.%d.0/24 via 203.0.113.100\n", 64+i/256, i%256)
		if i == 1000 {
			batch.WriteString("route replace 198.51.100.0/24 via 203.0.113.101\nroute replace 2001:db8:f::/48 via 2001:db8:2::b\n")
		}
	}
	first, first6 := s.Sent(), s6.Sent()
	if err := l.Gateway.IPBatch(batch.String()); err != nil {
		t.Fatal(err)
	}
	arrive(s, 1, first)
	arrive(s6, 1, first6)
	var stats = g.table.Stats()
	for start := time.Now(); stats.Routes < 2000 && time.Since(start) < 60*time.Second; time.Sleep(10 * time.Millisecond) {
		stats = g.table.Stats()
	}
	r, r6 := s.Stop(), s6.Stop()
	t.Logf("%d overruns, %d readings, %d routes: %v; IPv6: %v", stats.Overruns, stats.Readings, stats.Routes, r, r6)
	if stats.Overruns == 0 {
		t.Error("no message was lost: what was tested then?")
	}
	if stats.Routes < 2000 {
		t.Errorf("%d routes of 2000 are known", stats.Routes)
	}
	if r.Lost > 0 || r6.Lost > 0 {
		t.Errorf("lost %v, IPv6 %v; drops %v", r.Losses, r6.Losses, dropsOf(g))
	}
}

// prepareV6 gives a lab with two outside hosts IPv6, and both of them the service.
func prepareV6(t *testing.T, l *lab.Lab, service netip.Addr) {
	t.Helper()
	in, a, b := l.Inside[0], l.Outside[0], l.Outside[1]
	for _, n := range []*lab.Namespace{l.Gateway, in.Namespace, a.Namespace, b.Namespace} {
		for _, name := range []string{"all", "default"} {
			if err := errors.Join(n.Sysctl("net.ipv6.conf."+name+".disable_ipv6", "0"), n.Sysctl("net.ipv6.conf."+name+".accept_dad", "0")); err != nil {
				t.Fatalf("no IPv6 here: %v", err)
			}
		}
	}
	for _, c := range []struct {
		n       *lab.Namespace
		command string
	}{
		{l.Gateway, "-6 addr add 2001:db8:1::1/64 dev " + lab.InsideDevice + " nodad"},
		{l.Gateway, "-6 addr add 2001:db8:2::1/64 dev " + lab.OutsideDevice + " nodad"},
		{in.Namespace, "-6 addr add 2001:db8:1::2/64 dev " + in.Device + " nodad"},
		{a.Namespace, "-6 addr add 2001:db8:2::a/64 dev " + a.Device + " nodad"},
		{b.Namespace, "-6 addr add 2001:db8:2::b/64 dev " + b.Device + " nodad"},
		{a.Namespace, "-6 addr add " + service.String() + "/128 dev lo"},
		{b.Namespace, "-6 addr add " + service.String() + "/128 dev lo"},
		{in.Namespace, "-6 route add default via 2001:db8:1::1"},
		{l.Gateway, "-6 route add 2001:db8:f::/48 via 2001:db8:2::a"},
	} {
		if err := c.n.IP(c.command); err != nil {
			t.Fatal(err)
		}
	}
	for _, to := range []string{"2001:db8:2::a", "2001:db8:2::b"} { // a new address is not found at once, by anybody
		for start := time.Now(); ; {
			out, err := l.Gateway.Run(t.Context(), "ping", "-6", "-n", "-c", "1", "-W", "1", to)
			if err == nil {
				break
			}
			if time.Since(start) > 60*time.Second {
				t.Fatalf("%v: %s", err, out)
			}
		}
	}
}
