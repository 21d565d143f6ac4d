package packet

import (
	"encoding/binary"
	"math/bits"
)

// Checksum arithmetic after RFC 1071 and RFC 1624. A *field* is the 16-bit checksum as it stands in a header (the
// complement of a sum); a *delta* is what a change of the covered bytes adds to the sum. Both are numbers as read in
// network order. Sums live modulo 0xffff, where 0 and 0xffff are the same number; the functions below keep to the one
// that a sender who sums everything would have written, so that a change and its reverse give the same bytes back.

// fold brings a sum of 16-bit words down to 16 bits; it is 0 only for 0.
func fold(s uint32) uint16 {
	s = s>>16 + s&0xffff
	return uint16(s + s>>16)
}

// Delta16 returns the delta of replacing the 16-bit word old by new (RFC 1624 equation 3). No change gives 0.
func Delta16(old, new uint16) uint16 {
	if d := fold(uint32(^old) + uint32(new)); d != 0xffff {
		return d
	}
	return 0
}

// DeltaAddr returns the delta of replacing an IPv4 address.
func DeltaAddr(old, new Addr) uint16 {
	o, n := ^uint32(old), uint32(new)
	if d := fold(fold32(o) + fold32(n)); d != 0xffff {
		return d
	}
	return 0
}

// fold32 adds the two halves of a 32-bit word.
func fold32(w uint32) uint32 { return w>>16 + w&0xffff }

// AddDelta joins two deltas into one.
func AddDelta(a, b uint16) uint16 { return fold(uint32(a) + uint32(b)) }

// DeltaTTL is the delta of one step down of the TTL, which is the high byte of its word.
const DeltaTTL = 0xfeff

// ApplyDelta returns the checksum field after a change of the bytes it covers (IPv4 header, TCP, ICMP).
func ApplyDelta(field, delta uint16) uint16 {
	// The sum of the complements is the complement of the difference: one subtraction, its borrow taken round.
	d := uint32(field) - uint32(delta)
	return uint16(d + d>>16)
}

// ApplyDeltaUDP is ApplyDelta by the rules of RFC 768: field 0 means that there is no checksum and stays 0; a computed 0
// is sent as 0xffff.
func ApplyDeltaUDP(field, delta uint16) uint16 {
	if field == 0 {
		return 0
	}
	if f := ApplyDelta(field, delta); f != 0 {
		return f
	}
	return 0xffff
}

// Update16 returns the checksum field sum after the 16-bit word old that it covers became new.
func Update16(sum, old, new uint16) uint16 { return ApplyDelta(sum, Delta16(old, new)) }

// update applies a delta to the field at off. UDP says which rule holds.
func update(frame []byte, off int, delta uint16, udp bool) {
	if delta == 0 {
		return
	}
	b := frame[off : off+2]
	f := binary.BigEndian.Uint16(b)
	if udp {
		f = ApplyDeltaUDP(f, delta)
	} else {
		f = ApplyDelta(f, delta)
	}
	binary.BigEndian.PutUint16(b, f)
}

// Sum adds the bytes of b as 16-bit words in network order to start; an odd last byte is padded with zero. The result is
// folded to 16 bits but not complemented.
func Sum(b []byte, start uint32) uint16 {
	// Eight bytes at a time in the machine's order: the sum of RFC 1071 does not care about byte order until the end.
	var s, c uint64
	for len(b) >= 32 {
		s, c = bits.Add64(s, binary.LittleEndian.Uint64(b[0:8]), c)
		s, c = bits.Add64(s, binary.LittleEndian.Uint64(b[8:16]), c)
		s, c = bits.Add64(s, binary.LittleEndian.Uint64(b[16:24]), c)
		s, c = bits.Add64(s, binary.LittleEndian.Uint64(b[24:32]), c)
		b = b[32:]
	}
	for len(b) >= 8 {
		s, c = bits.Add64(s, binary.LittleEndian.Uint64(b), c)
		b = b[8:]
	}
	var rest uint64 // up to 7 bytes, each at its place in a word of its own size
	if len(b) >= 4 {
		rest = uint64(binary.LittleEndian.Uint32(b))
		b = b[4:]
	}
	if len(b) >= 2 {
		rest += uint64(binary.LittleEndian.Uint16(b))
		b = b[2:]
	}
	if len(b) == 1 {
		rest += uint64(b[0])
	}
	s, c = bits.Add64(s, rest, c)
	s += c
	s = s>>32 + s&0xffffffff
	s = s>>32 + s&0xffffffff
	return fold(fold32(start) + uint32(bits.ReverseBytes16(fold(uint32(s)))))
}

// pseudo4 is the sum over the IPv4 pseudo header of length l4 (RFC 768, RFC 9293 3.1), not folded.
func pseudo4(src, dst Addr, proto uint8, l4 int) uint32 {
	return fold32(uint32(src)) + fold32(uint32(dst)) + uint32(proto) + uint32(l4)
}

// l4Checksum says where the L4 checksum field of a whole (unfragmented) packet lies, how many bytes it covers, and the
// sum of its pseudo header. ok is false when the packet has no such field or is a fragment.
func l4Checksum(frame []byte, h *Headers) (field, length int, pseudo uint32, ok bool) {
	l3, l4 := int(h.L3), int(h.L4)
	length = l3 + int(h.Len) - l4
	switch {
	case h.Reason != 0 || h.Fragment() || length < 0 || l4+length > len(frame):
		return 0, 0, 0, false
	case h.Kind == KindIPv6:
		field = -1
		switch h.Proto {
		case ProtoTCP:
			field = l4 + 16
		case ProtoUDP:
			field = l4 + 6
		case ProtoICMPv6:
			field = l4 + 2
		}
		if field < 0 || field+2 > l4+length {
			return 0, 0, 0, false
		}
		// RFC 8200 8.1: both addresses, length, next header.
		pseudo = uint32(Sum(frame[l3+8:l3+40], 0)) + uint32(length) + uint32(h.Proto)
		return field, length, pseudo, true
	case h.Kind == KindTCP:
		field = l4 + 16
	case h.Kind == KindUDP:
		field = l4 + 6
		length = int(binary.BigEndian.Uint16(frame[l4+4:]))
	default:
		return 0, 0, 0, false
	}
	return field, length, pseudo4(h.Src, h.Dst, h.Proto, length), true
}

// HalfMade reports whether the L4 checksum of an unfragmented TCP, UDP or ICMPv6 packet is only the sum of the pseudo
// header, which is what a kernel leaves for the hardware to complete (DESIGN 9). h describes frame as it is now. A packet
// whose right checksum happens to be that number is reported too: completing it changes nothing.
func HalfMade(frame []byte, h *Headers) bool {
	field, _, pseudo, ok := l4Checksum(frame, h)
	if !ok {
		return false
	}
	f := binary.BigEndian.Uint16(frame[field:])
	return f != 0 && f == fold(pseudo)
}

// CompleteChecksum computes the whole L4 checksum of an unfragmented TCP, UDP or ICMPv6 packet and writes it; any other
// packet is left alone. h describes frame as it is now.
func CompleteChecksum(frame []byte, h *Headers) {
	field, length, pseudo, ok := l4Checksum(frame, h)
	if !ok {
		return
	}
	frame[field], frame[field+1] = 0, 0
	f := ^Sum(frame[h.L4:int(h.L4)+length], pseudo)
	if f == 0 && h.Proto == ProtoUDP {
		f = 0xffff
	}
	binary.BigEndian.PutUint16(frame[field:], f)
}
