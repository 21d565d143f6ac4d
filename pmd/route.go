package pmd

import (
	"encoding/binary"
	"unsafe"

	"pollux/internal/clock"
	"pollux/internal/packet"
	"pollux/internal/reason"
	"pollux/nat"
	"pollux/rings"
	"pollux/rtcache"
)

// route is stage 6: every packet gets its next hop, from the link it belongs to or by lookup, and is put in line for its
// egress port.
func (w *Worker) route(b []nat.Packet, now clock.Tick) {
	for i := 0; i < len(b); i++ {
		n := 0
		if w.hold.n == 0 {
			n = w.routeHits(b[i:])
			w.routes.C.Hits += uint64(n)
			w.c.translated += uint64(n)
		}
		if i += n; i < len(b) && b[i].Verdict == nat.Forward {
			w.detour(&b[i], i, now)
		}
	}
}

// routeHits sends on the packets at the front of a burst whose link has a next hop that still holds, and returns how many
// they were. Mostly many that follow one another leave by the same one: it is looked at once for all of them.
func (w *Worker) routeHits(b []nat.Packet) int {
	flows, ports := w.routes.Attached(), w.ports
	for i := 0; i < len(b); {
		p := &b[i]
		slot := (*[2]uint64)(p.Hop)
		if slot == nil || !flows.From(slot, p.Ingress) {
			return i
		}
		hop := flows.At(slot)
		if !hop.Usable() {
			return i
		}
		dress := hop.Dress()
		k := uint(dress.Port())
		if k >= uint(len(ports)) {
			return i
		}
		n := ports[k].lineRun(b[i:], flows.Stamps, slot[0], dress)
		if n == 0 {
			return i
		}
		i += n
	}
	return len(b)
}

// lineRun dresses the packets at the front of a burst that leave as the first one does and puts them in line: those that came in
// by the same port, are attached to the same next hop (so says way, the first word of their slots) and by routes that have not
// changed, are not too long, and have room in line. It returns how many they were. It calls nothing, so that all it needs
// stays in registers.
func (p *port) lineRun(b []nat.Packet, stamps rtcache.Stamps, way uint64, dress rtcache.Dress) int {
	mtu, ingress, macs := uint16(dress.MTU()), b[0].Ingress, dress.MACs()
	n, at, size := uint(p.n), uintptr(0), unsafe.Sizeof(nat.Packet{})
	for end := uintptr(len(b)) * size; at < end; at += size { // see Shard.hitPlain
		q := (*nat.Packet)(unsafe.Add(unsafe.Pointer(unsafe.SliceData(b)), at))
		slot, data := (*[2]uint64)(q.Hop), q.Data
		if slot == nil || slot[0] != way || q.Ingress != ingress || q.H.Len > mtu || n >= BurstFrames || len(data) < destinationEnd {
			break
		}
		f := (*[destinationEnd]byte)(data)
		if !stamps.Current(slot, packet.Addr(binary.BigEndian.Uint32(f[destinationEnd-4:]))) {
			break
		}
		p.out[n] = rings.Frame{Addr: q.Frame, Len: uint32(len(data))}
		n++
		macs.Write((*[12]byte)(f[:]))
	}
	p.n = int(n)
	return int(at / size)
}

// destinationEnd is where the destination address ends in every IPv4 frame: there are no VLAN tags.
const destinationEnd = packet.EthernetLen + packet.IPv4Len

// destination is where a packet goes now, after translation, which changes it on the way in only.
func destination(p *nat.Packet) packet.Addr {
	if p.Side == nat.Inside {
		return p.H.Dst
	}
	return packet.Addr(binary.BigEndian.Uint32(p.Data[p.H.L3+16:]))
}

// flowHash tells flows apart where a route has several next hops.
func flowHash(h *packet.Headers) uint32 {
	x := uint64(h.Src)<<32 | uint64(h.Dst)
	x ^= uint64(h.SrcPort)<<16 | uint64(h.DstPort)
	x *= 0x9e3779b97f4a7c15
	return uint32(x >> 32)
}

// detour deals with a packet that can't simply go on: its next hop is to be looked up, others wait for the same one, it is
// too long.
//
//go:noinline
func (w *Worker) detour(p *nat.Packet, i int, now clock.Tick) {
	src, dst, hash := w.asSent(p, i).Src, destination(p), flowHash(&p.H)
	slot := (*[2]uint64)(p.Hop)
	if slot == nil {
		slot = w.plain.slot(src, dst, hash)
	}
	hop, v := w.routes.Route(slot, p.Ingress, src, dst, hash)
	if v == rtcache.OK && w.hold.n > 0 {
		w.look(hop, now) // if this hop has just become usable, those that came before go first
	}
	switch v {
	case rtcache.OK:
		w.send(p, w.asSent(p, i), hop, now)
	case rtcache.Unresolved:
		w.wait(p, w.asSent(p, i), hop, now)
	default:
		w.unrewrite(p, i, true)
		w.unroutable(p, w.asSent(p, i), v, now)
	}
	gone(p)
}

// unroutable ends a packet that has no next hop; the frame is as it was on the wire, and h describes it.
func (w *Worker) unroutable(p *nat.Packet, h *packet.Headers, v rtcache.Verdict, now clock.Tick) {
	switch v {
	case rtcache.Local:
		w.host(p)
	case rtcache.ReversePath:
		w.drop(p.Frame, p.Data, reason.ReversePath, false)
	case rtcache.Blackhole:
		w.drop(p.Frame, p.Data, reason.NoRoute, false)
	case rtcache.Prohibit:
		w.answer(p, h, reason.NoRoute, packet.ICMPUnreachable, codeProhibited, 0, now)
	case rtcache.Unreachable:
		w.answer(p, h, reason.NoRoute, packet.ICMPUnreachable, codeHost, 0, now)
	case rtcache.Failed:
		w.answer(p, h, reason.NoNeighbour, packet.ICMPUnreachable, codeHost, 0, now)
	default:
		w.answer(p, h, reason.NoRoute, packet.ICMPUnreachable, codeNet, 0, now)
	}
}

// send puts a translated packet in line for a usable hop; one that is too long is split or answered. h describes it as it
// was on the wire.
func (w *Worker) send(p *nat.Packet, h *packet.Headers, hop *rtcache.Hop, now clock.Tick) {
	if p.Hop != nil {
		w.c.translated++
	}
	mtu := hop.MTU()
	switch {
	case int(p.H.Len) <= mtu:
		hop.WriteMACs(p.Data)
		w.line(hop.Port(), p)
	case p.H.Flags&packet.FlagDF == 0:
		hop.WriteMACs(p.Data)
		w.fragment(p, hop.Port(), mtu)
	default:
		packet.Restore(p.Data, &p.H)
		if h != &p.H {
			packet.Restore(p.Data, h)
		}
		w.answer(p, h, reason.MTUExceeded, packet.ICMPUnreachable, codeFragmentationNeeded, uint16(mtu), now)
	}
}
