package packet

import (
	"bytes"
	"encoding/binary"
	"fmt"
)

// Build describes a frame for tests and tools: fill in what matters and call the method of its protocol. What is left
// zero gets a usable value. Every method allocates the frame it returns; checksums are right unless a field says no.
type Build struct {
	SrcMAC, DstMAC   [6]byte // zero: 02:00:00:00:00:02 and 02:00:00:00:00:01
	Src, Dst         Addr
	SrcPort, DstPort uint16
	TTL              uint8 // 0: 64
	TOS              uint8
	ID               uint16 // IP id
	DF, MF           bool
	FragOff          uint16 // bytes, a multiple of 8
	Options          []byte // IPv4 options, padded with zeros to a multiple of 4

	NoChecksum bool // UDP: send 0
	HalfMade   bool // TCP and UDP: send the sum of the pseudo header only, as a kernel does that leaves the rest to the NIC
	Pad        int  // Ethernet padding: the frame is at least this long

	Flags      uint8 // TCP; 0: ACK
	Seq, Ack   uint32
	Window     uint16 // TCP; 0: 65535
	TCPOptions []byte // padded with zeros to a multiple of 4
}

// UDP returns a UDP datagram.
func (b Build) UDP(payload []byte) []byte {
	l4 := make([]byte, UDPLen, UDPLen+len(payload))
	b.putPorts(l4)
	binary.BigEndian.PutUint16(l4[4:6], uint16(UDPLen+len(payload)))
	return b.transport(ProtoUDP, append(l4, payload...), 6)
}

// TCP returns a TCP segment.
func (b Build) TCP(payload []byte) []byte {
	l4 := make([]byte, TCPLen, TCPLen+len(b.TCPOptions)+3+len(payload))
	b.putPorts(l4)
	binary.BigEndian.PutUint32(l4[4:8], b.Seq)
	binary.BigEndian.PutUint32(l4[8:12], b.Ack)
	l4 = append(l4, b.TCPOptions...)
	for len(l4)%4 != 0 {
		l4 = append(l4, 0)
	}
	l4[12] = byte(len(l4) / 4 << 4)
	l4[13] = b.Flags
	if b.Flags == 0 {
		l4[13] = TCPAck
	}
	if b.Window == 0 {
		b.Window = 0xffff
	}
	binary.BigEndian.PutUint16(l4[14:16], b.Window)
	return b.transport(ProtoTCP, append(l4, payload...), 16)
}

// Echo returns an ICMP echo request, or with reply an echo reply, whose id is SrcPort.
func (b Build) Echo(reply bool, seq uint16, payload []byte) []byte {
	kind := uint8(ICMPEcho)
	if reply {
		kind = ICMPEchoReply
	}
	return b.ICMP(kind, 0, uint32(b.SrcPort)<<16|uint32(seq), payload)
}

// ICMP returns any ICMP message; rest is the second word of its header. For an error payload is the quoted IP packet:
// some frame[EthernetLen:] or a part of it.
func (b Build) ICMP(icmpType, code uint8, rest uint32, payload []byte) []byte {
	l4 := make([]byte, ICMPLen, ICMPLen+len(payload))
	l4[0], l4[1] = icmpType, code
	binary.BigEndian.PutUint32(l4[4:8], rest)
	l4 = append(l4, payload...)
	putSum(l4, 2)
	return b.IP(ProtoICMP, l4)
}

// IP returns an IPv4 packet of any protocol; payload is everything behind the IP header.
func (b Build) IP(proto uint8, payload []byte) []byte {
	options := (len(b.Options) + 3) &^ 3
	n := EthernetLen + IPv4Len + options + len(payload)
	frame := make([]byte, max(n, b.Pad))
	b.putEthernet(frame, etherIPv4)
	ip := frame[EthernetLen:n]
	word := b.FragOff / 8
	if b.DF {
		word |= 0x4000
	}
	if b.MF {
		word |= 0x2000
	}
	putIPv4(ip, len(ip), b.ID, word, b.ttl(), proto, b.Src, b.Dst)
	ip[0] = byte(0x45 + options/4)
	ip[1] = b.TOS
	copy(ip[IPv4Len:], b.Options)
	putSum(ip[:IPv4Len+options], 10)
	copy(ip[IPv4Len+options:], payload)
	return frame
}

// IPv6 returns an IPv6 packet from src to dst; payload is everything behind the fixed header, taken as it is.
func (b Build) IPv6(src, dst [16]byte, next uint8, payload []byte) []byte {
	n := EthernetLen + IPv6Len + len(payload)
	frame := make([]byte, max(n, b.Pad))
	b.putEthernet(frame, etherIPv6)
	ip := frame[EthernetLen:n]
	ip[0] = 0x60
	binary.BigEndian.PutUint16(ip[4:6], uint16(len(payload)))
	ip[6], ip[7] = next, b.ttl()
	copy(ip[8:24], src[:])
	copy(ip[24:40], dst[:])
	copy(ip[40:], payload)
	return frame
}

func (b *Build) ttl() uint8 {
	if b.TTL == 0 {
		return 64
	}
	return b.TTL
}

func (b *Build) putPorts(l4 []byte) {
	binary.BigEndian.PutUint16(l4[0:2], b.SrcPort)
	binary.BigEndian.PutUint16(l4[2:4], b.DstPort)
}

func (b *Build) putEthernet(frame []byte, etherType uint16) {
	src, dst := b.SrcMAC, b.DstMAC
	if src == [6]byte{} {
		src = [6]byte{2, 0, 0, 0, 0, 2}
	}
	if dst == [6]byte{} {
		dst = [6]byte{2, 0, 0, 0, 0, 1}
	}
	copy(frame[0:6], dst[:])
	copy(frame[6:12], src[:])
	binary.BigEndian.PutUint16(frame[12:14], etherType)
}

// transport puts the checksum of TCP or UDP into l4 at field and wraps it up.
func (b Build) transport(proto uint8, l4 []byte, field int) []byte {
	pseudo := pseudo4(b.Src, b.Dst, proto, len(l4))
	sum := ^Sum(l4, pseudo)
	switch {
	case b.HalfMade:
		sum = fold(pseudo)
	case proto == ProtoUDP && b.NoChecksum:
		sum = 0
	case proto == ProtoUDP && sum == 0:
		sum = 0xffff
	}
	binary.BigEndian.PutUint16(l4[field:], sum)
	return b.IP(proto, l4)
}

// Verify checks the checksums of an IPv4 frame as a receiving host would: the IP header's and, unless it is a fragment,
// that of TCP, UDP (0 passes) or ICMP. Frames that are not IPv4 pass. It is for tests and tools and changes nothing.
func Verify(frame []byte) error {
	var h Headers
	completed := bytes.Clone(frame)
	parseGeneral(completed, &h)
	if h.Reason != 0 {
		return fmt.Errorf("%v to %v protocol %d: %v", h.Src, h.Dst, h.Proto, h.Reason)
	}
	if !bytes.Equal(completed, frame) { // a right checksum may look half-made: completing it changes nothing
		return fmt.Errorf("%v to %v protocol %d: the L4 checksum is half-made", h.Src, h.Dst, h.Proto)
	}
	if h.Fragment() {
		return nil
	}
	switch h.Kind {
	case KindICMPQuery, KindICMPError, KindICMPOther:
		if s := Sum(frame[h.L4:int(h.L3)+int(h.Len)], 0); s != 0xffff {
			return fmt.Errorf("%v to %v ICMP type %d: checksum off by %#04x", h.Src, h.Dst, h.ICMPType, ^s)
		}
	case KindTCP, KindUDP:
		_, length, pseudo, _ := l4Checksum(frame, &h)
		if s := Sum(frame[h.L4:int(h.L4)+length], pseudo); s != 0xffff && h.Flags&FlagZeroChecksum == 0 {
			return fmt.Errorf("%v:%d to %v:%d protocol %d: L4 checksum off by %#04x", h.Src, h.SrcPort, h.Dst, h.DstPort, h.Proto, ^s)
		}
	}
	return nil
}
