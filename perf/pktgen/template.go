package pktgen

import (
	"encoding/binary"
	"fmt"
	"math/bits"
	"net"
)

// Protocol of the generated packets.
type Protocol uint8

const (
	UDP    Protocol = iota
	TCPSYN          // SYN segments with an MSS of nothing: 20 bytes of header
	ICMP            // echo requests; flows differ in the identifier
)

// ParseProtocol reads "udp", "tcp-syn" or "icmp".
func ParseProtocol(s string) (Protocol, error) {
	for _, p := range []Protocol{UDP, TCPSYN, ICMP} {
		if s == p.String() {
			return p, nil
		}
	}
	return 0, fmt.Errorf("%q is no protocol: write udp, tcp-syn or icmp", s)
}

// String is ParseProtocol's word.
func (p Protocol) String() string { return [...]string{"udp", "tcp-syn", "icmp"}[p] }

const (
	etherIPv4   = 0x0800
	etherIPv6   = 0x86dd
	protoICMP   = 1
	protoTCP    = 6
	protoUDP    = 17
	protoICMPv6 = 58

	ethernetBytes = 14
	headerMax     = 96 // room for every header and the stamp; a multiple of 8
)

// template is a packet but for what differs between packets: lengths, the last 32 bits of both addresses, ports, stamp
// and checksums are zero in it.
type template struct {
	header  [headerMax]byte
	bytes   int // of header and stamp
	v6      bool
	proto   byte
	l4      int // offset
	check   int // offset of the L4 checksum
	stamp   int // offset, 0 when packets are too small for it
	pattern []size
}

// size is one packet size of the pattern: bytes on the wire without the frame's checksum, and the sums of the packet's
// constant 16-bit words. The L4 sum includes the pseudo header.
type size struct {
	bytes  int
	ipSum  uint32
	l4Sum  uint32
	ipLen  uint16 // as the IP header tells it
	udpLen uint16
}

// newTemplate lays out packets of a protocol, from the first addresses of the ranges. notice tells what the sizes do not
// allow.
func newTemplate(f *Flows, p Protocol, sizes Sizes, srcMAC, dstMAC net.HardwareAddr, run, stream uint8) (t *template, notice string, err error) {
	t = &template{v6: !f.Src.First.Is4()}
	h := t.header[:]
	if len(srcMAC) != 6 || len(dstMAC) != 6 {
		return nil, "", fmt.Errorf("both MAC addresses are needed")
	}
	if len(sizes) == 0 || len(sizes) > patternMax {
		return nil, "", fmt.Errorf("1 to %d packet sizes are possible", patternMax)
	}
	copy(h[0:], dstMAC)
	copy(h[6:], srcMAC)
	t.proto = [...]byte{protoUDP, protoTCP, protoICMP}[p]
	if t.v6 {
		binary.BigEndian.PutUint16(h[12:], etherIPv6)
		if p == ICMP {
			t.proto = protoICMPv6
		}
		h[14], h[20], h[21] = 0x60, t.proto, 64
		src, dst := f.Src.First.As16(), f.Dst.First.As16()
		copy(h[22:34], src[:12])
		copy(h[38:50], dst[:12])
		t.l4 = 54
	} else {
		binary.BigEndian.PutUint16(h[12:], etherIPv4)
		h[14], h[20], h[22], h[23] = 0x45, 0x40, 64, t.proto // DF
		t.l4 = 34
	}
	switch p {
	case UDP:
		t.check, t.stamp = t.l4+6, t.l4+8
	case TCPSYN:
		h[t.l4+12], h[t.l4+13] = 5<<4, 0x02
		binary.BigEndian.PutUint16(h[t.l4+14:], 0xffff)
		t.check, t.stamp = t.l4+16, t.l4+20
	case ICMP:
		h[t.l4] = 8
		if t.v6 {
			h[t.l4] = 128
		}
		t.check, t.stamp = t.l4+2, t.l4+8
	}
	smallest := SizeMax
	for _, s := range sizes {
		if s < SizeMin || s > SizeMax {
			return nil, "", fmt.Errorf("packet size %d: %d to %d are possible", s, SizeMin, SizeMax)
		}
		smallest = min(smallest, s)
	}
	headers := t.stamp
	if smallest-crcBytes < headers+stampBytes {
		if smallest-crcBytes < headers {
			return nil, "", fmt.Errorf("%d bytes are too small: the headers of these packets need %d", smallest, headers+crcBytes)
		}
		notice = fmt.Sprintf("packets of %d bytes have no room for a stamp (from %d bytes on): a sink does not see them", smallest, headers+stampBytes+crcBytes)
		t.stamp = 0
		t.bytes = headers
	} else {
		binary.BigEndian.PutUint16(h[t.stamp:], stampMagic)
		h[t.stamp+2], h[t.stamp+3] = run, stream
		t.bytes = t.stamp + stampBytes
	}
	for _, s := range sizes {
		t.pattern = append(t.pattern, t.size(s-crcBytes))
	}
	return t, notice, nil
}

// size works out the constant sums of a packet of so many bytes. Everything behind the stamp is zero.
func (t *template) size(n int) size {
	z := size{bytes: n, udpLen: uint16(n - t.l4)}
	c := t.header
	var pseudo [4]byte
	binary.BigEndian.PutUint16(pseudo[0:], uint16(t.proto))
	binary.BigEndian.PutUint16(pseudo[2:], z.udpLen)
	sum := sumOf(c[t.l4:t.bytes])
	if t.v6 {
		z.ipLen = z.udpLen
		sum += sumOf(pseudo[:]) + sumOf(c[22:54])
	} else {
		z.ipLen = uint16(n - ethernetBytes)
		binary.BigEndian.PutUint16(c[16:], z.ipLen)
		z.ipSum = sumOf(c[14:34])
		if t.proto != protoICMP {
			sum += sumOf(pseudo[:])
		}
	}
	if t.proto == protoUDP {
		sum += uint32(swap16(z.udpLen))
	}
	z.l4Sum = sum
	return z
}

// sumOf adds the 16-bit words of b as they lie in memory on a little-endian machine: what is added to it later is loaded
// from memory in the same way. len(b) is even and small.
func sumOf(b []byte) (sum uint32) {
	for ; len(b) > 1; b = b[2:] {
		sum += uint32(binary.LittleEndian.Uint16(b))
	}
	return sum
}

func swap16(v uint16) uint16 { return bits.ReverseBytes16(v) }

// words is the sum of the two halves of a 32-bit word.
func words(v uint32) uint64 { return uint64(v&0xffff) + uint64(v>>16) }

func fold(sum uint64) uint16 {
	sum = sum&0xffffffff + sum>>32
	sum = sum&0xffff + sum>>16
	sum = sum&0xffff + sum>>16
	sum = sum&0xffff + sum>>16
	return uint16(sum)
}

// write makes a packet of the flow in frame, which has room for it, and returns its length. Bytes of frame behind the
// headers and the stamp must be zero.
func (t *template) write(frame []byte, f *Flows, flow uint64, seq uint32, now uint64, turn int) int {
	z := &t.pattern[turn]
	b := (*[headerMax]byte)(frame)
	*b = t.header
	src32, dst32, sport16, dport16 := f.tuple(flow)
	src, dst := bits.ReverseBytes32(src32), bits.ReverseBytes32(dst32)
	sport, dport := swap16(sport16), swap16(dport16)
	addresses := words(src) + words(dst)
	if t.v6 {
		binary.BigEndian.PutUint16(b[18:], z.ipLen)
		binary.LittleEndian.PutUint32(b[34:], src)
		binary.LittleEndian.PutUint32(b[50:], dst)
	} else {
		binary.BigEndian.PutUint16(b[16:], z.ipLen)
		binary.LittleEndian.PutUint16(b[24:], ^fold(uint64(z.ipSum)+addresses))
		binary.LittleEndian.PutUint32(b[26:], src)
		binary.LittleEndian.PutUint32(b[30:], dst)
	}
	sum := uint64(z.l4Sum) + uint64(sport)
	l4 := frame[t.l4:headerMax]
	switch t.proto {
	case protoICMP, protoICMPv6:
		binary.LittleEndian.PutUint16(l4[4:], sport)
		if t.v6 {
			sum += addresses
		}
	default:
		binary.LittleEndian.PutUint16(l4[0:], sport)
		binary.LittleEndian.PutUint16(l4[2:], dport)
		sum += uint64(dport) + addresses
		if t.proto == protoUDP {
			binary.BigEndian.PutUint16(l4[4:], z.udpLen)
		}
	}
	if t.stamp != 0 {
		s := frame[t.stamp : t.stamp+stampBytes]
		binary.BigEndian.PutUint32(s[4:], seq)
		binary.BigEndian.PutUint64(s[8:], now)
		sum += words(bits.ReverseBytes32(seq)) + words(uint32(bits.ReverseBytes64(now))) + words(uint32(bits.ReverseBytes64(now)>>32))
	}
	check := ^fold(sum)
	if check == 0 && t.proto == protoUDP {
		check = 0xffff
	}
	binary.LittleEndian.PutUint16(frame[t.check:], check)
	return z.bytes
}
