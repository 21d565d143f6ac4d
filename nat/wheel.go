package nat

import (
	"math/bits"

	"pollux/internal/clock"
)

const (
	wheelSlots = 1 << 15
	wheelShift = 8 // a slot is 256 ticks (ms): nothing ends early, nothing more than that late
	wheelBit   = 1 << 31
)

// wheel is a timer wheel over links: slot s holds what is due at tick s << wheelShift, modulo the wheel's turn of 2.3
// hours; what is due later waits in the farthest slot and goes round again. A touched link is not moved: when its slot
// comes up, its real deadline is looked at. Lists are doubly linked through cold.timer and timer2, first come first, and a
// link can leave at once; timer2 of a first link and timer of a last one are wheelBit | slot.
//
// There are two wheels on one set of links: one for links in closing state, whose first entry is the one to recycle, and one
// for all others.
type wheel struct {
	cold  []cold
	heads []uint32
	tails []uint32
	busy  []uint64   // a bit for each slot that holds anything
	pos   clock.Tick // start of the slot that Advance looks at next; a multiple of 1 << wheelShift
	count int
}

func (w *wheel) init(m *memory, c []cold, now clock.Tick) (err error) {
	w.cold = c
	w.pos = now &^ (1<<wheelShift - 1)
	if w.heads, err = table[uint32](m, wheelSlots); err != nil {
		return err
	}
	if w.tails, err = table[uint32](m, wheelSlots); err != nil {
		return err
	}
	w.busy, err = table[uint64](m, wheelSlots/64)
	return err
}

func wheelSlot(t clock.Tick) uint32 { return uint32(t>>wheelShift) % wheelSlots }

// add queues a link for the first slot that comes up at or after deadline.
func (w *wheel) add(id uint32, deadline clock.Tick) {
	const turn = (wheelSlots - 1) << wheelShift
	at := deadline + (1<<wheelShift - 1)
	at &^= 1<<wheelShift - 1
	switch ahead := int32(at - w.pos); {
	case ahead < 0:
		at = w.pos
	case ahead > turn:
		at = w.pos + turn
	}
	s := wheelSlot(at)
	c := &w.cold[id]
	if w.heads[s] == 0 {
		w.heads[s] = id
		c.timer2 = wheelBit | s
	} else {
		c.timer2 = w.tails[s]
		w.cold[c.timer2].timer = id
	}
	c.timer = wheelBit | s
	w.tails[s] = id
	w.busy[s/64] |= 1 << (s % 64)
	w.count++
}

// remove takes a queued link out.
func (w *wheel) remove(id uint32) {
	c := &w.cold[id]
	next, prev := c.timer, c.timer2
	switch first, last := prev&wheelBit != 0, next&wheelBit != 0; {
	case first && last:
		s := next &^ wheelBit
		w.heads[s] = 0
		w.busy[s/64] &^= 1 << (s % 64)
	case first:
		w.heads[prev&^wheelBit] = next
		w.cold[next].timer2 = prev
	case last:
		w.tails[next&^wheelBit] = prev
		w.cold[prev].timer = next
	default:
		w.cold[prev].timer = next
		w.cold[next].timer2 = prev
	}
	c.timer, c.timer2 = 0, 0
	w.count--
}

// first returns the earliest non-empty slot's time and its first link.
func (w *wheel) first() (at clock.Tick, id uint32) {
	if w.count == 0 {
		return 0, 0
	}
	s := wheelSlot(w.pos)
	word := w.busy[s/64] >> (s % 64)
	skip := uint32(0)
	for word == 0 {
		skip += 64 - (s+skip)%64
		word = w.busy[(s+skip)%wheelSlots/64]
	}
	skip += uint32(bits.TrailingZeros64(word))
	return w.pos + clock.Tick(skip)<<wheelShift, w.heads[(s+skip)%wheelSlots]
}

// due takes the next link off the wheel whose slot has come up at now; 0 if there is none.
func (w *wheel) due(now clock.Tick) uint32 {
	at, id := w.first()
	if id == 0 {
		w.pos = now &^ (1<<wheelShift - 1)
		return 0
	}
	if at.After(now) {
		// Empty slots up to now are behind us; the present one may still get links that are due in it.
		if p := now &^ (1<<wheelShift - 1); p.After(w.pos) {
			w.pos = p
		}
		return 0
	}
	w.pos = at
	w.remove(id)
	return id
}

// after returns the link that comes after id, which is queued in the slot at, in the order of slots.
func (w *wheel) after(at clock.Tick, id uint32) (clock.Tick, uint32) {
	if next := w.cold[id].timer; next&wheelBit == 0 {
		return at, next
	}
	last := w.pos + (wheelSlots-1)<<wheelShift
	for !at.After(last - 1<<wheelShift) {
		at += 1 << wheelShift
		s := wheelSlot(at)
		if s%64 == 0 && w.busy[s/64] == 0 && !at.After(last-64<<wheelShift) {
			at += 63 << wheelShift
			continue
		}
		if head := w.heads[s]; head != 0 {
			return at, head
		}
	}
	return 0, 0
}
