package paper

import (
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"pollux/perf"
	"pollux/perf/lab"
)

func flat(v float64) perf.Stat { return perf.Stat{Median: v, Min: v, Max: v} }

// keep puts a part's file there, as run would.
func keep(t *testing.T, dir, name string, result any) {
	t.Helper()
	b, err := json.Marshal(result)
	if err != nil {
		t.Fatal(err)
	}
	b, err = json.Marshal(made{Command: "pollux perf " + name, Revision: "abc", Made: "today", Others: 40, Result: b})
	if err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(filepath.Join(dir, "data"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "data", name+".json"), b, 0o644); err != nil {
		t.Fatal(err)
	}
}

func readme(t *testing.T, dir string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(dir, "README.md"))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// row is the line of the report that begins so.
func row(t *testing.T, text, begin string) string {
	t.Helper()
	for line := range strings.Lines(text) {
		if strings.HasPrefix(line, "| "+begin+" |") {
			return strings.TrimSpace(line)
		}
	}
	t.Fatalf("no row %q in\n%s", begin, text)
	return ""
}

func TestTargetsAreJudgedFromTheParts(t *testing.T) {
	dir := t.TempDir()
	report := perf.NewReport()
	keep(t, dir, "established", perf.Established{Report: report, Links: 1 << 22, BytesPerLink: 201, Mapping: "endpoint-dependent",
		Curve: []perf.Point{{Links: 1024, NS: flat(14)}, {Links: 16384, NS: flat(20.5)}, {Links: 1 << 22, NS: flat(40)}}})
	keep(t, dir, "lab", lab.Result{Report: report, Rounds: []lab.Round{
		{Round: 1, Peers: []lab.Cell{{Name: "pollux", PPS: 130}, {Name: "l2fwd", PPS: 130}, {Name: "nft", PPS: 100}}},
		{Round: 2, Peers: []lab.Cell{{Name: "nft", PPS: 50}, {Name: "pollux", PPS: 55}, {Name: "l2fwd", PPS: 110}}},
		{Round: 3, Peers: []lab.Cell{{Name: "nft", PPS: 10}, {Name: "pollux", PPS: 13}}},
	}, Doubts: []string{"nobody was at home"}})
	if err := os.WriteFile(filepath.Join(dir, "why.txt"), []byte("established-16k: the cache is small\nestablished-1k: is met, so this is not said\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(dir, "profile.md"), []byte("# by hand\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := Make(context.Background(), Options{Dir: dir, Write: true}); err != nil {
		t.Fatal(err)
	}
	text := readme(t, dir)
	for begin, end := range map[string]string{
		"established packet, whole worker, 1k links":          "14.0 [14.0 - 14.0] ns | met | `established` |",
		"established packet, whole worker, 16k links":         "20.5 [20.5 - 20.5] ns | **not met**: the cache is small | `established` |",
		"established packet, whole worker, 1M links":          "not measured | | `established` |",
		"memory per link, all indexes, largest table":         "201 bytes at 4194304 links | **not met** | `established` |",
		"lab, 64 B, 1000 flows, to nftables":                  "1.30 [1.10 - 1.30] x | met | `lab` |", // of rounds 1.3, 1.1, 1.3
		"lab, 64 B, 1000 flows, to the bare forwarder":        "0.50 [0.50 - 1.00] x | **not met** | `lab` |",
		"libalias's test, packets in its 10 s":                "not measured | | `libalias` |",
		"established":                                         "| `pollux perf established` | today, 0 s | abc | 40 % **doubtful** | 0 % |",
		"clock":                                               "| not made | | | |",
		"port search, ports of a peer running out":            "not measured | | `port-exhaustion` |",
		"lab, new flows while sessions are held, to nftables": "not measured | | `lab` |",
	} {
		if got := row(t, text, begin); !strings.HasSuffix(got, end) {
			t.Errorf("%s\nwant the end %s", got, end)
		}
	}
	for _, want := range []string{"3 of 6 targets are met", "nobody was at home", "[profile.md](profile.md)", "](established.svg)", report.Machine.Kernel} {
		if !strings.Contains(text, want) {
			t.Errorf("the report does not say %q", want)
		}
	}
	if b, err := os.ReadFile(filepath.Join(dir, "established.svg")); err != nil || !strings.Contains(string(b), "</svg>") {
		t.Errorf("plot: %v", err)
	}
}

func TestWhatStandsInTheFolderIsChecked(t *testing.T) {
	dir := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	fails := func(want string) {
		t.Helper()
		if err := Make(context.Background(), Options{Dir: dir, Write: true}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%v, want %q", err, want)
		}
	}
	fails("no part of a report is there yet")
	keep(t, dir, "clock", perf.Clock{Report: perf.NewReport()})
	write("why.txt", "established-1k: x\nestablished-2k: y\n")
	fails(`why.txt:2: "established-2k" is no target`)
	write("why.txt", "")
	write("data/lab.json", "{")
	fails("--only lab")
	if err := Make(context.Background(), Options{Dir: dir, Only: []string{"lap"}}); err == nil || !strings.Contains(err.Error(), `no part "lap" of a report; there are: established,`) {
		t.Errorf("%v", err)
	}
}

// A script stands in for pollux: it prints what it was asked, or fails.
func TestPartsAreMadeOneByOne(t *testing.T) {
	dir := t.TempDir()
	binary := filepath.Join(dir, "pollux")
	script := "#!/bin/sh\n[ \"$2\" = handoff ] && { echo first; echo it broke >&2; exit 1; }\necho \"{\\\"machine\\\":{\\\"cpu\\\":\\\"c\\\",\\\"cores\\\":1,\\\"kernel\\\":\\\"k\\\",\\\"go\\\":\\\"g\\\"},\\\"command\\\":\\\"$*\\\"}\"\n"
	if err := os.WriteFile(binary, []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	old := perf.Handoff{Report: perf.NewReport(), Owner: flat(3)}
	keep(t, dir, "handoff", old)
	err := Make(context.Background(), Options{Dir: dir, Binary: binary, Revision: "r1", Quick: true, Only: []string{"handoff", "clock"}})
	if err == nil || !strings.Contains(err.Error(), "handoff: exit status 1: it broke") {
		t.Errorf("%v", err)
	}
	text := readme(t, dir)
	if got := row(t, text, "whose packet is it, several workers"); !strings.Contains(got, "3.0 [3.0 - 3.0] ns | met") {
		t.Errorf("the part that failed took the older one away: %s", got)
	}
	if got := row(t, text, "clock (quick: shows that it works, not how fast)"); !strings.Contains(got, "`pollux perf clock --packets 65536 --repeat 3`") || !strings.Contains(got, "| r1 |") {
		t.Error(got)
	}
	b, err := os.ReadFile(filepath.Join(dir, "data", "clock.json"))
	if err != nil {
		t.Fatal(err)
	}
	var m made
	if err := json.Unmarshal(b, &m); err != nil || !m.Quick || !strings.Contains(string(m.Result), `perf clock --packets 65536 --repeat 3 --json`) {
		t.Errorf("%v: %s", err, b)
	}
	if !strings.Contains(text, "Not all parts were made on the same machine") {
		t.Error("parts of two machines pass for those of one")
	}
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	if err := Make(ctx, Options{Dir: dir, Binary: binary, Only: []string{"clock"}}); err == nil {
		t.Error("a report that was called off is taken for whole")
	}
}

func TestSharesOfTheMachine(t *testing.T) {
	others, stolen := ticks{busy: 150, idle: 40, stolen: 10}.shares(time.Second)
	if others != 25 || stolen != 5 {
		t.Errorf("%v %% used by others, %v %% stolen", others, stolen)
	}
	if others, _ := (ticks{busy: 10, idle: 100}).shares(time.Second); others != 0 {
		t.Errorf("%v %% used by others, but all was our own", others)
	}
	if machineTime().idle == 0 {
		t.Error("the processors were never idle")
	}
}
