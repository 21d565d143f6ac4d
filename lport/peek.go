package lport

// What a request would be given, without giving it. The answer follows the rules of choose by what is true now, not by the
// hints that it searches by, so the two agree unless something happens in between.

// Offer is what a request would get: Port if Sure, else some port of Low to High.
type Offer struct {
	Port      uint16
	Sure      bool
	Low, High uint16
	Block     bool // the host would be given one more port block first
}

// peekTries is how many ports that are in use toward a peer Peek looks at before it gives up: each costs a probe of the link
// table.
const peekTries = 4096

// Peek says what Exclusive, or with shared Toward, would answer. Errors: ErrNoPort, ErrHostLimit.
func (s *Space) Peek(r *Request, shared bool, p Peer) (Offer, error) {
	if s.o.Owners.table.Load().find(r.Alias) == nil || r.Row >= Rows {
		return Offer{}, ErrNoPort
	}
	k := peek{s: s, a: s.known(r.Alias), r: r, shared: shared, peer: p, lo: s.low, hi: s.high, tries: peekTries}
	if plan := s.o.Deterministic; plan != nil {
		alias, lo, hi, ok := plan.Forward(r.Host)
		if !ok || alias != r.Alias {
			return Offer{}, ErrNoPort
		}
		k.lo, k.hi = uint32(lo), uint32(hi)
	}
	host := s.ledger.peek(r.Host)
	only := false
	if limit := uint32(s.o.PortsPerHost); limit != 0 && host != nil && host.n+1 > limit {
		want := uint32(r.Want)
		if !shared || want < k.lo || want > k.hi || s.ledger.find(r.Host, r.Alias, r.Row, r.Want) == nil {
			return Offer{}, ErrHostLimit
		}
		k.lo, k.hi, only = want, want, true
	}
	if s.blocks.size != 0 {
		return k.inBlocks(host, only)
	}
	crowded := k.crowded()
	if want := uint32(r.Want); s.o.SamePorts && want >= k.lo && want <= k.hi && k.wanted(r.Want, crowded) {
		return Offer{Port: r.Want, Sure: true}, nil
	}
	return k.some(k.lo, k.hi)
}

// Takes reports whether Fixed would take a port.
func (s *Space) Takes(r *Request, port uint16) bool {
	a := s.known(r.Alias)
	if s.o.Owners.table.Load().find(r.Alias) == nil || a != nil && s.resting(a, r.Row, port) {
		return false
	}
	k := peek{s: s, a: a, r: r, shared: true}
	return k.claimable(port)
}

// peek is one question.
type peek struct {
	s      *Space
	a      *aliasSpace // nil: the address was never used here
	r      *Request
	shared bool
	peer   Peer
	lo, hi uint32
	tries  int
}

func (k *peek) row() *row {
	if k.a == nil {
		return nil
	}
	return k.a.rows[k.r.Row&(Rows-1)]
}

// crowded is Space.crowded, also for an address or row that was never used here.
func (k *peek) crowded() bool {
	own := k.s.o.Owners.table.Load().find(k.r.Alias)
	if r := k.row(); r != nil && k.a.own == own {
		return k.s.crowded(k.a, r, k.r.Row)
	}
	return k.s.o.Workers > 1 && k.s.o.Deterministic == nil && (k.s.share <= 0 || own.rows[k.r.Row].hungry.Load() > 0)
}

// claimable reports whether a port is nobody else's and may have one more link.
func (k *peek) claimable(port uint16) bool {
	own := k.s.o.Owners.table.Load().find(k.r.Alias)
	if r := k.row(); r != nil && r.uses[port] != 0 && (r.uses[port]&exclusive != 0 || !k.shared) {
		return false
	}
	switch own.byte(k.r.Row, port) {
	case ByteFree:
		return true
	case k.s.me:
		return !own.reserved(k.r.Row, port)
	}
	return false
}

// free is claimable for a port that is also free toward the peer.
func (k *peek) free(port uint16) bool {
	if !k.claimable(port) {
		return false
	}
	if !k.shared || k.s.o.InUse == nil {
		return true
	}
	k.tries--
	return !k.s.o.InUse(k.r.Alias, k.r.Row, port, k.peer)
}

// wanted follows tryWanted: the host's own number is given by the hints, which may not know yet that it is free.
func (k *peek) wanted(port uint16, crowded bool) bool {
	r := k.row()
	switch {
	case r == nil, r.uses[port] == 0:
		if crowded && k.shared || r != nil && !r.free.has(port) && k.s.o.Owners.Byte(k.r.Alias, k.r.Row, port) != ByteFree {
			return false
		}
	case !k.shared || !r.open.has(port):
		return false
	}
	if k.shared && r != nil && r.caches != 0 {
		if c := k.s.caches.find(k.r.Alias, k.r.Row, k.peer); c != nil && c.bits[port>>6]>>(port&63)&1 != 0 {
			return false
		}
	}
	return k.free(port)
}

// some finds out whether one of [lo, hi] would do.
func (k *peek) some(lo, hi uint32) (Offer, error) {
	for port := lo; port <= hi && k.tries > 0; port++ {
		if k.free(uint16(port)) {
			o := Offer{Low: uint16(lo), High: uint16(hi)}
			if lo == hi {
				o.Port, o.Sure = uint16(port), true
			}
			return o, nil
		}
	}
	return Offer{}, ErrNoPort
}

// inBlocks is Peek with port blocks: in those that the host holds, or in one more.
func (k *peek) inBlocks(host *hold, only bool) (Offer, error) {
	s := k.s
	if a := k.a; a != nil && len(a.blocks.all) != 0 {
		if b := &a.blocks.all[s.blocks.of(k.r.Want)]; (s.o.SamePorts || only) && b.state == blockHeld && b.host == k.r.Host && k.wanted(k.r.Want, false) {
			return Offer{Port: k.r.Want, Sure: true}, nil
		}
	}
	if only {
		return Offer{}, ErrHostLimit
	}
	resting := false
	if host != nil {
		for id := host.block; id != 0; {
			a, b, i := s.block(id)
			id = b.next
			if a != k.a || i < s.blocks.first || i >= s.blocks.end {
				continue
			}
			if b.state == blockResting {
				resting = true
				continue
			}
			lo, hi := s.blockPorts(i)
			if o, err := k.some(lo, hi); err == nil {
				return o, nil
			}
		}
		if int(host.blocks) >= s.o.Block.MaxPerHost {
			return Offer{}, ErrHostLimit
		}
	}
	lowest, _ := s.blockPorts(s.blocks.first)
	_, hi := s.blockPorts(s.blocks.end - 1)
	if resting {
		return Offer{Low: uint16(lowest), High: uint16(hi), Block: true}, nil
	}
	own := s.o.Owners.table.Load().find(k.r.Alias)
	for i := s.blocks.first; i < s.blocks.end; i++ {
		if k.a != nil && len(k.a.blocks.all) != 0 && (k.a.blocks.all[i].state != blockFree || k.usesIn(i)) {
			continue
		}
		if own.unlocked(s.blockPorts(i)) {
			return Offer{Low: uint16(lowest), High: uint16(hi), Block: true}, nil
		}
	}
	return Offer{}, ErrNoPort
}

// usesIn reports whether a link of this worker has a port of a block that is free.
func (k *peek) usesIn(i uint32) bool {
	lo, hi := k.s.blockPorts(i)
	for rw := range blockRows {
		r := k.a.rows[rw]
		for port := lo; r != nil && port <= hi; port++ {
			if r.uses[port] != 0 {
				return true
			}
		}
	}
	return false
}
