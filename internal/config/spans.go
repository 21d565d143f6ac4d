package config

import (
	"net/netip"
	"slices"

	"pollux/internal/packet"
)

// span is an inclusive range of addresses.
type span struct{ first, last packet.Addr }

func spanOf(p netip.Prefix) span {
	first := packet.AddrFrom(p.Addr())
	return span{first, first | packet.Addr(uint64(1)<<(32-p.Bits())-1)}
}

// spans holds disjoint spans in order, with the place each was written at.
type spans struct {
	list   []span
	places []place
}

func newSpans() *spans { return &spans{} }

// add puts a span in, unless it overlaps one that is there: then it tells where that was written.
func (s *spans) add(v span, at place) (other place, clash bool) {
	i, _ := slices.BinarySearchFunc(s.list, v.first, func(x span, first packet.Addr) int {
		if x.last < first {
			return -1
		}
		return 1
	})
	if i < len(s.list) && s.list[i].first <= v.last {
		return s.places[i], true
	}
	s.list = slices.Insert(s.list, i, v)
	s.places = slices.Insert(s.places, i, at)
	return place{}, false
}
