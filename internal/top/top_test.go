package top

import (
	"context"
	"errors"
	"flag"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	tea "charm.land/bubbletea/v2"

	"pollux/internal/control"
	"pollux/pmd"
)

var update = flag.Bool("update", false, "write the frames into testdata as what is expected")

var start = time.Date(2030, 1, 2, 3, 4, 5, 0, time.UTC)

// sampleAt is a gateway with two workers and two ports, n seconds after its start, with traffic that grows in proportion.
func sampleAt(n uint64) *Sample {
	ports := 2
	s := &Sample{At: start.Add(time.Duration(n) * time.Second)}
	for i, name := range []string{"eth1", "eth0"} {
		s.Ports = append(s.Ports, pmd.PortStats{Name: name, Role: [2]string{"inside", "outside"}[i], Up: true,
			RX: 1_234_567 * n, TX: 1_200_000 * n, RXBytes: 700_000_000 * n, TXBytes: 690_000_000 * n, Passed: 3 * n, RXFull: 5 * n * uint64(i)})
	}
	for i := range 2 {
		w := pmd.WorkerStats{Worker: i, Core: 2 + i, Queue: i, RunNS: n * 1e9, BusyNS: n * 1e9 * uint64(95-50*i) / 100, Received: 1_200_000 * n,
			Forwarded: 1_190_000 * n, Dropped: 100 * n, Bursts: 30_000 * n, Links: uint64(500_000 + i), Created: 20_000 * n, Expired: 19_000 * n, Hosts: 700,
			HandedOut: 600_000 * n, PollGapsUS: make([]uint64, 32)}
		w.PollGapsUS[0], w.PollGapsUS[7], w.PollGapsUS[12] = 1000*n, n, 1
		s.Workers = append(s.Workers, w)
	}
	s.Drops = []pmd.DropStats{
		{Name: "no-mapping", Count: 2000 * n, Help: "inbound to an alias address, no link, no redirect, no target"},
		{Name: "filtered", Count: 7, Help: "a mapping exists but its filter does not admit this remote"},
		{Name: "no-port", Count: 9000 * n, Help: "no alias port left for this host and remote"},
		{Name: "bad-header", Help: "malformed or truncated header"},
		{Name: "punted", Count: 50 * n, Help: "handed to the gateway's own stack by a worker"},
	}
	s.Hosts = []control.Host{{Address: "10.0.0.9", Alias: "203.0.113.1", Links: 4000, Ports: &ports, Refused: 12}, {Address: "100.64.200.200", Links: 17, Worker: 1}}
	return s
}

// The numbers of a frame are growth over time.
func TestBetween(t *testing.T) {
	f := Between(sampleAt(10), sampleAt(12))
	if f.Interval != 2 || f.Total.RX != 2*1_234_567 || f.Total.RXBits != 2*8*700_000_000 || f.Total.Created != 40_000 || f.Total.Links != 1_000_001 || f.Total.Dropped != 11_000 {
		t.Errorf("%+v", f.Total)
	}
	w := f.Workers[0]
	if w.Occupancy < 0.949 || w.Occupancy > 0.951 || w.Burst != 40 || w.GapUS != 256 || w.Received != 1_200_000 || f.Workers[1].Occupancy > 0.46 {
		t.Errorf("%+v", w)
	}
	if len(f.Drops) != 3 || f.Drops[0].Reason != "no-port" || f.Drops[0].Rate != 9000 || f.Drops[2].Reason != "filtered" || f.Drops[2].Rate != 0 {
		t.Errorf("%+v", f.Drops)
	}
	if p := f.Ports[1]; p.Lost != 5 || p.Passed != 3 {
		t.Errorf("%+v", p)
	}
	first := Between(nil, sampleAt(10))
	if first.Interval != 0 || first.Total.RX != 0 || first.Total.Links != 1_000_001 || first.Workers[0].Occupancy != 0 {
		t.Errorf("without a sample before: %+v", first)
	}
	// Started again: all counters are small again, and its clock tells.
	again := sampleAt(1)
	again.At = start.Add(20 * time.Second)
	if f := Between(sampleAt(10), again); f.Interval != 0 || f.Total.RX != 0 {
		t.Errorf("after a restart: %+v", f.Total)
	}
	fewer := sampleAt(12)
	fewer.Workers = fewer.Workers[:1]
	if f := Between(sampleAt(10), fewer); f.Interval != 0 {
		t.Errorf("with a worker less: %+v", f.Total)
	}
	made := sampleAt(12) // a device was made again: its sockets count from 0
	made.Ports[0].RX = 5
	if f := Between(sampleAt(10), made); f.Ports[0].RX != 0 || f.Ports[0].TX == 0 {
		t.Errorf("after a device was made again: %+v", f.Ports[0])
	}
}

func TestShort(t *testing.T) {
	for x, want := range map[float64]string{0: "0", 0.2: "0.20", 9.99: "9.99", 12: "12", 999: "999", 999.6: "1.00k", 1000: "1.00k", 12_345: "12.3k", 123_456: "123k", 999_600: "1.00M",
		1.5e9: "1.50G", 2e12: "2T"} {
		if got := short(x); got != want {
			t.Errorf("%v is %s, want %s", x, got, want)
		}
	}
}

// model returns a view that was given samples, without asking anybody.
func model(t *testing.T, width, height int, msgs ...tea.Msg) *Model {
	t.Helper()
	m := NewModel(nil, time.Second, ByLinks, false)
	m.asked = 1
	for _, msg := range append([]tea.Msg{tea.WindowSizeMsg{Width: width, Height: height}}, msgs...) {
		m.Update(msg)
	}
	return m
}

func answer(n uint64) tea.Msg { return sampled{number: 1, sample: *sampleAt(n), at: start} }

func press(keys string) tea.Msg {
	switch keys {
	case "space":
		return tea.KeyPressMsg{Code: tea.KeySpace, Text: " "}
	case "down":
		return tea.KeyPressMsg{Code: tea.KeyDown}
	}
	return tea.KeyPressMsg{Code: rune(keys[0]), Text: keys}
}

var refused = sampled{number: 1, err: errors.New("no gateway answers on /run/pollux.sock: connection refused"), at: start.Add(time.Minute)}

// What the terminal shows, at several sizes and in several states, is what testdata has.
func TestFrames(t *testing.T) {
	for name, m := range map[string]*Model{
		"wide":     model(t, 140, 40, answer(10), answer(11)),
		"usual":    model(t, 80, 24, answer(10), answer(11)),
		"narrow":   model(t, 40, 30, answer(10), answer(11)),
		"tiny":     model(t, 20, 4, answer(10), answer(11)),
		"first":    model(t, 80, 12, answer(10)),
		"asking":   model(t, 80, 6),
		"gone":     model(t, 80, 12, answer(10), answer(11), refused),
		"paused":   model(t, 80, 8, answer(10), answer(11), press("space")),
		"help":     model(t, 60, 16, answer(10), press("?")),
		"scrolled": model(t, 80, 10, answer(10), answer(11), press("down"), press("down"), press("down")),
	} {
		t.Run(name, func(t *testing.T) {
			lines := m.lines()
			if len(lines) > m.height {
				t.Errorf("%d lines on a terminal of %d", len(lines), m.height)
			}
			for _, l := range lines {
				if n := utf8.RuneCountInString(l); n > m.width {
					t.Errorf("%d characters on a terminal of %d: %s", n, m.width, l)
				}
			}
			file := filepath.Join("testdata", name+".txt")
			got := strings.Join(lines, "\n") + "\n"
			if *update {
				if err := os.WriteFile(file, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(file)
			if err != nil {
				t.Fatal(err)
			}
			if got != string(want) {
				t.Errorf("got\n%s\nwant\n%s\n(-update writes it)", got, want)
			}
		})
	}
}

// No size makes it fail, and none makes it write outside.
func TestEverySize(t *testing.T) {
	m := model(t, 1, 1, answer(10), answer(11))
	for width := range 150 {
		for height := range 45 {
			m.Update(tea.WindowSizeMsg{Width: width, Height: height})
			lines := m.lines()
			if len(lines) > height {
				t.Fatalf("%d lines at %dx%d", len(lines), width, height)
			}
			for _, l := range lines {
				if utf8.RuneCountInString(l) > width {
					t.Fatalf("%q at %dx%d", l, width, height)
				}
			}
		}
	}
	if got := m.View(); !got.AltScreen {
		t.Error("it would write over the user's screen")
	}
}

// Colours are only there when asked for, and change nothing else.
func TestColour(t *testing.T) {
	m := model(t, 80, 24, answer(10), answer(11))
	without := m.lines()
	m.colour = true
	with := m.lines()
	text := strings.Join(with, "\n")
	if !strings.Contains(text, "\x1b[31m") || !strings.Contains(text, "\x1b[33m") {
		t.Error("a worker at 95 % and a growing count of drops are not marked")
	}
	for _, code := range []string{"\x1b[0m", "\x1b[1m", "\x1b[31m", "\x1b[33m"} {
		text = strings.ReplaceAll(text, code, "")
	}
	if text != strings.Join(without, "\n") {
		t.Errorf("colours change the text:\n%s", text)
	}
}

// fakeSource answers with what it is given.
type fakeSource struct {
	sample *Sample
	err    error
	by     Order
}

func (f *fakeSource) Sample(_ context.Context, by Order) (Sample, error) {
	f.by = by
	if f.err != nil {
		return Sample{}, f.err
	}
	return *f.sample, nil
}

// It asks, waits, asks again; goes on after a time without answers; and asks for what the keys say.
func TestModel(t *testing.T) {
	source := &fakeSource{sample: sampleAt(10)}
	m := NewModel(source, time.Second, ByLinks, false)
	m.Update(tea.WindowSizeMsg{Width: 80, Height: 24})
	if _, cmd := m.Update(m.Init()()); cmd == nil || !m.shown || source.by != ByLinks {
		t.Fatal("the first answer is not shown, or nothing follows it")
	}
	source.sample = sampleAt(11)
	ask := func() tea.Cmd { // what follows when the interval has passed
		_, cmd := m.Update(due{m.asked})
		return cmd
	}
	m.Update(ask()())
	if m.frame.Interval != 1 {
		t.Errorf("%+v", m.frame)
	}
	source.err = errors.New("gone\nfor good")
	m.Update(ask()())
	if l := m.lines()[0]; !strings.Contains(l, "no answer since") || !strings.Contains(l, "gone for good") {
		t.Errorf("%q", l)
	}
	source.err, source.sample = nil, sampleAt(1) // started again
	source.sample.At = start.Add(time.Minute)
	m.Update(ask()())
	if m.err != nil || m.frame.Interval != 0 {
		t.Errorf("after a restart: %v %+v", m.err, m.frame)
	}
	source.sample = sampleAt(3)
	source.sample.At = start.Add(62 * time.Second)
	m.Update(ask()())
	if m.frame.Interval != 2 || m.frame.Total.RX != 2*1_234_567 {
		t.Errorf("after a restart: %+v", m.frame.Total)
	}
	_, cmd := m.Update(press("s"))
	m.Update(cmd())
	if source.by != ByRefused {
		t.Errorf("hosts by %s", source.by)
	}
	old := sampled{number: m.asked - 1, err: errors.New("late")}
	if m.Update(old); m.err != nil {
		t.Error("an answer to a question that was given up is taken")
	}
	m.Update(press("space"))
	if ask() != nil {
		t.Error("it asks while it is paused")
	}
	if _, cmd := m.Update(press("space")); cmd == nil {
		t.Error("it does not go on after a pause")
	} else {
		m.Update(cmd())
	}
	m.Update(press("-"))
	if m.interval != 2*time.Second {
		t.Errorf("every %s", m.interval)
	}
	for range 20 {
		m.Update(press("+"))
	}
	if m.interval != IntervalMin {
		t.Errorf("every %s", m.interval)
	}
	if _, cmd := m.Update(press("q")); cmd == nil {
		t.Error("q does nothing")
	} else if _, ok := cmd().(tea.QuitMsg); !ok {
		t.Error("q does not quit")
	}
}

// A gateway that lists no hosts just now is shown without them.
func TestNoHosts(t *testing.T) {
	s := sampleAt(11)
	s.Hosts, s.NoHosts = nil, "2 lists are being read; try again"
	f := Between(sampleAt(10), s)
	text := strings.Join(Text(&f, ByLinks, 80, false), "\n")
	if !strings.Contains(text, "no hosts: 2 lists are being read") || !strings.Contains(text, "eth1") {
		t.Error(text)
	}
}

// Text from outside can't steer the terminal.
func TestPlain(t *testing.T) {
	if got := plain("a\x1b[31mb\u009bc\xff"); got != "a?[31mb?c?" {
		t.Errorf("%q", got)
	}
}
