package lport

import "math/bits"

// exclusive marks a port in row.uses that one mapping has for itself.
const exclusive = 1 << 31

// row is one worker's view of one port space of one alias address. The bitsets are hints about what other workers and the
// kernel own, and exact about what this worker uses: a port that another owner turns out to have leaves the hints, and comes
// back by rescan.
type row struct {
	free   bitset // used by no link of this worker, and nobody else's as far as known
	shared bitset // this worker's, in use by links that share it between remotes

	gain    uint32 // moves when a port becomes a candidate that was none: what caches skip is then worthless
	caches  uint32 // live per-peer caches of this row
	wide    uint32 // those of whole addresses among them
	seen    uint32 // rowNews.gen at the last rescan that went all round
	scanned uint16 // where the next rescan starts, in words
	dry     bool   // the hints were complete at seen
	hungry  bool   // this worker is counted in rowNews.hungry
	held    int32  // owner bytes of this worker
	used    int32  // ports in use
	nfree   int32  // bits in free

	uses [65536]uint32 // links on each port, or exclusive|1
}

func (r *row) init() {
	r.free.fill()
	r.nfree = 65536
}

// offer makes a port a candidate again.
func (r *row) offer(port uint16) {
	if !r.free.has(port) {
		r.free.set(port)
		r.nfree++
		r.gain++
	}
}

// drop says that a port is somebody else's.
func (r *row) drop(port uint16) {
	if r.free.has(port) {
		r.free.clear(port)
		r.nfree--
	}
}

// query is one search for a port.
type query struct {
	a      *aliasSpace
	r      *row
	c      *cache // nil: none for this peer
	peer   Peer
	host   *hold // nil: hosts are not counted
	lo, hi uint32
	mask   uint64 // ports of a word that are welcome: parity
	steps  uint32 // words looked at and ports tried
	taken  uint32 // ports that turned out to be in use toward the peer
	row    Row
	shared bool
	only   bool // the host is at its limit: only the wanted port, which it has already, will do
}

// candidates returns which ports of a word may be tried.
func (q *query) candidates(w uint32) uint64 {
	x := q.r.free.word[w&1023]
	if q.shared {
		x |= q.r.shared.word[w&1023]
		if q.c != nil {
			x &^= q.c.bits[w&1023]
		}
	}
	return x
}

// words returns which of 64 words may hold a candidate.
func (q *query) words(i uint32) uint64 {
	x := q.r.free.sum[i&15]
	if q.shared {
		x |= q.r.shared.sum[i&15]
		if q.c != nil {
			x &^= q.c.skip[i&15]
		}
	}
	return x
}

// next returns the first candidate in [from, to], or -1.
func (q *query) next(from, to uint32) int32 {
	w, last := from>>6, to>>6
	trim := q.mask & (^uint64(0) << (from & 63))
	for {
		q.steps++
		x := q.candidates(w)
		if x == 0 && q.c != nil {
			q.c.skip[w>>6&15] |= 1 << (w & 63)
		}
		if x &= trim; x != 0 {
			if p := w<<6 + uint32(bits.TrailingZeros64(x)); p <= to {
				return int32(p)
			}
			return -1
		}
		if w = q.nextWord(w+1, last); w > last {
			return -1
		}
		trim = q.mask
	}
}

// nextWord returns the first word from w on that may hold a candidate; more than last: none.
func (q *query) nextWord(w, last uint32) uint32 {
	if w > last {
		return w
	}
	i := w >> 6
	x := q.words(i) & (^uint64(0) << (w & 63))
	for x == 0 {
		if i++; i > last>>6 {
			return last + 1
		}
		x = q.words(i)
	}
	return i<<6 + uint32(bits.TrailingZeros64(x))
}
