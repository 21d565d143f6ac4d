package lab

import (
	"context"
	"fmt"
	"net/netip"
	"runtime"
	"time"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"pollux/internal/control"
	netlab "pollux/internal/lab"
	"pollux/perf/pktgen"
	"pollux/rtcache"
)

// ChurnBeside is paced traffic, its numbers checked on arrival, beside route changes in the gateway's kernel.
type ChurnBeside struct {
	LossFree  float64 `json:"loss_free_pps"`        // highest rate that loses no more than Allowed
	Allowed   float64 `json:"loss_allowed_percent"` // in the search alone; a machine that does other things as well loses some at any rate
	Rate      float64 `json:"rate_pps"`             // half of it
	Quiet     Paced   `json:"quiet"`                // without changes
	Churn     Paced   `json:"churn"`
	Changes   int     `json:"changes"`
	PerSecond float64 `json:"changes_per_second"`
	Looked    uint64  `json:"route_changed"` // packets that looked their route up again, beside the changes
	Hits      uint64  `json:"hits"`
}

// Paced is what became of packets sent at a rate.
type Paced struct {
	Sent      uint64 `json:"sent"`
	Lost      uint64 `json:"lost"`
	Reordered uint64 `json:"reordered"`
}

const (
	churnRate    = 1000 // changes per second
	churnAllowed = 0.1
	churnTrial   = 300 * time.Millisecond
	churnStep    = 0.1
)

// churn measures on a peer that has the flows' next hops remembered.
func (b *routesBench) churn(ctx context.Context, p *peer) (c ChurnBeside, err error) {
	f := spreadFlows(b.o.Flows)
	paced := func(rate float64, d time.Duration) (Paced, error) {
		m, err := p.run(f, pktgen.Sizes{64}, rate, d, 0)
		return Paced{Sent: m.sent, Lost: m.sent - min(m.sent, m.arrived), Reordered: m.far.Reordered}, err
	}
	s, err := p.search(ctx, &NDROptions{Options: b.o.Options, Percent: churnAllowed, Step: churnStep}, "loss-free", func(rate float64) (uint64, uint64, error) {
		q, err := paced(rate, churnTrial)
		return q.Sent, q.Sent - q.Lost, err
	})
	if err != nil {
		return c, err
	}
	c.LossFree, c.Allowed, c.Rate = s.PPS, churnAllowed, s.PPS/2
	if c.Rate < 1000 {
		b.r.Doubts = append(b.r.Doubts, "route changes: no rate was found at which next to nothing is lost, so 1000 packets a second are sent beside them")
		c.Rate = 1000
	}
	if c.Quiet, err = paced(c.Rate, b.o.ChurnTime); err != nil {
		return c, err
	}
	client := control.NewClient(p.net.Socket())
	before, err := client.Workers(ctx)
	if err != nil {
		return c, err
	}
	stop := startChurn(p.net.Gateway, b.o.GatewayCore, &f)
	if c.Churn, err = paced(c.Rate, b.o.ChurnTime); err != nil {
		return c, err
	}
	if c.Changes, c.PerSecond, err = stop(); err != nil {
		return c, err
	}
	if reached := float64(c.Churn.Sent) / (c.Rate * b.o.ChurnTime.Seconds()); reached < reachedMin {
		b.r.Doubts = append(b.r.Doubts, fmt.Sprintf("route changes: the generator reached %.0f %% of the rate beside them, so the packets came in spurts with pauses between", 100*reached))
	}
	after, err := client.Workers(ctx)
	if err != nil {
		return c, err
	}
	count := func(field func(*rtcache.Counters) uint64) uint64 {
		return field(&after[0].Routing) - field(&before[0].Routing)
	}
	c.Looked = count(func(r *rtcache.Counters) uint64 { return r.RouteChanged })
	c.Hits = count(func(r *rtcache.Counters) uint64 { return r.Hits })
	return c, nil
}

// startChurn adds and withdraws host routes beside the flows' destinations, so that each shares its stamp with some flows, on the
// gateway's core, which has time for it at half load.
func startChurn(n *netlab.Namespace, core int, f *pktgen.Flows) (stop func() (changes int, perSecond float64, err error)) {
	quit := make(chan struct{})
	type result struct {
		changes   int
		perSecond float64
		err       error
	}
	done := make(chan result, 1)
	go func() {
		var r result
		r.err = n.Do(func() error {
			s, err := nl.Subscribe(unix.NETLINK_ROUTE)
			if err != nil {
				return err
			}
			defer s.Close()
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			var old, set unix.CPUSet
			if err := unix.SchedGetaffinity(0, &old); err != nil {
				return err
			}
			defer unix.SchedSetaffinity(0, &old)
			set.Set(core)
			if err := unix.SchedSetaffinity(0, &set); err != nil {
				return err
			}
			begun := time.Now()
			defer func() { r.perSecond = float64(r.changes) / time.Since(begun).Seconds() }()
			for on := true; ; on = !on {
				select {
				case <-quit:
					if on { // what was added last is withdrawn
						return nil
					}
				case <-time.After(time.Until(begun.Add(time.Duration(r.changes+1) * time.Second / churnRate))):
				}
				if err := hostRoute(s, f, r.changes/2, on); err != nil {
					return err
				}
				r.changes++
			}
		})
		done <- r
	}()
	return func() (int, float64, error) {
		close(quit)
		r := <-done
		return r.changes, r.perSecond, r.err
	}
}

// hostRoute adds or withdraws a blackhole for the address after the i-th destination.
func hostRoute(s *nl.NetlinkSocket, f *pktgen.Flows, i int, add bool) error {
	kind, flags := unix.RTM_DELROUTE, unix.NLM_F_ACK
	if add {
		kind, flags = unix.RTM_NEWROUTE, unix.NLM_F_ACK|unix.NLM_F_CREATE|unix.NLM_F_EXCL
	}
	first := f.Dst.First.As4()
	at := uint32(first[0])<<24 | uint32(first[1])<<16 | uint32(first[2])<<8 | uint32(first[3])
	at += uint32(i)%f.Dst.Count*f.DstStep + 1
	a := netip.AddrFrom4([4]byte{byte(at >> 24), byte(at >> 16), byte(at >> 8), byte(at)})
	r := nl.NewNetlinkRequest(kind, flags)
	m := nl.NewRtMsg()
	m.Family, m.Dst_len, m.Type = unix.AF_INET, 32, unix.RTN_BLACKHOLE
	r.AddData(m)
	r.AddData(nl.NewRtAttr(unix.RTA_DST, a.AsSlice()))
	if err := unix.Sendto(s.GetFd(), r.Serialize(), 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return err
	}
	if err := acknowledged(s, r.Seq); err != nil {
		return fmt.Errorf("route to %v: %w", a, err)
	}
	return nil
}
