package rtcache

import (
	"encoding/binary"
	"math/bits"
	"net/netip"
	"sync/atomic"
	"unsafe"

	"pollux/internal/packet"
)

// View is one worker's door to a Table. It belongs to that worker: no other goroutine may call its methods or touch C.
//
// A slot is what a flow carries per direction, all zero: nothing attached.
//
//	slot[0]  mode | ingress (16) << 32 | hop index (32)    mode (16): the Table's way of checking when it was stored
//	slot[1]  destination (32: IPv4, or a hash of IPv6) << 32 | stamp (32)
//
// It is reused when both words still hold: two compares, one load of the bucket's stamp, one of the hop's state.
type View struct {
	C Counters // plain words, written by Route; the owner publishes them

	t      *Table
	stamps *stamps
	hops   []Hop
	ask    requests
	last   request // pushed last
}

// Counters count what Route did, by cause. All packets: Hits + the misses. Where the route changed or the hop did, the flow was
// only revalidated: it skips the reverse-path check.
type Counters struct {
	Hits           uint64 `json:"hits"`            // the attached next hop was reused
	Unattached     uint64 `json:"unattached"`      // miss: the flow had no next hop yet
	NoSlot         uint64 `json:"no_slot"`         // miss: the packet belongs to no flow
	RouteChanged   uint64 `json:"route_changed"`   // miss: a route that covers the destination's bucket changed
	IngressChanged uint64 `json:"ingress_changed"` // miss: the flow came in by another port
	HopChanged     uint64 `json:"hop_changed"`     // miss: the attached next hop is not usable now, or not marked as used since the last sweep
	ModeChanged    uint64 `json:"mode_changed"`    // miss: the reverse-path mode changed, or the slot belongs to another destination
	CacheOff       uint64 `json:"cache_off"`       // miss: the cache is switched off
	ReverseChecked uint64 `json:"reverse_checked"` // reverse-path lookups made
	ReverseFailed  uint64 `json:"reverse_failed"`  // and failed
	Requests       uint64 `json:"requests"`        // asked the control goroutine for an on-link host's hop or to resolve one
	RequestsFull   uint64 `json:"requests_full"`   // could not ask now: the ring was full; the packet is Unresolved all the same
}

// Attached reads the next hops that flows carry. It is a copy of what does not change within a burst; take a new one with
// View.Attached for each.
type Attached struct {
	Stamps Stamps
	hops   *Hop // the first of n: no slice, so that the whole fits into registers
	n      uint32
	mode   uint64
}

// Stamps tell whether routes have changed.
type Stamps struct{ v4 *[1 << 16]atomic.Uint32 }

// Attached returns the reader for a burst.
func (v *View) Attached() Attached {
	return Attached{Stamps{&v.stamps.v4}, unsafe.SliceData(v.hops), uint32(len(v.hops)), uint64(v.t.mode.Load())}
}

// Current reports whether what a flow carries is for this destination, and no route that concerns it has changed since.
func (s Stamps) Current(slot *[2]uint64, dst packet.Addr) bool {
	return slot[1] == uint64(dst)<<32|uint64(s.v4[dst>>16].Load())
}

// From reports whether what a flow carries is for packets that come in by this port. The answer is that for every slot
// with the same first word.
func (a Attached) From(slot *[2]uint64, ingress uint16) bool {
	return slot[0]>>32 == a.mode|uint64(ingress) && uint32(slot[0]) < a.n
}

// At is the next hop of a slot that is Current and From the packet's port; slots with the same first word have the same. If it
// is not Usable, or the slot is not for the packet, ask Route. It counts nothing: the caller adds its hits to View.C.
func (a Attached) At(slot *[2]uint64) *Hop {
	return (*Hop)(unsafe.Add(unsafe.Pointer(a.hops), uintptr(uint32(slot[0]))*unsafe.Sizeof(Hop{})))
}

// Route gives the next hop of a packet. slot is the flow's, nil: none; src as received (for the reverse-path check), dst
// as it will be sent; hash spreads flows over equal paths. The Hop is not nil with OK, Unresolved and Failed; it may be used until
// the end of the burst. It never blocks or allocates.
//
// With Unresolved, keep the packet and route it again when Table.ResolvedEpoch has changed (or after a while): the hop
// may be the port's waiting hop, shared by all new on-link hosts until the control goroutine has made theirs.
func (v *View) Route(slot *[2]uint64, ingress uint16, src, dst packet.Addr, hash uint32) (*Hop, Verdict) {
	if slot != nil && slot[1] == uint64(dst)<<32|uint64(v.stamps.v4[uint16(dst>>16)].Load()) &&
		uint32(slot[0]>>32) == v.t.mode.Load()|uint32(ingress) {
		if h := &v.hops[uint32(slot[0])]; h.state.Load() == hopHit {
			v.C.Hits++
			return h, OK
		}
	}
	return v.missV4(slot, ingress, src, dst, hash)
}

//go:noinline
func (v *View) missV4(slot *[2]uint64, ingress uint16, src, dst packet.Addr, hash uint32) (*Hop, Verdict) {
	stamp := v.stamps.v4[uint16(dst>>16)].Load() // before the tables, see stamps
	mode := v.t.mode.Load()
	snap := v.t.snap.Load()
	trusted := v.cause(slot, ingress, uint32(dst), stamp, mode)
	if !trusted && !v.reverse(snap, ingress, src.Netip()) {
		return nil, ReversePath
	}
	if dst >= 224<<24 && dst < 240<<24 || dst == 0xffffffff {
		return nil, Local
	}
	set, verdict := snap.lookup(dst.Netip())
	if verdict != OK {
		return nil, verdict
	}
	h, verdict := v.pick(snap, set, 0, uint64(dst), false, hash)
	v.store(slot, h, verdict, ingress, uint32(dst), stamp, mode)
	return h, verdict
}

// RouteV6 is Route for IPv6. Link-local addresses are the host's business: Local.
func (v *View) RouteV6(slot *[2]uint64, ingress uint16, src, dst *[16]byte, hash uint32) (*Hop, Verdict) {
	hi, lo := binary.BigEndian.Uint64(dst[:8]), binary.BigEndian.Uint64(dst[8:])
	tag := tagV6(hi, lo)
	stamp := v.stamps.v6[bucketV6(hi)].Load()
	if slot != nil && slot[1] == uint64(tag)<<32|uint64(stamp) && uint32(slot[0]>>32) == v.t.mode.Load()|uint32(ingress) {
		if h := &v.hops[uint32(slot[0])]; h.state.Load() == hopHit {
			v.C.Hits++
			return h, OK
		}
	}
	return v.missV6(slot, ingress, src, dst, hash)
}

//go:noinline
func (v *View) missV6(slot *[2]uint64, ingress uint16, src, dst *[16]byte, hash uint32) (*Hop, Verdict) {
	hi, lo := binary.BigEndian.Uint64(dst[:8]), binary.BigEndian.Uint64(dst[8:])
	tag := tagV6(hi, lo)
	stamp := v.stamps.v6[bucketV6(hi)].Load()
	mode := v.t.mode.Load()
	snap := v.t.snap.Load()
	trusted := v.cause(slot, ingress, tag, stamp, mode)
	const linkLocal = 0xfe80 >> 6
	if dst[0] == 0xff || hi>>54 == linkLocal || binary.BigEndian.Uint16(src[:2])>>6 == linkLocal {
		return nil, Local
	}
	if !trusted && !v.reverse(snap, ingress, netip.AddrFrom16(*src)) {
		return nil, ReversePath
	}
	set, verdict := snap.lookup(netip.AddrFrom16(*dst))
	if verdict != OK {
		return nil, verdict
	}
	h, verdict := v.pick(snap, set, hi, lo, true, hash)
	v.store(slot, h, verdict, ingress, tag, stamp, mode)
	return h, verdict
}

// cause counts why the slot was not reused and tells whether the flow may skip the reverse-path check: it came in by the
// port that was checked before.
func (v *View) cause(slot *[2]uint64, ingress uint16, tag, stamp, mode uint32) (trusted bool) {
	switch {
	case slot == nil:
		v.C.NoSlot++
	case mode == modeOff:
		v.C.CacheOff++
	case slot[0] == 0:
		v.C.Unattached++
	case uint32(slot[0]>>32)&^0xffff != mode || uint32(slot[1]>>32) != tag:
		v.C.ModeChanged++
	case uint16(slot[0]>>32) != ingress:
		v.C.IngressChanged++
	case uint32(slot[1]) != stamp:
		v.C.RouteChanged++
		return true
	default:
		v.C.HopChanged++
		return true
	}
	return false
}

func (v *View) store(slot *[2]uint64, h *Hop, verdict Verdict, ingress uint16, tag, stamp, mode uint32) {
	if slot == nil || verdict != OK || mode == modeOff {
		return
	}
	slot[0] = uint64(mode|uint32(ingress))<<32 | uint64(h.index)
	slot[1] = uint64(tag)<<32 | uint64(stamp)
}

func (v *View) reverse(snap *snapshot, ingress uint16, src netip.Addr) bool {
	mode := ReversePathMode(v.t.reverse.Load())
	if mode == Off {
		return true
	}
	v.C.ReverseChecked++
	if snap.reverse(mode, ingress, src) {
		return true
	}
	v.C.ReverseFailed++
	return false
}

// reverse is the reverse-path check of one source address (RFC 3704 2.2, 2.4).
func (s *snapshot) reverse(mode ReversePathMode, ingress uint16, src netip.Addr) bool {
	set, verdict := s.lookup(src)
	return verdict == OK && set.leavesBy(ingress, mode) || verdict == NoRoute && set != nil && mode == Loose
}

// ReversePathOK makes the reverse-path check alone, for whoever must know before a flow has state. Any goroutine may ask.
func (t *Table) ReversePathOK(ingress uint16, src packet.Addr) bool {
	mode := ReversePathMode(t.reverse.Load())
	return mode == Off || t.snap.Load().reverse(mode, ingress, src.Netip())
}

// pick chooses the hop of one packet among a route's paths.
func (v *View) pick(snap *snapshot, s *pathSet, hi, lo uint64, v6 bool, hash uint32) (*Hop, Verdict) {
	if s.kind != setMulti {
		return v.member(&s.one, hi, lo, v6)
	}
	// The flow's first choice depends on weights alone, so that a path that comes or goes moves only its own flows.
	m := s.choose(hash, nil, 0)
	h, verdict := v.member(m, hi, lo, v6)
	if verdict != Failed && h.state.Load()&stateLow != hopDead {
		return h, verdict
	}
	var usable [pathsMax]bool
	total := uint32(0)
	for i := range s.members {
		alt, av := v.member(&s.members[i], hi, lo, v6)
		if av != Failed && alt.state.Load()&stateLow != hopDead {
			usable[i] = true
			total += s.members[i].weight
		}
	}
	if total == 0 {
		return h, verdict
	}
	hi32, _ := bits.Mul32(hash*0x9e3779b9|1, 0x85ebca6b)
	return v.member(s.choose(hi32^bits.Reverse32(hash), &usable, total), hi, lo, v6)
}

// member gives the hop of one path and whether it is ready.
func (v *View) member(m *path, hi, lo uint64, v6 bool) (*Hop, Verdict) {
	i := m.hop
	if i == 0 { // on-link: the destination is the neighbour
		if v6 {
			i = v.t.onLinkV6.Load().findV6(hi, lo, m.egress, v.hops)
		} else {
			i = v.t.onLinkV4.Load().findV4(uint32(lo), m.egress)
		}
		if i == 0 {
			v.request(request{egress: m.egress, v6: v6, hi: hi, lo: lo})
			return &v.hops[m.waiting], Unresolved
		}
	}
	h := &v.hops[i]
	switch h.use() {
	case hopReady:
		return h, OK
	case hopFailed:
		return h, Failed
	}
	return h, Unresolved // also when dead: the routes that replace it are on their way
}

// Want asks the kernel, through the control goroutine, to resolve a hop that Route called Unresolved. It never blocks and
// may be called for every packet.
func (v *View) Want(h *Hop) {
	if h.state.Load()&stateLow == hopUnresolved && h.hi.Load()|h.lo.Load() != 0 && h.wanted.CompareAndSwap(0, 1) {
		v.request(request{hop: h.index})
	}
}

func (v *View) request(q request) {
	if q == v.last && !v.ask.empty() {
		return // a burst to one new host asks once
	}
	if !v.ask.push(&q) {
		v.C.RequestsFull++
		return
	}
	v.last = q
	v.C.Requests++
	v.t.wake()
}
