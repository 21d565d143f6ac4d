package pmd

import (
	"pollux/internal/clock"
	"pollux/internal/packet"
	"pollux/internal/reason"
	"pollux/nat"
	"pollux/rtcache"
)

// translate is stage 5: the shard rewrites the burst. Afterwards only packets whose Verdict is Forward go on; all others
// have been dealt with.
func (w *Worker) translate(b []nat.Packet, now clock.Tick) {
	if len(b) == 0 {
		return
	}
	if w.nat.Translate(b, now) == 0 {
		return
	}
	for i := range b {
		if b[i].Verdict != nat.Forward {
			w.judge(b, i, now)
		}
	}
}

// judge deals with every verdict but Forward.
//
//go:noinline
func (w *Worker) judge(b []nat.Packet, i int, now clock.Tick) {
	p := &b[i]
	if p.Verdict == nat.Again {
		// Hairpin: the translated packet comes in once more, from the outside, as its receiver will see it. Once only: an
		// Again about a packet that is in its second pass would be a loop.
		if p.Hairpin {
			p.Verdict, p.Reason = nat.Drop, reason.Unsupported
		} else {
			w.first[i] = p.H
			p.Side, p.Hairpin, p.Directed = nat.Outside, true, false
			packet.Parse(p.Data, &p.H)
			if w.steerAgain(p, i) {
				gone(p)
				return
			}
			w.nat.Translate(b[i:i+1], now)
		}
	}
	if (p.Verdict == nat.Drop || p.Verdict == nat.Answer) && w.lost(p, i, now) {
		gone(p)
		return
	}
	switch p.Verdict {
	case nat.Forward:
		return
	case nat.Keep:
		w.c.held++
	case nat.Away:
		w.handOver(p, &w.first[i], uint32(p.Owner), byFragment, true)
	case nat.Host:
		w.unrewrite(p, i, false)
		w.host(p)
	case nat.Answer:
		w.unrewrite(p, i, false)
		w.answer(p, w.asSent(p, i), p.Reason, p.ICMPType, p.ICMPCode, 0, now)
	default:
		w.drop(p.Frame, p.Data, p.Reason, false)
	}
	gone(p)
}

// gone marks a packet that has been dealt with: its frame is no longer this burst's.
func gone(p *nat.Packet) { p.Verdict, p.Hop = nat.Drop, nil }

// lost ends a refused packet whose destination the translator knows nothing of: neither mapping nor usable route. It is one
// of the gateway's own addresses, or the routes know better why not. False: the translator's word holds.
func (w *Worker) lost(p *nat.Packet, i int, now clock.Tick) bool {
	sent := w.asSent(p, i)
	switch p.Reason {
	case reason.NoMapping:
		if !w.table.Local(p.H.Dst) {
			return false
		}
		w.unrewrite(p, i, false)
		w.host(p)
		return true
	case reason.NoRoute:
		_, v := w.routes.Route(nil, p.Ingress, sent.Src, p.H.Dst, 0)
		if v == rtcache.OK || v == rtcache.Unresolved {
			return false // the route has just come
		}
		w.unrewrite(p, i, false)
		w.unroutable(p, sent, v, now)
		return true
	}
	return false
}

// asSent returns the headers that a packet of the burst had on the wire.
func (w *Worker) asSent(p *nat.Packet, i int) *packet.Headers {
	if p.Hairpin && w.first[i].Kind != packet.KindNone {
		return &w.first[i]
	}
	return &p.H
}

// unrewrite makes packet i of the burst what it was on the wire. translated says whether the last pass rewrote it.
func (w *Worker) unrewrite(p *nat.Packet, i int, translated bool) {
	if translated {
		packet.Restore(p.Data, &p.H)
	}
	if h := w.asSent(p, i); h != &p.H {
		packet.Restore(p.Data, h)
	}
}
