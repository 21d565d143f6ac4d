package lab

import (
	"path/filepath"
	"slices"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/plotutil"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
)

// plots draws what there is into dir and returns the files' names.
func (r *Result) plots(dir string) (names []string, err error) {
	save := func(name string, make func() (*plot.Plot, error)) error {
		p, err := make()
		if p == nil || err != nil {
			return err
		}
		names = append(names, name)
		return p.Save(20*vg.Centimeter, 11*vg.Centimeter, filepath.Join(dir, name))
	}
	if err := save("throughput.svg", r.bars); err != nil {
		return nil, err
	}
	if err := save("latency-idle.svg", func() (*plot.Plot, error) {
		return r.cdf("Round trips at idle", func(c *Cell) *RTT { return c.Idle })
	}); err != nil {
		return nil, err
	}
	return names, save("latency-half.svg", func() (*plot.Plot, error) {
		return r.cdf("Round trips at half load of each peer", func(c *Cell) *RTT { return c.Half })
	})
}

// bars compares packet rates, with the least and greatest of each.
func (r *Result) bars() (*plot.Plot, error) {
	var keys []column
	for _, c := range r.present() {
		if slices.Contains([]string{"pps", "pps_many", "imix_pps", "new_flows", "new_flows_held"}, c.key) {
			keys = append(keys, c)
		}
	}
	if len(keys) == 0 {
		return nil, nil
	}
	p := plot.New()
	p.Title.Text = "One core of gateway work (median; lines: least to greatest)"
	p.Y.Label.Text = "million a second"
	p.Legend.Top = true
	width := vg.Points(60 / float64(len(r.Peers)))
	for i, peer := range r.Peers {
		var v plotter.Values
		bounds := rangeBars{}
		for k, c := range keys {
			s := peer.Columns[c.key]
			v = append(v, s.Median/1e6)
			bounds.XYs = append(bounds.XYs, plotter.XY{X: float64(k), Y: s.Median / 1e6})
			bounds.YErrors = append(bounds.YErrors, struct{ Low, High float64 }{(s.Median - s.Min) / 1e6, (s.Max - s.Median) / 1e6})
		}
		b, err := plotter.NewBarChart(v, width)
		if err != nil {
			return nil, err
		}
		b.LineStyle.Width = 0
		b.Color = plotutil.Color(i)
		b.Offset = width * vg.Length(float64(i)-float64(len(r.Peers)-1)/2)
		p.Add(b)
		p.Legend.Add(peer.Name, b)
		e, err := plotter.NewYErrorBars(bounds)
		if err != nil {
			return nil, err
		}
		p.Add(shifted{e, b.Offset})
	}
	var labels []string
	for _, c := range keys {
		labels = append(labels, strings.ReplaceAll(c.title, ", ", "\n"))
	}
	p.NominalX(labels...)
	p.Y.Min = 0
	return p, nil
}

// cdf draws the round trips of the round whose median is the median over the rounds.
func (r *Result) cdf(title string, of func(*Cell) *RTT) (*plot.Plot, error) {
	p := plot.New()
	p.Title.Text = title
	p.X.Label.Text = "us"
	p.Y.Label.Text = "percent of packets that took no longer"
	p.X.Scale, p.X.Tick.Marker = plot.LogScale{}, plot.LogTicks{}
	any := false
	for i, peer := range r.Peers {
		var all []*RTT
		for _, round := range r.Rounds {
			for k := range round.Peers {
				if c := &round.Peers[k]; c.Name == peer.Name && of(c) != nil {
					all = append(all, of(c))
				}
			}
		}
		if len(all) == 0 {
			continue
		}
		slices.SortFunc(all, func(a, b *RTT) int { return int(a.P50 - b.P50) })
		var xy plotter.XYs
		for _, q := range all[(len(all)-1)/2].cdf {
			if q.us > 0 {
				xy = append(xy, plotter.XY{X: q.us, Y: q.percent})
			}
		}
		if len(xy) < 2 {
			continue
		}
		line, err := plotter.NewLine(xy)
		if err != nil {
			return nil, err
		}
		line.Color, line.Width = plotutil.Color(i), vg.Points(1.5)
		p.Add(line)
		p.Legend.Add(peer.Name, line)
		any = true
	}
	if !any {
		return nil, nil
	}
	p.Add(plotter.NewGrid())
	return p, nil
}

// rangeBars are points with the way down to the least and up to the greatest.
type rangeBars struct {
	plotter.XYs
	plotter.YErrors
}

// shifted draws to the side of where the data say, as bars do.
type shifted struct {
	*plotter.YErrorBars
	by vg.Length
}

// Plot is plot.Plotter's.
func (s shifted) Plot(c draw.Canvas, p *plot.Plot) {
	c.Min.X += s.by
	c.Max.X += s.by
	s.YErrorBars.Plot(c, p)
}
