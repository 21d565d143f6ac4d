package perf

import (
	"fmt"
	"io"
	"net/netip"
	"sync"
	"time"

	"pollux/internal/packet"
	"pollux/rtcache"
)

// RouteChurn is what routes that come and go cost flows that keep theirs. Every change concerns a prefix that shares its stamp
// with flows but none of their destinations.
type RouteChurn struct {
	PerSecond float64 `json:"changes_per_second"`
	Quiet     Stat    `json:"ns_per_packet_quiet"`
	Churn     Stat    `json:"ns_per_packet_churn"`
	Changes   uint64  `json:"changes"`
	Packets   uint64  `json:"packets"`       // beside the changes
	Looked    uint64  `json:"route_changed"` // of them: looked up once more because a route of the same stamp changed
	Hits      uint64  `json:"hits"`
}

const churnPerSecond = 1000

// RouteLoading tells how long a table of routes takes to load, in seconds.
type RouteLoading struct {
	KernelSeconds float64 `json:"kernel_s"` // the kernel taking them, by netlink
	StartSeconds  float64 `json:"pollux_s"` // pollux from its start to being ready, all of them mirrored
}

// measureChurn runs quiet and disturbed repetitions in turn.
func (r *Routes) measureChurn(w *world, o RoutesOptions, remotes []packet.Addr) error {
	c := &r.Churn
	used := make(map[packet.Addr]bool, len(remotes))
	for _, a := range remotes {
		used[a] = true
	}
	var idle []netip.Prefix // host routes beside flows' destinations
	for _, a := range remotes {
		if b := a ^ 1; !used[b] {
			idle = append(idle, netip.PrefixFrom(b.Netip(), 32))
		}
	}
	if len(idle) == 0 {
		return fmt.Errorf("perf: %d destinations leave no room for other routes", len(remotes))
	}
	bare := func() { w.bare(o.Packets) }
	full := func() { w.run(o.Packets) }
	bare()
	full()
	var quiet, churned []float64
	var took time.Duration
	for range o.Repeat {
		bareNS := nanoseconds(o.Packets, bare)
		quiet = append(quiet, nanoseconds(o.Packets, full)-bareNS)
		stop := w.churn(idle, &c.Changes, &took)
		bareNS = nanoseconds(o.Packets, bare)
		before := w.view.C
		ns := nanoseconds(o.Packets, full)
		c.Looked += w.view.C.RouteChanged - before.RouteChanged
		c.Hits += w.view.C.Hits - before.Hits
		c.Packets += uint64(o.Packets)
		if err := stop(); err != nil {
			return err
		}
		churned = append(churned, ns-bareNS)
	}
	c.Quiet, c.Churn, c.PerSecond = NewStat(quiet), NewStat(churned), float64(c.Changes)/took.Seconds()
	return nil
}

// churn adds and withdraws routes on a goroutine of its own until stop is called.
func (w *world) churn(routes []netip.Prefix, changes *uint64, took *time.Duration) (stop func() error) {
	quit := make(chan struct{})
	var wait sync.WaitGroup
	var err error
	wait.Go(func() {
		begun := time.Now()
		n := 0
		for ; err == nil; n++ {
			// The step is odd and coprime to most lengths: neighbours in the list are changed far apart in time.
			p := routes[(n/2*7919)%len(routes)]
			err = w.table.SetStaticRoute(rtcache.StaticRoute{Prefix: p, Port: inPort}, n%2 == 1)
			due := begun.Add(time.Duration(n+1) * time.Second / churnPerSecond)
			select {
			case <-quit:
				if n%2 == 0 {
					err = w.table.SetStaticRoute(rtcache.StaticRoute{Prefix: p, Port: inPort}, true)
					n++
				}
				*changes += uint64(n + 1)
				*took += time.Since(begun)
				return
			case <-time.After(time.Until(due)):
			}
		}
	})
	return func() error {
		close(quit)
		wait.Wait()
		return err
	}
}

// print writes it for people.
func (c *RouteChurn) print(w io.Writer) {
	fmt.Fprintf(w, "\n%.0f route changes a second beside the remembered next hops, quiet and disturbed in turn:\n", c.PerSecond)
	fmt.Fprintf(w, "quiet %.1f ns a packet (%.1f to %.1f), disturbed %.1f (%.1f to %.1f); of %d packets %d looked their route up again\n",
		c.Quiet.Median, c.Quiet.Min, c.Quiet.Max, c.Churn.Median, c.Churn.Min, c.Churn.Max, c.Packets, c.Looked)
}
