package rtcache

import (
	"net/netip"
	"slices"
	"strings"
)

// reading is a dump under way: the kernel's whole state, read beside the one in use. Workers go on with the old tables
// until the new ones are complete; then only what differs is bumped. So neither the first start nor a lost event makes a gap.
type reading struct {
	main, local fib // the tables in use
	links       map[int]bool
	addrs       map[neighKey]bool
	neighs      map[neighKey]bool
	complete    bool // the dump has ended, events that came meanwhile follow
}

// begin starts a reading: routes go into new tables, all else is compared at the end.
func (c *control) begin() {
	c.reading = &reading{
		main: c.main, local: c.local,
		links: map[int]bool{}, addrs: map[neighKey]bool{}, neighs: map[neighKey]bool{},
	}
	c.main, c.local = newFIB(), newFIB()
	c.suspect = false
	c.nexthops = false
	for key := range c.warnings { // those about routes and rules are said again
		if strings.HasPrefix(key, "rule ") || slices.Contains([]string{"table default", "tos", "source", "encap"}, key) {
			delete(c.warnings, key)
			c.warned = true
		}
	}
}

// end takes the new tables into use.
func (c *control) end() {
	old := c.reading
	c.reading = nil
	for index := range c.links {
		if !old.links[index] {
			c.link(&linkEvent{index: index, deleted: true})
		}
	}
	for index, list := range c.addrs {
		for i := len(list) - 1; i >= 0; i-- {
			if !old.addrs[neighKey{index, list[i].addr.Addr()}] {
				gone := list[i]
				gone.deleted = true
				c.addr(&gone)
			}
		}
	}
	for k := range c.neighs {
		if !old.neighs[k] {
			c.neigh(&neighEvent{index: k.index, addr: k.addr, deleted: true})
		}
	}
	c.seekGone()
	c.replaced(&old.main, &c.main)
	c.localNews = c.replaced(&old.local, &c.local) || c.localNews
	c.stats.Readings++
}

// abandon drops a reading that failed: the tables in use stay.
func (c *control) abandon() {
	broken := [2]fib{c.main, c.local}
	c.main, c.local = c.reading.main, c.reading.local
	c.reading = nil
	for i := range broken {
		c.releaseAll(&broken[i])
	}
	c.suspect = true
}

// replaced bumps what differs between two tables and gives up the old one.
func (c *control) replaced(old, now *fib) (any bool) {
	c.changed = true
	if old.table.Size() == 0 && now.table.Size() > bumpListMax { // the first reading
		c.bumpAll = true
		return true
	}
	differ := func(p netip.Prefix) {
		c.bump(p)
		any = true
	}
	for p, r := range old.table.All() {
		if n, ok := now.table.Get(p); !ok || n.set != r.set {
			differ(p)
		}
	}
	for p := range now.table.All() {
		if _, ok := old.table.Get(p); !ok {
			differ(p)
		}
	}
	c.releaseAll(old)
	return any
}

func (c *control) releaseAll(f *fib) {
	for p, r := range f.table.All() {
		if _, several := f.more[p]; !several {
			c.release(r.set)
		}
	}
	for _, list := range f.more {
		for _, r := range list {
			c.release(r.set)
		}
	}
}
