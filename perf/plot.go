package perf

import (
	"strconv"

	"pollux/perf/chart"
)

// line collects the points of one line.
type line chart.Line

func (l *line) add(x float64, s Stat) {
	l.X, l.Y = append(l.X, x), append(l.Y, s.Median)
	l.Low, l.High = append(l.Low, s.Min), append(l.High, s.Max)
}

// Plot draws what a packet costs over the number of links.
func (e *Established) Plot(file string) error {
	l := line{Name: "whole worker"}
	for _, p := range e.Curve {
		l.add(float64(p.Links), p.NS)
	}
	return chart.Chart{Title: "Packet of an established link, random flows", X: "links", Y: "ns per packet", LogX: true,
		Lines: []chart.Line{chart.Line(l)}}.Write(file)
}

// Plot draws the cost over the number of links of the one group.
func (r *OneGroup) Plot(file string) error {
	lines := []line{{Name: "existing, in bursts"}, {Name: "new SYN, in bursts"}, {Name: "existing, single"}, {Name: "new SYN, single"}}
	for _, s := range r.Curve {
		x := float64(s.Links)
		lines[0].add(x, s.Burst.Existing)
		lines[1].add(x, s.Burst.New)
		for i, mean := range []float64{s.Existing.Mean, s.New.Mean} {
			l := &lines[2+i]
			l.X, l.Y = append(l.X, x), append(l.Y, mean)
		}
	}
	c := chart.Chart{Title: "One published port, " + r.Order + " remote addresses", X: "links of the port", Y: "ns per packet", LogX: true}
	for _, l := range lines {
		c.Lines = append(c.Lines, chart.Line(l))
	}
	return c.Write(file)
}

// Plot draws the search for a port over the share that is in use.
func (r *Exhaustion) Plot(file string) error {
	c := chart.Chart{Title: "A free port toward one peer", X: "% of its ports in use", Y: "ns per search", LogY: true}
	with, without, claimed := line{Name: "with the peer's cache"}, line{Name: "without a cache"}, line{Name: "with the cache, port claimed"}
	for i, p := range r.Points {
		c.Names = append(c.Names, strconv.FormatFloat(p.Percent, 'f', -1, 64))
		with.add(float64(i), p.Spread)
		without.add(float64(i), p.Without)
		claimed.add(float64(i), p.Claimed)
	}
	c.Lines = []chart.Line{chart.Line(with), chart.Line(without), chart.Line(claimed)}
	return c.Write(file)
}
