package perf

import (
	"bytes"
	"encoding/json"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"pollux/internal/packet"
	"pollux/nat"
)

// The tests hold every scenario, with few links and packets, against what its report promises. They never judge a time.

// fields decodes a report's JSON and checks what every report carries.
func fields(t *testing.T, report any) map[string]any {
	t.Helper()
	b, err := json.Marshal(report)
	if err != nil {
		t.Fatal(err)
	}
	var m map[string]any
	if err := json.Unmarshal(b, &m); err != nil {
		t.Fatal(err)
	}
	machine, _ := m["machine"].(map[string]any)
	for _, key := range []string{"cpu", "kernel", "go"} {
		if s, _ := machine[key].(string); s == "" {
			t.Errorf("machine.%s is missing", key)
		}
	}
	if n, _ := machine["cores"].(float64); n < 1 {
		t.Errorf("machine.cores is %v", machine["cores"])
	}
	if s, _ := m["command"].(string); s == "" {
		t.Error("command is missing")
	}
	return m
}

// has checks that a dotted path leads to a number.
func has(t *testing.T, m any, paths ...string) {
	t.Helper()
	for _, path := range paths {
		at := m
		for key := range strings.SplitSeq(path, ".") {
			o, _ := at.(map[string]any)
			at = o[key]
		}
		if _, ok := at.(float64); !ok {
			t.Errorf("%s is %v, want a number", path, at)
		}
	}
}

func ordered(t *testing.T, name string, s Stat) {
	t.Helper()
	if s.Min > s.Median || s.Median > s.Max || s.Max == 0 {
		t.Errorf("%s: %+v is not min <= median <= max", name, s)
	}
}

func TestEstablished(t *testing.T) {
	r, err := MeasureEstablished(EstablishedOptions{Links: 3000, Packets: 4096, Repeat: 3, Curve: true})
	if err != nil {
		t.Fatal(err)
	}
	has(t, fields(t, r), "links", "ns_per_packet.median", "ns_per_packet.min", "ns_per_packet.max", "bytes_per_link", "alias_addresses")
	if len(r.Stages) != 3 || len(r.Curve) != 2 || r.Curve[0].Links != 1024 || r.Curve[1].Links != 3000 {
		t.Errorf("stages %v, curve %v", r.Stages, r.Curve)
	}
	ordered(t, "whole worker", r.NS)
	if r.BytesPerLink < 100 {
		t.Errorf("%v bytes per link: a link's record alone is more", r.BytesPerLink)
	}
	var b bytes.Buffer
	if err := r.Print(&b); err != nil || !strings.Contains(b.String(), "endpoint-dependent mapping, 1 alias address") {
		t.Errorf("Print: %v\n%s", err, &b)
	}
	draw(t, r.Plot, "links")
}

// draw checks that a plot is an SVG file that says what its axis is.
func draw(t *testing.T, plot func(string) error, axis string) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "curve.svg")
	if err := plot(file); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(file)
	if err != nil || !bytes.Contains(b, []byte("<svg")) || !bytes.Contains(b, []byte(">"+axis)) {
		t.Errorf("%v: no SVG file with the axis %q", err, axis)
	}
}

func TestOneGroup(t *testing.T) {
	for _, order := range []string{"scattered", "consecutive"} {
		r, err := MeasureOneGroup(OneGroupOptions{Links: 2000, Order: order, Packets: 256, Repeat: 2, Curve: true})
		if err != nil {
			t.Fatal(err)
		}
		has(t, fields(t, r), "links", "existing_ns.mean", "existing_ns.p50", "existing_ns.p99", "new_ns.mean", "new_ns.p50", "new_ns.p99")
		if r.Order != order || len(r.Curve) != 2 || r.New.P50 > r.New.P99 || r.New.P99 == 0 {
			t.Errorf("%+v", r)
		}
		draw(t, r.Plot, "links of the port")
	}
}

func TestNewFlows(t *testing.T) {
	for _, independent := range []bool{false, true} {
		r, err := MeasureNewFlows(NewFlowsOptions{Links: 2000, Independent: independent, Repeat: 2})
		if err != nil {
			t.Fatal(err)
		}
		has(t, fields(t, r), "flows_per_second.median", "flows_per_second.min", "flows_per_second.max")
		ordered(t, "flows per second", r.PerSecond)
		names := ""
		for _, f := range r.Refused {
			names += f.Reason + " "
		}
		if names != "table-full no-port host-limit " {
			t.Errorf("refused for %s", names)
		}
		if (r.Aliases > 1) != independent {
			t.Errorf("independent %v with %d alias addresses", independent, r.Aliases)
		}
	}
}

func TestExhaustion(t *testing.T) {
	r, err := MeasureExhaustion(ExhaustionOptions{Low: 2000, High: 3999, Searches: 256, Repeat: 2})
	if err != nil {
		t.Fatal(err)
	}
	m := fields(t, r)
	has(t, m, "allocated", "capacity", "caches")
	points, _ := m["points"].([]any)
	if len(points) != 5 {
		t.Fatalf("%d points", len(points))
	}
	for i, p := range points {
		has(t, p, "used_percent", "ns", "steps_p50", "steps_p99", "failures")
		if r.Points[i].Failures != 0 || r.Points[i].P50 > r.Points[i].P99 {
			t.Errorf("%+v", r.Points[i])
		}
	}
	searches := uint64(0)
	for _, n := range r.Steps {
		searches += n
	}
	if r.Allocated != 2000 || r.Capacity != 2000 || r.Caches != 1 || searches != 2000 {
		t.Errorf("%d of %d ports given in %d searches, %d caches", r.Allocated, r.Capacity, searches, r.Caches)
	}
	draw(t, r.Plot, "% of its ports in use")
}

func TestLibalias(t *testing.T) {
	r, err := MeasureLibalias(LibaliasOptions{MaxSeconds: 0.3, BatchSize: 100, RandomSize: 70, AttackSize: 30, RedirSize: 100})
	if err != nil {
		t.Fatal(err)
	}
	m := fields(t, r)
	has(t, m, "packets", "links")
	rounds, _ := m["rounds"].([]any)
	if len(rounds) == 0 {
		t.Fatal("no round")
	}
	has(t, rounds[0], "round", "second", "new_nat_us", "random_us", "attack_us", "use_nat_us")
	n := uint64(len(r.Rounds))
	for _, phase := range []struct {
		name string
		got  uint64
		each uint64
	}{
		{"newNAT", r.Totals.NewNATOK + r.Totals.NewNATFail, 100},
		{"RANDOM", r.Totals.RandomOK + r.Totals.RandomFail, 70},
		{"ATTACK", r.Totals.AttackOK + r.Totals.AttackFail, 30},
	} {
		if phase.got < n*phase.each || phase.got > (n+1)*phase.each { // the last round may be cut short
			t.Errorf("%s: %d packets in %d rounds of %d", phase.name, phase.got, n, phase.each)
		}
	}
	if r.Totals.NewNATFail+r.Totals.UseInFail+r.Totals.UseOutFail != 0 {
		t.Errorf("valid packets failed: %+v", r.Totals)
	}
	if r.Totals.RandomOK == 0 || r.Totals.RandomOK*5 > r.Totals.RandomFail {
		t.Errorf("%d random packets met a redirect, %d did not", r.Totals.RandomOK, r.Totals.RandomFail)
	}
	if r.Packets != r.Totals.total() || r.Links == 0 {
		t.Errorf("%d packets, %d in the totals, %d links", r.Packets, r.Totals.total(), r.Links)
	}
	var b bytes.Buffer
	if err := r.Print(&b); err != nil {
		t.Fatal(err)
	}
	for _, line := range []string{"RND SECOND newNAT RANDOM ATTACK useNAT\n", "(batch_size) = 100\n", "newNAT fail:         0\n", "useNAT fail:         0 (in)\n", "      Total: "} {
		if !strings.Contains(b.String(), line) {
			t.Errorf("the table lacks %q:\n%s", line, &b)
		}
	}
}

func TestRoutes(t *testing.T) {
	r, err := MeasureRoutes(RoutesOptions{Routes: 200, Links: 500, Packets: 1024, Repeat: 2})
	if err != nil {
		t.Fatal(err)
	}
	rows, _ := fields(t, r)["rows"].([]any)
	if len(rows) != 3 {
		t.Fatalf("%d rows", len(rows))
	}
	for i, name := range []string{"plain", "lookup", "cache"} {
		has(t, rows[i], "ns_per_packet.median", "ns_per_packet.min", "ns_per_packet.max")
		if r.Rows[i].Name != name {
			t.Errorf("row %d is %s", i, r.Rows[i].Name)
		}
	}
	if m := r.Memory; m.SlotBytes != 16 || m.LinkBytes != 32 || m.RouteBytes <= 0 || m.LoadSeconds <= 0 {
		t.Errorf("memory: %+v", m)
	}
	// Beside route changes every packet but those of flows that share a stamp with one of them keeps its next hop.
	if c := r.Churn; c.Changes == 0 || c.Packets != 2*1024 || c.Hits+c.Looked != c.Packets || c.Looked > c.Packets/4 {
		t.Errorf("churn: %+v", c)
	}
}

func TestClock(t *testing.T) {
	r, err := MeasureClock(ClockOptions{Links: 100, Packets: 1024, Repeat: 2})
	if err != nil {
		t.Fatal(err)
	}
	fields(t, r)
	if len(r.Rows) != 3 || r.Rows[0].Name != "burst" {
		t.Errorf("%+v", r.Rows)
	}
	for _, row := range r.Rows {
		ordered(t, row.Name, row.NS)
	}
}

// A bad option is refused with its name before anything is measured.
func TestOptionErrors(t *testing.T) {
	for name, measure := range map[string]func() error{
		"links":       func() error { _, err := MeasureEstablished(EstablishedOptions{Links: 1}); return err },
		"order":       func() error { _, err := MeasureOneGroup(OneGroupOptions{Links: 100, Order: "x"}); return err },
		"routes":      func() error { _, err := MeasureRoutes(RoutesOptions{Links: 2}); return err },
		"ports":       func() error { _, err := MeasureExhaustion(ExhaustionOptions{Low: 9, High: 8}); return err },
		"max-seconds": func() error { _, err := MeasureLibalias(LibaliasOptions{BatchSize: 1}); return err },
		"batch-size":  func() error { _, err := MeasureLibalias(LibaliasOptions{MaxSeconds: 1}); return err },
	} {
		var bad *OptionError
		if err := measure(); !errors.As(err, &bad) || bad.Name != name {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Every number below n comes once before any comes again, in more than one order.
func TestOrder(t *testing.T) {
	for _, n := range []int{2, 3, 1000, 1024, 1 << 16} {
		o := newOrder(n)
		var first []uint32
		for turn := range 3 {
			seen := make([]bool, n)
			var got []uint32
			for range n {
				x := o.take()
				if seen[x] {
					t.Fatalf("%d of %d came twice in turn %d", x, n, turn)
				}
				seen[x] = true
				got = append(got, x)
			}
			if turn == 0 {
				first = got
			} else if n >= 1000 && bytes.Equal(asBytes(first), asBytes(got)) {
				t.Errorf("turn %d of %d is in the same order", turn, n)
			}
		}
	}
}

func asBytes(list []uint32) []byte {
	var b []byte
	for _, x := range list {
		b = append(b, byte(x), byte(x>>8))
	}
	return b
}

// The packets of the scenarios are right in every checksum.
func TestTraffic(t *testing.T) {
	for _, tcp := range []bool{false, true} {
		w, err := newWorld(worldOptions{limits: nat.Limits{Links: 100}, tcp: tcp})
		if err != nil {
			t.Fatal(err)
		}
		defer w.close()
		r := newRandom()
		for range 5000 {
			src, dst := endpoint{firstHost + packet.Addr(r.below(1<<26)), uint16(r.next())}, endpoint{packet.Addr(r.next()), uint16(r.next())}
			f := w.writer.put(0, src, dst)
			data := w.umem.Data(f)
			if err := packet.Verify(data); err != nil {
				t.Fatalf("tcp %v, %v to %v: %v", tcp, src, dst, err)
			}
			if sourceOf(data) != src || destinationOf(data) != dst {
				t.Fatalf("%v to %v, want %v to %v", sourceOf(data), destinationOf(data), src, dst)
			}
		}
	}
}

func TestStat(t *testing.T) {
	for _, tc := range []struct {
		values []float64
		want   Stat
	}{
		{nil, Stat{}},
		{[]float64{3}, Stat{3, 3, 3}},
		{[]float64{5, 1, 3}, Stat{3, 1, 5}},
		{[]float64{4, 1, 3, 2}, Stat{2, 1, 4}},
	} {
		if got := NewStat(tc.values); got != tc.want {
			t.Errorf("NewStat(%v) = %v, want %v", tc.values, got, tc.want)
		}
	}
}
