package pmd

import (
	"slices"
	"time"

	"pollux/internal/clock"
	"pollux/internal/packet"
	"pollux/internal/reason"
	"pollux/nat"
	"pollux/rtcache"
)

// Limits of the packets that wait for a neighbour.
const (
	HoldFrames = 1024 // in all, and never more than a quarter of the UMEM
	HoldPerHop = 256  // for one next hop
	holdTicks  = 5 * clock.PerSecond
	holdLook   = 100              // ticks between two looks when the kernel says nothing
	holdRetry  = time.Millisecond // likewise of a worker that sleeps in between
)

// hold keeps packets whose next hop is known but not its MAC address, in order of arrival. It is the worker's own; nothing
// is allocated after init.
type hold struct {
	n    int
	held []heldPacket
	hops []*rtcache.Hop // of held, apart: counting is a walk over these only

	epoch  uint32     // of the neighbours when all were looked at last
	looked clock.Tick // when that was
}

// heldPacket is one packet: p describes it after its last pass, sent as it was on the wire.
type heldPacket struct {
	p     nat.Packet
	sent  packet.Headers
	since clock.Tick
}

func (h *hold) init(frames int) {
	h.held = make([]heldPacket, frames)
	h.hops = make([]*rtcache.Hop, frames)
}

// wait keeps a packet until the neighbour of hop is resolved, and asks the kernel to resolve it. A packet that finds no
// room is dropped.
func (w *Worker) wait(p *nat.Packet, sent *packet.Headers, hop *rtcache.Hop, now clock.Tick) {
	h := &w.hold
	same := 0
	for _, other := range h.hops[:h.n] {
		if other == hop {
			same++
		}
	}
	w.routes.Want(hop)
	if same == HoldPerHop || h.n == len(h.held) {
		w.drop(p.Frame, p.Data, reason.NoNeighbour, false)
		return
	}
	if h.n == 0 {
		h.epoch, h.looked = w.table.ResolvedEpoch(), now
	}
	e := &h.held[h.n]
	e.p, e.sent, e.since = *p, *sent, now
	if p.Hop != nil {
		w.c.translated++
		e.p.Hop = nil // the link may be gone by then
	}
	h.hops[h.n] = hop
	h.n++
	w.c.held++
}

// look sends or ends what waits, if anything can have changed since the last look. ready is the hop of a packet that must
// not overtake those that wait for it, nil: none.
func (w *Worker) look(ready *rtcache.Hop, now clock.Tick) (work int) {
	h := &w.hold
	epoch := w.table.ResolvedEpoch()
	changing := epoch&1 != 0 && ready != nil && slices.Contains(h.hops[:h.n], ready)
	if epoch == h.epoch && !changing && now.Since(h.looked) < holdLook {
		return 0
	}
	h.epoch, h.looked = epoch, now
	n := h.n
	h.n = 0
	for i := range n {
		e := &h.held[i]
		p := &e.p
		hop, v := w.routeHeld(e)
		if v == rtcache.Unresolved {
			if now.Since(e.since) <= holdTicks {
				w.routes.Want(hop)
				if h.n != i {
					h.held[h.n] = *e
				}
				h.hops[h.n] = hop
				h.n++
				continue
			}
			v = rtcache.Failed
		}
		w.c.held--
		work++
		switch {
		case v == rtcache.OK && p.H.Kind == packet.KindIPv6:
			w.sendV6(p, hop, now)
			continue
		case p.H.Kind == packet.KindIPv6:
			w.unroutableV6(p, v, now)
			continue
		case v == rtcache.OK:
			w.send(p, &e.sent, hop, now)
			continue
		}
		packet.Restore(p.Data, &p.H)
		if p.Hairpin {
			packet.Restore(p.Data, &e.sent)
		}
		w.unroutable(p, &e.sent, v, now)
	}
	clear(h.hops[h.n:n])
	return work
}

// routeHeld routes a packet that waits once more, without the flow's slot: that may belong to another flow by now.
func (w *Worker) routeHeld(e *heldPacket) (*rtcache.Hop, rtcache.Verdict) {
	p := &e.p
	if p.H.Kind == packet.KindIPv6 {
		src, dst := addressesV6(p)
		return w.routes.RouteV6(nil, p.Ingress, src, dst, flowHashV6(p))
	}
	return w.routes.Route(nil, p.Ingress, e.sent.Src, destination(p), flowHash(&p.H))
}
