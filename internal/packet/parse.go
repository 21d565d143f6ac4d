package packet

import (
	"encoding/binary"
	"math/bits"
	"unsafe"

	"pollux/internal/reason"
)

// Sizes and offsets of what is parsed here, in bytes.
const (
	EthernetLen  = 14
	IPv4Len      = 20 // without options
	IPv6Len      = 40
	UDPLen       = 8
	TCPLen       = 20 // without options
	ICMPLen      = 8
	fastUDP      = EthernetLen + IPv4Len + UDPLen // shortest frames that the fast path looks at
	fastTCP      = EthernetLen + IPv4Len + TCPLen
	etherIPv4    = 0x0800
	etherARP     = 0x0806
	etherIPv6    = 0x86dd
	fragmentBits = 0x3fff // MF and the offset
	offsetBits   = 0x1fff
)

// ICMP types (RFC 792).
const (
	ICMPEchoReply        = 0
	ICMPUnreachable      = 3
	ICMPQuench           = 4
	ICMPEcho             = 8
	ICMPTimeExceeded     = 11
	ICMPParameterProblem = 12
	ICMPTimestamp        = 13
	ICMPTimestampReply   = 14
)

// Parse fills h from frame, which starts at the Ethernet header. Every field of h is written. A packet that must not be
// forwarded has h.Reason set and Kind KindNone; its other fields hold what was learned until then. The frame is changed in one case only: a half-made L4 checksum of an unfragmented packet is
// completed (DESIGN 9). Bytes beyond the IP total length are padding and never looked at.
func Parse(frame []byte, h *Headers) {
	if r := (Record{Data: frame}); ParseEach(&r, unsafe.Sizeof(r), 1, &Unicast) == 1 {
		*h = r.H
		return
	}
	parseGeneral(frame, h)
}

// Unicast accepts every unicast MAC. Nobody changes it.
var Unicast = Accept{Word: 0, Mask: 1}

// Record is how the elements of an array begin that ParseEach walks.
type Record struct {
	Data []byte
	H    Headers
}

// Accept says which frames ParseEach takes: those whose first 8 bytes, read as little-endian, are Word under Mask. Bit 0 of
// Mask must be set and that of Word clear, which is what unicast means.
type Accept struct{ Word, Mask uint64 }

// ParseEach is Parse for the packets of a burst, as far as they are what nearly every packet is: plain (FlagPlain), with a
// checksum that need not be completed, and accepted. There are n records, stride bytes apart. It stops at the first packet
// that is anything else, whose H is undefined then, and returns how many there were before it. It refuses nothing: that is
// for Parse, which knows why. It calls nothing either, so that all it needs stays in registers.
func ParseEach(first *Record, stride uintptr, n int, accept *Accept) int {
	at, end := uintptr(0), uintptr(n)*stride
	for ; at < end; at += stride {
		r := (*Record)(unsafe.Add(unsafe.Pointer(first), at))
		frame := r.Data
		if len(frame) < fastUDP {
			break
		}
		b := (*[fastUDP]byte)(frame)
		head := binary.LittleEndian.Uint64(b[14:22])                           // version, IHL, TOS, length, id, fragment
		length := bits.RotateLeft32(bits.ReverseBytes32(uint32(head>>16)), 16) // total length; then the id
		l4 := int(uint16(length)) - IPv4Len - UDPLen                           // what the packet has beyond the shortest
		if binary.LittleEndian.Uint16(b[12:14]) != 0x0008 || head&0xff3f_0000_0000_00ff != 0x45 ||
			binary.LittleEndian.Uint64(b[0:8])&accept.Mask != accept.Word || uint(l4) > uint(len(frame)-fastUDP) ||
			b[22] <= 1 || b[26]-1 >= 223 || b[26] == 127 || b[30] >= 224 {
			break
		}
		// 2^16 = 2^32 = 2^64 = 1 modulo 0xffff, so a sum of wide words, in either byte order, is as good as one of 16-bit
		// words, and "the folded sum is 0xffff" is "divisible by 0xffff", which costs one multiplication.
		addrs, middle := binary.LittleEndian.Uint64(b[26:34]), binary.LittleEndian.Uint32(b[22:26])
		sum, carry := bits.Add64(head, addrs, 0)
		sum, carry = bits.Add64(sum, uint64(middle), carry)
		sum, _ = bits.Add64(sum, 0, carry)
		if sum%0xffff != 0 {
			break
		}
		h := (*words)(unsafe.Pointer(&r.H))
		h[0] = bits.RotateLeft64(bits.ReverseBytes64(addrs), 32)
		h[2] = uint64(length)<<lenAt | plainAt
		ports := uint64(bits.RotateLeft32(binary.BigEndian.Uint32(b[34:38]), 16))
		rest := uint64(b[22])<<ttlAt | head&(uint64(FlagDF)<<flagsAt) // which is where the flag stands in head
		pseudo := addrs + 0xffff                                      // no overflow: the destination is below 224.0.0.0
		var field uint16
		if b[23] == ProtoUDP {
			raw := binary.LittleEndian.Uint16(b[38:40])
			if uint(bits.ReverseBytes16(raw))-UDPLen > uint(l4) {
				break
			}
			field = binary.LittleEndian.Uint16(b[40:42])
			pseudo += ProtoUDP<<8 + uint64(raw)
			h[1] = ports | ProtoUDP<<protoAt
			rest |= plainUDP
		} else {
			if b[23] != ProtoTCP || len(frame) < fastTCP {
				break
			}
			b := (*[fastTCP]byte)(frame)
			offset := int(b[46] >> 4 * 4)
			if offset < TCPLen || offset > l4+UDPLen {
				break
			}
			field = binary.LittleEndian.Uint16(b[50:52])
			pseudo += ProtoTCP<<8 + uint64(bits.ReverseBytes16(uint16(l4+UDPLen)))
			h[1] = ports | ProtoTCP<<protoAt
			rest |= plainTCP | uint64(b[47])<<tcpAt
		}
		if field == 0 {
			if b[23] == ProtoUDP {
				rest |= uint64(FlagZeroChecksum) << flagsAt
			}
		} else if (pseudo-uint64(field))%0xffff == 0 { // half-made
			break
		}
		h[3] = rest
	}
	return int(at / stride)
}

// complete finishes a half-made checksum.
func complete(frame []byte, h *Headers) {
	CompleteChecksum(frame, h)
	h.Flags |= FlagL4Completed
}

// parseGeneral is Parse for any frame; it alone decides what is refused and why.
//
//go:noinline
func parseGeneral(frame []byte, h *Headers) {
	*h = Headers{L3: EthernetLen}
	if len(frame) < EthernetLen {
		h.Reason = reason.BadHeader
		return
	}
	if frame[0]&1 == 0 {
		h.Flags = FlagUnicastMAC
	}
	switch binary.BigEndian.Uint16(frame[12:14]) {
	case etherIPv4:
		parseIPv4(frame, h)
	case etherIPv6:
		parseIPv6(frame, h)
	case etherARP:
		h.Kind = KindARP
	default:
		h.Kind = KindNotIP
	}
}

func parseIPv4(frame []byte, h *Headers) {
	if len(frame) < EthernetLen+IPv4Len || frame[EthernetLen]>>4 != 4 {
		h.Reason = reason.BadHeader
		return
	}
	ip := frame[EthernetLen:]
	header := headerIPv4(ip, h)
	h.L4 = uint16(EthernetLen + header)
	switch {
	case header < IPv4Len || header > int(h.Len) || int(h.Len) > len(ip):
		h.Reason = reason.BadHeader
		return
	case Sum(ip[:header], 0) != 0xffff:
		h.Reason = reason.BadChecksum
		return
	case !hostSource(h.Src):
		h.Reason = reason.BadSource
		return
	}
	if h.FragOff != 0 {
		// A TCP fragment at offset 8 could overwrite the flags of a header already judged (RFC 1858 3).
		if h.Proto == ProtoTCP && h.FragOff == 8 {
			h.Reason = reason.BadHeader
			return
		}
		h.Kind = KindLaterFragment
		return
	}
	parseL4(ip[header:h.Len], h)
	if h.Kind == KindTCP || h.Kind == KindUDP {
		if header == IPv4Len && !h.Fragment() && h.TTL > 1 && h.Dst < multicast && h.Flags&FlagUnicastMAC != 0 {
			h.Flags |= FlagPlain
		}
		if HalfMade(frame, h) {
			complete(frame, h)
		}
	}
}

// headerIPv4 reads the fixed part of an IPv4 header, of which ip holds at least 20 bytes, and returns the header's length.
func headerIPv4(ip []byte, h *Headers) int {
	b := (*[IPv4Len]byte)(ip)
	h.Len = binary.BigEndian.Uint16(b[2:4])
	h.FragID = binary.BigEndian.Uint16(b[4:6])
	word := binary.BigEndian.Uint16(b[6:8])
	h.FragOff = word & offsetBits * 8
	if word&0x4000 != 0 {
		h.Flags |= FlagDF
	}
	if word&0x2000 != 0 {
		h.Flags |= FlagMF
	}
	h.TTL, h.Proto = b[8], b[9]
	h.Src, h.Dst = Addr(binary.BigEndian.Uint32(b[12:16])), Addr(binary.BigEndian.Uint32(b[16:20]))
	header := int(b[0]&15) * 4
	if header > IPv4Len {
		h.Flags |= FlagOptions
	}
	return header
}

// multicast is the first address that names more than one host, or none.
const multicast Addr = 224 << 24

// hostSource reports whether a packet may come from a: not "this network", loopback, multicast, reserved, broadcast.
func hostSource(a Addr) bool {
	top := a >> 24
	return top != 0 && top != 127 && top < 224
}

// parseL4 reads the L4 header of an unfragmented packet or first fragment; l4 is what the IP packet holds of it. A first
// fragment too small for the header is refused: it hides what a filter must see (RFC 1858).
func parseL4(l4 []byte, h *Headers) {
	whole := h.Flags&FlagMF == 0
	switch h.Proto {
	case ProtoTCP:
		if len(l4) < TCPLen {
			break
		}
		offset := int(l4[12]>>4) * 4
		if offset < TCPLen || offset > len(l4) {
			break
		}
		h.Kind = KindTCP
		h.SrcPort, h.DstPort = binary.BigEndian.Uint16(l4[0:2]), binary.BigEndian.Uint16(l4[2:4])
		h.TCPFlags = l4[13]
		return
	case ProtoUDP:
		if len(l4) < UDPLen {
			break
		}
		length := int(binary.BigEndian.Uint16(l4[4:6]))
		if length < UDPLen || whole && length > len(l4) {
			break
		}
		h.Kind = KindUDP
		h.SrcPort, h.DstPort = binary.BigEndian.Uint16(l4[0:2]), binary.BigEndian.Uint16(l4[2:4])
		if l4[6]|l4[7] == 0 {
			h.Flags |= FlagZeroChecksum
		}
		return
	case ProtoICMP:
		if len(l4) < ICMPLen {
			break
		}
		parseICMP(l4, h)
		return
	default:
		h.Kind = KindOther
		return
	}
	h.Reason = reason.BadHeader
}

// parseICMP reads the ICMP header; l4 holds at least its 8 bytes.
func parseICMP(l4 []byte, h *Headers) {
	h.ICMPType, h.ICMPCode = l4[0], l4[1]
	switch h.ICMPType {
	case ICMPEchoReply, ICMPEcho, ICMPTimestamp, ICMPTimestampReply:
		if h.ICMPCode == 0 {
			h.Kind = KindICMPQuery
			h.SrcPort = binary.BigEndian.Uint16(l4[4:6])
			h.DstPort = h.SrcPort
			return
		}
	case ICMPUnreachable, ICMPQuench, ICMPTimeExceeded, ICMPParameterProblem:
		h.Kind = KindICMPError
		return
	}
	h.Kind = KindICMPOther
}

// parseIPv6 reads the fixed header only: Proto is the next header, TTL the hop limit, Len the header and payload together;
// Src and Dst stay 0.
func parseIPv6(frame []byte, h *Headers) {
	ip := frame[EthernetLen:]
	if len(ip) < IPv6Len || ip[0]>>4 != 6 {
		h.Reason = reason.BadHeader
		return
	}
	total := IPv6Len + int(binary.BigEndian.Uint16(ip[4:6]))
	if total > len(ip) || total > 0xffff {
		h.Reason = reason.BadHeader
		return
	}
	h.Kind = KindIPv6
	h.L4 = EthernetLen + IPv6Len
	h.Len = uint16(total)
	h.Proto, h.TTL = ip[6], ip[7]
	if HalfMade(frame, h) {
		complete(frame, h)
	}
}

// ParseQuoted fills q from the packet that the ICMP error outer quotes. Offsets in q are relative to frame; q.Len is the
// quoted packet's own length, which may go far beyond the quote. It reports false unless the quote is IPv4 with its whole
// header and 8 bytes behind it (RFC 792). Of a TCP header no more than these 8 bytes need be there, so TCPFlags is not
// filled. Nothing of the quote is verified: checksums, source and lengths may have been damaged by what the error tells.
// A quoted later fragment is KindLaterFragment and has no ports; a quoted ICMP error is KindICMPError.
func ParseQuoted(frame []byte, outer, q *Headers) bool {
	*q = Headers{}
	start, end := int(outer.L4)+ICMPLen, int(outer.L3)+int(outer.Len)
	if outer.Kind != KindICMPError || end > len(frame) || start+IPv4Len > end || frame[start]>>4 != 4 {
		return false
	}
	header := headerIPv4(frame[start:], q)
	if header < IPv4Len || start+header+8 > end {
		return false
	}
	q.L3, q.L4 = uint16(start), uint16(start+header)
	l4 := (*[8]byte)(frame[start+header:])
	switch {
	case q.FragOff != 0:
		q.Kind = KindLaterFragment
	case q.Proto == ProtoTCP, q.Proto == ProtoUDP:
		q.Kind = KindTCP
		if q.Proto == ProtoUDP {
			q.Kind = KindUDP
			if l4[6]|l4[7] == 0 {
				q.Flags |= FlagZeroChecksum
			}
		}
		q.SrcPort, q.DstPort = binary.BigEndian.Uint16(l4[0:2]), binary.BigEndian.Uint16(l4[2:4])
	case q.Proto == ProtoICMP:
		parseICMP(l4[:], q)
	default:
		q.Kind = KindOther
	}
	return true
}
