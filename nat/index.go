package nat

// index is an open-addressed hash table from a 32-bit hash to a non-zero 32-bit value: the caller keeps the keys. A slot is
// 8 bytes, hash << 32 | value, 0 when free. The slot a hash calls home grows with the hash, so that a slot's own hash says
// how far it was pushed along: removal closes the gap by moving later slots back and leaves no tombstone, and neither
// probing nor removal touches a record. The load stays at or below what the caller sized it for.
//
// Several values may share one hash; the caller tells them apart.
type index struct {
	slots []uint64
	used  int
}

// home returns the slot at which the probe for hash h starts.
func (x *index) home(h uint32) uint32 { return homeOf(h, uint64(len(x.slots))) }

// homeOf is home in a table of so many slots.
func homeOf(h uint32, slots uint64) uint32 { return uint32(uint64(h) * slots >> 32) }

// next returns the slot behind i.
func (x *index) next(i uint32) uint32 {
	if i++; int(i) == len(x.slots) {
		return 0
	}
	return i
}

// insert adds a value. The caller knows that it is not there and that a slot is free.
func (x *index) insert(h, value uint32) {
	i := x.home(h)
	for x.slots[i] != 0 {
		i = x.next(i)
	}
	x.slots[i] = uint64(h)<<32 | uint64(value)
	x.used++
}

// find returns the slot of (h, value).
func (x *index) find(h, value uint32) (slot uint32, ok bool) {
	want := uint64(h)<<32 | uint64(value)
	for i := x.home(h); x.slots[i] != 0; i = x.next(i) {
		if x.slots[i] == want {
			return i, true
		}
	}
	return 0, false
}

// replace changes a value in place and reports whether it was there.
func (x *index) replace(h, old, value uint32) bool {
	i, ok := x.find(h, old)
	if ok {
		x.slots[i] = uint64(h)<<32 | uint64(value)
	}
	return ok
}

// remove takes (h, value) out and reports whether it was there.
func (x *index) remove(h, value uint32) bool {
	hole, ok := x.find(h, value)
	if !ok {
		return false
	}
	n := uint32(len(x.slots))
	for i := x.next(hole); x.slots[i] != 0; i = x.next(i) {
		// The slot may move back to the hole unless its home lies behind the hole (cyclically in (hole, i]).
		home := x.home(uint32(x.slots[i] >> 32))
		if back, far := i-home, i-hole; wrap(back, i < home, n) >= wrap(far, i < hole, n) {
			x.slots[hole] = x.slots[i]
			hole = i
		}
	}
	x.slots[hole] = 0
	x.used--
	return true
}

// wrap mends a difference of slot numbers that went below zero.
func wrap(d uint32, below bool, n uint32) uint32 {
	if below {
		return d + n
	}
	return d
}
