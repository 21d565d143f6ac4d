package pmd

import (
	"context"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"pollux/internal/lab"
	"pollux/internal/packet"
	"pollux/lport"
	"pollux/rings"
)

// A sample agrees with the traffic that was sent, and its parts with one another.
func TestSample(t *testing.T) {
	l := newLab(t, lab.Options{})
	in, out := l.Inside[0], l.Outside[0]
	g, err := startIn(t, l, labOptions())
	if err != nil {
		t.Fatal(err)
	}
	echo, err := lab.ServeUDPEcho(out.Namespace, ":9000")
	if err != nil {
		t.Fatal(err)
	}
	defer echo.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	const flows, size = 50, 200
	r, err := lab.UDPFlows(ctx, in.Namespace, netip.AddrPortFrom(out.Addr, 9000), lab.FlowOptions{Flows: flows, PerFlow: 2, Size: size, Timeout: 10 * time.Second, At: 50})
	if err != nil || r.Answered != r.Sent {
		t.Fatalf("%+v %v", r, err)
	}
	s := g.Sample()
	if len(s.Workers) != 1 || len(s.Ports) != 2 || len(s.Pool) != 3 || s.LinksMax != 10000 || !s.RTCache || s.Routes.Routes == 0 {
		t.Fatalf("%+v", s)
	}
	w := &s.Workers[0]
	if w.NAT.Created != flows || w.Created != flows || w.NAT.Proto[1] != flows || w.Hosts != 1 || w.Space.Given != flows || w.Space.StepsSum < flows {
		t.Errorf("links: %+v, ports %+v", w.NAT, w.Space)
	}
	polls := uint64(0)
	for _, n := range w.Gaps {
		polls += n
	}
	if polls != w.Polls || polls == 0 {
		t.Errorf("the gaps are of %d polls, there were %d", polls, w.Polls)
	}
	if w.BusyNS == 0 || w.SleptNS == 0 || w.BusyNS+w.SleptNS > w.RunNS {
		t.Errorf("ran for %d ns, busy for %d, asleep for %d", w.RunNS, w.BusyNS, w.SleptNS)
	}
	if len(w.Rings) != 2 || w.Rings[0].Fill == 0 || w.Leaked != 0 {
		t.Errorf("rings %+v, %d frames leaked", w.Rings, w.Leaked)
	}
	const least = 2 * flows * (14 + 20 + 8 + size)
	for _, p := range s.Ports {
		if p.RXBytes < least || p.TXBytes < least || p.RXBytes > 2*least || p.TXBytes > 2*least {
			t.Errorf("%s: %d bytes in, %d out, at least %d are the flows'", p.Name, p.RXBytes, p.TXBytes, least)
		}
		if n := p.XDPDecisions[rings.CauseToWorker]; n < 2*flows || n != p.RX {
			t.Errorf("%s: the program handed up %d frames, the worker took %d", p.Name, n, p.RX)
		}
	}
	udp := s.Pool[lport.RowUDP]
	if udp.Alias != packet.AddrFrom(lab.GatewayOutside) || udp.Row != lport.RowUDP || udp.Used != flows || udp.Ports > 64512 || udp.Ports < 64000 ||
		udp.Ports-udp.Free != w.Owned[lport.RowUDP] || w.Owned[lport.RowUDP] < flows {
		t.Errorf("pool %+v, owned %v", udp, w.Owned)
	}
	if err := g.Stop(); err != nil {
		t.Fatal(err)
	}
	if last := g.Sample(); last.Workers[0].NAT.Created != flows || last.Workers[0].Polls < w.Polls || last.Ports[0].RX < s.Ports[0].RX {
		t.Errorf("after the end: %+v", last)
	}
}

func TestGapBound(t *testing.T) {
	for i, want := range []float64{1e-6, 2e-6, 4e-6} {
		if got := GapBound(i); got != want {
			t.Errorf("bucket %d ends at %v, want %v", i, got, want)
		}
	}
}

// BenchmarkSample is what one scrape costs the control side; workers give it a few slices between bursts.
func BenchmarkSample(b *testing.B) {
	lab.Require(b)
	for _, addresses := range []int{1, 16, 256} {
		b.Run(fmt.Sprintf("addresses=%d", addresses), func(b *testing.B) {
			l, err := lab.New(lab.Options{})
			if err != nil {
				b.Fatal(err)
			}
			defer l.Close()
			o := labOptions()
			for i := range addresses - 1 {
				o.Rules.Alias = append(o.Rules.Alias, packet.Addr(0xc6120000+i))
			}
			var g *Gateway
			if err := l.Gateway.Do(func() error {
				g, err = Start(o)
				return err
			}); err != nil {
				b.Fatal(err)
			}
			defer g.Stop()
			b.ReportAllocs()
			for b.Loop() {
				g.Sample()
			}
		})
	}
}

// Samples may be taken while the options change. (The race detector is the judge.)
func TestSampleWhileReloading(t *testing.T) {
	l := newLab(t, lab.Options{})
	o := labOptions()
	g, err := startIn(t, l, o)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for i := range 20 {
			live := o.Live()
			live.Rules.SamePorts = i%2 == 0
			if _, err := g.Reload(live); err != nil {
				t.Error(err)
			}
		}
	}()
	samples := 0
	for ended := false; !ended; samples++ {
		if s := g.Sample(); s.LinksMax != o.Limits.Links || s.RingSize != o.RingSize || len(s.Pool) != 3 {
			t.Fatalf("%+v", s)
		}
		select {
		case <-done:
			ended = true
		default:
		}
	}
	if samples == 0 {
		t.Error("no sample was taken")
	}
}

// With several workers the parts add up to the whole: links, alias ports, packets handed over.
func TestSampleOfWorkers(t *testing.T) {
	const n, flows = 3, 60
	l := newLab(t, lab.Options{InsideHosts: 3, Queues: n})
	o := labOptions()
	o.Cores, o.Oversubscribe = rangeOf(n), true
	g, err := startIn(t, l, o)
	if err != nil {
		t.Fatal(err)
	}
	out := l.Outside[0]
	echo, err := lab.ServeUDPEcho(out.Namespace, ":9000")
	if err != nil {
		t.Fatal(err)
	}
	defer echo.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	for _, in := range l.Inside {
		r, err := lab.UDPFlows(ctx, in.Namespace, netip.AddrPortFrom(out.Addr, 9000), lab.FlowOptions{Flows: flows, PerFlow: 2, Size: 64, Timeout: 10 * time.Second, At: 20})
		if err != nil || r.Answered != r.Sent {
			t.Fatalf("%+v %v", r, err)
		}
	}
	s := g.Sample()
	var created, owned, in, handedOut, handedIn, why uint64
	for i := range s.Workers {
		w := &s.Workers[i]
		if w.Worker != i || w.Queue != i || len(w.Rings) != 2 {
			t.Errorf("worker %d: %+v", i, w.WorkerStats)
		}
		created += w.NAT.Created
		owned += uint64(w.Owned[lport.RowUDP])
		in += w.Received
		handedOut += w.HandedOut
		handedIn += w.HandedIn
		for _, n := range w.HandedWhy {
			why += n
		}
	}
	udp := s.Pool[lport.RowUDP]
	if len(s.Workers) != n || created != 3*flows || udp.Used != 3*flows || uint64(udp.Ports-udp.Free) != owned {
		t.Errorf("%d links, %d ports owned, pool %+v", created, owned, udp)
	}
	if in < 2*2*3*flows || handedOut == 0 || handedOut != why || handedIn > handedOut {
		t.Errorf("%d packets came in, %d were handed over, %d for a reason, %d taken", in, handedOut, why, handedIn)
	}
}
