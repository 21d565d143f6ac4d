package rtcache

import (
	"net/netip"
	"slices"

	"github.com/gaissmai/bart"
)

// fib is one routing table on the control side. What workers see is never changed: the first change after a publication
// makes a new version that shares all untouched nodes. A table nobody has seen yet is changed in place.
type fib struct {
	table *bart.Table[route]
	// more holds the prefixes with several routes, best first; the best is also in table.
	more  map[netip.Prefix][]route
	fresh bool
}

func newFIB() fib {
	return fib{table: new(bart.Table[route]), more: map[netip.Prefix][]route{}, fresh: true}
}

func (f *fib) published() *bart.Table[route] {
	f.fresh = false
	return f.table
}

// routes lists a prefix's routes, best first. one is scratch.
func (f *fib) routes(p netip.Prefix, one *[1]route) []route {
	if l, ok := f.more[p]; ok {
		return l
	}
	if r, ok := f.table.Get(p); ok {
		one[0] = r
		return one[:]
	}
	return nil
}

// put makes list the routes of a prefix.
func (f *fib) put(p netip.Prefix, list []route) {
	if len(list) > 1 {
		f.more[p] = list
	} else {
		delete(f.more, p)
	}
	switch {
	case len(list) == 0 && f.fresh:
		f.table.Delete(p)
	case len(list) == 0:
		f.table = f.table.DeletePersist(p)
	case f.fresh:
		f.table.Insert(p, list[0])
	default:
		if old, ok := f.table.Get(p); !ok || old != list[0] {
			f.table = f.table.InsertPersist(p, list[0])
		}
	}
}

// change replaces a prefix's routes and notes whose destinations are concerned: nobody's when the paths stay the same,
// as with a more specific route to the same next hop.
func (c *control) change(f *fib, p netip.Prefix, list []route) {
	c.changed = true
	if c.reading != nil { // compared as a whole when the reading ends
		f.put(p, list)
		return
	}
	old, had := f.table.LookupPrefix(p)
	f.put(p, list)
	now, has := f.table.LookupPrefix(p)
	if had != has || old.set != now.set {
		c.bump(p)
	}
	if f == &c.local {
		c.localNews = true
	}
}

func (c *control) route(e *routeEvent) {
	f := &c.main
	if e.local {
		f = &c.local
	}
	if e.nexthop {
		c.nexthops = true
	}
	if e.prefix = e.prefix.Masked(); !e.prefix.IsValid() {
		return
	}
	var one [1]route
	list := f.routes(e.prefix, &one)
	if e.deleted {
		c.withdraw(f, e, list)
	} else {
		c.announce(f, e, list)
	}
}

func (c *control) announce(f *fib, e *routeEvent, list []route) {
	r := route{set: c.intern(e), prio: e.prio}
	same := func(x route) bool { return x.prio == r.prio }
	first := slices.IndexFunc(list, same)
	if at := slices.Index(list, r); at >= 0 && (e.mode != routeReplace || at == first) {
		return // known: a dump and an event told the same
	}
	c.retain(r.set)
	if first >= 0 && e.prefix.Addr().Is6() && e.mode != routeReplace {
		// IPv6 announces a route that got one more next hop as a whole, without saying that it replaces the old one.
		first = slices.IndexFunc(list, func(x route) bool {
			return same(x) && c.contains(c.sets.info[r.set], c.sets.info[x.set])
		})
		if first >= 0 {
			e.mode = routeReplace
		} else {
			first = slices.IndexFunc(list, same)
		}
	}
	if e.mode == routeReplace && first >= 0 {
		old := list[first]
		list = slices.Clone(list)
		list[first] = r
		c.change(f, e.prefix, list)
		c.release(old.set)
		return
	}
	at := 0
	for at < len(list) && (list[at].prio < r.prio || list[at].prio == r.prio && e.mode != routePrepend) {
		at++
	}
	c.change(f, e.prefix, slices.Insert(slices.Clone(list), at, r))
}

func (c *control) withdraw(f *fib, e *routeEvent, list []route) {
	at := -1
	if set := c.sets.find(e); set != 0 {
		at = slices.Index(list, route{set: set, prio: e.prio})
	}
	if at < 0 && e.prefix.Addr().Is6() && c.withdrawPart(f, e, list) {
		return
	}
	if at < 0 { // as the kernel does: the first that fits
		at = slices.IndexFunc(list, func(x route) bool {
			return x.prio == e.prio && (c.sets.info[x.set].kind == e.kind)
		})
	}
	if at < 0 {
		return
	}
	old := list[at]
	c.change(f, e.prefix, slices.Delete(slices.Clone(list), at, at+1))
	c.release(old.set)
}

// withdrawPart takes some next hops out of an IPv6 multipath route.
func (c *control) withdrawPart(f *fib, e *routeEvent, list []route) bool {
	part := setInfo{kind: e.kind, hops: e.hops}
	at := slices.IndexFunc(list, func(x route) bool {
		i := c.sets.info[x.set]
		return x.prio == e.prio && len(i.hops) > len(e.hops) && len(e.hops) > 0 && c.contains(i, part)
	})
	if at < 0 {
		return false
	}
	rest := *e
	rest.deleted, rest.hops = false, nil
	for _, h := range c.sets.info[list[at].set].hops {
		if !hasHop(e.hops, h) {
			rest.hops = append(rest.hops, h)
		}
	}
	rest.kind = setOne
	if len(rest.hops) > 1 {
		rest.kind = setMulti
	}
	old := list[at]
	list = slices.Clone(list)
	list[at].set = c.intern(&rest)
	c.retain(list[at].set)
	c.change(f, e.prefix, list)
	c.release(old.set)
	return true
}

func hasHop(in []nextHop, h nextHop) bool {
	return slices.ContainsFunc(in, func(x nextHop) bool { return x.index == h.index && x.gateway == h.gateway })
}

// contains tells whether all next hops of small are in big, both unicast.
func (c *control) contains(big, small setInfo) bool {
	unicast := func(s setInfo) bool { return s.kind == setOne || s.kind == setMulti }
	if !unicast(big) || !unicast(small) {
		return false
	}
	for _, h := range small.hops {
		if !hasHop(big.hops, h) {
			return false
		}
	}
	return true
}

// dropRoutes removes the routes that end with a netdev: see lost.
func (c *control) dropRoutes(index int, deleted bool) {
	if lost := c.lose(index, deleted); len(lost) > 0 {
		c.publish()
		c.sweepLost(&c.main, lost)
		c.sweepLost(&c.local, lost)
	}
}

// lose is the quick half: it marks the path sets that are lost, whereupon lookups go on to less
// specific routes, and deals with the prefixes that have a second route of their own. After its publication no worker
// sees a lost route, however many there are.
func (c *control) lose(index int, deleted bool) map[uint32]bool {
	lost := map[uint32]bool{}
	for i := range c.sets.info {
		if c.lost(uint32(i), index, deleted) {
			lost[uint32(i)] = true
			c.sets.edit(uint32(i)).kind = setGone
			c.sets.forget(uint32(i))
		}
	}
	if len(lost) == 0 {
		return lost
	}
	for _, f := range []*fib{&c.main, &c.local} {
		for p, list := range f.more {
			if slices.ContainsFunc(list, func(r route) bool { return lost[r.set] }) {
				c.drop(f, p, lost)
			}
		}
	}
	return lost
}

// drop removes a prefix's lost routes.
func (c *control) drop(f *fib, p netip.Prefix, lost map[uint32]bool) {
	var one [1]route
	list := slices.Clone(f.routes(p, &one))
	c.change(f, p, slices.DeleteFunc(slices.Clone(list), func(r route) bool { return lost[r.set] }))
	for _, r := range list {
		if lost[r.set] {
			c.release(r.set)
		}
	}
}

// rebuildAbove is from how many removals on a table is better made anew than changed path by path.
const rebuildAbove = 4096

// sweepLost is the long half: it removes the lost routes from a table.
func (c *control) sweepLost(f *fib, lost map[uint32]bool) {
	var concerned []netip.Prefix
	for p, r := range f.table.All() {
		if lost[r.set] {
			concerned = append(concerned, p)
		}
	}
	if len(concerned) < rebuildAbove || len(concerned) < f.table.Size()/4 {
		for _, p := range concerned {
			c.drop(f, p, lost)
		}
		return
	}
	survivors := new(bart.Table[route])
	for p, r := range f.table.All() {
		if lost[r.set] {
			c.release(r.set)
		} else {
			survivors.Insert(p, r)
		}
	}
	f.table, f.fresh = survivors, true
	c.changed, c.bumpAll = true, true
	c.localNews = c.localNews || f == &c.local
}
