package nat

import (
	"container/heap"
	"flag"
	"fmt"
	"math/rand/v2"
	"reflect"
	"slices"
	"testing"
	"time"

	"pollux/internal/clock"
	"pollux/internal/packet"
	"pollux/internal/reason"
)

var simPackets = flag.Int("nat.packets", 1_000_000, "packets that TestSimulation sends, all worlds together")

// A simulation is hosts that talk across a network which loses, delays, reorders and duplicates packets, strangers that knock,
// and an operator who changes addresses and redirects, all on a virtual clock and from a seed. What the shard does with each
// packet is held against a model that learns from it: ports are the shard's to choose, all else is not.
type simWorld struct {
	name    string
	rules   func(*Rules)
	limits  Limits
	hosts   int // that open flows
	flows   int // open at a time
	tight   bool
	changes bool // rules change
}

var simWorlds = []simWorld{
	{name: "defaults", hosts: 60, flows: 800},
	{name: "changes", hosts: 60, flows: 800, changes: true},
	{name: "few ports, shared", hosts: 30, flows: 500, tight: true, changes: true, rules: func(r *Rules) {
		r.PortRange = PortRange{2000, 2007}
		r.Mapping = PerProtocol{AddressAndPortDependent, AddressAndPortDependent, AddressAndPortDependent}
	}},
	{name: "few ports, endpoint-independent", hosts: 30, flows: 500, tight: true, changes: true, rules: func(r *Rules) {
		r.PortRange, r.SamePorts = PortRange{2000, 2099}, false
		r.Mapping = PerProtocol{}
	}},
	{name: "full table", hosts: 40, flows: 800, tight: true, limits: Limits{Links: 300, LinksPerHost: 25}, rules: func(r *Rules) {
		r.Mapping.UDP = AddressDependent
	}},
	{name: "blocks", hosts: 20, flows: 400, tight: true, rules: func(r *Rules) {
		r.PortRange = PortRange{2048, 2047 + 8*16}
		r.Blocks = Blocks{Size: 8, MaxPerHost: 2, IdleRelease: 3 * time.Second, Rest: 2 * time.Second}
	}},
}

// simFlow is one conversation. Its link is what the model believes the shard to have.
type simFlow struct {
	link    *oracleLink // nil: none yet
	vague   bool        // it was closing where such links are recycled, so nobody knows what it is now
	killed  bool        // by a change of rules
	at      clock.Tick  // of that
	rule    uint32      // redirect that made the link; 0: none
	proto   uint8
	local   Local
	remote  Remote
	knows   Alias // where the remote thinks that its peer is
	caller  bool  // the remote opens, at a published port
	stage   int
	left    int
	asleep  clock.Tick
	retired bool
}

// simEvent is a packet on its way to the gateway.
type simEvent struct {
	at    clock.Tick
	order int
	side  Side
	frame []byte
	flow  *simFlow // nil: a stranger's
	alias Alias    // where an inbound packet goes
	flags uint8
	piece int // 1: first fragment, 2: tail
}

type simQueue []*simEvent

func (q simQueue) Len() int { return len(q) }
func (q simQueue) Less(i, j int) bool {
	return q[i].at.Before(q[j].at) || q[i].at == q[j].at && q[i].order < q[j].order
}
func (q simQueue) Swap(i, j int) { q[i], q[j] = q[j], q[i] }
func (q *simQueue) Push(x any)   { *q = append(*q, x.(*simEvent)) }
func (q *simQueue) Pop() any {
	old := *q
	e := old[len(old)-1]
	*q = old[:len(old)-1]
	return e
}

type simTuple struct {
	proto  uint8
	alias  Alias
	remote Remote
}

type simPair struct {
	proto  uint8
	addr   packet.Addr
	port   uint16
	remote Remote // of a local endpoint's flow; else zero
}

// sim is a world at work.
type sim struct {
	simWorld
	t      *testing.T
	r      *rand.Rand
	w      *plane
	model  oracle
	queue  simQueue
	order  int
	flows  []*simFlow
	taken  map[simPair]*simFlow  // by proto, local, remote
	owner  map[simTuple]*simFlow // whose link a tuple is, or was last
	flight map[uint64]*simEvent
	ipid   uint16

	published []simPublished
	lastPort  uint16
	seen      int // packets that arrived
	refusals  int
}

type simPublished struct {
	id    uint32
	proto uint8
	alias Alias
	local Local
}

const (
	simHost     = packet.Addr(0x0a000002)
	simServer   = packet.Addr(0x0a090002) // inside hosts that are published
	simRemote   = packet.Addr(0xc6336401)
	simStranger = packet.Addr(0xcb007181) // they own nothing and get nothing
)

// TestSimulation runs every world for its share of -nat.packets, in runs of simRun packets, each from a seed of its own.
func TestSimulation(t *testing.T) {
	const simRun = 200_000
	share := max(*simPackets/len(simWorlds), 1)
	for i, world := range simWorlds {
		for left, seed := share, uint64(i+1); left > 0; left, seed = left-simRun, seed+uint64(len(simWorlds)) {
			t.Run(fmt.Sprintf("%s, seed %d", world.name, seed), func(t *testing.T) {
				start := time.Now()
				s := newSim(t, world, seed)
				s.run(min(left, simRun))
				c := s.w.s.counters
				s.w.end()
				t.Logf("%d packets, %d forwarded, %d links made, %d expired, %d recycled, %d deleted, %d refused, %d held SYNs, %.1f s",
					s.seen, s.w.verdicts[Forward], c.Created, c.Expired, c.Recycled, c.Deleted, s.refusals, c.HeldSYN, time.Since(start).Seconds())
			})
		}
	}
}

func newSim(t *testing.T, world simWorld, seed uint64) *sim {
	o := Options{Rules: DefaultRules(), Limits: world.limits, Now: 0xffff8000, Seed: [32]byte{byte(seed)}}
	o.Limits.Fragments = 256
	if o.Limits.Links == 0 {
		o.Limits.Links = 20000
	}
	r := &o.Rules
	r.Alias = []packet.Addr{pub1, pub2}
	r.Timeouts = Timeouts{UDP: 10 * time.Second, TCPOpening: 5 * time.Second, TCPEstablished: 30 * time.Second, TCPClosing: 4 * time.Second,
		ICMP: 3 * time.Second, Other: 3 * time.Second, Fragment: time.Second}
	if world.rules != nil {
		world.rules(r)
	}
	inside := func(a packet.Addr) bool { return a>>24 == 10 }
	o.SideOf = func(a packet.Addr) (Side, bool) {
		if inside(a) {
			return Inside, true
		}
		return Outside, true
	}
	shard, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = shard.Close() })
	s := &sim{simWorld: world, t: t, r: rand.New(rand.NewPCG(seed, 7)), w: newPlane(t, shard, o.Now, inside), model: oracle{rules: o.Rules, limits: o.Limits},
		taken: map[simPair]*simFlow{}, owner: map[simTuple]*simFlow{}, flight: map[uint64]*simEvent{}, lastPort: 99}
	s.w.done = s.done
	s.publish()
	return s
}

// chance is true n times in 1000.
func (s *sim) chance(n int) bool { return s.r.IntN(1000) < n }

func (s *sim) run(packets int) {
	s.setTime(s.w.now)
	nextCheck, nextChange := s.w.now+2000, s.w.now+3000
	for s.seen < packets {
		for range 1 + s.r.IntN(4) {
			s.act()
		}
		s.step(1)
		if s.chance(1) && s.chance(50) { // nobody says anything for a while
			s.step(uint32(s.r.IntN(40000)))
		}
		if now := s.w.now; now.After(nextCheck) {
			s.check()
			nextCheck = now + 2000
		}
		if now := s.w.now; s.changes && now.After(nextChange) {
			s.change()
			nextChange = now + 1500
		}
	}
	for len(s.queue) > 0 {
		s.step(50)
	}
	s.check()
}

// step moves the clock and lets arrive what is due.
func (s *sim) step(ms uint32) {
	for range ms {
		s.w.advance(1, 1, 64)
		s.setTime(s.w.now)
		for len(s.queue) > 0 && !s.queue[0].at.After(s.w.now) {
			e := heap.Pop(&s.queue).(*simEvent)
			s.flight[s.w.add(e.side, e.frame)] = e
			s.seen++
			if len(s.w.burst) == 32 {
				s.w.flush()
			}
		}
		s.w.flush()
	}
}

func (s *sim) setTime(now clock.Tick) { s.model.now = now }

// act lets somebody send something.
func (s *sim) act() {
	switch {
	case len(s.flows) < s.simWorld.flows && s.chance(250):
		s.open()
	case s.chance(20):
		s.knock()
	case len(s.flows) > 0:
		i := s.r.IntN(len(s.flows))
		f := s.flows[i]
		if f.asleep.After(s.w.now) {
			return
		}
		s.speak(f)
		if f.left--; f.left <= 0 {
			f.retired = true
			s.flows[i] = s.flows[len(s.flows)-1]
			s.flows = s.flows[:len(s.flows)-1]
		} else if s.chance(30) {
			f.asleep = s.w.now + clock.Tick(s.r.IntN(40000))
		}
	}
}

// open begins a conversation.
func (s *sim) open() {
	f := &simFlow{proto: []uint8{packet.ProtoUDP, packet.ProtoUDP, packet.ProtoTCP, packet.ProtoTCP, packet.ProtoICMP}[s.r.IntN(5)], left: 2 + s.r.IntN(60)}
	f.remote = Remote{simRemote + packet.Addr(s.r.IntN(6)), uint16(1 + s.r.IntN(5))}
	f.local = Local{simHost + packet.Addr(s.r.IntN(s.hosts)), uint16(2000 + s.r.IntN(60))}
	if len(s.published) > 0 && s.chance(150) {
		p := s.published[s.r.IntN(len(s.published))]
		f.proto, f.local, f.caller, f.knows = p.proto, p.local, true, p.alias
		f.remote.Port = uint16(10000 + s.r.IntN(20000))
	}
	if f.proto == packet.ProtoICMP {
		f.remote.Port = 0
	}
	k := simPair{f.proto, f.local.Addr, f.local.Port, f.remote}
	if old := s.taken[k]; old != nil && (!old.retired || s.live(old)) {
		return
	}
	s.taken[k] = f
	s.flows = append(s.flows, f)
}

// speak sends a packet of a conversation by one of its sides.
func (s *sim) speak(f *simFlow) {
	inbound := s.chance(500)
	if f.stage == 0 {
		inbound = f.caller
	}
	if inbound && f.knows == (Alias{}) {
		return
	}
	b := packet.Build{Src: f.local.Addr, SrcPort: f.local.Port, Dst: f.remote.Addr, DstPort: f.remote.Port}
	e := &simEvent{flow: f, side: Inside}
	if inbound {
		b.Src, b.SrcPort, b.Dst, b.DstPort = f.remote.Addr, f.remote.Port, f.knows.Addr, f.knows.Port
		e.side, e.alias = Outside, f.knows
	}
	f.stage++
	switch f.proto {
	case packet.ProtoTCP:
		e.flags = ack
		switch {
		case f.stage == 1:
			e.flags = syn
		case f.stage < 4 && inbound != f.caller:
			e.flags = syn | ack
		case s.chance(30):
			e.flags = fin | ack
		case s.chance(5):
			e.flags = rst | ack
		case s.chance(10):
			e.flags = syn
		}
		b.Flags = e.flags
		e.frame = b.TCP([]byte("segment"))
	case packet.ProtoUDP:
		b.NoChecksum, b.HalfMade = s.chance(100), s.chance(50)
		if s.chance(30) {
			s.inPieces(b, e)
			return
		}
		e.frame = b.UDP([]byte("a datagram"))
	default:
		if inbound {
			b.SrcPort = f.knows.Port
		}
		e.frame = b.Echo(inbound, 1, []byte("ping"))
	}
	s.travel(e)
}

// inPieces sends a datagram as two fragments.
func (s *sim) inPieces(b packet.Build, e *simEvent) {
	s.ipid++
	b.HalfMade = false
	payload := make([]byte, 100)
	whole := b.UDP(payload)[packet.EthernetLen+packet.IPv4Len:]
	b.ID, b.MF = s.ipid, true
	first, tail := *e, *e
	first.piece, first.frame = 1, b.IP(packet.ProtoUDP, whole[:64])
	b.MF, b.FragOff = false, 64
	tail.piece, tail.frame = 2, b.IP(packet.ProtoUDP, whole[64:])
	s.travel(&first)
	s.travel(&tail)
}

// travel puts a packet on the network: lost, once, or twice, after some time.
func (s *sim) travel(e *simEvent) {
	for range 2 {
		if s.chance(970) {
			c := *e
			s.order++
			c.order = s.order
			c.at = s.w.now + clock.Tick(1+s.r.IntN(20))
			if s.chance(50) {
				c.at += clock.Tick(s.r.IntN(300))
			}
			heap.Push(&s.queue, &c)
		}
		if !s.chance(20) {
			return
		}
	}
}

// knock sends a packet that nobody asked for.
func (s *sim) knock() {
	b := packet.Build{Src: simStranger + packet.Addr(s.r.IntN(50)), SrcPort: uint16(s.r.IntN(65536)), Dst: []packet.Addr{pub1, pub2, pub9}[s.r.IntN(3)],
		DstPort: uint16(2000 + s.r.IntN(100)), Flags: syn}
	e := &simEvent{side: Outside, alias: Alias{b.Dst, b.DstPort}}
	switch s.r.IntN(4) {
	case 0:
		e.frame = b.UDP(nil)
	case 1:
		e.frame = b.Echo(s.chance(500), 1, nil)
	case 2:
		b.MF, b.ID = true, uint16(s.r.IntN(65536))
		e.frame = b.UDP(make([]byte, 64))
	default:
		e.frame = b.TCP(nil)
	}
	s.travel(e)
}

// publish adds a redirect, or takes one away.
func (s *sim) publish() {
	if len(s.published) > 3 {
		i := s.r.IntN(len(s.published))
		if !s.w.s.DelRedirect(s.published[i].id, s.w.now) {
			s.t.Fatal("a redirect was not there")
		}
		s.published = slices.Delete(s.published, i, i+1)
		return
	}
	s.lastPort++ // no port is published twice: whoever still writes to an old one is a stranger
	p := simPublished{proto: []uint8{packet.ProtoUDP, packet.ProtoTCP}[s.r.IntN(2)], alias: Alias{pub9, s.lastPort},
		local: Local{simServer + packet.Addr(s.r.IntN(4)), s.lastPort}}
	id, err := s.w.s.AddRedirect(RedirectPort{Proto: p.proto, Public: p.alias, Local: []Local{p.local}}, s.w.now)
	if err != nil {
		s.t.Fatal(err)
	}
	p.id = id
	s.published = append(s.published, p)
}

// offers returns the redirect that publishes an alias endpoint or a local one.
func (s *sim) offers(proto uint8, ok func(p *simPublished) bool) *simPublished {
	for i := range s.published {
		if p := &s.published[i]; p.proto == proto && ok(p) {
			return p
		}
	}
	return nil
}

// change changes rules.
func (s *sim) change() {
	s.publish()
	if s.chance(600) {
		return
	}
	r := s.w.s.rules
	r.Alias = [][]packet.Addr{{pub1, pub2}, {pub2}, {pub1}, {pub2, pub1}}[s.r.IntN(4)]
	r.MSSClamp = s.r.IntN(2) * 1400
	r.Hairpin = s.chance(500)
	if reflect.DeepEqual(r, s.model.rules) {
		return // not a change: links whose redirect has gone live on
	}
	if err := s.w.s.SetRules(r, s.w.now); err != nil {
		s.t.Fatal(err)
	}
	s.model.rules = r
	for _, f := range s.owner {
		gone := f.rule == 0 && !slices.Contains(r.Alias, f.link.alias.Addr) ||
			f.rule != 0 && s.offers(f.proto, func(p *simPublished) bool { return p.id == f.rule }) == nil
		if gone && !f.killed {
			f.killed, f.at = true, s.w.now
		}
	}
}

// live reports whether the shard must still have a flow's link.
func (s *sim) live(f *simFlow) bool { return f.link != nil && !f.killed && !s.model.dead(f.link, 0) }

// sure is live, unless the link may have been recycled.
func (s *sim) sure(f *simFlow) bool { return s.live(f) && !f.vague }

// maybe is live, or perhaps made anew since.
func (s *sim) maybe(f *simFlow) bool { return s.live(f) || f.vague && !f.killed }

// touch is a packet of a link.
func (s *sim) touch(f *simFlow, d int, flags uint8) {
	f.link.touch(d, flags, s.w.now)
	f.vague = f.vague || s.tight && f.link.state == Closing
}

// late reports whether a flow may still hold a port or a place in the table: what ended within the last second may.
func (s *sim) late(f *simFlow) bool {
	if f.link == nil || s.model.dead(f.link, 1000) && !f.vague {
		return false
	}
	return !f.killed || s.w.now.Since(f.at) <= 1000
}

// done holds what the shard did against the model.
func (s *sim) done(p *Packet) {
	e := s.flight[p.Frame]
	if e == nil {
		s.t.Fatalf("frame %d came out twice", p.Frame)
	}
	delete(s.flight, p.Frame)
	var src Local
	var dst Remote
	if p.Verdict == Forward {
		src, dst = ends(p)
	}
	problem := ""
	switch {
	case e.flow == nil:
		if p.Verdict == Forward && s.offers(p.H.Proto, func(q *simPublished) bool { return q.alias == e.alias }) == nil {
			problem = fmt.Sprintf("a stranger came in to %v", dst)
		}
	case e.piece == 2:
		problem = s.tail(e, p, src.Addr, dst.Addr)
	case e.side == Inside:
		problem = s.outward(e, p, Alias(src), dst)
	default:
		problem = s.inward(e, p, src, Local(dst))
	}
	if problem != "" {
		f := e.flow
		if f == nil {
			f = &simFlow{}
		}
		s.t.Fatalf("at %d: %s\nverdict %d, %v; side %v to %v flags %02x piece %d\nflow %+v\nlink %+v", s.w.now, problem, p.Verdict, p.Reason, e.side, e.alias, e.flags, e.piece, *f, f.link)
	}
}

// tail judges the second fragment of a datagram.
func (s *sim) tail(e *simEvent, p *Packet, src, dst packet.Addr) string {
	f := e.flow
	switch {
	case p.Verdict != Forward:
	case e.side == Inside && (src != pub1 && src != pub2 && src != pub9 || dst != f.remote.Addr):
		return fmt.Sprintf("a tail left from %v to %v", src, dst)
	case e.side == Outside && (src != f.remote.Addr || dst != f.local.Addr):
		if g := s.owner[simTuple{f.proto, e.alias, f.remote}]; g == nil || dst != g.local.Addr {
			return fmt.Sprintf("a tail came in from %v to %v", src, dst)
		}
	}
	return ""
}

// whole reports whether a refusal is one of those that a fragment meets on a network like this.
func pieceLost(e *simEvent, why reason.Reason) bool {
	return e.piece != 0 && (why == reason.FragmentTimeout || why == reason.FragmentBad || why == reason.FragmentLimit)
}

// outward judges a packet from inside.
func (s *sim) outward(e *simEvent, p *Packet, alias Alias, dst Remote) string {
	f := e.flow
	if f.proto == packet.ProtoICMP {
		dst.Port = 0
	}
	if p.Verdict != Forward {
		switch {
		case pieceLost(e, p.Reason):
			return ""
		case s.sure(f):
			return "a live flow was refused"
		case p.Verdict != Answer:
			return "not answered"
		}
		s.refusals++
		if s.refusals%32 == 1 {
			return s.refused(f, p.Reason)
		}
		return ""
	}
	if dst != f.remote {
		return fmt.Sprintf("went to %v", dst)
	}
	live := s.maybe(f)
	if live && alias != f.link.alias {
		if s.sure(f) {
			return fmt.Sprintf("moved to %v", alias)
		}
		live = false
	}
	if !live {
		if problem := s.claim(f, alias); problem != "" {
			return problem
		}
		f.rule = 0
		if q := s.offers(f.proto, func(q *simPublished) bool { return q.local == f.local }); q != nil {
			if f.rule = q.id; alias != q.alias {
				return fmt.Sprintf("a published server calls out as %v", alias)
			}
		} else if !slices.Contains(s.model.rules.Alias, alias.Addr) && !f.caller {
			return fmt.Sprintf("left as %v, which is not in the pool", alias)
		} else if r := s.model.rules.PortRange; !f.caller && (alias.Port < r.Low || alias.Port > r.High) {
			return fmt.Sprintf("left as %v, out of range", alias)
		}
		s.begin(f, alias, 0, e.flags)
	} else {
		s.touch(f, 0, e.flags)
		s.owner[simTuple{f.proto, alias, f.remote}] = f
	}
	f.knows = alias
	return ""
}

// begin is a new link.
func (s *sim) begin(f *simFlow, alias Alias, d int, flags uint8) {
	if f.link != nil {
		if k := (simTuple{f.proto, f.link.alias, f.remote}); s.owner[k] == f {
			delete(s.owner, k)
		}
	}
	f.link = &oracleLink{proto: f.proto, local: f.local, alias: alias, remote: f.remote, inbound: d == 1}
	f.killed, f.vague = false, false
	if f.proto == packet.ProtoTCP {
		f.link.state = Opening
	}
	s.touch(f, d, flags)
	s.owner[simTuple{f.proto, alias, f.remote}] = f
}

// claim checks that a new link may have an alias endpoint.
func (s *sim) claim(f *simFlow, alias Alias) string {
	if g := s.owner[simTuple{f.proto, alias, f.remote}]; g != nil && g != f && s.sure(g) {
		return fmt.Sprintf("%v toward %v belongs to %v", alias, f.remote, g.local)
	}
	return ""
}

// refused checks that a refusal was due.
func (s *sim) refused(f *simFlow, why reason.Reason) string {
	used := map[packet.Addr]map[uint16]bool{}
	own, all, closing := 0, 0, 0
	for _, g := range s.owner {
		if !s.late(g) {
			continue
		}
		if all++; g.link.state == Closing && s.live(g) {
			closing++
		}
		if g.local.Addr == f.local.Addr && !g.link.inbound {
			own++
		}
		if g.proto == f.proto && s.model.clash(f.proto, g.remote, f.remote) {
			a := g.link.alias
			if used[a.Addr] == nil {
				used[a.Addr] = map[uint16]bool{}
			}
			used[a.Addr][a.Port] = true
		}
	}
	r, b := s.model.rules.PortRange, s.model.rules.Blocks
	switch why {
	case reason.NoPort:
		if b.Size > 0 { // a host may have blocks full or none left: too much to model
			return ""
		}
		for _, a := range s.model.rules.Alias {
			if len(used[a]) == int(r.High-r.Low)+1 {
				return ""
			}
		}
	case reason.HostLimit:
		if own >= s.model.limits.LinksPerHost || b.Size > 0 {
			return ""
		}
	case reason.TableFull:
		if all >= s.model.limits.Links {
			return ""
		}
	}
	return fmt.Sprintf("refused with %d links, %d closing, %d of the host", all, closing, own)
}

// inward judges a packet from outside.
func (s *sim) inward(e *simEvent, p *Packet, src, to Local) string {
	f := e.flow
	k := simTuple{f.proto, e.alias, f.remote}
	g := s.owner[k]
	if f.proto == packet.ProtoICMP {
		src.Port = 0
	}
	if p.Verdict == Forward {
		if Remote(src) != f.remote {
			return fmt.Sprintf("came from %v", src)
		}
		switch {
		case g != nil && s.maybe(g) && to == g.local:
			s.touch(g, 1, e.flags)
			return ""
		case g != nil && s.sure(g):
			return fmt.Sprintf("came in to %v instead of %v", to, g.local)
		}
		q := s.offers(f.proto, func(q *simPublished) bool { return q.alias == e.alias })
		if q == nil {
			return fmt.Sprintf("came in to %v, nobody is there", to)
		}
		if q.local != to || to != f.local {
			return fmt.Sprintf("came in to %v, published is %v", to, q.local)
		}
		f.rule = q.id
		s.begin(f, e.alias, 1, e.flags)
		f.knows = e.alias
		return ""
	}
	if pieceLost(e, p.Reason) || p.Data == nil && e.flags == syn { // a held SYN is dropped even if the other side has opened
		return ""
	}
	if g != nil && s.sure(g) {
		return "a live flow was refused"
	}
	q := s.offers(f.proto, func(q *simPublished) bool { return q.alias == e.alias })
	if q != nil && p.Reason != reason.TableFull {
		return "refused at a published port"
	}
	if g != nil && s.maybe(g) { // recycled
		g.killed, g.at = true, s.w.now
	}
	return ""
}

// limitOf is the timeout of a link as the shard shows it.
func (s *sim) limitOf(l LinkInfo) time.Duration {
	return s.model.limit(&oracleLink{proto: l.Proto, state: l.State})
}

// check holds all links against the model, and forgets what is over.
func (s *sim) check() {
	type key struct {
		simTuple
		local Local
	}
	there := map[key]LinkInfo{}
	tuples := map[simTuple]Local{}
	forward, back := map[simPair]Alias{}, map[simPair]Local{}
	s.w.s.Links(0, 1<<20, func(l LinkInfo) bool {
		k := simTuple{l.Proto, l.Alias, l.Remote}
		if other, ok := tuples[k]; ok {
			s.t.Fatalf("%v is %v and %v", k, other, l.Local)
		}
		tuples[k] = l.Local
		there[key{k, l.Local}] = l
		if s.model.mapping(l.Proto) == EndpointIndependent && l.Alias.Addr != pub9 && l.Local.Addr < simServer {
			in, out := simPair{proto: l.Proto, addr: l.Local.Addr, port: l.Local.Port}, simPair{proto: l.Proto, addr: l.Alias.Addr, port: l.Alias.Port}
			if a, ok := forward[in]; ok && a != l.Alias {
				s.t.Fatalf("%v is mapped to %v and %v", l.Local, a, l.Alias)
			}
			if b, ok := back[out]; ok && b != l.Local {
				s.t.Fatalf("%v is mapped to %v and %v", l.Alias, b, l.Local)
			}
			forward[in], back[out] = l.Alias, l.Local
		}
		return true
	})
	for k, f := range s.owner {
		l, ok := there[key{k, f.local}]
		delete(there, key{k, f.local})
		switch {
		case f.vague && !f.killed && ok: // learn what it is
			f.link.state, f.link.last = l.State, s.w.now-clock.Tick(clock.Ticks(s.limitOf(l))-l.ExpiresIn)
		case s.maybe(f):
			switch {
			case !ok && s.sure(f):
				s.t.Fatalf("at %d: link lost: %+v of %+v", s.w.now, f.link, f)
			case !ok:
				f.killed, f.at = true, s.w.now
			case l.State != f.link.state || l.ExpiresIn != clock.Ticks(s.model.limit(f.link))-s.w.now.Since(f.link.last):
				s.t.Fatalf("at %d: %+v, want %+v", s.w.now, l, f.link)
			}
		case ok:
			s.t.Fatalf("at %d: a link that ended is there: %+v, %+v", s.w.now, l, f)
		case !s.late(f):
			delete(s.owner, k)
		}
	}
	for k, l := range there {
		if l.Remote.Addr < simStranger || l.Remote.Addr >= simStranger+50 {
			s.t.Fatalf("link too many: %+v %+v", k, l)
		}
	}
	for k, f := range s.taken {
		if f.retired && !s.late(f) {
			delete(s.taken, k)
		}
	}
	if n, held := len(s.flight), len(s.w.held); n != held {
		s.t.Fatalf("%d packets are neither sent on nor refused, %d frames are held", n, held)
	}
}
