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

// LinkFilter picks links. Its zero value picks all. Ages are in ticks.
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

// Picks reports whether a link matches.
func (f *LinkFilter) Picks(l *LinkInfo) bool {
	ports := protoIndex(l.Proto) != 3
	switch {
	case f.ByProto && l.Proto != f.Proto, f.ByState && l.State != f.State, f.Inbound && !l.Inbound, f.Outbound && l.Inbound:
		return false
	case f.ByPort && !(ports && (l.Local.Port == f.Port || l.Alias.Port == f.Port || l.Proto != packet.ProtoICMP && l.Remote.Port == f.Port)):
		return false
	case !f.Local.Has(l.Local.Addr), !f.Alias.Has(l.Alias.Addr), !f.Remote.Has(l.Remote.Addr):
		return false
	case !f.Any.Has(l.Local.Addr) && !f.Any.Has(l.Alias.Addr) && !f.Any.Has(l.Remote.Addr):
		return false
	case f.Older != 0 && l.Age < f.Older, f.Younger != 0 && l.Age > f.Younger:
		return false
	}
	return f.Idle == 0 || l.Idle >= f.Idle
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
		if id == 0 || !s.used(id) || s.gone(id, s.now) {
			continue
		}
		if l := s.info(id, s.now); f.Picks(&l) && !visit(l) {
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
		if id == 0 || !s.used(id) || s.gone(id, now) {
			continue
		}
		if l := s.info(id, now); f.Picks(&l) {
			s.counters.Deleted++
			s.remove(id, now)
			n++
		}
	}
	return n, 0
}
