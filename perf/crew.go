package perf

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"

	"pollux/internal/clock"
	"pollux/internal/packet"
	"pollux/lport"
	"pollux/nat"
	"pollux/pmd"
	"pollux/rings"
	"pollux/rtcache"
)

// crew is a gateway in memory with several workers, each with a queue of either port on which packets appear from nowhere.
type crew struct {
	umem     *rings.UMEM
	table    *rtcache.Table
	owners   *lport.Owners
	steering *pmd.Steering // nil with one worker
	shards   []*nat.Shard
	workers  []*pmd.Worker
	lanes    []*lane
	flows    flows
	alias    []uint16 // alias port of each flow
	now      clock.Tick
}

// lane is what one worker receives and sends.
type lane struct {
	c      *crew
	writer writer
	pool   *rings.Pool
	frames frames
	feeds  [2]laneFeed
	sent   uint64
	polls  uint32
	now    clock.Tick
}

// laneFeed is one port's queue.
type laneFeed struct {
	l     *lane
	side  nat.Side
	flows []uint32 // whose packets come, in this order, again and again
	next  int
	left  int
	alias uint16 // of the last packet sent
}

// Receive is Port's. There may be fewer packets than are due: frames that are with other workers have to come home first.
func (f *laneFeed) Receive(b []rings.Frame) int {
	l := f.l
	n := min(f.left, len(b), int(l.frames.tail-l.frames.head))
	f.left = 0
	for i := range b[:n] {
		b[i] = f.make()
	}
	return n
}

// make writes the next packet into a free frame.
func (f *laneFeed) make() rings.Frame {
	src, dst := f.ends()
	return f.l.writer.put(f.l.frames.take(), src, dst)
}

func (f *laneFeed) ends() (src, dst endpoint) {
	i := f.flows[f.next]
	if f.next++; f.next == len(f.flows) {
		f.next = 0
	}
	c := f.l.c
	if f.side == nat.Inside {
		return c.flows.local(i), c.flows.remote(i)
	}
	return c.flows.remote(i), endpoint{c.flows.alias, c.alias[i]}
}

// Transmit is Port's: every frame goes, and is free at once.
func (f *laneFeed) Transmit(b []rings.Frame) int {
	l := f.l
	l.sent += uint64(len(b))
	for i := range b {
		if f.side == nat.Outside {
			f.alias = binary.BigEndian.Uint16(l.c.umem.Data(b[i])[34:])
		}
		l.pool.Put(l.c.umem.Chunk(b[i].Addr))
	}
	return len(b)
}

// Service is Port's: what is free beyond the worker's own need can be filled again, the oldest first.
func (f *laneFeed) Service(p *rings.Pool) {
	for p.Len() > poolFrames {
		addr, _ := p.Get()
		f.l.frames.give(addr)
	}
}

// newCrew makes a gateway of some workers with one alias address and endpoint-dependent mapping, and opens links flows. Of the
// packets that each worker receives wrong percent belong to others, by turns.
func newCrew(workers, links, wrong int) (c *crew, err error) {
	c = &crew{now: 1, flows: flows{alias: aliasFirst}, alias: make([]uint16, links)}
	defer func() {
		if err != nil {
			_ = c.close()
		}
	}()
	rules := nat.DefaultRules()
	rules.Alias = []packet.Addr{aliasFirst}
	rules.Mapping.UDP = nat.AddressAndPortDependent
	each := coldFrames/workers + poolFrames
	if c.umem, err = rings.NewUMEM(rings.UMEMOptions{Frames: workers * each, ChunkSize: 2048, HugePages: true}); err != nil {
		return nil, err
	}
	if c.table, err = rtcache.NewStatic(rtcache.StaticOptions{
		Ports: []rtcache.Port{
			{Name: "in", Inside: true, MAC: portMAC, Addr: packet.Addr(10<<24 | 0xfffffe)},
			{Name: "out", MAC: portMAC, Addr: aliasFirst + 252},
		},
		NextHops: [][6]byte{peerMAC, peerMAC},
		Routes:   []rtcache.StaticRoute{{Prefix: netip.MustParsePrefix("10.0.0.0/8"), Port: inPort}},
	}); err != nil {
		return nil, err
	}
	c.owners = lport.NewOwners(nil)
	if err = pmd.Publish(c.owners, &rules); err != nil {
		return nil, err
	}
	no := nat.Options{Rules: rules, Limits: nat.Limits{Links: 2 * links / workers, Fragments: 64}, Workers: workers, Owners: c.owners,
		Seed: [32]byte{7}, SideOf: pmd.SideOf(c.table), Reverse: pmd.Reverse(c.table), Now: c.now}
	var pools []*rings.Pool
	for range workers {
		pool, err := c.umem.NewPool(each)
		if err != nil {
			return nil, err
		}
		pools = append(pools, pool)
	}
	var mesh *pmd.Mesh
	if workers > 1 {
		// A seed like a real one: with small numbers consecutive hosts all belong to a few workers.
		c.steering = pmd.NewSteering(workers, c.owners, &rules, false, 0x2545f4914f6cdd1d)
		mesh = pmd.NewMesh(pools)
		no.Steering, no.Share = c.steering, nat.NewLinkShare(2*links, workers)
	}
	for k := range workers {
		no.Worker = k
		shard, err := nat.New(no)
		if err != nil {
			return nil, err
		}
		c.shards = append(c.shards, shard)
		l := &lane{c: c, writer: writer{umem: c.umem}, pool: pools[k], now: c.now}
		for range coldFrames / workers {
			addr, _ := pools[k].Get()
			l.frames.give(addr)
		}
		wo := pmd.WorkerOptions{Index: k, UMEM: c.umem, Pool: pools[k], NAT: shard, Routes: c.table.View(), Table: c.table,
			Aliases: pmd.Aliases(&rules), Mesh: mesh, Steering: c.steering}
		for i := range l.feeds {
			l.feeds[i] = laneFeed{l: l, side: nat.Side(i)}
			wo.Ports = append(wo.Ports, pmd.WorkerPort{Port: &l.feeds[i], Side: nat.Side(i), MAC: portMAC})
		}
		worker, err := pmd.NewWorker(wo)
		if err != nil {
			return nil, err
		}
		c.workers, c.lanes = append(c.workers, worker), append(c.lanes, l)
	}
	return c, c.open(links, wrong)
}

// open opens every flow at its owner, learns its alias port, and shares the flows out.
func (c *crew) open(links, wrong int) error {
	n := len(c.workers)
	own := make([][]uint32, n)
	for i := range uint32(links) {
		k := 0
		if c.steering != nil {
			l, r := c.flows.local(i), c.flows.remote(i)
			k = c.steering.Outbound(packet.ProtoUDP, l.addr, l.port, r.addr, r.port)
		}
		own[k] = append(own[k], i)
		for side := range c.lanes[k].feeds { // out, and back: both next hops are then known
			f := &c.lanes[k].feeds[side]
			f.flows, f.next, f.left = []uint32{i}, 0, 1
			before := c.lanes[k].sent
			c.workers[k].Poll(c.now)
			if c.lanes[k].sent != before+1 {
				return fmt.Errorf("perf: flow %d did not pass from the %v: the scenario does not fit its own gateway", i, f.side)
			}
			if f.side == nat.Inside {
				c.alias[i] = c.lanes[k].feeds[outPort].alias
			}
		}
	}
	r := rand.New(rand.NewPCG(1, uint64(n)))
	for _, list := range own {
		if len(list) == 0 {
			return fmt.Errorf("perf: %d flows are too few for %d workers", links, n)
		}
	}
	for k := range n {
		var list []uint32
		for i := range own[k] {
			from := k
			if n > 1 && i%100 < wrong {
				from = (k + 1 + i%(n-1)) % n
			}
			list = append(list, own[from][i%len(own[from])])
		}
		for side := range c.lanes[k].feeds {
			f := &c.lanes[k].feeds[side]
			r.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
			f.flows, f.next = append([]uint32(nil), list...), 0
		}
	}
	return nil
}

// poll lets worker k do one round, with burst packets from either port.
func (c *crew) poll(k, burst int) {
	l := c.lanes[k]
	for i := range l.feeds {
		l.feeds[i].left = burst
	}
	if l.polls++; l.polls%pollsPerTick == 0 {
		l.now++
	}
	c.workers[k].Poll(l.now)
}

// bare makes the packets of poll and does nothing with them.
func (c *crew) bare(k, burst int) {
	var b [pmd.BurstFrames]rings.Frame
	l := c.lanes[k]
	for i := range l.feeds {
		f := &l.feeds[i]
		f.left = burst
		n := f.Receive(b[:burst])
		f.Transmit(b[:n])
		l.sent -= uint64(n)
		f.Service(l.pool)
	}
}

// sent is how many packets all workers have sent.
func (c *crew) sent() (n uint64) {
	for _, l := range c.lanes {
		n += l.sent
	}
	return n
}

func (c *crew) close() error {
	var errs []error
	for _, s := range c.shards {
		errs = append(errs, s.Close())
	}
	if c.owners != nil {
		c.owners.Close()
	}
	if c.umem != nil {
		errs = append(errs, c.umem.Close())
	}
	return errors.Join(errs...)
}
