package nat

import (
	"pollux/internal/clock"
	"pollux/internal/packet"
	"pollux/internal/reason"
	"pollux/lport"
)

// admit asks the limits whether the host may open one more link, and charges it for that. n.host is filled in.
func (s *Shard) admit(n *newLink, now clock.Tick) reason.Reason {
	if !s.room(now) {
		return reason.TableFull
	}
	id := s.hosts.find(n.local.Addr)
	if id == 0 {
		for s.hosts.full() && s.hosts.idle != 0 && s.hostIdle(now) {
			continue // one more idle host forgotten
		}
		rate := s.hostRate()
		if id = s.hosts.add(n.local.Addr, rate*1000, now); id == 0 {
			return reason.TableFull
		}
	}
	n.host = id
	h := &s.hosts.list[id]
	if most := s.limits.LinksPerHost; most > 0 && int(h.links) >= most {
		return reason.HostLimit
	}
	if s.limits.NewLinksPerHost > 0 {
		if !h.take(s.hostRate(), now) {
			if h.links == 0 {
				s.hosts.enqueue(id)
			}
			return reason.HostRate
		}
	}
	h.links++ // from here on: removing dead links on the way must not let go of the host
	return reason.None
}

// hostRate is the limit of new links per second and host.
func (s *Shard) hostRate() uint32 { return uint32(min(s.limits.NewLinksPerHost, 4_000_000)) }

// choose finds the alias endpoint of a new outbound link: a redirect's, the mapping's, an address redirect's, or a free port.
func (s *Shard) choose(n *newLink, rule, static uint32, now clock.Tick) reason.Reason {
	if rule != 0 {
		r := &s.table.list[rule]
		n.alias = Alias{s.publicAddr(r), r.public.Port}
		if r.oneShot {
			n.flags |= flagOneShot
		}
		if n.alias.Addr != 0 && s.mineIn(n) && !s.taken(n, now) {
			return reason.None
		}
		n.flags &^= flagOneShot
	}
	if protoIndex(n.proto) == 3 {
		return s.chooseOther(n, static, now)
	}
	if static != 0 {
		n.alias.Addr = s.publicAddr(&s.table.list[static])
		return s.chooseStatic(n, now)
	}
	mapping := s.mappingMode(n.proto)
	if mapping != portPeer && s.join(n, mapping, now) {
		return reason.None
	}
	n.kind = mapping
	return s.chooseFree(n, now)
}

// taken reports whether n's inbound key belongs to a live link of another local endpoint already.
func (s *Shard) taken(n *newLink, now clock.Tick) bool {
	for {
		l := s.lookupIn(n)
		if l == 0 {
			return false
		}
		if id := l / 2; !s.absent(id, now) {
			return true
		}
		s.remove(l/2, now)
	}
}

// lookupIn returns the line of n's inbound key, 0 if it is free.
func (s *Shard) lookupIn(n *newLink) uint32 {
	rport := n.remote.Port
	if n.proto == packet.ProtoICMP {
		rport = n.alias.Port
	}
	t := makeTuple(Outside, n.remote.Addr, n.alias.Addr, rport, n.alias.Port, n.proto, n.proto == packet.ProtoICMP && !n.request)
	return s.lookup(t, s.seed.tuple(t))
}

// mappingMode returns how links of a protocol hold their port.
func (s *Shard) mappingMode(proto uint8) portKind {
	switch s.behaviour(&s.rules.Mapping, proto) {
	case EndpointIndependent:
		return portExclusive
	case AddressDependent:
		return portAddress
	}
	if proto == packet.ProtoICMP {
		return portAddress // an id has no remote port
	}
	return portPeer
}

func (s *Shard) filtering(proto uint8) Behaviour { return s.behaviour(&s.rules.Filtering, proto) }

func (s *Shard) behaviour(of *PerProtocol, proto uint8) Behaviour {
	switch proto {
	case packet.ProtoTCP:
		return of.TCP
	case packet.ProtoUDP:
		return of.UDP
	}
	return of.ICMP
}

// join lets a new link use the mapping that its local endpoint has, if it has one.
func (s *Shard) join(n *newLink, kind portKind, now clock.Tick) bool {
	for {
		id := s.mapping(n.local, n.proto, kind, n.remote.Addr, Alias{})
		if id == 0 {
			return false
		}
		if s.absent(id, now) {
			s.remove(id, now)
			continue
		}
		n.alias, n.kind = s.aliasOf(id), kind
		return !s.taken(n, now)
	}
}

// chooseOther handles protocols without ports: one inside host per (remote, protocol, alias).
func (s *Shard) chooseOther(n *newLink, static uint32, now clock.Tick) reason.Reason {
	if static != 0 {
		n.alias = Alias{Addr: s.publicAddr(&s.table.list[static])}
		n.kind = portRule
	} else {
		addr, why := s.aliasOfHost(n)
		if why != reason.None {
			return why
		}
		n.alias = Alias{Addr: addr}
		n.kind = portPeer
	}
	if s.taken(n, now) {
		return reason.ProtoConflict
	}
	if n.kind == portPeer && !s.fixed(n) {
		return reason.ProtoConflict
	}
	return reason.None
}

// fixed takes the port of a link that nobody chose.
func (s *Shard) fixed(n *newLink) bool {
	if protoIndex(n.proto) == 3 {
		row := OtherRow(n.remote.Addr, n.proto)
		if s.owners.Byte(n.alias.Addr, lport.RowOther, row) == lport.ByteRedirect {
			n.kind = portRule // a redirect_proto has the byte, and packets come here by the same hash: nothing to claim
			return true
		}
		return s.ports.Fixed(n.alias.Addr, lport.RowOther, row, 0)
	}
	return s.ports.Fixed(n.alias.Addr, rowOf(n.proto), n.alias.Port, n.local.Addr)
}

// staticTries bounds the search for a port on an address redirect's public address. The local port is kept unless two hosts
// share the address and talk to one remote endpoint from one port.
const staticTries = 64

func (s *Shard) chooseStatic(n *newLink, now clock.Tick) reason.Reason {
	n.kind = portRule
	if o := s.ours.find(n.alias.Addr); o != nil && o.flags&addrDynamic != 0 {
		n.kind = portPeer // follows the default alias address, whose ports others use too
		return s.freePort(n, n.alias.Addr, now)
	}
	n.alias.Port = n.local.Port
	for range staticTries {
		if !s.taken(n, now) {
			return reason.None
		}
		n.alias.Port = 1024 + uint16(s.rand()%(65536-1024))
	}
	for port := range uint32(65536) {
		if n.alias.Port = uint16(port); n.alias.Port >= 1024 && !s.taken(n, now) {
			return reason.None
		}
	}
	return reason.NoPort
}

// aliasOfHost returns the alias address that a host's new link gets, and settles it for the host when pooling is paired.
func (s *Shard) aliasOfHost(n *newLink) (packet.Addr, reason.Reason) {
	if len(s.pool) == 0 {
		return 0, reason.NoPort
	}
	if s.plan != nil {
		a, _, _, ok := s.plan.Forward(n.local.Addr)
		if !ok {
			return 0, reason.NoPort
		}
		return a, reason.None
	}
	if s.rules.Arbitrary {
		return s.pool[s.rand()%uint64(len(s.pool))], reason.None
	}
	h := &s.hosts.list[n.host]
	if s.spread {
		if h.epoch != s.epoch { // the pool may have changed
			h.alias, h.epoch = s.prefer(n.local.Addr), s.epoch
		}
	} else if o := s.ours.find(h.alias); o == nil || o.flags&addrDynamic == 0 {
		h.alias = s.prefer(n.local.Addr)
	}
	return h.alias, reason.None
}

// prefer is the stable choice of an alias address for a host, the same at every worker: the highest of the hashes of the pairs, so that a change of the
// pool moves as few hosts as can be.
func (s *Shard) prefer(host packet.Addr) (best packet.Addr) {
	var top uint32
	for i, a := range s.pool {
		if h := s.common.hash(uint64(host), uint64(a)); i == 0 || h > top {
			best, top = a, h
		}
	}
	return best
}

// chooseFree takes a free port for a new mapping or link.
func (s *Shard) chooseFree(n *newLink, now clock.Tick) reason.Reason {
	addr, why := s.aliasOfHost(n)
	if why != reason.None {
		return why
	}
	if why = s.freePort(n, addr, now); why != reason.NoPort || s.settled(n) {
		return why
	}
	for _, a := range s.pool { // any other address will do
		if a == addr {
			continue
		}
		switch why = s.freePort(n, a, now); why {
		case reason.NoPort:
		case reason.None:
			s.hosts.list[n.host].alias = a
			return why
		default:
			return why
		}
	}
	return why
}

// settled reports whether a host's links are bound to the alias address it has: with paired pooling, from its first link on, and with
// flows spread over the workers always: the others know its address without asking.
func (s *Shard) settled(n *newLink) bool {
	return s.plan != nil || !s.rules.Arbitrary && (s.spread || s.hosts.list[n.host].links > 1)
}

// freePort takes a port of one alias address; closing links are given up if nothing else helps.
func (s *Shard) freePort(n *newLink, addr packet.Addr, now clock.Tick) reason.Reason {
	n.alias.Addr = addr
	r := lport.Request{Alias: addr, Row: rowOf(n.proto), Host: n.local.Addr, Want: n.local.Port, Now: now}
	if s.sweep != 0 {
		s.purge(Alias{addr, n.local.Port}, n.proto, now)
	}
	peer := peerOf(n.remote, n.kind)
	for try := 0; ; try++ {
		var err error
		if n.kind == portExclusive {
			n.alias.Port, err = s.ports.Exclusive(&r)
		} else {
			n.alias.Port, err = s.ports.Toward(&r, peer)
		}
		switch {
		case err == nil:
			return reason.None
		case err == lport.ErrHostLimit:
			return reason.HostLimit
		case try == recycleTries || !s.clearPort(n, now):
			return reason.NoPort
		}
	}
}

// purge removes dead links from the group of a port that a host would like to keep, while a rule change is being applied.
func (s *Shard) purge(a Alias, proto uint8, now clock.Tick) {
	for range heirWalk {
		gr := s.groups.find(a, proto)
		if gr.value == 0 {
			return
		}
		head := s.groups.head(gr.value)
		if !s.absent(head, now) {
			return
		}
		s.remove(head, now)
	}
}

// clearPort tries to free a port for n: by cleaning up after a rule change, or by giving up the link that has been closing
// longest among those that stand in the way. It reports whether another attempt may succeed.
func (s *Shard) clearPort(n *newLink, now clock.Tick) bool {
	if s.sweep != 0 {
		for range sweepSlice {
			if s.sweep != 0 {
				s.sweepOne(now)
			}
		}
		return true
	}
	if n.proto != packet.ProtoTCP || s.closing.count == 0 {
		return false
	}
	return s.recycleFor(n, now)
}

// What the search for a closing link in the way may cost: a flood of refused flows must stay cheaper than accepted ones.
const (
	recycleWalk  = 64 // links looked at in one search, oldest first
	recycleFails = 4  // searches in vain per tick
	recycleTries = 16 // links given up, or slices cleaned up, for one flow: a mapping may have several links
)

// recycleFor gives up a closing link that holds a port n could have.
func (s *Shard) recycleFor(n *newLink, now clock.Tick) bool {
	if now != s.failAt {
		s.failAt, s.fails = now, 0
	}
	if s.fails >= recycleFails {
		return false
	}
	at, id := s.closing.first()
	for range recycleWalk {
		if id == 0 {
			break
		}
		a, r, kind := s.aliasOf(id), s.remoteOf(id), s.portKind(id)
		if a.Addr == n.alias.Addr && kind == n.kind && s.protoOf(id) == n.proto && peerOf(r, kind) == peerOf(n.remote, kind) && s.lastOpen(id, kind) {
			s.counters.Recycled++
			s.remove(id, now)
			return true
		}
		at, id = s.closing.after(at, id)
	}
	s.fails++
	return false
}

// lastOpen reports whether no link that is not closing holds the port of a closing link, too.
func (s *Shard) lastOpen(id uint32, kind portKind) bool {
	if kind == portPeer {
		return true
	}
	heir := s.heir(s.groups.of(id), id, kind)
	return heir == 0 || s.cold[heir].state == Closing
}

// inUse answers lport: does a full link of an alias endpoint toward a peer exist?
func (s *Shard) inUse(addr packet.Addr, row lport.Row, port uint16, p lport.Peer) bool {
	a := Alias{addr, port}
	var proto uint8
	switch row {
	case lport.RowTCP:
		proto = packet.ProtoTCP
	case lport.RowUDP:
		proto = packet.ProtoUDP
	case lport.RowICMP:
		proto = packet.ProtoICMP
	default:
		return false
	}
	if p.Port != 0 {
		t := makeTuple(Outside, p.Addr, addr, p.Port, port, proto, false)
		return s.lookup(t, s.seed.tuple(t)) != 0
	}
	gr := s.groups.find(a, proto)
	return gr.value != 0 && (p.Addr == 0 || s.groups.toward(gr, p.Addr, 0) != 0)
}
