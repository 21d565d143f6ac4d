package pmd

import (
	"encoding/binary"

	"pollux/internal/packet"
	"pollux/internal/reason"
	"pollux/nat"
	"pollux/rings"
)

// parse is stage 2: every packet is parsed; what is malformed, another machine's or the host's own leaves the burst here.
// It returns the rest, moved together.
func (w *Worker) parse(b []nat.Packet, from int) []nat.Packet {
	if len(b) == 0 {
		return b
	}
	if from == fromShard { // each packet has a port of its own
		packet.Parse(b[0].Data, &b[0].H)
		return w.sift(b, 0)
	}
	n := nat.Parse(b, &w.ports[from].accept)
	if n == len(b) {
		return b
	}
	packet.Parse(b[n].Data, &b[n].H)
	return w.sift(b, n)
}

// sift is parse from packet k on, which is parsed and may have to go.
func (w *Worker) sift(b []nat.Packet, k int) []nat.Packet {
	for i := k; ; {
		p := &b[k]
		if p.H.Reason == reason.None && p.H.Kind-1 < packet.KindLaterFragment && p.H.Dst < multicast && w.toPort(p) {
			k++
		} else {
			w.refuse(p)
		}
		if i++; i == len(b) {
			return b[:k]
		}
		p = &b[k]
		if i != k {
			w.pull(p, &b[i])
		}
		packet.Parse(p.Data, &p.H)
	}
}

// multicast is the first IPv4 address that names more than one host, or none.
const multicast packet.Addr = 224 << 24

// pull moves the frame of a packet that is not parsed yet forward in the burst.
func (w *Worker) pull(dst, src *nat.Packet) {
	dst.Data, dst.Frame, dst.Ingress, dst.Side, dst.Hairpin, dst.Directed = src.Data, src.Frame, src.Ingress, src.Side, src.Hairpin, src.Directed
}

// toPort reports whether a frame that Parse accepted, so at least an Ethernet header, is for the port it came in by.
func (w *Worker) toPort(p *nat.Packet) bool {
	port := &w.ports[p.Ingress]
	return binary.LittleEndian.Uint64(p.Data)&port.accept.Mask == port.accept.Word
}

// refuse deals with a frame that is not for the translator.
//
//go:noinline
func (w *Worker) refuse(p *nat.Packet) {
	h := &p.H
	switch {
	case len(p.Data) < packet.EthernetLen:
		w.drop(p.Frame, p.Data, reason.BadHeader, false)
	case h.Kind == packet.KindARP && w.ports[p.Ingress].arp && rings.AnswerARP(p.Data, &w.ports[p.Ingress].mac):
		w.c.arps++
		w.one[0] = rings.Frame{Addr: p.Frame, Len: uint32(len(p.Data))}
		w.emit(p.Ingress, w.one[:])
	case p.Data[0]&1 != 0: // broadcast and multicast: ARP requests, neighbour discovery, routing protocols
		w.host(p)
	case !w.toPort(p):
		w.drop(p.Frame, p.Data, reason.NotForUs, false)
	case h.Reason != reason.None:
		w.drop(p.Frame, p.Data, h.Reason, false)
	case h.Dst >= multicast && h.Dst < 240<<24, h.Dst == 0xffff_ffff:
		w.host(p)
	case h.Dst >= multicast: // class E is nobody's
		w.drop(p.Frame, p.Data, reason.NoRoute, false)
	case w.six.on && h.Kind == packet.KindIPv6:
		w.six.add(p)
	default: // ARP, IPv6, VLAN tags, any other protocol
		w.host(p)
	}
}
