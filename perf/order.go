package perf

import "math/bits"

// order visits the numbers below n in an order that looks random to a cache, each once before any comes again.
type order struct {
	n, mask uint32
	half    uint8
	next    uint32
	turn    uint32
}

func newOrder(n int) *order {
	b := max(bits.Len32(uint32(n-1)), 2)
	return &order{n: uint32(n), mask: uint32(1)<<b - 1, half: uint8(b / 2), turn: 0x9e3779b1}
}

// take returns the next number.
func (o *order) take() uint32 {
	for {
		x := o.next
		// Invertible steps on the bits of mask: every number comes once.
		x = (x ^ o.turn>>7) & o.mask
		x = x * o.turn & o.mask
		x ^= x >> o.half
		x = x * 0xc2b2ae35 & o.mask
		x ^= x >> o.half
		if o.next++; o.next > o.mask {
			o.next, o.turn = 0, o.turn*0x85ebca6b+2 // another order, odd again
		}
		if x < o.n {
			return x
		}
	}
}

// random is a cheap generator for traffic (xorshift), the same in every run.
type random uint64

func newRandom() random { return 88172645463325252 }

func (r *random) next() uint64 {
	x := uint64(*r)
	x ^= x << 13
	x ^= x >> 7
	x ^= x << 17
	*r = random(x)
	return x
}

// below returns a number in [0, n).
func (r *random) below(n uint32) uint32 { return uint32(r.next() >> 32 * uint64(n) >> 32) }
