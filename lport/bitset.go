package lport

import "math/bits"

// bitset is a set of ports in two levels: a word of 64 ports each, and above them one bit per word that is not empty. So
// the next member is found in a few steps wherever it is.
type bitset struct {
	word [1024]uint64
	sum  [16]uint64
}

func (b *bitset) has(p uint16) bool { return b.word[p>>6&1023]>>(p&63)&1 != 0 }

func (b *bitset) set(p uint16) {
	w := p >> 6 & 1023
	b.word[w] |= 1 << (p & 63)
	b.sum[w>>6&15] |= 1 << (w & 63)
}

func (b *bitset) clear(p uint16) {
	w := p >> 6 & 1023
	b.word[w] &^= 1 << (p & 63)
	if b.word[w] == 0 {
		b.sum[w>>6&15] &^= 1 << (w & 63)
	}
}

func (b *bitset) fill() {
	for i := range b.word {
		b.word[i] = ^uint64(0)
	}
	for i := range b.sum {
		b.sum[i] = ^uint64(0)
	}
}

// next returns the first member in [from, to], or -1.
func (b *bitset) next(from, to uint32) int32 {
	w, last := from>>6, to>>6
	x := b.word[w&1023] & (^uint64(0) << (from & 63))
	for x == 0 {
		if w++; w > last {
			return -1
		}
		m := b.sum[w>>6&15] & (^uint64(0) << (w & 63))
		if m == 0 {
			w |= 63 // on to the next 64 words
			continue
		}
		w = w&^63 + uint32(bits.TrailingZeros64(m))
		x = b.word[w&1023]
	}
	if p := w<<6 + uint32(bits.TrailingZeros64(x)); p <= to {
		return int32(p)
	}
	return -1
}
