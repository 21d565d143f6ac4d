package perf

import (
	"fmt"
	"io"
	"text/tabwriter"

	"pollux/nat"
)

// EstablishedOptions asks what a packet of a link that lives costs.
type EstablishedOptions struct {
	Links   int  // open links
	Packets int  // in one repetition
	Repeat  int  // repetitions
	Curve   bool // measure for fewer links, too
}

// Established is what a packet of an established link costs: UDP packets of random flows, as many in each direction, taken
// through all stages of a worker in bursts of 64.
type Established struct {
	Report
	Links        int     `json:"links"`
	NS           Stat    `json:"ns_per_packet"`  // processor time through the whole worker
	BytesPerLink float64 `json:"bytes_per_link"` // memory that the process got while the links were opened
	Mapped       float64 `json:"mapped_bytes_per_link"`
	Aliases      int     `json:"alias_addresses"`
	Mapping      string  `json:"mapping"`
	Stages       []Stage `json:"stages"`
	Curve        []Point `json:"curve,omitempty"`
}

// Stage is what a packet costs up to and with a stage of the worker.
type Stage struct {
	Name string `json:"name"`
	NS   Stat   `json:"ns_per_packet"`
}

// Point is one point of the curve over links.
type Point struct {
	Links int  `json:"links"`
	NS    Stat `json:"ns_per_packet"`
}

// MeasureEstablished runs the scenario.
func MeasureEstablished(o EstablishedOptions) (*Established, error) {
	if err := between("links", o.Links, 2, flowsMax); err != nil {
		return nil, err
	}
	e := &Established{Report: NewReport(), Links: o.Links, Aliases: 1, Mapping: "endpoint-dependent"}
	return e, onThread(func() error {
		for n := 1024; o.Curve && n < o.Links; n *= 4 {
			p := &Established{Links: n}
			if err := p.measure(o, false); err != nil {
				return err
			}
			e.Curve = append(e.Curve, Point{n, p.NS})
		}
		err := e.measure(o, true)
		if o.Curve {
			e.Curve = append(e.Curve, Point{e.Links, e.NS})
		}
		return err
	})
}

func (e *Established) measure(o EstablishedOptions, stages bool) error {
	before := resident()
	w, err := newWorld(worldOptions{limits: nat.Limits{Links: e.Links}})
	if err != nil {
		return err
	}
	defer w.close()
	if err := w.open(e.Links); err != nil {
		return err
	}
	umem := float64(w.umem.Frames() * w.umem.ChunkSize())
	e.BytesPerLink = max(float64(resident())-float64(before)-umem, 0) / float64(e.Links)
	e.Mapped = float64(w.shard.Counters().Memory) / float64(e.Links)
	w.roam(e.Links)
	bare := func() { w.bare(o.Packets) }
	if stages {
		e.Stages = append(e.Stages,
			Stage{"parse", netOf(o.Repeat, o.Packets, bare, func() { w.each(o.Packets, parse) })},
			Stage{"parse and translate", netOf(o.Repeat, o.Packets, bare, func() {
				w.each(o.Packets, func(b []nat.Packet) {
					parse(b)
					w.shard.Touch(b)
					w.shard.Translate(b, w.now)
				})
			})})
	}
	sent, hits, rounds := w.sent(), w.shard.Counters().Hits, 0
	e.NS = netOf(o.Repeat, o.Packets, bare, func() { w.run(o.Packets); rounds++ })
	e.Stages = append(e.Stages, Stage{"whole worker", e.NS})
	want := uint64(rounds * o.Packets)
	if got := w.sent() - sent; got != want {
		return fmt.Errorf("perf: %d of %d packets were forwarded", got, want)
	}
	if got := w.shard.Counters().Hits - hits; got < want-want/100-16 { // links with equal 32-bit hashes take the longer way
		return fmt.Errorf("perf: %d of %d packets took the short way", got, want)
	}
	return nil
}

// Print writes the report for people.
func (e *Established) Print(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(t, "%d links, UDP, %s mapping, %d alias address\n\n", e.Links, e.Mapping, e.Aliases)
	fmt.Fprintln(t, "up to and with\tmedian\tmin\tmax\tns per packet\t")
	for _, s := range e.Stages {
		fmt.Fprintf(t, "%s\t%.1f\t%.1f\t%.1f\t\t\n", s.Name, s.NS.Median, s.NS.Min, s.NS.Max)
	}
	if len(e.Curve) > 0 {
		fmt.Fprintln(t, "\nlinks\tmedian\tmin\tmax\tns per packet, whole worker\t")
		for _, p := range e.Curve {
			fmt.Fprintf(t, "%d\t%.1f\t%.1f\t%.1f\t\t\n", p.Links, p.NS.Median, p.NS.Min, p.NS.Max)
		}
	}
	fmt.Fprintf(t, "\n%.0f bytes of memory per link (%.0f mapped)\n\n", e.BytesPerLink, e.Mapped)
	fmt.Fprintln(t, "Processor time of one core. The whole worker is: burst from a port, parse with header checksum, steering, look-up, TCP/UDP")
	fmt.Fprintln(t, "state, timer, rewriting with both checksums, next hop with reverse path, MAC addresses, transmit line, counters. Not in it:")
	fmt.Fprintln(t, "making the packets (measured alone and taken off) and the kernel's part of AF_XDP. Random flows, both directions, no flow")
	fmt.Fprintln(t, "twice before all came once, 4096 cold frames.")
	if e.Links < 100_000 {
		fmt.Fprintln(t, "Memory per link includes what a gateway has anyway, so it says little for so few links.")
	}
	return t.Flush()
}
