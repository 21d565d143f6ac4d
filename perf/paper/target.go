package paper

import (
	"fmt"
	"strings"

	"pollux/perf"
	"pollux/perf/lab"
)

// target is something that pollux is to reach.
type target struct {
	id     string // in why.txt
	what   string
	today  string // the best elsewhere, as measured when the target was set
	must   string
	part   string // that shows it
	result func(*data) (verdict, bool)
}

// verdict is what was measured, and whether that is enough.
type verdict struct {
	text string
	met  bool
}

// targets are in the order of the report. Ratios of the lab are to a rival in the same rounds; in-memory figures of other
// projects are quoted, for they were measured with their own programs.
var targets = []target{
	established("established-1k", 1024, "VPP nat44-ed 49 ns", 14),
	established("established-16k", 16384, "VPP nat44-ed 229-273 ns", 20),
	established("established-1M", 1<<20, "VPP nat44-ed 438-590 ns", 35),
	established("established-4M", 1<<22, "", 50),
	{"bytes-per-link", "memory per link, all indexes, largest table", "VPP 596, nftables 383 and its hash table, libalias 148-260", "<= 200 bytes", "established", func(d *data) (v verdict, ok bool) {
		if d.established == nil {
			return v, false
		}
		return verdict{fmt.Sprintf("%.0f bytes at %d links", d.established.BytesPerLink, d.established.Links), d.established.BytesPerLink <= 200}, true
	}},
	libalias("libalias-new", "newNAT", "5.4 us", 0.5, func(r perf.LibaliasRound) float64 { return r.NewNAT }),
	libalias("libalias-random", "RANDOM", "1.9 us", 0.10, func(r perf.LibaliasRound) float64 { return r.Random }),
	libalias("libalias-attack", "ATTACK", "0.03 us", 0.03, func(r perf.LibaliasRound) float64 { return r.Attack }),
	libalias("libalias-use", "useNAT", "0.10 us", 0.03, func(r perf.LibaliasRound) float64 { return r.UseNAT }),
	{"libalias-packets", "libalias's test, packets in its 10 s", "44-46 million", ">= 200 million", "libalias", func(d *data) (v verdict, ok bool) {
		if d.libalias == nil {
			return v, false
		}
		return verdict{fmt.Sprintf("%.0f million", float64(d.libalias.Packets)/1e6), d.libalias.Packets >= 200e6}, true
	}},
	group("onegroup-existing-100k", 100_000, "existing packet, alone", "libalias 0.3-0.5 ms (lists), 1.1 us (tree); VPP 0.38 us", 150, func(s perf.OneGroupStep) perf.Stat { return single(s.Existing) }),
	group("onegroup-existing-1M", 1_000_000, "existing packet, alone", "libalias 10 ms (lists), 3.0 us (tree); VPP 0.63 us", 250, func(s perf.OneGroupStep) perf.Stat { return single(s.Existing) }),
	group("onegroup-burst-1M", 1_000_000, "existing packet, in bursts", "", 60, func(s perf.OneGroupStep) perf.Stat { return s.Burst.Existing }),
	group("onegroup-new-100k", 100_000, "new SYN, alone", "libalias 0.9-1.3 ms (lists), 3-5 us (tree); VPP 0.93 us", 500, func(s perf.OneGroupStep) perf.Stat { return single(s.New) }),
	group("onegroup-new-1M", 1_000_000, "new SYN, alone", "libalias 21 ms (lists), 6-7 us (tree); VPP 1.1 us", 800, func(s perf.OneGroupStep) perf.Stat { return single(s.New) }),
	group("onegroup-new-burst-1M", 1_000_000, "new SYN, in bursts", "", 400, func(s perf.OneGroupStep) perf.Stat { return s.Burst.New }),
	{"new-flows", "new flows a second, in memory", "VPP 0.54-0.77 million", ">= 2 million", "new-flows", func(d *data) (v verdict, ok bool) {
		if d.newFlows == nil {
			return v, false
		}
		s := d.newFlows.PerSecond
		return verdict{stat(s, 1e-6, "%.2f") + " million", s.Median >= 2e6}, true
	}},
	{"refused", "a refused new flow", "VPP 3.0 us (no port), 0.73 us (table full)", "less than an accepted one", "new-flows", func(d *data) (v verdict, ok bool) {
		if d.newFlows == nil {
			return v, false
		}
		v.met = true
		var list []string
		for _, r := range d.newFlows.Refused {
			list = append(list, fmt.Sprintf("%s %s", r.Reason, stat(r.NS, 1, "%.0f")))
			v.met = v.met && r.NS.Median < d.newFlows.NS.Median
		}
		v.text = strings.Join(list, ", ") + " ns; accepted " + stat(d.newFlows.NS, 1, "%.0f") + " ns"
		return v, true
	}},
	{"exhaustion-failures", "port search, ports of a peer running out", "libalias refuses 12 % at 92 % use, VPP 39 % at 90 %", "no failure while a port is free", "port-exhaustion", func(d *data) (v verdict, ok bool) {
		if d.exhaustion == nil {
			return v, false
		}
		failures := 0
		for _, p := range d.exhaustion.Points {
			failures += p.Failures
		}
		return verdict{fmt.Sprintf("%d failures; %d of %d ports given", failures, d.exhaustion.Allocated, d.exhaustion.Capacity), failures == 0 && d.exhaustion.Allocated == d.exhaustion.Capacity}, true
	}},
	{"exhaustion-cost", "port search at 50 / 99 / 99.9 % use", "linear probing 25 / 304 / 2365 ns", "<= 15 ns, flat", "port-exhaustion", func(d *data) (v verdict, ok bool) {
		if d.exhaustion == nil {
			return v, false
		}
		v.met = true
		var list []string
		for _, p := range d.exhaustion.Points {
			if p.Percent == 50 || p.Percent == 99 || p.Percent == 99.9 {
				list = append(list, stat(p.Spread, 1, "%.1f"))
				v.met = v.met && p.Spread.Median <= 15
			}
		}
		v.text = strings.Join(list, " / ") + " ns"
		return v, true
	}},
	{"owner", "whose packet is it, several workers", "", "<= 5 ns", "handoff", func(d *data) (v verdict, ok bool) {
		if d.handoff == nil {
			return v, false
		}
		return verdict{stat(d.handoff.Owner, 1, "%.1f") + " ns", d.handoff.Owner.Median <= 5}, true
	}},
	{"handoff", "handing a packet to another core, burst of 32", "xsync's queue 82-231 ns", "<= 25 ns", "handoff", func(d *data) (v verdict, ok bool) {
		if d.handoff == nil {
			return v, false
		}
		return verdict{stat(d.handoff.Handoff, 1, "%.1f") + " ns; xsync in the same run " + stat(d.handoff.Xsync, 1, "%.0f") + " ns", d.handoff.Handoff.Median <= 25}, true
	}},
	{"scaling", "two workers on two cores, of two gateways that share nothing", "", ">= 0.95", "handoff", func(d *data) (v verdict, ok bool) {
		if d.handoff == nil || len(d.handoff.TwoCores) == 0 {
			return v, false
		}
		t := d.handoff.TwoCores[0]
		return verdict{fmt.Sprintf("%s with %d %% handed over", stat(t.Ratio, 1, "%.2f"), t.Wrong), t.Ratio.Median >= 0.95}, true
	}},
	versus("lab-l2fwd", "lab, 64 B, 1000 flows, to the bare forwarder", "l2fwd", 0.9, func(c *lab.Cell) float64 { return c.PPS }),
	versus("lab-nft-1k", "lab, 64 B, 1000 flows, to nftables", "nft", 1.2, func(c *lab.Cell) float64 { return c.PPS }),
	versus("lab-l2fwd-50k", "lab, 64 B, 50,000 flows, to the bare forwarder", "l2fwd", 0.9, func(c *lab.Cell) float64 { return c.PPSMany }),
	versus("lab-nft-50k", "lab, 64 B, 50,000 flows, to nftables", "nft", 1.7, func(c *lab.Cell) float64 { return c.PPSMany }),
	versus("lab-new", "lab, new flows, to nftables", "nft", 3, func(c *lab.Cell) float64 { return c.NewFlows }),
	versus("lab-new-held", "lab, new flows while sessions are held, to nftables", "nft", 3, func(c *lab.Cell) float64 { return c.NewFlowsHeld }),
}

// stat shows median, least and greatest.
func stat(s perf.Stat, by float64, format string) string {
	return fmt.Sprintf(format+" ["+format+" - "+format+"]", s.Median*by, s.Min*by, s.Max*by)
}

func single(s perf.Spread) perf.Stat { return perf.Stat{Median: s.Mean, Min: s.P50, Max: s.P99} }

func established(id string, links int, today string, ns float64) target {
	return target{id, fmt.Sprintf("established packet, whole worker, %s links", short(links)), today, fmt.Sprintf("<= %.0f ns", ns), "established", func(d *data) (v verdict, ok bool) {
		s, ok := d.curve(links)
		return verdict{stat(s, 1, "%.1f") + " ns", s.Median <= ns}, ok
	}}
}

// libalias judges a phase at round 100, or the last one.
func libalias(id, phase, today string, us float64, of func(perf.LibaliasRound) float64) target {
	return target{id, "libalias's test, " + phase + ", round 100", today, fmt.Sprintf("<= %.2f us", us), "libalias", func(d *data) (v verdict, ok bool) {
		if d.libalias == nil || len(d.libalias.Rounds) == 0 {
			return v, false
		}
		i := min(100, len(d.libalias.Rounds)) - 1
		// One round is one figure of a few thousand packets: its neighbours tell how far to trust it.
		var near []float64
		for _, r := range d.libalias.Rounds[max(i-5, 0):min(i+6, len(d.libalias.Rounds))] {
			near = append(near, of(r))
		}
		s := perf.NewStat(near)
		return verdict{fmt.Sprintf("%s us (rounds %d-%d)", stat(s, 1, "%.3f"), max(i-5, 0)+1, min(i+6, len(d.libalias.Rounds))), s.Median < us+0.0005}, true
	}}
}

func group(id string, links int, what, today string, ns float64, of func(perf.OneGroupStep) perf.Stat) target {
	return target{id, fmt.Sprintf("one published port, %s links: %s", short(links), what), today, fmt.Sprintf("<= %.0f ns", ns), "onegroup", func(d *data) (v verdict, ok bool) {
		step, ok := d.step(links)
		s := of(step)
		text := stat(s, 1, "%.0f") + " ns"
		if strings.HasSuffix(what, "alone") {
			text = fmt.Sprintf("mean %.0f, p50 %.0f, p99 %.0f ns", s.Median, s.Min, s.Max)
		}
		return verdict{text, s.Median <= ns}, ok
	}}
}

func versus(id, what, rival string, least float64, of func(*lab.Cell) float64) target {
	return target{id, what, "", fmt.Sprintf(">= %.1f x", least), "lab", func(d *data) (v verdict, ok bool) {
		s, ok := d.ratio("pollux", rival, of)
		return verdict{stat(s, 1, "%.2f") + " x", s.Median >= least}, ok
	}}
}

// short writes a number of links.
func short(n int) string {
	switch {
	case n >= 1<<20 && n%(1<<20) == 0:
		return fmt.Sprintf("%dM", n>>20)
	case n >= 1024 && n%1024 == 0:
		return fmt.Sprintf("%dk", n>>10)
	case n >= 1_000_000:
		return fmt.Sprintf("%d million", n/1_000_000)
	}
	return fmt.Sprintf("%d,000", n/1000)
}
