package packet

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"testing"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"pgregory.net/rapid"
)

// Every builder gives a frame that parses as what it is and verifies; rewriting keeps it so; Restore undoes it.
func TestBuildRewriteRestore(t *testing.T) {
	base := Build{Src: 0x0a000001, Dst: 0xc6336401, SrcPort: 1234, DstPort: 53, TTL: 9, ID: 77}
	odd := []byte("seven b")
	options := base
	options.Options = []byte{0x94, 4, 0, 0}
	first := base
	first.MF = true
	later := base
	later.FragOff = 64
	silent := base
	silent.NoChecksum = true
	cases := []struct {
		name  string
		frame []byte
		kind  Kind
	}{
		{"udp", base.UDP(odd), KindUDP},
		{"udp empty", base.UDP(nil), KindUDP},
		{"udp without checksum", silent.UDP(odd), KindUDP},
		{"udp with options", options.UDP(odd), KindUDP},
		{"udp first fragment", first.UDP(make([]byte, 8)), KindUDP},
		{"tcp", base.TCP(odd), KindTCP},
		{"echo", base.Echo(false, 3, odd), KindICMPQuery},
		{"later fragment", later.IP(ProtoUDP, odd), KindLaterFragment},
		{"gre", base.IP(ProtoGRE, odd), KindOther},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			frame := bytes.Clone(c.frame)
			var h, again Headers
			Parse(frame, &h)
			if h.Kind != c.kind || h.Reason != 0 || h.Src != base.Src || h.Dst != base.Dst || h.TTL != 9 || h.FragID != 77 {
				t.Fatalf("parsed as %+v", h)
			}
			SetEndpoints(frame, &h, 0xcb007101, 40000, 0x01020304, 99)
			DecrementTTL(frame, &h)
			if err := Verify(frame); err != nil {
				t.Error("rewritten:", err)
			}
			Parse(frame, &again)
			if again.Src != 0xcb007101 || again.Dst != 0x01020304 || again.TTL != 8 {
				t.Errorf("rewritten to %+v", again)
			}
			if (h.Kind == KindUDP || h.Kind == KindTCP) && (again.SrcPort != 40000 || again.DstPort != 99) {
				t.Errorf("ports are %d and %d", again.SrcPort, again.DstPort)
			}
			Restore(frame, &h)
			if !bytes.Equal(frame, c.frame) {
				t.Errorf("restored\n%x, was\n%x", frame, c.frame)
			}
		})
	}
}

// randomFrame draws a frame that a host could send.
func randomFrame(t *rapid.T) []byte {
	b := Build{
		Src:     Addr(rapid.Uint32Range(0x01000000, 0x7effffff).Draw(t, "src")),
		Dst:     Addr(rapid.Uint32().Draw(t, "dst")),
		SrcPort: rapid.Uint16().Draw(t, "sport"),
		DstPort: rapid.Uint16().Draw(t, "dport"),
		TTL:     uint8(rapid.IntRange(1, 255).Draw(t, "ttl")),
		ID:      rapid.Uint16().Draw(t, "id"),
		Options: bytes.Repeat([]byte{1}, rapid.IntRange(0, 40).Draw(t, "options")),
		Pad:     60, Flags: TCPSyn,
		TCPOptions: bytes.Repeat([]byte{1}, rapid.IntRange(0, 40).Draw(t, "tcpoptions")),
	}
	payload := rapid.SliceOfN(rapid.Byte(), 0, 100).Draw(t, "payload")
	switch rapid.IntRange(0, 5).Draw(t, "kind") {
	case 0:
		return b.TCP(payload)
	case 1:
		b.NoChecksum = true
		return b.UDP(payload)
	case 2:
		return b.Echo(rapid.Bool().Draw(t, "reply"), 1, payload)
	case 3:
		return b.IP(ProtoESP, payload)
	default:
		return b.UDP(payload)
	}
}

// decode reads a frame with another implementation.
func decode(frame []byte) gopacket.Packet {
	return gopacket.NewPacket(frame, layers.LayerTypeEthernet, gopacket.DecodeOptions{NoCopy: true})
}

// What Parse reads is what gopacket reads; after SetEndpoints, gopacket reads the new endpoints and its own full
// computation of the checksums agrees with the incremental one; Restore gives the same bytes back.
func TestAgainstGopacket(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		frame := randomFrame(t)
		original := bytes.Clone(frame)
		var h Headers
		Parse(frame, &h)
		if h.Reason != 0 || h.Flags&FlagL4Completed != 0 {
			t.Skip("random checksum equals the pseudo sum")
		}
		compare(t, frame, &h, h.Src, h.SrcPort, h.Dst, h.DstPort)
		src, dst := Addr(rapid.Uint32Range(0x01000000, 0x7effffff).Draw(t, "new src")), Addr(rapid.Uint32().Draw(t, "new dst"))
		sport, dport := rapid.Uint16().Draw(t, "new sport"), rapid.Uint16().Draw(t, "new dport")
		SetEndpoints(frame, &h, src, sport, dst, dport)
		DecrementTTL(frame, &h)
		if h.Kind == KindICMPQuery {
			if sport == h.SrcPort {
				sport = dport
			}
			dport = sport
		}
		compare(t, frame, &h, src, sport, dst, dport)
		Restore(frame, &h)
		if !bytes.Equal(frame, original) {
			t.Fatalf("restored\n%x, was\n%x", frame, original)
		}
	})
}

func compare(t *rapid.T, frame []byte, h *Headers, src Addr, sport uint16, dst Addr, dport uint16) {
	p := decode(frame)
	ip, ok := p.Layer(layers.LayerTypeIPv4).(*layers.IPv4)
	if !ok {
		t.Fatalf("gopacket sees no IPv4 in %x: %v", frame, p.ErrorLayer())
	}
	got := [4]any{AddrFrom(netip.AddrFrom4([4]byte(ip.SrcIP))), sport, AddrFrom(netip.AddrFrom4([4]byte(ip.DstIP))), dport}
	switch h.Kind {
	case KindTCP:
		l := p.TransportLayer().(*layers.TCP)
		got[1], got[3] = uint16(l.SrcPort), uint16(l.DstPort)
		l.SetNetworkLayerForChecksum(ip)
	case KindUDP:
		l := p.TransportLayer().(*layers.UDP)
		got[1], got[3] = uint16(l.SrcPort), uint16(l.DstPort)
		if h.Flags&FlagZeroChecksum != 0 && l.Checksum != 0 {
			t.Fatal("UDP checksum 0 did not stay 0")
		}
		l.SetNetworkLayerForChecksum(ip)
	case KindICMPQuery:
		l := p.Layer(layers.LayerTypeICMPv4).(*layers.ICMPv4)
		got[1], got[3] = l.Id, l.Id
	}
	if want := [4]any{src, sport, dst, dport}; got != want {
		t.Fatalf("gopacket reads %v, want %v in %x", got, want, frame)
	}
	if err, bad := p.VerifyChecksums(); err != nil || len(bad) > 0 {
		t.Fatalf("gopacket finds wrong checksums %+v (%v) in %x", bad, err, frame)
	}
}

// Any frame that Parse accepts can be rewritten and restored, whatever its checksums are worth.
func FuzzRewriteRestore(f *testing.F) {
	b := Build{Src: 0x0a000001, Dst: 0xc6336401, SrcPort: 1234, DstPort: 53, Options: []byte{1, 1, 1, 0}}
	f.Add(b.UDP(make([]byte, 30)), uint32(1), uint32(2), uint16(3), uint16(4))
	f.Add(b.TCP(make([]byte, 30)), uint32(0xffffffff), uint32(0), uint16(0xffff), uint16(0))
	f.Add(b.Echo(true, 9, nil), uint32(1), uint32(2), uint16(3), uint16(4))
	f.Add(b.ICMP(3, 4, 1400, b.UDP(nil)[14:]), uint32(1), uint32(2), uint16(3), uint16(4))
	b.FragOff = 80
	f.Add(b.IP(ProtoUDP, make([]byte, 30)), uint32(1), uint32(2), uint16(3), uint16(4))
	f.Fuzz(func(t *testing.T, frame []byte, src, dst uint32, sport, dport uint16) {
		if len(frame) > 14 {
			resum(frame)
		}
		var h Headers
		if Parse(frame, &h); h.Reason != 0 || h.Kind < KindTCP || h.Kind > KindLaterFragment {
			return
		}
		original := bytes.Clone(frame)
		SetEndpoints(frame, &h, Addr(src), sport, Addr(dst), dport)
		DecrementTTL(frame, &h)
		if s := Sum(frame[h.L3:h.L4], 0); s != 0xffff {
			t.Fatalf("header sum %#x", s)
		}
		Restore(frame, &h)
		// No sender computes 0xffff for IPv4, TCP or ICMP; it comes back as 0, the other notation of the same number.
		for _, off := range []int{int(h.L3) + 10, map[Kind]int{KindTCP: int(h.L4) + 16, KindICMPQuery: int(h.L4) + 2}[h.Kind]} {
			if off > 0 && original[off]&original[off+1] == 0xff {
				original[off], original[off+1] = frame[off], frame[off+1]
			}
		}
		if !bytes.Equal(frame, original) {
			t.Fatalf("restored\n%x, was\n%x", frame, original)
		}
	})
}

// IPv6 has a hop limit and no header checksum; what is no IP at all is left alone.
func TestRewriteIPv6(t *testing.T) {
	frame := Build{TTL: 9}.IPv6([16]byte{0x20}, [16]byte{0x30}, ProtoUDP, make([]byte, 8))
	original := bytes.Clone(frame)
	var h Headers
	Parse(frame, &h)
	if DecrementTTL(frame, &h); frame[21] != 8 {
		t.Errorf("hop limit %d", frame[21])
	}
	if Restore(frame, &h); !bytes.Equal(frame, original) {
		t.Errorf("restored\n%x, was\n%x", frame, original)
	}
	arp := append(make([]byte, 12), 8, 6, 1, 2, 3, 4)
	original = bytes.Clone(arp)
	Parse(arp, &h)
	CompleteChecksum(arp, &h)
	if Restore(arp, &h); !bytes.Equal(arp, original) {
		t.Errorf("ARP became %x", arp)
	}
}

// The examples of RFC 1624 section 4, and both notations of zero.
func TestUpdate16(t *testing.T) {
	for _, c := range []struct{ sum, old, new, want uint16 }{
		{0xdd2f, 0x5555, 0x3285, 0x0000},
		{0x0000, 0x3285, 0x5555, 0xdd2f},
		{0x1234, 7, 7, 0x1234},
		{0xffff, 7, 7, 0xffff},
		{0x0001, 1, 0, 0x0002},
	} {
		if got := Update16(c.sum, c.old, c.new); got != c.want {
			t.Errorf("Update16(%#04x, %#04x, %#04x) = %#04x, want %#04x", c.sum, c.old, c.new, got, c.want)
		}
	}
	if got := ApplyDeltaUDP(0, 99); got != 0 {
		t.Errorf("UDP checksum 0 became %#x", got)
	}
	if got := ApplyDeltaUDP(0xdd2f, Delta16(0x5555, 0x3285)); got != 0xffff {
		t.Errorf("a computed UDP checksum of 0 was sent as %#x, want 0xffff", got)
	}
	if got, want := ApplyDelta(0x1234, DeltaTTL), Update16(0x1234, 0x4006, 0x3f06); got != want {
		t.Errorf("DeltaTTL gives %#x, want %#x", got, want)
	}
}

// Deltas of several changes can be joined beforehand and applied at once: that is what a link stores.
func TestJoinedDeltas(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := Build{Src: Addr(rapid.Uint32Range(0x01000000, 0x7effffff).Draw(t, "src")), Dst: 0x01020304, SrcPort: rapid.Uint16().Draw(t, "sport"), DstPort: 9}
		c := b
		c.Src, c.SrcPort = Addr(rapid.Uint32().Draw(t, "to")), rapid.Uint16().Draw(t, "toport")
		payload := rapid.SliceOfN(rapid.Byte(), 0, 40).Draw(t, "payload")
		from, to := b.UDP(payload), c.UDP(payload)
		addr := DeltaAddr(b.Src, c.Src)
		l4 := AddDelta(addr, Delta16(b.SrcPort, c.SrcPort))
		word := func(f []byte, off int) uint16 { return binary.BigEndian.Uint16(f[off:]) }
		if got := ApplyDelta(word(from, 24), addr); got != word(to, 24) {
			t.Fatalf("IP checksum %#x, want %#x", got, word(to, 24))
		}
		if got := ApplyDeltaUDP(word(from, 40), l4); got != word(to, 40) {
			t.Fatalf("UDP checksum %#x, want %#x", got, word(to, 40))
		}
	})
}

func TestClampMSS(t *testing.T) {
	b := Build{Src: 0x0a000001, Dst: 0xc6336401, SrcPort: 1234, DstPort: 80, Flags: TCPSyn}
	cases := []struct {
		name    string
		options []byte
		flags   uint8
		want    []byte // options after a clamp to 1400; nil: unchanged
	}{
		{"above", []byte{2, 4, 0x05, 0xb4}, TCPSyn, []byte{2, 4, 0x05, 0x78}},
		{"SYN-ACK", []byte{2, 4, 0x05, 0xb4}, TCPSyn | TCPAck, []byte{2, 4, 0x05, 0x78}},
		{"equal", []byte{2, 4, 0x05, 0x78}, TCPSyn, nil},
		{"below", []byte{2, 4, 0x02, 0x18}, TCPSyn, nil},
		{"no SYN", []byte{2, 4, 0x05, 0xb4}, TCPAck, nil},
		{"at an odd offset", []byte{1, 2, 4, 0x05, 0xb4, 0, 0, 0}, TCPSyn, []byte{1, 2, 4, 0x05, 0x78, 0, 0, 0}},
		{"behind others", []byte{3, 3, 7, 4, 2, 2, 4, 0xff, 0xff, 0, 0, 0}, TCPSyn, []byte{3, 3, 7, 4, 2, 2, 4, 0x05, 0x78, 0, 0, 0}},
		{"behind the end", []byte{0, 0, 0, 0, 2, 4, 0x05, 0xb4}, TCPSyn, nil},
		{"option of length 0", []byte{3, 0, 2, 4, 0x05, 0xb4, 0, 0}, TCPSyn, nil},
		{"option beyond the header", []byte{3, 9, 2, 4, 0x05, 0xb4, 0, 0}, TCPSyn, nil},
		{"cut", []byte{1, 1, 1, 2}, TCPSyn, nil},
		{"wrong length", []byte{2, 3, 5, 0}, TCPSyn, nil},
		{"none", nil, TCPSyn, nil},
	}
	for _, c := range cases {
		b.TCPOptions, b.Flags = c.options, c.flags
		frame := b.TCP([]byte("x"))
		var h Headers
		Parse(frame, &h)
		changed := ClampMSS(frame, &h, 1400)
		if b.TCPOptions = c.want; !changed {
			b.TCPOptions = c.options
		}
		if want := b.TCP([]byte("x")); changed != (c.want != nil) || !bytes.Equal(frame, want) {
			t.Errorf("%s: changed %v\n%x, want\n%x", c.name, changed, frame, want)
		}
	}
}

func FuzzClampMSS(f *testing.F) {
	b := Build{Src: 0x0a000001, Dst: 0xc6336401, SrcPort: 1234, DstPort: 80, Flags: TCPSyn}
	for _, options := range [][]byte{{2, 4, 5, 180}, {1, 2, 4, 5, 180}, {4, 2, 8, 10, 0, 0, 0, 0, 0, 0, 0, 0, 2, 4, 5, 180}} {
		f.Add(options, uint16(1400))
	}
	f.Fuzz(func(t *testing.T, options []byte, mss uint16) {
		if len(options) > 40 {
			options = options[:40]
		}
		b.TCPOptions = options
		frame := b.TCP([]byte("payload"))
		before := bytes.Clone(frame)
		var h Headers
		if Parse(frame, &h); h.Flags&FlagL4Completed != 0 {
			return
		}
		changed := ClampMSS(frame, &h, mss)
		if err := Verify(frame); err != nil {
			t.Fatalf("%v after clamping %x", err, options)
		}
		differ := 0
		for i := range frame {
			if frame[i] != before[i] {
				differ++
			}
		}
		if changed == (differ == 0) || differ > 4 {
			t.Fatalf("changed is %v, %d bytes differ", changed, differ)
		}
		if ClampMSS(frame, &h, mss) {
			t.Fatal("clamped twice")
		}
	})
}

// The names of everything that must not allocate.
func TestNoAllocations(t *testing.T) {
	udp, tcp := benchUDP.UDP(make([]byte, 100)), Build{Src: 1 << 24, Dst: 2, Flags: TCPSyn, TCPOptions: []byte{2, 4, 5, 180}}.TCP(nil)
	half := Build{Src: 1 << 24, Dst: 2, HalfMade: true}.TCP(make([]byte, 100))
	icmp := benchUDP.ICMP(3, 1, 0, udp[14:])
	v6 := benchUDP.IPv6([16]byte{}, [16]byte{}, ProtoTCP, make([]byte, 20))
	var u, s, e, q, p Headers
	Parse(udp, &u)
	Parse(tcp, &s)
	Parse(icmp, &e)
	dst, buf := make([]byte, ICMPErrorMax), make([]byte, 2048)
	get, emit := func() []byte { return buf }, func([]byte) {}
	for name, f := range map[string]func(){
		"Parse, fast":      func() { Parse(udp, &p) },
		"Parse, general":   func() { Parse(icmp, &p) },
		"Parse, half-made": func() { half[50], half[51] = 0x03, 0x7c; Parse(half, &p) },
		"Parse, IPv6":      func() { Parse(v6, &p) },
		"ParseQuoted":      func() { ParseQuoted(icmp, &e, &q) },
		"SetEndpoints":     func() { SetEndpoints(udp, &u, 1, 2, 3, 4) },
		"SetQuoted":        func() { SetQuoted(icmp, &e, &q, 1, 2, 3, 4) },
		"Restore":          func() { Restore(udp, &u) },
		"DecrementTTL":     func() { DecrementTTL(udp, &u) },
		"ClampMSS":         func() { ClampMSS(tcp, &s, 1000) },
		"HalfMade":         func() { HalfMade(udp, &u) },
		"CompleteChecksum": func() { CompleteChecksum(udp, &u) },
		"ICMPError":        func() { ICMPError(dst, udp, &u, 1, 3, 1, 0) },
		"MayAnswer":        func() { MayAnswer(&u, udp) },
		"Fragment":         func() { Fragment(udp, &u, 68, get, emit) },
	} {
		if n := testing.AllocsPerRun(100, f); n != 0 {
			t.Errorf("%s allocates %v times", name, n)
		}
	}
}
