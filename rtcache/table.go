package rtcache

import (
	"fmt"
	"net/netip"
	"os"
	"slices"
	"sync"
	"sync/atomic"

	"pollux/internal/packet"
)

// Table is the mirror of the kernel's routing. Its methods may be called from any goroutine; packets are routed through a
// View per worker.
type Table struct {
	// Read by workers per packet, written rarely.
	mode    atomic.Uint32 // how slots must have been stored: generation<<16, or modeOff
	reverse atomic.Uint32 // ReversePathMode
	stamps  *stamps
	hops    []Hop // never moves; 0 is not used
	_       [64]byte

	// Read on a miss.
	snap     atomic.Pointer[snapshot]
	onLinkV4 atomic.Pointer[onLink]
	onLinkV6 atomic.Pointer[onLink]
	resolved atomic.Uint32
	asleep   atomic.Uint32 // the control goroutine sleeps or is about to: write the eventfd
	wakeup   *os.File      // eventfd, nil in a static table; a File, so that a late wake after Close hits no stranger
	views    atomic.Pointer[[]*View]

	pendingMax int

	mu sync.Mutex // held by whoever works on the control side
	c  *control

	modeMu     sync.Mutex // so that a long reading does not delay a switch
	generation uint32
	cacheOff   bool

	source      source // nil in a static table
	onPort      func(Port)
	onAddresses func(Addresses)
	onWarning   func(text string, over bool)
	done        chan struct{}
	closed      atomic.Bool
}

const (
	modeOff       = 0xffff0000 // matches no slot
	hopsDefault   = 1 << 16
	pendingMax    = 1024 // on-link hosts being resolved at once: the kernel's own default bound on its table (gc_thresh3)
	generationMax = 0xfffe
)

func newTable(ports []Port, hops int, reverse ReversePathMode) *Table {
	t := &Table{
		stamps: new(stamps), hops: make([]Hop, hops), generation: 1, pendingMax: pendingMax,
		done: make(chan struct{}),
	}
	for i := range t.hops {
		t.hops[i].index = uint32(i)
	}
	t.mode.Store(t.generation << 16)
	t.reverse.Store(uint32(reverse))
	t.onLinkV4.Store(newOnLink(0))
	t.onLinkV6.Store(newOnLink(0))
	t.views.Store(new([]*View))
	t.c = newControl(t, ports)
	return t
}

// View makes one worker's door to the table. Views live as long as the table.
func (t *Table) View() *View {
	v := &View{t: t, stamps: t.stamps, hops: t.hops}
	t.mu.Lock()
	defer t.mu.Unlock()
	all := append(slices.Clone(*t.views.Load()), v)
	t.views.Store(&all)
	return v
}

// SetCache switches attached next hops on or off. Slots stored before keep their worth: they are checked by the same stamps.
func (t *Table) SetCache(on bool) {
	t.modeMu.Lock()
	defer t.modeMu.Unlock()
	t.cacheOff = !on
	t.setMode()
}

// Cache reports whether attached next hops are in use.
func (t *Table) Cache() bool { return t.mode.Load() != modeOff }

// SetReversePath changes the check; every flow is checked anew, once.
func (t *Table) SetReversePath(m ReversePathMode) {
	t.modeMu.Lock()
	defer t.modeMu.Unlock()
	if ReversePathMode(t.reverse.Load()) == m {
		return
	}
	t.reverse.Store(uint32(m))
	t.generation = t.generation%generationMax + 1
	t.setMode()
}

// Generation returns that of the slots that are stored now.
func (t *Table) Generation() uint32 {
	t.modeMu.Lock()
	defer t.modeMu.Unlock()
	return t.generation
}

func (t *Table) setMode() {
	if t.cacheOff {
		t.mode.Store(modeOff)
	} else {
		t.mode.Store(t.generation << 16)
	}
}

// ResolvedEpoch changes whenever a packet that Route called Unresolved may fare better, or worse for good: a hop became
// usable, failed, or came into being, or routes changed for such a hop. One load: workers poll it once per burst. It is
// odd while hops are being changed: then a packet may find a hop usable before the change that made it so is complete,
// and whoever holds earlier packets for the same hop must look after them first, whatever epoch was seen before.
func (t *Table) ResolvedEpoch() uint32 { return t.resolved.Load() }

// SideOf tells on which side a destination lies; ok false: nowhere that packets may be forwarded to. For the miss path.
func (t *Table) SideOf(dst packet.Addr) (inside, ok bool) {
	s := t.snap.Load()
	set, verdict := s.lookup(dst.Netip())
	if verdict != OK {
		return false, false
	}
	return s.ports[set.port()].Inside, true
}

// port is the port of a set's first path.
func (s *pathSet) port() uint16 {
	if s.kind == setMulti {
		return s.members[0].port
	}
	return s.one.port
}

// Local tells whether an address is the kernel's own, a broadcast address of its links, or multicast.
func (t *Table) Local(a packet.Addr) bool {
	if a>>28 == 0xe || a == 0xffffffff {
		return true
	}
	_, ok := t.snap.Load().local.Lookup(a.Netip())
	return ok
}

// Source is the address that the gateway speaks from on a port: its primary address, else one of another port on the
// same side, of any port, of any netdev. 0: the kernel has none.
func (t *Table) Source(port uint16) packet.Addr {
	if s := t.snap.Load(); int(port) < len(s.source) {
		return s.source[port]
	}
	return 0
}

// Ports gives the ports as they are now, by index.
func (t *Table) Ports() []Port { return slices.Clone(t.snap.Load().ports) }

// OnLinkPort tells by which port an address is directly connected without being the kernel's own: for such a pool address
// the gateway itself must answer and announce ARP.
func (t *Table) OnLinkPort(a packet.Addr) (port uint16, ok bool) {
	s := t.snap.Load()
	set, verdict := s.lookup(a.Netip())
	if verdict != OK || set.kind != setOne || set.one.hop != 0 {
		return 0, false
	}
	return set.one.port, true
}

// Warnings lists what of the kernel's routing is not followed, sorted; empty when all is.
func (t *Table) Warnings() []string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.c.warningList()
}

// Stats are numbers of the control side.
type Stats struct {
	Routes      int    // in the tables now, IPv4 and IPv6, the kernel's own addresses not counted
	PathSets    int    // different sets of next hops among them
	Hops        int    // next hops in use
	Waiting     int    // of these, unresolved
	Failed      int    // of these, not answering
	HopsRefused uint64 // on-link hosts refused because too many are unresolved or the array is full
	Asked       uint64 // requests to the kernel to resolve a neighbour
	AskErrors   uint64 // and refused by it
	Published   uint64 // snapshots
	Bumped      uint64 // stamps changed
	Readings    uint64 // whole dumps, the first included
	Overruns    uint64 // times that the kernel lost messages for us
}

// Stats reads them.
func (t *Table) Stats() Stats {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.c.stats
	s.Routes = t.c.main.table.Size()
	s.PathSets = len(t.c.sets.byKey)
	s.Waiting, s.Failed = len(t.c.waiting), len(t.c.failed)
	return s
}

// Addresses are the kernel's own, for a program that must leave them to it.
type Addresses struct {
	Local     []netip.Addr   // both families, loopback included, sorted
	Broadcast []netip.Addr   // directed broadcast addresses, sorted
	Prefixes  []netip.Prefix // whole prefixes that are local, 127.0.0.0/8 for one
}

func (c *control) addresses() (a Addresses) {
	for p, r := range c.local.table.AllSorted() {
		switch kind := c.sets.info[r.set].kind; {
		case kind == setBroadcast && p.IsSingleIP():
			a.Broadcast = append(a.Broadcast, p.Addr())
		case kind == setLocal && p.IsSingleIP():
			a.Local = append(a.Local, p.Addr())
		case kind == setLocal:
			a.Prefixes = append(a.Prefixes, p)
		}
	}
	return a
}

// wake gets the control goroutine out of its sleep, at most once per sleep. Workers call it.
func (t *Table) wake() {
	if t.asleep.Load() != 0 && t.asleep.CompareAndSwap(1, 0) {
		t.poke()
	}
}

func (t *Table) poke() {
	if t.wakeup != nil {
		t.wakeup.Write(one[:]) // cannot block: the counter is far from its end; fails after Close, when nobody listens
	}
}

var one = [8]byte{1}

// flush publishes and tells the listeners. The caller holds mu, which is not held during the calls.
func (t *Table) flush() {
	c := t.c
	c.publish()
	var ports []Port
	for i := range c.portNews {
		if c.portNews[i] {
			c.portNews[i] = false
			ports = append(ports, c.ports[i].Port)
		}
	}
	tell := c.localNews && c.reading == nil
	var a Addresses
	if tell {
		c.localNews = false
		a = c.addresses()
	}
	if c.reading != nil || t.onPort == nil && t.onAddresses == nil && t.onWarning == nil {
		return // a static table's caller may hold no lock
	}
	said, over := c.warningNews()
	if len(ports) == 0 && !tell && len(said) == 0 && len(over) == 0 {
		return
	}
	t.mu.Unlock()
	defer t.mu.Lock()
	if t.onPort != nil {
		for _, p := range ports {
			t.onPort(p)
		}
	}
	if tell && t.onAddresses != nil {
		t.onAddresses(a)
	}
	if t.onWarning != nil {
		for _, text := range said {
			t.onWarning(text, false)
		}
		for _, text := range over {
			t.onWarning(text, true)
		}
	}
}

func addOnLink(p *atomic.Pointer[onLink], tag uint32, egress uint16, hop uint32) {
	o := p.Load()
	if o.full() {
		o = o.grown()
		o.add(tag, egress, hop)
		p.Store(o)
		return
	}
	o.add(tag, egress, hop)
}

func checkPorts(ports []Port) error {
	if len(ports) == 0 || len(ports) > egressMax/2 {
		return fmt.Errorf("rtcache: %d ports: give 1 to %d", len(ports), egressMax/2)
	}
	return nil
}
