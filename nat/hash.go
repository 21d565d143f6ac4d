package nat

import (
	"encoding/binary"
	"math/bits"

	"pollux/internal/packet"
)

// tuple is a packet's 5-tuple as it is seen on one side: addresses, then ports, protocol, side, and for ICMP queries whether
// it asks or answers. Two words, compared as such. Their order is that of packet.Headers.Key.
type tuple struct {
	addrs uint64 // source | destination << 32
	ports uint64 // source | destination << 16, then from bit 32: protocol (8 bits), side (1), request (1)
}

const requestBit = 1 << 41 // in tuple.ports: an ICMP query that asks

// makeTuple builds the key of a packet that travels from src to dst as seen on side.
func makeTuple(side Side, src, dst packet.Addr, sport, dport uint16, proto uint8, request bool) tuple {
	t := tuple{
		addrs: uint64(src) | uint64(dst)<<32,
		ports: uint64(sport) | uint64(dport)<<16 | uint64(proto)<<32 | uint64(side)<<40,
	}
	if request {
		t.ports |= requestBit
	}
	return t
}

func (t tuple) src() packet.Addr { return packet.Addr(t.addrs) }
func (t tuple) dst() packet.Addr { return packet.Addr(t.addrs >> 32) }
func (t tuple) sport() uint16    { return uint16(t.ports) }
func (t tuple) dport() uint16    { return uint16(t.ports >> 16) }
func (t tuple) proto() uint8     { return uint8(t.ports >> 32) }
func (t tuple) request() bool    { return t.ports&requestBit != 0 }

// asks reports whether an ICMP query is a request (echo 8, timestamp 13) rather than a reply.
func asks(h *packet.Headers) bool { return h.ICMPType == 8 || h.ICMPType == 13 }

// plainKey is the key of a packet of TCP or UDP, the first draft of any other's.
func plainKey(p *Packet) tuple {
	addrs, ports := p.H.Key()
	return tuple{addrs, ports | uint64(p.Side)<<40}
}

// tupleOf is the key under which a whole packet is looked up. ok is false for what has no link of its own: later
// fragments, ICMP errors, anything that is not IPv4.
func tupleOf(p *Packet) (t tuple, ok bool) {
	h := &p.H
	t = plainKey(p)
	if h.Kind == packet.KindTCP || h.Kind == packet.KindUDP {
		return t, true
	}
	return t.other(h)
}

// other finishes the key of a packet that is neither TCP nor UDP.
func (t tuple) other(h *packet.Headers) (tuple, bool) {
	switch h.Kind {
	case packet.KindICMPQuery:
		if asks(h) {
			t.ports |= requestBit
		}
		return t, true
	case packet.KindOther:
		t.ports &^= 0xffffffff
		return t, true
	}
	return t, false
}

// seed keys the hash, so that nobody outside can aim at one slot.
type seed [4]uint64

func newSeed(b [32]byte, worker int) seed {
	var s seed
	for i := range s {
		s[i] = binary.LittleEndian.Uint64(b[i*8:]) ^ uint64(worker+1)*0x9e3779b97f4a7c15
	}
	// A seed with few bits set (replay's fixed one, a test's zero) must still mix well.
	for i := range s {
		s[i] = fold128(s[i]^0xa0761d6478bd642f, s[(i+1)&3]^0xe7037ed1a0b428db) | 1
	}
	return s
}

func fold128(a, b uint64) uint64 {
	hi, lo := bits.Mul64(a, b)
	return hi ^ lo
}

// hash is two rounds of folded multiplication with secret keys (the construction of wyhash). Only 32 bits are used: they
// choose the slot and are its tag.
func (s *seed) hash(a, b uint64) uint32 {
	hi, lo := bits.Mul64(a^s[0], b^s[1])
	return uint32(fold128(hi^s[2], lo^s[3]))
}

func (s *seed) tuple(t tuple) uint32 { return s.hash(t.addrs, t.ports) }
