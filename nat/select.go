package nat

import (
	"pollux/internal/clock"
	"pollux/internal/packet"
)

// Network is an IPv4 prefix; the zero Network asks nothing.
type Network struct {
	Base, Mask packet.Addr
	Valid      bool
}

// Has reports whether an address lies in the network, or the zero Network asks nothing.
func (n *Network) Has(a packet.Addr) bool { return !n.Valid || a&n.Mask == n.Base }

// LinkFilter picks links. Its zero value picks all. It is evaluated on the records, so that links that don't match are not
// copied. Ages are in ticks.
type LinkFilter struct {
	Any                  Network // either end or the alias address
	Local, Alias, Remote Network
	Port                 uint16 // any of the three ports or ids
	Proto                uint8
	State                State
	ByPort               bool
	ByProto              bool
	ByState              bool
	Inbound, Outbound    bool   // only links opened from there; not both
	Older, Younger       uint32 // made at least, at most so long ago; 0: not asked
	Idle                 uint32 // no packet for at least so long; 0: not asked
}

// All reports whether the filter picks every link.
func (f *LinkFilter) All() bool { return *f == LinkFilter{} }

// picks reports whether a link matches.
func (s *Shard) picks(f *LinkFilter, id uint32, now clock.Tick) bool {
	proto := s.protoOf(id)
	if f.ByProto && proto != f.Proto || f.ByState && s.cold[id].state != f.State ||
		f.Inbound && !s.has(id, flagInbound) || f.Outbound && s.has(id, flagInbound) {
		return false
	}
	local, alias, remote := s.localOf(id), s.aliasOf(id), s.remoteOf(id)
	switch age := now.Since(s.born[id]); {
	case f.ByPort && (protoIndex(proto) == 3 || local.Port != f.Port && alias.Port != f.Port && (proto == packet.ProtoICMP || remote.Port != f.Port)):
		return false
	case !f.Local.Has(local.Addr), !f.Alias.Has(alias.Addr), !f.Remote.Has(remote.Addr):
		return false
	case f.Any.Valid && !f.Any.Has(local.Addr) && !f.Any.Has(alias.Addr) && !f.Any.Has(remote.Addr):
		return false
	case f.Older != 0 && age < f.Older, f.Younger != 0 && age > f.Younger:
		return false
	}
	return f.Idle == 0 || now.Since(s.last(id)) >= f.Idle
}

// Select visits the links that f picks among max records from cursor on (0: the start) and returns where to go on, 0 when
// all were seen. Visit may stop by returning false; next then is the record after. Expired and dead links are left out.
// Times count from the last Translate or Advance.
func (s *Shard) Select(cursor uint32, max int, f *LinkFilter, visit func(LinkInfo) bool) (next uint32) {
	s.keeper.enter()
	defer s.keeper.leave()
	for id := cursor; id < s.fresh; id++ {
		if max--; max < 0 {
			return id
		}
		if id == 0 || !s.used(id) || s.gone(id, s.now) || !s.picks(f, id, s.now) {
			continue
		}
		if !visit(s.info(id, s.now)) {
			if id+1 < s.fresh {
				return id + 1
			}
			return 0
		}
	}
	return 0
}

// DeleteSome ends the links that f picks, as Delete does: at most most of them, among max records from cursor on. It returns
// how many there were and where to go on, 0 when all were seen.
func (s *Shard) DeleteSome(cursor uint32, max, most int, f *LinkFilter, now clock.Tick) (n int, next uint32) {
	s.keeper.enter()
	defer s.keeper.leave()
	for id := cursor; id < s.fresh; id++ {
		if max--; max < 0 || n == most {
			return n, id
		}
		if id != 0 && s.used(id) && !s.gone(id, now) && s.picks(f, id, now) {
			s.counters.Deleted++
			s.remove(id, now)
			n++
		}
	}
	return n, 0
}
