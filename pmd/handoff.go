package pmd

import (
	"fmt"
	"math/bits"
	"sync/atomic"
	"unsafe"

	"pollux/internal/clock"
	"pollux/internal/packet"
	"pollux/internal/reason"
	"pollux/nat"
	"pollux/rings"
)

// How many packets may be on their way from one worker to another, and how many of them in the second pass of a hairpin.
const (
	handoffRing = 1024
	hairpinRing = 256
)

// handed is a packet on its way to the worker that owns it: where it lies, and what can't be read out of it. Its owner parses it
// again, which costs less than to move what was found from one core to the other: the bytes it must have anyway.
type handed struct {
	addr    uint64
	length  uint32
	ingress uint16
	flags   uint8
}

// Four of them lie in one cache line.
const _ = -(unsafe.Sizeof(handed{}) ^ 16)

const (
	handedOutside  = 1 << iota // its side
	handedHairpin              // in its second pass; what it was before its first is in a ring beside
	handedDirected             // a fragment in order: the owner need not keep a table
)

// Mesh joins the workers of a gateway: for each ordered pair a ring for packets that belong to the other one, and a ring by
// which frames go home. It is made before the workers; nothing in it is shared but the rings.
type Mesh struct {
	packets [][]*rings.SPSC[handed] // [from][to]; nil on the diagonal
	firsts  [][]*rings.SPSC[packet.Headers]
	home    [][]*rings.SPSC[uint64]
	pools   []*rings.Pool
	loops   []atomic.Pointer[Loop] // whom to wake
}

// NewMesh joins workers that have the given pools, taken from one UMEM in this order and of one size. A ring for frames on their
// way home has room for every frame of the one whose they are, so it is never full.
func NewMesh(pools []*rings.Pool) *Mesh {
	n := len(pools)
	for i, p := range pools {
		if at := pools[0].First() + uint64(i)*pools[0].Span(); p.First() != at || p.Span() != pools[0].Span() {
			panic(fmt.Sprintf("pmd: the pool of worker %d is not where it is looked for", i))
		}
	}
	m := &Mesh{pools: pools, loops: make([]atomic.Pointer[Loop], n), packets: make([][]*rings.SPSC[handed], n),
		firsts: make([][]*rings.SPSC[packet.Headers], n), home: make([][]*rings.SPSC[uint64], n)}
	for from := range n {
		m.packets[from], m.home[from] = make([]*rings.SPSC[handed], n), make([]*rings.SPSC[uint64], n)
		m.firsts[from] = make([]*rings.SPSC[packet.Headers], n)
		for to := range n {
			if from != to {
				m.packets[from][to] = rings.NewSPSC[handed](handoffRing)
				m.firsts[from][to] = rings.NewSPSC[packet.Headers](hairpinRing)
				m.home[from][to] = rings.NewSPSC[uint64](pools[to].Size())
			}
		}
	}
	return m
}

// underWay returns how many frames lie in rings between workers. While workers run it is an estimate.
func (m *Mesh) underWay() (n int) {
	for from := range m.packets {
		n += m.underWayFrom(from)
	}
	return n
}

// underWayFrom is underWay for the rings that one worker fills.
func (m *Mesh) underWayFrom(from int) (n int) {
	for to := range m.packets {
		if from != to {
			n += m.packets[from][to].Len() + m.home[from][to].Len()
		}
	}
	return n
}

// peers is a worker's end of the mesh.
type peers struct {
	me   int
	out  []*rings.SPSC[handed] // by worker; nil: itself
	in   []*rings.SPSC[handed]
	home []*rings.SPSC[uint64]
	back []*rings.SPSC[uint64]

	firstsOut, firstsIn []*rings.SPSC[packet.Headers]

	first uint64 // first chunk of the first worker
	part  uint64 // 2^64 by the bytes of a pool, rounded up
	mesh  *Mesh
	dirty bool // something was put into out and not shown yet

	// steer's: who owns each packet of the burst, why, and which are whose.
	to, mine, theirs [BurstFrames]uint8
	why              [BurstFrames]steerWhy
	near             [BurstFrames]uint32 // gather's: lines of the UMEM that will be needed
}

func (x *peers) init(m *Mesh, me int) {
	n := len(m.packets)
	x.mesh, x.me, x.out, x.home, x.firstsOut = m, me, m.packets[me], m.home[me], m.firsts[me]
	x.in, x.back, x.firstsIn = make([]*rings.SPSC[handed], n), make([]*rings.SPSC[uint64], n), make([]*rings.SPSC[packet.Headers], n)
	for from := range n {
		if from != me {
			x.in[from], x.back[from], x.firstsIn[from] = m.packets[from][me], m.home[from][me], m.firsts[from][me]
		}
	}
	x.first, x.part = m.pools[0].First(), ^uint64(0)/m.pools[0].Span()+1
}

// homeOf returns the worker whose a chunk is. Pools are of one size and lie one after the other.
func (x *peers) homeOf(chunk uint64) int {
	to, _ := bits.Mul64(chunk-x.first, x.part)
	return int(to)
}

// handOver gives a packet to another worker. Of a hairpin in its second pass h is what it was before its first.
// A full ring drops it: waiting for a worker that may be waiting for us would stop both.
func (w *Worker) handOver(p *nat.Packet, h *packet.Headers, to uint32, why steerWhy, directed bool) {
	x := &w.peers
	s := x.out[to].Next()
	if s == nil {
		w.drop(p.Frame, p.Data, reason.HandoffFull, false)
		return
	}
	s.addr, s.length, s.ingress, s.flags = p.Frame, uint32(len(p.Data)), p.Ingress, uint8(p.Side)
	if p.Hairpin {
		first := x.firstsOut[to].Next()
		if first == nil {
			x.out[to].Unfill()
			w.drop(p.Frame, p.Data, reason.HandoffFull, false)
			return
		}
		*first = *h
		s.flags |= handedHairpin
	}
	if directed {
		s.flags |= handedDirected
	}
	x.dirty = true
	w.c.handedOut++
	w.c.framesOut++
	w.c.handedWhy[why]++
}

// show lets the other workers see what this burst has for them, and wakes those that sleep: once each per burst.
func (w *Worker) show() {
	x := &w.peers
	if !x.dirty {
		return
	}
	x.dirty = false
	for to, r := range x.out {
		if r == nil {
			continue
		}
		x.firstsOut[to].Publish() // before the packets that they belong to
		if r.Publish() {
			if l := x.mesh.loops[to].Load(); l != nil {
				l.wake()
			}
		}
	}
}

// takeHanded does up to a burst of what each other worker has handed over, through the stages that are left. Packets of several
// workers share a burst: stages cost less per packet the more packets they see at once.
func (w *Worker) takeHanded(now clock.Tick) (work int) {
	n := 0
	for from, r := range w.peers.in {
		for left := BurstFrames; r != nil && left > 0; {
			k := w.gather(from, n, min(left, BurstFrames-n))
			n, left, work = n+k, left-k, work+k
			if n < BurstFrames {
				break // the ring is empty, or was taken to its end
			}
			w.finishHanded(n, now)
			n = 0
		}
	}
	if n > 0 {
		w.finishHanded(n, now)
	}
	return work
}

// gather takes up to most packets that a worker has handed over into the burst, from place at on, and asks for their bytes.
func (w *Worker) gather(from, at, most int) int {
	x := &w.peers
	r := x.in[from]
	list := r.Take(most)
	if len(list) == 0 {
		return 0
	}
	b := w.burst[at : at+len(list)]
	for i := range list {
		s, p := &list[i], &b[i]
		x.near[i%BurstFrames] = uint32(s.addr / rings.CacheLine)
		p.Data = w.umem.Data(rings.Frame{Addr: s.addr, Len: s.length})
		p.Frame, p.Ingress, p.Side = s.addr, s.ingress, nat.Side(s.flags&handedOutside)
		p.Hairpin, p.Directed = s.flags&handedHairpin != 0, s.flags&handedDirected != 0
		if p.Hairpin {
			w.takeFirst(from, at+i)
		}
	}
	w.umem.Prefetch(x.near[:len(list)])
	r.Release(len(list))
	w.c.handedIn += uint64(len(list))
	w.c.framesIn += uint64(len(list))
	return len(list)
}

// takeFirst gets what the hairpinned packet at place i was before its first pass.
func (w *Worker) takeFirst(from, i int) {
	r := w.peers.firstsIn[from]
	w.first[i] = r.Take(1)[0] // it was shown before the packet was
	r.Release(1)
}

// finishHanded takes the first n packets of the burst through the stages that are left.
func (w *Worker) finishHanded(n int, now clock.Tick) {
	if w.tap != nil {
		w.tap.round()
	}
	b := w.burst[:n]
	// The other worker has looked at the rest of the MAC address.
	for i := nat.Parse(b, &packet.Unicast); i < len(b); i++ {
		packet.Parse(b[i].Data, &b[i].H)
	}
	w.finish(b, now)
}

// sendHome returns frames of other workers that ended here, and takes its own back. It is done once a round.
func (w *Worker) sendHome() {
	x := &w.peers
	for _, r := range x.back {
		if r == nil {
			continue
		}
		for list := r.Take(r.Cap()); len(list) > 0; list = r.Take(r.Cap()) {
			for _, chunk := range list {
				w.pool.Put(chunk)
			}
			w.c.framesIn += uint64(len(list))
			r.Release(len(list))
		}
	}
	away := w.pool.Away()
	if len(away) == 0 {
		return
	}
	keep := 0
	for _, chunk := range away {
		s := x.home[x.homeOf(chunk)].Next()
		if s == nil { // can't be: the ring has room for all of them
			away[keep] = chunk
			keep++
			continue
		}
		*s = chunk
	}
	w.c.framesOut += uint64(len(away) - keep)
	w.pool.SentHome(keep)
	for to, r := range x.home {
		if r != nil && r.Publish() {
			if l := x.mesh.loops[to].Load(); l != nil && l.short.Load() {
				l.wake()
			}
		}
	}
}

// waiting reports whether another worker has put something here: do not sleep now.
func (w *Worker) waiting() bool {
	if w.peers.mesh == nil {
		return false
	}
	for i, r := range w.peers.in {
		if r != nil && (r.Waiting() || w.peers.back[i].Waiting()) {
			return true
		}
	}
	return false
}
