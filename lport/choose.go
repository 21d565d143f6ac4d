package lport

import (
	"math/bits"

	"pollux/internal/clock"
	"pollux/internal/packet"
)

const (
	ownWords   = 64   // words looked at for a port that this worker owns, before it claims one beyond its share
	stealAfter = 16   // conflicts in one search without a cache, after which an emptier cache is taken from another peer
	refills    = 8    // rescans of the owner bytes in one request
	wellKnown  = 1024 // ports below it stay below it, others above, while that is possible (RFC 4787 REQ-3a)
	plenty     = 8    // a row of which one in so many is a candidate: its worker needs no news of bytes that others give back
)

// Exclusive gives a port that nobody uses on (alias, row): an endpoint-independent mapping. Errors: ErrNoPort, ErrHostLimit.
func (s *Space) Exclusive(r *Request) (uint16, error) {
	return s.choose(r, false, Peer{})
}

// Toward gives a port that is free toward one peer (Port 0: toward any port of that address): endpoint-dependent mappings
// share ports between remotes. Errors: ErrNoPort, ErrHostLimit.
func (s *Space) Toward(r *Request, p Peer) (uint16, error) {
	return s.choose(r, true, p)
}

// Fixed takes a port that somebody else chose (a target, a link made from outside): it is claimed and counted, not chosen,
// and may be shared. With host 0 it counts for no host. False: another worker, the kernel, a redirect or an exclusive
// mapping has it, or the alias is unknown.
func (s *Space) Fixed(alias packet.Addr, rw Row, port uint16, host packet.Addr) bool {
	a := s.alias(alias)
	if a == nil || rw >= Rows {
		return false
	}
	r := a.row(rw)
	if r == nil || r.uses[port]&exclusive != 0 || s.resting(a, rw, port) {
		return false
	}
	q := query{a: a, r: r, c: &s.caches.all[0], row: rw, shared: true}
	if r.uses[port] == 0 {
		r.offer(port)
	}
	if !s.claim(a, r, rw, port) {
		return false
	}
	if host != 0 && s.o.PortsPerHost > 0 {
		q.host = s.ledger.host(host)
	}
	s.commit(&q, port)
	return true
}

// ExclusiveAt takes a port that a former Exclusive gave: claimed and counted, not chosen. False: somebody uses it, or the alias is
// unknown.
func (s *Space) ExclusiveAt(alias packet.Addr, rw Row, port uint16, host packet.Addr) bool {
	a := s.alias(alias)
	if a == nil || rw >= Rows {
		return false
	}
	r := a.row(rw)
	if r == nil || r.uses[port] != 0 || s.resting(a, rw, port) {
		return false
	}
	q := query{a: a, r: r, c: &s.caches.all[0], row: rw}
	r.offer(port)
	if !s.claim(a, r, rw, port) {
		return false
	}
	if host != 0 && s.o.PortsPerHost > 0 {
		q.host = s.ledger.host(host)
	}
	s.commit(&q, port)
	return true
}

// Release gives a port back that Exclusive, Toward, Pair or Fixed gave: once for each time. p is the peer of a shared port (the one
// given to Toward; for Fixed, the link's remote). A port that is not in use stays as it is.
func (s *Space) Release(alias packet.Addr, rw Row, port uint16, host packet.Addr, p Peer, now clock.Tick) {
	a := s.known(alias)
	if a == nil || rw >= Rows || a.rows[rw] == nil {
		return
	}
	if a.table != s.o.Owners.table.Load() {
		s.refresh(a, alias)
	}
	r := a.rows[rw]
	u := r.uses[port]
	if u == 0 {
		return
	}
	shared := u&exclusive == 0
	if shared && r.caches != 0 {
		s.caches.forget(alias, rw, p, port, r)
	}
	if s.ledger.used > 0 {
		s.ledger.release(host, alias, rw, port)
	}
	inBlock := s.leaveBlock(a, rw, port, now)
	if r.uses[port] = (u &^ exclusive) - 1; r.uses[port] != 0 {
		return
	}
	r.leave(port, shared)
	if !inBlock {
		s.giveBack(a, r, rw, port)
	}
}

// giveBack frees the owner byte of a port that is no longer used.
func (s *Space) giveBack(a *aliasSpace, r *row, rw Row, port uint16) {
	if a.own == nil || a.own.byte(rw, port) != s.me {
		return
	}
	a.own.release(rw, port)
	r.held--
	if s.blocks.size != 0 && rw < blockRows && len(a.blocks.all) != 0 {
		a.blocks.free.set(uint16(s.blocks.of(port)))
	}
	var self int32
	if r.hungry {
		self = 1
		if s.o.Workers > 1 && r.nfree > s.plenty {
			r.hungry, r.dry, a.blocks.dry, self = false, false, false, 0
			a.own.rows[rw].hungry.Add(-1)
		}
	}
	a.own.tell(rw, self)
}

// begin fills in the rest of a request's query; peer and shared are set.
func (s *Space) begin(q *query, r *Request) error {
	a := s.alias(r.Alias)
	if a == nil || r.Row >= Rows {
		return ErrNoPort
	}
	rw := a.row(r.Row)
	if rw == nil {
		return ErrNoPort
	}
	q.a, q.r, q.row = a, rw, r.Row
	q.set, q.c = &rw.free, &s.caches.all[0]
	q.lo, q.hi, q.mask = s.low, s.high, ^uint64(0)
	if plan := s.o.Deterministic; plan != nil {
		alias, lo, hi, ok := plan.Forward(r.Host)
		if !ok || alias != r.Alias {
			return ErrNoPort
		}
		q.lo, q.hi = uint32(lo), uint32(hi)
	}
	if q.shared {
		q.set = &rw.open
		if n := s.affinity[r.Row&(Rows-1)]; n != nil && (q.peer.Port != 0 || !n.peerPort) {
			q.near, q.class = n, n.class(r.Alias, q.peer)
		}
		if rw.caches != 0 {
			if c := s.caches.find(r.Alias, r.Row, q.peer); c != nil {
				q.c = c
				if c.gain != rw.gain {
					c.skip, c.gain, c.none, c.far = [16]uint64{}, rw.gain, false, false
				}
			}
		}
	}
	if s.o.PortsPerHost > 0 || s.blocks.size != 0 {
		if q.host = s.ledger.host(r.Host); q.host == nil {
			return ErrHostLimit
		}
	}
	return nil
}

// room checks the port limit of the host. A host at its limit may still use a port that it has toward other peers: the one
// it wants.
func (s *Space) room(q *query, r *Request, more uint32) error {
	limit := uint32(s.o.PortsPerHost)
	if limit == 0 || q.host.n+more <= limit {
		return nil
	}
	if want := uint32(r.Want); q.shared && want >= q.lo && want <= q.hi && s.ledger.find(r.Host, r.Alias, r.Row, r.Want) != nil {
		q.lo, q.hi, q.only = want, want, true
		return nil
	}
	return ErrHostLimit
}

func (s *Space) choose(r *Request, shared bool, p Peer) (uint16, error) {
	busy := int32(-1)
	if s.simple {
		var port int32
		if port, busy = s.first(r, shared, p); port >= 0 {
			return uint16(port), nil
		}
	}
	q := query{peer: p, shared: shared} // on the stack: nothing keeps it
	err := s.begin(&q, r)
	if err == nil {
		if busy >= 0 {
			s.conflict(&q, uint16(busy))
		}
		if err = s.room(&q, r, 1); err == nil {
			var port int32
			if port, err = s.find(&q, r); err == nil {
				s.commit(&q, uint16(port))
				s.stats.given++
				s.stats.searched(q.steps)
				if q.near != nil {
					s.stats.judged++
					s.stats.near += q.near.near(q.class, uint32(port)>>6) >> (port & 63) & 1
				}
				return uint16(port), nil
			}
			s.stats.searched(q.steps)
		}
		s.ledger.trim(q.host)
	}
	s.stats.refused++
	return 0, err
}

// find searches until a port is found or every owner byte was looked at in vain.
func (s *Space) find(q *query, r *Request) (int32, error) {
	if s.blocks.size != 0 {
		return s.findInBlocks(q, r, false)
	}
	for range refills {
		if port := s.attempt(q, r); port >= 0 {
			return port, nil
		}
		if !s.refill(q) {
			break
		}
	}
	return -1, ErrNoPort
}

// attempt tries the ports of [q.lo, q.hi] in the order of preference.
func (s *Space) attempt(q *query, r *Request) int32 {
	want := uint32(r.Want)
	crowded := s.crowded(q.a, q.r, q.row)
	if s.o.SamePorts && want >= q.lo && want <= q.hi {
		if s.tryWanted(q, r.Want, crowded) {
			return int32(want)
		}
	}
	if lo, hi := q.lo, q.hi; lo < wellKnown && hi >= wellKnown && q.row <= RowUDP {
		if want < wellKnown {
			q.hi = wellKnown - 1
		} else {
			q.lo = wellKnown
		}
		port := s.another(q, r, crowded)
		q.lo, q.hi = lo, hi
		if port >= 0 {
			return port
		}
	}
	return s.another(q, r, crowded)
}

// another gives a port that the host did not ask for.
func (s *Space) another(q *query, r *Request, crowded bool) int32 {
	if crowded && q.shared {
		if port := s.ownNearFirst(q); port >= 0 {
			return port
		}
	}
	return s.pick(q, r)
}

// crowded reports whether others need ports too: flows then share those that this worker has.
func (s *Space) crowded(a *aliasSpace, r *row, rw Row) bool {
	return s.o.Workers > 1 && s.o.Deterministic == nil && (r.held >= s.share || asked(a.own, r, rw))
}

// asked reports whether another worker has looked for a port in vain. Flows that can share a port then do, so that the bytes
// that this worker holds become few as flows come and go: the other one finds what is given back. Nobody is asked for what is in
// use, and nothing is kept that is not: a worker has a byte only while a link is on its port.
func asked(own *aliasOwners, r *row, rw Row) bool {
	self := int32(0)
	if r.hungry {
		self = 1
	}
	return own.rows[rw].hungry.Load() > self
}

// tryWanted tries the host's own number.
func (s *Space) tryWanted(q *query, port uint16, crowded bool) bool {
	q.steps++
	r := q.r
	if r.uses[port] == 0 {
		if crowded && q.shared {
			return false
		}
		if !r.free.has(port) {
			if q.a.own.byte(q.row, port) != ByteFree {
				return false
			}
			r.offer(port)
		}
	}
	return q.may(port) && s.take(q, port)
}

// pick tries the range from a random port on, right parity first.
func (s *Space) pick(q *query, r *Request) int32 {
	if s.o.Parity {
		q.mask = 0x5555555555555555 << (r.Want & 1)
		port := s.circle(q)
		q.mask = ^uint64(0)
		if port >= 0 {
			return port
		}
	}
	return s.circle(q)
}

// circle tries every port of [q.lo, q.hi] once. A search of the whole range in vain is remembered, so that refusals are cheap.
func (s *Space) circle(q *query) int32 {
	none := &q.r.none
	if q.shared {
		none = &q.c.none
	}
	if *none {
		return -1
	}
	if q.near != nil && !q.c.far {
		q.prefer = true
		port := s.turn(q)
		q.prefer = false
		if port >= 0 {
			return port
		}
		if q.whole(s) {
			q.c.far = q.c.live
		}
	}
	port := s.turn(q)
	if port < 0 && q.whole(s) {
		if q.shared {
			q.c.none = q.c.live // conflict may have made it in this turn
		} else {
			q.r.none = true
		}
	}
	return port
}

func (s *Space) turn(q *query) int32 {
	start := q.lo + s.random(q.hi-q.lo+1)
	port := s.scan(q, start, q.hi)
	if port < 0 && start > q.lo {
		port = s.scan(q, q.lo, start-1)
	}
	return port
}

// random returns a number in [0, n) that nobody outside can guess.
func (s *Space) random(n uint32) uint32 {
	if s.half++; s.half&1 != 0 {
		s.bits = s.rng.Uint64()
	}
	x := s.bits & 0xffffffff
	s.bits >>= 32
	return uint32(x * uint64(n) >> 32)
}

func (s *Space) scan(q *query, from, to uint32) int32 {
	for from <= to {
		port := q.next(from, to)
		if port < 0 || s.take(q, uint16(port)) {
			return port
		}
		from = uint32(port) + 1
	}
	return -1
}

// ownNearFirst looks for a port that is this worker's already.
func (s *Space) ownNearFirst(q *query) int32 {
	if q.near != nil {
		q.prefer = true
		port := s.own(q)
		q.prefer = false
		if port >= 0 {
			return port
		}
	}
	return s.own(q)
}

// own looks near a random place for a port that is this worker's already, and everywhere if another one waits for ports.
func (s *Space) own(q *query) int32 {
	first, last := q.lo>>6, q.hi>>6
	w := first + s.random(last-first+1)
	words := last - first + 1
	if words > ownWords && !asked(q.a.own, q.r, q.row) {
		words = ownWords
	}
	for range words {
		q.steps++
		x := q.r.open.word[w&1023] &^ q.r.free.word[w&1023] &^ q.c.bits[w&1023]
		if q.prefer {
			x &= q.near.near(q.class, w)
		}
		for ; x != 0; x &= x - 1 {
			port := w<<6 + uint32(bits.TrailingZeros64(x))
			if port >= q.lo && port <= q.hi && s.take(q, uint16(port)) {
				return int32(port)
			}
		}
		if w++; w > last {
			w = first
		}
	}
	return -1
}

// take tries one candidate.
func (s *Space) take(q *query, port uint16) bool {
	q.steps++
	if q.shared && s.o.InUse != nil && s.o.InUse(q.a.addr, q.row, port, q.peer) {
		s.conflict(q, port)
		return false
	}
	return s.claim(q.a, q.r, q.row, port)
}

// claim makes the port's byte this worker's. A port that is another's leaves the candidates.
func (s *Space) claim(a *aliasSpace, r *row, rw Row, port uint16) bool {
	b := a.own.byte(rw, port)
	if b == s.me {
		return !a.own.reserved(rw, port)
	}
	if b == ByteFree && a.own.claim(rw, port, s.o.Worker) {
		r.held++
		return true
	}
	r.drop(port)
	return false
}

// conflict remembers that a port is in use toward the peer, in a cache made now if the peer has none.
func (s *Space) conflict(q *query, port uint16) {
	q.taken++
	if !q.c.live {
		c := s.caches.make(q.a.addr, q.row, q.peer, q.r)
		if c == nil && q.taken%stealAfter == 0 && s.caches.steal(q.taken, s.rng.Uint64(), s.rowOf) {
			c = s.caches.make(q.a.addr, q.row, q.peer, q.r)
		}
		if c == nil {
			return
		}
		q.c = c
	}
	q.c.set(port)
}

func (s *Space) rowOf(c *cache) *row { return s.known(c.alias).rows[c.row] }

// commit counts one use of a port that was claimed.
func (s *Space) commit(q *query, port uint16) {
	q.r.use(port, q.shared)
	if q.c.live {
		q.c.set(port)
	}
	if s.blocks.size != 0 {
		s.enterBlock(q.a, q.row, port)
	}
	if s.o.PortsPerHost > 0 && q.host != nil {
		s.ledger.use(q.host, q.a.addr, q.row, port)
	}
}

// refill looks at the owner bytes for ports that others gave back, and says that another attempt may succeed; false: nothing
// came back since it last found none, so a refusal costs no scan.
func (s *Space) refill(q *query) bool {
	r, news := q.r, &q.a.own.rows[q.row]
	if !r.hungry {
		r.hungry, r.dry = true, false
		news.hungry.Add(1)
	}
	gen := news.gen.Load() // after hungry was set, before the bytes are read: see tell
	if r.dry && gen == r.seen {
		return false
	}
	r.none = false
	r.gain++ // ports that were wished away may be wished away no more
	if q.c.live {
		q.c.skip, q.c.gain, q.c.none, q.c.far = [16]uint64{}, r.gain, false, false
	}
	n := s.rescan(q.a.own, q.row, r)
	r.dry, r.seen = n == 0, gen
	return true
}

// rescan offers free bytes that were not known to be free, a word's worth at a time; 0: it went all round and found none.
func (s *Space) rescan(own *aliasOwners, rw Row, r *row) int {
	first, last := s.low>>6, s.high>>6
	w, n := uint32(r.scanned), 0
	for range last - first + 1 {
		if w < first || w > last {
			w = first
		}
		for x := ^r.open.word[w]; x != 0; x &= x - 1 {
			port := uint16(w<<6) + uint16(bits.TrailingZeros64(x))
			if port&3 == 0 && own.full(rw, port) {
				x &^= 0xe << (port & 63) // the loop drops the lowest
				continue
			}
			if own.byte(rw, port) == ByteFree {
				r.offer(port)
				n++
			}
		}
		if w++; n >= 64 {
			break
		}
	}
	r.scanned = uint16(w)
	return n
}

// Pair gives two neighbouring ports of which the first is even, both exclusive (RTP and RTCP). Errors: ErrNoPort, ErrHostLimit.
// Each is released by itself.
func (s *Space) Pair(r *Request) (even uint16, err error) {
	var q query
	if err = s.begin(&q, r); err == nil {
		if err = s.room(&q, r, 2); err == nil {
			var port int32
			if port, err = s.findPair(&q, r); err == nil {
				s.commit(&q, uint16(port))
				s.commit(&q, uint16(port)+1)
				s.stats.given += 2
				return uint16(port), nil
			}
		}
		s.ledger.trim(q.host)
	}
	s.stats.refused++
	return 0, err
}

func (s *Space) findPair(q *query, r *Request) (int32, error) {
	if s.blocks.size != 0 {
		return s.findInBlocks(q, r, true)
	}
	for range refills {
		if port := s.pairIn(q); port >= 0 {
			return port, nil
		}
		if !s.refill(q) {
			break
		}
	}
	return -1, ErrNoPort
}

// pairIn looks for a pair in [q.lo, q.hi], from a random word on.
func (s *Space) pairIn(q *query) int32 {
	first, last := q.lo>>6, q.hi>>6
	w := first + s.random(last-first+1)
	for range last - first + 1 {
		x := q.r.free.word[w&1023]
		for x &= x >> 1 & 0x5555555555555555; x != 0; x &= x - 1 {
			port := w<<6 + uint32(bits.TrailingZeros64(x))
			if port < q.lo || port+1 > q.hi || !s.claim(q.a, q.r, q.row, uint16(port)) {
				continue
			}
			if s.claim(q.a, q.r, q.row, uint16(port)+1) {
				return int32(port)
			}
			if s.blocks.size == 0 {
				s.giveBack(q.a, q.r, q.row, uint16(port))
			}
		}
		if w++; w > last {
			w = first
		}
	}
	return -1
}
