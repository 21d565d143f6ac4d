package rtcache

import (
	"math/bits"
	"net/netip"

	"github.com/gaissmai/bart"

	"pollux/internal/packet"
)

// A route's value in the tables is the number of a pathSet: all routes with the same next hops share one, so that a
// million routes over a few neighbours need a few.

// setKind is what becomes of a packet that matches a route.
type setKind uint8

const (
	setNone        setKind = iota // free entry
	setOne                        // one path
	setMulti                      // several paths, weighted
	setElsewhere                  // leaves by a netdev that is no port of ours
	setUnreachable                // route types of the same name
	setProhibit
	setBlackhole
	setThrow // ends the lookup in this table; the tables after it are not followed
	setLocal // kernel's own address
	setBroadcast
	setGone // all its netdevs are down: as if the route were not there, which it soon is not
)

// pathsMax is how many paths of one route are followed; the kernel's limit is higher, nobody's routers are.
const pathsMax = 64

// path is one next hop of a route that leaves by a port of ours.
type path struct {
	hop     uint32 // 0: on-link, the destination itself is the neighbour
	waiting uint32 // on-link: the hop that stands for addresses that have none yet
	weight  uint32 // >= 1
	egress  uint16 // port and MTU, see egress
	port    uint16
}

// pathSet is immutable once it is published in a snapshot.
type pathSet struct {
	kind    setKind
	one     path   // setOne
	total   uint32 // setMulti: sum of weights
	members []path
}

// leavesBy tells whether a source that this route leads to may come in by the port.
func (s *pathSet) leavesBy(port uint16, mode ReversePathMode) bool {
	switch {
	case mode == Loose:
		return true
	case s.kind == setOne:
		return s.one.port == port
	}
	for i := range s.members {
		if s.members[i].port == port {
			return true
		}
	}
	return false
}

// choose maps hash to a path in proportion to the weights. usable (nil: all) restricts it, total is the sum of its weights.
func (s *pathSet) choose(hash uint32, usable *[pathsMax]bool, total uint32) *path {
	if usable == nil {
		total = s.total
	}
	at, _ := bits.Mul32(hash, total)
	for i := range s.members {
		if usable != nil && !usable[i] {
			continue
		}
		if m := &s.members[i]; at < m.weight {
			return m
		} else {
			at -= m.weight
		}
	}
	return &s.members[len(s.members)-1] // not reached: at < total
}

// route is a value in the tables.
type route struct {
	set  uint32
	prio uint32 // the kernel's metric, lower wins
}

// snapshot is all that a lookup needs, swapped as a whole.
type snapshot struct {
	local    *bart.Table[route] // the kernel's own addresses: looked up first, as the kernel does
	main     *bart.Table[route]
	sets     setChunks
	ports    []Port
	source   []packet.Addr // per port: the address that the gateway speaks from
	sourceV6 []netip.Addr  // likewise, the zero Addr when there is none
}

// lookup gives the paths of an address with verdict OK, or why there are none. With a route that leaves elsewhere the
// verdict is NoRoute and the set is not nil.
func (s *snapshot) lookup(a netip.Addr) (*pathSet, Verdict) {
	if _, ok := s.local.Lookup(a); ok {
		return nil, Local
	}
	r, ok := s.main.Lookup(a)
	if !ok {
		return nil, NoRoute
	}
	set := s.sets.at(r.set)
	if set.kind == setGone {
		set = s.beyond(a)
	}
	switch set.kind {
	case setOne, setMulti:
		return set, OK
	case setElsewhere:
		return set, NoRoute
	case setUnreachable:
		return nil, Unreachable
	case setProhibit:
		return nil, Prohibit
	case setBlackhole:
		return nil, Blackhole
	case setLocal, setBroadcast:
		return nil, Local
	}
	return nil, NoRoute
}

// beyond looks past routes that are gone for a less specific one.
func (s *snapshot) beyond(a netip.Addr) *pathSet {
	for p := netip.PrefixFrom(a, a.BitLen()); ; {
		hit, r, ok := s.main.LookupPrefixLPM(p)
		if !ok {
			return s.sets.at(0)
		}
		if set := s.sets.at(r.set); set.kind != setGone || hit.Bits() == 0 {
			return set
		}
		p = netip.PrefixFrom(hit.Addr(), hit.Bits()-1)
	}
}
