package nat

import (
	"unsafe"

	"pollux/internal/clock"
	"pollux/internal/offheap"
)

// dueAhead is how many links that are due are touched together: what their removal reads comes from memory at the same time,
// instead of a cache miss after another for each.
const dueAhead = 32

// touchDue brings near what the removal of the links that are due next will read: lines, index slots, group, host. It returns
// how many it did, at least 1; it guesses and changes nothing, as Touch.
func (s *Shard) touchDue(now clock.Tick) int {
	var ids [dueAhead]uint32
	at, id := s.closing.first()
	if id == 0 || at.After(now) {
		if at, id = s.main.first(); id == 0 || at.After(now) {
			return 1
		}
	}
	n := 0
	for n < dueAhead && id != 0 && id&wheelBit == 0 {
		ids[n] = id
		n++
		id = s.cold[id].timer
	}
	if n < 4 {
		return max(n, 1)
	}
	due := ids[:n]
	var near [4 * burst]uintptr
	k := 0
	for _, id := range due {
		line := uintptr(unsafe.Pointer(&s.lines[2*id]))
		near[k&(4*burst-1)], near[(k+1)&(4*burst-1)] = line, line+unsafe.Sizeof(s.lines[0])
		k += 2
	}
	offheap.Prefetch(near[:k])

	var group, host [dueAhead]uint32 // hashes
	k = 0
	for i, id := range due {
		lo, li := &s.lines[2*id], &s.lines[2*id+1]
		group[i] = s.groups.hashOf(s.aliasOf(id), lo.key.proto())
		host[i] = s.hosts.hashOf(lo.key.src())
		near[k&(4*burst-1)] = address(&s.exact, s.seed.tuple(lo.key))
		near[(k+1)&(4*burst-1)] = address(&s.exact, s.seed.tuple(li.key))
		near[(k+2)&(4*burst-1)] = address(&s.groups.index, group[i])
		near[(k+3)&(4*burst-1)] = address(&s.hosts.index, host[i])
		k += 4
	}
	offheap.Prefetch(near[:k])

	var root [burst]uint32
	var key [burst]uint64
	k = 0
	for i, id := range due {
		near[k&(4*burst-1)] = uintptr(unsafe.Pointer(&s.hosts.list[first(&s.hosts.index, host[i])]))
		k++
		v := first(&s.groups.index, group[i])
		if v == 0 {
			continue
		}
		if v&treeBit != 0 {
			root[i], key[i] = s.groups.big[v&^treeBit].root, s.groups.keyOf(id)
			node := uintptr(unsafe.Pointer(&s.groups.trees.nodes[root[i]]))
			near[k&(4*burst-1)], near[(k+1)&(4*burst-1)] = node, node+64
			k += 2
		}
		head := s.groups.head(v)
		near[k&(4*burst-1)], near[(k+1)&(4*burst-1)] = uintptr(unsafe.Pointer(&s.lines[2*head+in])), uintptr(unsafe.Pointer(&s.cold[head]))
		k += 2
	}
	offheap.Prefetch(near[:k])
	s.touchDueTrees(n, &key, &root, &near)
	return n
}

// touchDueTrees is touchTrees for keys instead of packets: from the first n given roots (0: none) to the leaves, one level of
// all at a time. The two are apart because one for both made new links 6 % slower.
func (s *Shard) touchDueTrees(n int, key *[burst]uint64, root *[burst]uint32, at *[4 * burst]uintptr) {
	for range 16 {
		k := 0
		for i := range n {
			id := root[i&(burst-1)]
			if id == 0 {
				continue
			}
			nd := &s.groups.trees.nodes[id]
			root[i&(burst-1)] = 0
			if nd.leaf {
				continue
			}
			id = nd.val[nd.child(key[i&(burst-1)])&(nodeKeys-1)]
			root[i&(burst-1)] = id
			child := uintptr(unsafe.Pointer(&s.groups.trees.nodes[id]))
			at[k&(4*burst-1)], at[(k+1)&(4*burst-1)], at[(k+2)&(4*burst-1)], at[(k+3)&(4*burst-1)] = child, child+64, child+128, child+192
			k += 4
		}
		if k == 0 {
			return
		}
		offheap.Prefetch(at[:k])
	}
}
