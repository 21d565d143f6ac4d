package packet

import (
	"bytes"
	"encoding/binary"
	"testing"
)

func TestICMPError(t *testing.T) {
	for _, n := range []int{0, 18, 519, 520, 521, 1400} {
		b := Build{Src: 0x0a000001, Dst: 0xc6336401, SrcPort: 1, DstPort: 2, TTL: 1, Pad: 60, TOS: 0xb9}
		orig := b.UDP(bytes.Repeat([]byte{0x5a}, n))
		var h, e, q Headers
		Parse(orig, &h)
		dst := bytes.Repeat([]byte{0xff}, ICMPErrorMax)
		size := ICMPError(dst, orig, &h, 0xc00002fe, ICMPUnreachable, 4, 1400)
		quoted := min(28+n, 548)
		if size != 42+quoted {
			t.Fatalf("payload %d: error of %d bytes, want %d", n, size, 42+quoted)
		}
		frame := dst[:size]
		if err := Verify(frame); err != nil {
			t.Error(err)
		}
		Parse(frame, &e)
		if e.Kind != KindICMPError || e.Src != 0xc00002fe || e.Dst != h.Src || e.ICMPType != 3 || e.ICMPCode != 4 || frame[15] != 0xd8 {
			t.Errorf("error is %+v, TOS %#x", e, frame[15])
		}
		if mtu := binary.BigEndian.Uint32(frame[38:42]); mtu != 1400 {
			t.Errorf("MTU %d", mtu)
		}
		if !bytes.Equal(frame[0:6], orig[6:12]) || !bytes.Equal(frame[6:12], orig[0:6]) {
			t.Error("MACs are not swapped")
		}
		if !ParseQuoted(frame, &e, &q) || !bytes.Equal(frame[q.L3:], orig[14:14+quoted]) {
			t.Error("the quote is not the packet")
		}
	}
	var h Headers
	orig := plain.UDP(nil)
	Parse(orig, &h)
	if n := ICMPError(make([]byte, ICMPErrorMax-1), orig, &h, 1, 3, 1, 0); n != 0 {
		t.Errorf("built %d bytes in a buffer that may be too small", n)
	}
	arp := make([]byte, 60)
	arp[12], arp[13] = 8, 6
	if Parse(arp, &h); ICMPError(make([]byte, 600), arp, &h, 1, 3, 1, 0) != 0 {
		t.Error("built an error about ARP")
	}
}

// One case for each clause of RFC 1812 4.3.2.7.
func TestMayAnswer(t *testing.T) {
	b := plain
	later := b
	later.FragOff = 80
	first := b
	first.MF = true
	to := func(dst Addr) []byte { c := b; c.Dst = dst; return c.UDP(nil) }
	multi := b
	multi.DstMAC = [6]byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff}
	zero := b
	zero.Src = 0
	cases := []struct {
		name  string
		frame []byte
		want  bool
	}{
		{"UDP", b.UDP(nil), true},
		{"TCP", b.TCP(nil), true},
		{"echo", b.Echo(false, 1, nil), true},
		{"GRE", b.IP(ProtoGRE, nil), true},
		{"first fragment", first.UDP(nil), true},
		{"later fragment", later.IP(ProtoUDP, nil), false},
		{"ICMP error", b.ICMP(3, 1, 0, b.UDP(nil)[14:]), false},
		{"ICMP redirect", b.ICMP(5, 1, 0, b.UDP(nil)[14:]), false},
		{"to multicast", to(0xe0000001), false},
		{"to broadcast", to(0xffffffff), false},
		{"to the highest unicast address", to(0xdfffffff), true},
		{"to a broadcast MAC", multi.UDP(nil), false},
		{"from nobody", zero.UDP(nil), false},
		{"malformed", b.UDP(nil)[:30], false},
		{"IPv6", b.IPv6([16]byte{1}, [16]byte{1}, 17, make([]byte, 8)), false},
		{"nothing", nil, false},
	}
	for _, c := range cases {
		var h Headers
		Parse(c.frame, &h)
		if got := MayAnswer(&h, c.frame); got != c.want {
			t.Errorf("%s: %v", c.name, got)
		}
	}
}
