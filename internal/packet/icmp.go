package packet

import "encoding/binary"

// icmpErrorMax is the most an ICMP error may measure, from its IP header on (RFC 1812 4.3.2.3).
const icmpErrorMax = 576

// ICMPErrorMax is the room that ICMPError needs for a frame, in bytes.
const ICMPErrorMax = EthernetLen + icmpErrorMax

// ICMPError builds in dst the ICMP error of icmpType and icmpCode about the IPv4 packet orig, sent from the address from
// to the packet's source, with the MACs swapped, and returns its length. It quotes as much of the packet as fits in 576
// bytes. orig must be as its sender sent it (see Restore) and parsed into h; dst holds ICMPErrorMax bytes and must not
// overlap orig. mtu is written for "fragmentation needed" (RFC 1191 4) and must be 0 otherwise. The result is 0 when dst
// is too small or orig no IPv4 packet. Whether an error may be sent at all is for MayAnswer to say.
func ICMPError(dst, orig []byte, h *Headers, from Addr, icmpType, icmpCode uint8, mtu uint16) (n int) {
	l3 := int(h.L3)
	if len(dst) < ICMPErrorMax || len(orig) < l3+IPv4Len || h.L4 < h.L3+IPv4Len || h.Kind == KindIPv6 {
		return 0
	}
	quote := orig[l3:]
	quote = quote[:min(len(quote), int(h.Len), icmpErrorMax-IPv4Len-ICMPLen)]
	copy(dst[0:6], orig[6:12])
	copy(dst[6:12], orig[0:6])
	binary.BigEndian.PutUint16(dst[12:14], etherIPv4)

	// Precedence "internetwork control" for an error (RFC 1812 4.3.2.5); it never gets fragmented, so the id is free.
	ip := dst[EthernetLen:]
	putIPv4(ip, IPv4Len+ICMPLen+len(quote), 0, 0x4000, 64, ProtoICMP, from, h.Src)
	ip[1] = quote[1]&0x1e | 0xc0
	putSum(ip[:IPv4Len], 10)

	icmp := ip[IPv4Len : IPv4Len+ICMPLen+len(quote)]
	copy(icmp[ICMPLen:], quote)
	icmp[0], icmp[1] = icmpType, icmpCode
	binary.BigEndian.PutUint32(icmp[4:8], uint32(mtu))
	putSum(icmp, 2)
	return EthernetLen + IPv4Len + len(icmp)
}

// putIPv4 writes a header without options but for type of service and checksum, which are 0. word holds flags and offset.
func putIPv4(ip []byte, total int, id, word uint16, ttl, proto uint8, src, dst Addr) {
	b := (*[IPv4Len]byte)(ip)
	b[0], b[1] = 0x45, 0
	binary.BigEndian.PutUint16(b[2:4], uint16(total))
	binary.BigEndian.PutUint16(b[4:6], id)
	binary.BigEndian.PutUint16(b[6:8], word)
	b[8], b[9] = ttl, proto
	b[10], b[11] = 0, 0
	binary.BigEndian.PutUint32(b[12:16], uint32(src))
	binary.BigEndian.PutUint32(b[16:20], uint32(dst))
}

// putSum writes the checksum of b at off in b, over b itself.
func putSum(b []byte, off int) {
	b[off], b[off+1] = 0, 0
	binary.BigEndian.PutUint16(b[off:], ^Sum(b, 0))
}

// MayAnswer reports whether an ICMP error may be sent about a packet at all (RFC 1812 4.3.2.7): never about an ICMP error
// (or ICMP of an unknown kind), a later fragment, a malformed packet, anything sent to more than one host (also by its
// MAC), or anything whose source is not one host.
func MayAnswer(h *Headers, frame []byte) bool {
	switch h.Kind {
	case KindTCP, KindUDP, KindICMPQuery, KindOther:
	default:
		return false
	}
	return h.Reason == 0 && len(frame) > 0 && frame[0]&1 == 0 && hostSource(h.Src) && h.Dst>>24 < 224 && h.Dst != 0
}
