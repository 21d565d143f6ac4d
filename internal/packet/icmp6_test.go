package packet

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"testing"
)

var (
	six1 = netip.MustParseAddr("2001:db8:1::2").As16()
	six2 = netip.MustParseAddr("2001:db8:2::9").As16()
	sixG = netip.MustParseAddr("2001:db8:1::1").As16()
)

func TestICMPv6Error(t *testing.T) {
	for _, payload := range []int{0, 1, 100, 1232, 1460, 4000} {
		frame := Build{}.IPv6(six1, six2, ProtoUDP, bytes.Repeat([]byte{7}, payload))
		var h Headers
		Parse(frame, &h)
		before := bytes.Clone(frame)
		dst := bytes.Repeat([]byte{0xee}, ICMPv6ErrorMax)
		n := ICMPv6Error(dst, frame, &h, &sixG, ICMPv6TooBig, 0, 1400)
		if want := min(EthernetLen+IPv6Len+ICMPLen+IPv6Len+payload, ICMPv6ErrorMax); n != want {
			t.Fatalf("%d bytes of payload: the error measures %d, want %d", payload, n, want)
		}
		if !bytes.Equal(frame, before) {
			t.Fatal("the packet was changed")
		}
		e := dst[:n]
		var eh Headers
		parseGeneral(e, &eh)
		if eh.Kind != KindIPv6 || eh.Reason != 0 || int(eh.Len) != n-EthernetLen || eh.Proto != ProtoICMPv6 {
			t.Fatalf("the error parses as %+v", eh)
		}
		if !bytes.Equal(e[22:38], sixG[:]) || !bytes.Equal(e[38:54], six1[:]) || !bytes.Equal(e[0:6], frame[6:12]) || !bytes.Equal(e[6:12], frame[0:6]) {
			t.Error("wrong addresses")
		}
		field, length, pseudo, ok := l4Checksum(e, &eh)
		if !ok || field != EthernetLen+IPv6Len+2 || Sum(e[eh.L4:int(eh.L4)+length], pseudo) != 0xffff {
			t.Error("the checksum does not verify")
		}
		icmp := e[54:]
		if icmp[0] != ICMPv6TooBig || icmp[1] != 0 || binary.BigEndian.Uint32(icmp[4:8]) != 1400 {
			t.Errorf("header % x", icmp[:8])
		}
		if !bytes.Equal(icmp[8:], frame[EthernetLen:][:len(icmp)-8]) {
			t.Error("the quote is not the packet")
		}
	}
	var h Headers
	frame := Build{Src: 1 << 24, Dst: 2 << 24}.UDP(nil)
	Parse(frame, &h)
	if ICMPv6Error(make([]byte, ICMPv6ErrorMax), frame, &h, &sixG, 1, 0, 0) != 0 {
		t.Error("an IPv4 packet was answered by ICMPv6")
	}
	frame = Build{}.IPv6(six1, six2, ProtoUDP, nil)
	Parse(frame, &h)
	if ICMPv6Error(make([]byte, ICMPv6ErrorMax-1), frame, &h, &sixG, 1, 0, 0) != 0 {
		t.Error("too small a buffer was used")
	}
}

func TestMayAnswerIPv6(t *testing.T) {
	icmp := func(kind byte) []byte { return []byte{kind, 0, 0, 0, 0, 0, 0, 0} }
	extension := func(next byte, rest []byte) []byte { return append([]byte{next, 0, 1, 4, 0, 0, 0, 0}, rest...) }
	fragment := func(next byte, offset uint16, rest []byte) []byte {
		b := []byte{next, 0, 0, 0, 0, 0, 0, 1}
		binary.BigEndian.PutUint16(b[2:], offset)
		return append(b, rest...)
	}
	address := func(s string) [16]byte { return netip.MustParseAddr(s).As16() }
	for _, c := range []struct {
		name     string
		src, dst [16]byte
		next     byte
		payload  []byte
		want     bool
	}{
		{"UDP", six1, six2, ProtoUDP, make([]byte, 8), true},
		{"echo", six1, six2, ProtoICMPv6, icmp(128), true},
		{"an error", six1, six2, ProtoICMPv6, icmp(1), false},
		{"redirect", six1, six2, ProtoICMPv6, icmp(137), false},
		{"ICMPv6 without a byte", six1, six2, ProtoICMPv6, nil, false},
		{"error behind options", six1, six2, 60, extension(ProtoICMPv6, icmp(3)), false},
		{"echo behind options", six1, six2, 0, extension(ProtoICMPv6, icmp(128)), true},
		{"error in a first fragment", six1, six2, 44, fragment(ProtoICMPv6, 1, icmp(2)), false},
		{"later fragment of ICMPv6", six1, six2, 44, fragment(ProtoICMPv6, 8, icmp(128)), false},
		{"later fragment of UDP", six1, six2, 44, fragment(ProtoUDP, 8, icmp(0)), true},
		{"truncated options", six1, six2, 60, []byte{ProtoUDP, 200, 0, 0, 0, 0, 0, 0}, false},
		{"no options where there should be", six1, six2, 0, nil, false},
		{"to a group", six1, address("ff02::1"), ProtoUDP, make([]byte, 8), false},
		{"from nobody", address("::"), six2, ProtoUDP, make([]byte, 8), false},
		{"from loopback", address("::1"), six2, ProtoUDP, make([]byte, 8), false},
		{"from a group", address("ff05::3"), six2, ProtoUDP, make([]byte, 8), false},
		{"from a mapped address", address("::ffff:10.0.0.1"), six2, ProtoUDP, make([]byte, 8), false},
		{"from link-local", address("fe80::1"), six2, ProtoUDP, make([]byte, 8), true},
	} {
		frame := Build{}.IPv6(c.src, c.dst, c.next, c.payload)
		var h Headers
		Parse(frame, &h)
		if got := MayAnswerIPv6(&h, frame); got != c.want {
			t.Errorf("%s: %v", c.name, got)
		}
		frame[0] |= 1
		Parse(frame, &h)
		if MayAnswerIPv6(&h, frame) {
			t.Errorf("%s, by a group MAC: answered", c.name)
		}
	}
	endless := bytes.Repeat(extension(60, nil), 40)
	frame := Build{}.IPv6(six1, six2, 60, endless)
	var h Headers
	Parse(frame, &h)
	if MayAnswerIPv6(&h, frame) {
		t.Error("a packet of nothing but extension headers was answered")
	}
}

func FuzzICMPv6(f *testing.F) {
	f.Add(Build{}.IPv6(six1, six2, ProtoICMPv6, make([]byte, 8)))
	f.Add(Build{}.IPv6(six1, six2, 60, []byte{58, 0, 1, 4, 0, 0, 0, 0, 1, 0}))
	f.Fuzz(func(t *testing.T, frame []byte) {
		var h Headers
		Parse(frame, &h)
		if h.Kind != KindIPv6 || !MayAnswerIPv6(&h, frame) {
			return
		}
		dst := make([]byte, ICMPv6ErrorMax)
		n := ICMPv6Error(dst, frame, &h, &sixG, ICMPv6TimeExceeded, 0, 0)
		var e Headers
		Parse(dst[:n], &e)
		if e.Kind != KindIPv6 || MayAnswerIPv6(&e, dst[:n]) {
			t.Fatalf("an error of % x that does not parse or would be answered", frame)
		}
	})
}
