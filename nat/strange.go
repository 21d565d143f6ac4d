package nat

import "pollux/internal/reason"

// strange handles what no link can carry: ICMP that is neither a query nor an error with an id or a quote to translate, as a
// redirect or an address mask request. It goes on where packets between the two are not translated anyway, for such traffic
// leaves as it came; to an address of ours it is the kernel's where that has the address.
func (s *Shard) strange(p *Packet) {
	h := &p.H
	o := s.ours.find(h.Dst)
	net := h.Dst >> 24
	switch {
	case o != nil && o.flags&(addrPool|addrPublished) != 0:
		if o.flags&addrKernel != 0 || !s.rules.DenyIncoming {
			s.host(p)
			return
		}
		s.drop(p, reason.Unsupported)
	case p.Side == Outside:
		s.inboundPlain(p)
	case s.isAlias(h.Src):
		s.drop(p, reason.BadSource)
	case net == 0 || net == 127:
		s.drop(p, reason.NoRoute)
	case s.plain(h.Src, h.Dst), s.sideOf != nil && s.liesInside(h.Dst):
		s.untouched(p)
	default:
		s.drop(p, reason.Unsupported)
	}
}
