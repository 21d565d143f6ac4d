package pmd

import (
	"fmt"
	"math/bits"
	"sync/atomic"

	"pollux/internal/clock"
	"pollux/internal/packet"
	"pollux/internal/reason"
	"pollux/nat"
	"pollux/rings"
)

// handoffRing is how many packets may be on their way from one worker to another.
const handoffRing = 1024

// handed is a packet on its way to the worker that owns it: its frame, and what the stages before found. The bytes stay
// where they are.
type handed struct {
	addr    uint64
	length  uint32
	ingress uint16
	side    nat.Side
	flags   uint8
	h       packet.Headers // as parsed; of a hairpin's second pass: what the packet was before its first
}

const (
	handedHairpin  = 1 << iota
	handedDirected // a fragment in order: the owner need not keep a table
)

// Mesh joins the workers of a gateway: for each ordered pair a ring for packets that belong to the other one, and a ring by
// which frames go home. It is made before the workers; nothing in it is shared but the rings.
type Mesh struct {
	packets [][]*rings.SPSC[handed] // [from][to]; nil on the diagonal
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
	m := &Mesh{pools: pools, loops: make([]atomic.Pointer[Loop], n), packets: make([][]*rings.SPSC[handed], n), home: make([][]*rings.SPSC[uint64], n)}
	for from := range n {
		m.packets[from], m.home[from] = make([]*rings.SPSC[handed], n), make([]*rings.SPSC[uint64], n)
		for to := range n {
			if from != to {
				m.packets[from][to] = rings.NewSPSC[handed](handoffRing)
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
	me    int
	out   []*rings.SPSC[handed] // by worker; nil: itself
	in    []*rings.SPSC[handed]
	home  []*rings.SPSC[uint64]
	back  []*rings.SPSC[uint64]
	first uint64 // first chunk of the first worker
	part  uint64 // 2^64 by the bytes of a pool, rounded up
	mesh  *Mesh
	dirty bool // something was put into out and not shown yet

	// steer's: who owns each packet of the burst, why, and which are whose.
	to, mine, theirs [BurstFrames]uint8
	why              [BurstFrames]steerWhy
}

func (x *peers) init(m *Mesh, me int) {
	n := len(m.packets)
	x.mesh, x.me, x.out, x.home = m, me, m.packets[me], m.home[me]
	x.in, x.back = make([]*rings.SPSC[handed], n), make([]*rings.SPSC[uint64], n)
	for from := range n {
		if from != me {
			x.in[from], x.back[from] = m.packets[from][me], m.home[from][me]
		}
	}
	x.first, x.part = m.pools[0].First(), ^uint64(0)/m.pools[0].Span()+1
}

// homeOf returns the worker whose a chunk is. Pools are of one size and lie one after the other.
func (x *peers) homeOf(chunk uint64) int {
	to, _ := bits.Mul64(chunk-x.first, x.part)
	return int(to)
}

// handOver gives a packet to another worker. h is what it should be told: the headers, or those of before the first pass.
// A full ring drops it: waiting for a worker that may be waiting for us would stop both.
func (w *Worker) handOver(p *nat.Packet, h *packet.Headers, to uint32, why steerWhy, directed bool) {
	s := w.peers.out[to].Next()
	if s == nil {
		w.drop(p.Frame, p.Data, reason.HandoffFull, false)
		return
	}
	s.addr, s.length, s.ingress, s.side, s.flags, s.h = p.Frame, uint32(len(p.Data)), p.Ingress, p.Side, 0, *h
	if p.Hairpin {
		s.flags |= handedHairpin
	}
	if directed {
		s.flags |= handedDirected
	}
	w.peers.dirty = true
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
		if r != nil && r.Publish() {
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
	for _, r := range w.peers.in {
		for left := BurstFrames; r != nil && left > 0; {
			k := w.gather(r, n, min(left, BurstFrames-n))
			n, left, work = n+k, left-k, work+k
			if n < BurstFrames {
				break // the ring is empty, or was taken to its end
			}
			w.finish(w.burst[:n], now)
			n = 0
		}
	}
	if n > 0 {
		w.finish(w.burst[:n], now)
	}
	return work
}

// gather takes up to most packets out of a ring into the burst, from place at on.
func (w *Worker) gather(r *rings.SPSC[handed], at, most int) int {
	list := r.Take(most)
	if len(list) == 0 {
		return 0
	}
	b := w.burst[at : at+len(list)]
	for i := range list {
		s, p := &list[i], &b[i]
		p.Data = w.umem.Data(rings.Frame{Addr: s.addr, Len: s.length})
		p.Frame, p.Ingress, p.Side = s.addr, s.ingress, s.side
		p.Hairpin, p.Directed = s.flags&handedHairpin != 0, s.flags&handedDirected != 0
		if p.Hairpin {
			w.first[at+i] = s.h
			packet.Parse(p.Data, &p.H)
		} else {
			p.H = s.h
		}
	}
	r.Release(len(list))
	w.c.handedIn += uint64(len(list))
	w.c.framesIn += uint64(len(list))
	return len(list)
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
