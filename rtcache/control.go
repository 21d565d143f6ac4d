package rtcache

import (
	"encoding/binary"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"time"

	"pollux/internal/packet"
)

// Times of the control side.
const (
	askAgain    = time.Second             // between two requests to resolve one hop
	askGiveUp   = 3500 * time.Millisecond // an unresolved hop fails even if the kernel never says so (it does after 3 s)
	sweepEvery  = 30 * time.Second        // look which on-link hops are in use
	idleSweeps  = 4                       // an on-link hop unused for so many sweeps is given up
	reuseAfter  = 10 * time.Second        // a freed hop's index rests: longer than any packet is held for it
	tickWaiting = 250 * time.Millisecond  // while hops wait or have failed
)

// asker asks the kernel to resolve a neighbour. managed: and to keep it resolved. It must not block for long.
type asker interface {
	resolve(index int, addr netip.Addr, managed bool) error
}

// control is the writing side of a Table: everything that only the control goroutine (or, in a static table, whoever
// holds Table.mu) touches. It is a sink: what the kernel says goes in as events; publish lets the workers see it.
type control struct {
	t    *Table
	now  time.Duration // monotonic, set before each batch
	asks asker         // nil: static, everything is resolved by hand

	links  map[int]linkState
	addrs  map[int][]addrEvent // per netdev, in the kernel's order
	ports  []portState
	portOf map[int]uint16 // netdev -> port
	neighs map[neighKey]neighInfo

	egresses []egress
	egressOf map[egress]uint16
	info     []hopInfo // parallel to Table.hops
	hopOf    map[hopKey]uint32
	rested   []restingHop
	waiting  map[uint32]struct{} // hops that are unresolved
	failed   map[uint32]struct{} // hops that did not answer
	toAsk    []uint32
	doomed   []uint32 // hops without users, freed after the next publication

	sets     setStore
	main     fib
	local    fib
	bumps    []netip.Prefix // destinations whose paths changed since the last publication
	bumpAll  bool           // or too many of them to list
	warnings map[string]string
	told     []string // of them, as OnWarning knows it
	warned   bool     // they may differ from told

	reading   *reading // not nil while a dump is being read
	suspect   bool     // routes must be read again
	nexthops  bool     // some route was made with a nexthop object
	changed   bool     // tables, sets or ports differ from the published snapshot
	news      bool     // some hop became usable, failed, or came into being; the resolved epoch is odd
	portNews  []bool   // per port: tell OnPort
	localNews bool     // tell OnLocal
	lastSweep time.Duration
	stats     Stats
}

type linkState struct {
	up   bool
	name string
}

type neighKey struct {
	index int
	addr  netip.Addr
}

type neighInfo struct {
	mac   [6]byte
	state neighState
}

// egress is a way out: a port with the MTU of the link (0), or the smaller one of a route.
type egress struct {
	port uint16
	mtu  uint16
}

type hopKey struct {
	addr   netip.Addr
	egress uint16
}

type hopInfo struct {
	key     hopKey
	refs    int32 // path sets that name it
	inUse   bool
	onLink  bool // made for a directly connected host
	managed bool // the kernel was asked to keep it resolved
	stale   bool
	idle    uint8
	asked   time.Duration // when the kernel was asked last; 0: never
	since   time.Duration // when it became unresolved or failed
}

type restingHop struct {
	index uint32
	since time.Duration
}

type portState struct {
	Port
	up      bool
	waiting uint32   // hop that stands for on-link hosts without one
	ways    []uint16 // egresses
}

func newControl(t *Table, ports []Port) *control {
	c := &control{
		t:        t,
		links:    map[int]linkState{},
		addrs:    map[int][]addrEvent{},
		portOf:   map[int]uint16{},
		neighs:   map[neighKey]neighInfo{},
		egressOf: map[egress]uint16{},
		info:     make([]hopInfo, 1, 64),
		hopOf:    map[hopKey]uint32{},
		waiting:  map[uint32]struct{}{},
		failed:   map[uint32]struct{}{},
		sets:     newSetStore(),
		main:     newFIB(),
		local:    newFIB(),
		warnings: map[string]string{},
		portNews: make([]bool, len(ports)),
		now:      1, // 0 means never
	}
	for i, p := range ports {
		p.Index = uint16(i)
		c.ports = append(c.ports, portState{Port: p})
		if p.IfIndex != 0 {
			c.portOf[p.IfIndex] = uint16(i)
		}
		way := c.egress(egress{port: uint16(i)})
		c.ports[i].waiting = c.newHop(hopKey{egress: way})
	}
	return c
}

// egress returns the number of a way out, making it if there is room; without room the link's own MTU counts.
func (c *control) egress(e egress) uint16 {
	if i, ok := c.egressOf[e]; ok {
		return i
	}
	if len(c.egresses) == egressMax {
		c.warn("egress", fmt.Sprintf("more than %d different MTUs on routes: the others use their links' MTU", egressMax))
		return c.egressOf[egress{port: e.port}]
	}
	i := uint16(len(c.egresses))
	c.egresses = append(c.egresses, e)
	c.egressOf[e] = i
	c.ports[e.port].ways = append(c.ports[e.port].ways, i)
	return i
}

// --- hops

// newHop takes a free entry, 0 when there is none. On-link hosts may not take the last eighth, which is for gateways.
func (c *control) newHop(k hopKey) uint32 {
	var i uint32
	switch {
	case len(c.rested) > 0 && c.now-c.rested[0].since >= reuseAfter:
		i = c.rested[0].index
		c.rested = c.rested[1:]
	case len(c.info) < len(c.t.hops):
		i = uint32(len(c.info))
		c.info = append(c.info, hopInfo{})
	default:
		c.stats.HopsRefused++
		return 0
	}
	c.info[i] = hopInfo{key: k, inUse: true, since: c.now}
	c.stats.Hops++
	h := &c.t.hops[i]
	e := c.egresses[k.egress]
	h.hi.Store(0)
	h.lo.Store(0)
	if k.addr.IsValid() {
		hi, lo := words(k.addr)
		h.hi.Store(hi)
		h.lo.Store(lo)
		c.hopOf[k] = i
		c.file(i)
	}
	if k.addr.IsValid() {
		c.stir()
	}
	h.wanted.Store(0)
	h.to.Store(hopWord([6]byte{}, int(e.port)))
	c.setFrom(i)
	h.state.Store(hopUnresolved)
	if k.addr.IsValid() {
		c.refresh(i)
	}
	return i
}

// words gives an address as a Hop stores it.
func words(a netip.Addr) (hi, lo uint64) {
	if a.Is4() {
		return 0, uint64(packet.AddrFrom(a))
	}
	b := a.As16()
	return binary.BigEndian.Uint64(b[:8]), binary.BigEndian.Uint64(b[8:])
}

// file makes a hop findable by its address.
func (c *control) file(i uint32) {
	k := c.info[i].key
	if k.addr.Is4() {
		_, lo := words(k.addr)
		addOnLink(&c.t.onLinkV4, uint32(lo), k.egress, i)
	} else {
		addOnLink(&c.t.onLinkV6, tagV6(words(k.addr)), k.egress, i)
	}
}

func (c *control) unfile(i uint32) {
	k := c.info[i].key
	hi, lo := words(k.addr)
	if k.addr.Is4() {
		c.t.onLinkV4.Load().remove(uint32(lo), k.egress, i)
	} else {
		c.t.onLinkV6.Load().remove(tagV6(hi, lo), k.egress, i)
	}
}

// setFrom writes the port's MAC and the MTU into a hop.
func (c *control) setFrom(i uint32) {
	e := c.egresses[c.info[i].key.egress]
	p := &c.ports[e.port]
	mtu := p.MTU
	if e.mtu != 0 {
		mtu = min(mtu, int(e.mtu))
	}
	c.t.hops[i].from.Store(hopWord(p.MAC, mtu))
}

// refresh brings a hop in line with its port and its neighbour.
func (c *control) refresh(i uint32) {
	info, h := &c.info[i], &c.t.hops[i]
	was := h.state.Load() & stateLow
	p := &c.ports[c.egresses[info.key.egress].port]
	if !p.up {
		info.asked = 0 // ask as soon as it is up again
		c.setState(i, hopDead)
		return
	}
	if !info.key.addr.IsValid() { // a waiting hop
		c.setState(i, hopUnresolved)
		return
	}
	n := c.neighs[neighKey{p.IfIndex, info.key.addr}]
	info.stale = n.state == neighStale
	switch n.state {
	case neighValid, neighStale:
		h.to.Store(hopWord(n.mac, int(p.Index)))
		c.setState(i, hopReady)
	case neighFailed:
		if was == hopReady || was == hopDead || info.asked == 0 {
			// It did not confirm its old address; it may have a new one. Ask everybody before giving up.
			info.asked = 0
			c.setState(i, hopUnresolved)
			c.askFor(i)
		} else {
			c.setState(i, hopFailed)
		}
	default:
		if was != hopFailed || n.state == neighNone && c.now-info.since >= askAgain {
			c.setState(i, hopUnresolved)
		}
		if n.state == neighNone && c.demanded(i) {
			c.askFor(i)
		}
	}
}

// demanded tells whether somebody needs the hop resolved now: a route names it, or a worker used it.
func (c *control) demanded(i uint32) bool {
	h := &c.t.hops[i]
	return c.info[i].refs > 0 || c.info[i].onLink && (c.info[i].idle == 0 || h.state.Load()&usedBit != 0) || h.wanted.Load() != 0
}

func (c *control) setState(i uint32, s hopState) {
	h := &c.t.hops[i]
	was := h.state.Load() & stateLow
	if was != s {
		c.info[i].since = c.now
		c.stir()
		h.setState(s)
	}
	delete(c.waiting, i)
	delete(c.failed, i)
	switch {
	case s == hopUnresolved && c.info[i].key.addr.IsValid():
		c.waiting[i] = struct{}{}
		return
	case s == hopFailed:
		c.failed[i] = struct{}{}
	}
	h.wanted.Store(0)
}

// stir tells those who hold packets that hops are about to change; publish, that they have.
func (c *control) stir() {
	if !c.news {
		c.news = true
		c.t.resolved.Add(1)
	}
}

// askFor queues a request to the kernel; publish sends it.
func (c *control) askFor(i uint32) {
	if c.asks != nil && (c.info[i].asked == 0 || c.now-c.info[i].asked >= askAgain) {
		c.info[i].asked = c.now
		c.toAsk = append(c.toAsk, i)
	}
}

func (c *control) sendAsks() {
	if c.reading != nil {
		return // the dump holds the socket
	}
	for _, i := range c.toAsk {
		info := &c.info[i]
		if !info.inUse {
			continue
		}
		p := &c.ports[c.egresses[info.key.egress].port]
		if !p.up {
			continue
		}
		managed := info.refs > 0
		c.stats.Asked++
		if err := c.asks.resolve(p.IfIndex, info.key.addr, managed); err != nil {
			c.stats.AskErrors++
			continue
		}
		info.managed = managed
	}
	c.toAsk = c.toAsk[:0]
}

// doom marks a hop that may have lost its last user; publish frees it if so.
func (c *control) doom(i uint32) { c.doomed = append(c.doomed, i) }

// free gives a hop up: dead at once, its index rests until nobody can hold it any more.
func (c *control) free(i uint32) {
	info := &c.info[i]
	if info.managed && c.asks != nil {
		if p := &c.ports[c.egresses[info.key.egress].port]; p.up {
			c.asks.resolve(p.IfIndex, info.key.addr, false) // errors: the entry has gone, which is as good
		}
	}
	c.unfile(i)
	delete(c.hopOf, info.key)
	delete(c.waiting, i)
	delete(c.failed, i)
	c.stir()
	c.t.hops[i].setState(hopDead)
	if info.onLink { // flows to this host may hold it without a route change
		c.t.stamps.touch(netip.PrefixFrom(info.key.addr, info.key.addr.BitLen()))
	}
	*info = hopInfo{}
	c.rested = append(c.rested, restingHop{i, c.now})
	c.stats.Hops--
}

// gateway returns the hop of a router, with one more reference; 0: no room.
func (c *control) gateway(k hopKey) uint32 {
	i, ok := c.hopOf[k]
	if !ok {
		if i = c.newHop(k); i == 0 {
			c.warn("hops", fmt.Sprintf("more than %d next hops: some routes are not followed", len(c.t.hops)))
			return 0
		}
	}
	c.info[i].refs++
	if s := c.t.hops[i].state.Load() & stateLow; s == hopUnresolved || s == hopFailed || !c.info[i].managed {
		c.askFor(i)
	}
	return i
}

// host makes the hop of a directly connected address that a worker missed.
func (c *control) host(k hopKey) {
	if i, ok := c.hopOf[k]; ok {
		if !c.info[i].onLink {
			c.info[i].onLink = true
			c.stir()
		}
		return
	}
	room := len(c.t.hops) - len(c.t.hops)/8 // the rest is for routers
	if c.stats.Hops >= room {
		c.evict()
	}
	if c.stats.Hops >= room || len(c.waiting) >= c.t.pendingMax {
		c.stats.HopsRefused++
		return
	}
	if i := c.newHop(k); i != 0 {
		c.info[i].onLink = true
		if c.t.hops[i].state.Load()&stateLow != hopReady {
			c.askFor(i)
		}
	}
}

// unmanage gives the neighbours that the kernel keeps resolved for us back to its usual care.
func (c *control) unmanage() {
	for i := range c.info {
		info := &c.info[i]
		if p := &c.ports[c.egresses[info.key.egress].port]; info.inUse && info.managed && p.up {
			c.asks.resolve(p.IfIndex, info.key.addr, false)
		}
	}
}

// evictMax is how many hosts that did not answer make room at once.
const evictMax = 64

// evict frees hops of on-link hosts that did not answer, so that a scan of empty subnets does not keep others out.
func (c *control) evict() {
	n := 0
	for i := range c.failed {
		if info := &c.info[i]; info.onLink && info.refs == 0 {
			c.free(i)
			if n++; n == evictMax {
				return
			}
		}
	}
}

// takeRequests serves what the workers asked for and reports whether there was anything.
func (c *control) takeRequests() (any bool) {
	for _, v := range *c.t.views.Load() {
		for {
			q, ok := v.ask.take()
			if !ok {
				break
			}
			any = true
			if q.hop != 0 {
				if int(q.hop) < len(c.info) && c.info[q.hop].inUse {
					c.askFor(q.hop)
				}
				continue
			}
			addr := packet.Addr(q.lo).Netip()
			if q.v6 {
				var b [16]byte
				binary.BigEndian.PutUint64(b[:8], q.hi)
				binary.BigEndian.PutUint64(b[8:], q.lo)
				addr = netip.AddrFrom16(b)
			}
			c.host(hopKey{addr, q.egress})
		}
	}
	return any
}

// tick does what is due and says when to come again.
func (c *control) tick() (next time.Duration) {
	for i := range c.waiting {
		info := &c.info[i]
		switch {
		case info.asked < info.since: // not asked since it became unresolved
			if c.demanded(i) {
				c.askFor(i)
			}
		case c.now-info.asked >= askGiveUp:
			c.setState(i, hopFailed)
		}
	}
	for i := range c.failed {
		info, h := &c.info[i], &c.t.hops[i]
		if c.now-max(info.since, info.asked) < askAgain {
			continue
		}
		if h.state.Load()&usedBit != 0 { // each further try needs a packet since the last
			h.state.And(^uint32(usedBit))
			info.idle = 0
			c.askFor(i)
		} else if info.refs > 0 {
			c.askFor(i)
		}
	}
	if c.now-c.lastSweep >= sweepEvery {
		c.sweep()
	}
	if len(c.waiting)+len(c.failed) > 0 {
		return tickWaiting
	}
	return c.lastSweep + sweepEvery - c.now
}

// sweep confirms stale neighbours that are in use and gives up on-link hosts that nobody talks to.
func (c *control) sweep() {
	c.lastSweep = c.now
	for n := range c.info {
		i := uint32(n)
		info, h := &c.info[i], &c.t.hops[i]
		if !info.inUse || !info.key.addr.IsValid() {
			continue
		}
		if info.refs > 0 && !info.managed {
			c.askFor(i)
		}
		used := h.state.Load()&usedBit != 0
		if used {
			h.state.And(^uint32(usedBit))
			info.idle = 0
			if info.stale {
				c.askFor(i)
			}
			continue
		}
		if info.idle < idleSweeps {
			info.idle++
		}
		if info.onLink && info.idle == idleSweeps {
			info.onLink = false
			if info.refs == 0 {
				info.onLink = true // so that free bumps its bucket
				c.free(i)
			}
		}
	}
}

// --- links, addresses, neighbours

func (c *control) link(e *linkEvent) {
	if c.reading != nil {
		c.reading.links[e.index] = true
	}
	was, known := c.links[e.index]
	up := e.up && !e.deleted
	if e.deleted {
		delete(c.links, e.index)
		delete(c.addrs, e.index)
	} else {
		c.links[e.index] = linkState{up, e.name}
	}
	n, ours := c.portOf[e.index]
	if !ours && !e.deleted {
		n, ours = c.comeBack(e.index)
	}
	if ours {
		c.portLink(n, e, up)
	}
	if (!up && known && was.up || e.deleted) && (c.reading == nil || c.reading.complete) {
		c.dropRoutes(e.index, e.deleted) // the kernel has dropped the IPv4 routes of this netdev without a word
	}
}

func (c *control) portLink(n uint16, e *linkEvent, up bool) {
	p := &c.ports[n]
	was := *p
	p.up = up && !p.Waiting
	if !e.deleted {
		p.MAC, p.MTU, p.Name = e.mac, e.mtu, e.name
	} else {
		p.Gone, p.Waiting = true, false
		delete(c.portOf, e.index)
		for k := range c.neighs {
			if k.index == e.index {
				delete(c.neighs, k)
			}
		}
	}
	p.Port.Up = p.up
	key := "vrf " + p.Name
	if e.vrf {
		c.warn(key, fmt.Sprintf("port %s is enslaved to a VRF, whose routing table is not followed: take it out (ip link set %s nomaster)", p.Name, p.Name))
	} else {
		c.warn(key, "")
	}
	if was.Port == p.Port && was.up == p.up {
		return
	}
	c.changed = true
	c.portNews[n] = true
	c.refreshPort(n)
}

// refreshPort brings all hops of a port in line with it.
func (c *control) refreshPort(n uint16) {
	for i := 1; i < len(c.info); i++ {
		if c.info[i].inUse && c.egresses[c.info[i].key.egress].port == n {
			c.setFrom(uint32(i))
			c.refresh(uint32(i))
		}
	}
}

func (c *control) addr(e *addrEvent) {
	list := c.addrs[e.index]
	at := slices.IndexFunc(list, func(a addrEvent) bool { return a.addr == e.addr })
	switch {
	case e.deleted && at >= 0:
		list = slices.Delete(list, at, at+1)
	case e.deleted:
	case at >= 0:
		list[at] = *e
	default:
		list = append(list, *e)
	}
	c.addrs[e.index] = list
	if c.reading != nil && !e.deleted {
		c.reading.addrs[neighKey{e.index, e.addr.Addr()}] = true
	}
	c.changed = true
	c.primaries()
}

// primaries works out each port's primary IPv4 address: the first of the widest scope that is not secondary; a port
// without any borrows one, as the kernel does for unnumbered links.
func (c *control) primaries() {
	for i := range c.ports {
		p := &c.ports[i]
		a := c.primary(p.IfIndex)
		if a != p.Addr {
			p.Addr = a
			c.portNews[i] = true
		}
	}
}

func (c *control) primary(index int) (best packet.Addr) {
	scope := 255
	for _, a := range c.addrs[index] {
		if a.addr.Addr().Is4() && !a.secondary && int(a.scope) < scope {
			best, scope = packet.AddrFrom(a.addr.Addr()), int(a.scope)
		}
	}
	return best
}

func (c *control) neigh(e *neighEvent) {
	n, ok := c.portOf[e.index]
	if !ok {
		return
	}
	k := neighKey{e.index, e.addr}
	if c.reading != nil && !e.deleted {
		c.reading.neighs[k] = true
	}
	if e.deleted {
		delete(c.neighs, k)
	} else {
		c.neighs[k] = neighInfo{e.mac, e.state}
	}
	for _, way := range c.ports[n].ways {
		if i, ok := c.hopOf[hopKey{e.addr, way}]; ok {
			c.refresh(i)
		}
	}
}

func (c *control) nexthop() { c.suspect = c.suspect || c.nexthops }

func (c *control) warn(key, text string) {
	if c.warnings[key] == text {
		return
	}
	c.warned = true
	if text == "" {
		delete(c.warnings, key)
	} else {
		c.warnings[key] = text
	}
}

// warningList is what of the kernel's routing is not followed, sorted.
func (c *control) warningList() (all []string) {
	for _, w := range c.warnings {
		all = append(all, w)
	}
	slices.Sort(all)
	return slices.Compact(all)
}

// warningNews says what has come to the list and what has left it since the last call.
func (c *control) warningNews() (said, over []string) {
	if !c.warned {
		return nil, nil
	}
	was := c.told
	c.told, c.warned = c.warningList(), false
	for _, text := range c.told {
		if !slices.Contains(was, text) {
			said = append(said, text)
		}
	}
	for _, text := range was {
		if !slices.Contains(c.told, text) {
			over = append(over, text)
		}
	}
	return said, over
}

// --- publication

// publish lets the workers see what the events since the last call have changed: one new snapshot, then the stamps of
// the destinations that it concerns, then the word to those who wait.
func (c *control) publish() {
	if c.reading != nil {
		return
	}
	if c.changed || c.sets.dirty() {
		ports := make([]Port, len(c.ports))
		for i := range c.ports {
			ports[i] = c.ports[i].Port
		}
		c.t.snap.Store(&snapshot{
			local: c.local.published(), main: c.main.published(), sets: c.sets.published(),
			ports: ports, source: c.sources(), sourceV6: c.sourcesV6(),
		})
		c.changed = false
		c.stats.Published++
	}
	if c.bumpAll {
		c.bumps = append(c.bumps[:0], netip.PrefixFrom(netip.IPv4Unspecified(), 0), netip.PrefixFrom(netip.IPv6Unspecified(), 0))
		c.bumpAll = false
	}
	for _, p := range c.bumps {
		c.stats.Bumped += uint64(c.t.stamps.touch(p))
	}
	c.bumps = c.bumps[:0]
	for _, i := range c.doomed {
		if info := &c.info[i]; info.inUse && info.refs == 0 && !info.onLink {
			c.free(i)
		}
	}
	c.doomed = c.doomed[:0]
	if c.news {
		c.news = false
		c.t.resolved.Add(1)
	}
	c.sendAsks()
}

// bumpListMax is from how many prefixes on a list is not worth keeping.
const bumpListMax = 1 << 14

// bump notes that the paths of p changed.
func (c *control) bump(p netip.Prefix) {
	if len(c.bumps) == bumpListMax {
		c.bumpAll = true
	} else {
		c.bumps = append(c.bumps, p)
	}
}

// sources works out the address that the gateway speaks from on each port.
func (c *control) sources() []packet.Addr {
	all := make([]packet.Addr, len(c.ports))
	for i := range c.ports {
		all[i] = c.ports[i].Addr
		for _, same := range []bool{true, false} {
			for j := range c.ports {
				if all[i] == 0 && (c.ports[j].Inside == c.ports[i].Inside) == same {
					all[i] = c.ports[j].Addr
				}
			}
		}
		for _, index := range slices.Sorted(maps.Keys(c.addrs)) {
			if all[i] == 0 && len(c.addrs[index]) > 0 {
				if a := c.primary(index); a>>24 != 127 {
					all[i] = a
				}
			}
		}
	}
	return all
}
