package packet

import "encoding/binary"

// ICMPv6 error types (RFC 4443 2.1) and the codes of "destination unreachable" that a router sends (3.1).
const (
	ICMPv6Unreachable  = 1
	ICMPv6TooBig       = 2
	ICMPv6TimeExceeded = 3

	ICMPv6NoRoute            = 0
	ICMPv6Prohibited         = 1
	ICMPv6BeyondScope        = 2
	ICMPv6AddressUnreachable = 3
)

const (
	icmpv6Informational = 128 // types from here on are no errors
	icmpv6Redirect      = 137 // but this one must not be answered either
)

// icmpv6ErrorMax is the most an ICMPv6 error may measure, from its IPv6 header on: the minimum MTU (RFC 4443 2.4 c).
const icmpv6ErrorMax = 1280

// ICMPv6ErrorMax is the room that ICMPv6Error needs for a frame, in bytes.
const ICMPv6ErrorMax = EthernetLen + icmpv6ErrorMax

// ICMPv6Error builds in dst the ICMPv6 error of icmpType and code about the IPv6 packet orig, sent from the address from
// to the packet's source, with the MACs swapped, and returns its length. It quotes as much of the packet as fits in 1280
// bytes. orig must be as its sender sent it and parsed into h; dst holds ICMPv6ErrorMax bytes and must not overlap orig.
// mtu is written for "packet too big" (RFC 4443 3.2) and must be 0 otherwise. The result is 0 when dst is too small or
// orig no IPv6 packet. Whether an error may be sent at all is for MayAnswerIPv6 to say.
func ICMPv6Error(dst, orig []byte, h *Headers, from *[16]byte, icmpType, code uint8, mtu uint32) (n int) {
	l3 := int(h.L3)
	if len(dst) < ICMPv6ErrorMax || h.Kind != KindIPv6 || len(orig) < l3+IPv6Len {
		return 0
	}
	quote := orig[l3:]
	quote = quote[:min(len(quote), int(h.Len), icmpv6ErrorMax-IPv6Len-ICMPLen)]
	copy(dst[0:6], orig[6:12])
	copy(dst[6:12], orig[0:6])
	binary.BigEndian.PutUint16(dst[12:14], etherIPv6)

	ip := dst[EthernetLen:]
	length := ICMPLen + len(quote)
	binary.BigEndian.PutUint32(ip[0:4], 6<<28)
	binary.BigEndian.PutUint16(ip[4:6], uint16(length))
	ip[6], ip[7] = ProtoICMPv6, 64
	copy(ip[8:24], from[:])
	copy(ip[24:40], quote[8:24])

	icmp := ip[IPv6Len : IPv6Len+length]
	copy(icmp[ICMPLen:], quote)
	icmp[0], icmp[1], icmp[2], icmp[3] = icmpType, code, 0, 0
	binary.BigEndian.PutUint32(icmp[4:8], mtu)
	pseudo := uint32(Sum(ip[8:40], 0)) + uint32(length) + ProtoICMPv6 // RFC 8200 8.1
	binary.BigEndian.PutUint16(icmp[2:4], ^Sum(icmp, pseudo))
	return EthernetLen + IPv6Len + length
}

// MayAnswerIPv6 reports whether an ICMPv6 error may be sent about an IPv6 packet (RFC 4443 2.4 e): never about an ICMPv6
// error or redirect, nor about anything sent to more than one host (also by its MAC) or whose source is not one host. A
// later fragment of an ICMPv6 message may be one, and extension headers that can't be followed may hide one: neither is answered.
func MayAnswerIPv6(h *Headers, frame []byte) bool {
	if h.Kind != KindIPv6 || h.Reason != 0 || int(h.L3)+int(h.Len) > len(frame) || h.Len < IPv6Len || frame[0]&1 != 0 {
		return false
	}
	ip := frame[h.L3 : int(h.L3)+int(h.Len)]
	if ip[24] == 0xff || !hostSourceIPv6((*[16]byte)(ip[8:24])) {
		return false
	}
	next, rest, first, ok := skipIPv6(h.Proto, ip[IPv6Len:])
	switch {
	case !ok:
		return false
	case next != ProtoICMPv6:
		return true
	case !first || len(rest) == 0:
		return false
	}
	return rest[0] >= icmpv6Informational && rest[0] != icmpv6Redirect
}

// HostSourceIPv6 reports whether an IPv6 packet may come from the source address that it carries: not unspecified,
// loopback, multicast, nor an IPv4-mapped address (RFC 4291 2.5.2, 2.5.3, 2.7; RFC 6890).
func HostSourceIPv6(frame []byte, h *Headers) bool {
	return hostSourceIPv6((*[16]byte)(frame[h.L3+8 : h.L3+24]))
}

func hostSourceIPv6(a *[16]byte) bool {
	hi, lo := binary.BigEndian.Uint64(a[:8]), binary.BigEndian.Uint64(a[8:])
	return a[0] != 0xff && (hi != 0 || lo > 1 && lo>>32 != 0xffff)
}

// skipIPv6 follows extension headers (RFC 8200 4) from the header next, at the start of b, to the upper layer's. first is
// false for a later fragment, of which only the protocol is known.
func skipIPv6(next uint8, b []byte) (upper uint8, rest []byte, first, ok bool) {
	for range 16 { // more headers than any honest packet has
		n := 0
		switch next {
		case 0, 43, 60: // hop-by-hop options, routing, destination options
			if len(b) < 8 {
				return 0, nil, false, false
			}
			n = 8 * (int(b[1]) + 1)
		case 51: // authentication
			if len(b) < 8 {
				return 0, nil, false, false
			}
			n = 4 * (int(b[1]) + 2)
		case 44: // fragment
			if len(b) < 8 {
				return 0, nil, false, false
			}
			if binary.BigEndian.Uint16(b[2:4])&0xfff8 != 0 {
				return b[0], nil, false, true
			}
			n = 8
		default:
			return next, b, true, true
		}
		if n > len(b) {
			return 0, nil, false, false
		}
		next, b = b[0], b[n:]
	}
	return 0, nil, false, false
}
