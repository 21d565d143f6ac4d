package rtcache

import (
	"encoding/binary"
	"sync/atomic"
	"unsafe"
)

// Hop is one next hop: a neighbour on a port, and what a frame to it needs. Hops live in one array that never moves; an
// index means the same neighbour as long as any valid slot or any burst can hold it.
//
// The control goroutine writes, workers read, without locks: everything that must be seen together is in one word.
//
//	word    writer    readers  content
//	to      control   workers  neighbour's MAC (low 48 bits) | egress port (16); the port never changes in a hop's life
//	from    control   workers  port's own MAC (low 48) | MTU in bytes (16)
//	state   both      workers  hopState | usedBit; workers only set usedBit (CAS), control sets the state and clears it
//	wanted  both      workers  1 while a worker's Want waits for the control goroutine
//	hi, lo  control   workers  neighbour's address, IPv4 in lo; written before the hop's state leaves hopFree
type Hop struct {
	to     atomic.Uint64
	from   atomic.Uint64
	hi, lo atomic.Uint64
	state  atomic.Uint32
	wanted atomic.Uint32
	index  uint32
	_      [20]byte
}

const _ = -(unsafe.Sizeof(Hop{}) - 64) // does not compile when a hop outgrows its cache line

// hopState is what a hop is good for.
type hopState = uint32

const (
	hopFree       hopState = iota // unused entry
	hopUnresolved                 // the kernel does not know the neighbour's MAC (yet)
	hopReady                      // usable
	hopFailed                     // the neighbour did not answer
	hopDead                       // its port is down or gone, or the hop waits to be reused

	usedBit  = 1 << 8 // a worker routed by this hop since the last sweep
	stateLow = 0xff
	hopHit   = hopReady | usedBit // the one value that the fast path accepts
)

// portNone marks a next hop that leaves by a netdev that is no port of ours.
const portNone = 0xffff

// Index is the hop's number, stable for its life: a key for queues of packets that wait for it. A queue must not outlive
// reuseAfter; re-route the packets when the queue is served.
func (h *Hop) Index() uint32 { return h.index }

// Usable reports whether packets may leave by the hop without asking Route.
func (h *Hop) Usable() bool { return h.state.Load() == hopHit }

// Port is the index of the egress port.
func (h *Hop) Port() uint16 { return h.Dress().Port() }

// MTU is the largest IP packet in bytes that may leave by this hop.
func (h *Hop) MTU() int { return h.Dress().MTU() }

// WriteMACs sets destination and source MAC in the first 12 bytes of a frame. Neither is ever a mixture of two.
func (h *Hop) WriteMACs(frame []byte) { h.Dress().MACs().Write((*[12]byte)(frame)) }

// Dress is what a frame to a hop needs, read once. Its words hold a MAC as its bytes stand in a frame, read as a
// little-endian number: nothing is to be swapped.
type Dress struct{ to, from uint64 }

// Dress reads the hop.
func (h *Hop) Dress() Dress { return Dress{h.to.Load(), h.from.Load()} }

// Port is Hop's.
func (d Dress) Port() uint16 { return uint16(d.to >> 48) }

// MTU is Hop's.
func (d Dress) MTU() int { return int(d.from >> 48) }

// MACs are the first 12 bytes of a frame, destination and source, as little-endian numbers.
type MACs struct {
	low  uint64
	high uint32
}

// MACs returns the addresses of a frame to the hop.
func (d Dress) MACs() MACs { return MACs{d.to&(1<<48-1) | d.from<<48, uint32(d.from >> 16)} }

// Write is Hop.WriteMACs.
func (m MACs) Write(frame *[12]byte) {
	binary.LittleEndian.PutUint64(frame[:8], m.low)
	binary.LittleEndian.PutUint32(frame[8:], m.high)
}

// MAC is the neighbour's address as last learned.
func (h *Hop) MAC() (m [6]byte) {
	w := h.to.Load()
	binary.LittleEndian.PutUint32(m[:], uint32(w))
	binary.LittleEndian.PutUint16(m[4:], uint16(w>>32))
	return m
}

// hopWord joins a MAC with a port or an MTU, as to and from hold them.
func hopWord(m [6]byte, high int) uint64 {
	return uint64(binary.LittleEndian.Uint32(m[:])) | uint64(binary.LittleEndian.Uint16(m[4:]))<<32 |
		uint64(min(max(high, 0), 0xffff))<<48
}

// setState changes the state and keeps usedBit. Only the control goroutine calls it.
func (h *Hop) setState(s hopState) {
	for {
		old := h.state.Load()
		if h.state.CompareAndSwap(old, old&usedBit|s) {
			return
		}
	}
}

// use marks the hop as used since the last sweep and returns its state. Workers call it off the fast path.
func (h *Hop) use() hopState {
	old := h.state.Load()
	for old&usedBit == 0 && !h.state.CompareAndSwap(old, old|usedBit) {
		old = h.state.Load()
	}
	return old & stateLow
}
