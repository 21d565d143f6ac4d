package perf

import (
	"fmt"
	"io"
	"text/tabwriter"

	"pollux/internal/clock"
	"pollux/internal/packet"
	"pollux/internal/reason"
	"pollux/nat"
	"pollux/pmd"
)

// NewFlowsOptions asks how fast links are made.
type NewFlowsOptions struct {
	Links       int  // limit of the table; so many links are made in one repetition
	Independent bool // endpoint-independent mapping: a public port for every link, so many alias addresses
	Repeat      int
}

// NewFlows is how fast first packets of UDP flows from inside become links, through all stages of a worker; what a flow
// that is turned away costs; and what the end of a link costs.
type NewFlows struct {
	Report
	Links     int       `json:"links"`
	Mapping   string    `json:"mapping"`
	Aliases   int       `json:"alias_addresses"`
	PerSecond Stat      `json:"flows_per_second"`
	NS        Stat      `json:"ns_per_flow"`
	Refused   []Refusal `json:"refused"`
	Expiry    Stat      `json:"expiry_ns_per_link"`
}

// Refusal is what a new flow costs that gets no link.
type Refusal struct {
	Reason string `json:"reason"`
	NS     Stat   `json:"ns_per_flow"`
}

// MeasureNewFlows runs the scenario.
func MeasureNewFlows(o NewFlowsOptions) (*NewFlows, error) {
	if err := between("links", o.Links, 64, flowsMax/4); err != nil {
		return nil, err
	}
	r := &NewFlows{Report: NewReport(), Links: o.Links, Mapping: "endpoint-dependent", Aliases: 1}
	if o.Independent {
		r.Mapping, r.Aliases = "endpoint-independent", 2+o.Links/50_000
	}
	return r, onThread(func() error {
		if err := r.fill(o); err != nil {
			return err
		}
		for _, why := range []reason.Reason{reason.NoPort, reason.HostLimit} {
			if err := r.refuse(o, why); err != nil {
				return err
			}
		}
		return nil
	})
}

// fill opens flows up to the limit of the table, offers more, and lets all expire, over and over. The first round, in which
// memory comes from the kernel, does not count.
func (r *NewFlows) fill(o NewFlowsOptions) error {
	w, err := newWorld(worldOptions{limits: nat.Limits{Links: o.Links}, rules: func(n *nat.Rules) {
		if o.Independent {
			n.Mapping.UDP = nat.EndpointIndependent
			n.Alias = nil
			for i := range r.Aliases {
				n.Alias = append(n.Alias, aliasFirst+1<<16+packet.Addr(i))
			}
		}
	}})
	if err != nil {
		return err
	}
	defer w.close()
	i := uint32(0)
	w.ports[inPort].next = func() uint32 { i++; return i - 1 }
	over := max(o.Links/8, pmd.BurstFrames)
	var making, full, expiry []float64
	for round := range o.Repeat + 1 {
		i = 0
		bare := nanoseconds(o.Links, func() { w.arrive(o.Links, false) })
		i = 0
		made := nanoseconds(o.Links, func() { w.arrive(o.Links, true) })
		if got := w.shard.Counters().Links; got != uint64(o.Links) {
			return fmt.Errorf("perf: %d links of %d were made: %v", got, o.Links, refusals(w.shard))
		}
		i = uint32(o.Links)
		refused := nanoseconds(over, func() { w.arrive(over, true) })
		if got := w.shard.Counters().Refused[reason.TableFull]; got < uint64(over) {
			return fmt.Errorf("perf: %d of %d flows beyond the limit were refused", got, over)
		}
		w.now += clock.Tick(301 * clock.PerSecond)
		ended := nanoseconds(o.Links, func() {
			for w.shard.Counters().Links > 0 {
				w.worker.Poll(w.now)
			}
		})
		if round > 0 {
			making, full, expiry = append(making, made-bare), append(full, refused-bare), append(expiry, ended)
		}
	}
	r.NS, r.Expiry = NewStat(making), NewStat(expiry)
	for i := range making {
		making[i] = 1e9 / making[i]
	}
	r.PerSecond = NewStat(making)
	r.Refused = append(r.Refused, Refusal{reason.TableFull.String(), NewStat(full)})
	return nil
}

// arrive makes n packets come in from inside; with work the worker takes them.
func (w *world) arrive(n int, work bool) {
	for i := 0; i < n; i += pmd.BurstFrames {
		if size := min(pmd.BurstFrames, n-i); work {
			w.poll(inPort, size)
		} else {
			w.take(inPort, size, nil)
		}
	}
}

func refusals(s *nat.Shard) map[string]uint64 {
	m := map[string]uint64{}
	for i, n := range s.Counters().Refused {
		if n > 0 {
			m[reason.Reason(i).String()] = n
		}
	}
	return m
}

// refuse measures flows that are turned away although the table has room.
func (r *NewFlows) refuse(o NewFlowsOptions, why reason.Reason) error {
	const ports, hosts, offered = 1024, 256, 1 << 16
	wo := worldOptions{limits: nat.Limits{Links: 2 * offered}}
	if why == reason.HostLimit {
		wo.limits.LinksPerHost = ports / hosts
	} else {
		wo.rules = func(n *nat.Rules) { n.PortRange = nat.PortRange{Low: 1024, High: 1023 + ports} }
	}
	w, err := newWorld(wo)
	if err != nil {
		return err
	}
	defer w.close()
	w.flows.crowd = hosts
	i := uint32(0)
	w.ports[inPort].next = func() uint32 { i++; return i - 1 }
	w.arrive(2*offered, true)
	if got := w.shard.Counters().Links; got != ports {
		return fmt.Errorf("perf: %d links, want %d", got, ports)
	}
	before, rounds := w.shard.Counters().Refused[why], 0
	ns := netOf(o.Repeat, offered, func() { w.arrive(offered, false) }, func() { w.arrive(offered, true); rounds++ })
	if got := w.shard.Counters().Refused[why] - before; got < uint64(rounds*offered)*99/100 { // links that exist come by again
		return fmt.Errorf("perf: %d of %d flows were refused", got, rounds*offered)
	}
	r.Refused = append(r.Refused, Refusal{why.String(), ns})
	return nil
}

// Print writes the report for people.
func (r *NewFlows) Print(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(t, "table of %d links, UDP, %s mapping, %d alias address(es)\n\n", r.Links, r.Mapping, r.Aliases)
	fmt.Fprintln(t, "\tmedian\tmin\tmax\t")
	fmt.Fprintf(t, "new flows per second, million\t%.2f\t%.2f\t%.2f\t\n", r.PerSecond.Median/1e6, r.PerSecond.Min/1e6, r.PerSecond.Max/1e6)
	row := func(name string, s Stat) { fmt.Fprintf(t, "%s\t%.0f\t%.0f\t%.0f\t\n", name, s.Median, s.Min, s.Max) }
	row("ns per new flow", r.NS)
	for _, f := range r.Refused {
		row("ns per flow refused: "+f.Reason, f.NS)
	}
	row("ns per link expired", r.Expiry)
	fmt.Fprintln(t, "\nProcessor time of one core, the whole worker in bursts of 64: parse, look-up, routes (side of the destination, next hop, reverse")
	fmt.Fprintln(t, "path), limits, port, link with all indexes and its timer, rewriting, MAC addresses. Making the packets is measured alone and")
	fmt.Fprintln(t, "taken off. The table is filled from empty to its limit. A refused flow is answered by ICMP as far as its rate limit allows.")
	return t.Flush()
}
