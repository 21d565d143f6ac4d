package nat

import (
	"math/bits"

	"pollux/internal/clock"
	"pollux/internal/packet"
	"pollux/lport"
)

// newLink is what a link is made of.
type newLink struct {
	local   Local
	alias   Alias
	remote  Remote
	proto   uint8
	request bool // ICMP: the outbound packets are requests
	kind    portKind
	take    bool  // inbound: the alias port is still to be claimed
	flags   uint8 // flagInbound, flagHairpin, flagOneShot, flagTarget
	host    uint32
}

// room makes sure that a link can be made: the table has a free record, or a closing link can be given up for it.
func (s *Shard) room(now clock.Tick) bool {
	if !s.full() {
		return true
	}
	for range 64 { // links behind us on the wheel, which Advance has not got to
		id := s.main.due(now)
		if id == 0 {
			break
		}
		if s.expired(id, now) {
			s.counters.Expired++
			s.unlink(id, now)
			return true
		}
		s.queue(id)
	}
	for range sweepSlice { // dead since a rule change
		if s.sweep == 0 {
			break
		}
		if s.sweepOne(now); !s.full() {
			return true
		}
	}
	return s.recycle(now)
}

// recycle gives up the link that has been closing for the longest.
func (s *Shard) recycle(now clock.Tick) bool {
	for try := 0; ; try++ {
		_, id := s.closing.first()
		switch {
		case id == 0:
			return false
		case try < 16 && s.requeued(id): // touched since it was queued: not the oldest
			continue
		}
		s.counters.Recycled++
		s.remove(id, now)
		return true
	}
}

// requeued moves a closing link to the slot of its real deadline and reports whether that is a later one.
func (s *Shard) requeued(id uint32) bool {
	before, _ := s.closing.first()
	deadline := s.last(id) + clock.Tick(s.limit(id)) + 1
	if !deadline.After(before) {
		return false
	}
	s.closing.remove(id)
	s.closing.add(id, deadline)
	return true
}

// create makes a link as the newest of its group and returns its id. The caller has checked that there is room, and has
// charged the host for a link that it opens.
func (s *Shard) create(n *newLink, now clock.Tick) uint32 {
	id := s.get()
	lo, li := &s.lines[2*id], &s.lines[2*id+1]
	rport := n.remote.Port
	if n.proto == packet.ProtoICMP {
		lo.key = makeTuple(Inside, n.local.Addr, n.remote.Addr, n.local.Port, n.local.Port, n.proto, n.request)
		li.key = makeTuple(Outside, n.remote.Addr, n.alias.Addr, n.alias.Port, n.alias.Port, n.proto, !n.request)
	} else {
		lo.key = makeTuple(Inside, n.local.Addr, n.remote.Addr, n.local.Port, rport, n.proto, false)
		li.key = makeTuple(Outside, n.remote.Addr, n.alias.Addr, rport, n.alias.Port, n.proto, false)
	}
	lo.addr, lo.port = toWireAddr(n.alias.Addr), toWirePort(n.alias.Port)
	li.addr, li.port = toWireAddr(n.local.Addr), toWirePort(n.local.Port)

	addr, port := packet.DeltaAddr(n.local.Addr, n.alias.Addr), packet.Delta16(n.local.Port, n.alias.Port)
	addrBack, portBack := packet.DeltaAddr(n.alias.Addr, n.local.Addr), packet.Delta16(n.alias.Port, n.local.Port)
	ip, ipBack := packet.AddDelta(addr, packet.DeltaTTL), packet.AddDelta(addrBack, packet.DeltaTTL)
	if n.flags&flagHairpin != 0 {
		ip = addr // the second pass takes from the TTL
	}
	l4, l4Back := port, portBack
	if n.proto != packet.ProtoICMP { // which has no pseudo header
		l4, l4Back = packet.AddDelta(addr, port), packet.AddDelta(addrBack, portBack)
	}
	lo.ip, li.ip = bits.ReverseBytes16(ip), bits.ReverseBytes16(ipBack)
	lo.l4, li.l4 = bits.ReverseBytes16(l4), bits.ReverseBytes16(l4Back)
	lo.last, li.last = now, now
	s.born[id] = now
	lo.epoch, li.epoch = s.epoch8, s.epoch8

	c := &s.cold[id]
	c.flags = n.flags | uint8(n.kind)
	if n.proto == packet.ProtoTCP {
		c.state = Opening
	}
	s.watch(id)
	if s.track {
		s.windows[id] = window{}
	}

	// Outbound: a link of another alias address may have the same key (two redirects of one server, one client); the newest
	// wins until it goes.
	h := s.seed.tuple(lo.key)
	if old := s.lookup(lo.key, h); old != 0 {
		c.flags |= flagOutTwin
		s.exact.replace(h, old, 2*id)
	} else {
		s.exact.insert(h, 2*id)
	}
	h = s.seed.tuple(li.key)
	if old := s.lookup(li.key, h); old != 0 {
		s.exact.replace(h, old, 2*id+1)
	} else {
		s.exact.insert(h, 2*id+1)
	}
	first := s.groups.add(id)
	if n.kind == portExclusive && first || n.kind == portAddress {
		s.enterMapping(id)
	}
	s.queue(id)
	s.counters.Created++
	s.counters.State[c.state]++
	s.counters.Proto[protoIndex(n.proto)]++
	if s.log.ring != nil {
		s.logCreated(id, now)
	}
	return id
}

func protoIndex(proto uint8) int {
	switch proto {
	case packet.ProtoTCP:
		return 0
	case packet.ProtoUDP:
		return 1
	case packet.ProtoICMP:
		return 2
	}
	return 3
}

// rowOf returns the port space of a protocol.
func rowOf(proto uint8) lport.Row { return lport.Row(protoIndex(proto)) }

// remove takes a link that is on a wheel away.
func (s *Shard) remove(id uint32, now clock.Tick) {
	s.wheelOf(id).remove(id)
	s.unlink(id, now)
}

// unlink takes a link that is on no wheel out of everything and frees it.
func (s *Shard) unlink(id uint32, now clock.Tick) {
	lo, li := &s.lines[2*id], &s.lines[2*id+1]
	c := &s.cold[id]
	s.counters.State[c.state]--
	s.counters.Proto[protoIndex(lo.key.proto())]--
	if s.exact.remove(s.seed.tuple(lo.key), 2*id) && c.flags&flagOutTwin != 0 {
		s.uncoverOut(id)
	}
	gr := s.groups.of(id)
	lone := gr.value == id && c.next == 0
	if h := s.seed.tuple(li.key); s.exact.remove(h, 2*id+1) && !lone {
		if twin := s.groups.twin(gr, id); twin != 0 {
			s.exact.insert(h, 2*twin+1)
		}
	}
	var heir uint32
	if kind := s.portKind(id); kind == portExclusive || kind == portAddress {
		if !lone {
			heir = s.heir(gr, id, kind)
		}
		if c.flags&flagMapping != 0 {
			s.leaveMapping(id, heir)
		}
	}
	s.groups.remove(gr, id)
	s.givePort(id, heir, now)
	if c.flags&flagInbound == 0 {
		s.leaveHost(lo.key.src(), now)
	}
	if s.log.ring != nil {
		s.logEnded(id, heir, now)
	}
	s.put(id)
}

// uncoverOut looks for the older link that had the same outbound key as id, which goes, and lets packets find it again. It
// can only be one with another alias address that publishes the same local endpoint.
func (s *Shard) uncoverOut(id uint32) {
	key := s.lines[2*id].key
	local, remote, proto := s.localOf(id), s.remoteOf(id), s.protoOf(id)
	for i := range s.table.list {
		r := &s.table.list[i]
		if r.kind == ruleFree || !r.offers(local) || r.kind == rulePort && r.proto != proto {
			continue
		}
		a := Alias{s.publicAddr(r), r.public.Port}
		if r.kind == ruleAddr {
			a.Port = local.Port
		}
		for l := s.groups.find(a, proto); ; {
			other := s.groups.toward(l, remote.Addr, id)
			for ; other != 0 && (other == id || s.lines[2*other].key != key); other = s.groups.after(l, other) {
				if s.remoteOf(other).Addr != remote.Addr && l.value&treeBit != 0 {
					other = 0
					break
				}
			}
			if other != 0 {
				s.exact.insert(s.seed.tuple(key), 2*other)
				return
			}
			break
		}
	}
}

// publicAddr returns a rule's public address as it is now.
func (s *Shard) publicAddr(r *rule) packet.Addr {
	if r.public.Addr == 0 {
		return s.defaultAlias()
	}
	return r.public.Addr
}

// defaultAlias returns the first address of the pool, 0 if that is empty.
func (s *Shard) defaultAlias() packet.Addr {
	if len(s.rules.Alias) == 0 {
		return 0
	}
	return s.rules.Alias[0]
}

// heirWalk bounds the search for another link of a mapping among links of redirects that share its alias port. Only a
// redirect put on a port with a live mapping mixes the two, and the port goes to the redirect anyway.
const heirWalk = 64

// heir returns another link of the mapping that id belongs to, 0 if it is the last one.
func (s *Shard) heir(gr group, id uint32, kind portKind) uint32 {
	local := s.localOf(id)
	if kind == portAddress {
		remote := s.remoteOf(id).Addr
		l := s.groups.toward(gr, remote, id)
		for range heirWalk {
			if l == 0 || s.remoteOf(l).Addr == remote && l != id && s.portKind(l) == kind && s.localOf(l) == local {
				return l
			}
			l = s.groups.after(gr, l)
		}
		return 0
	}
	l := s.groups.after(gr, 0)
	for range heirWalk {
		if l == 0 || l != id && s.portKind(l) == kind && s.localOf(l) == local {
			return l
		}
		l = s.groups.after(gr, l)
	}
	return 0
}

// givePort gives the alias port of a link back that is gone, unless an heir holds it.
func (s *Shard) givePort(id, heir uint32, now clock.Tick) {
	kind := s.portKind(id)
	if kind == portRule || heir != 0 {
		return
	}
	a, r, proto := s.aliasOf(id), s.remoteOf(id), s.protoOf(id)
	host := s.localOf(id).Addr
	if protoIndex(proto) == 3 {
		s.ports.Release(a.Addr, lport.RowOther, OtherRow(r.Addr, proto), 0, peerOf(r, portPeer), now)
		return
	}
	s.ports.Release(a.Addr, rowOf(proto), a.Port, host, peerOf(r, kind), now)
}

// peerOf narrows a remote endpoint to what a port was taken toward.
func peerOf(r Remote, kind portKind) lport.Peer {
	switch kind {
	case portAddress:
		return lport.Peer{Addr: r.Addr}
	case portPeer:
		return lport.Peer{Addr: r.Addr, Port: r.Port}
	}
	return lport.Peer{}
}

// OtherRow returns the index in the owner row of "other" protocols for a remote address and an IP protocol: the same
// number on the way out and in, so that both directions reach one worker (DESIGN 4).
func OtherRow(remote packet.Addr, proto uint8) uint16 {
	h := (uint32(remote) ^ uint32(proto)<<24) * 0x9e3779b1
	return uint16(h >> 16)
}

// leaveHost takes one link off a host's account.
func (s *Shard) leaveHost(a packet.Addr, now clock.Tick) {
	id := s.hosts.find(a)
	if id == 0 {
		return
	}
	h := &s.hosts.list[id]
	if h.links > 0 {
		h.links--
	}
	if h.links != 0 {
		return
	}
	if s.limits.NewLinksPerHost > 0 {
		s.hosts.enqueue(id)
	} else if h.queued == 0 {
		s.hosts.drop(id)
	}
}

// Mappings. The local index finds one link of each endpoint-independent mapping by (local, protocol), and of each
// address-dependent one by (local, protocol, remote address).

func (s *Shard) mappingHash(l Local, proto uint8, kind portKind, remote packet.Addr) uint32 {
	if kind != portAddress {
		remote = 0
	}
	return s.seed.hash(uint64(l.Addr)<<32|uint64(remote), uint64(l.Port)|uint64(proto)<<16|uint64(kind)<<24|1<<40)
}

func (s *Shard) mappingHashOf(id uint32) uint32 {
	return s.mappingHash(s.localOf(id), s.protoOf(id), s.portKind(id), s.remoteOf(id).Addr)
}

// enterMapping makes a link stand for its mapping, unless another one does.
func (s *Shard) enterMapping(id uint32) {
	l, kind := s.localOf(id), s.portKind(id)
	if s.mapping(l, s.protoOf(id), kind, s.remoteOf(id).Addr, s.aliasOf(id)) != 0 {
		return
	}
	s.local.insert(s.mappingHashOf(id), id)
	s.cold[id].flags |= flagMapping
}

// leaveMapping lets the heir stand for the mapping instead of id, if there is one.
func (s *Shard) leaveMapping(id, heir uint32) {
	h := s.mappingHashOf(id)
	if heir == 0 {
		s.local.remove(h, id)
		return
	}
	s.local.replace(h, id, heir)
	s.cold[heir].flags |= flagMapping
}

// mapping returns the link that stands for a mapping, 0 if there is none. With an alias given only a mapping to it counts.
func (s *Shard) mapping(l Local, proto uint8, kind portKind, remote packet.Addr, alias Alias) uint32 {
	h := s.mappingHash(l, proto, kind, remote)
	x := &s.local
	for i := x.home(h); x.slots[i] != 0; i = x.next(i) {
		if uint32(x.slots[i]>>32) != h {
			continue
		}
		id := uint32(x.slots[i])
		if s.localOf(id) == l && s.protoOf(id) == proto && s.portKind(id) == kind &&
			(kind != portAddress || s.remoteOf(id).Addr == remote) && (alias == Alias{} || s.aliasOf(id) == alias) {
			return id
		}
	}
	return 0
}
