package lport

import "math/bits"

// first makes the first try of a request, where no rule but the range and the host's own number decides (Space.simple): the
// own number, then the first candidate from a random port on. Most requests need no more, so it is one function that keeps what
// it knows in registers. It gives the port that choose would give. port -1: choose has to look at everything, the own
// number included; only hints were changed. busy is a port that turned out to be in use toward the peer, or -1.
func (s *Space) first(r *Request, shared bool, p Peer) (port, busy int32) {
	a := s.alias(r.Alias)
	if a == nil || r.Row >= Rows {
		return -1, -1
	}
	rw := a.rows[r.Row&(Rows-1)]
	if rw == nil || s.affinity[r.Row&(Rows-1)] != nil || s.crowded(a, rw, r.Row) {
		return -1, -1
	}
	set, c := &rw.free, &s.caches.all[0]
	if !shared && rw.none {
		return -1, -1
	}
	if shared {
		set = &rw.open
		if rw.caches != 0 {
			if x := s.caches.find(r.Alias, r.Row, p); x != nil {
				if c = x; c.gain != rw.gain || c.none {
					return -1, -1
				}
			}
		}
	}
	steps := uint32(0)
	if want := uint32(r.Want); s.o.SamePorts && want >= s.low && want <= s.high {
		if rw.uses[want] == 0 && !rw.free.has(r.Want) {
			return -1, -1 // another's, as far as known
		}
		if set.has(r.Want) && c.bits[want>>6&1023]>>(want&63)&1 == 0 {
			return s.grab(a, rw, c, r, r.Want, shared, p, 2)
		}
		steps = 1
	}
	lo, hi := s.low, s.high
	if lo < wellKnown && hi >= wellKnown && r.Row <= RowUDP { // see attempt
		if r.Want < wellKnown {
			hi = wellKnown - 1
		} else {
			lo = wellKnown
		}
	}
	// From a random port on, round the range once. trim are the ports of the word where it starts that are to be looked at: those
	// from the start on, and when everything else was looked at those before it.
	start := lo + s.random(hi-lo+1)
	low, at, high := lo>>6, start>>6, hi>>6
	trim := ^uint64(0) << (start & 63)
	g, mask := at>>6, ^uint64(0)<<(at&63)
	for range len(set.sum) + 1 {
		steps++
		for some := set.sum[g&15] &^ c.skip[g&15] & mask; some != 0; some &= some - 1 {
			w := g<<6 + uint32(bits.TrailingZeros64(some))
			if w > high {
				break
			}
			m := set.word[w&1023] &^ c.bits[w&1023]
			if m == 0 && c.live {
				c.skip[g&15] |= 1 << (w & 63)
			}
			if w == at {
				m &= trim
			}
			if w == low {
				m &= ^uint64(0) << (lo & 63)
			}
			if w == high {
				m &= ^uint64(0) >> (^hi & 63)
			}
			if m == 0 {
				steps++
				continue
			}
			return s.grab(a, rw, c, r, uint16(w<<6+uint32(bits.TrailingZeros64(m))), shared, p, steps+1)
		}
		mask = ^uint64(0)
		if g++; g > high>>6 {
			g, mask, trim = low>>6, ^uint64(0)<<(low&63), ^trim
		}
	}
	return -1, -1
}

// grab takes one candidate for first, and counts the search if that is its end.
func (s *Space) grab(a *aliasSpace, rw *row, c *cache, r *Request, port uint16, shared bool, p Peer, steps uint32) (got, busy int32) {
	if shared && s.o.InUse != nil && s.o.InUse(a.addr, r.Row, port, p) {
		return -1, int32(port)
	}
	if !s.claim(a, rw, r.Row, port) {
		return -1, -1
	}
	rw.use(port, shared)
	if c.live {
		c.set(port)
	}
	s.stats.given++
	s.stats.searched(steps)
	return int32(port), -1
}
