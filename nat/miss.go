package nat

import (
	"pollux/internal/clock"
	"pollux/internal/packet"
	"pollux/internal/reason"
	"pollux/lport"
)

// Miss translates a packet that Hit left: what has no link yet, and what needs more than stored deltas.
//
//go:noinline
func (s *Shard) Miss(p *Packet, now clock.Tick) {
	h := &p.H
	p.Hop = nil
	switch {
	case h.Reason != reason.None:
		s.drop(p, h.Reason)
	case h.Kind == packet.KindNone:
		s.drop(p, reason.BadHeader)
	case h.Kind == packet.KindARP, h.Kind == packet.KindIPv6, h.Kind == packet.KindNotIP,
		h.Dst>>28 == 0xe, h.Dst == 0xffffffff: // multicast, broadcast
		s.host(p)
	case h.Fragment():
		s.fragment(p, now)
	case h.Kind == packet.KindICMPError:
		s.icmpError(p, now)
	default:
		s.one(p, now)
	}
}

// one translates one packet that has ports, an id, or only a protocol: a whole one, or a first fragment as if it were whole.
func (s *Shard) one(p *Packet, now clock.Tick) {
	t, ok := tupleOf(p)
	if !ok {
		s.strange(p)
		return
	}
	if n := s.lookup(t, s.seed.tuple(t)); n != 0 {
		if id := n / 2; s.absent(id, now) {
			s.remove(id, now) // and perhaps uncover an older one
			if n = s.lookup(t, s.seed.tuple(t)); n != 0 && s.absent(n/2, now) {
				s.remove(n/2, now)
				n = 0
			}
		}
		if n != 0 {
			s.known(p, n, now)
			return
		}
	}
	if p.Side == Inside {
		s.outbound(p, t, now)
	} else {
		s.inbound(p, t, now)
	}
}

// absent reports whether a link is only waiting to be cleaned up: expired, or dead since a rule change. A link that stands
// under the present rules is marked so.
func (s *Shard) absent(id uint32, now clock.Tick) bool {
	if s.expired(id, now) {
		s.counters.Expired++
		return true
	}
	if s.lines[2*id].epoch == s.epoch8 {
		return false
	}
	if !s.stands(id) {
		s.counters.Unruled++
		return true
	}
	s.stamp(id)
	return false
}

// known translates a packet of link line n the long way: first packets, TCP segments that matter, first fragments, hairpins.
func (s *Shard) known(p *Packet, n uint32, now clock.Tick) {
	id, direction := n/2, n&1
	h := &p.H
	if h.TTL <= 1 {
		s.answer(p, 11, 0, reason.TTLExpired)
		return
	}
	if h.Kind == packet.KindTCP {
		s.segment(id, direction, p, now)
	}
	s.forward(p, &s.lines[n], direction, now)
	if direction == out && s.has(id, flagHairpin) {
		p.Data[h.L3+8]++ // the second pass takes from the TTL; the stored delta knows
		p.Verdict = Again
	}
	if mss := s.rules.MSSClamp; mss != 0 && h.TCPFlags&packet.TCPSyn != 0 {
		packet.ClampMSS(p.Data, h, uint16(min(mss, 0xffff)))
	}
}

// outbound handles an inside packet that has no link.
func (s *Shard) outbound(p *Packet, t tuple, now clock.Tick) {
	h := &p.H
	local, remote := Local{h.Src, t.sport()}, Remote{h.Dst, t.dport()}
	var n newLink // filled field by field: a literal would be made apart and copied, and the copy waits for its stores
	n.local, n.remote, n.proto, n.request = local, remote, h.Proto, t.request()
	if h.Kind == packet.KindICMPQuery {
		n.remote.Port = 0
	}
	if s.isAlias(h.Src) {
		s.drop(p, reason.BadSource)
		return
	}
	if net := h.Dst >> 24; net == 0 || net == 127 { // never forwarded: RFC 1812 5.3.7
		s.drop(p, reason.NoRoute)
		return
	}
	if o := s.ours.find(h.Dst); o != nil && o.flags&(addrPool|addrPublished) != 0 {
		if !s.hairpin(p, &n, o, now) {
			return
		}
		n.flags |= flagHairpin
	} else if s.exempt.has(h.Dst) {
		s.untouched(p)
		return
	} else if s.sideOf != nil {
		side, ok := s.sideOf(h.Dst)
		if !ok {
			s.answer(p, 3, 0, reason.NoRoute)
			return
		}
		if side == Inside {
			s.untouched(p)
			return
		}
	}
	rule := s.table.matchOut(n.local, n.proto, n.remote, now)
	static := uint32(0)
	if rule == 0 {
		// A hairpinned flow is translated whoever sends it: its answer must come back by here.
		static = s.table.addrOut(local.Addr)
		if static == 0 && n.flags&flagHairpin == 0 && s.untranslated(local.Addr) {
			s.untouched(p)
			return
		}
	}
	if s.barred(p) {
		return
	}
	if why := s.admit(&n, now); why != reason.None {
		s.blame(n.host)
		s.logRefused(&n, why, now)
		s.refuse(p, why)
		return
	}
	if why := s.choose(&n, rule, static, now); why != reason.None {
		s.blame(n.host)
		s.leaveHost(local.Addr, now)
		s.logRefused(&n, why, now)
		s.refuse(p, why)
		return
	}
	id := s.create(&n, now)
	if rule != 0 && s.portKind(id) == portRule {
		s.table.list[rule].hits++
	} else if static != 0 {
		s.table.list[static].hits++
	}
	if rule != 0 {
		s.spend(rule)
	}
	if h.Kind == packet.KindTCP {
		s.dropHeld(s.lines[2*id+1].key)
	}
	s.known(p, 2*id, now)
}

// barred stops a packet that may not open a link, whatever the rules: its source can't be where it came from, its TTL ends
// here, or no new links are wanted.
func (s *Shard) barred(p *Packet) bool {
	switch {
	case !p.Hairpin && s.reverse != nil && !s.reverse(p.H.Src, p.Ingress):
		s.drop(p, reason.ReversePath)
	case p.H.TTL <= 1:
		s.answer(p, 11, 0, reason.TTLExpired)
	case s.draining && p.Side == Inside && !p.Hairpin:
		s.refuse(p, reason.Draining)
	case s.draining:
		s.drop(p, reason.Draining)
	default:
		return false
	}
	return true
}

// untranslated reports whether the rules leave an inside host's own address alone.
func (s *Shard) untranslated(a packet.Addr) bool {
	r := &s.rules
	return (r.UnregisteredOnly || r.UnregisteredCGN) && registered(a, r.UnregisteredCGN)
}

// hairpin decides whether an inside packet to an address of ours goes round: only if somebody is behind it, so that a
// stray packet makes no state. False: the verdict is set.
func (s *Shard) hairpin(p *Packet, n *newLink, o *ours, now clock.Tick) bool {
	h := &p.H
	alias := Alias{h.Dst, h.DstPort}
	if h.Kind == packet.KindOther {
		alias.Port = 0
	}
	if !s.somebody(alias, n, now) {
		if o.flags&addrKernel != 0 || !s.rules.DenyIncoming {
			s.host(p)
		} else {
			s.drop(p, reason.NoMapping)
		}
		return false
	}
	if !s.rules.Hairpin {
		s.drop(p, reason.HairpinOff)
		return false
	}
	return true
}

// somebody reports whether an inbound packet to alias could meet a mapping, a redirect or a target.
func (s *Shard) somebody(a Alias, n *newLink, now clock.Tick) bool {
	if s.redirect(a, n.proto, n.request, Remote{s.defaultAlias(), 0}, now) != 0 {
		return true
	}
	if !s.rules.DenyIncoming && s.rules.Target != 0 {
		return true
	}
	for c := range classes { // a redirect for some remote only: the second pass decides
		if s.table.ports[c] != 0 && c != classAny {
			return true
		}
	}
	if n.proto == packet.ProtoICMP && n.request {
		return false
	}
	if s.steering != nil && s.steering.Inbound(n.proto, n.local.Addr, n.local.Port, a.Addr, a.Port) != s.worker {
		// Another worker's: its second pass there decides. A port that nobody has can be ruled out here.
		b := s.owners.Byte(a.Addr, rowOf(n.proto), a.Port)
		return protoIndex(n.proto) == 3 || b != lport.ByteFree && b != lport.ByteKernel
	}
	return s.groups.find(a, n.proto).value != 0
}

// redirect returns the rule that lets an inbound packet in whatever deny_incoming says, 0 if there is none.
func (s *Shard) redirect(a Alias, proto uint8, request bool, r Remote, now clock.Tick) uint32 {
	dflt := s.table.follow > 0 && a.Addr == s.defaultAlias()
	if proto != packet.ProtoICMP || request {
		if at := s.table.matchIn(a, proto, r, now); at != 0 {
			return at
		}
		if dflt {
			if at := s.table.matchIn(Alias{0, a.Port}, proto, r, now); at != 0 {
				return at
			}
		}
	}
	if at := s.addrRule(a.Addr); at != 0 && s.table.list[at].inbound {
		return at
	}
	return 0
}

// addrRule returns the address rule of a public address, 0 if there is none.
func (s *Shard) addrRule(a packet.Addr) uint32 {
	at := s.table.addrIn(a)
	if at == 0 && s.table.follow > 0 && a == s.defaultAlias() {
		at = s.table.addrIn(0)
	}
	return at
}

// inbound handles an outside packet (or a hairpin's second pass) that has no link.
func (s *Shard) inbound(p *Packet, t tuple, now clock.Tick) {
	h := &p.H
	o := s.ours.find(h.Dst)
	if o == nil || o.flags&(addrPool|addrPublished) == 0 {
		s.inboundPlain(p)
		return
	}
	if !p.Hairpin && s.isAlias(h.Src) {
		s.drop(p, reason.BadSource)
		return
	}
	alias, remote := Alias{h.Dst, t.dport()}, Remote{h.Src, t.sport()}
	if h.Kind == packet.KindICMPQuery {
		remote.Port = 0
	}
	var n newLink // see outbound
	n.alias, n.remote, n.proto, n.flags = alias, remote, h.Proto, flagInbound
	n.request = h.Kind == packet.KindICMPQuery && !t.request()
	if p.Hairpin {
		n.flags |= flagHairpin // the answers go round too
	}
	rule := s.redirect(alias, h.Proto, t.request(), remote, now)
	why := reason.NoMapping
	if rule == 0 {
		switch s.admitMapping(&n, t, now) {
		case admitted:
			if !s.barred(p) {
				s.accept(p, &n, 0, now)
			}
			return
		case filtered:
			why = reason.Filtered
		}
	}
	if rule == 0 && why == reason.NoMapping && !s.rules.DenyIncoming {
		if rule = s.addrRule(alias.Addr); rule == 0 && s.rules.Target != 0 {
			n.local = Local{s.rules.Target, alias.Port}
			n.flags |= flagTarget
			n.kind, n.take = portPeer, true
			if !s.barred(p) {
				s.accept(p, &n, 0, now)
			}
			return
		}
	}
	switch {
	case rule != 0:
		if s.barred(p) { // before a pool's turn is taken
			return
		}
		r := &s.table.list[rule]
		n.local = s.table.pickLocal(r, remote)
		if r.kind == ruleAddr {
			n.local.Port = alias.Port
			if o.flags&addrDynamic != 0 {
				n.kind, n.take = portPeer, true // follows the default alias address, whose ports others use too
			}
		}
		if r.oneShot {
			n.flags |= flagOneShot
		}
		s.accept(p, &n, rule, now)
	case why == reason.NoMapping && (o.flags&addrKernel != 0 || !s.rules.DenyIncoming),
		o.flags&addrKernel != 0 && t.request():
		s.host(p)
	case h.Kind == packet.KindTCP && h.TCPFlags&(packet.TCPSyn|packet.TCPAck|packet.TCPRst) == packet.TCPSyn && !p.Hairpin:
		s.holdSYN(p, t, why, now)
	default:
		s.drop(p, why)
	}
}

// inboundPlain handles an outside packet to an address that is not ours: let through only where the rules leave the flow
// untranslated on its way out too.
func (s *Shard) inboundPlain(p *Packet) {
	h := &p.H
	if s.sideOf != nil {
		if side, ok := s.sideOf(h.Dst); !ok || side != Inside {
			s.drop(p, reason.NoMapping)
			return
		}
	}
	if s.exempt.has(h.Src) || s.untranslated(h.Dst) && s.table.addrOut(h.Dst) == 0 {
		s.untouched(p)
		return
	}
	s.drop(p, reason.NoMapping)
}

type admission uint8

const (
	nothing admission = iota // no mapping there
	filtered
	admitted
)

// admitMapping asks the filter of an existing mapping whether n.remote may come in, and fills in the local endpoint.
func (s *Shard) admitMapping(n *newLink, t tuple, now clock.Tick) admission {
	gr := s.living(n.alias, n.proto, now)
	if gr.value == 0 || protoIndex(n.proto) == 3 {
		return nothing // other protocols have no mapping that another remote could use
	}
	if t.request() {
		return filtered // SPEC C: an echo request never comes in by a mapping that an inside echo made
	}
	var by uint32
	filter := s.filtering(n.proto)
	if filter != AddressAndPortDependent {
		by = s.groups.toward(gr, n.remote.Addr, 0)
		for range heirWalk {
			if by == 0 || !s.absent(by, now) {
				break
			}
			s.remove(by, now)
			gr = s.groups.find(n.alias, n.proto)
			by = s.groups.toward(gr, n.remote.Addr, 0)
		}
	}
	if by == 0 && filter == EndpointIndependent { // several hosts may share the port: the one that talks to this remote goes first
		if gr = s.living(n.alias, n.proto, now); gr.value != 0 {
			by = s.groups.head(gr.value)
		}
	}
	if by == 0 && gr.value != 0 && !s.rules.DenyIncoming && s.rules.Target != 0 {
		if head := s.groups.head(gr.value); s.localOf(head).Addr == s.rules.Target {
			by = head // the DMZ host is open to everybody
		}
	}
	if by == 0 {
		return filtered
	}
	n.local = s.localOf(by)
	n.flags |= s.cold[by].flags & flagTarget
	switch n.kind = s.portKind(by); n.kind {
	case portPeer:
		n.take = true
	case portAddress: // another remote address: a mapping of its own on the same port
		n.take = s.mapping(n.local, n.proto, n.kind, n.remote.Addr, n.alias) == 0
	}
	return admitted
}

// living returns a group whose head is not absent; links that turn out to be are removed.
func (s *Shard) living(a Alias, proto uint8, now clock.Tick) group {
	for {
		gr := s.groups.find(a, proto)
		if gr.value == 0 {
			return gr
		}
		head := s.groups.head(gr.value)
		if !s.absent(head, now) {
			return gr
		}
		s.remove(head, now)
	}
}

// accept makes the link of an inbound packet that is not barred, and translates it.
func (s *Shard) accept(p *Packet, n *newLink, rule uint32, now clock.Tick) {
	if s.full() {
		if !s.room(now) {
			s.logRefused(n, reason.TableFull, now)
			s.drop(p, reason.TableFull)
			return
		}
		if rule == 0 { // the link given up may have been the mapping's last: ask again
			t, _ := tupleOf(p)
			s.inbound(p, t, now)
			return
		}
	}
	if !s.mineOut(n) || n.take && !s.fixed(n) {
		s.drop(p, reason.NoPort)
		return
	}
	id := s.create(n, now)
	if rule != 0 {
		s.table.list[rule].hits++
		s.spend(rule)
	}
	s.known(p, 2*id+1, now)
}

// spend ends a one-shot rule after its first hit.
func (s *Shard) spend(at uint32) {
	if s.table.list[at].oneShot {
		s.dropRule(at)
	}
}

// untouched forwards a packet without translation.
func (s *Shard) untouched(p *Packet) {
	if p.H.TTL <= 1 {
		s.answer(p, 11, 0, reason.TTLExpired)
		return
	}
	packet.DecrementTTL(p.Data, &p.H)
	s.counters.Untouched++
	p.Verdict, p.Reason, p.Hop = Forward, reason.None, nil
}

// host gives a packet to the gateway's own stack.
func (s *Shard) host(p *Packet) {
	p.Verdict, p.Reason, p.Hop = Host, reason.ToHost, nil
}

// drop drops a packet for a reason.
func (s *Shard) drop(p *Packet, why reason.Reason) {
	s.counters.Refused[why]++
	p.Verdict, p.Reason, p.Hop = Drop, why, nil
}

// answer drops a packet whose sender is owed an ICMP error.
func (s *Shard) answer(p *Packet, icmpType, icmpCode uint8, why reason.Reason) {
	s.counters.Refused[why]++
	p.Verdict, p.Reason, p.Hop = Answer, why, nil
	p.ICMPType, p.ICMPCode = icmpType, icmpCode
}

// refuse turns a new outbound flow away.
func (s *Shard) refuse(p *Packet, why reason.Reason) {
	if why == reason.ProtoConflict {
		s.drop(p, why)
		return
	}
	s.answer(p, 3, s.rules.NoResourceCode, why)
}
