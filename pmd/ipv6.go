package pmd

import (
	"encoding/binary"

	"pollux/internal/clock"
	"pollux/internal/packet"
	"pollux/internal/reason"
	"pollux/nat"
	"pollux/rings"
	"pollux/rtcache"
)

// six are the IPv6 packets of a burst that are to be forwarded. They leave the burst after parsing, because the translator
// has no business with them, and take the same way out: next hops, hold queue, transmit rings. The XDP program has left
// link-local and group destinations and the kernel's own addresses, so all of neighbour discovery, to the kernel.
type six struct {
	on    bool // routing.ipv6: forward
	n     int
	burst [BurstFrames]nat.Packet
}

func (s *six) add(p *nat.Packet) {
	q := &s.burst[s.n]
	q.Data, q.H, q.Frame, q.Ingress, q.Side, q.Hairpin, q.Hop = p.Data, p.H, p.Frame, p.Ingress, p.Side, false, nil
	s.n++
}

// addressesV6 are the two addresses of an IPv6 packet, in its frame.
func addressesV6(p *nat.Packet) (src, dst *[16]byte) {
	b := p.Data[p.H.L3:]
	return (*[16]byte)(b[8:24]), (*[16]byte)(b[24:40])
}

// forwardIPv6 routes the IPv6 packets of the burst.
func (w *Worker) forwardIPv6(now clock.Tick) {
	for i := range w.six.n {
		p := &w.six.burst[i]
		if !packet.HostSourceIPv6(p.Data, &p.H) {
			w.drop(p.Frame, p.Data, reason.BadSource, false)
			continue
		}
		src, dst := addressesV6(p)
		hash := flowHashV6(p)
		hop, v := w.routes.RouteV6(w.plain.slotV6(src, dst, hash), p.Ingress, src, dst, hash)
		if v == rtcache.OK && w.hold.n > 0 {
			w.look(hop, now) // if this hop has just become usable, those that came before go first
		}
		switch {
		case linkLocalV6(src) && !linkLocalV6(dst) && !w.table.LocalV6(dst):
			// Nobody beyond the link could answer it (RFC 4291 2.5.6).
			w.answerV6(p, reason.BadSource, packet.ICMPv6Unreachable, packet.ICMPv6BeyondScope, 0, now)
		case v != rtcache.OK && v != rtcache.Unresolved && v != rtcache.Failed:
			w.unroutableV6(p, v, now)
		case p.H.TTL <= 1:
			w.answerV6(p, reason.TTLExpired, packet.ICMPv6TimeExceeded, 0, 0, now)
		case v == rtcache.OK:
			w.sendV6(p, hop, now)
		case v == rtcache.Unresolved:
			w.wait(p, &p.H, hop, now)
		default:
			w.unroutableV6(p, v, now)
		}
	}
	w.six.n = 0
}

// sendV6 puts an IPv6 packet in line for a usable hop. Routers do not fragment IPv6: what is too long is answered.
func (w *Worker) sendV6(p *nat.Packet, hop *rtcache.Hop, now clock.Tick) {
	if mtu := hop.MTU(); int(p.H.Len) > mtu {
		w.answerV6(p, reason.MTUExceeded, packet.ICMPv6TooBig, 0, uint32(mtu), now)
		return
	}
	p.Data[p.H.L3+7]-- // the hop limit, which no checksum covers
	hop.WriteMACs(p.Data)
	w.line(hop.Port(), p)
}

// unroutableV6 ends a packet that has no next hop, with the codes that the kernel would send for it.
func (w *Worker) unroutableV6(p *nat.Packet, v rtcache.Verdict, now clock.Tick) {
	code := uint8(packet.ICMPv6NoRoute)
	why := reason.NoRoute
	switch v {
	case rtcache.Local:
		w.host(p)
		return
	case rtcache.ReversePath:
		w.drop(p.Frame, p.Data, reason.ReversePath, false)
		return
	case rtcache.Blackhole:
		w.drop(p.Frame, p.Data, reason.NoRoute, false)
		return
	case rtcache.Prohibit:
		code = packet.ICMPv6Prohibited
	case rtcache.Failed:
		code, why = packet.ICMPv6AddressUnreachable, reason.NoNeighbour
	}
	w.answerV6(p, why, packet.ICMPv6Unreachable, code, 0, now)
}

// answerV6 ends a packet with an ICMPv6 error to its sender, if one may be sent, the limit allows it and a frame is free.
func (w *Worker) answerV6(p *nat.Packet, r reason.Reason, icmpType, code uint8, mtu uint32, now clock.Tick) {
	answered := packet.MayAnswerIPv6(&p.H, p.Data) && w.sendErrorV6(p, icmpType, code, mtu, now)
	w.drop(p.Frame, p.Data, r, answered)
}

func (w *Worker) sendErrorV6(p *nat.Packet, icmpType, code uint8, mtu uint32, now clock.Tick) bool {
	from, ok := w.table.SourceV6(p.Ingress)
	if !ok {
		return false
	}
	// By the way that any packet to the sender would take; while that is not usable, or for a link-local sender, back to the
	// machine that handed the packet to us, which is what the swapped MACs say.
	src, _ := addressesV6(p)
	hop, v := w.routes.RouteV6(nil, p.Ingress, src, src, 0)
	if v != rtcache.OK && v != rtcache.Unresolved && !linkLocalV6(src) {
		return false
	}
	if net := binary.BigEndian.Uint64(src[:8]); !w.errors.allow(packet.Addr(net>>32^net), now) { // each /64 is one sender
		return false
	}
	addr, ok := w.pool.Get()
	if !ok {
		return false
	}
	data := w.umem.Data(rings.Frame{Addr: addr, Len: uint32(w.umem.ChunkSize())})
	n := packet.ICMPv6Error(data, p.Data, &p.H, &from, icmpType, code, mtu)
	if n == 0 {
		w.pool.Put(addr)
		return false
	}
	to := p.Ingress
	if v == rtcache.OK {
		to = hop.Port()
		hop.WriteMACs(data)
	}
	w.one[0] = rings.Frame{Addr: addr, Len: uint32(n)}
	return w.emit(to, w.one[:]) == 1
}

// flowHashV6 tells flows apart where a route has several next hops: addresses, and ports where they directly follow.
func flowHashV6(p *nat.Packet) uint32 {
	b := p.Data[p.H.L3 : int(p.H.L3)+int(p.H.Len)]
	x := binary.BigEndian.Uint64(b[8:]) ^ binary.BigEndian.Uint64(b[24:])*0x85ebca6b27d4eb2f
	y := binary.BigEndian.Uint64(b[16:]) ^ binary.BigEndian.Uint64(b[32:])*0xc2b2ae3d27d4eb4f
	if (p.H.Proto == packet.ProtoTCP || p.H.Proto == packet.ProtoUDP) && len(b) >= packet.IPv6Len+4 {
		y ^= uint64(binary.BigEndian.Uint32(b[packet.IPv6Len:])) << 16
	}
	return mix(x, y)
}

func linkLocalV6(a *[16]byte) bool { return a[0] == 0xfe && a[1]&0xc0 == 0x80 }
