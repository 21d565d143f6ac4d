package nat

import (
	"pollux/internal/clock"
	"pollux/internal/packet"
)

// findLink returns the link of a packet as seen on a side, 0 if there is none. It touches nothing and makes no state.
func (s *Shard) findLink(side Side, src, dst packet.Addr, sport, dport uint16, proto uint8, request bool, now clock.Tick) uint32 {
	t := makeTuple(side, src, dst, sport, dport, proto, request)
	n := s.lookup(t, s.seed.tuple(t))
	if n == 0 || s.gone(n/2, now) {
		return 0
	}
	return n / 2
}

// gone is absent without any consequence.
func (s *Shard) gone(id uint32, now clock.Tick) bool {
	return s.expired(id, now) || s.lines[2*id].epoch != s.epoch8 && !s.stands(id)
}

// info describes a link.
func (s *Shard) info(id uint32, now clock.Tick) LinkInfo {
	lo, li := &s.lines[2*id], &s.lines[2*id+1]
	left := uint32(0)
	if idle, limit := now.Since(s.last(id)), s.limit(id); idle < limit {
		left = limit - idle
	}
	return LinkInfo{
		ID: id, Proto: s.protoOf(id), Local: s.localOf(id), Alias: s.aliasOf(id), Remote: s.remoteOf(id),
		State: s.cold[id].state, ExpiresIn: left, Worker: s.worker, Inbound: s.has(id, flagInbound),
		Packets: lo.packets + li.packets, Bytes: lo.bytes + li.bytes,
		Age: now.Since(s.born[id]), Idle: now.Since(s.last(id)),
	}
}

// Links is Select of every link.
func (s *Shard) Links(cursor uint32, max int, visit func(LinkInfo) bool) (next uint32) {
	return s.Select(cursor, max, new(LinkFilter), visit)
}

// GroupLinks visits the links of one alias endpoint: by remote address and port where there are many of them, newest first among
// equals, else newest first. It stops after max, or when visit returns false.
func (s *Shard) GroupLinks(a Alias, proto uint8, max int, visit func(LinkInfo) bool) {
	gr := s.groups.find(a, proto)
	if gr.value == 0 {
		return
	}
	for id := s.groups.after(gr, 0); id != 0 && max > 0; id = s.groups.after(gr, id) {
		if max--; !s.gone(id, s.now) && !visit(s.info(id, s.now)) {
			return
		}
	}
}

// Delete ends a link by its ID and reports whether it was there. Rules are never touched by it.
func (s *Shard) Delete(id uint32, now clock.Tick) bool {
	if !s.used(id) {
		return false
	}
	was := !s.gone(id, now)
	s.counters.Deleted++
	s.remove(id, now)
	return was
}

// Lookup describes the link that a parsed packet belongs to, as Translate would find it; false: there is none. No state is
// made or touched.
func (s *Shard) Lookup(p *Packet) (LinkInfo, bool) {
	t, ok := tupleOf(p)
	if !ok {
		return LinkInfo{}, false
	}
	n := s.lookup(t, s.seed.tuple(t))
	if n == 0 || s.gone(n/2, s.now) {
		return LinkInfo{}, false
	}
	return s.info(n/2, s.now), true
}
