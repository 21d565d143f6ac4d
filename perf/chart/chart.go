// Package chart draws the curves of perf's reports as SVG files.
package chart

import (
	"fmt"
	"path/filepath"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/plotutil"
	"gonum.org/v1/plot/vg"
)

// Chart is a set of lines over one axis.
type Chart struct {
	Title, X, Y string
	LogX, LogY  bool     // logarithmic axes; then all values must be above 0
	Names       []string // of the points on the X axis, at 0, 1, 2 ... ; nil: X is a number
	Lines       []Line
}

// Line is a named line; Y may go with Low and High at each point, which are drawn as bars.
type Line struct {
	Name      string
	X, Y      []float64
	Low, High []float64
}

// Check says in one line why a file can't be written to, before anything is measured for it.
func Check(file string) error {
	if strings.ToLower(filepath.Ext(file)) != ".svg" {
		return fmt.Errorf("plot: is %q; allowed: the name of an .svg file", file)
	}
	return nil
}

// Write draws the chart into an SVG file.
func (c Chart) Write(file string) error {
	if err := Check(file); err != nil {
		return err
	}
	p := plot.New()
	p.Title.Text, p.X.Label.Text, p.Y.Label.Text = c.Title, c.X, c.Y
	p.Legend.Top, p.Legend.Left = true, true
	p.Add(plotter.NewGrid())
	if c.Names != nil {
		p.NominalX(c.Names...)
	}
	for i, l := range c.Lines {
		if err := l.add(p, i); err != nil {
			return fmt.Errorf("plot: line %q: %w", l.Name, err)
		}
	}
	if c.LogX {
		p.X.Scale, p.X.Tick.Marker = plot.LogScale{}, plot.LogTicks{Prec: -1}
	}
	if c.LogY {
		p.Y.Scale, p.Y.Tick.Marker = plot.LogScale{}, plot.LogTicks{Prec: -1}
		p.Y.Max *= 4 // room for the legend
	} else {
		p.Y.Min, p.Y.Max = 0, p.Y.Max*1.3
	}
	if err := p.Save(18*vg.Centimeter, 11*vg.Centimeter, file); err != nil {
		return fmt.Errorf("plot: %w", err)
	}
	return nil
}

func (l *Line) add(p *plot.Plot, i int) error {
	points := make(plotter.XYs, len(l.X))
	for k := range points {
		points[k] = plotter.XY{X: l.X[k], Y: l.Y[k]}
	}
	line, dots, err := plotter.NewLinePoints(points)
	if err != nil {
		return err
	}
	line.Color, dots.Color = plotutil.Color(i), plotutil.Color(i)
	line.Dashes, dots.Shape = plotutil.Dashes(i), plotutil.Shape(i)
	p.Add(line, dots)
	p.Legend.Add(l.Name, line, dots)
	if l.Low == nil {
		return nil
	}
	errors := make(plotter.YErrors, len(points))
	for k := range errors {
		errors[k].Low, errors[k].High = l.Y[k]-l.Low[k], l.High[k]-l.Y[k]
	}
	bars, err := plotter.NewYErrorBars(struct {
		plotter.XYs
		plotter.YErrors
	}{points, errors})
	if err != nil {
		return err
	}
	bars.Color = plotutil.Color(i)
	p.Add(bars)
	return nil
}
