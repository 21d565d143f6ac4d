package replay

import (
	"bufio"
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"

	"pollux/internal/config"
	"pollux/nat"
)

var update = flag.Bool("update", false, "write what happens into testdata as what is expected")

// TestTraces plays every file of testdata. A trace reads like this:
//
//	# what it shows
//	config:
//	    nat: {alias: ["203.0.113.1"]}
//	0 in   udp 10.0.0.2:5000 > 8.8.8.8:53
//	    0 out  udp 203.0.113.1:5000 > 8.8.8.8:53 ttl 63
//	1 out  udp 8.8.4.4:53 > 203.0.113.1:5000
//	    drop filtered
//	links
//	    udp 10.0.0.2:5000 203.0.113.1:5000 8.8.8.8:53 active 299
//
// Lines that start with a time are packets that come in, or with the word links; indented lines below them say what
// follows, and are what -update writes. Times are seconds; the language of packets is packetText's.
func TestTraces(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatalf("no traces: %v", err)
	}
	for _, name := range files {
		t.Run(strings.TrimSuffix(filepath.Base(name), ".txt"), func(t *testing.T) {
			want, err := os.ReadFile(name)
			if err != nil {
				t.Fatal(err)
			}
			got := playTrace(t, string(want), 1, "host")
			if *update {
				if err := os.WriteFile(name, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
				return
			}
			if got != string(want) {
				t.Errorf("%s: got\n%s\nwant\n%s", name, got, want)
			}
			// Whichever queue a packet comes in by and whoever owns its flow, the world sees the same.
			short := strings.TrimSuffix(filepath.Base(name), ".txt")
			for _, steer := range []string{"host", "flow"} {
				if !slices.Contains(sameForMany, short) || steer == "flow" && slices.Contains(byHostOnly, short) {
					continue
				}
				want := withoutPool(string(want))
				got := playTrace(t, want, 4, steer)
				if want = playTrace(t, want, 1, steer); short == "redirects" {
					// A remote that a redirect does not name is refused where its own flows would be, not where those of the
					// port are: nobody has a mapping there.
					got, want = strings.ReplaceAll(got, "drop filtered", "drop no-mapping"), strings.ReplaceAll(want, "drop filtered", "drop no-mapping")
				}
				compare(t, fmt.Sprintf("%s with 4 workers, steer: %s", name, steer), sorted(got), sorted(want))
			}
		})
	}
}

// sameForMany are the traces in which no later packet hangs on a choice that each worker makes by itself.
var sameForMany = []string{"bypass", "forged", "fragments", "full-cone", "gre-conflict", "hairpin", "held-syn", "host", "host-limits", "icmp", "kernel-alias", "limits", "mss", "redirects", "target", "tcp", "udp"}

// byHostOnly are those of them that hang on one host's flows being together: a limit per host, and two alias ports that all
// its flows to different servers share.
var byHostOnly = []string{"host-limits", "limits"}

// compare shows the first lines that differ.
func compare(t *testing.T, what string, got, want []string) {
	t.Helper()
	for i := range max(len(got), len(want)) {
		if i >= len(got) || i >= len(want) || got[i] != want[i] {
			t.Errorf("%s, line %d: got\n%s\nwant\n%s", what, i+1,
				strings.Join(got[min(i, len(got)):min(i+3, len(got))], "\n"), strings.Join(want[min(i, len(want)):min(i+3, len(want))], "\n"))
			return
		}
	}
}

// withoutPool leaves the packets of a pool of servers out: whose turn it is each worker knows for itself (SPEC part C).
func withoutPool(trace string) string {
	return pooled.ReplaceAllString(trace, "")
}

var pooled = regexp.MustCompile(`(?m)^\d\S* (in|out) +tcp .*(10\.0\.0\.(4:80|5:8080)|203\.0\.113\.1:80)\b.*\n`)

// drawn is an alias port that workers draw by lot, also from a range of two.
var drawn = regexp.MustCompile(`203\.0\.113\.\d+:([1-6]\d{4}|200[01])\b`)

// sorted returns the lines of a trace with its links, which come worker by worker, in order, and without what is drawn.
func sorted(trace string) []string {
	lines := strings.Split(drawn.ReplaceAllString(trace, "drawn"), "\n")
	if i := slices.Index(lines, "links"); i >= 0 {
		slices.Sort(lines[i:])
	}
	return lines
}

// playTrace plays the packets of a trace and returns the trace with what happened.
func playTrace(t *testing.T, text string, workers int, steer string) string {
	t.Helper()
	var yaml strings.Builder
	if workers > 1 {
		fmt.Fprintf(&yaml, "workers: {cores: \"0-%d\", steer: %s}\n", workers-1, steer)
	}
	yaml.WriteString("ports: [{name: i, role: inside}, {name: o, role: outside}]\n")
	var in capture
	var steps []string // lines of the trace without what follows from them
	inConfig, wantLinks := false, false
	for line := range strings.Lines(text) {
		line = strings.TrimRight(line, "\n")
		switch {
		case strings.HasPrefix(line, "    ") && inConfig:
			yaml.WriteString(strings.TrimPrefix(line, "    ") + "\n")
		case strings.HasPrefix(line, "    "):
			continue
		case line == "config:":
			inConfig = true
		case line == "links":
			wantLinks = true
		case line == "" || line[0] == '#':
		default:
			inConfig = false
			in.add(t, line)
		}
		steps = append(steps, line)
	}
	r := runTrace(t, yaml.String(), &in, wantLinks)
	var out strings.Builder
	for _, line := range steps {
		fmt.Fprintln(&out, line)
		if line == "links" {
			out.WriteString(r.links)
		} else if line != "" && line[0] >= '0' && line[0] <= '9' {
			out.WriteString(r.next())
		}
	}
	return out.String()
}

// capture is the packets of a trace, in order.
type capture struct {
	at    []time.Duration
	side  []nat.Side
	frame [][]byte
}

func (c *capture) add(t *testing.T, line string) {
	t.Helper()
	when, rest, _ := strings.Cut(line, " ")
	side, text, _ := strings.Cut(strings.TrimSpace(rest), " ")
	at, err := time.ParseDuration(when + "s")
	if err != nil {
		t.Fatalf("%q: %v", line, err)
	}
	frame, err := packetFrom(strings.TrimSpace(text))
	if err != nil {
		t.Fatalf("%q: %v", line, err)
	}
	s := nat.Inside
	if side == "out" {
		s = nat.Outside
		copy(frame[:6], []byte{2, 0, 0, 0, 1, 1}) // replay.outside_mac
	}
	c.at, c.side, c.frame = append(c.at, at), append(c.side, s), append(c.frame, frame)
}

// write writes the packets of one side to a file.
func (c *capture) write(t *testing.T, name string, side nat.Side) {
	t.Helper()
	var b bytes.Buffer
	w := pcapgo.NewWriterNanos(&b)
	if err := w.WriteFileHeader(65536, layers.LinkTypeEthernet); err != nil {
		t.Fatal(err)
	}
	for i, f := range c.frame {
		if c.side[i] != side {
			continue
		}
		if err := w.WritePacket(gopacket.CaptureInfo{Timestamp: epoch.Add(c.at[i]), CaptureLength: len(f), Length: len(f)}, f); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(name, b.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
}

var epoch = time.Unix(1_700_000_000, 0).UTC()

// result is what followed from each packet of a trace, in order.
type result struct {
	after []string
	links string
	i     int
}

func (r *result) next() string {
	r.i++
	return r.after[r.i-1]
}

// runTrace plays a capture by way of files, as the command does.
func runTrace(t *testing.T, yaml string, in *capture, links bool) *result {
	t.Helper()
	dir := t.TempDir()
	path := func(name string) string { return filepath.Join(dir, name) }
	cfg, err := config.Parse("trace", []byte(yaml), nil, config.Replaying)
	if err != nil {
		t.Fatal(err)
	}
	in.write(t, path("i"), nat.Inside)
	in.write(t, path("o"), nat.Outside)
	var linksOut bytes.Buffer
	o := Options{
		Gateway: cfg.Gateway(), World: World(cfg.Replay()),
		Inside: path("i"), Outside: path("o"), WriteInside: path("wi"), WriteOutside: path("wo"), Drops: path("d"),
		Warn: func(s string) { t.Log(s) },
	}
	o.Gateway.Rules = cfg.ReplayRules()
	if links {
		o.Links = &linksOut
	}
	if err := Run(o); err != nil {
		t.Fatal(err)
	}
	r := &result{after: make([]string, len(in.frame))}
	// What came out is put below the last packet that came in no later.
	put := func(at time.Duration, line string) {
		last := 0
		for i := range in.at {
			if in.at[i] <= at {
				last = i
			}
		}
		r.after[last] += "    " + line + "\n"
	}
	for side, name := range map[string]string{"in ": path("wi"), "out": path("wo")} {
		readCapture(t, name, func(at time.Time, frame []byte) {
			d := at.Sub(epoch)
			put(d, fmt.Sprintf("%v %s %s", d.Seconds(), side, packetText(frame)))
		})
	}
	var drops []drop
	b, err := os.ReadFile(path("d"))
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(b, &drops); err != nil {
		t.Fatalf("%v in %s", err, b)
	}
	for _, d := range drops {
		line := "    drop " + d.Reason
		if d.Answered {
			line += ", answered"
		}
		r.after[in.find(d)] += line + "\n"
	}
	if links {
		r.links = linkText(t, linksOut.Bytes())
	}
	return r
}

// find returns which packet of the trace a drop is about.
func (c *capture) find(d drop) int {
	n := 0
	for i, s := range c.side {
		if s.String() == d.Side {
			if n == d.Index {
				return i
			}
			n++
		}
	}
	return -1
}

func linkText(t *testing.T, b []byte) string {
	t.Helper()
	var list struct{ Links []link }
	if err := json.Unmarshal(b, &list); err != nil {
		t.Fatalf("%v in %s", err, b)
	}
	var out strings.Builder
	for _, l := range list.Links {
		fmt.Fprintf(&out, "    %s %s %s %s %s %d\n", l.Proto, l.Local, l.Alias, l.Remote, l.State, l.ExpiresIn)
	}
	return out.String()
}

func readCapture(t *testing.T, name string, visit func(at time.Time, frame []byte)) {
	t.Helper()
	f, err := os.Open(name)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	r, err := pcapgo.NewReader(bufio.NewReader(f))
	if err != nil {
		t.Fatal(err)
	}
	for {
		data, ci, err := r.ReadPacketData()
		if err != nil {
			return
		}
		visit(ci.Timestamp, data)
	}
}
