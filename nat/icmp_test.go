package nat

import (
	"bytes"
	"fmt"
	"net/netip"
	"testing"

	"pollux/internal/clock"
	"pollux/internal/packet"
	"pollux/internal/reason"
)

const (
	routerOut = packet.Addr(0xc6120001) // a router out there
	routerIn  = packet.Addr(0x0a0000fe) // one inside
)

// errorAbout builds the ICMP error that a node at from sends about a frame as it saw it.
func errorAbout(from packet.Addr, about []byte, icmpType uint8, quote int) []byte {
	var h packet.Headers
	packet.Parse(bytes.Clone(about), &h)
	quoted := about[h.L3 : int(h.L3)+int(h.Len)]
	if quote > 0 {
		quoted = quoted[:min(quote, len(quoted))]
	}
	rest := uint32(0)
	if icmpType == packet.ICMPUnreachable {
		rest = 1400
	}
	return packet.Build{Src: from, Dst: h.Src, TTL: 9, Pad: 60}.ICMP(icmpType, 4, rest, quoted)
}

// flows are the kinds of packet an error can be about, as an inside host sends them.
var flows = []struct {
	name  string
	proto uint8
	build func(b packet.Build) []byte
}{
	{"udp", packet.ProtoUDP, func(b packet.Build) []byte { return b.UDP(make([]byte, 30)) }},
	{"udp-without-checksum", packet.ProtoUDP, func(b packet.Build) []byte { b.NoChecksum = true; return b.UDP(make([]byte, 30)) }},
	{"tcp", packet.ProtoTCP, func(b packet.Build) []byte { b.Flags = packet.TCPSyn; return b.TCP(nil) }},
	{"echo", packet.ProtoICMP, func(b packet.Build) []byte { return b.Echo(false, 3, make([]byte, 30)) }},
	{"esp", packet.ProtoESP, func(b packet.Build) []byte { return b.IP(packet.ProtoESP, make([]byte, 30)) }},
	{"ip-options", packet.ProtoUDP, func(b packet.Build) []byte { b.Options = make([]byte, 8); return b.UDP(make([]byte, 30)) }},
}

// checkError verifies an error's three checksums: outer IP, ICMP, and the quoted IP header's. A quoted TCP or UDP checksum
// must be right too if the whole packet is quoted and it was right before.
func checkError(t *testing.T, frame []byte) (h, q packet.Headers) {
	t.Helper()
	if err := packet.Verify(frame); err != nil {
		t.Error("error:", err)
	}
	packet.Parse(bytes.Clone(frame), &h)
	if !packet.ParseQuoted(frame, &h, &q) {
		t.Fatalf("no quote in %x", frame)
	}
	if packet.Sum(frame[q.L3:q.L4], 0) != 0xffff {
		t.Errorf("quoted IP checksum is wrong: %x", frame[q.L3:q.L4])
	}
	if end := int(q.L3) + int(q.Len); end <= int(h.L3)+int(h.Len) {
		if err := packet.Verify(append(bytes.Clone(frame[:14]), frame[q.L3:end]...)); err != nil {
			t.Error("quoted:", err)
		}
	}
	return h, q
}

// An error from outside about what a host sent reaches the host, and quotes what the host sent (RFC 5508 REQ-4, REQ-5); the
// router keeps its address. For every protocol, type and length of quote.
func TestICMPErrorInbound(t *testing.T) {
	for _, f := range flows {
		for _, icmpType := range []uint8{packet.ICMPUnreachable, packet.ICMPTimeExceeded, packet.ICMPParameterProblem, packet.ICMPQuench} {
			for _, quote := range []int{0, 36, 28} {
				if quote == 28 && f.name == "ip-options" {
					continue
				}
				t.Run(fmt.Sprintf("%s-type-%d-quote-%d", f.name, icmpType, quote), func(t *testing.T) {
					w := newFragmentWorker(t, 16, func(r *Rules) { r.SamePorts = false })
					sent := f.build(packet.Build{Src: hostA, Dst: peer, SrcPort: 4000, DstPort: 53, TTL: 9})
					if p := w.put(Inside, sent); p.Verdict != Forward {
						t.Fatalf("out: %d %v", p.Verdict, p.Reason)
					}
					p := w.put(Outside, errorAbout(routerOut, w.sent[0], icmpType, quote))
					if p.Verdict != Forward || p.Hop != nil {
						t.Fatalf("verdict %d, %v", p.Verdict, p.Reason)
					}
					h, q := checkError(t, p.Data)
					if h.Src != routerOut || h.Dst != hostA || h.TTL != 8 || h.ICMPType != icmpType {
						t.Errorf("error %+v", h)
					}
					if q.Src != hostA || q.Dst != peer || f.proto == packet.ProtoUDP && (q.SrcPort != 4000 || q.DstPort != 53) ||
						f.proto == packet.ProtoTCP && (q.SrcPort != 4000 || q.DstPort != 53) || f.proto == packet.ProtoICMP && q.SrcPort != 4000 {
						t.Errorf("quote %+v", q)
					}
					// But for the TTL it is the very packet that the host sent.
					want := bytes.Clone(sent)
					var sh packet.Headers
					packet.Parse(want, &sh)
					packet.DecrementTTL(want, &sh)
					got := p.Data[q.L3 : int(h.L3)+int(h.Len)]
					if !bytes.Equal(got, want[14:14+len(got)]) {
						t.Errorf("quotes\n%x, the host sent\n%x", got, want[14:])
					}
				})
			}
		}
	}
}

// An error that an inside host, or a router inside, sends about what came in leaves with the alias address, also in its quote.
func TestICMPErrorOutbound(t *testing.T) {
	for _, f := range flows {
		for _, from := range []packet.Addr{hostA, routerIn} {
			t.Run(f.name+"-from-"+from.String(), func(t *testing.T) {
				w := newFragmentWorker(t, 16, func(r *Rules) { r.SamePorts = false })
				w.put(Inside, f.build(packet.Build{Src: hostA, Dst: peer, SrcPort: 4000, DstPort: 53}))
				var sent packet.Headers
				packet.Parse(w.sent[0], &sent)
				answer := packet.Build{Src: peer, Dst: aliasA, SrcPort: sent.DstPort, DstPort: sent.SrcPort, TTL: 9}
				reply := f.build(answer)
				if f.proto == packet.ProtoICMP {
					reply = answer.Echo(true, 3, make([]byte, 30))
				}
				if p := w.put(Outside, reply); p.Verdict != Forward {
					t.Fatalf("in: %d %v", p.Verdict, p.Reason)
				}
				p := w.put(Inside, errorAbout(from, w.sent[1], packet.ICMPUnreachable, 0))
				if p.Verdict != Forward {
					t.Fatalf("verdict %d, %v", p.Verdict, p.Reason)
				}
				h, q := checkError(t, p.Data)
				if h.Src != aliasA || h.Dst != peer || q.Src != peer || q.Dst != aliasA || q.DstPort != sent.SrcPort && f.proto != packet.ProtoESP {
					t.Errorf("error %+v\nquote %+v\nsent %+v", h, q, sent)
				}
				if bytes.Contains(p.Data, []byte{10, 0, 0, 1}) || bytes.Contains(p.Data, []byte{10, 0, 0, 0xfe}) {
					t.Errorf("a private address leaves: %x", p.Data)
				}
			})
		}
	}
}

// Errors between two inside hosts that talk by their external endpoints (RFC 5508 REQ-7).
func TestICMPErrorHairpin(t *testing.T) {
	w := newFragmentWorker(t, 16, func(r *Rules) {
		r.RedirectPort = []RedirectPort{{Proto: packet.ProtoUDP, Public: Alias{aliasA, 53}, Local: []Local{{hostB, 5353}}}}
	})
	p := w.put(Inside, packet.Build{Src: hostA, Dst: aliasA, SrcPort: 4000, DstPort: 53}.UDP(make([]byte, 30)))
	if p.Verdict != Forward || p.H.Dst != aliasA {
		t.Fatalf("hairpin: %d %v", p.Verdict, p.Reason)
	}
	var at packet.Headers
	packet.Parse(p.Data, &at)
	p = w.put(Inside, errorAbout(hostB, p.Data, packet.ICMPUnreachable, 0))
	if p.Verdict != Forward || !p.Hairpin {
		t.Fatalf("verdict %d, %v", p.Verdict, p.Reason)
	}
	h, q := checkError(t, p.Data)
	if h.Src != aliasA || h.Dst != hostA || q.Src != hostA || q.SrcPort != 4000 || q.Dst != aliasA || q.DstPort != 53 || h.TTL != 8 {
		t.Errorf("error %+v\nquote %+v", h, q)
	}
}

// With hairpin switched off under live links, their errors do not go round either.
func TestICMPErrorHairpinOff(t *testing.T) {
	w := newFragmentWorker(t, 16, func(r *Rules) {
		r.RedirectPort = []RedirectPort{{Proto: packet.ProtoUDP, Public: Alias{aliasA, 53}, Local: []Local{{hostB, 5353}}}}
	})
	p := w.put(Inside, packet.Build{Src: hostA, Dst: aliasA, SrcPort: 4000, DstPort: 53}.UDP(make([]byte, 30)))
	if p.Verdict != Forward {
		t.Fatalf("hairpin: %d %v", p.Verdict, p.Reason)
	}
	w.s.rules.Hairpin = false
	if p = w.put(Inside, errorAbout(hostB, p.Data, packet.ICMPUnreachable, 0)); p.Verdict != Drop || p.Reason != reason.HairpinOff {
		t.Errorf("verdict %d, %v", p.Verdict, p.Reason)
	}
}

// What has no link, or can't be read, is not let through, and never with a private address.
func TestICMPErrorRefused(t *testing.T) {
	b := packet.Build{Src: aliasA, Dst: peer, SrcPort: 4000, DstPort: 53}
	stranger := b.UDP(make([]byte, 30))
	first := b
	first.FragOff = 80
	other := b
	other.Src = aliasA + 1
	delivered := packet.Build{Src: peer, Dst: hostA, SrcPort: 53, DstPort: 999}.UDP(make([]byte, 30))
	kernel := func(r *Rules) { r.Kernel = r.Alias }
	elsewhere := errorAbout(routerOut, stranger, 3, 0)
	var eh packet.Headers
	packet.Parse(elsewhere, &eh)
	packet.SetEndpoints(elsewhere, &eh, routerOut, 0, aliasA+1, 0)
	exempt := func(r *Rules) { r.Exempt = []netip.Prefix{netip.PrefixFrom(peer.Netip(), 24)} }
	age := func(frame []byte) []byte {
		var h packet.Headers
		for packet.Parse(frame, &h); frame[22] > 1; {
			packet.DecrementTTL(frame, &h)
		}
		return frame
	}
	expiring := age(errorAbout(routerOut, stranger, 3, 0))
	expiring10 := age(errorAbout(routerOut, packet.Build{Src: hostA, Dst: peer}.UDP(nil), 3, 0))
	cases := []struct {
		name   string
		change func(*Rules)
		side   Side
		frame  []byte
		want   reason.Reason
		linked bool // what is quoted belongs to a link
	}{
		{"no link, inbound", nil, Outside, errorAbout(routerOut, stranger, 3, 0), reason.NoMapping, false},
		{"no link, the kernel's address", kernel, Outside, errorAbout(routerOut, stranger, 3, 0), reason.ToHost, false},
		{"no link, outbound", nil, Inside, errorAbout(hostA, delivered, 3, 0), reason.NoMapping, false},
		{"quotes a later fragment", nil, Outside, errorAbout(routerOut, first.IP(packet.ProtoUDP, make([]byte, 30)), 3, 0), reason.Unsupported, true},
		{"quotes an error", nil, Outside, errorAbout(routerOut, b.ICMP(3, 1, 0, stranger[14:]), 3, 0), reason.Unsupported, false},
		{"quotes a redirect", nil, Outside, errorAbout(routerOut, b.ICMP(5, 1, 0, stranger[14:]), 3, 0), reason.Unsupported, false},
		{"quotes 7 bytes of UDP", nil, Outside, errorAbout(routerOut, stranger, 3, 27), reason.BadHeader, true},
		{"to an address that is nobody's", nil, Outside, errorAbout(routerOut, other.UDP(nil), 3, 0), reason.NoMapping, false},
		{"not to whom it concerns", nil, Outside, elsewhere, reason.NoMapping, true},
		{"from our own address", nil, Outside, errorAbout(aliasA, stranger, 3, 0), reason.BadSource, true},
		{"TTL runs out", nil, Outside, expiring, reason.TTLExpired, true},
		{"TTL runs out, exempt", exempt, Outside, expiring10, reason.TTLExpired, false},
		{"the same, to whom it concerns", nil, Outside, errorAbout(routerOut, stranger, 3, 0), reason.None, true},
	}
	for _, c := range cases {
		w := newFragmentWorker(t, 16, c.change)
		if c.linked {
			w.put(Inside, packet.Build{Src: hostA, Dst: peer, SrcPort: 4000, DstPort: 53}.UDP(nil))
		}
		p := w.put(c.side, c.frame)
		if p.Reason != c.want || (p.Verdict == Forward) != (c.want == reason.None) || p.Verdict == Answer {
			t.Errorf("%s: verdict %d, reason %v, want %v", c.name, p.Verdict, p.Reason, c.want)
		}
	}
}

// Errors about traffic that is not translated pass as they are.
func TestICMPErrorUntranslated(t *testing.T) {
	registeredHost := packet.Addr(0xc0000205)
	sideOf := func(a packet.Addr) (Side, bool) {
		if a>>24 == 10 || a>>8 == registeredHost>>8 {
			return Inside, true
		}
		return Outside, true
	}
	unregistered := func(r *Rules) { r.UnregisteredOnly = true }
	exempt := func(r *Rules) { r.Exempt = []netip.Prefix{netip.PrefixFrom(peer.Netip(), 24)} }
	fromRegistered := packet.Build{Src: registeredHost, Dst: peer, SrcPort: 4000, DstPort: 53}.UDP(nil)
	toRegistered := packet.Build{Src: peer, Dst: registeredHost, SrcPort: 53, DstPort: 4000}.UDP(nil)
	cases := []struct {
		name   string
		change func(*Rules)
		side   Side
		frame  []byte
	}{
		{"registered host, inbound", unregistered, Outside, errorAbout(routerOut, fromRegistered, 11, 0)},
		{"registered host, outbound", unregistered, Inside, errorAbout(registeredHost, toRegistered, 3, 0)},
		{"exempt remote, inbound", exempt, Outside, errorAbout(routerOut, packet.Build{Src: hostA, Dst: peer}.UDP(nil), 11, 0)},
		{"exempt remote, outbound", exempt, Inside, errorAbout(hostA, packet.Build{Src: peer, Dst: hostA}.UDP(nil), 3, 0)},
		{"inside to inside", nil, Inside, errorAbout(hostA, packet.Build{Src: hostB, Dst: hostA}.UDP(nil), 3, 0)},
	}
	for _, c := range cases {
		w := newFragmentWorker(t, 16, c.change)
		w.s.sideOf = sideOf
		var h packet.Headers
		want := bytes.Clone(c.frame)
		packet.Parse(want, &h)
		packet.DecrementTTL(want, &h)
		if p := w.put(c.side, c.frame); p.Verdict != Forward || !bytes.Equal(p.Data, want) {
			t.Errorf("%s: verdict %d, %v\n%x, want\n%x", c.name, p.Verdict, p.Reason, p.Data, want)
		}
	}
	w := newFragmentWorker(t, 16, exempt)
	w.s.sideOf = sideOf
	if p := w.put(Outside, errorAbout(routerOut, packet.Build{Src: routerOut + 1, Dst: peer}.UDP(nil), 3, 0)); p.Reason != reason.NoMapping {
		t.Errorf("outside to outside: verdict %d, %v", p.Verdict, p.Reason)
	}
}

// An error neither refreshes a mapping nor ends it (RFC 5508 REQ-6, RFC 5382 REQ-10).
func TestICMPErrorLeavesLinkAlone(t *testing.T) {
	w := newFragmentWorker(t, 16, nil)
	w.put(Inside, packet.Build{Src: hostA, Dst: peer, SrcPort: 4000, DstPort: 53}.UDP(nil))
	start := w.now
	about := w.sent[0]
	if w.now += 299_000; w.put(Outside, errorAbout(routerOut, about, 3, 0)).Verdict != Forward {
		t.Fatal("the link is gone after an error, or too early")
	}
	if w.now += 500; w.put(Outside, errorAbout(routerOut, about, 3, 0)).Verdict != Forward {
		t.Fatal("an error ended the link")
	}
	w.now = start + clock.Tick(300_001)
	if p := w.put(Outside, errorAbout(routerOut, about, 3, 0)); p.Reason != reason.NoMapping {
		t.Errorf("an error refreshed the link: %d %v", p.Verdict, p.Reason)
	}
}

// An error in fragments is translated like any datagram; its quote lies in the first.
func TestICMPErrorInFragments(t *testing.T) {
	permutations(2, func(order []int) {
		w := newFragmentWorker(t, 16, nil)
		w.put(Inside, packet.Build{Src: hostA, Dst: peer, SrcPort: 4000, DstPort: 53}.UDP(make([]byte, 300)))
		pieces := cut(t, errorAbout(routerOut, w.sent[0], 3, 0), 20+200)
		w.sent, w.frames = nil, 0
		for _, i := range order {
			w.put(Outside, pieces[i])
		}
		whole := glue(w.sent)
		if whole == nil {
			t.Fatalf("%v: sent %d, dropped %v", order, len(w.sent), w.dropped)
		}
		if h, q := checkError(t, whole); h.Dst != hostA || q.Src != hostA {
			t.Errorf("%v: %+v %+v", order, h, q)
		}
		w.empty()
	})
}
