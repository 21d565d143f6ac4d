package rings

import "sync/atomic"

// SPSC is a ring between two workers: one goroutine puts, one takes, neither ever waits for the other. Slots are filled in
// place and shown to the other side once per burst, so that a burst costs one atomic store on each side, and the other side's
// index is read only when the copy kept of it says that there is no room, or nothing to take.
//
//	row  word      writer    reader    order           pairs with
//	S1   produced  producer  consumer  store-release   the consumer's load: slots below it are filled
//	S2   consumed  consumer  producer  store-release   the producer's load: slots below it were read
//
// Go's atomics are sequentially consistent, which the sleeping protocol needs besides: the producer stores S1, then looks
// whether the consumer sleeps; the consumer says that it sleeps, then looks at S1.
//
// Each of the two words has a cache line of its own, the neighbour that the processor fetches along included, and what a side
// keeps for itself has another: the other side polls the word, and would take the line away in the middle of a burst.
type SPSC[T any] struct {
	slots []T
	mask  uint32

	_    [128]byte
	head uint32 // the producer's: produced, ahead of it while slots are being filled
	room uint32 // the producer's: S2 as last read

	_        [128]byte
	produced atomic.Uint32 // S1

	_    [128]byte
	tail uint32 // the consumer's: consumed, ahead of it while slots are being read
	seen uint32 // the consumer's: S1 as last read

	_        [128]byte
	consumed atomic.Uint32 // S2
	_        [128]byte
}

// NewSPSC returns a ring with at least n slots; their number is a power of two.
func NewSPSC[T any](n int) *SPSC[T] {
	size := 1
	for size < n {
		size *= 2
	}
	return &SPSC[T]{slots: make([]T, size), mask: uint32(size - 1)}
}

// Cap returns how many slots there are.
func (r *SPSC[T]) Cap() int { return len(r.slots) }

// Next returns the next slot to fill, nil when the ring is full. It is the producer's to fill until Publish. A slot keeps
// what the last round left in it.
func (r *SPSC[T]) Next() *T {
	if r.head-r.room > r.mask {
		if r.room = r.consumed.Load(); r.head-r.room > r.mask {
			return nil
		}
	}
	s := &r.slots[r.head&r.mask]
	r.head++
	return s
}

// Unfill takes the slot back that Next returned last; Publish must not have been called since.
func (r *SPSC[T]) Unfill() { r.head-- }

// Room returns how many slots can be filled, looking again if they seem to be fewer than want. It is the producer's.
func (r *SPSC[T]) Room(want int) int {
	if r.mask+1-(r.head-r.room) < uint32(want) {
		r.room = r.consumed.Load()
	}
	return int(r.mask + 1 - (r.head - r.room))
}

// Publish shows all filled slots to the consumer. False: there was nothing new to show.
func (r *SPSC[T]) Publish() bool {
	if r.head == r.produced.Load() { // our own word: no line moves
		return false
	}
	r.produced.Store(r.head)
	return true
}

// Take returns up to most slots that are there to be read, as one piece: at the end of the ring there may be more at its
// beginning. They stay the consumer's until Release.
func (r *SPSC[T]) Take(most int) []T {
	if r.seen-r.tail < uint32(most) {
		r.seen = r.produced.Load()
	}
	n := min(r.seen-r.tail, uint32(most), uint32(len(r.slots))-r.tail&r.mask)
	at := r.tail & r.mask
	return r.slots[at : at+n]
}

// Release gives the first n slots that Take returned back to the producer.
func (r *SPSC[T]) Release(n int) {
	r.tail += uint32(n)
	r.consumed.Store(r.tail)
}

// Waiting reports whether there is something to take. It is the consumer's.
func (r *SPSC[T]) Waiting() bool { return r.tail != r.produced.Load() }

// Len returns how many published slots are not taken yet. Any goroutine may ask; between two of the ring's own steps the
// answer is exact.
func (r *SPSC[T]) Len() int {
	consumed := r.consumed.Load() // first: produced can only be larger then
	return int(r.produced.Load() - consumed)
}
