// Package packet parses, rewrites and builds packets. It works on bytes: no NIC, clock, lock, log or allocation.
//
// Addresses and ports are numbers in host order (10.0.0.1 is 0x0a000001); bytes in a frame are in network order.
package packet

import (
	"encoding/binary"
	"net/netip"
	"unsafe"

	"pollux/internal/reason"
)

// Addr is an IPv4 address as a number in host order. Zero means none.
type Addr uint32

// AddrFrom converts a netip.Addr that is IPv4 (or IPv4-mapped); any other gives 0.
func AddrFrom(a netip.Addr) Addr {
	a = a.Unmap()
	if !a.Is4() {
		return 0
	}
	b := a.As4()
	return Addr(binary.BigEndian.Uint32(b[:]))
}

// Netip converts to netip.Addr; 0 gives 0.0.0.0.
func (a Addr) Netip() netip.Addr {
	var b [4]byte
	binary.BigEndian.PutUint32(b[:], uint32(a))
	return netip.AddrFrom4(b)
}

// String prints dotted decimal.
func (a Addr) String() string { return a.Netip().String() }

// Kind is what the translator needs to know about a packet's shape.
type Kind uint8

const (
	KindNone          Kind = iota // not looked at, or refused (see Headers.Reason)
	KindTCP                       // unfragmented TCP, or a first fragment that holds the whole TCP header
	KindUDP                       // likewise UDP
	KindICMPQuery                 // echo/timestamp request or reply; SrcPort and DstPort both hold the id
	KindICMPError                 // unreachable, time exceeded, parameter problem, quench: about a quoted packet
	KindOther                     // any other IP protocol
	KindICMPOther                 // ICMP that is neither a query nor an error that can be translated
	KindLaterFragment             // fragment offset > 0: no ports
	KindARP
	KindIPv6
	KindNotIP // any other ethertype, VLAN tags included
)

// Flags of a parsed packet.
type Flags uint8

const (
	FlagUnicastMAC   Flags = 1 << iota // the destination MAC is unicast
	FlagMF                             // more fragments: with offset 0 this is a first fragment
	FlagZeroChecksum                   // UDP checksum 0: stays 0
	FlagOptions                        // the IPv4 header has options
	FlagL4Completed                    // Parse found a half-made L4 checksum and completed it (DESIGN 9)
	FlagPlain                          // whole TCP or UDP over IPv4 without options (L3 is 14, L4 is 34), unicast, TTL above 1
	FlagDF                             // don't fragment; its place is that in the frame
)

// TCP flag bits in Headers.TCPFlags.
const (
	TCPFin = 0x01
	TCPSyn = 0x02
	TCPRst = 0x04
	TCPAck = 0x10
)

// IP protocol numbers.
const (
	ProtoICMP   = 1
	ProtoTCP    = 6
	ProtoUDP    = 17
	ProtoGRE    = 47
	ProtoESP    = 50
	ProtoICMPv6 = 58
)

// Headers is what Parse learned of one frame. It stays valid as a description of the packet *as received*: rewriting
// changes the frame, never the Headers, so that Restore and ICMP errors can quote the packet as it was sent.
//
// It is four words of 8 bytes, and ParseEach writes no smaller ones: see words.
type Headers struct {
	Src, Dst         Addr   // outer IPv4 addresses
	SrcPort, DstPort uint16 // see Kind
	Proto            uint8  // IP protocol
	zero             uint8  // never written
	FragOff          uint16 // offset in bytes
	L3, L4           uint16 // offset in the frame of the IP header, and of what follows it
	Len              uint16 // IP total length; the frame may be longer (Ethernet padding)
	FragID           uint16 // IP id
	Kind             Kind
	TTL              uint8
	TCPFlags         uint8
	ICMPType         uint8
	ICMPCode         uint8
	_                uint8
	Flags            Flags
	Reason           reason.Reason // not None: refused; BadHeader, BadChecksum, BadSource
}

// words are the fields of Headers as they lie in memory, on a little-endian machine, which is all that pollux runs on.
type words [4]uint64

// Places of fields in words.
const (
	protoAt  = 32 // in the second word
	lenAt    = 32 // in the third, FragID behind it
	ttlAt    = 8  // in the fourth
	tcpAt    = 16
	flagsAt  = 48
	plainAt  = EthernetLen | (EthernetLen+IPv4Len)<<16 // L3 and L4 of a plain packet
	plainUDP = uint64(KindUDP) | uint64(FlagUnicastMAC|FlagPlain)<<flagsAt
	plainTCP = uint64(KindTCP) | uint64(FlagUnicastMAC|FlagPlain)<<flagsAt
)

// Key returns what tells the flow of a packet from others: both addresses, source first, and a word of SrcPort, DstPort from
// bit 16, Proto from bit 32, FragOff from bit 48. Bits 40 to 47 are 0.
func (h *Headers) Key() (addrs, ports uint64) {
	w := (*words)(unsafe.Pointer(h))
	return w[0], w[1]
}

// Fragment reports whether the packet is a first or later fragment.
func (h *Headers) Fragment() bool { return h.FragOff != 0 || h.Flags&FlagMF != 0 }
