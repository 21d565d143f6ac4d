package nat

import (
	"fmt"

	"pollux/internal/clock"
	"pollux/internal/packet"
	"pollux/internal/reason"
	"pollux/lport"
)

// LinksMax is the most links one shard can hold: link and line numbers are 32 bits wide.
const LinksMax = 1 << 28

// Options is what a Shard is made of.
type Options struct {
	Rules  Rules
	Limits Limits // Links is this shard's own part

	Worker, Workers int // this worker's index from 0, and how many there are; Workers 0 means 1

	// Owners is the table of owner bytes that all workers share; whoever made it adds alias addresses and marks redirects
	// in it. With nil the shard makes a private one and keeps it in step with its rules.
	Owners *lport.Owners

	Seed [32]byte // from the system's entropy (replay: fixed): hashes and random choices

	// Steering says which worker owns what; Share is what the shards divide limits.links by. Both are nil with one worker.
	Steering Steering
	Share    *LinkShare

	// FlowSteered says that one host's flows may be at several workers (steer: flow): its alias address is then a function of
	// the host and the pool alone. Blocks and deterministic ports, which belong to a host, are refused.
	FlowSteered bool

	// SideOf says on which side a destination that is no address of ours lies; ok false: there is no route. It is asked only
	// on the miss path. nil: everything lies outside.
	SideOf func(dst packet.Addr) (Side, bool)

	// Reverse makes the reverse-path check (RFC 3704) of a packet's source before its flow gets state: a forged source must
	// not cost a link. It is asked only on the miss path. nil: every source is good.
	Reverse func(src packet.Addr, ingress uint16) bool

	// Shared puts all tables into memory that a successor process can take over (Shard.Regions), which is taken at once.
	// With ByUse that memory is small pages, each taken when it is first touched.
	Shared, ByUse bool

	// Populate takes all memory at once (Counters.Memory says how much), so that no packet pays for a page's first touch and
	// memory that is not there is an error of New.
	Populate bool

	// Events takes the translation log's events; nil: nothing is told. It stays its maker's.
	Events *EventRing

	Now clock.Tick
}

// Counters are plain numbers that only the shard's worker writes; they only grow, except Links and Hosts.
type Counters struct {
	Links     uint64 // now
	Hosts     uint64 // now: inside hosts that are kept account of
	Hits      uint64 // packets of established links that took the short way
	Misses    uint64 // all others
	Created   uint64
	Expired   uint64 // idle for longer than the timeout
	Recycled  uint64 // closing links given up because the table or the ports were full
	Deleted   uint64 // by Delete
	Unruled   uint64 // because a change of rules left them without the one that made them
	Reopened  uint64 // a SYN on a closing link
	Untouched uint64 // forwarded without translation
	HeldSYN   uint64
	Memory    uint64               // memory mapped for tables, in bytes; touched as it is needed
	Refused   [reason.Count]uint64 // new flows and packets that were not let through, by reason
	State     [Closing + 1]uint64  // links now, by state
	Proto     [4]uint64            // links now: TCP, UDP, ICMP, other
}

// Shard is all NAT state of one worker. No method may be called by another goroutine.
type Shard struct {
	// What an established packet reads comes first.
	seed   seed
	exact  index    // by tuple, both directions: line numbers
	padded []uint64 // exact's slots and one more that stays empty, so that two can be read at once
	links
	quick  uint32 // a line that was idle for longer than this may have expired
	epoch8 uint8  // low byte of epoch: a line that bears another one may not stand any more

	counters Counters
	memory   memory `image:"-"`

	groups   groups
	local    index // by local endpoint: one link of each mapping
	main     wheel
	closing  wheel // links in closing state
	hosts    hosts
	table    rules
	ours     addrTable
	pool     []packet.Addr // Rules.Alias less what address redirects publish
	exempt   spans
	rules    Rules `image:"-"`
	limits   Limits
	timeout  timeouts
	ports    *lport.Space
	owners   *lport.Owners
	marks    map[mark]int // private owners: how many redirects publish a port; only rule changes look at it
	private  bool         // owners is ours
	spread   bool         // Options.FlowSteered
	plan     *lport.Plan
	portOpt  lport.Options `image:"-"`
	sideOf   func(packet.Addr) (Side, bool)
	reverse  func(packet.Addr, uint16) bool
	worker   int
	steering Steering
	common   seed   // the same at all workers
	keeper   keeper `image:"-"`
	random   uint64
	failAt   clock.Tick // of the last search for a closing link to recycle that found none
	fails    int        // and how many in that tick
	track    bool
	windows  []window // by link, while windows are tracked
	holds    holds
	now      clock.Tick // of the last Translate or Advance
	draining bool       // no new links
	frag     fragments
	freed    releases
	log      eventLog `image:"-"`

	epoch      uint32 // moves whenever rules change
	targetBorn uint32
	sweep      uint32 // next link that a rule change has not been applied to; 0: all have
	swept      uint32 // epoch of which every link is known to be
}

// timeouts in ticks.
type timeouts struct {
	state [Closing + 1]uint32 // TCP
	udp   uint32
	icmp  uint32
	other uint32
}

// New makes a shard. The error says in one line what does not fit.
func New(o Options) (*Shard, error) {
	if o.Workers == 0 {
		o.Workers = 1
	}
	n := o.Limits.Links
	if n < 1 || n > LinksMax {
		return nil, fmt.Errorf("nat: limits.links is %d, must be from 1 to %d", n, LinksMax)
	}
	s := &Shard{seed: newSeed(o.Seed, o.Worker), worker: o.Worker, limits: o.Limits, sideOf: o.SideOf, reverse: o.Reverse, owners: o.Owners, swept: 1, epoch: 1}
	s.now = o.Now
	s.random = uint64(s.seed.hash(1, 2))<<32 | uint64(s.seed.hash(3, 4))
	s.common = newSeed(o.Seed, 0)
	s.steering, s.share, s.spread = o.Steering, o.Share, o.FlowSteered
	s.log.init(o.Events)
	s.table = newRules(&s.seed, &s.common)
	if s.owners == nil {
		s.owners, s.private = lport.NewOwners(nil), true
	}
	s.memory.shared, s.memory.byUse = o.Shared, o.ByUse
	if err := s.allocate(n, &o); err != nil {
		_ = s.Close()
		return nil, err
	}
	if err := s.setRules(o.Rules, o.Now, &o); err != nil {
		_ = s.Close()
		return nil, err
	}
	if o.Populate {
		if err := s.Populate(); err != nil {
			_ = s.Close()
			return nil, err
		}
	}
	return s, nil
}

// Populate is Options.Populate for later: while the shard is nobody else's, any goroutine may call it.
func (s *Shard) Populate() error { return s.memory.populate() }

// allocate maps all tables.
func (s *Shard) allocate(n int, o *Options) (err error) {
	step := func(f func() error) {
		if err == nil {
			err = f()
		}
	}
	step(func() (e error) {
		s.padded, e = table[uint64](&s.memory, 4*n+9)
		s.exact.slots = s.padded[:max(len(s.padded), 1)-1]
		return e
	})
	step(func() error { return s.links.init(&s.memory, n) })
	step(func() error { return s.groups.init(&s.memory, &s.links, &s.seed, n) })
	step(func() (e error) { s.local.slots, e = table[uint64](&s.memory, n+n/3+8); return })
	step(func() error { return s.main.init(&s.memory, s.cold, o.Now) })
	step(func() error { return s.closing.init(&s.memory, s.cold, o.Now) })
	step(func() error { return s.hosts.init(&s.memory, &s.seed, n) })
	step(func() error { return s.frag.init(&s.memory, o) })
	s.freed.init(o.Limits.Fragments + holdsMax)
	return err
}

// Close gives all memory back. The shard must not be used any more. Frames that it still holds are the worker's.
func (s *Shard) Close() error {
	if s.ports != nil {
		s.ports.Close()
	}
	if s.private {
		s.owners.Close()
	}
	s.memory.close()
	*s = Shard{}
	return nil
}

// Counters returns the live counters: read them between bursts on the shard's own goroutine.
func (s *Shard) Counters() *Counters {
	s.counters.Links = uint64(s.live)
	s.counters.Hosts = uint64(s.hosts.live)
	s.counters.Memory = s.memory.bytes
	return &s.counters
}

// Drain says whether flows that have no link yet are turned away, with the reason Draining. Those that have one go on.
func (s *Shard) Drain(on bool) { s.draining = on }

// Ports returns the shard's port space, for its numbers and for idle ports that other workers ask for.
func (s *Shard) Ports() *lport.Space { return s.ports }

// rand returns a number that nobody outside can guess (seeded splitmix).
func (s *Shard) rand() uint64 {
	s.random += 0x9e3779b97f4a7c15
	return fold128(s.random^s.seed[0], s.seed[3])
}

// isAlias reports whether an address is one of ours: in the pool or published by a redirect.
func (s *Shard) isAlias(a packet.Addr) bool {
	o := s.ours.find(a)
	return o != nil && o.flags&(addrPool|addrPublished) != 0
}

// isKernel reports whether the gateway's kernel has an address of ours itself.
func (s *Shard) isKernel(a packet.Addr) bool {
	o := s.ours.find(a)
	return o != nil && o.flags&addrKernel != 0
}

// Advance runs timers up to now, at most about budget steps of work, and returns how many it did. A step is one link looked
// at, or less. It is called once per poll round, packets or not.
func (s *Shard) Advance(now clock.Tick, budget int) (work int) {
	s.now = now
	near := 0 // how many of those that are due next are touched
	for work < budget {
		if near == 0 {
			near = s.touchDue(now)
		}
		near--
		id := s.closing.due(now)
		if id == 0 {
			if id = s.main.due(now); id == 0 {
				break
			}
		}
		work++
		if s.expired(id, now) {
			s.counters.Expired++
			s.unlink(id, now)
			continue
		}
		s.queue(id)
	}
	for s.sweep != 0 && work < budget {
		s.sweepOne(now)
		work++
	}
	for s.hosts.idle != 0 && work < budget && s.hostIdle(now) {
		work++
	}
	if work < budget {
		work += s.holds.advance(s, now)
	}
	if work < budget && s.table.oneShot != 0 {
		work += s.endOneShots(now)
	}
	if work < budget {
		work += s.frag.advance(s, now, budget-work)
	}
	if work < budget {
		work += s.ports.Advance(now, budget-work)
	}
	if s.log.ring != nil {
		work += s.logBlocks()
	}
	return work
}

// Due returns the earliest tick at which Advance may have work; false: nothing is waiting for time to pass.
func (s *Shard) Due() (at clock.Tick, ok bool) {
	sooner := func(t clock.Tick, is bool) {
		if is && (!ok || t.Before(at)) {
			at, ok = t, true
		}
	}
	if s.sweep != 0 {
		return s.main.pos, true
	}
	for _, w := range [...]*wheel{&s.main, &s.closing} {
		t, id := w.first()
		sooner(t, id != 0)
	}
	sooner(s.holds.due())
	sooner(s.frag.due())
	sooner(s.ports.Due())
	if s.hosts.idle != 0 {
		sooner(s.hosts.list[s.hosts.idle].at+clock.PerSecond, true)
	}
	sooner(s.table.death+1, s.table.oneShot != 0)
	return at, ok
}

// hostIdle forgets the host at the head of the idle queue if it still has no links and its bucket is full again. False: it
// must wait.
func (s *Shard) hostIdle(now clock.Tick) bool {
	h := &s.hosts.list[s.hosts.idle]
	if h.links == 0 && now.Since(h.at) < clock.PerSecond {
		return false
	}
	if id := s.hosts.dequeue(); h.links == 0 {
		s.hosts.drop(id)
	}
	return true
}

// limit returns a link's timeout in ticks.
func (s *Shard) limit(id uint32) uint32 {
	switch s.protoOf(id) {
	case packet.ProtoTCP:
		return s.timeout.state[s.cold[id].state]
	case packet.ProtoUDP:
		return s.timeout.udp
	case packet.ProtoICMP:
		return s.timeout.icmp
	}
	return s.timeout.other
}

// expired reports whether a link was idle for strictly longer than its timeout.
func (s *Shard) expired(id uint32, now clock.Tick) bool {
	idle := now.Since(s.last(id))
	return idle > s.limit(id) && int32(idle) > 0
}

// queue enters a link into the wheel of its state.
func (s *Shard) queue(id uint32) {
	s.wheelOf(id).add(id, s.last(id)+clock.Tick(s.limit(id))+1)
}

func (s *Shard) wheelOf(id uint32) *wheel {
	if s.cold[id].state == Closing {
		return &s.closing
	}
	return &s.main
}

// releases is the queue behind NextReleased, a fixed ring.
type releases struct {
	ring       []Released
	head, tail uint32
}

func (r *releases) init(n int) {
	size := 1
	for size < n+1 {
		size *= 2
	}
	r.ring = make([]Released, size)
}

// release hands a held packet back to the worker.
func (s *Shard) release(r Released) {
	f := &s.freed
	f.ring[f.tail&uint32(len(f.ring)-1)] = r
	f.tail++
}

// NextReleased takes one packet that the shard held and gives back; ok is false when there is none. The worker calls it
// after Translate and Advance until then.
func (s *Shard) NextReleased() (r Released, ok bool) {
	f := &s.freed
	if f.head == f.tail {
		return r, false
	}
	r = f.ring[f.head&uint32(len(f.ring)-1)]
	f.head++
	return r, true
}
