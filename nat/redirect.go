package nat

import (
	"errors"

	"pollux/internal/clock"
	"pollux/internal/packet"
)

// Redirects at run time. They are permanent: they outlive rule and address changes until they are deleted by the id that
// adding gave. Links made by one live on after it was deleted, until they expire or rules change. A shard with a shared owner table
// expects its owner to mark the ports.

var (
	errNoRedirect = errors.New("nat: no such redirect")
	errPartial    = errors.New("nat: only a redirect for one remote address and port can be made dynamic")
)

// AddRedirect publishes a port as the newest redirect.
func (s *Shard) AddRedirect(d RedirectPort, now clock.Tick) (id uint32, err error) {
	if err := checkPort(d); err != nil {
		return 0, err
	}
	return s.addRule(portRuleOf(d))
}

// AddRedirectAddr publishes a whole address.
func (s *Shard) AddRedirectAddr(d RedirectAddr, now clock.Tick) (id uint32, err error) {
	if err := checkAddr(d); err != nil {
		return 0, err
	}
	return s.addRule(addrRule(d))
}

// AddRedirectProto publishes a protocol without ports.
func (s *Shard) AddRedirectProto(d RedirectProto, now clock.Tick) (id uint32, err error) {
	if err := checkProto(d); err != nil {
		return 0, err
	}
	return s.addRule(protoRule(d))
}

// Expect adds a one-shot redirect, the expectation of a connection that another one announced: it is gone after its first
// hit, or unused after the protocol's timeout (TCP: opening).
func (s *Shard) Expect(d RedirectPort, now clock.Tick) (id uint32, err error) {
	if err := checkPort(d); err != nil {
		return 0, err
	}
	r := portRuleOf(d)
	r.oneShot, r.death = true, now+clock.Tick(s.ruleLife(d.Proto))
	return s.addRule(r)
}

// MakeDynamic turns a redirect for one remote endpoint into a one-shot one (libalias's RedirectDynamic); any other is refused.
func (s *Shard) MakeDynamic(id uint32, now clock.Tick) error {
	at := s.table.byID(id)
	if at == 0 {
		return errNoRedirect
	}
	r := &s.table.list[at]
	if r.kind != rulePort || r.class != classExact {
		return errPartial
	}
	if !r.oneShot {
		r.oneShot, r.config = true, false
		r.death = now + clock.Tick(s.ruleLife(r.proto))
		s.table.mortal(r.death)
	}
	return nil
}

// DelRedirect takes a redirect away and reports whether it was there.
func (s *Shard) DelRedirect(id uint32, now clock.Tick) bool {
	at := s.table.byID(id)
	if at == 0 {
		return false
	}
	s.dropRule(at)
	s.learnAddrs()
	return true
}

// ruleLife is how long a one-shot rule waits for its hit.
func (s *Shard) ruleLife(proto uint8) uint32 {
	switch proto {
	case packet.ProtoTCP:
		return s.timeout.state[Opening]
	case packet.ProtoUDP:
		return s.timeout.udp
	}
	return s.timeout.icmp
}

// addRule takes a rule in at run time.
func (s *Shard) addRule(r rule) (uint32, error) {
	r.born = s.epoch
	if s.private && r.public.Addr != 0 {
		if err := s.owners.Add(r.public.Addr); err != nil {
			return 0, err
		}
	}
	at := s.table.add(r)
	if o := s.knownAddr(r.public.Addr); r.kind == ruleAddr || r.public.Addr != 0 && (o == nil || o.flags&addrPublished == 0) {
		s.learnAddrs()
	}
	if m, ok := s.markOf(&r); ok && s.private {
		if s.marks[m]++; s.marks[m] == 1 {
			s.owners.SetRedirect(m.addr, m.row, m.port)
		}
	}
	return s.table.list[at].id, nil
}

// dropRule takes a rule away and clears its mark. Its address stays one of ours until the next change of rules.
func (s *Shard) dropRule(at uint32) {
	if m, ok := s.markOf(&s.table.list[at]); ok && s.private {
		if s.marks[m]--; s.marks[m] <= 0 {
			delete(s.marks, m)
			s.owners.ClearRedirect(m.addr, m.row, m.port)
		}
	}
	s.table.remove(at)
}

// endOneShots ends expectations that nothing met in time.
func (s *Shard) endOneShots(now clock.Tick) (work int) {
	x := &s.table
	if !now.After(x.death) {
		return 0
	}
	x.death = now + 1<<30
	for i := range x.list {
		switch r := &x.list[i]; {
		case !r.oneShot:
		case now.After(r.death):
			s.dropRule(uint32(i))
		case r.death.Before(x.death):
			x.death = r.death
		}
		work++
	}
	return work
}
