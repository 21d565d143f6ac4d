package pmd

import (
	"encoding/binary"
	"errors"
	"fmt"

	"pollux/internal/clock"
	"pollux/internal/packet"
	"pollux/internal/reason"
	"pollux/nat"
	"pollux/rings"
	"pollux/rtcache"
)

// Limits of one round.
const (
	BurstFrames   = 64  // packets that go through the stages together
	releaseBursts = 4   // bursts of packets that the shard lets go, per round
	advanceBudget = 256 // links, fragments and ports that timers may deal with, per round
)

// WorkerPort is one port as a worker sees it. Its place in WorkerOptions.Ports is its index everywhere in pollux.
type WorkerPort struct {
	Port   Port
	Side   nat.Side
	MAC    [6]byte
	AnyMAC bool // take frames to any unicast MAC
	ARP    bool // answer ARP requests: the XDP program hands up only those for pool addresses
}

// WorkerOptions is what a worker works with. It owns the shard, the ports and the pool from NewWorker on.
type WorkerOptions struct {
	Index   int // the worker's number, from 0
	Ports   []WorkerPort
	UMEM    *rings.UMEM
	Pool    *rings.Pool // free frames
	NAT     *nat.Shard
	Routes  *rtcache.View // the worker's own
	Table   *rtcache.Table
	Aliases []packet.Addr                 // every alias address, redirects' included: sources of ICMP errors to the outside
	Source  func(port uint16) packet.Addr // where other ICMP errors sent from a port come from; nil: as Table says
	Punt    Punter                        // nil: there is no kernel to hand packets to

	// Mesh and Steering join several workers; both are nil when there is one.
	Mesh     *Mesh
	Steering *Steering

	IPv6Forward bool // forward IPv6, by the same routes; otherwise it is the kernel's

	// Finished, if not nil, is told the end of every received packet: the address of its chunk, and None when it was sent
	// on; otherwise its bytes, the reason, and whether an ICMP error was sent back. It must not keep or change the bytes.
	Finished func(chunk uint64, data []byte, r reason.Reason, answered bool)
}

// Worker takes packets through the seven stages (DESIGN 2). It is one goroutine's: no method but Do and the readers of
// published counters may be called from another one.
type Worker struct {
	o      WorkerOptions
	umem   *rings.UMEM
	nat    *nat.Shard
	routes *rtcache.View
	table  *rtcache.Table
	pool   *rings.Pool

	burst [BurstFrames]nat.Packet     // the packets of the round, in order of arrival
	first [BurstFrames]packet.Headers // of a hairpinned packet: what it was before its first pass
	rxq   [BurstFrames]rings.Frame
	ports []port
	c     counts
	pub   published

	hold     hold
	plain    plain
	six      six
	errors   errorLimit
	split    split
	one      [1]rings.Frame // a line of one: here, because what goes through an interface must not be on the stack
	advanced clock.Tick     // when timers last had nothing left to do
	released bool           // the shard may have packets to give back
	peers    peers
	examples examples
	tick     clock.Tick // of this round
	tap      *tap       // nil: nothing is captured
}

// port is a WorkerPort and the frames that wait for its transmit ring.
type port struct {
	Port
	accept packet.Accept // the port's own MAC address, or with anyMAC every unicast one
	mac    [6]byte       // the port's own
	side   nat.Side
	anyMAC bool
	arp    bool
	number int
	n      int // of out
	out    [BurstFrames]rings.Frame
}

// NewWorker checks the options and makes a worker. Nothing is allocated after that.
func NewWorker(o WorkerOptions) (*Worker, error) {
	switch {
	case o.UMEM == nil || o.Pool == nil || o.NAT == nil || o.Routes == nil || o.Table == nil:
		return nil, errors.New("pmd: a worker needs a UMEM, a pool, a shard and routes")
	case len(o.Ports) == 0:
		return nil, errors.New("pmd: a worker needs ports")
	case o.Mesh != nil && (o.Steering == nil || o.Index < 0 || o.Index >= len(o.Mesh.packets) || o.Mesh.pools[o.Index] != o.Pool):
		return nil, fmt.Errorf("pmd: worker %d does not fit the mesh", o.Index)
	case o.UMEM.ChunkSize() < packet.ICMPErrorMax, o.IPv6Forward && o.UMEM.ChunkSize() < packet.ICMPv6ErrorMax:
		return nil, fmt.Errorf("pmd: chunks of %d bytes are too small", o.UMEM.ChunkSize())
	}
	w := &Worker{o: o, umem: o.UMEM, nat: o.NAT, routes: o.Routes, table: o.Table, pool: o.Pool, ports: make([]port, len(o.Ports))}
	if o.Source == nil {
		w.o.Source = o.Table.Source
	}
	for i, p := range o.Ports {
		w.ports[i] = port{Port: p.Port, number: i, side: p.Side, anyMAC: p.AnyMAC, arp: p.ARP}
		w.ports[i].setMAC(p.MAC)
	}
	w.hold.init(min(HoldFrames, o.UMEM.Frames()/4))
	w.split.init(w)
	if o.Mesh != nil {
		w.peers.init(o.Mesh, o.Index)
	}
	w.plain.init(o.IPv6Forward)
	w.six.on = o.IPv6Forward
	return w, nil
}

// Poll does one round: timers, a burst from every port, packets that the shard lets go. It returns how much was done; 0
// means that there was nothing. It allocates nothing and never blocks.
func (w *Worker) Poll(now clock.Tick) (work int) {
	w.tick = now
	if w.tap != nil {
		w.tap.round()
	}
	if now != w.advanced {
		work += w.advance(now)
	}
	for i := range w.ports {
		work += w.step(i, now)
	}
	if w.peers.mesh != nil {
		work += w.takeHanded(now)
	}
	w.released = w.released || work > 0 // a first fragment, an outbound SYN or a timer may have set held packets free
	for i := 0; i < releaseBursts && w.released; i++ {
		work += w.step(fromShard, now)
	}
	for i := range w.ports {
		w.ports[i].Service(w.pool)
	}
	if w.peers.mesh != nil {
		w.sendHome()
	}
	w.publish(work)
	return work
}

// step takes one burst through the seven stages, in the order of DESIGN 2.
func (w *Worker) step(from int, now clock.Tick) int {
	b, n := w.rx(from)
	if n == 0 {
		return 0
	}
	if w.tap != nil && from != fromShard {
		w.tap.received(b, from)
	}
	b = w.parse(b, from)
	b = w.steer(b)
	w.finish(b, now)
	return n
}

// finish takes a burst of packets that are this worker's through the stages from 4 on.
func (w *Worker) finish(b []nat.Packet, now clock.Tick) {
	w.touch(b)
	w.translate(b, now)
	w.route(b, now)
	w.forwardIPv6(now)
	w.tx()
	w.show()
}

// advance runs what is due by time: the shard's timers and the packets that wait for a neighbour. Once all is done it is
// not called again before the next tick.
func (w *Worker) advance(now clock.Tick) int {
	work := w.nat.Advance(now, advanceBudget)
	if w.hold.n > 0 {
		work += w.look(nil, now)
		w.tx()
	}
	if work < advanceBudget {
		w.advanced = now
	}
	return work
}

// Due returns the earliest tick at which a round may have work without any packet coming; ok is false when there is none.
func (w *Worker) Due(now clock.Tick) (due clock.Tick, ok bool) {
	due, ok = w.nat.Due()
	if w.hold.n > 0 {
		if next := now.Add(holdRetry); !ok || next.Before(due) {
			due, ok = next, true
		}
	}
	return due, ok
}

// drop ends a received packet that is not sent on: its frame is free again.
func (w *Worker) drop(addr uint64, data []byte, r reason.Reason, answered bool) {
	w.c.reasons[r]++
	w.c.dirty = true
	w.examples.keep(r, data, w.tick)
	if answered {
		w.c.answered++
	}
	chunk := w.umem.Chunk(addr)
	if w.o.Finished != nil {
		w.o.Finished(chunk, data, r, answered)
	}
	if w.tap != nil {
		w.tap.dropped(chunk, data, r, answered)
	}
	w.pool.Put(chunk)
}

// setMAC changes the port's own address.
func (p *port) setMAC(mac [6]byte) {
	p.mac = mac
	if p.anyMAC {
		p.accept = packet.Unicast
		return
	}
	p.accept.Mask = 0xffff_ffff_ffff
	p.accept.Word = uint64(binary.LittleEndian.Uint32(mac[:])) | uint64(binary.LittleEndian.Uint16(mac[4:]))<<32
}
