package rtcache

import (
	"encoding/binary"
	"slices"
)

// setStore interns path sets. Published sets never change: a chunk that a snapshot may show is copied before it is written.
type setStore struct {
	info   []setInfo // by set number; 0 is none
	byKey  map[string]uint32
	free   []uint32
	chunks setChunks
	own    map[uint32]bool // chunks not shown to anybody since they were copied
	key    []byte          // scratch
}

type setInfo struct {
	key  string
	refs int // routes that name it, alternatives included
	kind setKind
	v6   bool
	mtu  int
	hops []nextHop
}

const setsPerChunk = 256

// setChunks is an array of sets in pieces, so that publishing one new set copies one piece.
type setChunks []*[setsPerChunk]pathSet

func (s setChunks) at(i uint32) *pathSet { return &s[i/setsPerChunk][i%setsPerChunk] }

func newSetStore() setStore {
	return setStore{
		info:   make([]setInfo, 1),
		byKey:  map[string]uint32{},
		chunks: setChunks{new([setsPerChunk]pathSet)},
		own:    map[uint32]bool{},
	}
}

// find returns the number of the set that a route describes, 0: there is none yet. It leaves the key in s.key.
func (s *setStore) find(e *routeEvent) uint32 {
	k := append(s.key[:0], byte(e.kind))
	if len(e.hops) > 1 && e.prefix.Addr().Is6() {
		k[0] |= 0x80 // those of the two families end differently, see lost
	}
	k = binary.LittleEndian.AppendUint32(k, uint32(e.mtu))
	for i := range e.hops {
		h := &e.hops[i]
		k = binary.LittleEndian.AppendUint32(k, uint32(h.index))
		k = binary.LittleEndian.AppendUint16(k, h.weight)
		if h.gateway.Is4() {
			b := h.gateway.As4()
			k = append(append(k, 4), b[:]...)
		} else if h.gateway.Is6() {
			b := h.gateway.As16()
			k = append(append(k, 6), b[:]...)
		} else {
			k = append(k, 0)
		}
	}
	s.key = k
	return s.byKey[string(k)]
}

// intern is find, making the set if need be; it adds no reference.
func (c *control) intern(e *routeEvent) uint32 {
	s := &c.sets
	if i := s.find(e); i != 0 {
		return i
	}
	var i uint32
	if n := len(s.free); n > 0 {
		i, s.free = s.free[n-1], s.free[:n-1]
	} else {
		i = uint32(len(s.info))
		s.info = append(s.info, setInfo{})
	}
	key := string(s.key)
	s.byKey[key] = i
	s.info[i] = setInfo{key: key, kind: e.kind, v6: e.prefix.Addr().Is6(), mtu: e.mtu, hops: slices.Clone(e.hops)}
	*s.edit(i) = c.build(e)
	return i
}

// forget takes a set out of the search: a route that describes the same gets a new one.
func (s *setStore) forget(i uint32) {
	if key := s.info[i].key; s.byKey[key] == i {
		delete(s.byKey, key)
	}
}

// edit gives a set for writing.
func (s *setStore) edit(i uint32) *pathSet {
	chunk := i / setsPerChunk
	if int(chunk) == len(s.chunks) {
		s.chunks = append(s.chunks, new([setsPerChunk]pathSet))
		s.own[chunk] = true
	}
	if !s.own[chunk] {
		c := *s.chunks[chunk]
		s.chunks[chunk] = &c
		s.own[chunk] = true
	}
	return s.chunks.at(i)
}

func (s *setStore) dirty() bool { return len(s.own) > 0 }

// published returns the sets for a snapshot.
func (s *setStore) published() setChunks {
	clear(s.own)
	return slices.Clone(s.chunks)
}

// build turns a route's next hops into paths over our ports, taking references on the routers' hops.
func (c *control) build(e *routeEvent) pathSet {
	if e.kind != setOne && e.kind != setMulti {
		return pathSet{kind: e.kind}
	}
	var set pathSet
	for i := range e.hops {
		h := &e.hops[i]
		port, ours := c.portOf[h.index]
		if !ours {
			continue
		}
		if len(set.members) == pathsMax {
			c.warn("paths", "a route has more than 64 next hops: the others are not followed")
			break
		}
		p := path{
			weight: uint32(max(h.weight, 1)),
			egress: c.egress(egress{port: port, mtu: uint16(min(e.mtu, 0xffff))}),
			port:   port, waiting: c.ports[port].waiting,
		}
		if h.gateway.IsValid() {
			if p.hop = c.gateway(hopKey{h.gateway, p.egress}); p.hop == 0 {
				continue
			}
		}
		set.members = append(set.members, p)
		set.total += p.weight
	}
	switch len(set.members) {
	case 0:
		return pathSet{kind: setElsewhere}
	case 1:
		return pathSet{kind: setOne, one: set.members[0]}
	}
	set.kind = setMulti
	return set
}

func (c *control) retain(i uint32) { c.sets.info[i].refs++ }

// release drops a reference and, with the last one, the set and its references on hops.
func (c *control) release(i uint32) {
	s := &c.sets
	if s.info[i].refs--; s.info[i].refs > 0 {
		return
	}
	set := s.edit(i)
	c.leave(set)
	*set = pathSet{}
	s.forget(i)
	s.info[i] = setInfo{}
	s.free = append(s.free, i)
}

// leave drops a set's references on hops.
func (c *control) leave(set *pathSet) {
	for _, p := range append(slices.Clip(set.members), set.one) {
		if p.hop != 0 {
			if c.info[p.hop].refs--; c.info[p.hop].refs == 0 {
				c.doom(p.hop)
			}
		}
	}
}

// lost tells whether the kernel has taken out the routes with a set because of a netdev that went down or was deleted: when it
// was the last one that is up; of IPv4, when any of them was deleted.
func (c *control) lost(i uint32, index int, deleted bool) bool {
	s := &c.sets.info[i]
	return s.refs > 0 && slices.ContainsFunc(s.hops, func(h nextHop) bool { return h.index == index }) && (deleted && !s.v6 || c.gone(i))
}

// gone tells whether all netdevs of a set are down or deleted, and with them, in the kernel, its routes.
func (c *control) gone(i uint32) bool {
	hops := c.sets.info[i].hops
	for _, h := range hops {
		// The kernel keeps its own addresses while their netdev is down, and says nothing when it is up again.
		if l, known := c.links[h.index]; l.up || known && c.sets.info[i].kind == setLocal {
			return false
		}
	}
	return len(hops) > 0
}
