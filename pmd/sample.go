package pmd

import (
	"cmp"
	"math"
	"slices"

	"pollux/internal/clock"
	"pollux/internal/packet"
	"pollux/lport"
	"pollux/nat"
	"pollux/rings"
	"pollux/rtcache"
)

// Sample is all that the gateway counts, as of one moment or nearly so, for whoever exports numbers.
type Sample struct {
	Workers  []WorkerSample // one a worker, in order
	Ports    []PortSample   // in config order
	Drops    []DropStats    // every reason
	Pool     []PoolSample   // by alias address and row
	Routes   rtcache.Stats
	LinksMax int // limits.links
	RingSize int // descriptors in each ring of a socket
	RTCache  bool
	Draining bool
}

// WorkerSample is one worker's part.
type WorkerSample struct {
	WorkerStats
	Made  uint64                 // frames sent that are pollux's own: ICMP errors, fragments, ARP
	NAT   nat.Counters           // Links and Hosts are the WorkerStats' too
	Space lport.Stats            // without Rows
	Owned [lport.Rows]int        // owner bytes that are this worker's, by row
	Rings []rings.Frames         // frames in the rings of its socket on each port
	Gaps  [gapBuckets + 1]uint64 // polls by the time since the one before: [0] less than 1 us, [i] less than 2^i us
}

// PortSample is one netdev's part.
type PortSample struct {
	PortStats
	XDPDecisions [rings.Causes]uint64 // what the XDP program did with frames that came in
}

// PoolSample is the use of one alias address's ports of one kind, over the configured port range.
type PoolSample struct {
	Alias packet.Addr
	Row   lport.Row // RowTCP, RowUDP or RowICMP
	Ports int       // that links may have: neither the kernel's nor a redirect's
	Used  int       // by links
	Free  int       // nobody's; what is neither used nor free is some worker's, for its next links
}

// rowSlice is how many rows of alias addresses a worker reports between two bursts.
const rowSlice = 64

// Sample reads everything once. Workers answer by their mailboxes, in slices between bursts; a worker that has ended gives
// its last state, without the use of the pool.
func (g *Gateway) Sample() Sample {
	s := Sample{Drops: g.dropCounts(), Routes: g.table.Stats(), LinksMax: g.o.Limits.Links, RingSize: g.o.RingSize, RTCache: g.RTCache(), Draining: g.Draining()}
	var in []insideStats
	used := map[poolKey]int{}
	for _, w := range g.workers {
		l := g.look(w)
		in = append(in, l)
		k := WorkerSample{WorkerStats: g.stats(w, l), Made: w.worker.pub.made.Load(), NAT: l.nat, Space: l.ports, Rings: l.rings}
		k.fillGaps()
		for _, r := range w.rows() {
			used[poolKey{r.Alias, r.Row}] += r.Used
			k.Owned[r.Row] += r.Owned
		}
		s.Workers = append(s.Workers, k)
	}
	for i, p := range g.portStats(in) {
		s.Ports = append(s.Ports, PortSample{PortStats: p, XDPDecisions: g.decisions(i)})
	}
	s.Pool = g.pool(used)
	return s
}

type poolKey struct {
	alias packet.Addr
	row   lport.Row
}

// fillGaps makes the histogram of all polls out of that of the long gaps.
func (k *WorkerSample) fillGaps() {
	k.Gaps[0] = k.Polls
	for i, n := range k.PollGapsUS {
		k.Gaps[i+1] = n
		k.Gaps[0] -= min(n, k.Gaps[0])
	}
}

// rows asks a worker for its rows of alias addresses.
func (w *gatewayWorker) rows() []lport.RowStats {
	list := make([]lport.RowStats, 0, rowSlice)
	for cursor := 0; ; {
		err := w.loop.Do(func(clock.Tick) bool {
			cursor = w.shard.Ports().Rows(cursor, rowSlice, func(r lport.RowStats) { list = append(list, r) })
			return true
		})
		if err != nil || cursor == 0 {
			return list
		}
		list = slices.Grow(list, rowSlice) // not on the worker's time
	}
}

// decisions reads what a port's XDP program counted.
func (g *Gateway) decisions(port int) (n [rings.Causes]uint64) {
	g.life.RLock()
	defer g.life.RUnlock()
	if g.gone {
		return n
	}
	if all, err := g.ports[port].program.Counters(); err == nil {
		n = all
	}
	return n
}

// pool counts the owner bytes of the pool's addresses.
func (g *Gateway) pool(used map[poolKey]int) (list []PoolSample) {
	w := &g.world
	w.mu.Lock()
	pool, span := slices.Clone(w.current.Alias), w.current.PortRange
	w.mu.Unlock()
	slices.SortFunc(pool, cmp.Compare)
	g.life.RLock()
	defer g.life.RUnlock()
	if g.gone {
		return nil
	}
	for _, a := range slices.Compact(pool) {
		for row := lport.RowTCP; row <= lport.RowICMP; row++ {
			c := g.owners.Census(a, row, span.Low, span.High)
			list = append(list, PoolSample{Alias: a, Row: row, Ports: c.Free + c.Owned, Used: used[poolKey{a, row}], Free: c.Free})
		}
	}
	return list
}

// GapBound returns the upper bound of bucket i of Gaps, in seconds; the last one has none.
func GapBound(i int) float64 {
	if i >= gapBuckets {
		return math.Inf(1)
	}
	return math.Ldexp(1e-6, i)
}
