package nat

import (
	"pollux/internal/clock"
	"pollux/internal/packet"
	"pollux/internal/reason"
)

// icmpError translates an ICMP error by the packet that it quotes: the error belongs to the link that an answer to that
// packet would belong to (RFC 5508 section 4). The link is looked up only: an error never makes, refreshes, changes or ends
// one. Endpoints change in the quote as they do in the answer, and the error's own address on that side with them, so that
// inside nobody sees an alias address for his own, and outside nobody a private one: the error of an inner router leaves
// with the alias address too. All three checksums are kept right, and none of the quote is verified.
func (s *Shard) icmpError(p *Packet, now clock.Tick) {
	h := &p.H
	var q packet.Headers
	switch {
	case !packet.ParseQuoted(p.Data, h, &q):
		s.drop(p, reason.BadHeader)
		return
	case p.Side == Outside && !p.Hairpin && s.isAlias(h.Src):
		s.drop(p, reason.BadSource)
		return
	case q.Kind == packet.KindLaterFragment, q.Kind == packet.KindICMPError, q.Kind == packet.KindICMPOther:
		s.icmpUnlinked(p, &q, reason.Unsupported)
		return
	}
	link := uint32(0)
	if h.Dst == q.Src { // otherwise it was not sent to whom it concerns
		link = s.findLink(p.Side, q.Dst, q.Src, q.DstPort, q.SrcPort, q.Proto, q.Kind == packet.KindICMPQuery && !asks(&q), now)
	}
	switch {
	case link == 0:
		s.icmpUnlinked(p, &q, reason.NoMapping)
		return
	case h.TTL <= 1: // no error about an error
		s.drop(p, reason.TTLExpired)
		return
	case p.Side == Outside:
		l := s.localOf(link)
		packet.SetEndpoints(p.Data, h, h.Src, 0, l.Addr, 0)
		packet.SetQuoted(p.Data, h, &q, l.Addr, l.Port, q.Dst, q.DstPort)
	case s.isAlias(h.Dst) && !s.rules.Hairpin:
		s.drop(p, reason.HairpinOff)
		return
	default:
		a := s.aliasOf(link)
		packet.SetEndpoints(p.Data, h, a.Addr, 0, h.Dst, 0)
		packet.SetQuoted(p.Data, h, &q, q.Src, q.SrcPort, a.Addr, a.Port)
		if s.isAlias(h.Dst) {
			p.Verdict, p.Reason, p.Hop = Again, reason.None, nil // the second pass takes from the TTL
			return
		}
	}
	s.passError(p)
}

// icmpUnlinked decides about an error that belongs to no link: about traffic that is not translated, or of the gateway's own.
// All else is dropped for why.
func (s *Shard) icmpUnlinked(p *Packet, q *packet.Headers, why reason.Reason) {
	h := &p.H
	inside, remote := h.Dst, q.Dst // of the packet quoted
	if p.Side == Inside {
		inside, remote = q.Dst, h.Dst
	}
	switch {
	case s.isKernel(h.Dst):
		s.host(p)
	case s.isAlias(h.Dst), p.Side == Outside && !s.liesInside(h.Dst),
		!s.plain(inside, remote) && !(p.Side == Inside && s.sideOf != nil && s.liesInside(h.Dst)):
		s.drop(p, why)
	case h.TTL <= 1:
		s.drop(p, reason.TTLExpired)
	default:
		s.passError(p)
	}
}

// passError forwards the error in p by a route of its own: it need not go the way of the link's packets.
func (s *Shard) passError(p *Packet) {
	packet.DecrementTTL(p.Data, &p.H)
	p.Verdict, p.Reason, p.Hop = Forward, reason.None, nil
}

// plain reports whether traffic between an inside host and a remote is not translated.
func (s *Shard) plain(inside, remote packet.Addr) bool {
	return s.exempt.has(remote) || s.untranslated(inside) && s.table.addrOut(inside) == 0
}

// liesInside reports whether an address that is none of ours is an inside one, or may be for all we know.
func (s *Shard) liesInside(a packet.Addr) bool {
	if s.sideOf == nil {
		return true
	}
	side, ok := s.sideOf(a)
	return ok && side == Inside
}
