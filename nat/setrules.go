package nat

import (
	"errors"
	"fmt"
	"net/netip"
	"reflect"
	"time"

	"pollux/internal/clock"
	"pollux/internal/packet"
	"pollux/lport"
)

const (
	timeoutMax = 20 * 24 * time.Hour // ticks are compared within 24.8 days
	sweepSlice = 256                 // links looked at in one go when a new flow needs what dead ones hold
	epochSlack = 200                 // rule changes that may be outstanding: a line has 8 bits of the epoch
)

// SetRules replaces the rules, whole or not at all. Links whose rule still stands live on as they are (the translation of
// a link is settled when it is made); all others are dead at once: no packet finds them, and Advance cleans them up in slices.
// Giving the rules that hold already changes nothing. Redirects added at run time stay. Where workers share the alias
// ports, steering and the marks of redirects must say what the new rules need before this is called: a link whose two
// directions do not both come here any more does not stand, nor does one on a port that a redirect publishes now.
func (s *Shard) SetRules(r Rules, now clock.Tick) error {
	s.keeper.enter()
	defer s.keeper.leave()
	if reflect.DeepEqual(r, s.rules) {
		return nil
	}
	return s.setRules(r, now, nil)
}

// Prepare does everything of SetRules that can fail and changes nothing that a packet could tell: a SetRules of the same
// rules that follows succeeds. So several shards take new rules all or none.
func (s *Shard) Prepare(r Rules) error {
	s.keeper.enter()
	defer s.keeper.leave()
	if err := check(&r); err != nil {
		return err
	}
	plan, err := newPlan(&r)
	if err != nil {
		return err
	}
	if err := s.roomForWindows(&r); err != nil {
		return err
	}
	o := s.portOpt
	portOptions(&o, &r, plan)
	return s.ports.Check(o)
}

// roomForWindows maps the table of TCP windows when rules ask for it first.
func (s *Shard) roomForWindows(r *Rules) (err error) {
	if r.TCPWindowTracking && s.windows == nil {
		s.windows, err = table[window](&s.memory, len(s.cold))
	}
	return err
}

// portOptions fills in what rules say about alias ports.
func portOptions(o *lport.Options, r *Rules, plan *lport.Plan) {
	o.Low, o.High = r.PortRange.Low, r.PortRange.High
	o.SamePorts, o.Parity = r.SamePorts, r.PortParity
	o.Block = lport.Block(r.Blocks)
	o.Deterministic = plan
}

// Sweeping reports whether links are left that the latest change of rules has not been applied to; Advance works on them.
func (s *Shard) Sweeping() bool { return s.sweep != 0 }

// setRules puts rules in force; o is given at the start only.
func (s *Shard) setRules(r Rules, now clock.Tick, o *Options) error {
	if err := check(&r); err != nil {
		return err
	}
	if s.spread && (r.Blocks.Size != 0 || r.Deterministic.Inside.IsValid()) {
		return errors.New("nat: blocks and deterministic ports belong to one worker each: they exclude steering by flow")
	}
	plan, err := newPlan(&r)
	if err != nil {
		return err
	}
	if err := s.roomForWindows(&r); err != nil {
		return err
	}
	published := append(s.publics(), configPublics(&r)...)
	if s.private {
		for _, a := range append(published, r.Alias...) {
			if a != 0 {
				if err := s.owners.Add(a); err != nil {
					return err
				}
			}
		}
	}
	s.portOpt.Owners = s.owners
	portOptions(&s.portOpt, &r, plan)
	s.portOpt.Now = now
	if o != nil {
		s.portOpt.Worker, s.portOpt.Workers, s.portOpt.Seed = o.Worker, o.Workers, o.Seed
		s.portOpt.PortsPerHost = o.Limits.PortsPerHost
		s.portOpt.Hosts, s.portOpt.Links, s.portOpt.Shared = o.Limits.Links, o.Limits.Links, o.Shared
		s.portOpt.InUse = s.inUse
		s.ports, err = lport.New(s.portOpt)
	} else {
		err = s.ports.Configure(s.portOpt)
	}
	if err != nil {
		return err
	}

	// Nothing can fail from here on.
	old := s.rules
	s.newEpoch(now)
	if r.Target != old.Target || o != nil {
		s.targetBorn = s.epoch
	}
	reset := r.ResetOnAddressChange && !sameAddrs(r.Alias, old.Alias)
	s.rules, s.plan = r, plan
	s.exempt = newSpans(r.Exempt)
	s.timeout = timeouts{udp: clock.Ticks(r.Timeouts.UDP), icmp: clock.Ticks(r.Timeouts.ICMP), other: clock.Ticks(r.Timeouts.Other)}
	s.timeout.state[Opening] = clock.Ticks(r.Timeouts.TCPOpening)
	s.timeout.state[Established] = clock.Ticks(r.Timeouts.TCPEstablished)
	s.timeout.state[Closing] = clock.Ticks(r.Timeouts.TCPClosing)
	s.quick = min(s.timeout.udp, s.timeout.icmp, s.timeout.other,
		s.timeout.state[Opening], s.timeout.state[Established], s.timeout.state[Closing])
	s.frag.timeout = clock.Ticks(r.Timeouts.Fragment)
	if r.TCPWindowTracking && !s.track {
		clear(s.windows[:s.fresh])
	}
	s.track = r.TCPWindowTracking
	s.diffRules(&r, reset)
	s.learnAddrs()
	if s.private {
		s.mark()
	}
	return nil
}

// newEpoch makes every link prove that it stands before it is used again.
func (s *Shard) newEpoch(now clock.Tick) {
	if s.sweep != 0 && s.epoch-s.swept >= epochSlack {
		for s.sweep != 0 {
			s.sweepOne(now)
		}
	}
	s.epoch++
	s.epoch8 = uint8(s.epoch)
	if s.live > 0 {
		s.sweep = 1
	} else {
		s.sweep, s.swept = 0, s.epoch
	}
}

// sweepOne applies the present rules to one link.
func (s *Shard) sweepOne(now clock.Tick) {
	id := s.sweep
	if s.used(id) && s.lines[2*id].epoch != s.epoch8 {
		if s.stands(id) {
			s.stamp(id)
		} else {
			s.counters.Unruled++
			s.remove(id, now)
		}
	}
	if s.sweep++; s.sweep >= s.fresh {
		s.sweep, s.swept = 0, s.epoch
	}
}

// stamp marks a link as standing under the present rules, and gives it their timeout.
func (s *Shard) stamp(id uint32) {
	s.lines[2*id].epoch, s.lines[2*id+1].epoch = s.epoch8, s.epoch8
	s.watch(id)
	s.wheelOf(id).remove(id)
	s.queue(id)
}

// stands reports whether what made a link still holds, without a break since the link was last known to stand.
func (s *Shard) stands(id uint32) bool {
	since := s.epoch - uint32(s.epoch8-s.lines[2*id].epoch)
	alias := s.aliasOf(id)
	switch {
	case s.steering != nil && !s.comesHere(id):
		return false
	case s.has(id, flagTarget):
		return s.rules.Target == s.localOf(id).Addr && s.targetBorn <= since
	}
	o := s.ours.find(alias.Addr)
	if s.rules.ResetOnAddressChange && o != nil && o.born > since {
		return false
	}
	if s.portKind(id) == portRule && !s.has(id, flagOneShot) {
		return s.covered(id, since)
	}
	return !s.rules.ResetOnAddressChange || o != nil && (o.flags&addrPool != 0 || o.flags&addrPublished != 0 && s.has(id, flagOneShot))
}

// comesHere reports whether both directions of a link belong to this worker still. A port that a redirect publishes now is
// everybody's: it turns when the worker has closed what it has there.
func (s *Shard) comesHere(id uint32) bool {
	n := newLink{local: s.localOf(id), alias: s.aliasOf(id), remote: s.remoteOf(id), proto: s.protoOf(id)}
	if s.portKind(id) != portRule && protoIndex(n.proto) != 3 && s.owners.Redirected(n.alias.Addr, rowOf(n.proto), n.alias.Port) {
		return false
	}
	return s.mineOut(&n) && s.mineIn(&n)
}

// covered reports whether a rule that was there at epoch since would make the link.
func (s *Shard) covered(id uint32, since uint32) bool {
	alias, remote, local, proto := s.aliasOf(id), s.remoteOf(id), s.localOf(id), s.protoOf(id)
	ok := func(at uint32) bool {
		for ; at != 0; at = s.table.list[at].nextIn {
			if r := &s.table.list[at]; r.born <= since && r.offers(local) {
				return true
			}
		}
		return false
	}
	for _, addr := range [...]packet.Addr{alias.Addr, 0} {
		if addr == 0 && alias.Addr != s.defaultAlias() && s.rules.ResetOnAddressChange {
			continue
		}
		for c := range classes {
			want := rule{kind: rulePort, class: c, proto: proto, public: Alias{addr, alias.Port}, remote: c.narrow(remote)}
			if ok(s.table.findIn(s.table.inHash(&want), &want)) {
				return true
			}
		}
		if ok(s.table.addrIn(addr)) {
			return true
		}
	}
	return false
}

// ruleKey is what makes two configured rules the same one.
type ruleKey struct {
	kind    ruleKind
	proto   uint8
	pick    Pick
	inbound bool
	public  Alias
	remote  Remote
	locals  string
}

func keyOfRule(r *rule) ruleKey {
	var b []byte
	for _, l := range r.locals {
		b = append(b, byte(l.Addr>>24), byte(l.Addr>>16), byte(l.Addr>>8), byte(l.Addr), byte(l.Port>>8), byte(l.Port))
	}
	return ruleKey{r.kind, r.proto, r.pick, r.inbound, r.public, r.remote, string(b)}
}

// configRules lists the redirects of r as rules, in the order in which they age: later ones are newer.
func configRules(r *Rules) (list []rule) {
	for _, d := range r.RedirectAddr {
		list = append(list, addrRule(d))
	}
	for _, d := range r.RedirectProto {
		list = append(list, protoRule(d))
	}
	for _, d := range r.RedirectPort {
		list = append(list, portRuleOf(d))
	}
	return list
}

func portRuleOf(d RedirectPort) rule {
	return rule{kind: rulePort, class: classOf(d.Remote), proto: d.Proto, pick: d.Pick, public: d.Public, remote: d.Remote,
		locals: append([]Local(nil), d.Local...), added: d.Added}
}

func addrRule(d RedirectAddr) rule {
	r := rule{kind: ruleAddr, class: classAny, pick: d.Pick, public: Alias{Addr: d.Public}, inbound: d.Inbound, added: d.Added}
	for _, l := range d.Local {
		r.locals = append(r.locals, Local{Addr: l})
	}
	return r
}

func protoRule(d RedirectProto) rule {
	remote := Remote{Addr: d.Remote}
	return rule{kind: rulePort, class: classOf(remote), proto: d.Proto, public: Alias{Addr: d.Public}, remote: remote,
		locals: []Local{{Addr: d.Local}}, added: d.Added}
}

// diffRules makes the table hold the configured redirects of r and those added at run time. Rules that stay keep their
// birth and their place in a pool's turn. reset: one-shot rules go.
func (s *Shard) diffRules(r *Rules, reset bool) {
	kept := make(map[ruleKey][]rule)
	var atRunTime []rule
	for i := range s.table.list {
		switch q := s.table.list[i]; {
		case q.kind == ruleFree:
		case q.config:
			k := keyOfRule(&q)
			kept[k] = append(kept[k], q)
		case !q.oneShot || !reset:
			atRunTime = append(atRunTime, q)
		}
	}
	serial := s.table.serial
	s.table = newRules(&s.seed, &s.common)
	s.table.serial = serial
	for _, q := range configRules(r) {
		k := keyOfRule(&q)
		if had := kept[k]; len(had) > 0 {
			added := q.added
			q, kept[k] = had[0], had[1:]
			q.added = added
		} else {
			q.config, q.born = true, s.epoch
		}
		s.table.add(q)
	}
	for _, q := range atRunTime {
		s.table.add(q)
	}
}

// publics lists the public addresses of the rules at hand; 0 stands for the default.
func (s *Shard) publics() (list []packet.Addr) {
	for i := range s.table.list {
		if r := &s.table.list[i]; r.kind != ruleFree && !r.config {
			list = append(list, r.public.Addr)
		}
	}
	return list
}

func configPublics(r *Rules) (list []packet.Addr) {
	for _, q := range configRules(r) {
		list = append(list, q.public.Addr)
	}
	return list
}

// learnAddrs builds the table of our addresses from the rules, and the pool.
func (s *Shard) learnAddrs() {
	at := make(map[packet.Addr]int)
	var list []ours
	add := func(a packet.Addr, flags uint8) {
		if a == 0 {
			return
		}
		i, ok := at[a]
		if !ok {
			i = len(list)
			at[a] = i
			list = append(list, ours{addr: a, born: s.epoch})
			if was := s.knownAddr(a); was != nil && (was.flags&addrPool == 0 || flags&addrPool != 0) {
				list[i].born = was.born
			}
		}
		list[i].flags |= flags
	}
	for _, a := range s.rules.Alias {
		add(a, addrPool|addrDynamic)
	}
	for i := range s.table.list {
		if r := &s.table.list[i]; r.kind != ruleFree && r.public.Addr != 0 {
			add(r.public.Addr, addrPublished)
			if r.kind == ruleAddr {
				list[at[r.public.Addr]].flags &^= addrDynamic
			}
		}
	}
	for _, a := range s.rules.Kernel {
		add(a, addrKernel)
	}
	s.pool = s.pool[:0:0]
	for _, a := range s.rules.Alias {
		if list[at[a]].flags&addrDynamic != 0 {
			s.pool = append(s.pool, a)
		}
	}
	if s.private {
		for _, o := range s.ours.slots {
			if _, still := at[o.addr]; !still && o.addr != 0 {
				s.owners.Remove(o.addr)
			}
		}
	}
	s.ours = newAddrTable(list)
}

func (s *Shard) knownAddr(a packet.Addr) *ours {
	if len(s.ours.slots) == 0 {
		return nil
	}
	return s.ours.find(a)
}

// mark is a port that a redirect publishes.
type mark struct {
	addr packet.Addr
	row  lport.Row
	port uint16
}

// markOf returns what a rule marks in the owner table; false: nothing.
func (s *Shard) markOf(r *rule) (mark, bool) {
	m := mark{s.publicAddr(r), lport.RowOther, r.public.Port}
	if r.kind != rulePort || protoIndex(r.proto) == 3 || m.addr == 0 {
		return m, false
	}
	m.row = rowOf(r.proto)
	return m, true
}

// mark brings the private owner table in step with all rules.
func (s *Shard) mark() {
	now := make(map[mark]int)
	for i := range s.table.list {
		if r := &s.table.list[i]; r.kind != ruleFree {
			if m, ok := s.markOf(r); ok {
				now[m]++
			}
		}
	}
	for m := range s.marks {
		if now[m] == 0 {
			s.owners.ClearRedirect(m.addr, m.row, m.port)
		}
	}
	for m := range now {
		s.owners.SetRedirect(m.addr, m.row, m.port)
	}
	s.marks = now
}

func sameAddrs(a, b []packet.Addr) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i] != b[i] {
			return false
		}
	}
	return true
}

func newPlan(r *Rules) (*lport.Plan, error) {
	if !r.Deterministic.Inside.IsValid() {
		return nil, nil
	}
	return lport.NewPlan(r.Deterministic.Inside, r.Alias, r.PortRange.Low, r.PortRange.High, r.Deterministic.PortsPerHost)
}

// check says what is wrong with rules, whatever their origin.
func check(r *Rules) error {
	seen := make(map[packet.Addr]bool)
	for _, a := range r.Alias {
		if a == 0 {
			return errors.New("nat: alias 0.0.0.0 is no address")
		}
		if seen[a] {
			return fmt.Errorf("nat: alias %s is listed twice", a)
		}
		seen[a] = true
	}
	if r.PortRange.Low > r.PortRange.High || r.PortRange.Low == 0 {
		return fmt.Errorf("nat: port range %d-%d must ascend and begin at 1 or above", r.PortRange.Low, r.PortRange.High)
	}
	for name, d := range map[string]time.Duration{"udp": r.Timeouts.UDP, "tcp_opening": r.Timeouts.TCPOpening,
		"tcp_established": r.Timeouts.TCPEstablished, "tcp_closing": r.Timeouts.TCPClosing, "icmp": r.Timeouts.ICMP,
		"other": r.Timeouts.Other, "fragment": r.Timeouts.Fragment} {
		if d <= 0 || d > timeoutMax {
			return fmt.Errorf("nat: timeout %s is %v, must be above 0 and at most %v", name, d, timeoutMax)
		}
	}
	if r.MSSClamp < 0 || r.MSSClamp > 0xffff {
		return fmt.Errorf("nat: mss_clamp is %d, must be from 0 to 65535", r.MSSClamp)
	}
	for _, p := range r.Exempt {
		if !p.IsValid() || !p.Addr().Is4() {
			return fmt.Errorf("nat: exempt %v is no IPv4 prefix", p)
		}
	}
	for _, b := range [...]PerProtocol{r.Mapping, r.Filtering} {
		if max(b.UDP, b.TCP, b.ICMP) > AddressAndPortDependent {
			return errors.New("nat: unknown mapping or filtering behaviour")
		}
	}
	for _, d := range r.RedirectPort {
		if err := checkPort(d); err != nil {
			return err
		}
	}
	for _, d := range r.RedirectAddr {
		if err := checkAddr(d); err != nil {
			return err
		}
	}
	for _, d := range r.RedirectProto {
		if err := checkProto(d); err != nil {
			return err
		}
	}
	return nil
}

func checkPort(d RedirectPort) error {
	where := netip.AddrPortFrom(d.Public.Addr.Netip(), d.Public.Port)
	switch d.Proto {
	case packet.ProtoTCP, packet.ProtoUDP:
	case packet.ProtoICMP:
		if d.Remote.Port != 0 {
			return fmt.Errorf("nat: redirect_port %v: ICMP has no remote port", where)
		}
	default:
		return fmt.Errorf("nat: redirect_port %v: protocol %d has no ports; use redirect_proto", where, d.Proto)
	}
	if len(d.Local) == 0 {
		return fmt.Errorf("nat: redirect_port %v: no local endpoint", where)
	}
	for _, l := range d.Local {
		if l.Addr == 0 {
			return fmt.Errorf("nat: redirect_port %v: local address 0.0.0.0", where)
		}
	}
	return nil
}

func checkAddr(d RedirectAddr) error {
	if len(d.Local) == 0 {
		return fmt.Errorf("nat: redirect_addr %s: no local address", d.Public)
	}
	for _, l := range d.Local {
		if l == 0 {
			return fmt.Errorf("nat: redirect_addr %s: local address 0.0.0.0", d.Public)
		}
	}
	return nil
}

func checkProto(d RedirectProto) error {
	switch d.Proto {
	case packet.ProtoTCP, packet.ProtoUDP, packet.ProtoICMP:
		return fmt.Errorf("nat: redirect_proto: protocol %d has ports or ids; use redirect_port or redirect_addr", d.Proto)
	}
	if d.Local == 0 {
		return errors.New("nat: redirect_proto: no local address")
	}
	return nil
}
