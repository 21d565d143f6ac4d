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
	o := labOptions()
	o.RouteBuffer = 1 // the kernel makes it as small as it goes
	g, err := startIn(t, l, o)
	if err != nil {
		t.Fatal(err)
	}
	s, err := lab.StartStream(in.Namespace, lab.StreamOptions{Src: in.Addr, Dst: service, Flows: 8}, l.Outside[0].Namespace, l.Outside[1].Namespace)
	if err != nil {
		t.Fatal(err)
	}
	arrive := func(receiver, first int) {
		t.Helper()
		for start := time.Now(); s.ArrivedSince(receiver, first) < 300; time.Sleep(5 * time.Millisecond) {
			if time.Since(start) > 60*time.Second {
				t.Fatalf("nothing arrives at receiver %d; drops %v, %+v", receiver, dropsOf(g), g.table.Stats())
			}
		}
	}
	arrive(0, 0)
	var batch strings.Builder
	for i := range 2000 {
		fmt.Fprintf(&batch, "route add 100.%d.%d.0/24 via 203.0.113.100\n", 64+i/256, i%256)
		if i == 1000 {
			batch.WriteString("route replace 198.51.100.0/24 via 203.0.113.101\n")
		}
	}
	first := s.Sent()
	if err := l.Gateway.IPBatch(batch.String()); err != nil {
		t.Fatal(err)
	}
	arrive(1, first)
	var stats = g.table.Stats()
	for start := time.Now(); stats.Routes < 2000 && time.Since(start) < 60*time.Second; time.Sleep(10 * time.Millisecond) {
		stats = g.table.Stats()
	}
	r := s.Stop()
	t.Logf("%d overruns, %d readings, %d routes: %v", stats.Overruns, stats.Readings, stats.Routes, r)
	if stats.Overruns == 0 {
		t.Error("no message was lost: what was tested then?")
	}
	if stats.Routes < 2000 {
		t.Errorf("%d routes of 2000 are known", stats.Routes)
	}
	if r.Lost > 0 {
		t.Errorf("lost %v; drops %v", r.Losses, dropsOf(g))
	}
}
