package nat

import (
	"unsafe"

	"pollux/internal/packet"
)

// nodeKeys is the fan-out of the B+tree: 16 keys of 8 bytes are two cache lines.
const nodeKeys = 16

// node is a leaf (val are link ids) or an inner node (val are nodes; keys[i] is a lower bound of what lies below val[i],
// except keys[0], which is not looked at).
type node struct {
	keys [nodeKeys]uint64
	val  [nodeKeys]uint32
	n    uint16
	leaf bool
}

const _ = -(unsafe.Sizeof(node{}) ^ 200)

// trees is the pool of nodes of all big groups. A tree orders the full links of one group by remote endpoint; links with
// the same remote hang off one key, chained newest first through cold.next, so that the newest is what a search finds and
// removing it uncovers the one before.
//
// Insertion unloads or splits full nodes and removal fills up half-empty ones on the way down, so both are one pass and
// O(log n). All nodes are at least half full but those on the right edge, where a full node is split 15:1 because remotes that come
// in ascending order would leave nothing but half-full nodes behind.
type trees struct {
	nodes []node
	free  uint32 // list through val[0]
	fresh uint32
}

func (t *trees) init(m *memory, n int) (err error) {
	t.nodes, err = table[node](m, n+1)
	t.fresh = 1
	return err
}

func (t *trees) get(leaf bool) uint32 {
	id := t.free
	if id != 0 {
		t.free = t.nodes[id].val[0]
	} else {
		id = t.fresh
		t.fresh++
	}
	n := &t.nodes[id]
	n.n, n.leaf = 0, leaf
	return id
}

func (t *trees) put(id uint32) {
	t.nodes[id].val[0] = t.free
	t.free = id
}

// remoteKey orders remotes by address, then port.
func remoteKey(r Remote) uint64 { return uint64(r.Addr)<<16 | uint64(r.Port) }

func addrKey(a packet.Addr) uint64 { return uint64(a) << 16 }

// below returns how many keys of a node are less than or equal to k.
func (n *node) below(k uint64) int {
	i := 0
	for i < int(n.n)&31 && i < nodeKeys && n.keys[i] <= k {
		i++
	}
	return i
}

// child returns the position of the child that k belongs to.
func (n *node) child(k uint64) int {
	if i := n.below(k); i > 0 {
		return i - 1
	}
	return 0
}

// find returns the newest link with remote key k, 0 if there is none.
func (t *trees) find(root uint32, k uint64) uint32 {
	n := &t.nodes[root]
	for !n.leaf {
		n = &t.nodes[n.val[n.child(k)]]
	}
	if i := n.below(k); i > 0 && n.keys[i-1] == k {
		return n.val[i-1]
	}
	return 0
}

// ceil returns the smallest remote key >= k and its newest link; 0 if there is none.
func (t *trees) ceil(root uint32, k uint64) (key uint64, id uint32) {
	right := uint32(0) // the subtree just right of the path
	n := &t.nodes[root]
	for !n.leaf {
		i := n.child(k)
		if i+1 < int(n.n) {
			right = n.val[i+1]
		}
		n = &t.nodes[n.val[i]]
	}
	for i := range int(n.n) {
		if n.keys[i] >= k {
			return n.keys[i], n.val[i]
		}
	}
	if right == 0 {
		return 0, 0
	}
	for n = &t.nodes[right]; !n.leaf; {
		n = &t.nodes[n.val[0]]
	}
	return n.keys[0], n.val[0]
}

// insert adds link id under key k and returns the root, which may be a new one. older is the link that was the newest
// with this key before, 0 if none: the caller chains id in front of it.
func (t *trees) insert(root uint32, k uint64, id uint32) (newRoot, older uint32) {
	if t.nodes[root].n == nodeKeys {
		top := t.get(false)
		n := &t.nodes[top]
		n.n, n.val[0], n.keys[0] = 1, root, 0
		t.split(n, 0, k)
		root = top
	}
	n := &t.nodes[root]
	edge := true // on the right edge so far
	for !n.leaf {
		i := n.child(k)
		edge = edge && i == int(n.n)-1
		if t.nodes[n.val[i]].n == nodeKeys {
			switch {
			case edge && k > t.nodes[n.val[i]].keys[nodeKeys-1]:
				t.split(n, i, k)
			case t.shed(n, i):
				i = n.child(k)
				n = &t.nodes[n.val[i]]
				continue
			default:
				t.split(n, i, 0)
			}
			if k >= n.keys[i+1] {
				i++
			}
		}
		n = &t.nodes[n.val[i]]
	}
	i := n.below(k)
	if i > 0 && n.keys[i-1] == k {
		older = n.val[i-1]
		n.val[i-1] = id
		return root, older
	}
	n.open(i)
	n.keys[i], n.val[i] = k, id
	return root, 0
}

// open makes room at position i.
func (n *node) open(i int) {
	copy(n.keys[i+1:n.n+1], n.keys[i:n.n])
	copy(n.val[i+1:n.n+1], n.val[i:n.n])
	n.n++
}

// close takes position i out.
func (n *node) close(i int) {
	copy(n.keys[i:], n.keys[i+1:n.n])
	copy(n.val[i:], n.val[i+1:n.n])
	n.n--
}

// split divides the full child at position i of p, which has room: in halves, or 15:1 when k lies beyond its last key.
func (t *trees) split(p *node, i int, k uint64) {
	l := &t.nodes[p.val[i]]
	at := nodeKeys / 2
	if k > l.keys[nodeKeys-1] {
		at = nodeKeys - 1
	}
	id := t.get(l.leaf)
	r := &t.nodes[id]
	r.n = uint16(copy(r.keys[:], l.keys[at:]))
	copy(r.val[:], l.val[at:])
	l.n = uint16(at)
	p.open(i + 1)
	p.keys[i+1], p.val[i+1] = r.keys[0], id
}

// set makes id the newest link of key k, which exists.
func (t *trees) set(root uint32, k uint64, id uint32) {
	n := &t.nodes[root]
	for !n.leaf {
		n = &t.nodes[n.val[n.child(k)]]
	}
	if i := n.below(k); i > 0 && n.keys[i-1] == k {
		n.val[i-1] = id
	}
}

// remove takes key k out and returns the root, 0 when the tree is empty.
func (t *trees) remove(root uint32, k uint64) uint32 {
	n := &t.nodes[root]
	for !n.leaf {
		i := n.child(k)
		if t.nodes[n.val[i]].n <= nodeKeys/2 && n.n > 1 {
			i = t.refill(n, i, k)
		}
		n = &t.nodes[n.val[i]]
	}
	if i := n.below(k); i > 0 && n.keys[i-1] == k {
		n.close(i - 1)
	}
	for top := &t.nodes[root]; ; top = &t.nodes[root] {
		switch {
		case top.n == 0:
			t.put(root)
			return 0
		case top.n > 1 || top.leaf:
			return root
		}
		child := top.val[0]
		t.put(root)
		root = child
	}
}

// refill gives the child at position i of p more than half its keys, by merging it with a neighbour or taking one over,
// and returns the position of the child that k belongs to now.
func (t *trees) refill(p *node, i int, k uint64) int {
	if i == int(p.n)-1 {
		i--
	}
	l, r := &t.nodes[p.val[i]], &t.nodes[p.val[i+1]]
	switch {
	case l.n+r.n <= nodeKeys:
		t.moveLeft(p, i, int(r.n))
		t.put(p.val[i+1])
		p.close(i + 1)
		return i
	case l.n < r.n:
		t.moveLeft(p, i, 1)
	default:
		t.moveRight(p, i, 1)
	}
	if k >= p.keys[i+1] {
		return i + 1
	}
	return i
}

// shed makes room in the full child at position i of p by moving keys to a neighbour, if one has room for at least two:
// that keeps nodes fuller than splitting at once does.
func (t *trees) shed(p *node, i int) bool {
	if i > 0 {
		if room := nodeKeys - int(t.nodes[p.val[i-1]].n); room > 1 {
			t.moveLeft(p, i-1, (room+1)/2)
			return true
		}
	}
	if i+1 < int(p.n) {
		if room := nodeKeys - int(t.nodes[p.val[i+1]].n); room > 1 {
			t.moveRight(p, i, (room+1)/2)
			return true
		}
	}
	return false
}

// moveLeft moves the first n keys of the child at i+1 of p to the end of the child at i, moveRight the last n keys back.

func (t *trees) moveLeft(p *node, i, n int) {
	l, r := &t.nodes[p.val[i]], &t.nodes[p.val[i+1]]
	if !r.leaf {
		r.keys[0] = p.keys[i+1] // it is looked at from here on
	}
	copy(l.keys[l.n:], r.keys[:n])
	copy(l.val[l.n:], r.val[:n])
	l.n += uint16(n)
	r.n = uint16(copy(r.keys[:], r.keys[n:r.n]))
	copy(r.val[:], r.val[n:n+int(r.n)])
	p.keys[i+1] = r.keys[0]
}

func (t *trees) moveRight(p *node, i, n int) {
	l, r := &t.nodes[p.val[i]], &t.nodes[p.val[i+1]]
	if !r.leaf {
		r.keys[0] = p.keys[i+1]
	}
	copy(r.keys[n:], r.keys[:r.n])
	copy(r.val[n:], r.val[:r.n])
	l.n -= uint16(n)
	copy(r.keys[:n], l.keys[l.n:])
	copy(r.val[:n], l.val[l.n:])
	r.n += uint16(n)
	p.keys[i+1] = r.keys[0]
}
