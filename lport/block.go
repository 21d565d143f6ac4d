package lport

import (
	"pollux/internal/clock"
	"pollux/internal/packet"
)

// Port blocks per host (RFC 6888 section 4, DESIGN 6): a run of ports, one of those that the port range is cut into, that
// serves TCP, UDP and ICMP ids of one host. A block is free; or held: links use it, or used it less than IdleRelease ago; or
// resting: given up by its host, which alone may have it back before Rest is over.
//
// The owner bytes of all three rows stay this worker's while a block is held or rests. The first bytes of its TCP row are
// the lock between workers: they are claimed first. Ports of the block that belong to the kernel, a redirect or
// another worker's single link are holes, which the host never gets.
const (
	blockFree = iota
	blockHeld
	blockResting
)

// block is one block of one alias address. Its id is the alias's index and its own, plus one, so that 0 is none.
type block struct {
	host       packet.Addr
	links      uint32     // uses of its ports
	since      clock.Tick // when it became idle, or began to rest
	next       uint32     // the host's next block
	prev, succ uint32     // in the line it waits in
	state      uint8
}

const (
	blockBits = 16       // 65,536 blocks of one port
	blockRows = RowOther // rows that a block serves: the first three
	lockPorts = 4        // a block's first ports, whose TCP bytes are its lock
)

// aliasBlocks are the blocks of one alias address.
type aliasBlocks struct {
	all  []block `image:"-"` // by block index
	free bitset  // by block index: not this worker's and not known to be taken
	live int     // held and resting
	seen uint32  // as row.seen and row.dry
	dry  bool
}

// blockSet is the geometry, and the two lines of blocks that wait. All wait equally long, so the lines are in order.
type blockSet struct {
	size          uint32 // ports in a block; 0: off
	skew          uint32 // block i starts at port i*size - skew, so that one starts where the port range does
	first, end    uint32 // indexes of the blocks that lie in the port range
	idle, resting blockLine
}

type blockLine struct {
	head, tail uint32
	n          int
}

// BlockEvent tells that a host was given a block or gave one up: all that a CGN has to log (RFC 6888 REQ-12).
type BlockEvent struct {
	Alias, Host packet.Addr
	Low, High   uint16 // inclusive
	At          clock.Tick
	Taken       bool // false: given up
}

// blockSpan returns how blocks lie: the first starts where the port range does, and those with indexes [first, end) lie in the
// range.
func blockSpan(o Options) (skew, first, end uint32) {
	size, low := uint32(o.Block.Size), uint32(o.Low)
	skew = (size - low%size) % size
	return skew, (low + skew) / size, (uint32(o.High) + 1 + skew) / size
}

// of returns the index of the block that a port lies in.
func (b *blockSet) of(port uint16) uint32 { return (uint32(port) + b.skew) / b.size }

// fitBlocks gives an alias address its block table when blocks are on.
func (s *Space) fitBlocks(a *aliasSpace) {
	b := &a.blocks
	b.dry = false
	if s.blocks.size == 0 || b.all != nil {
		return
	}
	all, err := mapped[block](int(s.blocks.of(65535)) + 1)
	if err != nil {
		return // no memory: no block is ever found and requests are refused
	}
	b.all = all
	for i := range all {
		b.free.set(uint16(i))
	}
}

func (s *Space) blockID(a *aliasSpace, i uint32) uint32 { return uint32(a.index)<<blockBits + i + 1 }

func (s *Space) block(id uint32) (*aliasSpace, *block, uint32) {
	a, i := s.aliases[(id-1)>>blockBits], (id-1)&(1<<blockBits-1)
	return a, &a.blocks.all[i], i
}

func (s *Space) blockPorts(i uint32) (lo, hi uint32) {
	return i*s.blocks.size - s.blocks.skew, (i+1)*s.blocks.size - s.blocks.skew - 1
}

// findInBlocks looks in the blocks that the host holds, then takes more of them.
func (s *Space) findInBlocks(q *query, r *Request, pair bool) (int32, error) {
	if len(q.a.blocks.all) == 0 {
		return -1, ErrNoPort
	}
	if port := s.wantedInBlock(q, r); port >= 0 && !pair {
		return port, nil
	}
	if q.only {
		return -1, ErrHostLimit
	}
	for {
		if s.o.Parity && !pair {
			q.mask = 0x5555555555555555 << (r.Want & 1)
			if port := s.inBlocks(q, false); port >= 0 {
				return port, nil
			}
			q.mask = ^uint64(0)
		}
		if port := s.inBlocks(q, pair); port >= 0 {
			return port, nil
		}
		if err := s.takeBlock(q, r); err != nil {
			return -1, err
		}
	}
}

// wantedInBlock tries the host's own number if it lies in a block that the host holds.
func (s *Space) wantedInBlock(q *query, r *Request) int32 {
	if !s.o.SamePorts && !q.only {
		return -1
	}
	b := &q.a.blocks.all[s.blocks.of(r.Want)]
	if b.state != blockHeld || b.host != r.Host || !s.tryWanted(q, r.Want, false) {
		return -1
	}
	return int32(r.Want)
}

// inBlocks tries the blocks that the host holds on the alias address.
func (s *Space) inBlocks(q *query, pair bool) int32 {
	for id := q.host.block; id != 0; {
		a, b, i := s.block(id)
		id = b.next
		if a != q.a || b.state != blockHeld || i < s.blocks.first || i >= s.blocks.end {
			continue
		}
		q.lo, q.hi = s.blockPorts(i)
		port := int32(-1)
		if pair {
			port = s.pairIn(q)
		} else {
			port = s.circle(q)
		}
		if port >= 0 {
			return port
		}
	}
	return -1
}

// takeBlock gives the host one more block on the alias address: one of its own that rests, or a free one.
func (s *Space) takeBlock(q *query, r *Request) error {
	h := q.host
	if int(h.blocks) >= s.o.Block.MaxPerHost {
		return ErrHostLimit
	}
	for id := h.block; id != 0; {
		a, b, i := s.block(id)
		if a == q.a && b.state == blockResting && i >= s.blocks.first && i < s.blocks.end {
			s.leaveLine(&s.blocks.resting, b)
			s.hold(a, b, i, h, r.Now)
			return nil
		}
		id = b.next
	}
	for range refills {
		for {
			i := s.freeBlock(q.a)
			if i < 0 {
				break
			}
			q.a.blocks.free.clear(uint16(i))
			if !s.lockBlock(q.a, uint32(i)) {
				continue
			}
			b := &q.a.blocks.all[i]
			b.host, b.links, b.next = r.Host, 0, h.block
			h.block = s.blockID(q.a, uint32(i))
			q.a.blocks.live++
			s.hold(q.a, b, uint32(i), h, r.Now)
			return nil
		}
		if !s.refillBlocks(q.a) {
			break
		}
	}
	return ErrNoPort
}

// hold makes a block the host's. It waits in the idle line until its first link.
func (s *Space) hold(a *aliasSpace, b *block, i uint32, h *hold, now clock.Tick) {
	b.state, b.since = blockHeld, now
	h.blocks++
	s.joinLine(&s.blocks.idle, b, s.blockID(a, i))
	s.blockEvent(a, b, i, now, true)
}

// freeBlock returns a random block that is free as far as known, or -1.
func (s *Space) freeBlock(a *aliasSpace) int32 {
	start := s.blocks.first + s.random(s.blocks.end-s.blocks.first)
	if i := a.blocks.free.next(start, s.blocks.end-1); i >= 0 || start == s.blocks.first {
		return i
	}
	return a.blocks.free.next(s.blocks.first, start-1)
}

// lockBlock claims the owner bytes of a block; false when somebody has it, or a link of this worker uses one of its ports.
func (s *Space) lockBlock(a *aliasSpace, i uint32) bool {
	lo, hi := s.blockPorts(i)
	for rw := range blockRows {
		r := a.row(rw)
		if r == nil {
			return false
		}
		for port := lo; port <= hi; port++ {
			if r.uses[port] != 0 {
				return false
			}
		}
	}
	if !a.own.lock(lo, hi, s.o.Worker) {
		return false
	}
	for rw := range blockRows {
		s.fillBlock(a, rw, lo, hi)
	}
	return true
}

// lock claims the free bytes of a block's lock, unless a worker has one of them or none is free. Of two workers that try at once
// one at least sees a byte of the other's afterwards, for each claims before it looks; whoever does gives up.
func (a *aliasOwners) lock(lo, hi uint32, worker int) bool {
	hi = min(hi, lo+lockPorts-1)
	mine := 0 // bit i: byte lo+i was claimed here
	for port := lo; port <= hi; port++ {
		if a.claim(RowTCP, uint16(port), worker) {
			mine |= 1 << (port - lo)
		}
	}
	locked := mine != 0
	for port := lo; port <= hi; port++ {
		if b := a.byte(RowTCP, uint16(port)); mine>>(port-lo)&1 == 0 && b != ByteFree && b <= WorkersMax {
			locked = false
		}
	}
	if !locked && mine != 0 {
		for port := lo; port <= hi; port++ {
			if mine>>(port-lo)&1 != 0 {
				a.release(RowTCP, uint16(port))
			}
		}
		a.tell(RowTCP, 0)
	}
	return locked
}

// fillBlock claims what is free of [lo, hi] and makes the hints say exactly which ports the block has.
func (s *Space) fillBlock(a *aliasSpace, rw Row, lo, hi uint32) {
	r := a.rows[rw]
	for port := lo; port <= hi; port++ {
		p := uint16(port)
		if a.own.byte(rw, p) == s.me || a.own.claim(rw, p, s.o.Worker) {
			if r.uses[port] == 0 { // the others were counted when they were claimed
				r.held++
				r.offer(p)
			}
		} else {
			r.drop(p)
		}
	}
}

// refillBlocks looks for blocks that others gave back, as refill does for ports.
func (s *Space) refillBlocks(a *aliasSpace) bool {
	b, r, news := &a.blocks, a.row(RowTCP), &a.own.rows[RowTCP]
	if r == nil {
		return false
	}
	if !r.hungry {
		r.hungry, b.dry = true, false
		news.hungry.Add(1)
	}
	gen := news.gen.Load()
	if b.dry && gen == b.seen {
		return false
	}
	n := 0
	for i := s.blocks.first; i < s.blocks.end; i++ {
		if b.all[i].state != blockFree || b.free.has(uint16(i)) {
			continue
		}
		if a.own.unlocked(s.blockPorts(i)) {
			b.free.set(uint16(i))
			n++
		}
	}
	b.dry, b.seen = true, gen // whatever lockBlock now refuses stays refused until a byte comes back
	return n != 0
}

// unlocked reports whether a block's lock could be claimed.
func (a *aliasOwners) unlocked(lo, hi uint32) bool {
	free := false
	for port := lo; port <= min(hi, lo+lockPorts-1); port++ {
		switch b := a.byte(RowTCP, uint16(port)); {
		case b == ByteFree:
			free = true
		case b <= WorkersMax:
			return false
		}
	}
	return free
}

// enterBlock counts a use of a port in its block, if a host holds that.
func (s *Space) enterBlock(a *aliasSpace, rw Row, port uint16) {
	if rw >= blockRows || len(a.blocks.all) == 0 {
		return
	}
	b := &a.blocks.all[s.blocks.of(port)]
	if b.state != blockHeld {
		return
	}
	if b.links == 0 {
		s.leaveLine(&s.blocks.idle, b)
	}
	b.links++
}

// leaveBlock undoes enterBlock and reports whether the port's byte belongs to a block.
func (s *Space) leaveBlock(a *aliasSpace, rw Row, port uint16, now clock.Tick) bool {
	if s.blocks.size == 0 || rw >= blockRows || len(a.blocks.all) == 0 {
		return false
	}
	i := s.blocks.of(port)
	b := &a.blocks.all[i]
	if b.state != blockHeld || b.links == 0 {
		return b.state != blockFree
	}
	if b.links--; b.links == 0 {
		b.since = now
		s.joinLine(&s.blocks.idle, b, s.blockID(a, i))
	}
	return true
}

// resting reports whether a port's block rests.
func (s *Space) resting(a *aliasSpace, rw Row, port uint16) bool {
	return s.blocks.size != 0 && rw < blockRows && len(a.blocks.all) != 0 &&
		a.blocks.all[s.blocks.of(port)].state == blockResting
}

// Advance ends the waiting of at most budget blocks whose time has come and returns how many it was.
func (s *Space) Advance(now clock.Tick, budget int) int {
	n := 0
	for ; n < budget && s.blocks.idle.head != 0; n++ {
		a, b, i := s.block(s.blocks.idle.head)
		due := b.since.Add(s.o.Block.IdleRelease)
		if now.Before(due) {
			break
		}
		s.leaveLine(&s.blocks.idle, b)
		b.state, b.since = blockResting, due
		if h := s.ledger.peek(b.host); h != nil {
			h.blocks--
		}
		s.joinLine(&s.blocks.resting, b, s.blockID(a, i))
		s.blockEvent(a, b, i, due, false)
	}
	for ; n < budget && s.blocks.resting.head != 0; n++ {
		a, b, i := s.block(s.blocks.resting.head)
		if now.Before(b.since.Add(s.o.Block.Rest)) {
			break
		}
		s.leaveLine(&s.blocks.resting, b)
		s.unlockBlock(a, b, i)
	}
	return n
}

// Due returns the earliest tick at which Advance has work; false: never, as things stand.
func (s *Space) Due() (clock.Tick, bool) {
	var due clock.Tick
	found := false
	if id := s.blocks.idle.head; id != 0 {
		_, b, _ := s.block(id)
		due, found = b.since.Add(s.o.Block.IdleRelease), true
	}
	if id := s.blocks.resting.head; id != 0 {
		_, b, _ := s.block(id)
		if t := b.since.Add(s.o.Block.Rest); !found || t.Before(due) {
			due, found = t, true
		}
	}
	return due, found
}

// unlockBlock makes a block free for all.
func (s *Space) unlockBlock(a *aliasSpace, b *block, i uint32) {
	if h := s.ledger.peek(b.host); h != nil {
		id := s.blockID(a, i)
		for p := &h.block; *p != 0; {
			_, x, _ := s.block(*p)
			if *p == id {
				*p = x.next
				break
			}
			p = &x.next
		}
		s.ledger.trim(h)
	}
	lo, hi := s.blockPorts(i)
	for rw := range blockRows {
		if a.own != nil {
			s.releaseRange(a, rw, lo, hi, false)
		}
	}
	*b = block{}
	a.blocks.free.set(uint16(i))
	a.blocks.live--
}

// dissolve ends all blocks: their ports in use go on as single ports.
func (s *Space) dissolve(now clock.Tick) {
	for _, a := range s.aliases {
		if a == nil || a.blocks.all == nil {
			continue
		}
		for i := range a.blocks.all {
			b := &a.blocks.all[i]
			if b.state == blockFree {
				continue
			}
			if b.state == blockHeld {
				s.blockEvent(a, b, uint32(i), now, false)
			}
			if h := s.ledger.peek(b.host); h != nil {
				h.blocks = 0
			}
			s.unlockBlock(a, b, uint32(i))
		}
		unmap(a.blocks.all)
		a.blocks = aliasBlocks{}
	}
	s.blocks = blockSet{}
}

// reclaimBlocks takes the bytes of held and resting blocks again; see reclaim.
func (s *Space) reclaimBlocks(a *aliasSpace) {
	for i := range a.blocks.all {
		if a.blocks.all[i].state == blockFree {
			continue
		}
		lo, hi := s.blockPorts(uint32(i))
		for rw := range blockRows {
			s.fillBlock(a, rw, lo, hi)
		}
	}
}

// joinLine puts a block at the end of a line.
func (s *Space) joinLine(l *blockLine, b *block, id uint32) {
	b.prev, b.succ = l.tail, 0
	if l.tail != 0 {
		_, t, _ := s.block(l.tail)
		t.succ = id
	} else {
		l.head = id
	}
	l.tail = id
	l.n++
}

// leaveLine takes a block out of the line it waits in.
func (s *Space) leaveLine(l *blockLine, b *block) {
	if b.prev != 0 {
		_, p, _ := s.block(b.prev)
		p.succ = b.succ
	} else {
		l.head = b.succ
	}
	if b.succ != 0 {
		_, n, _ := s.block(b.succ)
		n.prev = b.prev
	} else {
		l.tail = b.prev
	}
	b.prev, b.succ = 0, 0
	l.n--
}

// events is a ring of block events that the owner has not fetched yet.
type events struct {
	ring []BlockEvent
	get  uint32
	put  uint32
}

const eventsMax = 4096

func (s *Space) blockEvent(a *aliasSpace, b *block, i uint32, at clock.Tick, taken bool) {
	e := &s.events
	if e.put-e.get == eventsMax {
		s.stats.lost++
		return
	}
	lo, hi := s.blockPorts(i)
	e.ring[e.put%eventsMax] = BlockEvent{Alias: a.addr, Host: b.host, Low: uint16(lo), High: uint16(hi), At: at, Taken: taken}
	e.put++
}

// EventsLost returns how many block events found no room.
func (s *Space) EventsLost() uint64 { return s.stats.lost }

// NextBlockEvent returns the oldest block event not fetched yet. At most 4,096 wait; further ones are lost and counted.
func (s *Space) NextBlockEvent() (BlockEvent, bool) {
	e := &s.events
	if e.get == e.put {
		return BlockEvent{}, false
	}
	e.get++
	return e.ring[(e.get-1)%eventsMax], true
}
