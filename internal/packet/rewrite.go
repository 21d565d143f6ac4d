package packet

import "encoding/binary"

// SetEndpoints gives a packet new endpoints and keeps its checksums right by incremental update (RFC 1624): the IPv4
// header's, and TCP's or UDP's, also when only the first fragment is there. h says where things are, as Parse or
// ParseQuoted filled it; the old values are read from the frame. Of a later fragment, an ICMP error and other protocols
// only the addresses change. An ICMP query's id becomes sport if that differs from the id in the frame, else dport.
func SetEndpoints(frame []byte, h *Headers, src Addr, sport uint16, dst Addr, dport uint16) {
	ip := frame[h.L3 : int(h.L3)+IPv4Len]
	delta := AddDelta(
		DeltaAddr(Addr(binary.BigEndian.Uint32(ip[12:16])), src),
		DeltaAddr(Addr(binary.BigEndian.Uint32(ip[16:20])), dst))
	binary.BigEndian.PutUint32(ip[12:16], uint32(src))
	binary.BigEndian.PutUint32(ip[16:20], uint32(dst))
	update(ip, 10, delta, false)
	l4 := frame[h.L4:]
	switch h.Kind {
	case KindTCP:
		delta = AddDelta(delta, setPorts(l4, sport, dport))
		if len(l4) >= 18 && h.holds(18) {
			update(l4, 16, delta, false)
		}
	case KindUDP:
		update(l4, 6, AddDelta(delta, setPorts(l4, sport, dport)), true)
	case KindICMPQuery:
		id := binary.BigEndian.Uint16(l4[4:6])
		if sport == id {
			sport = dport
		}
		binary.BigEndian.PutUint16(l4[4:6], sport)
		update(l4, 2, Delta16(id, sport), false)
	}
}

// SetQuoted is SetEndpoints for the packet q that the ICMP error outer quotes (see ParseQuoted), and keeps the error's own
// checksum right too. A quoted L4 checksum is updated if the quote reaches it, and never verified.
func SetQuoted(frame []byte, outer, q *Headers, src Addr, sport uint16, dst Addr, dport uint16) {
	frame = frame[:int(outer.L3)+int(outer.Len)]
	touched := frame[q.L3:min(int(q.L4)+TCPLen, len(frame))]
	before := Sum(touched, 0)
	SetEndpoints(frame, q, src, sport, dst, dport)
	update(frame, int(outer.L4)+2, Delta16(before, Sum(touched, 0)), false)
}

// holds reports whether n bytes of L4 header lie inside the IP packet as its own length has it.
func (h *Headers) holds(n int) bool { return int(h.L3)+int(h.Len) >= int(h.L4)+n }

// setPorts writes both ports and returns the delta.
func setPorts(l4 []byte, sport, dport uint16) uint16 {
	b := (*[4]byte)(l4)
	delta := AddDelta(
		Delta16(binary.BigEndian.Uint16(b[0:2]), sport),
		Delta16(binary.BigEndian.Uint16(b[2:4]), dport))
	binary.BigEndian.PutUint16(b[0:2], sport)
	binary.BigEndian.PutUint16(b[2:4], dport)
	return delta
}

// Restore gives a rewritten packet the addresses, ports or id, and TTL back that it had when it was parsed into h, so that
// it can be quoted or handed on as it was received. Checksums are updated incrementally, which gives the same bytes for
// every checksum that a sender computes (the other notation of zero, 0xffff in a TCP or IPv4 header, becomes 0). What else
// was changed stays: a clamped MSS, a completed checksum, the quote of an ICMP error.
func Restore(frame []byte, h *Headers) {
	switch h.Kind {
	case KindIPv6:
		frame[h.L3+7] = h.TTL
	case KindTCP, KindUDP, KindICMPQuery, KindICMPError, KindOther, KindICMPOther, KindLaterFragment:
		SetEndpoints(frame, h, h.Src, h.SrcPort, h.Dst, h.DstPort)
		setTTL(frame[h.L3:], h.TTL)
	}
}

// DecrementTTL takes one from the TTL (hop limit) of the packet in frame. The caller has made sure that it is not 0.
func DecrementTTL(frame []byte, h *Headers) {
	if h.Kind == KindIPv6 {
		frame[h.L3+7]--
		return
	}
	ip := frame[h.L3:]
	setTTL(ip, ip[8]-1)
}

func setTTL(ip []byte, ttl uint8) {
	update(ip, 10, Delta16(uint16(ip[8])<<8, uint16(ttl)<<8), false)
	ip[8] = ttl
}

// ClampMSS lowers the maximum segment size that a TCP SYN offers to mss and keeps the checksum right. It reports whether
// it changed the packet. A SYN without the option is left alone (RFC 9293 3.7.1: that means 536).
func ClampMSS(frame []byte, h *Headers, mss uint16) bool {
	if h.Kind != KindTCP || h.TCPFlags&TCPSyn == 0 {
		return false
	}
	tcp := frame[h.L4:]
	end := int(tcp[12]>>4) * 4
	if end > len(tcp) || !h.holds(end) {
		return false
	}
	for i := TCPLen; i < end; {
		switch tcp[i] {
		case 0: // end of options
			return false
		case 1: // padding
			i++
			continue
		}
		if i+1 >= end || tcp[i+1] < 2 || i+int(tcp[i+1]) > end {
			return false
		}
		if tcp[i] == 2 && tcp[i+1] == 4 {
			old := binary.BigEndian.Uint16(tcp[i+2 : i+4])
			if old <= mss {
				return false
			}
			binary.BigEndian.PutUint16(tcp[i+2:i+4], mss)
			delta := Delta16(old, mss)
			if i%2 == 1 { // the value straddles two words of the sum
				delta = delta<<8 | delta>>8
			}
			update(tcp, 16, delta, false)
			return true
		}
		i += int(tcp[i+1])
	}
	return false
}
