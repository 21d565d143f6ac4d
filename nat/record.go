package nat

import (
	"pollux/internal/clock"
	"pollux/internal/packet"
)

// Record is a link as a snapshot keeps it: what another process needs to make it again.
type Record struct {
	Local   Local
	Alias   Alias
	Remote  Remote
	Idle    uint32 // ticks since its last packet
	Proto   uint8
	State   State
	TCP     uint8 // flags seen
	Flags   uint8 // how it came to be, and how it holds its port
	Request bool  // ICMP: the outbound packets are requests
}

// Records visits up to max links from cursor on (0: the start) and returns where to go on, 0 when all were seen.
func (s *Shard) Records(cursor uint32, max int, visit func(Record)) (next uint32) {
	s.keeper.enter()
	defer s.keeper.leave()
	for id := cursor; id < s.fresh; id++ {
		if max--; max < 0 {
			return id
		}
		if id == 0 || !s.used(id) || s.gone(id, s.now) {
			continue
		}
		c := &s.cold[id]
		visit(Record{
			Local: s.localOf(id), Alias: s.aliasOf(id), Remote: s.remoteOf(id), Idle: s.now.Since(s.last(id)), Proto: s.protoOf(id),
			State: c.state, TCP: c.tcp, Flags: c.flags &^ (flagMapping | flagOutTwin), Request: s.lines[2*id].key.request(),
		})
	}
	return 0
}

// Restore makes a link of a record again, and reports whether that was possible: it must not have expired, its endpoints and its
// alias port must be free, a redirect that made it must be there, limits must allow it, and both its directions must come here.
// Nothing of it is left otherwise. Records of one mapping may come in any order.
func (s *Shard) Restore(r *Record, now clock.Tick) bool {
	s.keeper.enter()
	defer s.keeper.leave()
	n := newLink{local: r.Local, alias: r.Alias, remote: r.Remote, proto: r.Proto, request: r.Request,
		kind: portKind(r.Flags & portKindMask), flags: r.Flags &^ (portKindMask | flagMapping | flagOutTwin)}
	if s.full() || s.ours.find(n.alias.Addr) == nil || r.Local.Addr == 0 || r.Remote.Addr == 0 || r.State > Closing || (r.Proto == packet.ProtoTCP) != (r.State != Active) ||
		r.Flags&(flagOneShot|flagTarget) == flagOneShot|flagTarget || !s.mineOut(&n) || !s.rangeOf(&n) || s.stale(r) {
		return false
	}
	for _, key := range s.keysOf(&n) {
		if s.lookup(key, s.seed.tuple(key)) != 0 {
			return false
		}
	}
	if n.flags&flagInbound == 0 && !s.charge(&n, now) {
		return false
	}
	if !s.claimAgain(&n) {
		if n.flags&flagInbound == 0 {
			s.leaveHost(n.local.Addr, now)
		}
		return false
	}
	id := s.create(&n, now)
	c := &s.cold[id]
	s.wheelOf(id).remove(id)
	s.counters.State[c.state]--
	c.state, c.tcp = r.State, r.TCP
	s.counters.State[c.state]++
	last := now - clock.Tick(r.Idle)
	s.lines[2*id].last, s.lines[2*id+1].last = last, last
	s.watch(id)
	s.queue(id)
	if !s.stands(id) {
		s.remove(id, now)
		return false
	}
	return true
}

// stale reports whether a record's link has expired.
func (s *Shard) stale(r *Record) bool {
	limit := s.timeout.other
	switch r.Proto {
	case packet.ProtoTCP:
		limit = s.timeout.state[r.State]
	case packet.ProtoUDP:
		limit = s.timeout.udp
	case packet.ProtoICMP:
		limit = s.timeout.icmp
	}
	return r.Idle > limit
}

// keysOf are the tuples that a link is found by.
func (s *Shard) keysOf(n *newLink) [2]tuple {
	if n.proto == packet.ProtoICMP {
		return [2]tuple{makeTuple(Inside, n.local.Addr, n.remote.Addr, n.local.Port, n.local.Port, n.proto, n.request),
			makeTuple(Outside, n.remote.Addr, n.alias.Addr, n.alias.Port, n.alias.Port, n.proto, !n.request)}
	}
	return [2]tuple{makeTuple(Inside, n.local.Addr, n.remote.Addr, n.local.Port, n.remote.Port, n.proto, false),
		makeTuple(Outside, n.remote.Addr, n.alias.Addr, n.remote.Port, n.alias.Port, n.proto, false)}
}

// rangeOf reports whether the rules would still give a dynamic link such a port.
func (s *Shard) rangeOf(n *newLink) bool {
	if n.kind == portRule || protoIndex(n.proto) == 3 || n.flags&flagTarget != 0 {
		return true
	}
	if s.rules.Blocks.Size != 0 { // a block is its host's as a whole
		return false
	}
	if s.plan != nil {
		alias, low, high, ok := s.plan.Forward(n.local.Addr)
		return ok && alias == n.alias.Addr && low <= n.alias.Port && n.alias.Port <= high
	}
	return s.rules.PortRange.Low <= n.alias.Port && n.alias.Port <= s.rules.PortRange.High
}

// charge takes a link on the account of its host, without its rate.
func (s *Shard) charge(n *newLink, now clock.Tick) bool {
	id := s.hosts.find(n.local.Addr)
	if id == 0 {
		if id = s.hosts.add(n.local.Addr, s.hostRate()*1000, now); id == 0 {
			return false
		}
	}
	h := &s.hosts.list[id]
	if most := s.limits.LinksPerHost; most > 0 && int(h.links) >= most {
		return false
	}
	if h.alias == 0 && n.kind != portRule {
		h.alias = n.alias.Addr
	}
	n.host = id
	h.links++
	return true
}

// claimAgain takes the alias port of a link that is restored.
func (s *Shard) claimAgain(n *newLink) bool {
	if protoIndex(n.proto) == 3 && n.kind != portRule {
		return s.fixed(n)
	}
	switch n.kind {
	case portRule:
		return true
	case portExclusive:
		if by := s.mapping(n.local, n.proto, n.kind, n.remote.Addr, n.alias); by != 0 {
			return true
		}
		return s.ports.ExclusiveAt(n.alias.Addr, rowOf(n.proto), n.alias.Port, n.local.Addr)
	case portAddress:
		if s.mapping(n.local, n.proto, n.kind, n.remote.Addr, n.alias) != 0 {
			return true
		}
	}
	return s.fixed(n)
}
