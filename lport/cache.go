package lport

import (
	"math/bits"

	"pollux/internal/offheap"
	"pollux/internal/packet"
)

// cache remembers, for one peer of one row, which ports are in use toward it: the third seed's advisory negative cache.
//
// It is made at the first conflict toward the peer, so a clear bit means only "not known to be in use": links from before are
// found one by one by asking InUse, each at most once. A set bit is certain. It is cleared when the link goes, and a cache
// without bits goes back to the arena.
//
// When two meet. Within one Space a peer is looked up by its key, so two caches for one key never exist. They meet when a
// row changes from endpoint-dependent to address-dependent mapping: the cache of an address as a whole (port 0) is
// then made while caches of (address, port) live. These are merged into it: a port used toward any port of an address is
// used toward the address. The other way round nothing is merged: InUse tells an exact peer what it needs.
type cache struct {
	bits [1024]uint64 // ports in use toward the peer: 8 KiB
	skip [16]uint64   // words in which no port is left for this peer
	gain uint32       // the row's gain when skip, none and far were right
	none bool         // a search of the whole range was in vain
	far  bool         // one for near ports was

	alias, addr packet.Addr
	port        uint16
	row         Row
	live        bool
	n           uint32 // bits set
	next        uint32 // in the hash chain or the list of unused ones; 0 ends
}

func (c *cache) set(port uint16) {
	w, bit := &c.bits[port>>6&1023], uint64(1)<<(port&63)
	if *w&bit == 0 {
		*w |= bit
		c.n++
	}
}

func (c *cache) clear(port uint16) {
	i := port >> 6 & 1023
	w, bit := &c.bits[i], uint64(1)<<(port&63)
	if *w&bit != 0 {
		*w &^= bit
		c.n--
		c.skip[i>>6&15] &^= 1 << (i & 63)
		c.none, c.far = false, false
	}
}

// caches is the arena of a worker's caches and the hash table that finds them. Number 0 stands for none: it stays empty and is
// not live.
type caches struct {
	all   []cache
	head  []uint32 // first of each hash chain
	table *offheap.Table[cache]
	heads *offheap.Table[uint32]
	shift uint32
	free  uint32 // first unused one that was used before
	fresh uint32 // the first never used one
	last  uint32 // the one that was found or made last, if it is still alive: who takes a port toward a peer often does so
	// again, or gives it back
	lastKey peerKey
	live    uint32
	peak    uint32
	stole   uint64 // taken from a peer that had less use for it
	met     uint64 // merged into another
}

func newCaches(n int, shared bool) (t caches, err error) {
	log := max(bits.Len(uint(n)), 4)
	t.shift, t.fresh = 64-uint32(log), 1
	if t.table, err = alloc[cache](n+1, shared); err != nil {
		return t, err
	}
	if t.heads, err = alloc[uint32](1<<log, shared); err != nil {
		t.table.Free()
		return t, err
	}
	t.all, t.head = t.table.Items, t.heads.Items
	return t, nil
}

func (t *caches) close() {
	t.table.Free()
	t.heads.Free()
	*t = caches{}
}

func (t *caches) chain(alias packet.Addr, row Row, p Peer) *uint32 {
	h := (uint64(alias)<<32 | uint64(p.Addr)) * 0x9e3779b97f4a7c15
	h = (h ^ h>>29 ^ uint64(p.Port)<<8 ^ uint64(row)) * 0xbf58476d1ce4e5b9
	return &t.head[h>>t.shift]
}

// peerKey is a peer and the row in which it is met.
type peerKey struct{ addrs, ports uint64 }

func keyOf(alias packet.Addr, row Row, p Peer) peerKey {
	return peerKey{uint64(alias)<<32 | uint64(p.Addr), uint64(row)<<16 | uint64(p.Port)}
}

// find returns the peer's cache, or nil.
func (t *caches) find(alias packet.Addr, row Row, p Peer) *cache {
	if t.last != 0 && t.lastKey == keyOf(alias, row, p) {
		return &t.all[t.last]
	}
	return t.search(alias, row, p)
}

func (t *caches) search(alias packet.Addr, row Row, p Peer) *cache {
	for i := *t.chain(alias, row, p); i != 0; {
		c := &t.all[i]
		if c.addr == p.Addr && c.port == p.Port && c.alias == alias && c.row == row {
			t.last, t.lastKey = i, keyOf(alias, row, p)
			return c
		}
		i = c.next
	}
	return nil
}

// make returns a new cache for a peer that has none, or nil when the arena is used up.
func (t *caches) make(alias packet.Addr, row Row, p Peer, r *row) *cache {
	i := t.free
	switch {
	case i != 0:
		t.free = t.all[i].next
	case int(t.fresh) < len(t.all):
		i = t.fresh
		t.fresh++
	default:
		return nil
	}
	head := t.chain(alias, row, p)
	c := &t.all[i]
	c.skip, c.gain, c.none, c.far = [16]uint64{}, r.gain, false, false
	c.alias, c.addr, c.port, c.row, c.live, c.n, c.next = alias, p.Addr, p.Port, row, true, 0, *head
	*head = i
	t.last, t.lastKey = i, keyOf(alias, row, p)
	t.live++
	t.peak = max(t.peak, t.live)
	r.caches++
	if p.Port == 0 {
		r.wide++
		if r.caches > r.wide { // some exact ones live: only after a change of the mapping behaviour
			t.merge(c, r)
		}
	}
	return c
}

// merge moves what exact caches know of an address into the cache of the whole address.
func (t *caches) merge(into *cache, r *row) {
	for i := uint32(1); i < t.fresh; i++ {
		c := &t.all[i]
		if !c.live || c.port == 0 || c.addr != into.addr || c.alias != into.alias || c.row != into.row {
			continue
		}
		for w, b := range c.bits {
			into.n += uint32(bits.OnesCount64(b &^ into.bits[w]))
			into.bits[w] |= b
		}
		t.met++
		t.drop(c, r)
	}
}

// steal frees the emptiest of a few random caches if it knows less than worth ports. Caches are advisory: its peer
// merely has to learn again.
func (t *caches) steal(worth uint32, random uint64, rowOf func(*cache) *row) bool {
	var best *cache
	for range 8 {
		c := &t.all[1+random%uint64(len(t.all)-1)]
		random = bits.RotateLeft64(random, 11) * 0x9e3779b97f4a7c15
		if c.live && (best == nil || c.n < best.n) {
			best = c
		}
	}
	if best == nil || best.n >= worth {
		return false
	}
	t.drop(best, rowOf(best))
	t.stole++
	return true
}

// forget says that a port is no longer in use toward the peer. A row with caches of exact peers and of whole addresses at once
// is in the midst of a change of its mapping behaviour: a bit of the one kind may then stand for a link of the other, so it is
// cleared in both. Where another link still uses the port, InUse says so again.
func (t *caches) forget(alias packet.Addr, row Row, p Peer, port uint16, r *row) {
	if c := t.find(alias, row, p); c != nil {
		t.clear(c, port, r)
	}
	switch {
	case p.Port != 0 && r.wide != 0:
		if c := t.find(alias, row, Peer{Addr: p.Addr}); c != nil {
			t.clear(c, port, r)
		}
	case p.Port == 0 && r.caches > r.wide:
		for i := uint32(1); i < t.fresh; i++ {
			if c := &t.all[i]; c.live && c.addr == p.Addr && c.alias == alias && c.row == row {
				t.clear(c, port, r)
			}
		}
	}
}

func (t *caches) clear(c *cache, port uint16, r *row) {
	if c.clear(port); c.n == 0 {
		t.drop(c, r)
	}
}

// drop takes a cache out of the table and gives it back to the arena.
func (t *caches) drop(c *cache, r *row) {
	if c.n != 0 {
		clear(c.bits[:])
	}
	if c.port == 0 {
		r.wide--
	}
	p := t.chain(c.alias, c.row, Peer{c.addr, c.port})
	for &t.all[*p] != c {
		p = &t.all[*p].next
	}
	i := *p
	*p = c.next
	if i == t.last {
		t.last = 0
	}
	c.live, c.addr, c.n, c.next = false, 0, 0, t.free
	t.free = i
	t.live--
	r.caches--
}

// dropAll drops every cache of a row.
func (t *caches) dropAll(alias packet.Addr, row Row, r *row) {
	for i := uint32(1); i < t.fresh && r.caches != 0; i++ {
		if c := &t.all[i]; c.live && c.alias == alias && c.row == row {
			t.drop(c, r)
		}
	}
}
