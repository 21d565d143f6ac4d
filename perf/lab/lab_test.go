package lab

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	netlab "pollux/internal/lab"
)

// tiny are options for a run that proves that everything works, not how fast.
func tiny(t *testing.T) Options {
	t.Helper()
	netlab.Require(t)
	binary := filepath.Join(t.TempDir(), "pollux")
	if out, err := exec.Command("go", "build", "-o", binary, "pollux/cmd/pollux").CombinedOutput(); err != nil {
		t.Fatalf("go build: %v: %s", err, out)
	}
	o := Options{Binary: binary, Rounds: 2, Slot: 200 * time.Millisecond, WarmUp: 50 * time.Millisecond, NewFlowsSlot: 50 * time.Millisecond,
		Flows: 100, ManyFlows: 1000, Links: 500_000, GeneratorCore: -1, GatewayCore: -1}
	if err := o.Defaults(); err != nil {
		if os.Getenv("POLLUX_REQUIRE_LAB") == "1" {
			t.Fatalf("no lab here, and POLLUX_REQUIRE_LAB=1: %v", err)
		}
		t.Skipf("no lab here: %v", err) // one core
	}
	return o
}

func TestSideBySide(t *testing.T) {
	o := tiny(t)
	o.Rounds = 1 // what several give is put together in TestSummaryComparesWithinRounds
	r, err := Run(context.Background(), o)
	if err != nil {
		t.Fatal(err)
	}
	if want := len(o.Peers) - len(r.Absent); len(r.Peers) != want || len(r.Rounds) != 1 || len(r.Rounds[0].Peers) != want {
		t.Fatalf("%d peers, %d rounds; want %d and 1", len(r.Peers), len(r.Rounds), want)
	}
	for _, p := range r.Peers {
		for _, key := range []string{"pps", "pps_many", "imix_pps", "new_flows", "new_flows_held", "tcp_1_bps", "tcp_8_bps", "rtt_idle_p50_ns", "rtt_half_p99_ns", "cpu_s_per_mpkt_full", "cpu_s_per_mpkt_half"} {
			s := p.Columns[key]
			if s.Min <= 0 || s.Median < s.Min || s.Max < s.Median {
				t.Errorf("%s: %s is %+v", p.Name, key, s)
			}
		}
		if p.Name == "nft" && (p.RatioToNFT.Min != 1 || p.RatioToNFT.Max != 1) {
			t.Errorf("nft is %+v of itself", p.RatioToNFT)
		}
	}
	dir := t.TempDir()
	if err := r.WriteReport(dir); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"lab.md", "lab.json", "throughput.svg", "latency-idle.svg", "latency-half.svg"} {
		b, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil || len(b) < 200 {
			t.Errorf("%s: %d bytes, %v", name, len(b), err)
		}
		if strings.HasSuffix(name, ".svg") && !bytes.Contains(b, []byte("</svg>")) {
			t.Errorf("%s is no SVG", name)
		}
	}
	// The contract with other programs.
	var contract struct {
		Machine struct {
			CPU, Kernel, Go string
			Cores           int
		}
		Command string
		Rounds  []map[string]any
		Peers   []struct {
			Name  string
			PPS   *struct{ Median, Min, Max float64 } `json:"pps"`
			Ratio *struct{ Median, Min, Max float64 } `json:"ratio_to_nft"`
		}
	}
	b, err := os.ReadFile(filepath.Join(dir, "lab.json"))
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(b, &contract); err != nil {
		t.Fatal(err)
	}
	if contract.Machine.Kernel == "" || contract.Machine.Cores == 0 || contract.Command == "" || len(contract.Rounds) != 1 || len(contract.Peers) == 0 ||
		contract.Peers[0].PPS == nil || contract.Peers[0].PPS.Median <= 0 || contract.Peers[0].Ratio == nil {
		t.Errorf("the JSON lacks something: %+v", contract)
	}
}

func TestNDRFindsARate(t *testing.T) {
	o := tiny(t)
	r, err := NDR(context.Background(), NDROptions{Options: o, Trial: 200 * time.Millisecond, Percent: 20, Step: 0.3, Sessions: 500})
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range []Search{r.Peers[0].Establishment, r.Peers[0].Forwarding} {
		if s.PPS <= 0 || s.Failed < s.PPS || len(s.Trials) == 0 {
			t.Errorf("found %+v", s)
		}
		for _, trial := range s.Trials {
			if trial.Sent == 0 || trial.Passed && trial.Rate > s.PPS || !trial.Passed && trial.Rate < s.Failed {
				t.Errorf("trial %+v does not fit the result %v to %v", trial, s.PPS, s.Failed)
			}
		}
	}
}

// Six rows or, where the kernel has no flowtable, five; the cache was in use where its row says so, and only there.
func TestRoutesInTheLab(t *testing.T) {
	o := tiny(t)
	o.Rounds, o.Flows, o.Links, o.Slot = 1, 200, 0, 100*time.Millisecond
	r, err := Routes(context.Background(), RoutesOptions{Options: o, Routes: 700, ChurnTime: 500 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Rows)+len(r.Absent) != 6 || r.Load.KernelSeconds <= 0 || r.Load.StartSeconds <= 0 {
		t.Fatalf("%d rows, absent %v, %+v", len(r.Rows), r.Absent, r.Load)
	}
	for _, row := range r.Rows {
		if row.NS.Min <= 0 || row.PPS.Min <= 0 || row.ToPlain.Min <= 0 || (row.ToOther != nil) != strings.HasPrefix(row.Name, pollux) {
			t.Errorf("%+v", row)
		}
	}
	if r.Links != 200 {
		t.Errorf("%d links of 200 flows to as many destinations", r.Links)
	}
	if c := r.Cache; c.Hits == 0 || c.CacheOff == 0 || c.ReverseChecked < c.CacheOff || c.Unattached > 400 {
		t.Errorf("%+v", c)
	}
	// A route change concerns the flows of one stamp alone: with 200 flows over 29,696 stamps, one at a time.
	if c := r.Churn; c.Changes < 10 || c.Churn.Sent == 0 || c.Hits == 0 || c.Looked > uint64(c.Changes) {
		t.Errorf("%+v", c)
	}
	var b bytes.Buffer
	if err := r.Print(&b); err != nil || !strings.Contains(b.String(), "pollux cache") {
		t.Errorf("%v: %s", err, &b)
	}
	for _, n := range []int{0, 3_000_000} {
		if _, err := Routes(context.Background(), RoutesOptions{Options: o, Routes: n}); err == nil {
			t.Errorf("%d routes are taken", n)
		}
	}
}

func TestSoakCountsFrames(t *testing.T) {
	o := tiny(t)
	r, err := Soak(context.Background(), SoakOptions{Options: o, Duration: time.Millisecond, Rate: 5000, NewFlows: 500, Loss: 100})
	if err != nil {
		t.Fatal(err)
	}
	if len(r.Failures) > 0 || len(r.Samples) < 4 || r.Sent == 0 {
		t.Errorf("%d samples, %d sent: %v", len(r.Samples), r.Sent, r.Failures)
	}
	for _, s := range r.Samples {
		if s.Frames == 0 || s.Frames != r.Samples[0].Frames || s.Leaked != 0 || s.RSS == 0 {
			t.Errorf("sample %+v", s)
		}
	}
	for _, bad := range []SoakOptions{{}, {Duration: time.Second, Rate: -1}, {Duration: time.Second, Loss: 101}} {
		if _, err := Soak(context.Background(), bad); err == nil {
			t.Errorf("a soak is begun with %+v", bad)
		}
	}
}

// More is offered than passes, so most of it is lost, in the queue into the gateway; all of that is found and told.
func TestSoakTellsWherePacketsWereLost(t *testing.T) {
	o := tiny(t)
	o.GeneratorPriority = 10
	r, err := Soak(context.Background(), SoakOptions{Options: o, Duration: time.Millisecond, Rate: 1e8, NewFlows: 500, Loss: 1})
	if err != nil {
		t.Fatal(err)
	}
	if r.Lost == 0 || r.Where["queue into the gateway"] == 0 || r.Where.sum() < r.Lost-r.Unnamed || r.Unnamed > r.Sent/1000 {
		t.Errorf("%d of %d lost%v, %d of them unnamed", r.Lost, r.Sent, r.Where, r.Unnamed)
	}
	if len(r.Failures) == 0 || !strings.Contains(r.Failures[0], "were lost (") {
		t.Errorf("the loss is not judged: %q", r.Failures)
	}
}

func TestSoakJudgesLoss(t *testing.T) {
	for _, c := range []struct {
		r    SoakResult
		want string
	}{
		{SoakResult{Sent: 1000, Lost: 10, Allowed: 1, Where: places{"a": 10}}, ""},
		{SoakResult{Sent: 1000, Lost: 11, Allowed: 1, Where: places{"b": 1, "a": 10}}, "11 of 1000 packets, 1.100 %, were lost (a 10, b 1); allowed: 1 %"},
		{SoakResult{Sent: 1000, Lost: 5, Unnamed: 1, Allowed: 1}, "1 of the 5 lost packets were counted by nobody"},
		{SoakResult{Sent: 100_000, Lost: 5, Unnamed: 5, Allowed: 1}, ""}, // still under way
		{SoakResult{}, ""},
	} {
		c.r.judgeLoss()
		if got := strings.Join(c.r.Failures, "; "); got != c.want {
			t.Errorf("%q, want %q", got, c.want)
		}
	}
	if d := (places{"a": 5, "b": 2, "c": 1}).since(places{"a": 3, "b": 2, "c": 4}); len(d) != 1 || d["a"] != 2 {
		t.Errorf("%v", d)
	}
}

func TestSummaryComparesWithinRounds(t *testing.T) {
	r := &Result{Rounds: []Round{
		{1, []Cell{{Name: "a", PPS: 100}, {Name: "nft", PPS: 50}}},
		{2, []Cell{{Name: "nft", PPS: 10}, {Name: "a", PPS: 30}}},
		{3, []Cell{{Name: "nft", PPS: 100}, {Name: "a", PPS: 100}}},
	}}
	s := r.summarise("a")
	if s.PPS.Median != 100 || s.RatioToNFT.Median != 2 || s.RatioToNFT.Min != 1 || s.RatioToNFT.Max != 3 {
		t.Errorf("%+v", s)
	}
}

func TestDoubtIsCastOnAnIdleGateway(t *testing.T) {
	r := &Result{Rounds: []Round{{1, []Cell{{Name: "nft", PPS: 50, Busy: 0.4, HalfReached: 0.5}, {Name: "a", PPS: 90, Busy: 0.99, HalfReached: 1}}}}}
	if d := doubts(r.summarise("nft")); len(d) != 2 {
		t.Errorf("an idle gateway: %q", d)
	}
	if d := doubts(r.summarise("a")); len(d) != 0 {
		t.Errorf("a busy gateway: %q", d)
	}
}
