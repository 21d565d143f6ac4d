package rings

import (
	"fmt"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// A ring's slots are Frames (RX, TX) or chunk addresses (fill, completion). Indexes run freely modulo 2^32; a slot's
// place is index & mask. The rows named in comments are those of the table in doc.go.

// producer is the side of a ring that the worker fills: fill and TX.
type producer[T any] struct {
	index *atomic.Uint32 // P1, P2
	done  *atomic.Uint32 // K3: the kernel's consumer index
	flags *atomic.Uint32 // F1, F2
	slots []T
	mask  uint32
	head  uint32 // plain copy of index, ahead of it while slots are being written
}

// slot returns the i-th slot after the published ones. The caller knows that there is room.
func (r *producer[T]) slot(i uint32) *T { return &r.slots[(r.head+i)&r.mask] }

// publish hands the next n slots to the kernel.
func (r *producer[T]) publish(n uint32) {
	r.head += n
	r.index.Store(r.head)
}

// needWakeup reports whether the kernel waits for a system call. Ask after publish.
func (r *producer[T]) needWakeup() bool { return r.flags.Load()&unix.XDP_RING_NEED_WAKEUP != 0 }

// pending returns how many published slots the kernel has not taken.
func (r *producer[T]) pending() uint32 { return r.head - r.done.Load() }

// consumer is the side of a ring that the worker empties: RX and completion.
type consumer[T any] struct {
	index *atomic.Uint32 // C1, C2
	ready *atomic.Uint32 // K1, K2: the kernel's producer index
	slots []T
	mask  uint32
	tail  uint32 // plain copy of index, ahead of it while slots are being read
	seen  uint32 // ready as last read
}

// available returns how many slots can be taken, asking the kernel only when fewer than want are known.
func (r *consumer[T]) available(want uint32) uint32 {
	if n := r.seen - r.tail; n >= want {
		return n
	}
	r.seen = r.ready.Load()
	return r.seen - r.tail
}

// take copies the next len(b) slots, which the caller knows to be there, and gives them back to the kernel.
func (r *consumer[T]) take(b []T) {
	i := int(r.tail & r.mask)
	n := copy(b, r.slots[i:])
	copy(b[n:], r.slots)
	r.release(uint32(len(b)))
}

// slot returns the i-th slot after those given back.
func (r *consumer[T]) slot(i uint32) *T { return &r.slots[(r.tail+i)&r.mask] }

// release gives n slots back to the kernel.
func (r *consumer[T]) release(n uint32) {
	r.tail += n
	r.index.Store(r.tail)
}

// newProducer lays a ring of n slots over mem, as the kernel's offsets say.
func newProducer[T any](mem []byte, o unix.XDPRingOffset, n int) producer[T] {
	r := producer[T]{
		index: wordAt(mem, o.Producer), done: wordAt(mem, o.Consumer), flags: wordAt(mem, o.Flags),
		slots: slotsAt[T](mem, o.Desc, n), mask: uint32(n - 1),
	}
	r.head = r.index.Load()
	return r
}

func newConsumer[T any](mem []byte, o unix.XDPRingOffset, n int) consumer[T] {
	r := consumer[T]{
		index: wordAt(mem, o.Consumer), ready: wordAt(mem, o.Producer),
		slots: slotsAt[T](mem, o.Desc, n), mask: uint32(n - 1),
	}
	r.tail = r.index.Load()
	r.seen = r.tail
	return r
}

// ringBytes is the length of the mapping of a ring of n slots.
func ringBytes[T any](o unix.XDPRingOffset, n int) int {
	return int(o.Desc + uint64(n)*slotBytes[T]())
}

// mapRing maps one of a socket's rings.
func mapRing(fd int, pgoff int64, length int) ([]byte, error) {
	mem, err := unix.Mmap(fd, pgoff, length, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_POPULATE)
	if err != nil {
		return nil, fmt.Errorf("map ring at %#x: %w", pgoff, err)
	}
	return mem, nil
}

// chunkSet is a set of chunks: which of them the kernel holds for one socket. One byte a chunk, so that adding and removing
// are plain stores that don't wait for one another (a bit a chunk costs twice as much [measured]); each socket has its own,
// so that two workers never write one line.
type chunkSet struct {
	in    []uint8 // 1: in the set
	shift uint8   // log2 of the chunk size
}

func newChunkSet(frames, chunkSize int) chunkSet {
	c := chunkSet{in: make([]uint8, frames)}
	for s := chunkSize; s > 1; s >>= 1 {
		c.shift++
	}
	return c
}

func (c *chunkSet) add(addr uint64) {
	i := addr >> (c.shift & 63)
	if frameCheck {
		c.check(i, 0)
	}
	c.in[i] = 1
}

func (c *chunkSet) remove(addr uint64) {
	i := addr >> (c.shift & 63)
	if frameCheck {
		c.check(i, 1)
	}
	c.in[i] = 0
}
