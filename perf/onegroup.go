package perf

import (
	"fmt"
	"io"
	"slices"
	"text/tabwriter"
	"time"

	"pollux/internal/clock"
	"pollux/internal/packet"
	"pollux/nat"
	"pollux/pmd"
)

// OneGroupOptions asks what one busy published port costs.
type OneGroupOptions struct {
	Links   int    // established links of the port
	Order   string // of the clients' addresses: "scattered" or "consecutive"
	Packets int    // of each kind in one repetition
	Repeat  int
	Curve   bool // measure for fewer links, too
}

// OneGroup is the experiment of the first seed: all links belong to one published port, so to one group. Packets are taken
// one at a time as LibAliasIn takes them, and in bursts as the gateway does.
type OneGroup struct {
	Report
	Links    int            `json:"links"`
	Order    string         `json:"order"`
	Existing Spread         `json:"existing_ns"` // a packet of a link that exists, alone
	New      Spread         `json:"new_ns"`      // a SYN that makes a link, alone
	Burst    OneGroupBurst  `json:"burst"`
	Aliases  int            `json:"alias_addresses"`
	Mapping  string         `json:"mapping"`
	Curve    []OneGroupStep `json:"curve,omitempty"`
}

// Spread is how single packets differ, in nanoseconds. The mean is that of the medians of repetitions, from the time of many packets
// at once; the others are of packets timed one by one, less what the clock itself takes.
type Spread struct {
	Mean float64 `json:"mean"`
	P50  float64 `json:"p50"`
	P99  float64 `json:"p99"`
}

// OneGroupBurst is what a packet costs in bursts of 64.
type OneGroupBurst struct {
	Existing Stat `json:"existing_ns"`
	New      Stat `json:"new_ns"`
}

// OneGroupStep is one point of the curve over links.
type OneGroupStep struct {
	Links    int           `json:"links"`
	Existing Spread        `json:"existing_ns"`
	New      Spread        `json:"new_ns"`
	Burst    OneGroupBurst `json:"burst"`
}

var (
	published = endpoint{aliasFirst, 443}
	server    = endpoint{firstHost + 2, 443}
)

// oneGroup is a run.
type oneGroup struct {
	OneGroupOptions
	w     *world
	fresh uint32 // number of the next client that was never seen
}

// MeasureOneGroup runs the scenario.
func MeasureOneGroup(o OneGroupOptions) (*OneGroup, error) {
	if err := between("links", o.Links, 64, 1<<24); err != nil {
		return nil, err
	}
	if o.Order != "scattered" && o.Order != "consecutive" {
		return nil, &OptionError{"order", o.Order, "scattered or consecutive"}
	}
	r := &OneGroup{Report: NewReport(), Links: o.Links, Order: o.Order, Aliases: 1, Mapping: "redirect_port"}
	return r, onThread(func() error {
		for n := 1000; o.Curve && n < o.Links; n *= 10 {
			s, err := o.step(n)
			if err != nil {
				return err
			}
			r.Curve = append(r.Curve, s)
		}
		s, err := o.step(o.Links)
		r.Existing, r.New, r.Burst = s.Existing, s.New, s.Burst
		if o.Curve {
			r.Curve = append(r.Curve, s)
		}
		return err
	})
}

// client is the remote endpoint of link i.
func (o *OneGroupOptions) client(i uint32) endpoint {
	if o.Order == "consecutive" { // 64 connections of each address
		return endpoint{0x40000000 + packet.Addr(i>>6), uint16(1024 + i&63)}
	}
	x := uint64(i+1) * 0x9e3779b97f4a7c15
	return endpoint{packet.Addr(x>>36) + 0x40000000, uint16(x>>20) | 1024}
}

func (o OneGroupOptions) step(links int) (s OneGroupStep, err error) {
	s.Links = links
	o.Links = links
	g := &oneGroup{OneGroupOptions: o}
	g.w, err = newWorld(worldOptions{limits: nat.Limits{Links: links + o.Packets + 64}, tcp: true, rules: func(n *nat.Rules) {
		n.RedirectPort = []nat.RedirectPort{{Proto: packet.ProtoTCP, Public: nat.Alias{Addr: published.addr, Port: published.port},
			Local: []nat.Local{{Addr: server.addr, Port: server.port}}}}
	}})
	if err != nil {
		return s, err
	}
	defer g.w.close()
	if err := g.establish(); err != nil {
		return s, err
	}
	order := newOrder(links)
	existing := func() endpoint { return g.client(order.take()) }
	fresh := func() endpoint { g.fresh++; return g.client(g.fresh - 1) }

	const ack, syn = packet.TCPAck, packet.TCPSyn
	s.Existing.Mean = netOf(o.Repeat, o.Packets, g.pass(ack, 1, existing, false), g.pass(ack, 1, existing, true)).Median
	s.Burst.Existing = netOf(o.Repeat, o.Packets, g.pass(ack, pmd.BurstFrames, existing, false), g.pass(ack, pmd.BurstFrames, existing, true))
	s.Existing.P50, s.Existing.P99 = g.timed(ack, existing)
	var single, burst []float64
	for range o.Repeat {
		for size, list := range map[int]*[]float64{1: &single, pmd.BurstFrames: &burst} {
			bare := nanoseconds(o.Packets, g.pass(syn, size, fresh, false))
			before := g.w.shard.Counters().Created
			*list = append(*list, nanoseconds(o.Packets, g.pass(syn, size, fresh, true))-bare)
			if got := g.w.shard.Counters().Created - before; got < uint64(o.Packets)*99/100 { // some clients are there already
				return s, fmt.Errorf("perf: %d links made by %d SYNs: %v", got, o.Packets, refusals(g.w.shard))
			}
			if err := g.forget(); err != nil {
				return s, err
			}
		}
	}
	s.New.Mean, s.Burst.New = NewStat(single).Median, NewStat(burst)
	s.New.P50, s.New.P99 = g.timed(syn, fresh)
	return s, nil
}

// establish opens all links by a handshake.
func (g *oneGroup) establish() error {
	for i := range uint32(g.Links) {
		for _, p := range [...]struct {
			side  nat.Side
			flags uint8
		}{{nat.Outside, packet.TCPSyn}, {nat.Inside, packet.TCPSyn | packet.TCPAck}, {nat.Outside, packet.TCPAck}} {
			g.w.writer.flags = p.flags
			src, dst := g.client(i), published
			if p.side == nat.Inside {
				src, dst = server, g.client(i)
			}
			g.w.single(p.side, src, dst)
		}
	}
	g.fresh = uint32(g.Links)
	c := g.w.shard.Counters()
	if c.State[nat.Established] < uint64(g.Links)*99/100 || c.State[nat.Opening] != 0 { // a few clients may be the same
		return fmt.Errorf("perf: %d links established of %d", c.State[nat.Established], g.Links)
	}
	return nil
}

// pass returns a function that makes packets from outside in bursts of so many, and with work translates them.
func (g *oneGroup) pass(flags uint8, size int, client func() endpoint, work bool) func() {
	return func() {
		g.w.writer.flags = flags
		for i := 0; i < g.Packets; i += size {
			b := g.w.burst[:min(size, g.Packets-i)]
			for k := range b {
				g.w.fill(&b[k], nat.Outside, client(), published)
			}
			if work {
				g.w.translate(b)
			}
			for k := range b {
				g.w.frames.give(b[k].Frame)
			}
		}
	}
}

// timed times packets one by one.
func (g *oneGroup) timed(flags uint8, client func() endpoint) (p50, p99 float64) {
	g.w.writer.flags = flags
	samples, clocks := make([]float64, 0, g.Packets), make([]float64, 0, g.Packets)
	for range g.Packets {
		p := &g.w.burst[0]
		g.w.fill(p, nat.Outside, client(), published)
		start := time.Now()
		between := time.Since(start)
		start = time.Now()
		g.w.translate(g.w.burst[:1])
		samples = append(samples, float64(time.Since(start)))
		clocks = append(clocks, float64(between))
		g.w.frames.give(p.Frame)
	}
	slices.Sort(samples)
	slices.Sort(clocks)
	own := clocks[len(clocks)/2]
	return max(samples[len(samples)/2]-own, 0), max(samples[len(samples)*99/100]-own, 0)
}

// forget lets the links expire that were opened and got no answer. Those that are established live much longer.
func (g *oneGroup) forget() error {
	s := g.w.shard
	g.w.now += 241 * clock.PerSecond
	for s.Counters().State[nat.Opening] > 0 {
		if s.Advance(g.w.now, 1024) == 0 {
			return fmt.Errorf("perf: %d opening links did not expire", s.Counters().State[nat.Opening])
		}
	}
	return nil
}

// Print writes the report for people.
func (r *OneGroup) Print(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(t, "one published port, TCP, %s remote addresses, mapping by %s, %d alias address\n\n", r.Order, r.Mapping, r.Aliases)
	fmt.Fprintln(t, "links\tpacket\tsingle: mean\tp50\tp99\tin bursts: median\tmin\tmax\tns\t")
	steps := r.Curve
	if len(steps) == 0 {
		steps = []OneGroupStep{{r.Links, r.Existing, r.New, r.Burst}}
	}
	for _, s := range steps {
		row := func(name string, one Spread, burst Stat) {
			fmt.Fprintf(t, "%d\t%s\t%.0f\t%.0f\t%.0f\t%.0f\t%.0f\t%.0f\t\t\n", s.Links, name, one.Mean, one.P50, one.P99, burst.Median, burst.Min, burst.Max)
		}
		row("existing", s.Existing, s.Burst.Existing)
		row("new SYN", s.New, s.Burst.New)
	}
	fmt.Fprintln(t, "\nParse with header checksum, look-up, TCP state, timer, rewriting; for a new SYN also redirect, link, all indexes. Mean and")
	fmt.Fprintln(t, "bursts are processor time less that of making the packets. p50 and p99 are of packets timed one by one, less the clock's own")
	fmt.Fprintln(t, "time; interrupts and other programs are in them. New SYNs come on top of the links and expire before the next repetition.")
	return t.Flush()
}
