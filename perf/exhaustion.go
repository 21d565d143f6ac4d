package perf

import (
	"fmt"
	"io"
	"text/tabwriter"

	"pollux/internal/packet"
	"pollux/internal/reason"
	"pollux/lport"
	"pollux/nat"
	"pollux/pmd"
)

// ExhaustionOptions asks what it costs to find a port while those toward one peer run out.
type ExhaustionOptions struct {
	Low, High uint16 // ports that may be given
	Searches  int    // timed in one repetition
	Repeat    int
}

// ExhaustionDefaults takes the range of the configuration's default.
func ExhaustionDefaults() ExhaustionOptions {
	r := nat.DefaultRules().PortRange
	return ExhaustionOptions{Low: r.Low, High: r.High, Searches: 1 << 16, Repeat: 7}
}

// Exhaustion is the experiment of the third seed. Many hosts open TCP connections from one local port to one peer, until
// the last port of one alias address is taken.
type Exhaustion struct {
	Report
	Points    []ExhaustionPoint `json:"points"`
	Allocated int               `json:"allocated"` // connections that got a port
	Capacity  int               `json:"capacity"`  // ports in range
	Caches    int               `json:"caches"`    // alive at the end
	Refused   Stat              `json:"refused_ns"`
	Steps     []uint64          `json:"steps"` // of all searches: bucket i counts those of less than 2^i steps not in bucket i-1
	Aliases   int               `json:"alias_addresses"`
	Mapping   string            `json:"mapping"`
}

// ExhaustionPoint is the state when so many ports are in use toward the peer: 100 is the search for the last one.
type ExhaustionPoint struct {
	Percent  float64 `json:"used_percent"`
	NS       float64 `json:"ns"` // to find a port and give it back, with the peer's cache; the port carries other links
	Spread   Stat    `json:"with_cache_ns"`
	Without  Stat    `json:"without_cache_ns"` // the same when there is no cache to be had
	Claimed  Stat    `json:"claimed_ns"`       // with the cache, when the port is nobody's and has to be claimed
	Flow     float64 `json:"flow_ns"`          // a whole new connection, on the way from the point before to this one
	P50      int     `json:"steps_p50"`        // words looked at and ports tried in the searches on that way, at most
	P99      int     `json:"steps_p99"`
	Failures int     `json:"failures"` // connections refused on that way, although a port was free
}

// exhaustionLevels are in percent of the ports.
var exhaustionLevels = []float64{50, 90, 99, 99.9, 100}

// exhaustionPeer is the one server.
var exhaustionPeer = endpoint{firstOther, 443}

// MeasureExhaustion runs the scenario.
func MeasureExhaustion(o ExhaustionOptions) (*Exhaustion, error) {
	if o.Low == 0 || o.Low > o.High || int(o.High)-int(o.Low) < 15 {
		return nil, &OptionError{"ports", fmt.Sprintf("%d-%d", o.Low, o.High), "a range of 16 ports or more"}
	}
	r := &Exhaustion{Report: NewReport(), Capacity: int(o.High) - int(o.Low) + 1, Aliases: 1, Mapping: "endpoint-dependent"}
	return r, onThread(func() error {
		if err := r.fill(o); err != nil {
			return err
		}
		for i := range r.Points {
			if err := r.Points[i].search(o); err != nil {
				return err
			}
		}
		return nil
	})
}

// fill opens connections through the shard until none is let through any more.
func (r *Exhaustion) fill(o ExhaustionOptions) error {
	w, err := newWorld(worldOptions{tcp: true, limits: nat.Limits{Links: 2 * r.Capacity}, rules: func(n *nat.Rules) {
		n.PortRange = nat.PortRange{Low: o.Low, High: o.High}
	}})
	if err != nil {
		return err
	}
	defer w.close()
	w.writer.flags = packet.TCPSyn
	host := packet.Addr(0)
	open := func(n int) { // each of another host, all from the same local port
		for i := 0; i < n; i += pmd.BurstFrames {
			b := w.burst[:min(pmd.BurstFrames, n-i)]
			for k := range b {
				w.fill(&b[k], nat.Inside, endpoint{firstHost + 1 + host, o.Low}, exhaustionPeer)
				host++
			}
			w.translate(b)
			for k := range b {
				w.frames.give(b[k].Frame)
			}
		}
	}
	open(r.Capacity) // once, so that the kernel's clearing of fresh pages is not in the figures
	if err := w.expire(); err != nil {
		return err
	}
	before, begin := 0, w.shard.Ports().Stats().Steps
	steps := begin
	for _, percent := range exhaustionLevels {
		upTo := int(percent / 100 * float64(r.Capacity))
		p := ExhaustionPoint{Percent: percent}
		links, refused := w.shard.Counters().Links, w.shard.Counters().Refused[reason.NoPort]
		p.Flow = nanoseconds(max(upTo-before, 1), func() { open(upTo - before) })
		r.Allocated += int(w.shard.Counters().Links - links)
		p.Failures = int(w.shard.Counters().Refused[reason.NoPort] - refused)
		now := w.shard.Ports().Stats().Steps
		p.P50, p.P99 = percentiles(now, steps)
		steps, before = now, upTo
		r.Points = append(r.Points, p)
	}
	for i := range steps {
		r.Steps = append(r.Steps, steps[i]-begin[i])
	}
	r.Caches = w.shard.Ports().Stats().Caches
	var refused []float64
	for range o.Repeat {
		count := w.shard.Counters().Refused[reason.NoPort]
		refused = append(refused, nanoseconds(1<<14, func() { open(1 << 14) }))
		if got := w.shard.Counters().Refused[reason.NoPort] - count; got != 1<<14 {
			return fmt.Errorf("perf: %d of %d connections were refused when no port was left", got, 1<<14)
		}
	}
	r.Refused = NewStat(refused)
	return nil
}

// percentiles returns the upper ends of the buckets in which the median and the 99th percentile of new searches lie.
func percentiles(now, before [lport.StepBuckets]uint64) (p50, p99 int) {
	total := uint64(0)
	for i := range now {
		total += now[i] - before[i]
	}
	seen := uint64(0)
	for i := range now {
		was := seen
		seen += now[i] - before[i]
		if was*2 < total && seen*2 >= total {
			p50 = 1<<i - 1
		}
		if was*100 < total*99 && seen*100 >= total*99 {
			p99 = 1<<i - 1
		}
	}
	return p50, p99
}

// search times a port space alone, at the level of use of the point.
func (p *ExhaustionPoint) search(o ExhaustionOptions) error {
	for _, how := range []struct {
		into          *Stat
		cache, shared bool
	}{{&p.Spread, true, true}, {&p.Without, false, true}, {&p.Claimed, true, false}} {
		s, err := newPortUse(o, p.Percent, how.cache, how.shared)
		if err != nil {
			return err
		}
		searches := o.Searches
		if !how.cache {
			searches = max(searches/64, 64) // they take long
		}
		var ns []float64
		for range o.Repeat {
			var failed error
			ns = append(ns, nanoseconds(searches, func() {
				for range searches {
					port, err := s.space.Toward(&s.request, s.peer)
					if err != nil {
						failed = fmt.Errorf("perf: a port is free at %v %%: %w", p.Percent, err)
						return
					}
					s.space.Release(s.request.Alias, s.request.Row, port, s.request.Host, s.peer, 0)
				}
			}))
			if failed != nil {
				err = failed
			}
		}
		s.space.Close()
		s.owners.Close()
		if err != nil {
			return err
		}
		*how.into = NewStat(ns)
	}
	p.NS = p.Spread.Median
	return nil
}

// portUse is a port space without a shard: what a full shard would know of links is an array here.
type portUse struct {
	space   *lport.Space
	owners  *lport.Owners
	peer    lport.Peer
	request lport.Request
	used    [65536]bool // toward peer
}

// newPortUse fills a space toward one peer. Without cache the only one there is belongs to another peer that will not part
// with it. With shared each port is in use toward other peers as well.
func newPortUse(o ExhaustionOptions, percent float64, cache, shared bool) (u *portUse, err error) {
	u = &portUse{owners: lport.NewOwners(nil), request: lport.Request{Alias: aliasFirst, Row: lport.RowTCP, Host: firstHost}}
	defer func() {
		if err != nil {
			u.owners.Close()
		}
	}()
	if err = u.owners.Add(aliasFirst); err != nil {
		return nil, err
	}
	u.space, err = lport.New(lport.Options{Workers: 1, Owners: u.owners, Low: o.Low, High: o.High, Caches: 1, Seed: [32]byte{5},
		InUse: func(_ packet.Addr, _ lport.Row, port uint16, p lport.Peer) bool { return p == u.peer && u.used[port] }})
	if err != nil {
		return nil, err
	}
	if !cache {
		u.peer = lport.Peer{Addr: firstOther + 1, Port: 1}
		for i := range u.used {
			u.used[i] = true
		}
		if _, err := u.space.Toward(&u.request, u.peer); err == nil {
			return nil, fmt.Errorf("perf: a port was given that is in use")
		}
		clear(u.used[:])
	}
	u.peer = lport.Peer{Addr: exhaustionPeer.addr, Port: exhaustionPeer.port}
	capacity := int(o.High) - int(o.Low) + 1
	for port := int(o.Low); shared && port <= int(o.High); port++ {
		if !u.space.Fixed(aliasFirst, lport.RowTCP, uint16(port), 0) {
			return nil, fmt.Errorf("perf: port %d can't be taken", port)
		}
	}
	for range min(int(percent/100*float64(capacity)), capacity-1) {
		port, err := u.space.Toward(&u.request, u.peer)
		if err != nil {
			return nil, fmt.Errorf("perf: a port is free: %w", err)
		}
		u.used[port] = true
	}
	return u, nil
}

// Print writes the report for people.
func (r *Exhaustion) Print(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(t, "TCP from many hosts to one peer, %s mapping, %d alias address, %d ports\n\n", r.Mapping, r.Aliases, r.Capacity)
	fmt.Fprintln(t, "in use\twith cache\tno cache\tclaimed\tnew connection\tsteps p50\tp99\trefused\tns\t")
	for _, p := range r.Points {
		fmt.Fprintf(t, "%.1f %%\t%.1f\t%.0f\t%.0f\t%.0f\t%d\t%d\t%d\t\t\n", p.Percent, p.Spread.Median, p.Without.Median, p.Claimed.Median, p.Flow, p.P50, p.P99, p.Failures)
	}
	fmt.Fprintf(t, "\n%d of %d ports were given, %d cache(s) alive. One connection more is refused in %.0f ns.\n", r.Allocated, r.Capacity, r.Caches, r.Refused.Median)
	fmt.Fprintf(t, "Steps of all searches, by powers of two: %v\n\n", r.Steps)
	fmt.Fprintln(t, "\"With cache\", \"no cache\" and \"claimed\" are a search and the return of the port, hot; \"claimed\" ports carry nothing else, so")
	fmt.Fprintln(t, "their owner byte is taken and given back too. 100 % is the search for the last port. A new connection is the whole way:")
	fmt.Fprintln(t, "making the packet, parse, look-up, port, link, rewriting. Steps are words looked at and ports tried in these searches.")
	return t.Flush()
}
