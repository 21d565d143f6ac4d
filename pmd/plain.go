package pmd

import (
	"math/bits"

	"pollux/internal/packet"
)

// plainFlows is how many flows without a link keep their next hop, for each address family.
const plainFlows = 1 << 14

// plain are the flow entries of packets that belong to no link: inside to inside, exempt destinations, IPv6. An entry is
// found by the flow's hash alone and holds the addresses whole: of two flows that share a place, each takes it from the
// other and pays a lookup, and none can ever use, or pass the reverse-path check by, what was found for the other.
// Entries hold no pointers; they are the worker's own.
type plain struct {
	v4 []plainFlow
	v6 []plainFlowV6 // nil unless IPv6 is forwarded
}

type plainFlow struct {
	slot     [2]uint64 // rtcache's
	src, dst packet.Addr
	hash     uint32
	_        uint32
}

type plainFlowV6 struct {
	slot [2]uint64
	src  [16]byte
	dst  [16]byte
	hash uint32
	_    [12]byte
}

func (p *plain) init(v6 bool) {
	p.v4 = make([]plainFlow, plainFlows)
	if v6 {
		p.v6 = make([]plainFlowV6, plainFlows)
	}
}

// slot is the place of a flow's next hop, empty when another flow had it. src is as received and dst as sent.
func (p *plain) slot(src, dst packet.Addr, hash uint32) *[2]uint64 {
	e := &p.v4[hash%plainFlows]
	if e.src != src || e.dst != dst || e.hash != hash {
		*e = plainFlow{src: src, dst: dst, hash: hash}
	}
	return &e.slot
}

func (p *plain) slotV6(src, dst *[16]byte, hash uint32) *[2]uint64 {
	e := &p.v6[hash%plainFlows]
	if e.src != *src || e.dst != *dst || e.hash != hash {
		*e = plainFlowV6{src: *src, dst: *dst, hash: hash}
	}
	return &e.slot
}

// mix brings a product of two words down to 32 bits that all depend on all of them.
func mix(a, b uint64) uint32 {
	hi, lo := bits.Mul64(a^0x9e3779b97f4a7c15, b^0xd6e8feb86659fd93)
	x := (hi ^ lo) * 0x9e3779b97f4a7c15
	return uint32(x >> 32)
}
