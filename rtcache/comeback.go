package rtcache

import (
	"fmt"
	"slices"
)

// A netdev that is deleted and made again under the same name is another netdev, with another number, to which nothing of ours
// is bound. It takes its port's place in three steps:
//
//	control  sees a netdev of a gone port's name: the port gets its number, MAC, MTU, neighbours, and is Waiting
//	OnPort   tells whoever has the sockets; meanwhile routes lead to the port and packets wait for its next hops, which are down
//	Attach   is called when the sockets are bound to it: its next hops come up
//
// The kernel tells of a netdev before it tells of anything by it, so that no route of the new one is seen too early.

// comeBack makes a netdev the one of the gone port that had its name.
func (c *control) comeBack(index int) (n uint16, ok bool) {
	i := slices.IndexFunc(c.ports, func(p portState) bool { return p.Gone && p.Name == c.links[index].name })
	if i < 0 {
		return 0, false
	}
	p := &c.ports[i]
	p.IfIndex, p.Gone, p.Waiting = index, false, true
	c.portOf[index] = uint16(i)
	c.changed, c.portNews[i] = true, true
	c.primaries()
	c.rebuild(index)
	return uint16(i), true
}

// seekGone looks for netdevs that came while the messages about it were lost.
func (c *control) seekGone() {
	for i := range c.ports {
		if !c.ports[i].Gone {
			continue
		}
		for index, l := range c.links {
			if l.name != c.ports[i].Name {
				continue
			}
			if _, ok := c.comeBack(index); ok {
				c.suspect = true // its MAC and its neighbours were passed over: read once more
				break
			}
		}
	}
}

// rebuild makes the paths of routes anew that lead by a netdev which was no port when they were made: it had another name.
func (c *control) rebuild(index int) {
	for i := range c.sets.info {
		s := &c.sets.info[i]
		if s.refs == 0 || s.kind != setOne && s.kind != setMulti || !slices.ContainsFunc(s.hops, func(h nextHop) bool { return h.index == index }) {
			continue
		}
		old := *c.sets.edit(uint32(i))
		*c.sets.edit(uint32(i)) = c.build(&routeEvent{kind: s.kind, hops: s.hops, mtu: s.mtu})
		c.leave(&old)
		c.bumpAll, c.suspect = true, true // and its neighbours were passed over
	}
}

// Attach says that a port's sockets are bound to the netdev with that number, which OnPort told to be Waiting. It returns an
// error when the port has another netdev by now.
func (t *Table) Attach(port uint16, index int) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	c := t.c
	if int(port) >= len(c.ports) {
		return fmt.Errorf("rtcache: there is no port %d", port)
	}
	p := &c.ports[port]
	if p.Gone || p.IfIndex != index {
		return fmt.Errorf("rtcache: port %s is not netdev %d any more", p.Name, index)
	}
	if !p.Waiting {
		return nil
	}
	p.Waiting, p.up = false, c.links[index].up
	p.Port.Up = p.up
	c.changed, c.portNews[port] = true, true
	c.refreshPort(port)
	c.publish() // OnPort is told by the control goroutine, which may be the one that waits for our caller
	t.poke()
	return nil
}
