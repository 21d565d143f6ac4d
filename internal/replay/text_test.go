package replay

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"pollux/internal/packet"
)

// The language of packets in traces:
//
//	udp  SRC > DST              len N: bytes of payload (8 if not said)    zero: no checksum   half: a half-made one
//	tcp  SRC > DST FLAGS        FLAGS of S, A, F, R; mss N, seq N, ack N (printed if not 0)
//	echo SRC > DST   reply SRC > DST           SRC and DST are addresses; id N, seq N
//	icmp TYPE/CODE SRC > DST [mtu N] about PACKET
//	proto N SRC > DST
//	arp   ipv6                  anything of that kind
//
// and for all: ttl N (64 if not said), ipid N, df, mf, off N (bytes; then no L4 header). Checksums are always right; one
// that is not shows as BAD.
func packetFrom(text string) ([]byte, error) {
	head, about, quotes := strings.Cut(text, " about ")
	w := strings.Fields(head)
	var b packet.Build
	kind := w[0]
	w = w[1:]
	if kind == "arp" {
		f := make([]byte, 60)
		copy(f, []byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2, 0, 0, 0, 0, 9, 8, 6})
		return f, nil
	}
	if kind == "ipv6" {
		return b.IPv6([16]byte{0x20, 1, 15: 1}, [16]byte{0x20, 1, 15: 2}, 59, nil), nil
	}
	var typ string
	if kind == "icmp" || kind == "proto" {
		typ, w = w[0], w[1:]
	}
	if len(w) < 3 || w[1] != ">" {
		return nil, fmt.Errorf("%q: SRC > DST is missing", text)
	}
	var err error
	if b.Src, b.SrcPort, err = endpointFrom(w[0]); err != nil {
		return nil, err
	}
	if b.Dst, b.DstPort, err = endpointFrom(w[2]); err != nil {
		return nil, err
	}
	w = w[3:]
	if kind == "tcp" {
		if len(w) == 0 {
			return nil, fmt.Errorf("%q: flags are missing", text)
		}
		for _, f := range w[0] {
			b.Flags |= map[rune]uint8{'S': packet.TCPSyn, 'A': packet.TCPAck, 'F': packet.TCPFin, 'R': packet.TCPRst}[f]
		}
		w = w[1:]
	}
	o := map[string]int{"len": 8}
	for len(w) > 0 {
		switch k := w[0]; k {
		case "df":
			b.DF = true
		case "mf":
			b.MF = true
		case "zero":
			b.NoChecksum = true
		case "half":
			b.HalfMade = true
		default:
			if len(w) < 2 {
				return nil, fmt.Errorf("%q: %s of what?", text, k)
			}
			if o[k], err = strconv.Atoi(w[1]); err != nil {
				return nil, err
			}
			w = w[1:]
		}
		w = w[1:]
	}
	b.TTL, b.ID, b.FragOff = uint8(o["ttl"]), uint16(o["ipid"]), uint16(o["off"])
	payload := make([]byte, o["len"])
	for i := range payload {
		payload[i] = byte(i)
	}
	if b.FragOff > 0 {
		return b.IP(map[string]uint8{"udp": 17, "tcp": 6, "echo": 1, "reply": 1}[kind], payload), nil
	}
	switch kind {
	case "udp":
		return b.UDP(payload), nil
	case "tcp":
		b.Seq, b.Ack = uint32(o["seq"]), uint32(o["ack"])
		if o["mss"] > 0 {
			b.TCPOptions = []byte{2, 4, byte(o["mss"] >> 8), byte(o["mss"])}
		}
		return b.TCP(payload), nil
	case "echo", "reply":
		b.SrcPort = uint16(o["id"])
		return b.Echo(kind == "reply", uint16(o["seq"]), payload), nil
	case "proto":
		n, err := strconv.Atoi(typ)
		return b.IP(uint8(n), payload), err
	case "icmp":
		var t, c uint8
		if _, err := fmt.Sscanf(typ, "%d/%d", &t, &c); err != nil {
			return nil, err
		}
		quote := payload
		if quotes {
			q, err := packetFrom(about)
			if err != nil {
				return nil, err
			}
			quote = q[packet.EthernetLen:]
			quote = quote[:min(len(quote), 28)]
		}
		return b.ICMP(t, c, uint32(o["mtu"]), quote), nil
	}
	return nil, fmt.Errorf("%q: what is %s?", text, kind)
}

func endpointFrom(s string) (packet.Addr, uint16, error) {
	if ap, err := netip.ParseAddrPort(s); err == nil {
		return packet.AddrFrom(ap.Addr()), ap.Port(), nil
	}
	a, err := netip.ParseAddr(s)
	return packet.AddrFrom(a), 0, err
}

// packetText prints an IPv4 frame in the same language.
func packetText(frame []byte) string {
	var h packet.Headers
	packet.Parse(append([]byte(nil), frame...), &h)
	s := ipText(frame, &h)
	if h.Kind == packet.KindICMPError {
		var q packet.Headers
		if packet.ParseQuoted(frame, &h, &q) {
			s += " about " + ipText(frame, &q)
			if ip := frame[q.L3:q.L4]; packet.Sum(ip, 0) != 0xffff {
				s += " BAD quoted header checksum"
			}
		}
	}
	if err := packet.Verify(frame); err != nil {
		s += " BAD " + err.Error()
	}
	if h.Reason != 0 {
		s += " BAD " + h.Reason.String()
	}
	return s
}

func ipText(frame []byte, h *packet.Headers) string {
	var s string
	l4 := frame[h.L4:]
	withPorts := fmt.Sprintf("%v:%d > %v:%d", h.Src, h.SrcPort, h.Dst, h.DstPort)
	bare := fmt.Sprintf("%v > %v", h.Src, h.Dst)
	payload := int(h.Len) - int(h.L4-h.L3)
	switch h.Kind {
	case packet.KindTCP:
		flags := ""
		for _, f := range []struct {
			bit  uint8
			name string
		}{{packet.TCPSyn, "S"}, {packet.TCPFin, "F"}, {packet.TCPRst, "R"}, {packet.TCPAck, "A"}} {
			if h.TCPFlags&f.bit != 0 {
				flags += f.name
			}
		}
		s = "tcp " + withPorts
		if flags != "" { // a quoted packet may end before them
			s += " " + flags
		}
		payload -= 20
		if len(l4) >= 24 && l4[12] == 0x60 {
			payload -= 4
			s += fmt.Sprintf(" mss %d", binary.BigEndian.Uint16(l4[22:24]))
		}
		if len(l4) >= 20 { // a quote may end before that
			for i, name := range []string{"seq", "ack"} {
				if n := binary.BigEndian.Uint32(l4[4+4*i:]); n != 0 {
					s += fmt.Sprintf(" %s %d", name, n)
				}
			}
		}
	case packet.KindUDP:
		s = "udp " + withPorts
		payload -= 8
	case packet.KindICMPQuery:
		s = map[uint8]string{8: "echo ", 0: "reply "}[h.ICMPType] + bare + fmt.Sprintf(" id %d seq %d", h.SrcPort, binary.BigEndian.Uint16(l4[6:8]))
		payload -= 8
	case packet.KindICMPError:
		s = fmt.Sprintf("icmp %d/%d %s", h.ICMPType, h.ICMPCode, bare)
		if mtu := binary.BigEndian.Uint16(l4[6:8]); mtu != 0 {
			s += fmt.Sprintf(" mtu %d", mtu)
		}
		payload = 8
	case packet.KindLaterFragment:
		s = map[uint8]string{17: "udp ", 6: "tcp ", 1: "echo "}[h.Proto] + bare
	default:
		s = fmt.Sprintf("proto %d %s", h.Proto, bare)
	}
	if payload != 8 {
		s += fmt.Sprintf(" len %d", payload)
	}
	if h.TTL != 64 {
		s += fmt.Sprintf(" ttl %d", h.TTL)
	}
	if h.FragID != 0 {
		s += fmt.Sprintf(" ipid %d", h.FragID)
	}
	if h.Flags&packet.FlagDF != 0 && h.Kind != packet.KindICMPError {
		s += " df"
	}
	if h.Flags&packet.FlagMF != 0 {
		s += " mf"
	}
	if h.FragOff != 0 {
		s += fmt.Sprintf(" off %d", h.FragOff)
	}
	if h.Flags&packet.FlagZeroChecksum != 0 {
		s += " zero"
	}
	return s
}
