package nat

import "pollux/internal/packet"

// A group is all links of one (alias address, alias port, protocol). It is the authority for what the exact index cannot
// say: which of several links with one inbound key is the newest, whether a mapping exists at all, whether one exists
// toward some remote address, and ordered walks.
//
// A small group is a list through cold.next, newest first, and needs no record: the group index points at its first link.
// A big one is a tree; the index then points at a treeGroup.
const (
	listMax = 8 // a longer list becomes a tree
	listMin = 5 // a smaller tree becomes a list
)

// treeBit in a value of the group index tells a treeGroup from a link.
const treeBit = 1 << 31

type treeGroup struct {
	root  uint32
	count uint32
	any   uint32 // some link of the group, the last one added if that is still there
	free  uint32 // list of free records
}

// groups finds groups by alias endpoint and protocol.
type groups struct {
	*links
	seed  *seed
	index index
	trees trees
	big   []treeGroup
	free  uint32
	fresh uint32
}

func (g *groups) init(m *memory, l *links, s *seed, n int) (err error) {
	g.links, g.seed = l, s
	if g.index.slots, err = table[uint64](m, n+n/3+8); err != nil {
		return err
	}
	if err = g.trees.init(m, n/5+64); err != nil {
		return err
	}
	g.big, err = table[treeGroup](m, n/listMin+2)
	g.fresh = 1
	return err
}

// group names a group found: its value in the index and the hash it stands under. The zero group is empty.
type group struct{ hash, value uint32 }

func (g *groups) hashOf(a Alias, proto uint8) uint32 {
	return g.seed.hash(uint64(a.Addr)<<16|uint64(a.Port), uint64(proto))
}

// find returns the group of an alias endpoint, with value 0 if it has no links.
func (g *groups) find(a Alias, proto uint8) group {
	h := g.hashOf(a, proto)
	x := &g.index
	for i := x.home(h); x.slots[i] != 0; i = x.next(i) {
		if uint32(x.slots[i]>>32) != h {
			continue
		}
		v := uint32(x.slots[i])
		k := &g.lines[2*g.head(v)+in].key
		if k.dst() == a.Addr && k.dport() == a.Port && k.proto() == proto {
			return group{h, v}
		}
	}
	return group{hash: h}
}

// of returns the group that a link belongs to.
func (g *groups) of(id uint32) group { return g.find(g.aliasOf(id), g.protoOf(id)) }

// head returns some link of the group: the newest of a list.
func (g *groups) head(v uint32) uint32 {
	if v&treeBit != 0 {
		return g.big[v&^treeBit].any
	}
	return v
}

func (g *groups) keyOf(id uint32) uint64 { return remoteKey(g.remoteOf(id)) }

// add puts a link, whose lines are filled, into its group as the newest and reports whether it is the first there.
func (g *groups) add(id uint32) (first bool) {
	gr := g.of(id)
	switch v := gr.value; {
	case v == 0:
		g.cold[id].next, g.cold[id].count = 0, 1
		g.index.insert(gr.hash, id)
		return true
	case v&treeBit != 0:
		g.addTree(&g.big[v&^treeBit], id)
	case g.cold[v].count < listMax:
		g.cold[id].next, g.cold[id].count = v, g.cold[v].count+1
		g.index.replace(gr.hash, v, id)
	default:
		b := g.grow(v)
		g.addTree(&g.big[b], id)
		g.index.replace(gr.hash, v, b|treeBit)
	}
	return false
}

func (g *groups) addTree(b *treeGroup, id uint32) {
	var older uint32
	b.root, older = g.trees.insert(b.root, g.keyOf(id), id)
	g.cold[id].next = older
	b.count++
	b.any = id
}

// grow makes a tree of the list that starts at head and returns its record.
func (g *groups) grow(head uint32) uint32 {
	id := g.free
	if id != 0 {
		g.free = g.big[id].free
	} else {
		id = g.fresh
		g.fresh++
	}
	b := &g.big[id]
	*b = treeGroup{root: g.trees.get(true)}
	var list [listMax]uint32
	n := 0
	for l := head; l != 0 && n < listMax; l = g.cold[l].next {
		list[n] = l
		n++
	}
	for n--; n >= 0; n-- { // oldest first, so that the newest ends up in front of its equals
		g.addTree(b, list[n])
	}
	return id
}

// remove takes a link out of its group.
func (g *groups) remove(gr group, id uint32) {
	v := gr.value
	next := g.cold[id].next
	if v&treeBit != 0 {
		b := &g.big[v&^treeBit]
		g.removeTree(b, id)
		if b.count < listMin { // a tree is given up before it is empty
			g.shrink(gr)
		}
		return
	}
	switch {
	case v == id && next == 0:
		g.index.remove(gr.hash, id)
	case v == id:
		g.cold[next].count = g.cold[id].count - 1
		g.index.replace(gr.hash, id, next)
	default:
		g.cold[v].count--
		g.unchain(v, id, next)
	}
}

// unchain takes id out of the chain that starts at l, before next.
func (g *groups) unchain(l, id, next uint32) {
	for ; l != 0; l = g.cold[l].next {
		if g.cold[l].next == id {
			g.cold[l].next = next
			return
		}
	}
}

func (g *groups) removeTree(b *treeGroup, id uint32) {
	key, next := g.keyOf(id), g.cold[id].next
	b.count--
	switch newest := g.trees.find(b.root, key); {
	case newest != id:
		g.unchain(newest, id, next)
	case next != 0:
		g.trees.set(b.root, key, next)
	default:
		b.root = g.trees.remove(b.root, key)
	}
	if b.any == id && b.root != 0 {
		if b.any = next; next == 0 {
			_, b.any = g.trees.ceil(b.root, key)
			if b.any == 0 {
				_, b.any = g.trees.ceil(b.root, 0)
			}
		}
	}
}

// shrink makes a list of a small tree: in order of remotes, equals newest first, which is all the order that matters then.
func (g *groups) shrink(gr group) {
	at := gr.value &^ treeBit
	b := &g.big[at]
	var ids [listMin]uint32
	n := 0
	for b.root != 0 {
		key, id := g.trees.ceil(b.root, 0)
		for ; id != 0 && n < listMin; id = g.cold[id].next {
			ids[n] = id
			n++
		}
		b.root = g.trees.remove(b.root, key)
	}
	for i := range n {
		g.cold[ids[i]].next = 0
		if i+1 < n {
			g.cold[ids[i]].next = ids[i+1]
		}
	}
	g.cold[ids[0]].count = uint8(n)
	g.index.replace(gr.hash, gr.value, ids[0])
	*b = treeGroup{free: g.free}
	g.free = at
}

// twin returns the newest other link with the inbound key of id, 0 if there is none.
func (g *groups) twin(gr group, id uint32) uint32 {
	l := gr.value
	if l&treeBit != 0 {
		l = g.trees.find(g.big[l&^treeBit].root, g.keyOf(id))
	}
	for ; l != 0; l = g.cold[l].next {
		if l != id && g.lines[2*l+in].key == g.lines[2*id+in].key {
			return l
		}
	}
	return 0
}

// after returns the link that follows in a walk of the group: by remote endpoint, equals newest first, for a tree; newest
// first for a list. id 0 starts; 0 ends.
func (g *groups) after(gr group, id uint32) uint32 {
	if id != 0 && g.cold[id].next != 0 {
		return g.cold[id].next
	}
	switch {
	case gr.value&treeBit == 0:
		if id == 0 {
			return gr.value
		}
		return 0
	case id == 0:
		_, id = g.trees.ceil(g.big[gr.value&^treeBit].root, 0)
	default:
		_, id = g.trees.ceil(g.big[gr.value&^treeBit].root, g.keyOf(id)+1)
	}
	return id
}

// toward returns a link of the group whose remote address is addr, other than skip; 0 if there is none.
func (g *groups) toward(gr group, addr packet.Addr, skip uint32) uint32 {
	l := gr.value
	if l&treeBit != 0 {
		_, l = g.trees.ceil(g.big[l&^treeBit].root, addrKey(addr))
	}
	for ; l != 0; l = g.after(gr, l) {
		switch r := g.remoteOf(l).Addr; {
		case r == addr && l != skip:
			return l
		case r > addr && gr.value&treeBit != 0:
			return 0
		}
	}
	return 0
}
