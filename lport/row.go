package lport

import "math/bits"

// exclusive marks a port in row.uses that one mapping has for itself.
const exclusive = 1 << 31

// row is one worker's view of one port space of one alias address. The bitsets are hints about what other workers and the
// kernel own, and exact about what this worker uses: a port that another owner turns out to have leaves the hints, and comes
// back by rescan.
type row struct {
	free bitset // used by no link of this worker, and nobody else's as far as known: for exclusive links
	open bitset // free, or this worker's and shared between remotes: for links toward a peer

	gain    uint32 // moves when a port becomes a candidate that was none: what caches skip is then worthless
	caches  uint32 // live per-peer caches of this row
	wide    uint32 // those of whole addresses among them
	seen    uint32 // rowNews.gen at the last rescan that went all round
	scanned uint16 // where the next rescan starts, in words
	dry     bool   // the hints were complete at seen
	hungry  bool   // this worker is counted in rowNews.hungry
	none    bool   // a search of the whole range for a free port was in vain, and none was offered since
	held    int32  // owner bytes of this worker
	used    int32  // ports in use
	nfree   int32  // bits in free

	uses [65536]uint32 // links on each port, or exclusive|1
}

func (r *row) init() {
	r.free.fill()
	r.open.fill()
	r.nfree = 65536
}

// offer makes a port a candidate again.
func (r *row) offer(port uint16) {
	if !r.free.has(port) {
		r.free.set(port)
		r.open.set(port)
		r.nfree++
		r.gain++
		r.none = false
	}
}

// drop says that a port is somebody else's.
func (r *row) drop(port uint16) {
	if r.free.has(port) {
		r.free.clear(port)
		r.open.clear(port)
		r.nfree--
	}
}

// enter takes a port into use, leave takes it out. A shared port stays open all the time.
func (r *row) enter(port uint16, shared bool) {
	r.used++
	if r.free.has(port) {
		r.free.clear(port)
		r.nfree--
	}
	if !shared {
		r.open.clear(port)
	}
}

func (r *row) leave(port uint16, shared bool) {
	r.used--
	r.free.set(port)
	r.nfree++
	r.none = false
	if !shared {
		r.open.set(port)
		r.gain++
	}
}

// use counts one more link on a port.
func (r *row) use(port uint16, shared bool) {
	if r.uses[port] == 0 {
		r.enter(port, shared)
	}
	if shared {
		r.uses[port]++
	} else {
		r.uses[port] = exclusive | 1
	}
}

// query is one search for a port.
type query struct {
	a      *aliasSpace
	r      *row
	set    *bitset // r.free or r.open
	c      *cache  // the peer's, or one that is empty and not live
	peer   Peer
	host   *hold // nil: hosts are not counted
	lo, hi uint32
	mask   uint64    // ports of a word that are welcome: parity
	steps  uint32    // words looked at and ports tried
	taken  uint32    // ports that turned out to be in use toward the peer
	near   *Affinity // nil: no port is better than another
	class  uint32    // what peer and alias contribute to it
	row    Row
	prefer bool // only near ports, for now
	shared bool
	only   bool // the host is at its limit: only the wanted port, which it has already, will do
}

// may reports whether a port is a candidate.
func (q *query) may(port uint16) bool {
	return q.set.has(port) && q.c.bits[port>>6&1023]>>(port&63)&1 == 0
}

// whole reports whether the search is for any port of the whole range.
func (q *query) whole(s *Space) bool {
	return q.lo == s.low && q.hi == s.high && q.mask == ^uint64(0)
}

// next returns the first candidate in [from, to], or -1.
func (q *query) next(from, to uint32) int32 {
	set, c := q.set, q.c
	last := to >> 6
	trim := q.mask & (^uint64(0) << (from & 63))
	for w := from >> 6; ; trim = q.mask {
		q.steps++
		x := set.word[w&1023] &^ c.bits[w&1023]
		if x == 0 && c.live {
			c.skip[w>>6&15] |= 1 << (w & 63)
		}
		if q.prefer {
			x &= q.near.near(q.class, w)
		}
		if x &= trim; x != 0 {
			if p := w<<6 + uint32(bits.TrailingZeros64(x)); p <= to {
				return int32(p)
			}
			return -1
		}
		// On to the next word that may hold one.
		w++
		i := w >> 6
		x = set.sum[i&15] &^ c.skip[i&15] & (^uint64(0) << (w & 63))
		for x == 0 {
			if i++; i > last>>6 {
				return -1
			}
			x = set.sum[i&15] &^ c.skip[i&15]
		}
		if w = i<<6 + uint32(bits.TrailingZeros64(x)); w > last || i > last>>6 {
			return -1
		}
	}
}
