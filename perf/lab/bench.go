package lab

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"time"

	"pollux/internal/cpu"
	"pollux/perf"
)

// Column is one thing measured.
type Column string

// Columns, in the order of the report.
const (
	PPS          Column = "pps"            // 64 bytes, the flows of Options.Flows
	PPSMany      Column = "pps_many"       // 64 bytes, the flows of Options.ManyFlows
	IMIX         Column = "imix"           // packets per second
	NewFlows     Column = "new_flows"      // flows per second, every packet a flow
	NewFlowsHeld Column = "new_flows_held" // the same when the gateway holds as many sessions as three times as long gave
	TCP1         Column = "tcp_1"          // bit/s, one stream
	TCP8         Column = "tcp_8"          // bit/s, eight streams
	RTTIdle      Column = "rtt_idle"       // ns, at 1000 packets/s
	RTTHalf      Column = "rtt_half"       // ns, at half of the peer's own pps of the round
)

// ColumnNames lists all of them.
func ColumnNames() []Column {
	return []Column{PPS, PPSMany, IMIX, NewFlows, NewFlowsHeld, TCP1, TCP8, RTTIdle, RTTHalf}
}

// Options says what to compare and how long.
type Options struct {
	Binary            string   // pollux itself, for the peers that are processes
	Peers             []string // of PeerNames; empty: all
	Columns           []Column // empty: all
	Rounds            int
	Slot              time.Duration // of one measurement
	WarmUp            time.Duration // before it, not counted
	NewFlowsSlot      time.Duration // short: every packet takes memory
	Flows             int
	ManyFlows         int
	Links             int // limits.links of pollux
	GeneratorCore     int // -1: the first allowed one
	GatewayCore       int // -1: the last allowed one
	GeneratorPriority int // FIFO; 0: ordinary. On a busy machine an ordinary generator may be too slow, see Result.Doubts
	Progress          io.Writer
}

// Defaults fills in what is zero.
func (o *Options) Defaults() error {
	if len(o.Peers) == 0 {
		o.Peers = PeerNames()
	}
	if len(o.Columns) == 0 {
		o.Columns = ColumnNames()
	}
	for _, n := range o.Peers {
		if !slices.Contains(PeerNames(), n) {
			return fmt.Errorf("no peer %q; there are: %s", n, strings.Join(PeerNames(), ", "))
		}
	}
	for _, c := range o.Columns {
		if !slices.Contains(ColumnNames(), c) {
			return fmt.Errorf("no column %q; there are: %v", c, ColumnNames())
		}
	}
	setDefault(&o.Rounds, 5)
	setDefault(&o.Slot, 700*time.Millisecond)
	setDefault(&o.WarmUp, 200*time.Millisecond)
	setDefault(&o.NewFlowsSlot, 200*time.Millisecond)
	setDefault(&o.Flows, 1000)
	setDefault(&o.ManyFlows, 50000)
	setDefault(&o.Links, 4_000_000)
	if o.Rounds < 1 || o.Slot < time.Millisecond || o.Flows < 1 || o.ManyFlows < 1 || o.ManyFlows > 1<<20 || o.Flows > 1<<20 {
		return errors.New("rounds, slot and flows must be positive, flows at most 1048576")
	}
	allowed, err := cpu.Allowed()
	if err != nil {
		return err
	}
	if o.GeneratorCore < 0 {
		o.GeneratorCore = allowed[0]
	}
	if o.GatewayCore < 0 {
		o.GatewayCore = allowed[len(allowed)-1]
	}
	if o.GeneratorCore == o.GatewayCore {
		return fmt.Errorf("generator and gateway need a core each; core %d is all there is", o.GeneratorCore)
	}
	for _, c := range []int{o.GeneratorCore, o.GatewayCore} {
		if !slices.Contains(allowed, c) {
			return fmt.Errorf("core %d is not to be had: %v are allowed", c, allowed)
		}
	}
	if o.Progress == nil {
		o.Progress = io.Discard
	}
	return nil
}

func setDefault[T comparable](v *T, d T) {
	var zero T
	if *v == zero {
		*v = d
	}
}

// RTT is a distribution of round trips in nanoseconds.
type RTT struct {
	P50  int64    `json:"p50"`
	P99  int64    `json:"p99"`
	Max  int64    `json:"max"`
	N    uint64   `json:"n"`
	Lost uint64   `json:"lost"`
	cdf  []pointF // for the plot
}

// Cell is one peer's figures of one round. What was not measured is zero.
type Cell struct {
	Name         string  `json:"name"`
	PPS          float64 `json:"pps,omitempty"`
	PPSMany      float64 `json:"pps_many,omitempty"`
	IMIX         float64 `json:"imix_pps,omitempty"`
	NewFlows     float64 `json:"new_flows,omitempty"`
	NewFlowsHeld float64 `json:"new_flows_held,omitempty"`
	TCP1         float64 `json:"tcp_1_bps,omitempty"`
	TCP8         float64 `json:"tcp_8_bps,omitempty"`
	Idle         *RTT    `json:"rtt_idle_ns,omitempty"`
	Half         *RTT    `json:"rtt_half_ns,omitempty"`
	CPUFull      float64 `json:"cpu_s_per_mpkt_full,omitempty"` // of the gateway's threads, at 64 bytes and full load
	CPUHalf      float64 `json:"cpu_s_per_mpkt_half,omitempty"`
	SessionBytes float64 `json:"session_bytes,omitempty"`
	Offered      float64 `json:"offered_pps,omitempty"`       // by the generator, at 64 bytes
	Busy         float64 `json:"gateway_busy,omitempty"`      // part of a core, at 64 bytes and full load
	HalfReached  float64 `json:"half_load_reached,omitempty"` // part of the rate of half load that the generator came to
}

// Round is one turn through all peers.
type Round struct {
	Round int    `json:"round"`
	Peers []Cell `json:"peers"`
}

// Summary is one peer over all rounds. Ratios are to nft in the same round.
type Summary struct {
	Name        string               `json:"name"`
	What        string               `json:"what"`
	PPS         perf.Stat            `json:"pps"`
	RatioToNFT  perf.Stat            `json:"ratio_to_nft"`
	Columns     map[string]perf.Stat `json:"columns"`
	RatiosToNFT map[string]perf.Stat `json:"ratios_to_nft"`
}

// Result is a whole comparison.
type Result struct {
	perf.Report
	Setup  []string  `json:"setup"` // placement, offloads, warm-up: what one must know to repeat it
	Absent []string  `json:"absent,omitempty"`
	Doubts []string  `json:"doubts,omitempty"` // figures that are not what their names say, and why
	Rounds []Round   `json:"rounds"`
	Peers  []Summary `json:"peers"`
}

// missing says why a peer can't run here; empty when it can.
func missing(name string) string {
	command := map[string]string{"nft": "nft", "iptables": iptables()}[name]
	if command == "" {
		return ""
	}
	if _, err := exec.LookPath(command); err != nil {
		return fmt.Sprintf("%s: the command %s is not installed", name, command)
	}
	return ""
}

// Run compares. It confines the whole process to the generator's core for good. A cancelled ctx ends it after the
// measurement that is under way.
func Run(ctx context.Context, o Options) (*Result, error) {
	if err := o.Defaults(); err != nil {
		return nil, err
	}
	if err := confineSelf(o.GeneratorCore); err != nil {
		return nil, err
	}
	runtime.GOMAXPROCS(max(runtime.GOMAXPROCS(0), 4))
	r := &Result{Report: perf.NewReport(), Setup: o.setup()}
	var peers []*peer
	defer func() {
		for _, p := range peers {
			_ = p.close()
		}
	}()
	for _, name := range o.Peers {
		if why := missing(name); why != "" {
			r.Absent = append(r.Absent, why)
			fmt.Fprintln(o.Progress, why)
			continue
		}
		fmt.Fprintf(o.Progress, "setting up %s\n", name)
		p, err := newPeer(name, &o)
		if err != nil {
			return nil, err
		}
		peers = append(peers, p)
	}
	for _, p := range peers {
		if err := p.firstWarmUp(&o); err != nil {
			return nil, fmt.Errorf("%s: %w", p.name, err)
		}
	}
	for i := range o.Rounds {
		round := Round{Round: i + 1}
		for k := range peers {
			p := peers[(i+k)%len(peers)] // nobody is always the first
			if err := ctx.Err(); err != nil {
				return nil, err
			}
			cell, err := p.measure(&o)
			if err != nil {
				return nil, fmt.Errorf("%s, round %d: %w", p.name, i+1, err)
			}
			round.Peers = append(round.Peers, cell)
			fmt.Fprintf(o.Progress, "round %d of %d: %s\n", i+1, o.Rounds, cell.line())
		}
		r.Rounds = append(r.Rounds, round)
	}
	for _, p := range peers {
		s := r.summarise(p.name)
		r.Peers = append(r.Peers, s)
		r.Doubts = append(r.Doubts, doubts(s)...)
	}
	return r, nil
}

// Limits of trust: a gateway that was idle for longer was not at full load, a generator that sent less did not make
// half.
const (
	busyMin    = 0.9
	reachedMin = 0.9
)

// doubts says which of a peer's figures are not what they should be.
func doubts(s Summary) (list []string) {
	if b, ok := s.Columns["gateway_busy"]; ok && b.Median < busyMin {
		list = append(list, fmt.Sprintf("%s: at \"full load\" the gateway's threads used %.0f %% of their core, so this may not be all that it can: either it was not offered enough all the time, or the kernel books some of its work elsewhere. Take packet rates and their ratios as lower bounds; CPU per packet counts what was used", s.Name, 100*b.Median))
	}
	if h, ok := s.Columns["half_load_reached"]; ok && h.Median < reachedMin {
		list = append(list, fmt.Sprintf("%s: the generator reached %.0f %% of half load", s.Name, 100*h.Median))
	}
	return list
}

// setup tells what holds for all peers.
func (o *Options) setup() []string {
	return []string{
		fmt.Sprintf("core %d: generator (%s) and end hosts; core %d: everything of the gateway, NAPI in threads (FIFO %d), AF_XDP workers (FIFO %d, asleep when idle)",
			o.GeneratorCore, priorityName(o.GeneratorPriority), o.GatewayCore, napiPriority, workerPriority),
		"veth pairs, one queue, MTU 1500; offloads: transmit checksum and segmentation off and GRO off at the end hosts, GRO on at the gateway's devices; copy mode (a veth has no zero-copy)",
		fmt.Sprintf("%d rounds, peers in turn, a different one first each time; %v of warm-up and %v of measurement each, new flows %v; before the first round a second at a low rate", o.Rounds, o.WarmUp, o.Slot, o.NewFlowsSlot),
		fmt.Sprintf("UDP, generator in the kernel (live frames), as fast as it can; sink at tc ingress of the outside host; %d flows, many flows: %d", o.Flows, o.ManyFlows),
		fmt.Sprintf("pollux: mapping of UDP endpoint-dependent, one alias address, room for %d links, their memory taken at the start; new flows: every packet from a new source endpoint or to a new port, into an empty table, and into one that holds what three times as long gave (new flows held)", o.Links),
		throttle(),
	}
}

func priorityName(p int) string {
	if p == 0 {
		return "ordinary priority"
	}
	return fmt.Sprintf("FIFO %d", p)
}

func throttle() string {
	if cpu.Throttled() {
		b, _ := os.ReadFile("/proc/sys/kernel/sched_rt_runtime_us")
		return "real-time throttling is on: sched_rt_runtime_us = " + strings.TrimSpace(string(b))
	}
	return "real-time throttling is off"
}

// values are a cell's figures by column.
func (c *Cell) values() map[string]float64 {
	v := map[string]float64{
		"pps": c.PPS, "pps_many": c.PPSMany, "imix_pps": c.IMIX, "new_flows": c.NewFlows, "new_flows_held": c.NewFlowsHeld, "tcp_1_bps": c.TCP1, "tcp_8_bps": c.TCP8,
		"cpu_s_per_mpkt_full": c.CPUFull, "cpu_s_per_mpkt_half": c.CPUHalf, "session_bytes": c.SessionBytes,
		"gateway_busy": c.Busy, "half_load_reached": c.HalfReached,
	}
	for name, r := range map[string]*RTT{"rtt_idle": c.Idle, "rtt_half": c.Half} {
		if r != nil {
			v[name+"_p50_ns"], v[name+"_p99_ns"] = float64(r.P50), float64(r.P99)
		}
	}
	return v
}

// summarise puts a peer's rounds together.
func (r *Result) summarise(name string) Summary {
	s := Summary{Name: name, What: describe(name), Columns: map[string]perf.Stat{}, RatiosToNFT: map[string]perf.Stat{}}
	values, ratios := map[string][]float64{}, map[string][]float64{}
	for _, round := range r.Rounds {
		var mine, nft map[string]float64
		for i := range round.Peers {
			switch c := &round.Peers[i]; {
			case c.Name == name:
				mine = c.values()
				if name == "nft" {
					nft = mine
				}
			case c.Name == "nft":
				nft = c.values()
			}
		}
		for k, v := range mine {
			if v == 0 {
				continue
			}
			values[k] = append(values[k], v)
			if nft[k] != 0 {
				ratios[k] = append(ratios[k], v/nft[k])
			}
		}
	}
	for k := range values {
		s.Columns[k] = perf.NewStat(values[k])
	}
	for k := range ratios {
		s.RatiosToNFT[k] = perf.NewStat(ratios[k])
	}
	s.PPS, s.RatioToNFT = s.Columns["pps"], s.RatiosToNFT["pps"]
	return s
}

func (c *Cell) line() string {
	var b strings.Builder
	fmt.Fprintf(&b, "%-8s", c.Name)
	for _, k := range columns {
		if v := c.values()[k.key]; v != 0 {
			fmt.Fprintf(&b, "  %s %s", k.short, k.show(v))
		}
	}
	return b.String()
}
