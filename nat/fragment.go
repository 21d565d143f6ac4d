package nat

import (
	"encoding/binary"
	"math/bits"

	"pollux/internal/clock"
	"pollux/internal/packet"
	"pollux/internal/reason"
)

// Only the first fragment of a datagram has ports, so it decides for all: what became of it is kept, under addresses, IP
// id and protocol as received, and done to the others. Pieces that come before it are held, bounded in number (all of
// them, and of one datagram) and time (timeouts.fragment from the first piece seen, never extended). When every byte of the
// datagram was seen it is done: kept for another second for what networks duplicate, if nobody needs its place, and until its
// sender uses the id again. A first fragment that finds no room takes that of an old datagram whose own never came.
//
// A piece that overlaps another, lies about the end, or is a second beginning with other ports, ends the whole datagram
// (RFC 1858, RFC 3128). A piece that repeats another exactly is what networks that duplicate packets produce: it is handled
// like the one it repeats. That also covers a held piece when the worker brings it back.
const (
	heldMax      = 64     // pieces of one datagram that are held: 64 KiB in pieces of 1 KiB
	datagramMax  = 0xffff // bytes, IP header included
	datagramUnit = 8      // bytes; fragments start at multiples of it
	doneTicks    = clock.PerSecond
)

// datagram is what is known of one datagram. Number 0 is none.
type datagram struct {
	key        [2]uint64 // see fragmentKey
	src, dst   packet.Addr
	ports      uint32     // the first fragment's source and destination port
	start      clock.Tick // of the first piece; of a datagram that is done: since then
	prev, next uint32     // in the queue by start, or in that of those done; next also in the free list
	held       uint32     // list of held pieces, in order of arrival
	heldEnd    uint32
	heldCount  uint16
	returning  uint16 // held pieces on their way back through the worker
	total      uint16 // bytes without IP header, known from the last fragment; 0: not yet
	end        uint16 // highest byte seen + 1
	seen       uint16 // units seen
	phase      phase
	reason     reason.Reason // with phaseDrop
	steps      uint8         // what the first fragment's TTL lost here
	owner      uint8         // with phaseAway
	done       bool          // every byte was seen, and nothing is held or coming back
}

// phase is how far a datagram's fate is decided.
type phase uint8

const (
	phaseWait    phase = iota // the first fragment has not come: hold
	phaseForward              // addresses as kept
	phaseAgain                // likewise, for the second pass of a hairpin
	phaseHost
	phaseAway // another worker's, whose number is in owner
	phaseDrop
)

// extent says of each 8-byte unit of a datagram whether it was seen, and whether a piece began there.
type extent struct {
	seen, begin [(datagramMax + datagramUnit) / datagramUnit / 64]uint64
}

// piece is a held fragment.
type piece struct {
	frame   uint64
	len     uint32
	next    uint32
	ingress uint16
	side    Side
	hairpin bool
	_       uint32
}

// fragmentQueue is a list of datagrams, the oldest first.
type fragmentQueue struct{ oldest, newest uint32 }

// fragments is the state of fragmented datagrams.
type fragments struct {
	index    index // by hash of the key
	list     []datagram
	extents  []extent // by the same number
	pieces   []piece
	free     uint32 // lists of free numbers, through next; numbers from fresh on were never used
	fresh    uint32
	freeHeld uint32
	freshOne uint32
	live     fragmentQueue // queue by start of those not done
	done     fragmentQueue // and of those done
	held     int           // pieces
	timeout  uint32        // ticks; set by SetRules
}

func (f *fragments) init(m *memory, o *Options) (err error) {
	n := max(o.Limits.Fragments, 1)
	f.fresh, f.freshOne = 1, 1
	if f.index.slots, err = table[uint64](m, n+n/3+8); err != nil {
		return err
	}
	if f.list, err = table[datagram](m, n+1); err != nil {
		return err
	}
	if f.extents, err = table[extent](m, n+1); err != nil {
		return err
	}
	f.pieces, err = table[piece](m, n+1)
	return err
}

// fragmentKey names a datagram (RFC 791 3.2). The two passes of a hairpin and the two sides never share state.
func fragmentKey(p *Packet) [2]uint64 {
	h := &p.H
	second := uint64(h.FragID) | uint64(h.Proto)<<16 | uint64(p.Side)<<24 | 1<<63
	if p.Hairpin {
		second |= 1 << 25
	}
	if p.Directed {
		second |= 1 << 26
	}
	return [2]uint64{uint64(h.Src)<<32 | uint64(h.Dst), second}
}

// due returns when advance will have work.
func (f *fragments) due() (at clock.Tick, ok bool) {
	for _, q := range []*fragmentQueue{&f.live, &f.done} {
		if q.oldest == 0 {
			continue
		}
		if t := f.list[q.oldest].start + clock.Tick(f.life(q.oldest)) + 1; !ok || t.Before(at) {
			at, ok = t, true
		}
	}
	return at, ok
}

// life is how long a datagram is kept.
func (f *fragments) life(id uint32) uint32 {
	if f.list[id].done {
		return doneTicks
	}
	return f.timeout
}

// late reports whether a datagram's time is up.
func (f *fragments) late(id uint32, now clock.Tick) bool {
	age := now.Since(f.list[id].start)
	return age > f.life(id) && int32(age) > 0
}

// advance ends datagrams whose time is up. A step is one datagram or one held piece.
func (f *fragments) advance(s *Shard, now clock.Tick, budget int) (work int) {
	for _, q := range []*fragmentQueue{&f.live, &f.done} {
		for q.oldest != 0 && work < budget && f.late(q.oldest, now) {
			work += 1 + int(f.list[q.oldest].heldCount)
			s.endDatagram(q.oldest, reason.FragmentTimeout)
		}
	}
	return work
}

// find returns the datagram of a key, 0 if there is none.
func (f *fragments) find(h uint32, key *[2]uint64) uint32 {
	x := &f.index
	for i := x.home(h); x.slots[i] != 0; i = x.next(i) {
		if id := uint32(x.slots[i]); uint32(x.slots[i]>>32) == h && f.list[id].key == *key {
			return id
		}
	}
	return 0
}

// add makes an entry at the end of the queue; 0: no room.
func (f *fragments) add(h uint32, key *[2]uint64, now clock.Tick) uint32 {
	id := f.free
	switch {
	case id != 0:
		f.free = f.list[id].next
	case int(f.fresh) < len(f.list):
		id = f.fresh
		f.fresh++
	default:
		return 0
	}
	f.list[id] = datagram{key: *key, start: now}
	f.join(&f.live, id)
	f.index.insert(h, id)
	return id
}

// join puts a datagram at the end of a queue.
func (f *fragments) join(q *fragmentQueue, id uint32) {
	d := &f.list[id]
	d.prev, d.next = q.newest, 0
	if q.newest != 0 {
		f.list[q.newest].next = id
	} else {
		q.oldest = id
	}
	q.newest = id
}

// leave takes a datagram out of its queue.
func (f *fragments) leave(id uint32) {
	d, q := &f.list[id], &f.live
	if d.done {
		q = &f.done
	}
	if d.prev != 0 {
		f.list[d.prev].next = d.next
	} else {
		q.oldest = d.next
	}
	if d.next != 0 {
		f.list[d.next].prev = d.prev
	} else {
		q.newest = d.prev
	}
}

// finish makes a datagram done.
func (f *fragments) finish(id uint32, now clock.Tick) {
	f.leave(id)
	d := &f.list[id]
	d.done, d.start = true, now
	f.join(&f.done, id)
}

// renew begins another datagram of the same key in the place of one that is done.
func (f *fragments) renew(id uint32, now clock.Tick) {
	f.leave(id)
	f.list[id] = datagram{key: f.list[id].key, start: now}
	f.extents[id] = extent{}
	f.join(&f.live, id)
}

// remove takes an entry that holds no pieces out.
func (f *fragments) remove(h, id uint32) {
	f.index.remove(h, id)
	f.leave(id)
	f.list[id] = datagram{next: f.free}
	f.extents[id] = extent{}
	f.free = id
}

// hold keeps a piece; false: no room.
func (f *fragments) hold(d *datagram, p *Packet) bool {
	id := f.freeHeld
	switch {
	case id != 0:
		f.freeHeld = f.pieces[id].next
	case int(f.freshOne) < len(f.pieces):
		id = f.freshOne
		f.freshOne++
	default:
		return false
	}
	f.pieces[id] = piece{frame: p.Frame, len: uint32(len(p.Data)), ingress: p.Ingress, side: p.Side, hairpin: p.Hairpin}
	if d.heldEnd != 0 {
		f.pieces[d.heldEnd].next = id
	} else {
		d.held = id
	}
	d.heldEnd = id
	d.heldCount++
	f.held++
	return true
}

// fragment handles a packet that is a first or later fragment.
func (s *Shard) fragment(p *Packet, now clock.Tick) {
	f := &s.frag
	key := fragmentKey(p)
	hash := s.seed.hash(key[0], key[1])
	id := f.find(hash, &key)
	if id != 0 && f.late(id, now) {
		s.endDatagram(id, reason.FragmentTimeout)
		id = 0
	}
	if id == 0 {
		if id = f.add(hash, &key, now); id == 0 && f.done.oldest != 0 {
			s.endDatagram(f.done.oldest, reason.None)
			id = f.add(hash, &key, now)
		}
		if id == 0 && p.H.FragOff == 0 && s.evictOrphan() {
			id = f.add(hash, &key, now)
		}
		if id == 0 {
			s.drop(p, reason.FragmentLimit)
			return
		}
	}
	d := &f.list[id]
	if d.done {
		if repeated, ok := f.extents[id].mark(d, &p.H); ok && repeated && p.H.FragOff != 0 {
			s.laterFragment(p, d)
			return
		}
		f.renew(id, now)
	}
	if p.Directed && p.H.FragOff == 0 && d.ports != uint32(p.H.SrcPort)<<16|uint32(p.H.DstPort) {
		// The worker with the table knows that this is another datagram of the same id.
		*d = datagram{key: d.key, start: d.start, prev: d.prev, next: d.next}
		f.extents[id] = extent{}
	}
	repeated, ok := f.extents[id].mark(d, &p.H)
	if !ok && !p.Directed {
		s.decide(d, phaseDrop, reason.FragmentBad)
	}
	if repeated && d.returning > 0 {
		d.returning--
	}
	if p.H.FragOff == 0 && !d.broken() {
		s.firstFragment(p, d, now)
	} else {
		s.laterFragment(p, d)
	}
	if d.complete() {
		f.finish(id, now)
	}
}

// orphansLookedAt bounds the search for a datagram that can make room.
const orphansLookedAt = 8

// evictOrphan makes room for a first fragment by giving up one of the oldest datagrams that forward nothing: a flood of
// pieces without beginnings fills the table, but not for datagrams that come in order.
func (s *Shard) evictOrphan() bool {
	f := &s.frag
	id := f.live.oldest
	for range orphansLookedAt {
		if id == 0 {
			break
		}
		if at := f.list[id].phase; at == phaseWait || at == phaseDrop {
			s.endDatagram(id, reason.FragmentLimit)
			return true
		}
		id = f.list[id].next
	}
	return false
}

// broken reports whether a datagram can't become whole any more, whatever its first fragment says.
func (d *datagram) broken() bool {
	return d.phase == phaseDrop && (d.reason == reason.FragmentBad || d.reason == reason.FragmentLimit)
}

// complete reports whether nothing more is to come of a datagram. One that is broken stays so until its time is up.
func (d *datagram) complete() bool {
	units := (int(d.total) + datagramUnit - 1) / datagramUnit
	return d.total != 0 && int(d.seen) == units && d.heldCount == 0 && d.returning == 0 && !d.broken()
}

// mark enters a fragment into its datagram's extent. ok is false when the two contradict each other; repeated says that just
// this piece was seen before. After a contradiction nothing more is entered.
func (x *extent) mark(d *datagram, h *packet.Headers) (repeated, ok bool) {
	length := int(h.L3) + int(h.Len) - int(h.L4)
	end := int(h.FragOff) + length
	last := h.Flags&packet.FlagMF == 0
	total := int(d.total)
	switch {
	case length == 0 || end+int(h.L4-h.L3) > datagramMax,
		!last && (length%datagramUnit != 0 || total != 0 && end >= total),
		last && (total != 0 && end != total || end < int(d.end)):
		return false, false
	}
	from, to := int(h.FragOff)/datagramUnit, (end+datagramUnit-1)/datagramUnit
	switch seen := x.count(&x.seen, from, to); {
	case seen == to-from:
		// Seen in whole: as this one piece, or else it lies across others.
		if x.count(&x.begin, from, to) != 1 || !bit(&x.begin, from) || bit(&x.seen, to) && !bit(&x.begin, to) || last != (total == end) {
			return false, false
		}
		return true, true
	case seen != 0:
		return false, false
	}
	x.fill(from, to)
	d.seen += uint16(to - from)
	d.end = max(d.end, uint16(end))
	if last {
		d.total = uint16(end)
	}
	return false, true
}

func bit(m *[len(extent{}.seen)]uint64, i int) bool {
	return i < len(m)*64 && m[i/64]>>(i%64)&1 != 0
}

// maskOf returns the bits of word w that lie in [from, to).
func maskOf(w, from, to int) uint64 {
	mask := ^uint64(0)
	if lo := from - w*64; lo > 0 {
		mask <<= lo
	}
	if hi := (w+1)*64 - to; hi > 0 {
		mask &= ^uint64(0) >> hi
	}
	return mask
}

// count returns how many bits of m in [from, to) are set.
func (x *extent) count(m *[len(extent{}.seen)]uint64, from, to int) (n int) {
	for w := from / 64; w*64 < to; w++ {
		n += bits.OnesCount64(m[w] & maskOf(w, from, to))
	}
	return n
}

// fill marks the units from..to-1 as seen, being one piece.
func (x *extent) fill(from, to int) {
	for w := from / 64; w*64 < to; w++ {
		x.seen[w] |= maskOf(w, from, to)
	}
	x.begin[from/64] |= 1 << (from % 64)
}

// firstFragment translates the fragment that has the ports and decides for the others.
func (s *Shard) firstFragment(p *Packet, d *datagram, now clock.Tick) {
	ports := uint32(p.H.SrcPort)<<16 | uint32(p.H.DstPort)
	if d.phase != phaseWait && d.ports != ports {
		s.decide(d, phaseDrop, reason.FragmentBad)
		s.drop(p, reason.FragmentBad)
		return
	}
	d.ports = ports
	if s.steering != nil && !p.Directed {
		if owner := s.steering.Whole(p); owner != s.worker {
			d.owner = uint8(owner)
			s.away(p, d)
			s.decide(d, phaseAway, reason.None)
			return
		}
	}
	if p.H.Kind == packet.KindICMPError {
		s.icmpError(p, now)
	} else {
		s.one(p, now)
	}
	ip := p.Data[p.H.L3:]
	d.src, d.dst = packet.Addr(binary.BigEndian.Uint32(ip[12:16])), packet.Addr(binary.BigEndian.Uint32(ip[16:20]))
	d.steps = p.H.TTL - ip[8]
	switch p.Verdict {
	case Forward:
		s.decide(d, phaseForward, reason.None)
	case Again:
		s.decide(d, phaseAgain, reason.None)
	case Host:
		s.decide(d, phaseHost, reason.ToHost)
	case Keep: // an unsolicited SYN in pieces: its tail is not worth waiting for
		s.decide(d, phaseDrop, reason.NoMapping)
	default:
		s.decide(d, phaseDrop, p.Reason)
	}
}

// laterFragment does to a piece without ports what was decided, or holds it.
func (s *Shard) laterFragment(p *Packet, d *datagram) {
	switch d.phase {
	case phaseWait:
		if p.Directed { // the first one was lost between the workers
			s.drop(p, reason.HandoffFull)
			return
		}
		s.holdFragment(p, d)
	case phaseAway:
		s.away(p, d)
	case phaseDrop:
		s.drop(p, d.reason)
	case phaseHost:
		s.host(p)
	default:
		if p.H.TTL <= d.steps { // RFC 1812 4.3.2.7: no answer to a later fragment
			s.drop(p, reason.TTLExpired)
			return
		}
		packet.SetEndpoints(p.Data, &p.H, d.src, 0, d.dst, 0)
		for range d.steps {
			packet.DecrementTTL(p.Data, &p.H)
		}
		p.Verdict, p.Reason, p.Hop = Forward, reason.None, nil
		if d.phase == phaseAgain {
			p.Verdict = Again
		}
	}
}

// away sends a fragment on to the worker that owns its datagram.
func (s *Shard) away(p *Packet, d *datagram) {
	p.Verdict, p.Reason, p.Hop, p.Owner = Away, reason.None, nil, d.owner
}

// holdFragment keeps an early piece until the first fragment comes. What was held and what is on its way back to the
// worker never exceed the limit together.
func (s *Shard) holdFragment(p *Packet, d *datagram) {
	f := &s.frag
	if d.heldCount >= heldMax {
		s.decide(d, phaseDrop, reason.FragmentLimit)
		s.drop(p, reason.FragmentLimit)
		return
	}
	if f.held+int(s.freed.tail-s.freed.head) >= len(f.pieces)-1 || !f.hold(d, p) {
		s.drop(p, reason.FragmentLimit)
		return
	}
	p.Verdict, p.Reason, p.Hop = Keep, reason.Held, nil
}

// decide settles a datagram's fate and lets go of its held pieces: with phaseDrop to be dropped, else to be translated now.
func (s *Shard) decide(d *datagram, to phase, why reason.Reason) {
	d.phase, d.reason = to, why
	s.releasePieces(d, to != phaseDrop, why)
}

// releasePieces hands the held pieces of a datagram back to the worker, in order of arrival.
func (s *Shard) releasePieces(d *datagram, again bool, why reason.Reason) {
	f := &s.frag
	for id := d.held; id != 0; {
		c := &f.pieces[id]
		r := Released{Frame: c.frame, Len: c.len, Ingress: c.ingress, Side: c.side, Hairpin: c.hairpin, Again: again}
		if again {
			d.returning++
		} else {
			r.Reason = why
			s.counters.Refused[why]++
		}
		s.release(r)
		next := c.next
		*c = piece{next: f.freeHeld}
		f.freeHeld = id
		f.held--
		id = next
	}
	d.held, d.heldEnd, d.heldCount = 0, 0, 0
}

// endDatagram forgets a datagram; pieces that it still holds are dropped for why.
func (s *Shard) endDatagram(id uint32, why reason.Reason) {
	d := &s.frag.list[id]
	s.releasePieces(d, false, why)
	s.frag.remove(s.seed.hash(d.key[0], d.key[1]), id)
}
