package control

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"net/netip"
	"strconv"
	"strings"

	"pollux/internal/packet"
)

// ParsePacket reads a packet as people write it, and returns a frame whose destination MAC is zeros where none was given:
//
//	udp 10.0.0.2:5000 -> 198.51.100.9:53     also tcp (a SYN) and icmp 10.0.0.2 -> 198.51.100.9 (an echo request)
//	47 10.0.0.2 -> 198.51.100.9              a protocol by its number
//	... ttl 1 len 1500 df id 77 syn ack fin rst reply
//	45 00 00 1c ...                          hex: an IPv4 packet, or a frame with its Ethernet header
func ParsePacket(text string) ([]byte, error) {
	if b, ok, err := parseHex(text); ok || err != nil {
		return b, err
	}
	words := strings.Fields(strings.ReplaceAll(text, "->", " "))
	if len(words) < 3 {
		return nil, fmt.Errorf(`packet is %q; allowed: PROTO SRC[:PORT] -> DST[:PORT] as "udp 10.0.0.2:5000 -> 198.51.100.9:53", or hex`, text)
	}
	proto, err := parseProto(words[0])
	if err != nil {
		return nil, err
	}
	ports := proto == packet.ProtoTCP || proto == packet.ProtoUDP
	b := packet.Build{ID: 1}
	if b.Src, b.SrcPort, err = parsePoint("source", words[1], ports); err != nil {
		return nil, err
	}
	if b.Dst, b.DstPort, err = parsePoint("destination", words[2], ports); err != nil {
		return nil, err
	}
	w := wish{b: b, proto: proto, id: 1}
	if err := w.options(words[3:]); err != nil {
		return nil, err
	}
	return w.frame()
}

// parseHex reads hex digits; ok false: it is none.
func parseHex(text string) (frame []byte, ok bool, err error) {
	digits := strings.NewReplacer(" ", "", ":", "", "\n", "", "\t", "").Replace(text)
	if strings.Trim(digits, "0123456789abcdefABCDEF") != "" || len(digits) < 2*packet.EthernetLen {
		return nil, false, nil
	}
	b, err := hex.DecodeString(digits)
	if err != nil {
		return nil, true, fmt.Errorf("packet has %d hex digits; allowed: two for each byte", len(digits))
	}
	if len(b) >= packet.IPv4Len && b[0]>>4 == 4 && b[0]&15 >= 5 && int(binary.BigEndian.Uint16(b[2:])) <= len(b) && binary.BigEndian.Uint16(b[2:]) >= packet.IPv4Len {
		return append([]byte{0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 2, 8, 0}, b...), true, nil
	}
	return b, true, nil
}

func parsePoint(what, text string, ports bool) (packet.Addr, uint16, error) {
	if ports {
		if p, err := netip.ParseAddrPort(text); err == nil && p.Addr().Is4() {
			return packet.AddrFrom(p.Addr()), p.Port(), nil
		}
		return 0, 0, fmt.Errorf("%s is %q; allowed: an IPv4 address and port as 10.0.0.2:5000", what, text)
	}
	if a, err := netip.ParseAddr(text); err == nil && a.Is4() {
		return packet.AddrFrom(a), 0, nil
	}
	return 0, 0, fmt.Errorf("%s is %q; allowed: an IPv4 address, without a port for this protocol", what, text)
}

// wish is a packet as it is asked for.
type wish struct {
	b      packet.Build
	proto  uint8
	length int // IP total length, 0: as short as can be
	id     uint16
	reply  bool
}

func (w *wish) options(words []string) error {
	for i := 0; i < len(words); i++ {
		number := func(low, high int) (n int, err error) {
			name := words[i]
			if i++; i < len(words) {
				if n, err = strconv.Atoi(words[i]); err == nil && n >= low && n <= high {
					return n, nil
				}
			}
			return 0, fmt.Errorf("%s: needs a number from %d to %d", name, low, high)
		}
		n, err := 0, error(nil)
		switch words[i] {
		case "ttl":
			n, err = number(1, 255)
			w.b.TTL = uint8(n)
		case "len":
			w.length, err = number(20, 65535)
		case "id":
			n, err = number(0, 65535)
			w.id = uint16(n)
		case "df":
			w.b.DF = true
		case "reply":
			w.reply = true
		case "syn":
			w.b.Flags |= packet.TCPSyn
		case "ack":
			w.b.Flags |= packet.TCPAck
		case "fin":
			w.b.Flags |= packet.TCPFin
		case "rst":
			w.b.Flags |= packet.TCPRst
		default:
			err = fmt.Errorf("packet: %q is not known; allowed after the endpoints: ttl N, len N, df, id N and reply (icmp), syn, ack, fin, rst (tcp)", words[i])
		}
		if err != nil {
			return err
		}
	}
	switch {
	case w.b.Flags != 0 && w.proto != packet.ProtoTCP:
		return errors.New("syn, ack, fin and rst are TCP's")
	case (w.reply || w.id != 1) && w.proto != packet.ProtoICMP:
		return errors.New("id and reply are ICMP's")
	}
	return nil
}

func (w *wish) frame() ([]byte, error) {
	head := map[uint8]int{packet.ProtoTCP: packet.TCPLen, packet.ProtoUDP: packet.UDPLen, packet.ProtoICMP: packet.ICMPLen}[w.proto] + packet.IPv4Len
	if w.length == 0 {
		w.length = head
	}
	if w.length < head {
		return nil, fmt.Errorf("len is %d; allowed: at least the headers, %d bytes", w.length, head)
	}
	payload := make([]byte, w.length-head)
	var f []byte
	switch w.proto {
	case packet.ProtoTCP:
		if w.b.Flags == 0 {
			w.b.Flags = packet.TCPSyn
		}
		f = w.b.TCP(payload)
	case packet.ProtoUDP:
		f = w.b.UDP(payload)
	case packet.ProtoICMP:
		w.b.SrcPort = w.id
		f = w.b.Echo(w.reply, 1, payload)
	default:
		f = w.b.IP(w.proto, payload)
	}
	clear(f[:6])
	return f, nil
}
