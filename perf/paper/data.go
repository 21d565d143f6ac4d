package paper

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"pollux/perf"
	"pollux/perf/lab"
)

// data is what the parts gave. A part that was not made is nil.
type data struct {
	made map[string]*made

	established           *perf.Established
	libalias              *perf.Libalias
	oneGroup, consecutive *perf.OneGroup
	newFlows, independent *perf.NewFlows
	exhaustion            *perf.Exhaustion
	routes                *perf.Routes
	clock                 *perf.Clock
	handoff               *perf.Handoff
	lab                   *lab.Result
}

// read takes up what is there.
func read(dir string) (*data, error) {
	d := &data{made: map[string]*made{}}
	for name, into := range map[string]any{
		"established": &d.established, "libalias": &d.libalias, "onegroup": &d.oneGroup, "onegroup-consecutive": &d.consecutive,
		"new-flows": &d.newFlows, "new-flows-independent": &d.independent, "port-exhaustion": &d.exhaustion, "rtcache": &d.routes,
		"clock": &d.clock, "handoff": &d.handoff, "lab": &d.lab,
	} {
		file := filepath.Join(dir, "data", name+".json")
		b, err := os.ReadFile(file)
		if errors.Is(err, os.ErrNotExist) {
			continue
		}
		m := &made{}
		if err == nil {
			err = json.Unmarshal(b, m)
		}
		if err == nil {
			err = json.Unmarshal(m.Result, into)
		}
		if err != nil {
			return nil, fmt.Errorf("%s: %w; make it again with --only %s", file, err, name)
		}
		d.made[name] = m
	}
	if len(d.made) == 0 {
		return nil, fmt.Errorf("%s: no part of a report is there yet", dir)
	}
	return d, nil
}

// machine is that of any part, and whether all are of the same one.
func (d *data) machine() (m perf.Machine, same bool) {
	same = true
	for _, p := range parts {
		x := d.made[p.name]
		if x == nil {
			continue
		}
		var r perf.Report
		if json.Unmarshal(x.Result, &r) != nil {
			continue
		}
		if m == (perf.Machine{}) {
			m = r.Machine
		}
		same = same && m == r.Machine
	}
	return m, same
}

// curve is the point of the established packets' curve with so many links.
func (d *data) curve(links int) (perf.Stat, bool) {
	if d.established != nil {
		for _, p := range d.established.Curve {
			if p.Links == links {
				return p.NS, true
			}
		}
	}
	return perf.Stat{}, false
}

// step is the point of the one-group curve with so many links.
func (d *data) step(links int) (s perf.OneGroupStep, ok bool) {
	if d.oneGroup != nil {
		for _, s := range d.oneGroup.Curve {
			if s.Links == links {
				return s, true
			}
		}
	}
	return s, false
}

// ratio is a column of one peer of the lab divided by another's, round by round.
func (d *data) ratio(of, to string, column func(*lab.Cell) float64) (perf.Stat, bool) {
	if d.lab == nil {
		return perf.Stat{}, false
	}
	var list []float64
	for _, round := range d.lab.Rounds {
		var a, b float64
		for i := range round.Peers {
			switch c := &round.Peers[i]; c.Name {
			case of:
				a = column(c)
			case to:
				b = column(c)
			}
		}
		if a > 0 && b > 0 {
			list = append(list, a/b)
		}
	}
	return perf.NewStat(list), len(list) > 0
}
