package rtcache

import (
	"math/bits"

	"pollux/internal/packet"
)

// Peek says what Route would answer for an IPv4 packet, and changes nothing: no slot, no counter, no request. Why is in words.
// It belongs to the view's worker, like Route.
func (v *View) Peek(slot *[2]uint64, ingress uint16, src, dst packet.Addr, hash uint32) (h *Hop, verdict Verdict, why string) {
	a := v.Attached()
	if slot != nil && a.Stamps.Current(slot, dst) && a.From(slot, ingress) {
		if h := a.At(slot); h.Usable() {
			return h, OK, "the flow's next hop, kept from before"
		}
	}
	snap, mode := v.t.snap.Load(), v.t.mode.Load()
	trusted := slot != nil && mode != modeOff && slot[0] != 0 && uint32(slot[0]>>32) == mode|uint32(ingress) && uint32(slot[1]>>32) == uint32(dst)
	if reverse := ReversePathMode(v.t.reverse.Load()); !trusted && reverse != Off && !snap.reverse(reverse, ingress, src.Netip()) {
		return nil, ReversePath, "the route back to the source does not leave by the port that the packet came in by (routing.reverse_path)"
	}
	if dst >= 224<<24 && dst < 240<<24 || dst == 0xffffffff {
		return nil, Local, "multicast and broadcast are the kernel's"
	}
	set, verdict := snap.lookup(dst.Netip())
	if verdict != OK {
		return nil, verdict, verdictWords[verdict]
	}
	h, verdict = v.peekPath(set, uint64(dst), hash)
	if why = verdictWords[verdict]; verdict == OK && set.kind == setMulti {
		why = "one of several next hops, by the flow's hash"
	}
	return h, verdict, why
}

var verdictWords = [...]string{
	OK:          "by the route to the destination",
	Unresolved:  "the next hop's MAC address is not known yet: the packet waits for it",
	NoRoute:     "no route leads to the destination by a port of the gateway",
	Unreachable: "the route to the destination is of type unreachable",
	Prohibit:    "the route to the destination is of type prohibit",
	Blackhole:   "the route to the destination is of type blackhole",
	ReversePath: "the route back to the source leaves by another port",
	Local:       "the destination is an address of the gateway's kernel",
	Failed:      "the next hop does not answer",
}

// peekPath is pick without a trace.
func (v *View) peekPath(s *pathSet, dst uint64, hash uint32) (*Hop, Verdict) {
	if s.kind != setMulti {
		return v.peekMember(&s.one, dst)
	}
	h, verdict := v.peekMember(s.choose(hash, nil, 0), dst)
	if verdict != Failed && h.state.Load()&stateLow != hopDead {
		return h, verdict
	}
	var usable [pathsMax]bool
	total := uint32(0)
	for i := range s.members {
		alt, av := v.peekMember(&s.members[i], dst)
		if av != Failed && alt.state.Load()&stateLow != hopDead {
			usable[i] = true
			total += s.members[i].weight
		}
	}
	if total == 0 {
		return h, verdict
	}
	hi32, _ := bits.Mul32(hash*0x9e3779b9|1, 0x85ebca6b)
	return v.peekMember(s.choose(hi32^bits.Reverse32(hash), &usable, total), dst)
}

// peekMember is member without a trace.
func (v *View) peekMember(m *path, dst uint64) (*Hop, Verdict) {
	i := m.hop
	if i == 0 {
		if i = v.t.onLinkV4.Load().findV4(uint32(dst), m.egress); i == 0 {
			return &v.hops[m.waiting], Unresolved
		}
	}
	h := &v.hops[i]
	switch h.state.Load() & stateLow {
	case hopReady:
		return h, OK
	case hopFailed:
		return h, Failed
	}
	return h, Unresolved
}
