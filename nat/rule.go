package nat

import (
	"pollux/internal/clock"
	"pollux/internal/packet"
)

// A rule is a partial link: a redirect, or an expectation. Rules live apart from links, are searched only when a packet
// meets no link, and the search costs the same for one rule and for thousands: one probe for each class that has any rules.
type rule struct {
	id     uint32 // handle for people, never used twice
	born   uint32 // epoch in which it came
	kind   ruleKind
	class  class
	proto  uint8
	pick   Pick
	public Alias // an address of 0 follows the default alias address
	remote Remote
	locals []Local // one, or a pool
	turn   uint32  // pool: next to take
	hits   uint64  // links made by it

	config  bool       // from SetRules; others came by AddRedirect
	added   bool       // not by the configuration, for who lists rules
	inbound bool       // RedirectAddr.Inbound
	oneShot bool       // gone after its first hit or at deadline
	death   clock.Tick // oneShot: when it ends unused

	nextIn, nextOut uint32 // older rule with the same key
}

type ruleKind uint8

const (
	ruleFree ruleKind = iota
	rulePort          // redirect_port and redirect_proto (ports 0)
	ruleAddr          // redirect_addr
)

// class is how specific a port rule's remote is; a lower class wins, in a class the newest.
type class uint8

const (
	classExact class = iota
	classAddr
	classPort
	classAny
	classes
)

func classOf(r Remote) class {
	switch {
	case r.Addr != 0 && r.Port != 0:
		return classExact
	case r.Addr != 0:
		return classAddr
	case r.Port != 0:
		return classPort
	}
	return classAny
}

// narrow blanks what a class does not look at.
func (c class) narrow(r Remote) Remote {
	if c&2 != 0 {
		r.Addr = 0
	}
	if c&1 != 0 {
		r.Port = 0
	}
	return r
}

// rules holds all rules and finds them by public and by local endpoint.
type rules struct {
	seed    *seed
	common  *seed  // for choices that all workers must make alike
	list    []rule // [0] is none
	free    []uint32
	in, out index
	ports   [classes]int // how many port rules a class has
	addrs   int
	follow  int // how many rules follow the default alias address
	serial  uint32
	oneShot int        // how many rules can end by themselves
	death   clock.Tick // not later than the first of their ends
}

func newRules(s, common *seed) rules {
	return rules{seed: s, common: common, list: make([]rule, 1), in: index{slots: make([]uint64, 8)}, out: index{slots: make([]uint64, 8)}}
}

// ruleHash hashes what a rule is found by: an endpoint of ours and, as far as the class goes, the remote.
func (x *rules) ruleHash(k ruleKind, c class, proto uint8, addr packet.Addr, port uint16, r Remote) uint32 {
	return x.seed.hash(uint64(addr)<<32|uint64(r.Addr),
		uint64(port)<<16|uint64(r.Port)|uint64(proto)<<32|uint64(k)<<40|uint64(c)<<48)
}

func (x *rules) inHash(r *rule) uint32 {
	return x.ruleHash(r.kind, r.class, r.proto, r.public.Addr, r.public.Port, r.remote)
}

func (x *rules) outHash(r *rule) uint32 {
	return x.ruleHash(r.kind, r.class, r.proto, r.locals[0].Addr, r.locals[0].Port, r.remote)
}

// sameIn and sameOut report whether two rules are found by the same key.
func sameIn(a, b *rule) bool {
	return a.kind == b.kind && a.class == b.class && a.proto == b.proto && a.public == b.public && a.remote == b.remote
}

func sameOut(a, b *rule) bool {
	return a.kind == b.kind && a.class == b.class && a.proto == b.proto && a.locals[0] == b.locals[0] && a.remote == b.remote
}

// findIn returns the newest rule found by the same public key as r, and findOut by the same local key.
func (x *rules) findIn(h uint32, r *rule) uint32 {
	for i := x.in.home(h); x.in.slots[i] != 0; i = x.in.next(i) {
		if v := uint32(x.in.slots[i]); uint32(x.in.slots[i]>>32) == h && sameIn(&x.list[v], r) {
			return v
		}
	}
	return 0
}

func (x *rules) findOut(h uint32, r *rule) uint32 {
	for i := x.out.home(h); x.out.slots[i] != 0; i = x.out.next(i) {
		if v := uint32(x.out.slots[i]); uint32(x.out.slots[i]>>32) == h && sameOut(&x.list[v], r) {
			return v
		}
	}
	return 0
}

// add takes a rule in as the newest of all and returns its place in the list.
func (x *rules) add(r rule) uint32 {
	if r.id == 0 {
		x.serial++
		r.id = x.serial
	}
	var at uint32
	if n := len(x.free); n > 0 {
		at = x.free[n-1]
		x.free = x.free[:n-1]
	} else {
		at = uint32(len(x.list))
		x.list = append(x.list, rule{})
		x.room()
	}
	r.nextIn, r.nextOut = 0, 0
	x.list[at] = r
	x.chain(at)
	if r.kind == rulePort {
		x.ports[r.class]++
	} else {
		x.addrs++
	}
	if r.public.Addr == 0 {
		x.follow++
	}
	if r.oneShot {
		x.mortal(r.death)
	}
	return at
}

// mortal counts in a rule that ends by itself.
func (x *rules) mortal(death clock.Tick) {
	if x.oneShot == 0 || death.Before(x.death) {
		x.death = death
	}
	x.oneShot++
}

// chain enters the rule at a place of the list into both indexes, in front of older ones with the same key.
func (x *rules) chain(at uint32) {
	r := &x.list[at]
	h := x.inHash(r)
	if old := x.findIn(h, r); old != 0 {
		r.nextIn = old
		x.in.replace(h, old, at)
	} else {
		x.in.insert(h, at)
	}
	if len(r.locals) > 1 {
		return // a pool never matches outbound
	}
	h = x.outHash(r)
	if old := x.findOut(h, r); old != 0 {
		r.nextOut = old
		x.out.replace(h, old, at)
	} else {
		x.out.insert(h, at)
	}
}

// room keeps both indexes at most half full.
func (x *rules) room() {
	if n := len(x.list); n*2 > len(x.in.slots) {
		var in, out index
		in.slots, out.slots = make([]uint64, n*4), make([]uint64, n*4)
		for _, s := range x.in.slots {
			if s != 0 {
				in.insert(uint32(s>>32), uint32(s))
			}
		}
		for _, s := range x.out.slots {
			if s != 0 {
				out.insert(uint32(s>>32), uint32(s))
			}
		}
		x.in, x.out = in, out
	}
}

// remove takes the rule at a place of the list out.
func (x *rules) remove(at uint32) {
	r := &x.list[at]
	h := x.inHash(r)
	if head := x.findIn(h, r); head != at {
		for l := head; l != 0; l = x.list[l].nextIn {
			if x.list[l].nextIn == at {
				x.list[l].nextIn = r.nextIn
				break
			}
		}
	} else if r.nextIn != 0 {
		x.in.replace(h, at, r.nextIn)
	} else {
		x.in.remove(h, at)
	}
	if len(r.locals) == 1 {
		h = x.outHash(r)
		if head := x.findOut(h, r); head != at {
			for l := head; l != 0; l = x.list[l].nextOut {
				if x.list[l].nextOut == at {
					x.list[l].nextOut = r.nextOut
					break
				}
			}
		} else if r.nextOut != 0 {
			x.out.replace(h, at, r.nextOut)
		} else {
			x.out.remove(h, at)
		}
	}
	if r.kind == rulePort {
		x.ports[r.class]--
	} else {
		x.addrs--
	}
	if r.public.Addr == 0 {
		x.follow--
	}
	if r.oneShot {
		x.oneShot--
	}
	*r = rule{}
	x.free = append(x.free, at)
}

// byID returns the place of the rule with a handle, 0 if it is gone.
func (x *rules) byID(id uint32) uint32 {
	for i := range x.list {
		if x.list[i].id == id && x.list[i].kind != ruleFree {
			return uint32(i)
		}
	}
	return 0
}

// matchIn returns the port rule that an inbound packet to a public endpoint meets, 0 if there is none.
func (x *rules) matchIn(a Alias, proto uint8, r Remote, now clock.Tick) uint32 {
	for c := range classes {
		if x.ports[c] == 0 {
			continue
		}
		for at := x.firstIn(rulePort, c, proto, a, c.narrow(r)); at != 0; at = x.list[at].nextIn {
			if x.alive(at, now) {
				return at
			}
		}
	}
	return 0
}

// matchOut returns the port rule whose local endpoint an outbound packet comes from, 0 if there is none.
func (x *rules) matchOut(l Local, proto uint8, r Remote, now clock.Tick) uint32 {
	for c := range classes {
		if x.ports[c] == 0 {
			continue
		}
		remote := c.narrow(r)
		h := x.ruleHash(rulePort, c, proto, l.Addr, l.Port, remote)
		for i := x.out.home(h); x.out.slots[i] != 0; i = x.out.next(i) {
			at := uint32(x.out.slots[i])
			if q := &x.list[at]; uint32(x.out.slots[i]>>32) != h || q.kind != rulePort || q.class != c || q.proto != proto ||
				q.locals[0] != l || q.remote != remote {
				continue
			}
			for ; at != 0; at = x.list[at].nextOut {
				if x.alive(at, now) {
					return at
				}
			}
			break
		}
	}
	return 0
}

// addrIn returns the address rule of a public address, addrOut that of a local one; 0 if there is none.
func (x *rules) addrIn(a packet.Addr) uint32 {
	if x.addrs == 0 {
		return 0
	}
	return x.firstIn(ruleAddr, classAny, 0, Alias{Addr: a}, Remote{})
}

// firstIn returns the newest rule with a public key. A rule is large: findIn, which has one to compare with, is for rule changes.
func (x *rules) firstIn(k ruleKind, c class, proto uint8, a Alias, r Remote) uint32 {
	h := x.ruleHash(k, c, proto, a.Addr, a.Port, r)
	for i := x.in.home(h); x.in.slots[i] != 0; i = x.in.next(i) {
		if uint32(x.in.slots[i]>>32) != h {
			continue
		}
		at := uint32(x.in.slots[i])
		if q := &x.list[at]; q.kind == k && q.class == c && q.proto == proto && q.public == a && q.remote == r {
			return at
		}
	}
	return 0
}

func (x *rules) addrOut(l packet.Addr) uint32 {
	if x.addrs == 0 {
		return 0
	}
	h := x.ruleHash(ruleAddr, classAny, 0, l, 0, Remote{})
	for i := x.out.home(h); x.out.slots[i] != 0; i = x.out.next(i) {
		at := uint32(x.out.slots[i])
		if q := &x.list[at]; uint32(x.out.slots[i]>>32) == h && q.kind == ruleAddr && q.locals[0].Addr == l {
			return at
		}
	}
	return 0
}

// alive reports whether the rule at a place of the list may still be used.
func (x *rules) alive(at uint32, now clock.Tick) bool {
	r := &x.list[at]
	return !r.oneShot || !now.After(r.death)
}

// pickLocal chooses the local endpoint for a new flow from r's pool.
func (x *rules) pickLocal(r *rule, remote Remote) Local {
	n := uint32(len(r.locals))
	if n == 1 {
		return r.locals[0]
	}
	if r.pick == SourceHash {
		h := x.common.hash(uint64(remote.Addr), 0x706f6f6c)
		return r.locals[uint64(h)*uint64(n)>>32]
	}
	l := r.locals[r.turn%n]
	r.turn = (r.turn + 1) % n
	return l
}

// offers reports whether local is among the rule's servers.
func (r *rule) offers(l Local) bool {
	for _, x := range r.locals {
		if x.Addr == l.Addr && (r.kind == ruleAddr || x.Port == l.Port) {
			return true
		}
	}
	return false
}
