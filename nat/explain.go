package nat

import (
	"fmt"

	"pollux/internal/clock"
	"pollux/internal/packet"
	"pollux/internal/reason"
	"pollux/lport"
)

// Explanation says what Translate would do with a packet, and what decided. No state is made or touched: of what Translate
// cleans up on its way (expired links, links whose rule is gone) nothing is, but it is left out of account.
type Explanation struct {
	Verdict            Verdict
	Reason             reason.Reason
	ICMPType, ICMPCode uint8
	Why                string // in words

	// With Forward and Again.
	Link             *LinkInfo // the link that the packet belongs to; nil: none, or one that would be made
	New              bool      // a link would be made
	Local            Local     // of it
	Alias            Alias
	Remote           Remote
	Src, Dst         packet.Addr // as the packet would leave
	SrcPort, DstPort uint16
	Guess            bool      // a choice is left to chance: Alias.Port is one of Low to High, and with AnyAlias its address one of the pool
	Low, High        uint16    //
	AnyAlias         bool      //
	Slot             [2]uint64 // copy of the next hop's room of an existing link
	HasSlot          bool      // the packet would belong to a link

	made newLink // if New
}

// explainer is one question.
type explainer struct {
	*Shard
	p    *Packet
	now  clock.Tick
	e    Explanation
	made *newLink // in the first pass of a hairpin: a link that is not there, but would be; nil: none
}

// Explain says what Translate would do with a parsed packet. p is not changed. before is the explanation of its first pass, if
// it is a hairpin's second one at the same worker, or nil: a link made then counts.
func (s *Shard) Explain(p *Packet, before *Explanation, now clock.Tick) Explanation {
	s.keeper.enter()
	defer s.keeper.leave()
	x := explainer{Shard: s, p: p, now: now}
	if before != nil && before.New {
		x.made = &before.made
	}
	x.e.Src, x.e.Dst, x.e.SrcPort, x.e.DstPort = p.H.Src, p.H.Dst, p.H.SrcPort, p.H.DstPort
	x.miss()
	return x.e
}

func (x *explainer) end(v Verdict, r reason.Reason, why string, args ...any) {
	x.e.Verdict, x.e.Reason, x.e.Why = v, r, fmt.Sprintf(why, args...)
}

func (x *explainer) drop(r reason.Reason, why string, args ...any) { x.end(Drop, r, why, args...) }
func (x *explainer) host(why string, args ...any)                  { x.end(Host, reason.ToHost, why, args...) }
func (x *explainer) answer(t, c uint8, r reason.Reason, why string, args ...any) {
	x.end(Answer, r, why, args...)
	x.e.ICMPType, x.e.ICMPCode = t, c
}

func (x *explainer) expired() bool {
	if x.p.H.TTL > 1 {
		return false
	}
	x.answer(11, 0, reason.TTLExpired, "the TTL is %d: the packet ends here, and the sender is told by time exceeded", x.p.H.TTL)
	return true
}

func (x *explainer) untouched(why string, args ...any) {
	if !x.expired() {
		x.end(Forward, reason.None, why, args...)
	}
}

// miss follows Shard.Miss.
func (x *explainer) miss() {
	h := &x.p.H
	switch {
	case h.Reason != reason.None:
		x.drop(h.Reason, "%s", h.Reason.Help())
	case h.Kind == packet.KindNone:
		x.drop(reason.BadHeader, "no IPv4 packet")
	case h.Kind == packet.KindARP, h.Kind == packet.KindIPv6, h.Kind == packet.KindNotIP:
		x.host("no IPv4 packet")
	case h.Dst>>28 == 0xe, h.Dst == 0xffffffff:
		x.host("multicast and broadcast are the kernel's")
	case h.Fragment():
		x.fragment()
	case h.Kind == packet.KindICMPError:
		x.icmpError()
	default:
		x.one()
	}
}

// fragment follows Shard.fragment, without a look at overlaps.
func (x *explainer) fragment() {
	f, key := &x.frag, fragmentKey(x.p)
	id := f.find(x.seed.hash(key[0], key[1]), &key)
	if id != 0 && f.late(id, x.now) {
		id = 0
	}
	if id == 0 && x.p.H.FragOff != 0 {
		x.end(Keep, reason.Held, "a fragment of a datagram whose first fragment has not come: it is held until then, for %d s at most", f.timeout/clock.PerSecond)
		return
	}
	if x.p.H.FragOff == 0 {
		if x.p.H.Kind == packet.KindICMPError {
			x.icmpError()
		} else {
			x.one()
		}
		x.e.Why = "first fragment, which decides for the others: " + x.e.Why
		return
	}
	switch d := &f.list[id]; d.phase {
	case phaseWait:
		x.end(Keep, reason.Held, "a fragment of a datagram whose first fragment has not come: it is held until then")
	case phaseAway:
		x.end(Away, reason.None, "the datagram is worker %d's", d.owner)
	case phaseDrop:
		x.drop(d.reason, "as the first fragment")
	case phaseHost:
		x.host("as the first fragment")
	default:
		if x.p.H.TTL <= d.steps {
			x.drop(reason.TTLExpired, "a later fragment whose TTL runs out is not answered")
			return
		}
		x.end(Forward, reason.None, "as the first fragment")
		if d.phase == phaseAgain {
			x.e.Verdict = Again
		}
		x.e.Src, x.e.Dst = d.src, d.dst
	}
}

// icmpError follows Shard.icmpError.
func (x *explainer) icmpError() {
	p, h := x.p, &x.p.H
	var q packet.Headers
	switch {
	case !packet.ParseQuoted(p.Data, h, &q):
		x.drop(reason.BadHeader, "the packet that the ICMP error quotes can't be read")
		return
	case p.Side == Outside && !p.Hairpin && x.isAlias(h.Src):
		x.drop(reason.BadSource, "from outside comes nothing with an alias address as source")
		return
	case q.Kind == packet.KindLaterFragment, q.Kind == packet.KindICMPError, q.Kind == packet.KindICMPOther:
		x.icmpUnlinked(&q, reason.Unsupported, "the packet that the ICMP error quotes is none that a link could have")
		return
	}
	link := uint32(0)
	if h.Dst == q.Src {
		link = x.findLink(p.Side, q.Dst, q.Src, q.DstPort, q.SrcPort, q.Proto, q.Kind == packet.KindICMPQuery && !asks(&q), x.now)
	}
	if link == 0 {
		x.icmpUnlinked(&q, reason.NoMapping, "no link belongs to the packet that the ICMP error quotes")
		return
	}
	info := x.info(link, x.now)
	x.e.Link = &info
	switch {
	case h.TTL <= 1:
		x.drop(reason.TTLExpired, "an ICMP error whose TTL runs out is not answered")
	case p.Side == Outside:
		x.end(Forward, reason.None, "an ICMP error about a packet of this link: its quote is translated back")
		x.e.Dst = info.Local.Addr
	case x.isAlias(h.Dst) && !x.rules.Hairpin:
		x.drop(reason.HairpinOff, "an ICMP error to an alias address, and nat.hairpin is off")
	default:
		x.end(Forward, reason.None, "an ICMP error about a packet of this link: its quote is translated")
		x.e.Src = info.Alias.Addr
		if x.isAlias(h.Dst) {
			x.e.Verdict = Again
		}
	}
}

// icmpUnlinked follows Shard.icmpUnlinked.
func (x *explainer) icmpUnlinked(q *packet.Headers, why reason.Reason, because string) {
	p, h := x.p, &x.p.H
	inside, remote := h.Dst, q.Dst
	if p.Side == Inside {
		inside, remote = q.Dst, h.Dst
	}
	switch {
	case x.isKernel(h.Dst):
		x.host("an ICMP error about no link, to an address of the gateway's kernel")
	case x.isAlias(h.Dst), p.Side == Outside && !x.liesInside(h.Dst),
		!x.plain(inside, remote) && !(p.Side == Inside && x.sideOf != nil && x.liesInside(h.Dst)):
		x.drop(why, "%s", because)
	case h.TTL <= 1:
		x.drop(reason.TTLExpired, "an ICMP error whose TTL runs out is not answered")
	default:
		x.end(Forward, reason.None, "an ICMP error about traffic that is not translated")
	}
}

// live returns the line of a tuple whose link will still be there when the packet comes; 0: none. Translate takes away what is
// absent, which may uncover an older link with the same key.
func (x *explainer) live(t tuple) uint32 {
	n := x.lookup(t, x.seed.tuple(t))
	if n == 0 || !x.gone(n/2, x.now) {
		return n
	}
	if n&1 == in {
		if twin := x.groups.twin(x.groups.of(n/2), n/2); twin != 0 && !x.gone(twin, x.now) {
			return 2*twin + in
		}
	}
	return 0
}

// one follows Shard.one.
func (x *explainer) one() {
	t, ok := tupleOf(x.p)
	if !ok {
		x.strange()
		return
	}
	if x.isMade(t) {
		x.knownMade()
		return
	}
	if n := x.live(t); n != 0 {
		x.known(n)
		return
	}
	if x.p.Side == Inside {
		x.outbound(t)
	} else {
		x.inbound(t)
	}
}

// strange follows Shard.strange.
func (x *explainer) strange() {
	p, h := x.p, &x.p.H
	o := x.ours.find(h.Dst)
	net := h.Dst >> 24
	switch {
	case o != nil && o.flags&(addrPool|addrPublished) != 0:
		if o.flags&addrKernel != 0 || !x.rules.DenyIncoming {
			x.host("a kind of packet that is not translated, to an address of ours: the gateway's own")
			return
		}
		x.drop(reason.Unsupported, "%s", reason.Unsupported.Help())
	case p.Side == Outside:
		x.inboundPlain()
	case x.isAlias(h.Src):
		x.drop(reason.BadSource, "from inside comes nothing with an alias address as source")
	case net == 0 || net == 127:
		x.drop(reason.NoRoute, "such a destination is never forwarded")
	case x.plain(h.Src, h.Dst), x.sideOf != nil && x.liesInside(h.Dst):
		x.untouched("traffic between these two is not translated")
	default:
		x.drop(reason.Unsupported, "%s", reason.Unsupported.Help())
	}
}

// isMade reports whether a packet is inbound of the link that its first pass makes: it comes back to its sender.
func (x *explainer) isMade(t tuple) bool {
	n := x.made
	if n == nil || x.p.Side != Outside {
		return false
	}
	rport := n.remote.Port
	if n.proto == packet.ProtoICMP {
		rport = n.alias.Port
	}
	return t == makeTuple(Outside, n.remote.Addr, n.alias.Addr, rport, n.alias.Port, n.proto, n.proto == packet.ProtoICMP && !n.request)
}

// knownMade is known for that link.
func (x *explainer) knownMade() {
	if x.expired() {
		return
	}
	x.e.Local, x.e.Alias, x.e.Remote, x.e.HasSlot = x.made.local, x.made.alias, x.made.remote, true
	x.end(Forward, reason.None, "comes back to its sender by the link that it has just made")
	x.rewrite(in)
}

// known follows Shard.known.
func (x *explainer) known(n uint32) {
	id := n / 2
	info := x.info(id, x.now)
	x.e.Link = &info
	if x.expired() {
		return
	}
	x.e.Local, x.e.Alias, x.e.Remote = info.Local, info.Alias, info.Remote
	x.e.Slot, x.e.HasSlot = x.lines[n].hop, true
	x.end(Forward, reason.None, "belongs to a link, %s, that ends in %d s if it stays idle", info.State, info.ExpiresIn/clock.PerSecond)
	x.rewrite(n & 1)
	if n&1 == out && x.has(id, flagHairpin) {
		x.e.Verdict = Again
	}
}

// rewrite fills in how the packet leaves, by the endpoints of its link.
func (x *explainer) rewrite(direction uint32) {
	e, icmp := &x.e, x.p.H.Kind == packet.KindICMPQuery
	if direction == out {
		e.Src, e.SrcPort = e.Alias.Addr, e.Alias.Port
		if icmp {
			e.DstPort = e.SrcPort
		}
		return
	}
	e.Dst, e.DstPort = e.Local.Addr, e.Local.Port
	if icmp {
		e.SrcPort = e.DstPort
	}
}

// make says that a link is made, and how the packet leaves by it.
func (x *explainer) make(n *newLink, direction uint32, why string, args ...any) {
	x.end(Forward, reason.None, why, args...)
	x.e.New, x.e.HasSlot, x.e.made = true, true, *n
	x.e.Local, x.e.Alias, x.e.Remote = n.local, n.alias, n.remote
	x.rewrite(direction)
	if direction == out && n.flags&flagHairpin != 0 {
		x.e.Verdict = Again
	}
}

// outbound follows Shard.outbound.
func (x *explainer) outbound(t tuple) {
	h := &x.p.H
	local, remote := Local{h.Src, t.sport()}, Remote{h.Dst, t.dport()}
	n := newLink{local: local, remote: remote, proto: h.Proto, request: t.request()}
	if h.Kind == packet.KindICMPQuery {
		n.remote.Port = 0
	}
	if x.isAlias(h.Src) {
		x.drop(reason.BadSource, "from inside comes nothing with an alias address as source")
		return
	}
	if net := h.Dst >> 24; net == 0 || net == 127 {
		x.drop(reason.NoRoute, "such a destination is never forwarded")
		return
	}
	if o := x.ours.find(h.Dst); o != nil && o.flags&(addrPool|addrPublished) != 0 {
		if !x.hairpin(&n, o) {
			return
		}
		n.flags |= flagHairpin
	} else if x.exempt.has(h.Dst) {
		x.untouched("nat.exempt names the destination: not translated")
		return
	} else if x.sideOf != nil {
		side, ok := x.sideOf(h.Dst)
		if !ok {
			x.answer(3, 0, reason.NoRoute, "there is no route to the destination by a port of the gateway")
			return
		}
		if side == Inside {
			x.untouched("the destination lies inside too: not translated")
			return
		}
	}
	rule := x.table.matchOut(n.local, n.proto, n.remote, x.now)
	static := uint32(0)
	if rule == 0 {
		static = x.table.addrOut(local.Addr)
		if static == 0 && n.flags&flagHairpin == 0 && x.untranslated(local.Addr) {
			x.untouched("unregistered_only or unregistered_cgn leaves the source alone: not translated")
			return
		}
	}
	if x.barred() {
		return
	}
	if why, words := x.admit(&n); why != reason.None {
		x.refuse(why, words)
		return
	}
	why, words := x.choose(&n, rule, static)
	if why != reason.None {
		x.refuse(why, words)
		return
	}
	x.make(&n, out, "a link is made: %s", words)
}

func (x *explainer) refuse(why reason.Reason, words string) {
	if why == reason.ProtoConflict {
		x.drop(why, "%s", words)
		return
	}
	x.answer(3, x.rules.NoResourceCode, why, "%s", words)
}

// barred follows Shard.barred.
func (x *explainer) barred() bool {
	if !x.p.Hairpin && x.reverse != nil && !x.reverse(x.p.H.Src, x.p.Ingress) {
		x.drop(reason.ReversePath, "the route back to the source does not leave by the port that the packet came in by")
		return true
	}
	if x.expired() {
		return true
	}
	switch {
	case x.draining && x.p.Side == Inside && !x.p.Hairpin:
		x.refuse(reason.Draining, "the gateway drains: no new link is made")
	case x.draining:
		x.drop(reason.Draining, "the gateway drains: no new link is made")
	}
	return x.draining
}

// hairpin follows Shard.hairpin.
func (x *explainer) hairpin(n *newLink, o *ours) bool {
	h := &x.p.H
	alias := Alias{h.Dst, h.DstPort}
	if h.Kind == packet.KindOther {
		alias.Port = 0
	}
	if !x.somebody(alias, n, x.now) {
		if o.flags&addrKernel != 0 || !x.rules.DenyIncoming {
			x.host("nobody has this alias endpoint: it is the gateway's own")
		} else {
			x.drop(reason.NoMapping, "nobody has this alias endpoint, and deny_incoming keeps it closed")
		}
		return false
	}
	if !x.rules.Hairpin {
		x.drop(reason.HairpinOff, "from inside to an alias address, and nat.hairpin is off")
		return false
	}
	return true
}

// live1 is how many links there are, with the one that the first pass makes.
func (x *explainer) live1() int {
	if x.made != nil {
		return x.links.live + 1
	}
	return x.links.live
}

// room follows Shard.room.
func (x *explainer) room() bool {
	l, live := &x.links, x.live1()
	if live < len(l.cold)-1 && (l.share == nil || int64(live) < l.granted || l.share.left.Load() > 0) {
		return true
	}
	if x.closing.count > 0 || x.sweep != 0 {
		return true
	}
	at, id := x.main.first()
	return id != 0 && !at.After(x.now) && x.Shard.expired(id, x.now)
}

// admit follows Shard.admit; n.host stays 0 for a host that is not known yet.
func (x *explainer) admit(n *newLink) (reason.Reason, string) {
	if !x.room() {
		return reason.TableFull, "limits.links is reached, and no closing link can be given up"
	}
	id := x.hosts.find(n.local.Addr)
	if id == 0 {
		if x.hosts.full() && x.hosts.idle == 0 {
			return reason.TableFull, "as many hosts as limits.links allows are known"
		}
		return reason.None, ""
	}
	n.host = id
	h := x.hosts.list[id] // a copy, to take from its bucket
	if most := x.limits.LinksPerHost; most > 0 && int(h.links) >= most {
		return reason.HostLimit, fmt.Sprintf("the host has %d links, limits.links_per_host is %d", h.links, most)
	}
	if x.limits.NewLinksPerHost > 0 && !h.take(x.hostRate(), x.now) {
		return reason.HostRate, fmt.Sprintf("the host opens links faster than limits.new_links_per_host: %d a second", x.limits.NewLinksPerHost)
	}
	return reason.None, ""
}

func (x *explainer) taken(n *newLink) bool {
	l := x.lookupIn(n)
	if l == 0 {
		return false
	}
	if !x.gone(l/2, x.now) {
		return true
	}
	twin := x.groups.twin(x.groups.of(l/2), l/2)
	return twin != 0 && !x.gone(twin, x.now)
}

// choose follows Shard.choose.
func (x *explainer) choose(n *newLink, rule, static uint32) (reason.Reason, string) {
	if rule != 0 {
		r := &x.table.list[rule]
		n.alias = Alias{x.publicAddr(r), r.public.Port}
		if n.alias.Addr != 0 && x.mineIn(n) && !x.taken(n) {
			return reason.None, fmt.Sprintf("redirect %d publishes the local endpoint", r.id)
		}
	}
	if protoIndex(n.proto) == 3 {
		return x.chooseOther(n, static)
	}
	if static != 0 {
		n.alias.Addr = x.publicAddr(&x.table.list[static])
		return x.chooseStatic(n, static)
	}
	mapping := x.mappingMode(n.proto)
	if mapping != portPeer && x.join(n, mapping) {
		return reason.None, "the local endpoint has a mapping, which it keeps for other remotes"
	}
	n.kind = mapping
	return x.chooseFree(n)
}

// join follows Shard.join.
func (x *explainer) join(n *newLink, kind portKind) bool {
	id := x.mapping(n.local, n.proto, kind, n.remote.Addr, Alias{})
	if id != 0 && x.gone(id, x.now) {
		id = x.heir(x.groups.of(id), id, kind)
	}
	if id == 0 || x.gone(id, x.now) {
		return false
	}
	n.alias, n.kind = x.aliasOf(id), kind
	return !x.taken(n)
}

// chooseOther follows Shard.chooseOther.
func (x *explainer) chooseOther(n *newLink, static uint32) (reason.Reason, string) {
	if static != 0 {
		n.alias = Alias{Addr: x.publicAddr(&x.table.list[static])}
		n.kind = portRule
	} else {
		addr, ok := x.aliasOfHost(n)
		if !ok {
			return reason.NoPort, "there is no alias address for the host"
		}
		n.alias, n.kind = Alias{Addr: addr}, portPeer
	}
	if x.taken(n) || n.kind == portPeer && !x.fixed(n) {
		return reason.ProtoConflict, reason.ProtoConflict.Help()
	}
	return reason.None, "a protocol without ports: one inside host for each remote"
}

// fixed follows Shard.fixed.
func (x *explainer) fixed(n *newLink) bool {
	r := lport.Request{Alias: n.alias.Addr, Row: rowOf(n.proto)}
	if protoIndex(n.proto) == 3 {
		port := OtherRow(n.remote.Addr, n.proto)
		return x.owners.Byte(n.alias.Addr, lport.RowOther, port) == lport.ByteRedirect || x.ports.Takes(&r, port)
	}
	return x.ports.Takes(&r, n.alias.Port)
}

// chooseStatic follows Shard.chooseStatic.
func (x *explainer) chooseStatic(n *newLink, static uint32) (reason.Reason, string) {
	id := x.table.list[static].id
	if o := x.ours.find(n.alias.Addr); o != nil && o.flags&addrDynamic != 0 {
		n.kind = portPeer
		why, words := x.freePort(n, n.alias.Addr)
		return why, fmt.Sprintf("redirect %d maps the host's address: %s", id, words)
	}
	if n.alias.Port = n.local.Port; x.taken(n) {
		x.guess(1024, 65535)
		return reason.None, fmt.Sprintf("redirect %d maps the host's address; its port is taken toward this remote, so another one is chosen", id)
	}
	return reason.None, fmt.Sprintf("redirect %d maps the host's address", id)
}

func (x *explainer) guess(low, high uint16) { x.e.Guess, x.e.Low, x.e.High = true, low, high }

// aliasOfHost follows Shard.aliasOfHost; with arbitrary pooling the first address stands for any.
func (x *explainer) aliasOfHost(n *newLink) (packet.Addr, bool) {
	if len(x.pool) == 0 {
		return 0, false
	}
	if x.plan != nil {
		a, _, _, ok := x.plan.Forward(n.local.Addr)
		return a, ok
	}
	if x.rules.Arbitrary {
		x.e.AnyAlias = len(x.pool) > 1
		return x.pool[0], true
	}
	if n.host != 0 {
		h := &x.hosts.list[n.host]
		o := x.ours.find(h.alias)
		if x.spread && h.epoch == x.epoch || !x.spread && o != nil && o.flags&addrDynamic != 0 {
			return h.alias, true
		}
	}
	return x.prefer(n.local.Addr), true
}

// chooseFree follows Shard.chooseFree.
func (x *explainer) chooseFree(n *newLink) (reason.Reason, string) {
	addr, ok := x.aliasOfHost(n)
	if !ok {
		if x.plan != nil && len(x.pool) > 0 {
			return reason.NoPort, "the host is outside nat.deterministic.inside"
		}
		return reason.NoPort, "there is no alias address: nat.alias is empty, or follows a port without address"
	}
	why, words := x.freePort(n, addr)
	settled := x.plan != nil || !x.rules.Arbitrary && (x.spread || n.host != 0 && x.hosts.list[n.host].links > 0)
	if why != reason.NoPort || settled {
		return why, words
	}
	for _, a := range x.pool {
		if a == addr {
			continue
		}
		if why, words = x.freePort(n, a); why != reason.NoPort {
			return why, words
		}
	}
	return why, words
}

// freePort follows Shard.freePort.
func (x *explainer) freePort(n *newLink, addr packet.Addr) (reason.Reason, string) {
	n.alias.Addr = addr
	r := lport.Request{Alias: addr, Row: rowOf(n.proto), Host: n.local.Addr, Want: n.local.Port, Now: x.now}
	o, err := x.ports.Peek(&r, n.kind != portExclusive, peerOf(n.remote, n.kind))
	switch {
	case err == lport.ErrHostLimit:
		return reason.HostLimit, "the host has as many ports or blocks as limits.ports_per_host or nat.blocks allow"
	case err != nil && (x.sweep != 0 || n.proto == packet.ProtoTCP && x.closing.count > 0):
		x.guess(x.rules.PortRange.Low, x.rules.PortRange.High)
		return reason.None, fmt.Sprintf("no port of %v is free: one of a closing link is given up if there is one that would do", addr)
	case err != nil:
		return reason.NoPort, fmt.Sprintf("no port of %v is free for this host and remote", addr)
	case o.Sure && x.e.AnyAlias:
		n.alias.Port = o.Port
		x.guess(x.rules.PortRange.Low, x.rules.PortRange.High)
		return reason.None, "an alias address by chance, and the host's own port if it is free there"
	case o.Sure:
		n.alias.Port = o.Port
		return reason.None, fmt.Sprintf("port %d of %v is free", o.Port, addr)
	}
	n.alias.Port = o.Low
	x.guess(o.Low, o.High)
	if o.Block {
		return reason.None, fmt.Sprintf("the host gets one more block of ports of %v", addr)
	}
	return reason.None, fmt.Sprintf("one of the free ports of %v from %d to %d, by chance", addr, o.Low, o.High)
}

// inbound follows Shard.inbound.
func (x *explainer) inbound(t tuple) {
	p, h := x.p, &x.p.H
	o := x.ours.find(h.Dst)
	if o == nil || o.flags&(addrPool|addrPublished) == 0 {
		x.inboundPlain()
		return
	}
	if !p.Hairpin && x.isAlias(h.Src) {
		x.drop(reason.BadSource, "from outside comes nothing with an alias address as source")
		return
	}
	alias, remote := Alias{h.Dst, t.dport()}, Remote{h.Src, t.sport()}
	if h.Kind == packet.KindICMPQuery {
		remote.Port = 0
	}
	n := newLink{alias: alias, remote: remote, proto: h.Proto, request: h.Kind == packet.KindICMPQuery && !t.request(), flags: flagInbound}
	if p.Hairpin {
		n.flags |= flagHairpin
	}
	rule := x.redirect(alias, h.Proto, t.request(), remote, x.now)
	why := reason.NoMapping
	if rule == 0 {
		switch x.admitMapping(&n, t) {
		case admitted:
			if !x.barred() {
				x.accept(&n, "a link is made: a mapping of %v:%d is there, and its filter admits this remote", n.local.Addr, n.local.Port)
			}
			return
		case filtered:
			why = reason.Filtered
		}
	}
	if rule == 0 && why == reason.NoMapping && !x.rules.DenyIncoming {
		if rule = x.addrRule(alias.Addr); rule == 0 && x.rules.Target != 0 {
			n.local = Local{x.rules.Target, alias.Port}
			n.kind, n.take = portPeer, true
			if !x.barred() {
				x.accept(&n, "a link is made: nobody has this alias endpoint, and nat.target takes what is nobody's")
			}
			return
		}
	}
	words := "no link, no redirect and no mapping is there for this alias endpoint"
	if why == reason.Filtered {
		words = "a mapping is there, but its filter does not admit this remote"
	}
	switch {
	case rule != 0:
		x.byRule(&n, o, rule)
	case why == reason.NoMapping && (o.flags&addrKernel != 0 || !x.rules.DenyIncoming),
		o.flags&addrKernel != 0 && t.request():
		x.host("%s: it is the gateway's own", words)
	case h.Kind == packet.KindTCP && h.TCPFlags&(packet.TCPSyn|packet.TCPAck|packet.TCPRst) == packet.TCPSyn && !p.Hairpin && !x.holds.full() && x.holds.find(t) == nil:
		x.end(Keep, reason.Held, "%s: an unsolicited SYN is held for %d s, then dropped as %v", words, holdTicks/clock.PerSecond, why)
	default:
		x.drop(why, "%s", words)
	}
}

// byRule follows the end of Shard.inbound for a redirect.
func (x *explainer) byRule(n *newLink, o *ours, rule uint32) {
	if x.barred() {
		return
	}
	r := &x.table.list[rule]
	n.local = r.locals[0]
	if r.pick == SourceHash || len(r.locals) == 1 {
		n.local = x.table.pickLocal(r, n.remote) // takes no turn
	} else {
		n.local = r.locals[r.turn%uint32(len(r.locals))]
	}
	if r.kind == ruleAddr {
		n.local.Port = n.alias.Port
		if o.flags&addrDynamic != 0 {
			n.kind, n.take = portPeer, true
		}
	}
	x.accept(n, "a link is made: redirect %d leads to %v:%d", r.id, n.local.Addr, n.local.Port)
}

// inboundPlain follows Shard.inboundPlain.
func (x *explainer) inboundPlain() {
	h := &x.p.H
	if x.sideOf != nil {
		if side, ok := x.sideOf(h.Dst); !ok || side != Inside {
			x.drop(reason.NoMapping, "from outside to an address that is no alias address and does not lie inside")
			return
		}
	}
	if x.exempt.has(h.Src) || x.untranslated(h.Dst) && x.table.addrOut(h.Dst) == 0 {
		x.untouched("traffic between these two is not translated")
		return
	}
	x.drop(reason.NoMapping, "from outside straight to an inside address, whose traffic is translated")
}

// living follows Shard.living: a link of the group that is not gone, 0 if there is none.
func (x *explainer) living(gr group) uint32 {
	if gr.value == 0 {
		return 0
	}
	if head := x.groups.head(gr.value); !x.gone(head, x.now) {
		return head
	}
	l := x.groups.after(gr, 0)
	for range explainWalk {
		if l == 0 || !x.gone(l, x.now) {
			return l
		}
		l = x.groups.after(gr, l)
	}
	return 0
}

// explainWalk bounds what a question may cost the worker: links of a group that are gone and not cleaned up yet are walked over.
const explainWalk = 4096

// toward follows groups.toward and passes over links that are gone.
func (x *explainer) toward(gr group, addr packet.Addr) uint32 {
	l := x.groups.toward(gr, addr, 0)
	for range explainWalk {
		same := l != 0 && x.remoteOf(l).Addr == addr
		if l == 0 || same && !x.gone(l, x.now) {
			return l
		}
		if !same && gr.value&treeBit != 0 {
			return 0 // in a tree those of one address lie together
		}
		l = x.groups.after(gr, l)
	}
	return 0
}

// admitMapping follows Shard.admitMapping.
func (x *explainer) admitMapping(n *newLink, t tuple) admission {
	gr := x.groups.find(n.alias, n.proto)
	head := x.living(gr)
	made := x.made != nil && x.made.alias == n.alias && x.made.proto == n.proto
	if head == 0 && !made || protoIndex(n.proto) == 3 {
		return nothing
	}
	if t.request() {
		return filtered
	}
	var by uint32
	filter := x.filtering(n.proto)
	if made && (filter == EndpointIndependent && head == 0 || filter != AddressAndPortDependent && x.made.remote.Addr == n.remote.Addr) {
		n.local, n.kind = x.made.local, x.made.kind
		n.take = n.kind == portPeer
		return admitted
	}
	if filter != AddressAndPortDependent {
		by = x.toward(gr, n.remote.Addr)
	}
	if by == 0 && filter == EndpointIndependent {
		by = head
	}
	if by == 0 && head != 0 && !x.rules.DenyIncoming && x.rules.Target != 0 && x.localOf(head).Addr == x.rules.Target {
		by = head
	}
	if by == 0 {
		return filtered
	}
	n.local = x.localOf(by)
	switch n.kind = x.portKind(by); n.kind {
	case portPeer:
		n.take = true
	case portAddress:
		n.take = x.mapping(n.local, n.proto, n.kind, n.remote.Addr, n.alias) == 0
	}
	return admitted
}

// accept follows Shard.accept.
func (x *explainer) accept(n *newLink, why string, args ...any) {
	switch {
	case !x.room():
		x.drop(reason.TableFull, "limits.links is reached, and no closing link can be given up")
	case !x.mineOut(n):
		x.drop(reason.NoPort, "the answers would belong to another worker: a redirect of this port is too new")
	case n.take && !x.fixed(n):
		x.drop(reason.NoPort, "the alias port is another worker's, the kernel's, or a mapping's that does not share it")
	default:
		x.make(n, in, why, args...)
	}
}
