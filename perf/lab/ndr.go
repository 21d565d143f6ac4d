package lab

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"time"

	"pollux/perf"
	"pollux/perf/pktgen"
)

// NDROptions says what to search.
type NDROptions struct {
	Options                // peers, placement; of the rest Links and Progress
	Trial    time.Duration // of one trial
	Percent  float64       // loss that still passes; RFC 2544 says 0
	Step     float64       // the search ends when the bounds are so close, as a part of the upper one
	Sessions int           // that phase 2 runs over
	Both     bool          // phase 2 in both directions: every packet is sent back and must return
	Sizes    pktgen.Sizes
}

// Search is one binary search.
type Search struct {
	PPS    float64 `json:"pps"` // highest rate that passed
	Failed float64 `json:"failed_pps"`
	Trials []Trial `json:"trials"`
}

// Trial is one rate tried.
type Trial struct {
	Rate    float64 `json:"rate"`
	Sent    uint64  `json:"sent"`
	Lost    uint64  `json:"lost"`
	Passed  bool    `json:"passed"`
	Seconds float64 `json:"seconds"`
}

// NDRPeer is one peer's result.
type NDRPeer struct {
	Name          string `json:"name"`
	Establishment Search `json:"establishment"` // phase 1: new sessions per second
	Forwarding    Search `json:"forwarding"`    // phase 2: packets per second over the sessions of phase 1; per direction
}

// NDRResult is a whole search.
type NDRResult struct {
	perf.Report
	Setup    []string  `json:"setup"`
	Sessions int       `json:"sessions"`
	Both     bool      `json:"both_directions"`
	Loss     float64   `json:"loss_percent_allowed"`
	Peers    []NDRPeer `json:"peers"`
}

// NDR searches the highest rates without loss, as RFC 2544 26.1 does for throughput, and RFC 9693 for stateful
// translators: in phase 1 every packet opens a session, in phase 2 packets of the open sessions are forwarded. A search
// halves the interval between a rate that passed and one that did not. It confines the process as Run does.
func NDR(ctx context.Context, o NDROptions) (*NDRResult, error) {
	setDefault(&o.Trial, time.Second)
	setDefault(&o.Step, 0.02)
	setDefault(&o.Sessions, 10_000)
	if len(o.Peers) == 0 {
		o.Peers = []string{"pollux"}
	}
	if len(o.Sizes) == 0 {
		o.Sizes = pktgen.Sizes{64}
	}
	if o.Trial < 10*time.Millisecond || o.Step <= 0 || o.Step >= 1 || o.Percent < 0 || o.Sessions < 1 || o.Sessions > 1<<20 {
		return nil, errors.New("trial, step (between 0 and 1), loss and sessions (to 1048576) must be sensible")
	}
	if err := o.Defaults(); err != nil {
		return nil, err
	}
	if err := confineSelf(o.GeneratorCore); err != nil {
		return nil, err
	}
	runtime.GOMAXPROCS(max(runtime.GOMAXPROCS(0), 4))
	r := &NDRResult{Report: perf.NewReport(), Sessions: o.Sessions, Both: o.Both, Loss: o.Percent}
	r.Setup = append(o.setup()[:2], fmt.Sprintf("trials of %v, search down to %.1f %%", o.Trial, 100*o.Step))
	for _, name := range o.Peers {
		if why := missing(name); why != "" {
			return nil, errors.New(why)
		}
		p, err := newPeer(name, &o.Options)
		if err != nil {
			return nil, err
		}
		res, err := p.ndr(ctx, &o)
		if err = errors.Join(err, p.close()); err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		r.Peers = append(r.Peers, res)
	}
	return r, nil
}

func (p *peer) ndr(ctx context.Context, o *NDROptions) (res NDRPeer, err error) {
	res.Name = p.name
	if err := p.firstWarmUp(&o.Options); err != nil {
		return res, err
	}
	opening := func(rate float64) (sent, arrived uint64, err error) {
		if err := p.forget(); err != nil {
			return 0, 0, err
		}
		m, err := p.run(p.freshFlows(), pktgen.Sizes{64}, rate, min(o.Trial, newFlowsTime(rate)), 0)
		return m.sent, m.arrived, err
	}
	if res.Establishment, err = p.search(ctx, o, "new sessions", opening); err != nil {
		return res, err
	}
	if err := p.forget(); err != nil {
		return res, err
	}
	f := flows(o.Sessions)
	// Open every session, at a rate that phase 1 found to be safe.
	rate := max(res.Establishment.PPS/2, 1000)
	if _, err := p.run(f, pktgen.Sizes{64}, rate, time.Duration(1.2*float64(o.Sessions)/rate*float64(time.Second)), 0); err != nil {
		return res, err
	}
	forwarding := func(rate float64) (sent, arrived uint64, err error) {
		back := 0
		if o.Both {
			back = 1
		}
		m, err := p.run(f, o.Sizes, rate, o.Trial, back)
		if o.Both {
			return m.sent, m.reply.Packets, err
		}
		return m.sent, m.arrived, err
	}
	res.Forwarding, err = p.search(ctx, o, "forwarding", forwarding)
	return res, err
}

// newFlowsTime keeps a trial of new flows within what a session table of ordinary size holds.
func newFlowsTime(rate float64) time.Duration {
	if rate <= 0 {
		return 200 * time.Millisecond
	}
	return time.Duration(sessionFill / rate * float64(time.Second))
}

// search halves the interval between nothing and what arrives at full load.
func (p *peer) search(ctx context.Context, o *NDROptions, what string, try func(rate float64) (sent, arrived uint64, err error)) (s Search, err error) {
	attempt := func(rate float64) (t Trial, arrived uint64, err error) {
		if err := errors.Join(ctx.Err(), p.alive()); err != nil {
			return t, 0, err
		}
		start := time.Now()
		sent, arrived, err := try(rate)
		t = Trial{Rate: rate, Sent: sent, Lost: sent - min(sent, arrived), Seconds: time.Since(start).Seconds()}
		t.Passed = float64(t.Lost) <= o.Percent/100*float64(sent)
		return t, arrived, err
	}
	// At full load more is offered than can pass, so what arrives is the most that may be found.
	top, arrived, err := attempt(0)
	if err != nil {
		return s, err
	}
	if arrived == 0 {
		return s, fmt.Errorf("%s: nothing arrived at full load, so there is nothing to search below", what)
	}
	low, high := 0.0, float64(arrived)/top.Seconds*1.5 // top.Seconds includes setting up and draining
	for high-low > o.Step*high {
		rate := (low + high) / 2
		t, _, err := attempt(rate)
		if err != nil {
			return s, err
		}
		s.Trials = append(s.Trials, t)
		fmt.Fprintf(o.Progress, "%s, %s: %.0f/s: %d of %d lost\n", p.name, what, rate, t.Lost, t.Sent)
		if t.Passed {
			low = rate
		} else {
			high = rate
		}
		if high < 1000 {
			break // nothing passes here
		}
	}
	s.PPS, s.Failed = low, high
	return s, nil
}

// Print writes the result for people.
func (r *NDRResult) Print(w io.Writer) error {
	for _, p := range r.Peers {
		direction := "one direction"
		if r.Both {
			direction = "each of two directions"
		}
		if _, err := fmt.Fprintf(w, "%s: without loss (%g %% allowed) %.0f new sessions/s (%d trials), then %.0f packets/s in %s over %d sessions (%d trials)\n",
			p.Name, r.Loss, p.Establishment.PPS, len(p.Establishment.Trials), p.Forwarding.PPS, direction, r.Sessions, len(p.Forwarding.Trials)); err != nil {
			return err
		}
	}
	return nil
}
