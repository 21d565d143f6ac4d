package packet

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"strings"
	"testing"

	"pollux/internal/reason"
)

// unhex turns "name: aabb cc" lines into bytes; what stands before a colon is for the reader.
func unhex(t testing.TB, text string) []byte {
	t.Helper()
	var out []byte
	for line := range strings.Lines(text) {
		if i := strings.IndexByte(line, ':'); i >= 0 {
			line = line[i+1:]
		}
		b, err := hex.DecodeString(strings.Join(strings.Fields(line), ""))
		if err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		out = append(out, b...)
	}
	return out
}

const (
	hexEthernet = "destination MAC: 020000000001\nsource MAC: 020000000002\nethertype: 0800\n"
	hexUDP      = hexEthernet + `
		version, IHL, TOS: 45 00
		total length 32:   0020
		id, flags DF:      1234 4000
		TTL, protocol:     40 11
		header checksum:   f463
		source 10.0.0.1:   0a000001
		to 198.51.100.1:   c6336401
		ports 1234, 53:    04d2 0035
		UDP length 12:     000c
		UDP checksum:      01d3
		payload:           61626364`
)

func TestParseByHand(t *testing.T) {
	udp := Headers{Src: 0x0a000001, Dst: 0xc6336401, SrcPort: 1234, DstPort: 53, L3: 14, L4: 34, Len: 32, FragID: 0x1234,
		Kind: KindUDP, Proto: ProtoUDP, TTL: 64, Flags: FlagDF | FlagUnicastMAC | FlagPlain}
	with := func(h Headers, change func(*Headers)) Headers { change(&h); return h }
	cases := []struct {
		name, hex string
		want      Headers
	}{
		{"UDP", hexUDP, udp},
		{"UDP with Ethernet padding", hexUDP + "\npadding: ffffffffffffffff ffffffff", udp},
		{"UDP without checksum, multicast MAC", strings.NewReplacer("01d3", "0000", "020000000001", "01005e000001").Replace(hexUDP),
			with(udp, func(h *Headers) { h.Flags = FlagDF | FlagZeroChecksum })},
		{"UDP half-made: field is the sum of the pseudo header", strings.Replace(hexUDP, "01d3", "3453", 1),
			with(udp, func(h *Headers) { h.Flags |= FlagL4Completed })},
		{"TCP SYN", hexEthernet + `
			IP header:        45 00 002c 0001 0000 40 06 3c96 14000001 c6336401
			ports 80, 5000:   0050 1388
			seq, ack:         00000001 00000000
			offset 6, SYN:    60 02
			window, sum, urg: ffff 0000 0000
			MSS 1460:         02 04 05b4`,
			Headers{Src: 0x14000001, Dst: 0xc6336401, SrcPort: 80, DstPort: 5000, L3: 14, L4: 34, Len: 44, FragID: 1,
				Kind: KindTCP, Proto: ProtoTCP, TTL: 64, TCPFlags: TCPSyn, Flags: FlagUnicastMAC | FlagPlain}},
		{"ARP", "020000000001 020000000002 0806 0001", Headers{L3: 14, Kind: KindARP, Flags: FlagUnicastMAC}},
		{"VLAN tag", "020000000001 020000000002 8100 0001 0800", Headers{L3: 14, Kind: KindNotIP, Flags: FlagUnicastMAC}},
		{"too short for Ethernet", "0200", Headers{L3: 14, Reason: reason.BadHeader}},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			frame := unhex(t, c.hex)
			var h Headers
			Parse(frame, &h)
			if h != c.want {
				t.Errorf("got  %+v\nwant %+v", h, c.want)
			}
			if h.Flags&FlagL4Completed != 0 && !bytes.Equal(frame, unhex(t, hexUDP)) {
				t.Errorf("completed to\n%x, want\n%x", frame, unhex(t, hexUDP))
			}
		})
	}
}

// resum makes the IPv4 header checksum right again after a change.
func resum(frame []byte) []byte {
	if n := int(frame[14]&15) * 4; len(frame) >= 14+n && n >= 20 {
		putSum(frame[14:14+n], 10)
	}
	return frame
}

var plain = Build{Src: 0x0a000001, Dst: 0xc6336401, SrcPort: 1234, DstPort: 53}

// poke returns a copy of frame with a byte changed and the header checksum made right.
func poke(frame []byte, off int, to ...byte) []byte {
	frame = bytes.Clone(frame)
	copy(frame[off:], to)
	return resum(frame)
}

func TestParseRefuses(t *testing.T) {
	b := plain
	udp, tcp, icmp := b.UDP(make([]byte, 30)), b.TCP(make([]byte, 10)), b.Echo(false, 1, nil)
	first := b
	first.MF = true
	second := b
	second.FragOff = 8
	from := func(a Addr) []byte { f := b; f.Src = a; return f.UDP(make([]byte, 30)) }
	wrong := bytes.Clone(udp)
	wrong[24] ^= 1
	wrongOptions := b
	wrongOptions.Options = make([]byte, 8)
	wrongLong := wrongOptions.UDP(nil)
	wrongLong[40] ^= 1
	cases := []struct {
		name  string
		frame []byte
		want  reason.Reason
	}{
		{"good UDP", udp, reason.None},
		{"good TCP", tcp, reason.None},
		{"good echo", icmp, reason.None},
		{"IP header cut", udp[:33], reason.BadHeader},
		{"version 5", poke(udp, 14, 0x55), reason.BadHeader},
		{"IHL 4", poke(udp, 14, 0x44), reason.BadHeader},
		{"IHL beyond total length", poke(udp, 16, 0, 19), reason.BadHeader},
		{"total length one beyond the frame", poke(udp, 16, 0, byte(len(udp)-14+1)), reason.BadHeader},
		{"header checksum", wrong, reason.BadChecksum},
		{"header checksum, options", wrongLong, reason.BadChecksum},
		{"UDP cut", b.IP(ProtoUDP, make([]byte, 7)), reason.BadHeader},
		{"UDP length 7", poke(udp, 38, 0, 7), reason.BadHeader},
		{"UDP length one beyond the IP payload", poke(udp, 38, 0, 39), reason.BadHeader},
		{"UDP length within the IP payload", poke(udp, 38, 0, 37), reason.None},
		{"UDP length beyond the IP payload of a first fragment", poke(first.UDP(make([]byte, 8)), 38, 5, 0), reason.None},
		{"first fragment too small for UDP", first.IP(ProtoUDP, make([]byte, 4)), reason.BadHeader},
		{"TCP cut", b.IP(ProtoTCP, make([]byte, 19)), reason.BadHeader},
		{"TCP data offset 4", poke(tcp, 46, 0x40), reason.BadHeader},
		{"TCP data offset beyond the packet", poke(tcp, 46, 0x80), reason.BadHeader},
		{"TCP data offset at the end of the packet", poke(tcp, 46, 0x70), reason.None},
		{"tiny first TCP fragment (RFC 1858)", first.IP(ProtoTCP, make([]byte, 8)), reason.BadHeader},
		{"first TCP fragment without its options", poke(first.TCP(make([]byte, 4)), 46, 0x70), reason.BadHeader},
		{"TCP fragment at offset 8 (RFC 1858)", second.IP(ProtoTCP, make([]byte, 32)), reason.BadHeader},
		{"UDP fragment at offset 8", second.IP(ProtoUDP, make([]byte, 32)), reason.None},
		{"ICMP cut", b.IP(ProtoICMP, make([]byte, 7)), reason.BadHeader},
		{"ICMP redirect", b.ICMP(5, 0, 0, make([]byte, 28)), reason.None},
		{"echo with a code", b.ICMP(8, 1, 0, nil), reason.None},
		{"ICMP unreachable", b.ICMP(3, 1, 0, nil), reason.None},
		{"from 0.0.0.0", from(0), reason.BadSource},
		{"from 0.1.2.3", from(0x00010203), reason.BadSource},
		{"from 1.0.0.0", from(0x01000000), reason.None},
		{"from 126.255.255.255", from(0x7effffff), reason.None},
		{"from 127.0.0.1", from(0x7f000001), reason.BadSource},
		{"from 128.0.0.0", from(0x80000000), reason.None},
		{"from 223.255.255.255", from(0xdfffffff), reason.None},
		{"from 224.0.0.0", from(0xe0000000), reason.BadSource},
		{"from 240.0.0.1", from(0xf0000001), reason.BadSource},
		{"from 255.255.255.255", from(0xffffffff), reason.BadSource},
		{"IPv6 cut", b.IPv6([16]byte{}, [16]byte{}, 17, nil)[:53], reason.BadHeader},
		{"IPv6 longer than the frame", b.IPv6([16]byte{}, [16]byte{}, 17, make([]byte, 8))[:61], reason.BadHeader},
		{"IPv6", b.IPv6([16]byte{}, [16]byte{}, 17, make([]byte, 8)), reason.None},
	}
	for _, c := range cases {
		var h Headers
		Parse(bytes.Clone(c.frame), &h)
		if h.Reason != c.want {
			t.Errorf("%s: reason %v, want %v", c.name, h.Reason, c.want)
		}
		if refused := h.Reason != 0; refused != (h.Kind == KindNone) {
			t.Errorf("%s: kind %d does not go with reason %v", c.name, h.Kind, h.Reason)
		}
	}
}

// A half-made checksum is completed for every protocol that a kernel leaves unfinished, and only for whole packets.
func TestHalfMade(t *testing.T) {
	b := plain
	b.HalfMade = true
	whole := plain
	fragment := b
	fragment.MF = true
	pad := b
	pad.Pad = 60
	short := whole.UDP([]byte("odd"))
	shorter := poke(short, 38, 0, 10)           // UDP ends before IP does
	binary.BigEndian.PutUint16(shorter[40:], 0) // whole sum over what UDP's own length covers
	sum := ^Sum(shorter[34:44], pseudo4(b.Src, b.Dst, 17, 10))
	binary.BigEndian.PutUint16(shorter[40:], sum)
	shorterHalf := bytes.Clone(shorter)
	binary.BigEndian.PutUint16(shorterHalf[40:], fold(pseudo4(b.Src, b.Dst, 17, 10)))
	// No checksum is not half of one, not even where the pseudo header's sum is the other notation of zero.
	silent := plain
	silent.NoChecksum, silent.Pad = true, 60
	silent.Dst = Addr(^fold(pseudo4(silent.Src, 0, 17, 8))) << 16
	if fold(pseudo4(silent.Src, silent.Dst, 17, 8)) != 0xffff {
		t.Fatal("not the case it should be")
	}
	cases := []struct {
		name      string
		in, want  []byte
		completed bool
	}{
		{"UDP without checksum", silent.UDP(nil), silent.UDP(nil), false},
		{"UDP", b.UDP([]byte("odd")), whole.UDP([]byte("odd")), true},
		{"UDP, fast path", pad.UDP([]byte("odd")), append(whole.UDP([]byte("odd")), make([]byte, 60-45)...), true},
		{"UDP shorter than IP", shorterHalf, shorter, true},
		{"TCP", b.TCP([]byte("odd")), whole.TCP([]byte("odd")), true},
		{"TCP, long", b.TCP(bytes.Repeat([]byte{7}, 1460)), whole.TCP(bytes.Repeat([]byte{7}, 1460)), true},
		{"UDP already whole", whole.UDP([]byte("odd")), whole.UDP([]byte("odd")), false},
		{"UDP first fragment", fragment.UDP(make([]byte, 16)), fragment.UDP(make([]byte, 16)), false},
	}
	for _, c := range cases {
		frame := bytes.Clone(c.in)
		var h Headers
		Parse(frame, &h)
		if !bytes.Equal(frame, c.want) {
			t.Errorf("%s: got\n%x, want\n%x", c.name, frame, c.want)
		}
		if got := h.Flags&FlagL4Completed != 0; got != c.completed {
			t.Errorf("%s: completed is %v", c.name, got)
		}
	}
}

// Verify finds every wrong byte that a checksum covers, takes a half-made checksum for wrong, and a right one that happens to
// be the pseudo header's sum for right.
func TestVerify(t *testing.T) {
	for _, frame := range [][]byte{plain.UDP([]byte("abc")), plain.TCP([]byte("abc")), plain.Echo(false, 1, []byte("abc"))} {
		if err := Verify(frame); err != nil {
			t.Error(err)
		}
		for i := 14; i < len(frame); i++ {
			frame[i] ^= 0x10
			if Verify(frame) == nil && !(i >= 40 && i < 42 && frame[40]|frame[41] == 0) {
				t.Errorf("byte %d changed and nobody noticed in %x", i, frame)
			}
			frame[i] ^= 0x10
		}
	}
	half := plain
	half.HalfMade = true
	if Verify(half.TCP([]byte("abc"))) == nil {
		t.Error("a half-made checksum passes")
	}
	// The payload that makes the rest of the datagram sum up to the complement of twice the pseudo header.
	chance := plain.UDP(make([]byte, 2))
	pseudo := fold(pseudo4(plain.Src, plain.Dst, 17, 10))
	rest := fold(uint32(Sum(chance[34:40], 0)) + 2*uint32(pseudo))
	binary.BigEndian.PutUint16(chance[40:], pseudo)
	binary.BigEndian.PutUint16(chance[42:], ^rest)
	var h Headers
	if Parse(bytes.Clone(chance), &h); h.Flags&FlagL4Completed == 0 {
		t.Fatal("not the case it should be")
	}
	if err := Verify(chance); err != nil {
		t.Error(err)
	}
}

func TestHalfMadeIPv6(t *testing.T) {
	src, dst := [16]byte{0x20, 1, 15: 1}, [16]byte{0x20, 1, 15: 2}
	for next, field := range map[uint8]int{ProtoTCP: 16, ProtoUDP: 6, ProtoICMPv6: 2} {
		for _, n := range []int{20, 21, 1000} {
			frame := plain.IPv6(src, dst, next, bytes.Repeat([]byte{0xa5}, n))
			pseudo := uint32(Sum(frame[22:54], 0)) + uint32(n) + uint32(next)
			binary.BigEndian.PutUint16(frame[54+field:], fold(pseudo))
			var h Headers
			Parse(frame, &h)
			if h.Kind != KindIPv6 || h.Flags&FlagL4Completed == 0 || h.Proto != next || int(h.Len) != 40+n || h.TTL != 64 {
				t.Fatalf("next header %d: %+v", next, h)
			}
			if s := Sum(frame[54:], pseudo); s != 0xffff {
				t.Errorf("next header %d, %d bytes: sum with the completed checksum is %#x", next, n, s)
			}
		}
	}
	frame := plain.IPv6(src, dst, 44, make([]byte, 30)) // fragment header: not ours to touch
	want := bytes.Clone(frame)
	var h Headers
	Parse(frame, &h)
	if !bytes.Equal(frame, want) || h.Flags&FlagL4Completed != 0 {
		t.Error("an IPv6 fragment was changed")
	}
}

func TestParseQuoted(t *testing.T) {
	inner := plain
	inner.TTL = 1
	udp, tcp := inner.UDP(make([]byte, 50))[14:], inner.TCP(nil)[14:]
	options := inner
	options.Options = make([]byte, 8)
	later := inner
	later.FragOff = 800
	cases := []struct {
		name  string
		quote []byte
		ok    bool
		kind  Kind
	}{
		{"whole UDP", udp, true, KindUDP},
		{"UDP, 8 bytes", udp[:28], true, KindUDP},
		{"UDP, 7 bytes", udp[:27], false, KindNone},
		{"TCP, 8 bytes", tcp[:28], true, KindTCP},
		{"options, 8 bytes", options.UDP(nil)[14:], true, KindUDP},
		{"options, 7 bytes", options.UDP(nil)[14:49], false, KindNone},
		{"echo", inner.Echo(false, 1, nil)[14:], true, KindICMPQuery},
		{"another error", inner.ICMP(3, 0, 0, udp)[14:], true, KindICMPError},
		{"later fragment", later.IP(ProtoUDP, make([]byte, 8))[14:], true, KindLaterFragment},
		{"ESP", inner.IP(ProtoESP, make([]byte, 8))[14:], true, KindOther},
		{"IPv6", append([]byte{0x60}, make([]byte, 60)...), false, KindNone},
		{"nothing", nil, false, KindNone},
	}
	for _, c := range cases {
		outer := Build{Src: 0xcb007101, Dst: 0x0a000001, Pad: 60}
		frame := outer.ICMP(ICMPTimeExceeded, 0, 0, c.quote)
		var h, q Headers
		Parse(frame, &h)
		ok := ParseQuoted(frame, &h, &q)
		if ok != c.ok || ok && q.Kind != c.kind {
			t.Errorf("%s: ok %v kind %d, want %v %d", c.name, ok, q.Kind, c.ok, c.kind)
		}
		if !ok {
			continue
		}
		if q.Src != inner.Src || q.Dst != inner.Dst || q.TTL != 1 || q.L3 != 42 {
			t.Errorf("%s: %+v", c.name, q)
		}
		if (c.kind == KindUDP || c.kind == KindTCP) && (q.SrcPort != 1234 || q.DstPort != 53) {
			t.Errorf("%s: ports %d, %d", c.name, q.SrcPort, q.DstPort)
		}
	}
	var h, q Headers
	frame := plain.UDP(make([]byte, 60))
	if Parse(frame, &h); ParseQuoted(frame, &h, &q) {
		t.Error("a UDP datagram quotes nothing")
	}
}

// What lies behind a quoted packet's own end (padding and extensions, RFC 4884) is not taken for its checksum.
func TestSetQuotedStaysInside(t *testing.T) {
	quote := append(plain.IP(ProtoTCP, make([]byte, 8))[14:], bytes.Repeat([]byte{0xee}, 40)...)
	frame := Build{Src: 0xcb007101, Dst: 0x0a000001}.ICMP(ICMPTimeExceeded, 0, 0, quote)
	var h, q Headers
	Parse(frame, &h)
	if !ParseQuoted(frame, &h, &q) {
		t.Fatal("no quote")
	}
	SetQuoted(frame, &h, &q, 1<<24, 2, 3, 4)
	if !bytes.Equal(frame[int(q.L4)+8:], quote[28:]) {
		t.Errorf("changed behind the quoted packet: %x", frame[q.L4:])
	}
	if err := Verify(frame); err != nil {
		t.Error(err)
	}
}

// The fast path is only a shortcut: on any frame it says what the general path says.
func FuzzParse(f *testing.F) {
	first := plain
	first.MF = true
	half := plain
	half.HalfMade, half.Pad = true, 60
	f.Add(plain.UDP(make([]byte, 30)))
	f.Add(plain.TCP(make([]byte, 30)))
	f.Add(first.UDP(make([]byte, 30)))
	f.Add(half.TCP(nil))
	f.Add(half.UDP(nil))
	f.Add(plain.Echo(true, 9, nil))
	f.Add(plain.ICMP(3, 4, 1400, plain.UDP(nil)[14:]))
	f.Add(plain.IPv6([16]byte{1}, [16]byte{2}, ProtoUDP, make([]byte, 20)))
	f.Fuzz(func(t *testing.T, frame []byte) {
		for _, fix := range []bool{false, true} {
			if fix && len(frame) > 14 {
				frame = resum(bytes.Clone(frame)) // otherwise nearly all ends as a bad checksum
			}
			fast, general := bytes.Clone(frame), bytes.Clone(frame)
			h, g := Headers{Src: 1, Kind: 99, ICMPType: 7, FragOff: 9}, Headers{}
			Parse(fast, &h)
			parseGeneral(general, &g)
			if h != g || !bytes.Equal(fast, general) {
				t.Fatalf("paths differ on %x:\nfast    %+v\ngeneral %+v", frame, h, g)
			}
			if h.Reason == 0 && h.Kind >= KindTCP && h.Kind <= KindLaterFragment {
				if int(h.L3)+int(h.Len) > len(frame) || h.L4 < h.L3+20 || h.L4 > h.L3+h.Len {
					t.Fatalf("accepted with places outside the packet: %+v", h)
				}
			}
			if h.Flags&FlagL4Completed == 0 && !bytes.Equal(fast, frame) {
				t.Fatal("changed a frame without saying so")
			}
		}
	})
}

func FuzzParseQuoted(f *testing.F) {
	f.Add(plain.ICMP(3, 4, 1400, plain.UDP(nil)[14:]))
	f.Add(plain.ICMP(11, 0, 0, plain.TCP(nil)[14:42]))
	f.Add(plain.ICMP(11, 0, 0, plain.Echo(false, 1, nil)[14:]))
	f.Fuzz(func(t *testing.T, frame []byte) {
		if len(frame) > 14 {
			resum(frame)
		}
		var h, q Headers
		Parse(frame, &h)
		if h.Reason != 0 || !ParseQuoted(frame, &h, &q) {
			return
		}
		end := int(h.L3) + int(h.Len)
		if q.L3 < h.L4+8 || int(q.L4)+8 > end {
			t.Fatalf("quote outside its error: %+v in %+v", q, h)
		}
		before := bytes.Clone(frame)
		icmp := Sum(frame[h.L4:end], 0)
		SetQuoted(frame, &h, &q, 0x01020304, 5, 0x06070809, 10)
		if after := Sum(frame[h.L4:end], 0); after != icmp && !(after == 0 || icmp == 0) {
			t.Fatalf("ICMP sum was %#x, is %#x", icmp, after)
		}
		if !bytes.Equal(frame[:h.L4], before[:h.L4]) || !bytes.Equal(frame[end:], before[end:]) {
			t.Fatal("changed bytes outside the ICMP message")
		}
	})
}
