package lab

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"runtime"
	"strconv"
	"strings"
	"time"

	"pollux/internal/control"
	"pollux/perf"
	"pollux/perf/pktgen"
)

// SoakOptions says how long and how hard.
type SoakOptions struct {
	Options                // placement, Links, Progress, Slot: between looks
	Duration time.Duration // must be given
	Rate     float64       // packets per second; 0: a quarter of what passes at full load, at most soakRateMax
	NewFlows float64       // of those, flows per second that give way to new ones
	Loss     float64       // percent of all packets that may be lost
}

// soakRateMax is the rate that a soak chooses at most: on a fast machine it is to last long, not to run hot.
const soakRateMax = 200_000

// Sample is a look at the gateway between two slots of traffic, when nothing is under way.
type Sample struct {
	Seconds float64 `json:"seconds"`
	Traffic string  `json:"traffic"` // of the slot before
	Sent    uint64  `json:"sent"`
	Lost    uint64  `json:"lost"`
	Where   places  `json:"lost_where,omitempty"` // of Lost, by what counted it
	Links   uint64  `json:"links"`
	Frames  uint64  `json:"frames"` // in all places together: must never change
	Leaked  int64   `json:"frames_leaked"`
	Dropped uint64  `json:"dropped"`
	RSS     uint64  `json:"rss_bytes"`
}

// SoakResult is a whole soak. Failures is empty when all went well.
type SoakResult struct {
	perf.Report
	Setup    []string `json:"setup"`
	Rate     float64  `json:"rate_pps"`
	Allowed  float64  `json:"loss_percent_allowed"`
	Samples  []Sample `json:"samples"`
	Sent     uint64   `json:"sent"`
	Lost     uint64   `json:"lost"`
	Where    places   `json:"lost_where"`
	Unnamed  uint64   `json:"lost_unnamed"` // of Lost: counted by nobody
	Failures []string `json:"failures"`
}

// turns is how many slots it takes to have had every kind of traffic; a soak is no shorter.
const turns = 4

// unnamedMax is the part of all packets that may be lost without anybody having counted them: what is still under way when a
// slot is judged.
const unnamedMax = 1e-4

// rssGrowthMax is how much the process may grow after its first slots: a Go heap breathes.
const rssGrowthMax = 64 << 20

// Soak sends mixed traffic through pollux for a bounded time and looks again and again whether every frame is where it
// belongs, links stay within their limit, and memory stays as it is.
func Soak(ctx context.Context, o SoakOptions) (*SoakResult, error) {
	if o.Duration <= 0 {
		return nil, errors.New("a soak needs a duration")
	}
	setDefault(&o.Slot, 2*time.Second)
	setDefault(&o.NewFlows, 5000)
	if o.Rate < 0 || o.Loss < 0 || o.Loss > 100 {
		return nil, fmt.Errorf("a soak at %g packets a second of which %g %% may be lost is not possible", o.Rate, o.Loss)
	}
	setDefault(&o.Links, 1_000_000)
	o.Peers = []string{"pollux"}
	if err := o.Defaults(); err != nil {
		return nil, err
	}
	if err := confineSelf(o.GeneratorCore); err != nil {
		return nil, err
	}
	runtime.GOMAXPROCS(max(runtime.GOMAXPROCS(0), 4))
	r := &SoakResult{Report: perf.NewReport(), Setup: o.setup()[:2], Failures: []string{}, Allowed: o.Loss, Where: places{}}
	p, err := newPeer("pollux", &o.Options)
	if err != nil {
		return nil, err
	}
	err = p.soak(ctx, &o, r)
	if err = errors.Join(err, p.close()); err != nil {
		return nil, err
	}
	return r, nil
}

func (p *peer) soak(ctx context.Context, o *SoakOptions, r *SoakResult) error {
	p.quiet = 300 * time.Millisecond // a packet that is late must not pass for one that nobody counted
	client := control.NewClient(p.net.Socket())
	if err := p.firstWarmUp(&o.Options); err != nil {
		return err
	}
	if o.Rate == 0 {
		m, err := p.run(flows(o.Flows), pktgen.Sizes{64}, 0, max(o.WarmUp, 200*time.Millisecond), 0)
		if err != nil {
			return err
		}
		o.Rate = min(m.pps/4, soakRateMax)
		fmt.Fprintf(o.Progress, "%.0f packets/s pass at full load; the soak sends %.0f\n", m.pps, o.Rate)
	}
	r.Rate = o.Rate
	churn := flows(o.Flows)
	churn.DstPorts = pktgen.PortRange{First: 1024, Count: 60000}
	churn.NewPerS = o.NewFlows
	first, err := p.look(client)
	if err != nil {
		return err
	}
	var rss uint64
	start := time.Now()
	for turn := 0; (turn < turns || time.Since(start) < o.Duration) && ctx.Err() == nil; turn++ {
		s := Sample{}
		before, err := p.losses(client)
		if err != nil {
			return err
		}
		switch turn % turns {
		case 0, 2:
			s.Traffic = "changing flows"
			err = p.soakSlot(churn, pktgen.IMIX, o, 0, &s)
		case 1:
			s.Traffic = "answered"
			err = p.soakSlot(flows(o.Flows), pktgen.Sizes{64}, o, 1, &s)
		case 3:
			s.Traffic = "tcp, 8 streams"
			_, err = p.tcp(8, o.Slot)
		}
		if err != nil {
			return fmt.Errorf("after %v: %w", time.Since(start).Round(time.Second), err)
		}
		if err := p.alive(); err != nil {
			return err
		}
		now, err := p.look(client)
		if err != nil {
			return err
		}
		if s.Lost > 0 {
			after, err := p.losses(client)
			if err != nil {
				return err
			}
			now.Where = after.since(before)
			r.Where.add(now.Where)
			r.Unnamed += s.Lost - min(s.Lost, now.Where.sum())
		}
		now.Seconds, now.Traffic, now.Sent, now.Lost = time.Since(start).Seconds(), s.Traffic, s.Sent, s.Lost
		r.Samples = append(r.Samples, now)
		r.Sent += s.Sent
		r.Lost += s.Lost
		if now.Frames != first.Frames || now.Leaked != 0 {
			r.Failures = append(r.Failures, fmt.Sprintf("at %.0f s: %d frames, %d leaked; there were %d", now.Seconds, now.Frames, now.Leaked, first.Frames))
		}
		if now.Links > uint64(o.Links) {
			r.Failures = append(r.Failures, fmt.Sprintf("at %.0f s: %d links, the limit is %d", now.Seconds, now.Links, o.Links))
		}
		switch {
		case turn == turns-1:
			rss = now.RSS
		case turn >= turns && now.RSS > rss+rssGrowthMax:
			r.Failures = append(r.Failures, fmt.Sprintf("at %.0f s: %d MiB resident, there were %d", now.Seconds, now.RSS>>20, rss>>20))
		}
		fmt.Fprintf(o.Progress, "%.0f s: %s: sent %d, lost %d%s; %d links, %d frames, %d leaked, %d MiB resident\n",
			now.Seconds, now.Traffic, now.Sent, now.Lost, now.Where, now.Links, now.Frames, now.Leaked, now.RSS>>20)
	}
	r.judgeLoss()
	return nil
}

// judgeLoss holds the whole soak against what may be lost. A single slot may lose more: on a machine that does other things as
// well a gateway has to wait now and then for longer than its queues last.
func (r *SoakResult) judgeLoss() {
	if percent := 100 * float64(r.Lost) / float64(max(r.Sent, 1)); percent > r.Allowed {
		r.Failures = append(r.Failures, fmt.Sprintf("%d of %d packets, %.3f %%, were lost%s; allowed: %g %%", r.Lost, r.Sent, percent, r.Where, r.Allowed))
	}
	if float64(r.Unnamed) > unnamedMax*float64(r.Sent) {
		r.Failures = append(r.Failures, fmt.Sprintf("%d of the %d lost packets were counted by nobody", r.Unnamed, r.Lost))
	}
}

func (p *peer) soakSlot(f pktgen.Flows, sizes pktgen.Sizes, o *SoakOptions, back int, s *Sample) error {
	m, err := p.run(f, sizes, o.Rate, o.Slot, back)
	if err != nil {
		return err
	}
	s.Sent, s.Lost = m.sent, m.sent-min(m.sent, m.arrived)
	if back > 0 {
		s.Sent += m.arrived
		s.Lost += m.arrived - min(m.arrived, m.reply.Packets)
	}
	return nil
}

// look asks the gateway for its totals.
func (p *peer) look(c *control.Client) (s Sample, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), commandTime)
	defer cancel()
	workers, err := c.Workers(ctx)
	if err != nil {
		return s, err
	}
	for _, w := range workers {
		s.Links += w.Links
		s.Dropped += w.Dropped
		s.Leaked += w.Leaked
		for _, n := range w.Frames {
			s.Frames += n
		}
	}
	s.RSS, err = resident(p.process.PID())
	return s, err
}

// resident is a process's memory that is there, in bytes.
func resident(pid int) (uint64, error) {
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", pid))
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(string(b)) {
		if rest, ok := strings.CutPrefix(line, "VmRSS:"); ok {
			kb, err := strconv.ParseUint(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(rest), "kB")), 10, 64)
			return kb << 10, err
		}
	}
	return 0, fmt.Errorf("process %d does not tell its memory", pid)
}

// Print writes the result for people.
func (r *SoakResult) Print(w io.Writer) error {
	verdict := "every frame in its place, memory, links and loss within bounds"
	if len(r.Failures) > 0 {
		verdict = "FAILED: " + strings.Join(r.Failures, "; ")
	}
	_, err := fmt.Fprintf(w, "%d slots, %d packets sent at %.0f/s, %d lost (%.4f %%)%s: %s\n", len(r.Samples), r.Sent, r.Rate, r.Lost,
		100*float64(r.Lost)/float64(max(r.Sent, 1)), r.Where, verdict)
	return err
}
