package lport

import (
	"fmt"
	"math/rand/v2"
	"time"

	"pollux/internal/clock"
	"pollux/internal/packet"
)

// Block configures port blocks per host; Size 0 is off.
type Block struct {
	Size, MaxPerHost  int
	IdleRelease, Rest time.Duration
}

// Options configures a Space. Configure takes a new one; fields marked (New) are looked at by New only.
type Options struct {
	Worker, Workers int // (New) this worker's index from 0, and how many there are
	Owners          *Owners
	Low, High       uint16 // ports that may be given, inclusive
	SamePorts       bool   // keep Request.Want when it is free and inside the range
	Parity          bool   // keep the parity of Request.Want while a port of it is left (RFC 4787 4.2.2)
	Block           Block
	Deterministic   *Plan // nil: off; excludes Block
	PortsPerHost    int   // different alias ports (per address and row) one host may have at a time; 0: no limit

	Seed   [32]byte // (New) from the system's entropy; equal seeds and workers make equal choices
	Hosts  int      // (New) inside hosts to keep account of, with Block or PortsPerHost; 0: 65,536
	Links  int      // (New) uses of ports to keep account of, with PortsPerHost; 0: as Hosts
	Shared bool     // (New) in memory that a successor process can take over
	Caches int      // (New) most per-peer caches alive, 8.4 KiB each once used; 0: 1,024

	// InUse asks whether a full link of (alias, row, port) toward the peer exists; Port 0: toward any port of that address.
	InUse func(alias packet.Addr, row Row, port uint16, p Peer) bool
	Now   clock.Tick
}

// Space is one worker's part of the alias-port space. Only that worker may call its methods. Exclusive, Toward, Pair, Fixed
// and Release allocate nothing, but for the first use of an alias address and row, which maps its tables (about 300 KiB, of
// which what is touched costs memory).
//
// While one port in range is free (toward the peer), a request does not fail: ports are found by words of bitsets. With several
// workers this holds as long as the port is this worker's or nobody's.
type Space struct {
	o       Options `image:"-"`
	low     uint32
	high    uint32
	share   int32 // owner bytes of a row this worker takes before it prefers those it has
	plenty  int32 // candidates in a row that are more than enough
	me      uint8 // this worker's owner byte
	simple  bool  // first may try
	rng     *rand.ChaCha8
	aliases []*aliasSpace `image:"-"`
	index   []aliasSlot   `image:"-"` // open-addressed, by address; a power of two
	caches  caches
	ledger  ledger
	blocks  blockSet
	events  events
	bits    uint64 // random ones not used yet

	affinity    [Rows]*Affinity  `image:"-"` // preferred ports toward a peer; nil: none
	affinityMem [Rows][]Affinity `image:"-"`

	half  uint32
	stats counters
}

type aliasSlot struct {
	addr packet.Addr
	a    *aliasSpace
}

// aliasSpace is what one worker knows about one alias address.
type aliasSpace struct {
	addr   packet.Addr
	index  int          // in Space.aliases
	table  *ownerTable  // the published table that own was taken from
	own    *aliasOwners // nil while the address is not in the owner table
	rows   [Rows]*row
	rowMem [Rows][]row `image:"-"`
	blocks aliasBlocks
}

// New makes the Space of one worker.
func New(o Options) (*Space, error) {
	if o.Hosts <= 0 {
		o.Hosts = 1 << 16
	}
	if o.Links <= 0 {
		o.Links = o.Hosts
	}
	if o.Caches <= 0 {
		o.Caches = 1024
	}
	if o.Workers < 1 || o.Workers > WorkersMax || o.Worker < 0 || o.Worker >= o.Workers {
		return nil, fmt.Errorf("lport: worker %d of %d: need 1..%d workers and an index below their number", o.Worker, o.Workers, WorkersMax)
	}
	seed := o.Seed
	seed[0] ^= uint8(o.Worker) // workers may be given one seed: each must choose differently
	s := &Space{me: uint8(o.Worker + 1), rng: rand.NewChaCha8(seed), index: make([]aliasSlot, 4)}
	s.events.ring = make([]BlockEvent, eventsMax)
	if err := check(o); err != nil {
		return nil, err
	}
	var err error
	if s.caches, err = newCaches(o.Caches, o.Shared); err != nil {
		return nil, err
	}
	if s.ledger, err = newLedger(o.Hosts+o.Links, o.Shared); err != nil {
		s.caches.close()
		return nil, err
	}
	s.apply(o)
	return s, nil
}

// Close frees the tables and gives every owner byte back. The Space must not be used any more.
func (s *Space) Close() {
	for _, a := range s.aliases {
		if a != nil {
			s.closeAlias(a)
		}
	}
	s.caches.close()
	s.ledger.close()
	for _, mem := range s.affinityMem {
		unmap(mem)
	}
	*s = Space{}
}

// Configure changes the rules; nothing is changed when it fails. Ports in use stay in use. When blocks are
// to lie otherwise (size, start of the range), those there are dissolve: their ports live on as single ports until their links end.
func (s *Space) Configure(o Options) error {
	o.Worker, o.Workers, o.Seed = s.o.Worker, s.o.Workers, s.o.Seed
	o.Hosts, o.Links, o.Caches = s.o.Hosts, s.o.Links, s.o.Caches
	if err := s.Check(o); err != nil {
		return err
	}
	if o.Block.Size != s.o.Block.Size || o.Block.Size != 0 && skewOf(o) != s.blocks.skew {
		s.dissolve(o.Now)
	}
	s.apply(o)
	return nil
}

// Check says what Configure would refuse; nothing changes.
func (s *Space) Check(o Options) error {
	if o.Owners != s.o.Owners {
		return fmt.Errorf("lport: the owner table cannot be exchanged in a running Space")
	}
	return check(o)
}

func check(o Options) error {
	switch b := o.Block; {
	case o.Owners == nil:
		return fmt.Errorf("lport: no owner table given")
	case o.Low > o.High:
		return fmt.Errorf("lport: port range %d-%d: the first port is above the last", o.Low, o.High)
	case b.Size != 0 && o.Deterministic != nil:
		return fmt.Errorf("lport: blocks and deterministic ports exclude each other: switch one off")
	case b.Size != 0 && (b.Size < 1 || b.Size > 32768):
		return fmt.Errorf("lport: block size %d: must be from 1 to 32768", b.Size)
	case b.Size != 0 && b.MaxPerHost < 1:
		return fmt.Errorf("lport: at most %d blocks per host: must be at least 1", b.MaxPerHost)
	case b.Size != 0 && noBlock(o):
		return fmt.Errorf("lport: port range %d-%d holds no whole block of %d ports", o.Low, o.High, b.Size)
	case o.PortsPerHost < 0:
		return fmt.Errorf("lport: ports per host %d: must not be negative", o.PortsPerHost)
	}
	return nil
}

func noBlock(o Options) bool {
	_, first, end := blockSpan(o)
	return first >= end
}

func skewOf(o Options) uint32 {
	skew, _, _ := blockSpan(o)
	return skew
}

func (s *Space) apply(o Options) {
	s.o = o
	s.low, s.high = uint32(o.Low), uint32(o.High)
	s.share = int32((s.high - s.low + 1) / uint32(o.Workers))
	s.plenty = 65535 - int32(s.high-s.low) + int32(s.high-s.low+1)/plenty // ports out of range are nobody's
	s.blocks.size = uint32(o.Block.Size)
	if o.Block.Size != 0 {
		s.blocks.skew, s.blocks.first, s.blocks.end = blockSpan(o)
	}
	s.simple = o.Block.Size == 0 && o.Deterministic == nil && o.PortsPerHost == 0 && !o.Parity
	for _, a := range s.aliases {
		if a == nil {
			continue
		}
		s.fitBlocks(a)
		for _, r := range a.rows {
			if r != nil {
				r.dry = false // the next search that is in vain looks at everything anew
			}
		}
	}
}

// alias returns the state of an alias address; nil when the address is not in the owner table.
func (s *Space) alias(addr packet.Addr) *aliasSpace {
	a := s.known(addr)
	if a == nil || a.table != s.o.Owners.table.Load() {
		a = s.refresh(a, addr)
	}
	if a == nil || a.own == nil {
		return nil
	}
	return a
}

// known returns the state of an alias address, also of one that left the owner table; nil when it was never used.
func (s *Space) known(addr packet.Addr) *aliasSpace {
	mask := uint32(len(s.index) - 1)
	for i := uint32(addr) * 0x9e3779b1 >> 8; ; i++ {
		slot := &s.index[i&mask]
		if slot.addr == addr || slot.a == nil {
			return slot.a
		}
	}
}

// refresh follows the owner table: a is nil for an address not used so far.
func (s *Space) refresh(a *aliasSpace, addr packet.Addr) *aliasSpace {
	t := s.o.Owners.table.Load()
	own := t.find(addr)
	if a == nil {
		if own == nil {
			return nil
		}
		a = s.addAlias(addr)
	}
	a.table = t
	if a.own != own {
		a.leaveOwners()
		if a.own = own; own != nil {
			s.reclaim(a)
		}
	}
	return a
}

// leaveOwners ends what ties the rows to the bytes that the address had so far.
func (a *aliasSpace) leaveOwners() {
	for rw, r := range a.rows {
		if r == nil {
			continue
		}
		if r.hungry {
			a.own.rows[rw].hungry.Add(-1)
		}
		r.hungry, r.dry, r.held = false, false, 0
	}
	a.blocks.dry = false
}

// reclaim takes the bytes of all ports in use again, for an address that left the owner table and came back.
func (s *Space) reclaim(a *aliasSpace) {
	for rw, r := range a.rows {
		if r == nil {
			continue
		}
		for port := range 65536 {
			if r.uses[port] != 0 && a.own.claim(Row(rw), uint16(port), s.o.Worker) {
				r.held++
			}
		}
	}
	s.reclaimBlocks(a)
}

func (s *Space) addAlias(addr packet.Addr) *aliasSpace {
	s.sweep()
	a := &aliasSpace{addr: addr, index: -1}
	for i, old := range s.aliases {
		if old == nil {
			a.index = i
			s.aliases[i] = a
		}
	}
	if a.index < 0 {
		a.index = len(s.aliases)
		s.aliases = append(s.aliases, a)
	}
	s.reindex()
	s.fitBlocks(a)
	return a
}

// sweep forgets addresses that left the owner table and have no port in use.
func (s *Space) sweep() {
	t := s.o.Owners.table.Load()
	for i, a := range s.aliases {
		if a == nil || t.find(a.addr) != nil || a.inUse() {
			continue
		}
		s.closeAlias(a)
		s.aliases[i] = nil
	}
}

func (a *aliasSpace) inUse() bool {
	for _, r := range a.rows {
		if r != nil && r.used != 0 {
			return true
		}
	}
	return a.blocks.live != 0
}

// closeAlias gives back everything that belongs to an address.
func (s *Space) closeAlias(a *aliasSpace) {
	for rw, r := range a.rows {
		if r == nil {
			continue
		}
		s.caches.dropAll(a.addr, Row(rw), r)
		if a.own != nil {
			s.releaseRange(a, Row(rw), 0, 65535, true)
		}
	}
	a.leaveOwners()
	for _, mem := range a.rowMem {
		unmap(mem)
	}
	unmap(a.blocks.all)
	*a = aliasSpace{addr: a.addr}
}

// releaseRange gives back every byte of this worker in [lo, hi] of a row; without all only those whose port no link uses.
func (s *Space) releaseRange(a *aliasSpace, rw Row, lo, hi uint32, all bool) {
	r := a.rows[rw]
	for port := lo; port <= hi; port++ {
		if a.own.byte(rw, uint16(port)) == s.me && (all || r.uses[port] == 0) {
			a.own.release(rw, uint16(port))
			r.held--
		}
	}
	a.own.tell(rw, 0)
}

// reindex builds the table that finds an address's state.
func (s *Space) reindex() {
	n := 4
	for n < 2*len(s.aliases) {
		n *= 2
	}
	s.index = make([]aliasSlot, n)
	for _, a := range s.aliases {
		if a == nil {
			continue
		}
		i := uint32(a.addr) * 0x9e3779b1 >> 8
		for s.index[i&uint32(n-1)].a != nil {
			i++
		}
		s.index[i&uint32(n-1)] = aliasSlot{a.addr, a}
	}
}

// row returns the tables of one row, made at the first use; nil when the system has no memory for them.
func (a *aliasSpace) row(rw Row) *row {
	if r := a.rows[rw&(Rows-1)]; r != nil {
		return r
	}
	mem, err := mapped[row](1)
	if err != nil {
		return nil
	}
	a.rowMem[rw], a.rows[rw] = mem, &mem[0]
	mem[0].init()
	return &mem[0]
}
