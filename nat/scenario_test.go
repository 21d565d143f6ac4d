package nat

import (
	"net/netip"
	"testing"
	"time"

	"pollux/internal/packet"
	"pollux/internal/reason"
)

const (
	syn = packet.TCPSyn
	ack = packet.TCPAck
	fin = packet.TCPFin
	rst = packet.TCPRst
)

// state returns the state of the only link.
func (w *world) only() LinkInfo {
	w.t.Helper()
	var all []LinkInfo
	w.s.now = w.now
	w.s.Links(0, 1000, func(l LinkInfo) bool { all = append(all, l); return true })
	if len(all) != 1 {
		w.t.Fatalf("%d links, want 1", len(all))
	}
	return all[0]
}

func (w *world) wantState(st State, expires time.Duration) {
	w.t.Helper()
	if l := w.only(); l.State != st || l.ExpiresIn != uint32(expires/time.Millisecond) {
		w.t.Fatalf("state %v, expires in %d ms; want %v, %v", l.State, l.ExpiresIn, st, expires)
	}
}

// handshake opens prv1:4660 -> ext1:80.
func (w *world) handshake() {
	w.t.Helper()
	w.out(tcp(syn, prv1, 4660, ext1, 80))
	w.wantState(Opening, 240*time.Second)
	w.in(tcp(syn|ack, ext1, 80, pub1, 4660))
	w.wantState(Opening, 240*time.Second)
	w.out(tcp(ack, prv1, 4660, ext1, 80))
	w.wantState(Established, 7440*time.Second)
}

func TestTCPLife(t *testing.T) {
	w := newWorld(t, nil)
	w.handshake()
	w.in(tcp(fin|ack, ext1, 80, pub1, 4660))
	w.wantState(Established, 7440*time.Second)
	w.pass(time.Hour)
	w.out(tcp(fin|ack, prv1, 4660, ext1, 80))
	w.wantState(Closing, 240*time.Second)
	w.in(tcp(ack, ext1, 80, pub1, 4660))
	w.wantState(Closing, 240*time.Second)
	w.pass(100 * time.Second)
	w.out(tcp(syn, prv1, 4660, ext1, 80)) // reopened at once
	w.wantState(Opening, 240*time.Second)
	if l := w.only(); l.Packets != 1 {
		t.Errorf("a new life starts with %d packets", l.Packets)
	}
	w.in(tcp(syn|ack, ext1, 80, pub1, 4660))
	w.out(tcp(ack, prv1, 4660, ext1, 80))
	w.wantState(Established, 7440*time.Second)
	w.in(tcp(rst, ext1, 80, pub1, 4660))
	w.wantState(Closing, 240*time.Second)
	w.pass(240 * time.Second)
	w.wantState(Closing, 0)
	w.pass(time.Second)
	if w.s.live != 0 {
		t.Error("closing link outlives its timer")
	}
}

func TestTCPSYNOnLiveFlow(t *testing.T) {
	w := newWorld(t, nil)
	w.handshake()
	w.out(tcp(syn, prv1, 4660, ext1, 80))
	w.wantState(Established, 7440*time.Second)
	w.in(tcp(syn, ext1, 80, pub1, 4660))
	w.wantState(Established, 7440*time.Second)
}

func TestTCPMidstreamStaysOpening(t *testing.T) {
	w := newWorld(t, nil)
	w.out(tcp(ack, prv1, 4660, ext1, 80))
	w.in(tcp(ack, ext1, 80, pub1, 4660))
	w.wantState(Opening, 240*time.Second)
	hits := w.s.counters.Hits
	w.out(tcp(ack, prv1, 4660, ext1, 80))
	if w.s.counters.Hits != hits+1 {
		t.Error("a flow picked up midway does not take the short way")
	}
}

func TestTCPSimultaneousOpen(t *testing.T) {
	w := newWorld(t, nil)
	w.out(tcp(syn, prv1, 4660, ext1, 80))
	w.in(tcp(syn, ext1, 80, pub1, 4660))
	w.out(tcp(syn|ack, prv1, 4660, ext1, 80))
	w.wantState(Opening, 240*time.Second)
	w.in(tcp(syn|ack, ext1, 80, pub1, 4660))
	w.wantState(Established, 7440*time.Second)
}

func TestUnsolicitedSYNIsHeld(t *testing.T) {
	w := newWorld(t, nil)
	frame := tcp(syn, ext1, 80, pub1, 4660)
	w.refused(Outside, frame, Keep, reason.Held)
	w.refused(Outside, frame, Drop, reason.NoMapping) // one is enough
	w.pass(5900 * time.Millisecond)
	if _, ok := w.s.NextReleased(); ok {
		t.Fatal("released before 6 s")
	}
	if at, ok := w.s.Due(); !ok || at.Since(w.now) > 100 {
		t.Fatalf("Due %d, %v at %d", at, ok, w.now)
	}
	w.pass(200 * time.Millisecond)
	if r, ok := w.s.NextReleased(); !ok || r.Again || r.Reason != reason.NoMapping {
		t.Fatalf("released %+v, %v", r, ok)
	}
	// An outbound SYN of the same connection in that time wins: simultaneous open.
	w.refused(Outside, frame, Keep, reason.Held)
	w.out(tcp(syn, prv1, 4660, ext1, 80))
	if r, ok := w.s.NextReleased(); !ok || r.Again {
		t.Fatalf("released %+v, %v", r, ok)
	}
	w.in(tcp(syn|ack, ext1, 80, pub1, 4660))
	w.pass(10 * time.Second)
	if r, ok := w.s.NextReleased(); ok {
		t.Fatalf("released twice: %+v", r)
	}
	// Toward an existing mapping that filters it, too; and a bounded number of them.
	for i := range uint16(holdsMax) {
		w.refused(Outside, tcp(syn, ext2, 1000+i, pub1, 4660), Keep, reason.Held)
	}
	w.refused(Outside, tcp(syn, ext2, 999, pub1, 4660), Drop, reason.Filtered)
	w.pass(7 * time.Second)
	for i := range holdsMax {
		if r, ok := w.s.NextReleased(); !ok || r.Reason != reason.Filtered {
			t.Fatalf("%d: %+v %v", i, r, ok)
		}
	}
}

func TestKernelAddressGetsUnmatched(t *testing.T) {
	w := newWorld(t, func(o *Options) { o.Rules.Kernel = []packet.Addr{pub1} })
	w.refused(Outside, tcp(syn, ext1, 80, pub1, 22), Host, reason.ToHost)
	w.refused(Outside, udp(ext1, 80, pub1, 22), Host, reason.ToHost)
	w.refused(Inside, tcp(syn, prv1, 80, pub1, 22), Host, reason.ToHost)
	w.out(udp(prv1, 2222, ext2, 80))
	w.refused(Outside, udp(ext1, 80, pub1, 2222), Drop, reason.Filtered)
	echo := packet.Build{Src: ext1, Dst: pub1, SrcPort: 2222}.Echo(false, 1, nil)
	w.refused(Outside, echo, Host, reason.ToHost)
	w.out(packet.Build{Src: prv1, Dst: ext1, SrcPort: 2222}.Echo(false, 1, nil))
	w.refused(Outside, echo, Host, reason.ToHost)
}

func TestDenyIncomingOff(t *testing.T) {
	w := newWorld(t, func(o *Options) { o.Rules.DenyIncoming = false })
	w.refused(Outside, udp(ext1, 80, pub1, 22), Host, reason.ToHost)
	r := w.s.rules
	r.Target = prv2
	if err := w.s.SetRules(r, w.now); err != nil {
		t.Fatal(err)
	}
	for i := range uint16(5) {
		if l := w.in(udp(ext1, 80+i, pub1, 22)); l != (Local{prv2, 22}) {
			t.Fatalf("to %v", l)
		}
	}
	if a := w.out(udp(prv2, 22, ext1, 81)); a != (Alias{pub1, 22}) {
		t.Fatalf("reply from %v", a)
	}
	w.out(udp(prv1, 3333, ext2, 80))
	w.refused(Outside, udp(ext1, 80, pub1, 3333), Drop, reason.Filtered)
	// Another target: its links die at once, the others stay.
	r.Target = 0
	if err := w.s.SetRules(r, w.now); err != nil {
		t.Fatal(err)
	}
	w.refused(Outside, udp(ext1, 80, pub1, 22), Host, reason.ToHost)
	w.in(udp(ext2, 80, pub1, 3333))
	w.pass(time.Second)
	if w.s.live != 1 {
		t.Errorf("%d links live, want 1", w.s.live)
	}
}

func TestEcho(t *testing.T) {
	w := newWorld(t, nil)
	ask := packet.Build{Src: prv1, Dst: ext1, SrcPort: 7777}
	if a := w.out(ask.Echo(false, 1, []byte("x"))); a != (Alias{pub1, 7777}) {
		t.Fatalf("alias %v", a)
	}
	if a := w.out(packet.Build{Src: prv2, Dst: ext1, SrcPort: 7777}.Echo(false, 1, nil)); a.Port == 7777 {
		t.Fatal("two hosts share an id")
	}
	if l := w.in(packet.Build{Src: ext1, Dst: pub1, SrcPort: 7777}.Echo(true, 1, []byte("x"))); l != (Local{prv1, 7777}) {
		t.Fatalf("reply to %v", l)
	}
	w.refused(Outside, packet.Build{Src: ext1, Dst: pub1, SrcPort: 7777}.Echo(false, 1, nil), Drop, reason.Filtered)
	w.refused(Outside, packet.Build{Src: ext2, Dst: pub1, SrcPort: 7777}.Echo(true, 1, nil), Drop, reason.Filtered)
	w.refused(Outside, packet.Build{Src: ext2, Dst: pub1, SrcPort: 7778}.Echo(false, 1, nil), Drop, reason.NoMapping)
	ask.Dst = ext2
	if a := w.out(ask.Echo(false, 2, nil)); a != (Alias{pub1, 7777}) {
		t.Fatalf("the id's mapping depends on the peer: %v", a)
	}
	w.pass(60 * time.Second)
	if w.s.live != 3 {
		t.Fatalf("%d links after 60 s of idleness, want 3: nothing ends early", w.s.live)
	}
	w.pass(time.Second)
	if w.s.live != 0 {
		t.Fatalf("%d links after 61 s of idleness", w.s.live)
	}
}

func TestFiltering(t *testing.T) {
	for _, tc := range []struct {
		f                Behaviour
		samePort, sameIP bool // does another port of the same remote, another remote get in?
	}{{EndpointIndependent, true, true}, {AddressDependent, true, false}, {AddressAndPortDependent, false, false}} {
		w := newWorld(t, func(o *Options) { o.Rules.Filtering.UDP = tc.f })
		w.out(udp(prv1, 4660, ext1, 53))
		for i, ok := range []bool{tc.samePort, tc.sameIP} {
			frame := udp([]packet.Addr{ext1, ext2}[i], 99, pub1, 4660)
			if !ok {
				w.refused(Outside, frame, Drop, reason.Filtered)
			} else if l := w.in(frame); l != (Local{prv1, 4660}) {
				t.Errorf("%d: to %v", tc.f, l)
			}
		}
	}
}

func TestMappingAddressDependent(t *testing.T) {
	w := newWorld(t, func(o *Options) { o.Rules.Mapping.UDP = AddressDependent; o.Rules.SamePorts = false })
	a := w.out(udp(prv1, 4660, ext1, 53))
	if b := w.out(udp(prv1, 4660, ext1, 54)); b != a {
		t.Errorf("same remote address, %v and %v", a, b)
	}
	if b := w.out(udp(prv1, 4660, ext2, 53)); b == a {
		t.Errorf("other remote address, same mapping")
	}
	w.pass(302 * time.Second)
	if w.s.live != 0 || w.s.local.used != 0 || w.s.groups.index.used != 0 || w.s.exact.used != 0 {
		t.Error("state left")
	}
}

func TestMappingOutlivesFirstLink(t *testing.T) {
	w := newWorld(t, func(o *Options) { o.Rules.SamePorts = false })
	a := w.out(udp(prv1, 4660, ext1, 53))
	for range 5 {
		w.pass(100 * time.Second)
		if b := w.out(udp(prv1, 4660, ext2, 53)); b != a {
			t.Fatalf("mapping moved from %v to %v", a, b)
		}
	}
	if w.s.live != 1 {
		t.Fatalf("%d links", w.s.live)
	}
	if b := w.out(udp(prv1, 4660, ext1, 53)); b != a {
		t.Fatalf("mapping moved from %v to %v", a, b)
	}
}

func TestTTL(t *testing.T) {
	w := newWorld(t, nil)
	one := packet.Build{Src: prv1, SrcPort: 1, Dst: ext1, DstPort: 2, TTL: 1}
	p := w.send(Inside, one.UDP(nil))
	if p.Verdict != Answer || p.Reason != reason.TTLExpired || p.ICMPType != 11 || w.s.live != 0 {
		t.Fatalf("%+v", p)
	}
	one.TTL = 2
	p = w.send(Inside, one.UDP(nil))
	if p.Verdict != Forward || p.Data[22] != 1 {
		t.Fatalf("TTL %d", p.Data[22])
	}
	one.TTL = 1
	w.refused(Inside, one.UDP(nil), Answer, reason.TTLExpired)
}

func TestExemptAndUnregistered(t *testing.T) {
	w := newWorld(t, func(o *Options) {
		o.Rules.Exempt = []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24"), netip.MustParsePrefix("192.0.2.128/25")}
		o.Rules.UnregisteredOnly = true
		o.SideOf = func(a packet.Addr) (Side, bool) {
			switch {
			case a>>24 == 10 || a == pub9:
				return Inside, true
			case a>>24 == 99:
				return Outside, false
			}
			return Outside, true
		}
	})
	same := func(side Side, frame []byte) {
		t.Helper()
		p := w.send(side, frame)
		var h packet.Headers
		packet.Parse(p.Data, &h)
		if p.Verdict != Forward || p.Hop != nil || h.Src != p.H.Src || h.Dst != p.H.Dst || h.TTL != p.H.TTL-1 {
			t.Fatalf("verdict %d %v", p.Verdict, p.Reason)
		}
	}
	exempt := addr("192.0.2.9")
	same(Inside, udp(prv1, 1, exempt, 2))
	same(Outside, udp(exempt, 2, prv1, 1))
	same(Inside, udp(pub9, 1, ext1, 2)) // a registered host
	same(Outside, udp(ext1, 2, pub9, 1))
	same(Inside, udp(prv1, 1, prv2, 2))
	w.refused(Outside, udp(ext1, 2, prv1, 1), Drop, reason.NoMapping)
	w.refused(Outside, udp(ext1, 2, ext2, 1), Drop, reason.NoMapping)
	w.refused(Inside, udp(prv1, 2, addr("99.1.1.1"), 1), Answer, reason.NoRoute)
	if w.s.live != 0 {
		t.Errorf("%d links", w.s.live)
	}
	w.out(udp(prv1, 1, ext1, 2))
}

func TestHairpin(t *testing.T) {
	w := newWorld(t, nil)
	a1, a2 := w.out(udp(prv1, 0x1234, ext1, 1)), w.out(udp(prv2, 0x2345, ext1, 1))
	_ = a1
	for range 3 {
		p := w.send(Inside, udp(prv1, 0x1234, a2.Addr, a2.Port))
		if src, _ := ends(p); p.Verdict != Drop && p.Verdict != Again || src != Local(a1) {
			t.Fatalf("first pass: %d %v %v", p.Verdict, p.Reason, src)
		}
		ttl := p.Data[22]
		q := &Packet{Data: p.Data, Side: Outside, Hairpin: true}
		packet.Parse(q.Data, &q.H)
		b := []Packet{*q}
		w.s.Translate(b, w.now)
		if b[0].Verdict == Drop && b[0].Reason == reason.Filtered {
			r := w.send(Inside, udp(prv2, 0x2345, a1.Addr, a1.Port)) // opens prv2's own filter
			if r.Verdict != Again {
				t.Fatalf("%d %v", r.Verdict, r.Reason)
			}
			continue
		}
		if _, dst := ends(&b[0]); b[0].Verdict != Forward || Local(dst) != (Local{prv2, 0x2345}) {
			t.Fatalf("second pass: %d %v to %v", b[0].Verdict, b[0].Reason, dst)
		}
		if ttl != 64 || b[0].Data[22] != 63 {
			t.Errorf("TTL %d, %d: one router, one step", ttl, b[0].Data[22])
		}
	}
	w.refused(Inside, udp(prv1, 1, pub1, 999), Drop, reason.NoMapping)
	r := w.s.rules
	r.Hairpin = false
	if err := w.s.SetRules(r, w.now); err != nil {
		t.Fatal(err)
	}
	w.refused(Inside, udp(prv1, 5, a2.Addr, a2.Port), Drop, reason.HairpinOff)
	w.refused(Outside, udp(pub1, 5, a2.Addr, a2.Port), Drop, reason.BadSource)
}

func TestOtherProtocols(t *testing.T) {
	w := newWorld(t, nil)
	gre := func(src, dst packet.Addr) []byte { return packet.Build{Src: src, Dst: dst}.IP(47, []byte("12345678")) }
	w.out(gre(prv1, ext1))
	w.refused(Inside, gre(prv2, ext1), Drop, reason.ProtoConflict)
	w.out(gre(prv2, ext2))
	if l := w.in(gre(ext1, pub1)); l.Addr != prv1 {
		t.Fatal(l)
	}
	if l := w.in(gre(ext2, pub1)); l.Addr != prv2 {
		t.Fatal(l)
	}
	w.out(packet.Build{Src: prv2, Dst: ext1}.IP(50, []byte("12345678")))
	w.refused(Outside, gre(prv2, pub1), Drop, reason.NoMapping)
	w.pass(61 * time.Second)
	w.out(gre(prv2, ext1))
	w.pass(62 * time.Second)
	if w.s.live != 0 {
		t.Fatal("links left")
	}
}

func TestMSSClamp(t *testing.T) {
	w := newWorld(t, func(o *Options) { o.Rules.MSSClamp = 1200 })
	b := packet.Build{Src: prv1, SrcPort: 1111, Dst: ext1, DstPort: 2, Flags: syn, TCPOptions: []byte{2, 4, 5, 0xb4}}
	if p := w.send(Inside, b.TCP(nil)); p.Data[56] != 1200>>8 || p.Data[57] != 1200&0xff {
		t.Errorf("MSS %x out", p.Data[54:58])
	}
	b = packet.Build{Src: ext1, SrcPort: 2, Dst: pub1, DstPort: 1111, Flags: syn | ack, TCPOptions: []byte{2, 4, 5, 0xb4}}
	if p := w.send(Outside, b.TCP(nil)); p.Verdict != Forward || p.Data[56] != 1200>>8 || p.Data[57] != 1200&0xff {
		t.Errorf("MSS %x in", p.Data[54:58])
	}
}

func TestWindowTracking(t *testing.T) {
	w := newWorld(t, func(o *Options) { o.Rules.TCPWindowTracking = true })
	seg := func(out bool, flags uint8, seq, ackn uint32, data string) {
		t.Helper()
		b := packet.Build{Src: prv1, SrcPort: 4660, Dst: ext1, DstPort: 80, Flags: flags, Seq: seq, Ack: ackn, Window: 1000}
		if out {
			w.out(b.TCP([]byte(data)))
			return
		}
		b.Src, b.SrcPort, b.Dst, b.DstPort = ext1, 80, pub1, 4660
		w.in(b.TCP([]byte(data)))
	}
	seg(true, syn, 0xfffffff0, 0, "")
	seg(false, rst|ack, 0, 5, "") // acknowledges something else
	w.wantState(Opening, 240*time.Second)
	seg(false, syn|ack, 500, 0xfffffff1, "")
	seg(true, ack, 0xfffffff1, 501, "")
	w.wantState(Established, 7440*time.Second)
	seg(true, ack, 0xfffffff1, 501, "twenty bytes of data")
	seg(false, ack, 501, 5, "hello")
	seg(true, ack, 5, 506, "")
	for _, seq := range []uint32{505, 506 + 1000, 1 << 30} {
		seg(false, rst, seq, 0, "")
		w.wantState(Established, 7440*time.Second)
	}
	seg(false, fin|ack, 1<<30, 5, "") // far outside: teaches nothing
	seg(true, fin|ack, 5, 506, "")
	w.wantState(Established, 7440*time.Second)
	seg(false, rst, 506, 0, "")
	w.wantState(Closing, 240*time.Second)
}

// rules changes the rules of a world.
func (w *world) change(f func(r *Rules)) {
	w.t.Helper()
	r := w.s.rules
	f(&r)
	if err := w.s.SetRules(r, w.now); err != nil {
		w.t.Fatal(err)
	}
}

func redirect(remote Remote, locals ...Local) RedirectPort {
	return RedirectPort{Proto: packet.ProtoUDP, Public: Alias{pub1, 0xabcd}, Local: locals, Remote: remote}
}

func (w *world) addRedirect(d RedirectPort) uint32 {
	w.t.Helper()
	id, err := w.s.AddRedirect(d, w.now)
	if err != nil {
		w.t.Fatal(err)
	}
	return id
}

// resetAddress is libalias's way to clear dynamic links: set another address, then the old one.
func (w *world) resetAddress() {
	w.change(func(r *Rules) { r.Alias = []packet.Addr{ext1} })
	w.change(func(r *Rules) { r.Alias = []packet.Addr{pub1} })
}

func TestRedirectClasses(t *testing.T) {
	w := newWorld(t, nil)
	l := func(n packet.Addr) Local { return Local{10<<24 | n, 0x1234} }
	at := func(src packet.Addr, sport uint16, want Local) {
		t.Helper()
		w.resetAddress()
		if got := w.in(udp(src, sport, pub1, 0xabcd)); got != want {
			t.Fatalf("%v:%d went to %v, want %v", src, sport, got, want)
		}
	}
	var ids []uint32
	ids = append(ids, w.addRedirect(redirect(Remote{}, l(9))))
	at(ext1, 0x5678, l(9))
	ids = append(ids, w.addRedirect(redirect(Remote{0, 0x5678}, l(8))))
	at(ext2, 0x5678, l(8))
	at(ext2, 0x5679, l(9))
	ids = append(ids, w.addRedirect(redirect(Remote{ext1, 0}, l(7))))
	at(ext1, 0x5678, l(7))
	at(ext2, 0x5678, l(8))
	ids = append(ids, w.addRedirect(redirect(Remote{ext1, 0x5678}, l(6))))
	at(ext1, 0x5678, l(6))
	at(ext1, 0x5679, l(7))
	ids = append(ids, w.addRedirect(redirect(Remote{ext1, 0x5678}, l(5))))
	at(ext1, 0x5678, l(5)) // newest hides
	w.s.DelRedirect(ids[4], w.now)
	at(ext1, 0x5678, l(6)) // and uncovers
	if err := w.s.MakeDynamic(ids[0], w.now); err == nil {
		t.Error("a partial redirect was made dynamic")
	}
	if err := w.s.MakeDynamic(ids[3], w.now); err != nil {
		t.Error(err)
	}
	w.resetAddress()
	at(ext1, 0x5678, l(7))
	for _, id := range ids[:3] {
		if !w.s.DelRedirect(id, w.now) {
			t.Error("redirect is gone already")
		}
	}
	w.resetAddress()
	w.refused(Outside, udp(ext1, 0x5678, pub1, 0xabcd), Drop, reason.NoMapping)
	w.pass(time.Second)
	if w.s.live != 0 {
		t.Errorf("%d links left", w.s.live)
	}
}

func TestOneShot(t *testing.T) {
	w := newWorld(t, nil)
	if _, err := w.s.Expect(redirect(Remote{ext1, 0}, Local{prv1, 7}), w.now); err != nil {
		t.Fatal(err)
	}
	w.in(udp(ext1, 1, pub1, 0xabcd))
	w.refused(Outside, udp(ext1, 2, pub1, 0xabcd), Drop, reason.Filtered)
	w.in(udp(ext1, 1, pub1, 0xabcd))
	w.resetAddress()
	w.refused(Outside, udp(ext1, 1, pub1, 0xabcd), Drop, reason.NoMapping)
	if _, err := w.s.Expect(redirect(Remote{ext1, 0}, Local{prv1, 7}), w.now); err != nil {
		t.Fatal(err)
	}
	w.pass(301 * time.Second)
	w.refused(Outside, udp(ext1, 1, pub1, 0xabcd), Drop, reason.NoMapping)
	if w.s.table.oneShot != 0 {
		t.Error("an expectation lives for ever")
	}
}

func TestRedirectFollowsDefaultAlias(t *testing.T) {
	w := newWorld(t, func(o *Options) { o.Rules.Alias = nil; o.Rules.ResetOnAddressChange = false })
	d := redirect(Remote{}, Local{prv1, 7})
	d.Public.Addr = 0
	w.addRedirect(d)
	w.change(func(r *Rules) { r.Alias = []packet.Addr{pub1} })
	w.in(udp(ext1, 1, pub1, 0xabcd))
	w.refused(Outside, udp(ext1, 1, pub2, 0xabcd), Drop, reason.NoMapping)
	w.change(func(r *Rules) { r.Alias = []packet.Addr{pub2} })
	w.in(udp(ext1, 2, pub2, 0xabcd))
	w.refused(Outside, udp(ext2, 1, pub1, 0xabcd), Drop, reason.NoMapping)
	w.in(udp(ext1, 1, pub1, 0xabcd)) // lives on: no reset
}

func TestPool(t *testing.T) {
	w := newWorld(t, nil)
	pool := []Local{{prv1, 1}, {prv2, 2}, {prv2, 3}}
	w.addRedirect(redirect(Remote{}, pool...))
	for i := range uint16(7) {
		if got := w.in(udp(ext1, 100+i, pub1, 0xabcd)); got != pool[i%3] {
			t.Fatalf("flow %d to %v", i, got)
		}
	}
	d := redirect(Remote{}, pool...)
	d.Pick = SourceHash
	d.Public.Port++
	w.addRedirect(d)
	seen := map[Local]bool{}
	for a := range packet.Addr(50) {
		first := w.in(udp(ext1+a, 1, pub1, 0xabce))
		seen[first] = true
		if again := w.in(udp(ext1+a, 2, pub1, 0xabce)); again != first {
			t.Fatalf("client %d to %v and %v", a, first, again)
		}
	}
	if len(seen) != 3 {
		t.Errorf("only %d servers used", len(seen))
	}
	// a server answers each client from the public endpoint
	if a := w.out(udp(prv1, 1, ext1, 100)); a != (Alias{pub1, 0xabcd}) {
		t.Errorf("answer from %v", a)
	}
}

func TestTwoRedirectsOfOneServer(t *testing.T) {
	w := newWorld(t, func(o *Options) { o.Rules.Alias = []packet.Addr{pub1, pub2} })
	d := RedirectPort{Proto: packet.ProtoTCP, Public: Alias{pub1, 80}, Local: []Local{{prv1, 8080}}}
	w.addRedirect(d)
	d.Public.Addr = pub2
	second := w.addRedirect(d)
	w.in(tcp(syn, ext1, 1000, pub1, 80))
	w.in(tcp(syn, ext1, 1001, pub2, 80))
	w.in(tcp(syn, ext1, 1002, pub1, 80))
	w.in(tcp(syn, ext1, 1002, pub2, 80)) // one client port to both: the newest has the answers
	for port, want := range map[uint16]packet.Addr{1000: pub1, 1001: pub2, 1002: pub2} {
		if a := w.out(tcp(syn|ack, prv1, 8080, ext1, port)); a != (Alias{want, 80}) {
			t.Errorf("answer to %d from %v", port, a)
		}
	}
	w.s.DelRedirect(second, w.now)
	w.in(tcp(syn, ext1, 2000, pub1, 80))
	n := w.s.Lookup
	p := &Packet{Data: tcp(syn, ext1, 1002, pub2, 80), Side: Outside}
	packet.Parse(p.Data, &p.H)
	l, ok := n(p)
	if !ok || !w.s.Delete(l.ID, w.now) {
		t.Fatal("link not found")
	}
	if a := w.out(tcp(ack, prv1, 8080, ext1, 1002)); a != (Alias{pub1, 80}) {
		t.Errorf("after the newer went, answer from %v", a)
	}
}

func TestRedirectAddr(t *testing.T) {
	w := newWorld(t, func(o *Options) {
		o.Rules.RedirectAddr = []RedirectAddr{{Public: pub9, Local: []packet.Addr{prv1}, Inbound: true}}
	})
	if l := w.in(udp(ext1, 1, pub9, 5555)); l != (Local{prv1, 5555}) {
		t.Fatal(l)
	}
	if a := w.out(udp(prv1, 1, ext1, 2)); a != (Alias{pub9, 1}) {
		t.Fatal(a)
	}
	if a := w.out(udp(prv2, 1, ext1, 2)); a.Addr != pub1 {
		t.Fatal(a)
	}
	if l := w.in(packet.Build{Src: ext1, Dst: pub9, SrcPort: 9}.Echo(false, 1, nil)); l != (Local{prv1, 9}) {
		t.Fatal(l)
	}
	if a := w.out(packet.Build{Src: prv1, Dst: ext1, SrcPort: 9}.Echo(true, 1, nil)); a != (Alias{pub9, 9}) {
		t.Fatal(a)
	}
	if l := w.in(packet.Build{Src: ext1, Dst: pub9}.IP(47, []byte("12345678"))); l.Addr != prv1 {
		t.Fatal(l)
	}
	w.change(func(r *Rules) { r.RedirectAddr = []RedirectAddr{{Public: pub9, Local: []packet.Addr{prv1}}} })
	w.refused(Outside, udp(ext1, 1, pub9, 5556), Drop, reason.NoMapping) // deny beats inbound: false
	w.change(func(r *Rules) { r.DenyIncoming = false })
	w.in(udp(ext1, 1, pub9, 5556))
	id, err := w.s.AddRedirectAddr(RedirectAddr{Public: pub9, Local: []packet.Addr{prv2}, Inbound: true}, w.now)
	if err != nil {
		t.Fatal(err)
	}
	if l := w.in(udp(ext1, 1, pub9, 5557)); l != (Local{prv2, 5557}) { // newest wins
		t.Fatal(l)
	}
	w.s.DelRedirect(id, w.now)
	if l := w.in(udp(ext1, 1, pub9, 5558)); l != (Local{prv1, 5558}) {
		t.Fatal(l)
	}
}

func TestRedirectProto(t *testing.T) {
	w := newWorld(t, func(o *Options) {
		o.Rules.RedirectProto = []RedirectProto{{Proto: 47, Public: pub1, Local: prv1}, {Proto: 50, Public: pub1, Local: prv1, Remote: ext1}}
	})
	ip := func(proto uint8, src, dst packet.Addr) []byte {
		return packet.Build{Src: src, Dst: dst}.IP(proto, []byte("12345678"))
	}
	w.in(ip(47, ext1, pub1))
	w.in(ip(47, ext2, pub1))
	w.in(ip(50, ext1, pub1))
	w.refused(Outside, ip(50, ext2, pub1), Drop, reason.NoMapping)
	if a := w.out(ip(47, prv1, ext1)); a.Addr != pub1 {
		t.Fatal(a)
	}
	w.refused(Inside, ip(47, prv2, ext1), Drop, reason.ProtoConflict)
}

func TestPublishedServerCallsOut(t *testing.T) {
	w := newWorld(t, func(o *Options) {
		o.Rules.RedirectPort = []RedirectPort{redirect(Remote{}, Local{prv1, 7})}
	})
	if a := w.out(udp(prv1, 7, ext1, 1)); a != (Alias{pub1, 0xabcd}) {
		t.Fatalf("from %v", a)
	}
	if a := w.out(udp(prv2, 0xabcd, ext1, 1)); a.Port == 0xabcd {
		t.Fatal("a published port was given away")
	}
}

func TestLimits(t *testing.T) {
	w := newWorld(t, func(o *Options) { o.Limits.Links, o.Limits.LinksPerHost = 10, 4 })
	for i := range uint16(4) {
		w.out(udp(prv1, 100+i, ext1, 1))
	}
	w.refused(Inside, udp(prv1, 200, ext1, 1), Answer, reason.HostLimit)
	for h := range packet.Addr(2) {
		for i := range uint16(3) {
			w.out(udp(prv2+h, 100+i, ext1, 1))
		}
	}
	w.refused(Inside, udp(prv2+9, 200, ext1, 1), Answer, reason.TableFull)
	w.out(udp(prv1, 100, ext1, 1)) // old ones live
	w.pass(302 * time.Second)
	if w.s.Counters().Links != 0 || w.s.counters.Hosts != 0 {
		t.Fatalf("%d links, %d hosts left", w.s.counters.Links, w.s.counters.Hosts)
	}
	w.out(udp(prv1, 200, ext1, 1))
}

func TestHostRate(t *testing.T) {
	w := newWorld(t, func(o *Options) { o.Limits.NewLinksPerHost = 5 })
	for i := range uint16(5) {
		w.out(udp(prv1, 100+i, ext1, 1))
	}
	w.refused(Inside, udp(prv1, 200, ext1, 1), Answer, reason.HostRate)
	w.out(udp(prv2, 200, ext1, 1))
	w.pass(200 * time.Millisecond)
	w.out(udp(prv1, 201, ext1, 1))
	w.refused(Inside, udp(prv1, 202, ext1, 1), Answer, reason.HostRate)
	w.pass(10 * time.Minute)
	if n := w.s.Counters().Hosts; n != 0 {
		t.Errorf("%d hosts left", n)
	}
}

func TestPortsPerHost(t *testing.T) {
	w := newWorld(t, func(o *Options) { o.Limits.PortsPerHost = 3 })
	for i := range uint16(3) {
		w.out(udp(prv1, 100+i, ext1, 1))
	}
	w.refused(Inside, udp(prv1, 200, ext1, 1), Answer, reason.HostLimit)
	w.out(udp(prv1, 101, ext2, 1))
}

func TestPoolDryAndRefill(t *testing.T) {
	for _, m := range []Behaviour{EndpointIndependent, AddressAndPortDependent} {
		w := newWorld(t, func(o *Options) {
			o.Rules.PortRange = PortRange{4000, 4009}
			o.Rules.Mapping.UDP = m
		})
		for range 3 {
			used := map[uint16]bool{}
			for i := range uint16(10) {
				used[w.out(udp(prv1, 100+i, ext1, 1)).Port] = true
			}
			if len(used) != 10 {
				t.Fatalf("%d ports used", len(used))
			}
			w.refused(Inside, udp(prv1, 200, ext1, 1), Answer, reason.NoPort)
			for i := range uint16(10) {
				w.out(udp(prv1, 100+i, ext1, 1))
			}
			w.pass(301 * time.Second)
		}
	}
}

func TestRecycleOldestClosing(t *testing.T) {
	for name, change := range map[string]func(*Options){
		"table": func(o *Options) { o.Limits.Links = 5 },
		"ports": func(o *Options) { o.Rules.PortRange = PortRange{4000, 4004} },
	} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t, change)
			for i := range uint16(5) {
				w.out(tcp(syn, prv1, 100+i, ext1, 80))
			}
			want := Answer
			why := map[string]reason.Reason{"table": reason.TableFull, "ports": reason.NoPort}[name]
			w.refused(Inside, tcp(syn, prv2, 200, ext1, 80), want, why)
			for _, i := range []uint16{3, 1, 2} {
				w.out(tcp(rst, prv1, 100+i, ext1, 80))
				w.pass(300 * time.Millisecond)
			}
			w.out(tcp(ack, prv1, 103, ext1, 80)) // no longer the oldest
			for i, gone := range []uint16{101, 102, 103} {
				w.pass(600 * time.Millisecond)
				w.out(tcp(syn, prv2, 200+uint16(i), ext1, 80))
				for _, port := range []uint16{100, 101, 102, 103, 104} {
					p := &Packet{Data: tcp(ack, prv1, port, ext1, 80)}
					packet.Parse(p.Data, &p.H)
					if _, ok := w.s.Lookup(p); name == "table" && ok != (port == 100 || port == 104 || port > gone) {
						t.Fatalf("round %d: port %d there: %v", i, port, ok)
					}
				}
			}
			w.refused(Inside, tcp(syn, prv2, 300, ext1, 80), want, why)
			if w.s.counters.Recycled != 3 {
				t.Errorf("%d recycled", w.s.counters.Recycled)
			}
		})
	}
}

func TestPairedPooling(t *testing.T) {
	w := newWorld(t, func(o *Options) {
		o.Rules.Alias = []packet.Addr{pub1, pub2, pub9}
		o.Rules.PortRange = PortRange{4000, 4099}
	})
	seen := map[packet.Addr]int{}
	for h := range packet.Addr(12) {
		first := w.out(udp(prv1+h, 1, ext1, 1)).Addr
		seen[first]++
		for i := range uint16(8) {
			if a := w.out(udp(prv1+h, 2+i, ext1, 1)).Addr; a != first {
				t.Fatalf("host %d has %v and %v", h, first, a)
			}
		}
	}
	if len(seen) != 3 {
		t.Errorf("addresses used: %v", seen)
	}
	w = newWorld(t, func(o *Options) {
		o.Rules.Alias, o.Rules.Arbitrary, o.Rules.PortRange = []packet.Addr{pub1, pub2}, true, PortRange{4000, 4001}
	})
	for i := range uint16(4) {
		w.out(udp(prv1, 1+i, ext1, 1))
	}
	w.refused(Inside, udp(prv1, 9, ext1, 1), Answer, reason.NoPort)
}

func TestSetRulesKeepsWhatStands(t *testing.T) {
	w := newWorld(t, func(o *Options) {
		o.Rules.Alias = []packet.Addr{pub1, pub2}
		o.Rules.RedirectPort = []RedirectPort{
			{Proto: packet.ProtoUDP, Public: Alias{pub1, 80}, Local: []Local{{prv1, 80}}},
			{Proto: packet.ProtoUDP, Public: Alias{pub1, 81}, Local: []Local{{prv1, 81}}}}
	})
	var hosts [2]packet.Addr // one host on each alias address
	for h := prv1; hosts[0] == 0 || hosts[1] == 0; h++ {
		if w.s.prefer(h) == pub1 {
			hosts[0] = h
		} else {
			hosts[1] = h
		}
	}
	w.out(udp(hosts[0], 5555, ext1, 1))
	w.out(udp(hosts[1], 5555, ext1, 1))
	w.in(udp(ext1, 7, pub1, 80))
	w.in(udp(ext1, 7, pub1, 81))
	same := w.s.rules
	epoch := w.s.epoch
	if err := w.s.SetRules(same, w.now); err != nil || w.s.epoch != epoch {
		t.Error("the same rules are not a no-op")
	}
	bad := same
	bad.PortRange = PortRange{5555, 4444}
	if err := w.s.SetRules(bad, w.now); err == nil {
		t.Error("bad rules taken")
	}
	w.change(func(r *Rules) {
		r.Alias = []packet.Addr{pub1}
		r.RedirectPort = r.RedirectPort[1:]
	})
	w.in(udp(ext1, 1, pub1, 5555))
	w.in(udp(ext1, 7, pub1, 81))
	w.refused(Outside, udp(ext1, 7, pub1, 80), Drop, reason.NoMapping)
	w.refused(Outside, udp(ext1, 1, pub2, 5555), Drop, reason.NoMapping)
	w.pass(time.Second)
	if w.s.live != 2 {
		t.Errorf("%d links", w.s.live)
	}
	for i := range 1000 { // the epoch in a line has 8 bits
		w.change(func(r *Rules) { r.MSSClamp = 1000 + i%2 })
		if i%300 == 0 {
			w.s.Advance(w.now, 1)
		}
	}
	w.in(udp(ext1, 1, pub1, 5555))
	w.in(udp(ext1, 7, pub1, 81))
}

func TestResetFreesPortsAtOnce(t *testing.T) {
	for _, m := range []Behaviour{EndpointIndependent, AddressAndPortDependent} {
		w := newWorld(t, func(o *Options) {
			o.Rules.Mapping.UDP = m
			o.Rules.PortRange = PortRange{4660, 4661}
			o.Limits.Links = 4
		})
		for i := range uint16(2) {
			w.out(udp(prv1, 4660+i, ext1, 1))
		}
		w.resetAddress()
		w.refused(Outside, udp(ext1, 1, pub1, 4660), Drop, reason.NoMapping)
		w.resetAddress()
		if a := w.out(udp(prv2, 4660, ext1, 1)); a != (Alias{pub1, 4660}) {
			t.Errorf("got %v: the port is not free again", a)
		}
		w.out(udp(prv2, 9, ext1, 1))
		w.refused(Inside, udp(prv2, 10, ext1, 1), Answer, reason.NoPort)
	}
}

func TestEveryKindExpiresOnTimeAcrossTheWrap(t *testing.T) {
	w := newWorld(t, nil) // 4 s before the tick wraps
	w.pass(3900 * time.Millisecond)
	w.out(udp(prv1, 1, ext1, 1))
	w.out(packet.Build{Src: prv1, Dst: ext1, SrcPort: 9}.Echo(false, 1, nil))
	w.out(packet.Build{Src: prv1, Dst: ext1}.IP(47, []byte("12345678")))
	w.out(tcp(syn, prv1, 1, ext1, 1))
	for _, step := range []struct {
		at   time.Duration
		live int
	}{{60 * time.Second, 4}, {60500 * time.Millisecond, 2}, {240 * time.Second, 2}, {240500 * time.Millisecond, 1}, {300 * time.Second, 1}, {300500 * time.Millisecond, 0}} {
		w.pass(step.at - time.Duration(w.now-0xffffff3c)*time.Millisecond)
		if w.s.live != step.live {
			t.Fatalf("at %v: %d links, want %d", step.at, w.s.live, step.live)
		}
	}
}

func TestExpiredLinkIsAbsentWithoutAdvance(t *testing.T) {
	w := newWorld(t, func(o *Options) {
		o.Rules.RedirectPort = []RedirectPort{redirect(Remote{}, Local{prv1, 7})}
	})
	w.in(udp(ext1, 1, pub1, 0xabcd))
	w.change(func(r *Rules) { r.RedirectPort = append(r.RedirectPort, redirect(Remote{}, Local{prv2, 7})) })
	if l := w.in(udp(ext1, 1, pub1, 0xabcd)); l != (Local{prv1, 7}) {
		t.Fatal("an existing flow moved")
	}
	w.now += 301_000
	if l := w.in(udp(ext1, 1, pub1, 0xabcd)); l != (Local{prv2, 7}) { // the very packet goes on to the redirects
		t.Fatalf("to %v", l)
	}
}

func TestMulticastAndOthersGoToTheHost(t *testing.T) {
	w := newWorld(t, nil)
	w.refused(Inside, udp(prv1, 1, addr("224.0.0.251"), 5353), Host, reason.ToHost)
	w.refused(Inside, udp(prv1, 68, addr("255.255.255.255"), 67), Host, reason.ToHost)
	w.refused(Inside, packet.Build{}.IPv6([16]byte{1}, [16]byte{2}, 17, make([]byte, 8)), Host, reason.ToHost)
}

func TestNoAliasAddress(t *testing.T) {
	w := newWorld(t, func(o *Options) { o.Rules.Alias = nil })
	w.refused(Inside, udp(prv1, 1, ext1, 1), Answer, reason.NoPort)
	if w.s.hosts.live != 0 {
		t.Error("host left")
	}
}

// TestRecycledMappingAdmitsNobody: a full table gives up a closing link to make room for a packet that came by that link's own
// mapping. The mapping is gone then, and so is its port.
func TestRecycledMappingAdmitsNobody(t *testing.T) {
	w := newWorld(t, func(o *Options) {
		o.Limits.Links = 2
		o.Rules.Mapping.TCP, o.Rules.Filtering.TCP = EndpointIndependent, EndpointIndependent
	})
	a := w.out(tcp(syn, prv1, 4660, ext1, 80))
	w.out(tcp(syn, prv1, 4661, ext1, 80))
	w.out(tcp(rst, prv1, 4660, ext1, 80))
	w.refused(Outside, tcp(syn, ext2, 80, a.Addr, a.Port), Keep, reason.Held)
	w.pass(time.Hour)
	w.wantEmpty()
}

// A host without links is bound to no alias address yet: it gets one that has a port, while a host with links is refused
// rather than moved.
func TestPairedPoolingOfNewHosts(t *testing.T) {
	w := newWorld(t, func(o *Options) {
		o.Rules.Alias, o.Rules.PortRange = []packet.Addr{pub1, pub1 + 1, pub1 + 2, pub1 + 3, pub1 + 4}, PortRange{4000, 4001}
	})
	used := map[Alias]bool{}
	for host := range packet.Addr(10) {
		a := w.out(udp(prv1+host, 5000, ext1, 53))
		if used[a] {
			t.Fatalf("%v is given twice", a)
		}
		used[a] = true
	}
	w.refused(Inside, udp(prv1+10, 5000, ext1, 53), Answer, reason.NoPort)

	w.pass(time.Hour)
	a := w.out(udp(prv1, 1, ext1, 53))
	if b := w.out(udp(prv1, 2, ext1, 53)); b.Addr != a.Addr {
		t.Fatalf("one host has %v and %v", a, b)
	}
	w.refused(Inside, udp(prv1, 3, ext1, 53), Answer, reason.NoPort)
}
