package nat

import (
	"pollux/internal/clock"
	"pollux/internal/reason"
)

const (
	holdsMax  = 64                  // unsolicited SYNs held at a time; further ones are dropped at once
	holdTicks = 6 * clock.PerSecond // RFC 5382 REQ-4
)

// holds keeps unsolicited inbound SYNs for six seconds: an outbound SYN for the same connection in that time wins and the
// held one is dropped in silence, as it is when the time is over. Held in order of arrival, so the oldest ends first.
type holds struct {
	ring       [holdsMax]hold
	head, tail uint32 // free-running
}

type hold struct {
	key    tuple
	at     clock.Tick
	reason reason.Reason
	done   bool // released early
	back   Released
}

// full reports whether no SYN can be held.
func (q *holds) full() bool { return q.tail-q.head == holdsMax }

// find returns the held SYN of a tuple.
func (q *holds) find(t tuple) *hold {
	for i := q.head; i != q.tail; i++ {
		if h := &q.ring[i%holdsMax]; h.key == t && !h.done {
			return h
		}
	}
	return nil
}

// holdSYN keeps the SYN in p, or drops it for why if one of the same connection is held already or there are too many.
func (s *Shard) holdSYN(p *Packet, t tuple, why reason.Reason, now clock.Tick) {
	q := &s.holds
	if q.full() || q.find(t) != nil {
		s.drop(p, why)
		return
	}
	q.ring[q.tail%holdsMax] = hold{key: t, at: now, reason: why, back: Released{
		Frame: p.Frame, Len: uint32(len(p.Data)), Ingress: p.Ingress, Side: p.Side, Reason: why, Hairpin: p.Hairpin}}
	q.tail++
	s.counters.HeldSYN++
	p.Verdict, p.Reason, p.Hop = Keep, reason.Held, nil
}

// dropHeld lets go of the SYN that a new outbound link makes moot: its inbound key is t.
func (s *Shard) dropHeld(t tuple) {
	q := &s.holds
	if q.head == q.tail {
		return
	}
	if h := q.find(t); h != nil {
		h.done = true
		s.release(h.back)
	}
}

// advance drops SYNs whose time is over.
func (q *holds) advance(s *Shard, now clock.Tick) (work int) {
	for q.head != q.tail {
		h := &q.ring[q.head%holdsMax]
		if !h.done {
			if now.Since(h.at) < holdTicks {
				break
			}
			s.release(h.back)
		}
		q.head++
		work++
	}
	return work
}

func (q *holds) due() (clock.Tick, bool) {
	if q.head == q.tail {
		return 0, false
	}
	return q.ring[q.head%holdsMax].at + holdTicks, true
}
