package perf

import (
	"errors"
	"fmt"
	"net/netip"

	"pollux/internal/clock"
	"pollux/internal/packet"
	"pollux/nat"
	"pollux/pmd"
	"pollux/rings"
	"pollux/rtcache"
)

const (
	inPort  = 0
	outPort = 1
)

// world is a gateway in memory: one worker with all its seven stages, a shard, routes, and two ports on which packets appear
// from nowhere and leave into nothing.
type world struct {
	umem   *rings.UMEM
	table  *rtcache.Table
	view   *rtcache.View // the worker's
	shard  *nat.Shard
	worker *pmd.Worker
	ports  [2]*feed
	writer writer
	flows  flows
	frames frames
	now    clock.Tick
	polls  uint32
	rxq    [pmd.BurstFrames]rings.Frame
	burst  [pmd.BurstFrames]nat.Packet
}

type worldOptions struct {
	limits nat.Limits
	rules  func(*nat.Rules) // changes the defaults
	routes []rtcache.StaticRoute
	flows  flows
	tcp    bool

	populate bool // take the memory for links first, as a gateway does whose workers spin
}

// frames are those that are not the worker's at the moment: the one that was given back first is filled first. There are so
// many that each has left the caches of first and second level when its turn comes, as with a NIC.
type frames struct {
	ring       [2 * coldFrames]uint64
	head, tail uint32
}

// coldFrames is how many frames go round; poolFrames more are the worker's own, for ICMP errors.
const (
	coldFrames = 4096
	poolFrames = 1024
)

func (r *frames) take() uint64 {
	r.head++
	return r.ring[(r.head-1)%(2*coldFrames)]
}

func (r *frames) give(addr uint64) {
	r.ring[r.tail%(2*coldFrames)] = addr
	r.tail++
}

// feed is a port with packets of the world's flows.
type feed struct {
	w    *world
	side nat.Side
	next func() uint32 // the flow that the next packet belongs to
	left int           // packets that are there to be received
	sent uint64
}

// Receive is Port's.
func (f *feed) Receive(b []rings.Frame) int {
	n := min(f.left, len(b))
	f.left -= n
	for i := range b[:n] {
		src, dst := f.w.flows.ends(f.next(), f.side)
		b[i] = f.w.writer.put(f.w.frames.take(), src, dst)
	}
	return n
}

// Transmit is Port's: every frame goes.
func (f *feed) Transmit(b []rings.Frame) int {
	f.sent += uint64(len(b))
	for i := range b {
		f.w.frames.give(f.w.umem.Chunk(b[i].Addr))
	}
	return len(b)
}

// Service is Port's: frames of packets that ended in the worker can be filled again.
func (f *feed) Service(p *rings.Pool) {
	for p.Len() > poolFrames {
		addr, _ := p.Get()
		f.w.frames.give(addr)
	}
}

// newWorld makes a gateway with one alias address and endpoint-dependent mapping, unless rules says otherwise.
func newWorld(o worldOptions) (w *world, err error) {
	w = &world{now: 1, flows: o.flows}
	defer func() {
		if err != nil {
			_ = w.close()
		}
	}()
	if o.limits.Fragments == 0 {
		o.limits.Fragments = 64
	}
	rules := nat.DefaultRules()
	rules.Alias = []packet.Addr{aliasFirst}
	rules.Mapping.UDP = nat.AddressAndPortDependent
	if o.rules != nil {
		o.rules(&rules)
	}
	if w.flows.alias == 0 {
		w.flows.alias = rules.Alias[0]
	}
	if w.umem, err = rings.NewUMEM(rings.UMEMOptions{Frames: coldFrames + poolFrames, ChunkSize: 2048, HugePages: true}); err != nil {
		return nil, err
	}
	pool, err := w.umem.NewPool(coldFrames + poolFrames)
	if err != nil {
		return nil, err
	}
	for range coldFrames {
		addr, _ := pool.Get()
		w.frames.give(addr)
	}
	routes := append([]rtcache.StaticRoute{{Prefix: netip.MustParsePrefix("10.0.0.0/8"), Port: inPort}}, o.routes...)
	if w.table, err = rtcache.NewStatic(rtcache.StaticOptions{
		Ports: []rtcache.Port{
			{Name: "in", Inside: true, MAC: portMAC, Addr: packet.Addr(10<<24 | 0xfffffe)},
			{Name: "out", MAC: portMAC, Addr: aliasFirst + 252},
		},
		NextHops: [][6]byte{peerMAC, peerMAC},
		Routes:   routes,
	}); err != nil {
		return nil, err
	}
	if w.shard, err = nat.New(nat.Options{Rules: rules, Limits: o.limits, Workers: 1, Seed: [32]byte{7}, SideOf: pmd.SideOf(w.table), Reverse: pmd.Reverse(w.table), Populate: o.populate, Now: w.now}); err != nil {
		return nil, err
	}
	w.writer = writer{umem: w.umem, tcp: o.tcp, flags: packet.TCPAck}
	w.view = w.table.View()
	wo := pmd.WorkerOptions{UMEM: w.umem, Pool: pool, NAT: w.shard, Routes: w.view, Table: w.table, Aliases: pmd.Aliases(&rules)}
	for i := range w.ports {
		w.ports[i] = &feed{w: w, side: nat.Side(i)}
		wo.Ports = append(wo.Ports, pmd.WorkerPort{Port: w.ports[i], Side: nat.Side(i), MAC: portMAC})
	}
	w.worker, err = pmd.NewWorker(wo)
	return w, err
}

func (w *world) close() error {
	var errs []error
	if w.shard != nil {
		errs = append(errs, w.shard.Close())
	}
	if w.umem != nil {
		errs = append(errs, w.umem.Close())
	}
	return errors.Join(errs...)
}

// sent is how many frames left by both ports.
func (w *world) sent() uint64 { return w.ports[0].sent + w.ports[1].sent }

// pollsPerTick makes a tick (1 ms) of every so many bursts, which is what a busy worker sees.
const pollsPerTick = 256

// poll lets the worker take one burst of n packets from a port.
func (w *world) poll(port, n int) {
	w.ports[port].left = n
	if w.polls++; w.polls%pollsPerTick == 0 {
		w.now++
	}
	w.worker.Poll(w.now)
}

// run takes n packets through the worker, a burst from each port in turn.
func (w *world) run(n int) {
	for i := 0; i < n; i += pmd.BurstFrames {
		w.poll(i/pmd.BurstFrames&1, min(pmd.BurstFrames, n-i))
	}
}

// bare makes the packets of run and does nothing with them.
func (w *world) bare(n int) { w.each(n, nil) }

// each makes the packets of run and gives them to f in bursts, as the worker's first stage leaves them.
func (w *world) each(n int, f func([]nat.Packet)) {
	for i := 0; i < n; i += pmd.BurstFrames {
		w.take(i/pmd.BurstFrames&1, min(pmd.BurstFrames, n-i), f)
	}
}

// take makes one burst of n packets of a port and gives it to f.
func (w *world) take(port, n int, f func([]nat.Packet)) {
	p := w.ports[port]
	p.left = n
	q := w.rxq[:p.Receive(w.rxq[:])]
	if f != nil {
		b := w.burst[:len(q)]
		for k := range b {
			b[k].Data, b[k].Frame, b[k].Ingress, b[k].Side = w.umem.Data(q[k]), q[k].Addr, uint16(port), p.side
		}
		f(b)
	}
	for i := range q {
		w.frames.give(q[i].Addr)
	}
}

// parse is the worker's second stage.
func parse(b []nat.Packet) {
	for i := nat.Parse(b, &packet.Unicast); i < len(b); i++ {
		packet.Parse(b[i].Data, &b[i].H)
	}
}

// open opens flows 0 to n-1 by a packet from inside, and attaches the next hops of both directions by one from outside.
func (w *world) open(n int) error {
	for port := range w.ports {
		i := uint32(0)
		w.ports[port].next = func() uint32 { i++; return i - 1 }
		before := w.sent()
		for i := 0; i < n; i += pmd.BurstFrames {
			w.poll(port, min(pmd.BurstFrames, n-i))
		}
		if got := w.sent() - before; got != uint64(n) {
			return fmt.Errorf("perf: only %d of %d flows passed from the %v: the scenario does not fit its own gateway", got, n, nat.Side(port))
		}
	}
	if c := w.shard.Counters(); c.Links != uint64(n) {
		return fmt.Errorf("perf: %d links, want %d", c.Links, n)
	}
	return nil
}

// roam lets packets of n open flows come in, in an order that caches can't guess.
func (w *world) roam(n int) {
	for i := range w.ports {
		o := newOrder(n)
		o.next = uint32(i) * uint32(n/2)
		w.ports[i].next = o.take
	}
}

// fill makes a packet.
func (w *world) fill(p *nat.Packet, side nat.Side, src, dst endpoint) {
	f := w.writer.put(w.frames.take(), src, dst)
	p.Data, p.Frame, p.Side, p.Ingress = w.umem.Data(f), f.Addr, side, uint16(side)
}

// translate is what the shard does to a burst.
func (w *world) translate(b []nat.Packet) {
	parse(b)
	w.shard.Touch(b)
	w.shard.Translate(b, w.now)
}

// single translates one packet.
func (w *world) single(side nat.Side, src, dst endpoint) {
	b := w.burst[:1]
	w.fill(&b[0], side, src, dst)
	w.translate(b)
	w.frames.give(b[0].Frame)
}

// expire lets every link expire.
func (w *world) expire() error {
	for w.now += 7500 * clock.PerSecond; w.shard.Counters().Links > 0; {
		if w.shard.Advance(w.now, 1024) == 0 {
			return fmt.Errorf("perf: %d links did not expire", w.shard.Counters().Links)
		}
	}
	return nil
}
