package nat

import (
	"math/bits"
	"unsafe"

	"pollux/internal/offheap"
	"pollux/internal/packet"
)

// burst is how many packets are staged together.
const burst = 64

// Touch brings what Translate will read of the whole burst near: first the index slots, then the lines. It changes nothing,
// and Translate is right without it; memory latency then adds up instead of overlapping.
func (s *Shard) Touch(b []Packet) {
	for len(b) > burst {
		s.touch(b[:burst])
		b = b[burst:]
	}
	s.touch(b)
}

func (s *Shard) touch(b []Packet) {
	var at [burst]uint32 // slots, then lines
	if len(b) > burst {  // never: but then the compiler knows, too
		return
	}
	slots, n := s.exact.slots, uint64(len(s.exact.slots))
	for i := range b {
		p := &b[i]
		key := plainKey(p)
		h := s.seed.tuple(key)
		p.ports, p.slot = key.ports, h
		at[i] = homeOf(h, n)
	}
	offheap.PrefetchIndexed(unsafe.Pointer(unsafe.SliceData(slots)), 8, at[:len(b)&(2*burst-1)])
	far := uint64(0)   // packets that the first two slots say nothing about, the first one highest: no branch, which would be
	for i := range b { // mispredicted too often
		p := &b[i]
		// The slot behind the last one is there, too: see Shard.padded.
		pair := (*[2]uint64)(unsafe.Add(unsafe.Pointer(unsafe.SliceData(slots)), 8*uintptr(at[i])))
		l, miss := candidate(pair, p.slot)
		p.slot = l
		at[i] = l
		_, carry := bits.Sub64(0, miss, 0)
		far, _ = bits.Add64(far, far, carry)
	}
	misses := 0
	for ; far != 0; far &= far - 1 {
		i := (len(b) - 1 - bits.TrailingZeros64(far)) & (burst - 1)
		p := &b[i]
		p.slot = s.distant(s.seed.tuple(plainKey(p)))
		at[i] = p.slot
		if p.slot == 0 {
			misses++
		}
	}
	offheap.PrefetchIndexed(unsafe.Pointer(unsafe.SliceData(s.lines)), unsafe.Sizeof(line{}), at[:len(b)&(2*burst-1)])
	if misses > 1 {
		s.touchMisses(b)
	}
}

// touchMisses brings near what the miss path will most likely read for the packets of a burst that no link was found for:
// host, mapping, the group of the alias endpoint, and if that is a tree the nodes down to the leaf, level by level for all
// packets together. It guesses (the port is kept, the first alias address is taken) and decides nothing.
//
//go:noinline
func (s *Shard) touchMisses(b []Packet) {
	var at [4 * burst]uintptr
	var group, host, head [burst]uint32 // hashes first, then what they lead to; a line of the group
	n := 0
	guess := s.defaultAlias()
	for i := range b {
		p := &b[i]
		h := &p.H
		if p.slot != 0 || h.Kind != packet.KindTCP && h.Kind != packet.KindUDP && h.Kind != packet.KindICMPQuery {
			continue
		}
		alias := Alias{h.Dst, h.DstPort}
		if p.Side == Inside {
			alias = Alias{guess, h.SrcPort}
			host[i&(burst-1)] = s.hosts.hashOf(h.Src)
			at[n&(4*burst-1)] = address(&s.hosts.index, host[i&(burst-1)])
			n++
			t := makeTuple(Outside, h.Dst, guess, h.DstPort, h.SrcPort, h.Proto, false)
			at[n&(4*burst-1)] = address(&s.exact, s.seed.tuple(t))
			n++
			if kind := s.mappingMode(h.Proto); kind != portPeer {
				at[n&(4*burst-1)] = address(&s.local, s.mappingHash(Local{h.Src, h.SrcPort}, h.Proto, kind, h.Dst))
				n++
			}
		}
		group[i&(burst-1)] = s.groups.hashOf(alias, h.Proto)
		at[n&(4*burst-1)] = address(&s.groups.index, group[i&(burst-1)])
		n++
	}
	offheap.Prefetch(at[:n])

	n = 0
	for i := range b {
		if host[i&(burst-1)] != 0 {
			id := first(&s.hosts.index, host[i&(burst-1)])
			host[i&(burst-1)] = id
			at[n&(4*burst-1)] = uintptr(unsafe.Pointer(&s.hosts.list[id]))
			n++
		}
		v := uint32(0)
		if group[i&(burst-1)] != 0 {
			v = first(&s.groups.index, group[i&(burst-1)])
		}
		group[i&(burst-1)] = 0
		if v&treeBit != 0 {
			group[i&(burst-1)] = s.groups.big[v&^treeBit].root
		}
		if v != 0 {
			l := 2*s.groups.head(v) + in
			head[i&(burst-1)] = l
			at[n&(4*burst-1)] = uintptr(unsafe.Pointer(&s.lines[l]))
			at[(n+1)&(4*burst-1)] = uintptr(unsafe.Pointer(&s.lines[l^1])) // when it was last used says whether there is a mapping still
			n += 2
		}
	}
	offheap.Prefetch(at[:n])

	n = 0
	for i := range b {
		if id := host[i&(burst-1)]; id != 0 { // outbound: the guess was wrong about the alias address
			h := &b[i].H
			if a := s.hosts.list[id].alias; a != 0 && a != guess {
				t := makeTuple(Outside, h.Dst, a, h.DstPort, h.SrcPort, h.Proto, false)
				at[n&(4*burst-1)] = address(&s.exact, s.seed.tuple(t))
				at[(n+1)&(4*burst-1)] = address(&s.groups.index, s.groups.hashOf(Alias{a, h.SrcPort}, h.Proto))
				n += 2
			}
		}
		// inbound: the outbound key of the link to come, if it goes where the group's links go
		if l := head[i&(burst-1)]; l != 0 && b[i].Side == Outside {
			h := &b[i].H
			t := makeTuple(Inside, s.lines[l].addr.host(), h.Src, s.lines[l].port.host(), h.SrcPort, h.Proto, false)
			at[n&(4*burst-1)] = address(&s.exact, s.seed.tuple(t))
			n++
		}
	}
	offheap.Prefetch(at[:n])
	s.touchTrees(b, &group, &at)
}

// touchTrees walks down the trees from the given roots, one level for all packets at a time.
func (s *Shard) touchTrees(b []Packet, root *[burst]uint32, at *[4 * burst]uintptr) {
	for range 16 {
		n := 0
		for i := range b {
			id := root[i&(burst-1)]
			if id == 0 {
				continue
			}
			nd := &s.groups.trees.nodes[id]
			root[i&(burst-1)] = 0
			if nd.leaf {
				continue
			}
			h := &b[i].H
			r := Remote{h.Src, h.SrcPort}
			if b[i].Side == Inside {
				r = Remote{h.Dst, h.DstPort}
			}
			id = nd.val[nd.child(remoteKey(r))&(nodeKeys-1)]
			root[i&(burst-1)] = id
			child := uintptr(unsafe.Pointer(&s.groups.trees.nodes[id]))
			at[n&(4*burst-1)], at[(n+1)&(4*burst-1)], at[(n+2)&(4*burst-1)], at[(n+3)&(4*burst-1)] = child, child+64, child+128, child+192
			n += 4
		}
		if n == 0 {
			return
		}
		offheap.Prefetch(at[:n])
	}
}

// address returns where the probe for a hash starts.
func address(x *index, h uint32) uintptr { return uintptr(unsafe.Pointer(&x.slots[x.home(h)])) }

// first returns the first value whose hash is h, 0 if there is none.
func first(x *index, h uint32) uint32 {
	for i := x.home(h); x.slots[i] != 0; i = x.next(i) {
		if uint32(x.slots[i]>>32) == h {
			return uint32(x.slots[i])
		}
	}
	return 0
}
