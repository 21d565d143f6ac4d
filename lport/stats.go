package lport

import (
	"math/bits"

	"pollux/internal/packet"
)

// counters are the plain numbers a Space keeps as it works.
type counters struct {
	given, refused uint64
	lost           uint64 // block events
	near, judged   uint64 // ports given that were near, and those given while there was a preference
	steps          [StepBuckets]uint64
	sum            uint64 // of steps
}

// StepBuckets is the number of buckets of the histogram of search steps: bucket i counts searches of less than 2^i steps that
// bucket i-1 did not.
const StepBuckets = 18

// searched counts one search.
func (c *counters) searched(steps uint32) {
	c.steps[min(bits.Len32(steps), StepBuckets-1)]++
	c.sum += uint64(steps)
}

// Stats is a snapshot of a Space.
type Stats struct {
	Given, Refused uint64
	Near, Far      uint64              // of Given: by SetAffinity's preference, and against it
	Steps          [StepBuckets]uint64 // words looked at and ports tried, per search
	StepsSum       uint64              // of all searches together
	Caches         int                 // per-peer caches alive
	CachesPeak     int
	CachesMerged   uint64
	CachesStolen   uint64 // given to a peer that knew more, the arena being used up
	BlocksHeld     int    // idle ones included
	BlocksResting  int
	EventsLost     uint64
	Rows           []RowStats
}

// RowStats is what one alias address and row look like from this worker.
type RowStats struct {
	Alias  packet.Addr
	Row    Row
	Used   int // ports in use by this worker's links
	Owned  int // owner bytes that are this worker's
	Caches int
}

// Stats returns a snapshot; it allocates and is meant for the control side's requests to the owner.
func (s *Space) Stats() Stats {
	st := s.Totals()
	s.Rows(0, int(Rows)*len(s.aliases), func(r RowStats) { st.Rows = append(st.Rows, r) })
	return st
}

// Totals is Stats without its rows: it allocates nothing and takes a moment for each alias address.
func (s *Space) Totals() Stats {
	st := Stats{
		Given: s.stats.given, Refused: s.stats.refused, Near: s.stats.near, Far: s.stats.judged - s.stats.near,
		Steps: s.stats.steps, StepsSum: s.stats.sum, EventsLost: s.stats.lost,
		Caches: int(s.caches.live), CachesPeak: int(s.caches.peak), CachesMerged: s.caches.met, CachesStolen: s.caches.stole,
		BlocksResting: s.blocks.resting.n,
	}
	for _, a := range s.aliases {
		if a != nil {
			st.BlocksHeld += a.blocks.live
		}
	}
	st.BlocksHeld -= st.BlocksResting
	return st
}

// Rows visits up to max places for rows from cursor on (0: the start) and returns where to go on, 0 when all were seen. Rows
// that were never used are left out.
func (s *Space) Rows(cursor, max int, visit func(RowStats)) (next int) {
	for end := int(Rows) * len(s.aliases); cursor < end; cursor++ {
		if max--; max < 0 {
			return cursor
		}
		a, rw := s.aliases[cursor/int(Rows)], cursor%int(Rows)
		if a == nil || a.rows[rw] == nil {
			continue
		}
		r := a.rows[rw]
		visit(RowStats{a.addr, Row(rw), int(r.used), int(r.held), int(r.caches)})
	}
	return 0
}

// HostUse returns how many different alias ports and how many blocks a host has. Ports are counted with a port limit only.
func (s *Space) HostUse(host packet.Addr) (ports, blocks int) {
	if h := s.ledger.peek(host); h != nil {
		return int(h.n), int(h.blocks)
	}
	return 0, 0
}
