package nat_test

import (
	"testing"
	"time"

	"pollux/internal/packet"
	"pollux/internal/reason"
	"pollux/lport"
	"pollux/nat"
)

// Each test is named after the paragraph of SPEC part A that it holds; where parts B or C overrule it, the comment says so.

// A1, expiry seconds: a link dies when idle is strictly more than its timeout (values: part C), and any use begins anew.
func TestSpecA1_Expiry(t *testing.T) {
	for name, c := range map[string]struct {
		frame   []byte
		timeout time.Duration
	}{
		"udp":         {udp(prv1, 5000, ext, 53), 300 * time.Second},
		"tcp-opening": {tcp(syn, prv1, 5000, ext, 80), 240 * time.Second},
		"icmp":        {ping(prv1, 77, ext), 60 * time.Second},
		"other":       {proto(47, prv1, ext), 60 * time.Second},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, nil)
			r.out(c.frame)
			r.pass(c.timeout - time.Second)
			r.out(c.frame)
			r.pass(c.timeout)
			if n := r.links(); n != 1 {
				t.Fatalf("%d links after exactly the timeout, want 1", n)
			}
			r.pass(time.Second)
			if n := r.links(); n != 0 {
				t.Fatalf("%d links after the timeout", n)
			}
		})
	}
}

// A1, TCP state, as part C redefines it: opening until the handshake's last ACK, one FIN keeps the established timer, FIN both
// ways or RST begin the closing timer.
func TestSpecA1_TCPState(t *testing.T) {
	remote := end{ext, 80}
	t.Run("handshake", func(t *testing.T) {
		r := newRig(t, nil)
		f := &flow{r: r, local: end{prv1, 5000}, remote: remote}
		f.alias = f.out(syn)
		f.in(syn | ack)
		if s := r.state(); s != nat.Opening {
			t.Errorf("before the last ACK: %v", s)
		}
		f.out(ack)
		if s := r.state(); s != nat.Established {
			t.Errorf("after the last ACK: %v", s)
		}
	})
	t.Run("one FIN", func(t *testing.T) {
		r := newRig(t, nil)
		f := r.open(end{prv1, 5000}, remote)
		f.out(fin | ack)
		f.in(ack)
		if s := r.state(); s != nat.Established {
			t.Errorf("half closed: %v", s)
		}
		r.pass(7440 * time.Second)
		if r.links() != 1 {
			t.Error("half closed: lost the established timer")
		}
		f.in(fin | ack)
		if s := r.state(); s != nat.Closing {
			t.Errorf("FIN both ways: %v", s)
		}
		f.out(ack)
		r.pass(241 * time.Second)
		if r.links() != 0 {
			t.Error("closed: still there after the closing timer")
		}
	})
	t.Run("RST", func(t *testing.T) {
		r := newRig(t, nil)
		f := r.open(end{prv1, 5000}, remote)
		f.in(rst)
		if s := r.state(); s != nat.Closing {
			t.Errorf("after RST: %v", s)
		}
	})
	t.Run("mid-stream", func(t *testing.T) {
		r := newRig(t, nil)
		r.out(tcp(ack, prv1, 5000, ext, 80))
		if s := r.state(); s != nat.Opening {
			t.Errorf("picked up midway: %v", s)
		}
	})
}

// A1: a redirect is permanent; links made by it are dynamic.
func TestSpecA1_Permanent(t *testing.T) {
	r := newRig(t, nil)
	r.redirect(end{prv1, 0x1234}, end{})
	r.meet(ext, 99, prv1)
	r.pass(40 * time.Hour)
	if n := r.links(); n != 0 {
		t.Errorf("%d links of the redirect are left", n)
	}
	r.meet(ext, 99, prv1)
}

// A2, DENY_INCOMING: unmatched inbound packets make no link; replies and redirects go on working.
func TestSpecA2_DenyIncoming(t *testing.T) {
	r := newRig(t, func(o *nat.Options) { o.Rules.Target = prv3 })
	r.redirect(end{prv2, 0x1234}, end{})
	a := r.out(udp(prv1, 5000, ext, 53))
	frames := map[string][]byte{
		"udp": udp(ext, 53, masq, 7777), "ping": ping(ext, 9, masq), "gre": proto(47, ext, masq), "tcp ack": tcp(ack, ext, 80, masq, 7777),
	}
	for name, f := range frames {
		if p := r.fails(nat.Outside, f, reason.NoMapping); p.Verdict != nat.Drop {
			t.Errorf("%s: verdict %d", name, p.Verdict)
		}
	}
	if n := r.links(); n != 1 {
		t.Errorf("%d links, want 1", n)
	}
	r.wantIn(udp(ext, 53, masq, a.port), end{prv1, 5000})
	r.meet(pub, 1, prv2)
	r.set(func(r *nat.Rules) { r.DenyIncoming = false })
	for name, f := range frames {
		if got := r.in(f); got.addr != prv3 {
			t.Errorf("%s with deny off went to %v, want the target", name, got)
		}
	}
}

// C: with deny_incoming, what meets nothing goes to the kernel if that has the address.
func TestSpecC_UnmatchedGoesToTheKernel(t *testing.T) {
	r := newRig(t, func(o *nat.Options) { o.Rules.Kernel = []packet.Addr{masq} })
	for _, f := range [][]byte{udp(ext, 53, masq, 7777), tcp(syn, ext, 80, masq, 22), ping(ext, 9, masq), proto(47, ext, masq)} {
		if p := r.fails(nat.Outside, f, reason.ToHost); p.Verdict != nat.Host {
			t.Errorf("verdict %d, want Host", p.Verdict)
		}
	}
}

// A2: the mode is evaluated when a link is created; an existing link keeps its translation.
func TestSpecA2_ModeAtCreation(t *testing.T) {
	r := newRig(t, nil)
	a := r.out(udp(prv1, 5000, ext, 53))
	g := r.out(tcp(ack, prv1, 5000, ext, 80))
	r.set(func(r *nat.Rules) {
		r.SamePorts, r.PortParity, r.PortRange = false, true, nat.PortRange{Low: 2000, High: 2999}
		r.Mapping.UDP, r.Mapping.TCP = nat.AddressAndPortDependent, nat.EndpointIndependent
	})
	r.wantOut(udp(prv1, 5000, ext, 53), a)
	r.wantOut(tcp(ack, prv1, 5000, ext, 80), g)
	r.wantIn(udp(ext, 53, masq, a.port), end{prv1, 5000})
	if b := r.out(udp(prv1, 5000, ext, 54)); b.port < 2000 || b.port > 2999 {
		t.Errorf("a new flow leaves with %v, the range is 2000-2999", b)
	}
}

// A2, RESET_ON_ADDR_CHANGE: a different address ends the links of the old one; the same address does nothing; without the
// flag links live on.
func TestSpecA2_ResetOnAddressChange(t *testing.T) {
	for _, reset := range []bool{true, false} {
		r := newRig(t, func(o *nat.Options) { o.Rules.ResetOnAddressChange = reset })
		a := r.out(udp(prv1, 5000, ext, 53))
		r.set(func(r *nat.Rules) { r.Alias = []packet.Addr{masq} })
		r.wantIn(udp(ext, 53, masq, a.port), end{prv1, 5000})
		r.set(func(r *nat.Rules) { r.Alias = []packet.Addr{pub2} })
		if !reset {
			r.wantIn(udp(ext, 53, masq, a.port), end{prv1, 5000})
			r.wantOut(udp(prv1, 5000, ext, 53), a)
			continue
		}
		r.fails(nat.Outside, udp(ext, 53, masq, a.port), reason.None)
		if b := r.out(udp(prv1, 5000, ext, 53)); b.addr != pub2 {
			t.Errorf("after the change the flow leaves with %v", b)
		}
	}
}

// A3: truncated headers are refused, whatever their direction; the UDP checksum 0 stays 0.
func TestSpecA3_ShortHeaders(t *testing.T) {
	r := newRig(t, nil)
	for name, f := range map[string][]byte{
		"udp of 7 bytes":    packet.Build{Src: prv1, Dst: ext}.IP(packet.ProtoUDP, make([]byte, 7)),
		"tcp of 19 bytes":   packet.Build{Src: prv1, Dst: ext}.IP(packet.ProtoTCP, make([]byte, 19)),
		"icmp of 7 bytes":   packet.Build{Src: prv1, Dst: ext}.IP(packet.ProtoICMP, []byte{8, 0, 0xf7, 0xff, 0, 0, 0}),
		"udp length beyond": func() []byte { f := udp(prv1, 1, ext, 2); f[14+20+4] = 9; return f }(),
		"ip length beyond":  func() []byte { f := udp(prv1, 1, ext, 2); return f[:len(f)-5] }(),
	} {
		if p := r.fails(nat.Inside, f, reason.BadHeader); p.Verdict != nat.Drop {
			t.Errorf("%s: verdict %d", name, p.Verdict)
		}
	}
	f := packet.Build{Src: prv1, SrcPort: 1, Dst: ext, DstPort: 2, NoChecksum: true}.UDP([]byte("x"))
	if p := r.goes(nat.Inside, f); p.Data[14+20+6] != 0 || p.Data[14+20+7] != 0 {
		t.Errorf("UDP checksum 0 became % x", p.Data[40:42])
	}
}

// A3.1 step 1: a full link goes before every redirect, newer ones too.
func TestSpecA3_1_FullLinkFirst(t *testing.T) {
	r := newRig(t, nil)
	r.redirect(end{prv1, 0x1234}, end{})
	r.meet(ext, 5, prv1)
	r.redirect(end{prv2, 0x1234}, end{ext, 5})
	r.meet(ext, 5, prv1)
	r.pass(301 * time.Second)
	r.meet(ext, 5, prv2)
}

// A3.1 step 2: the best class wins whatever its age; in a class the newest; deleting it uncovers the older.
func TestSpecA3_1_Classes(t *testing.T) {
	r := newRig(t, nil)
	old := r.redirect(end{prv1, 0x1234}, end{ext, 0}) // address known
	r.redirect(end{prv2, 0x1234}, end{0, 7})          // port known, newer
	r.redirect(end{prv3, 0x1234}, end{0, 0})          // neither, newest
	r.meet(ext, 7, prv1)
	r.meet(pub, 7, prv2)
	r.meet(pub, 8, prv3)
	newer := r.redirect(end{cgn, 0x1234}, end{ext, 0})
	r.meet(ext, 9, cgn)
	r.s.DelRedirect(newer, r.now)
	r.meet(ext, 10, prv1)
	r.s.DelRedirect(old, r.now)
	r.meet(ext, 11, prv3)
}

// A3.1 step 3: redirects without public address follow the default alias address, behind those that name it.
func TestSpecA3_1_DefaultAlias(t *testing.T) {
	r := newRig(t, func(o *nat.Options) {
		o.Rules.Alias = []packet.Addr{masq, pub2}
		o.Rules.RedirectPort = []nat.RedirectPort{
			{Proto: packet.ProtoUDP, Public: nat.Alias{Addr: masq, Port: 53}, Local: []nat.Local{{Addr: prv1, Port: 53}}},
			{Proto: packet.ProtoUDP, Public: nat.Alias{Port: 53}, Local: []nat.Local{{Addr: prv2, Port: 53}}},
			{Proto: packet.ProtoUDP, Public: nat.Alias{Port: 54}, Local: []nat.Local{{Addr: prv2, Port: 54}}},
		}
	})
	r.wantIn(udp(ext, 5, masq, 53), end{prv1, 53})
	r.wantIn(udp(ext, 5, masq, 54), end{prv2, 54})
	r.fails(nat.Outside, udp(ext, 5, pub2, 54), reason.NoMapping)
}

// A3.1 step 4: a one-shot partial link makes one full link and is gone.
func TestSpecA3_1_OneShot(t *testing.T) {
	r := newRig(t, nil)
	expect := func() {
		t.Helper()
		if _, err := r.s.Expect(nat.RedirectPort{Proto: packet.ProtoUDP, Public: nat.Alias{Addr: masq, Port: 0xabcd},
			Local: []nat.Local{{Addr: prv1, Port: 0x1234}}, Remote: nat.Remote{Addr: ext}}, r.now); err != nil {
			t.Fatal(err)
		}
	}
	expect()
	r.meet(pub, 5, 0)
	r.meet(ext, 5, prv1)
	r.meet(ext, 6, 0) // used up
	r.meet(ext, 5, prv1)
	r.pass(301 * time.Second)
	r.meet(ext, 5, 0)
	expect()
	r.pass(301 * time.Second)
	r.meet(ext, 7, 0) // expectations end unused
}

// A3.1 step 5: no hit and no deny: an address redirect, else the target; the port stays. Part C: without a target it is the
// host's.
func TestSpecA3_1_NoHit(t *testing.T) {
	r := newRig(t, libalias)
	if p := r.fails(nat.Outside, udp(ext, 5, masq, 700), reason.ToHost); p.Verdict != nat.Host {
		t.Errorf("no target: verdict %d", p.Verdict)
	}
	r.set(func(r *nat.Rules) { r.Target = prv1 })
	r.wantIn(udp(ext, 5, masq, 700), end{prv1, 700})
	r.wantOut(udp(prv1, 700, ext, 5), end{masq, 700})
	r.set(func(r *nat.Rules) { r.RedirectAddr = []nat.RedirectAddr{{Public: pub, Local: []packet.Addr{prv2}}} })
	r.wantIn(udp(ext, 5, pub, 700), end{prv2, 700})
}

// A3.2: exact link first; then a redirect seen from its server: it leaves with the public endpoint; pools never match outbound.
func TestSpecA3_2_Outbound(t *testing.T) {
	r := newRig(t, func(o *nat.Options) {
		o.Rules.RedirectPort = []nat.RedirectPort{
			{Proto: packet.ProtoUDP, Public: nat.Alias{Addr: masq, Port: 500}, Local: []nat.Local{{Addr: prv1, Port: 501}}},
			{Proto: packet.ProtoUDP, Public: nat.Alias{Addr: masq, Port: 600}, Local: []nat.Local{{Addr: prv2, Port: 601}}, Remote: nat.Remote{Addr: ext}},
			{Proto: packet.ProtoUDP, Public: nat.Alias{Addr: masq, Port: 700}, Local: []nat.Local{{Addr: prv3, Port: 701}, {Addr: prv3, Port: 702}}},
		}
		o.Rules.RedirectAddr = []nat.RedirectAddr{{Public: pub, Local: []packet.Addr{cgn}, Inbound: true}}
	})
	r.wantOut(udp(prv1, 501, ext, 5), end{masq, 500})
	r.wantOut(udp(prv2, 601, ext, 5), end{masq, 600})
	if a := r.out(udp(prv2, 601, pub2, 5)); a == (end{masq, 600}) {
		t.Error("a redirect for one remote was used toward another")
	}
	if a := r.out(udp(prv3, 701, ext, 5)); a == (end{masq, 700}) {
		t.Error("a pool's public endpoint was used outbound")
	}
	r.wantOut(udp(cgn, 701, ext, 5), end{pub, 701})
}

// A3.3: other protocols: one link per (local, remote, protocol), partial lookup by redirect_proto.
func TestSpecA3_3_OtherProtocols(t *testing.T) {
	r := newRig(t, func(o *nat.Options) {
		o.Rules.RedirectProto = []nat.RedirectProto{{Proto: 50, Public: masq, Local: prv2, Remote: ext}, {Proto: 51, Local: prv3}}
	})
	r.wantOut(proto(47, prv1, ext), end{masq, 0})
	r.wantOut(proto(47, prv1, pub2), end{masq, 0})
	r.wantOut(proto(89, prv2, ext), end{masq, 0})
	r.wantIn(proto(47, ext, masq), end{prv1, 0})
	r.wantIn(proto(89, ext, masq), end{prv2, 0})
	r.wantIn(proto(50, ext, masq), end{prv2, 0})
	r.fails(nat.Outside, proto(50, pub2, masq), reason.NoMapping)
	r.wantIn(proto(51, pub2, masq), end{prv3, 0})
}

// A3.4: echo and timestamp by id; requests and replies.
func TestSpecA3_4_Queries(t *testing.T) {
	r := newRig(t, func(o *nat.Options) { o.Rules.SamePorts = false })
	a := r.out(ping(prv1, 0x1234, ext))
	if a.addr != masq || a.port < 1024 {
		t.Errorf("leaves with %v", a)
	}
	r.wantIn(pong(ext, a.port, masq), end{prv1, 0x1234})
	if b := r.out(ping(prv2, 0x1234, ext)); b == a {
		t.Error("two hosts have one id toward one remote")
	}
	stamp := packet.Build{Src: prv1, Dst: ext}.ICMP(13, 0, 0x4321_0001, make([]byte, 12))
	b := r.out(stamp)
	back := packet.Build{Src: ext, Dst: masq}.ICMP(14, 0, uint32(b.port)<<16|1, make([]byte, 12))
	r.wantIn(back, end{prv1, 0x4321})
	r.fails(nat.Inside, packet.Build{Src: prv1, Dst: ext}.ICMP(5, 0, 0, make([]byte, 28)), reason.Unsupported) // redirect
	r.fails(nat.Outside, pong(pub, a.port, masq), reason.Filtered)
	// C: an echo request never comes in by a mapping of an inside echo.
	r.fails(nat.Outside, ping(ext, a.port, masq), reason.Filtered)
}

// A3.4, errors: by the packet they quote, looked up only; inward they get the host's endpoint, outward (part C) the alias address
// also as their source.
func TestSpecA3_4_Errors(t *testing.T) {
	r := newRig(t, func(o *nat.Options) { o.Rules.SamePorts = false })
	router := ip("198.51.100.254")
	quoted := func(p *result) packet.Headers {
		t.Helper()
		var q packet.Headers
		if !packet.ParseQuoted(p.Data, &p.h, &q) {
			t.Fatal("the quote is broken")
		}
		return q
	}
	for name, sent := range map[string][]byte{"udp": udp(prv1, 5000, ext, 53), "tcp": tcp(syn, prv1, 5000, ext, 80), "ping": ping(prv1, 5000, ext)} {
		p := r.goes(nat.Inside, sent)
		e := r.goes(nat.Outside, icmpError(router, masq, 11, 0, 0, p.Data))
		q := quoted(e)
		if e.h.Dst != prv1 || e.h.Src != router || q.Src != prv1 || q.SrcPort != 5000 || q.Dst != ext {
			t.Errorf("%s: error %v -> %v quotes %v:%d -> %v", name, e.h.Src, e.h.Dst, q.Src, q.SrcPort, q.Dst)
		}
	}
	before := r.links()
	r.fails(nat.Outside, icmpError(router, masq, 3, 1, 0, udp(masq, 4444, ext, 53)), reason.NoMapping)
	if r.links() != before {
		t.Error("an error made a link")
	}
	short := packet.Build{Src: router, Dst: masq}.ICMP(3, 1, 0, make([]byte, 27))
	r.fails(nat.Outside, short, reason.None)

	a := r.out(udp(prv2, 6000, ext, 53))
	p := r.goes(nat.Outside, udp(ext, 53, masq, a.port))
	for _, from := range []packet.Addr{prv2, ip("10.0.0.254")} {
		e := r.goes(nat.Inside, icmpError(from, ext, 3, 3, 0, p.Data))
		q := quoted(e)
		if e.h.Src != masq || e.h.Dst != ext || q.Dst != masq || q.DstPort != a.port {
			t.Errorf("outward from %v: %v -> %v quotes %v:%d", from, e.h.Src, e.h.Dst, q.Dst, q.DstPort)
		}
	}
}

// split cuts a frame into fragments of at most size bytes of payload.
func split(frame []byte, size int) (pieces [][]byte) {
	var h packet.Headers
	packet.Parse(frame, &h)
	packet.Fragment(frame, &h, packet.IPv4Len+size, func() []byte { return make([]byte, 4096) }, func(b []byte) { pieces = append(pieces, b) })
	return pieces
}

func big(src packet.Addr, sport uint16, dst packet.Addr, dport uint16) []byte {
	return packet.Build{Src: src, SrcPort: sport, Dst: dst, DstPort: dport, ID: 4711}.UDP(make([]byte, 1000))
}

// A3.5: later fragments follow the first in both directions, ports in the first only. (libalias rewrites later outbound
// fragments blindly; parts B and C have one rule for both directions.)
func TestSpecA3_5_Fragments(t *testing.T) {
	r := newRig(t, nil)
	pieces := split(big(prv1, 5000, ext, 53), 400)
	if len(pieces) != 3 {
		t.Fatalf("%d fragments", len(pieces))
	}
	for i, f := range pieces {
		p := r.goes(nat.Inside, f)
		if p.h.Src != masq || p.h.Dst != ext || i == 0 && p.h.SrcPort != 5000 {
			t.Errorf("fragment %d leaves as %v -> %v", i, p.src(), p.dst())
		}
	}
	for i, f := range split(big(ext, 53, masq, 5000), 400) {
		if p := r.goes(nat.Outside, f); p.h.Dst != prv1 {
			t.Errorf("fragment %d goes to %v", i, p.dst())
		}
	}
}

// A3.6: what libalias reverts by UnaliasOut is found by looking a translated packet up as its own reverse.
func TestSpecA3_6_Unalias(t *testing.T) {
	r := newRig(t, func(o *nat.Options) { o.Rules.SamePorts = false })
	a := r.out(udp(prv1, 5000, ext, 53))
	q := nat.Packet{Data: udp(ext, 53, a.addr, a.port), Side: nat.Outside}
	packet.Parse(q.Data, &q.H)
	l, ok := r.s.Lookup(&q)
	if !ok || l.Local != (nat.Local{Addr: prv1, Port: 5000}) {
		t.Errorf("found %+v %v", l, ok)
	}
}

// A3.7: lookup only: state is neither made nor refreshed.
func TestSpecA3_7_LookupOnly(t *testing.T) {
	r := newRig(t, nil)
	q := nat.Packet{Data: udp(prv1, 5000, ext, 53), Side: nat.Inside}
	packet.Parse(q.Data, &q.H)
	if _, ok := r.s.Lookup(&q); ok || r.links() != 0 {
		t.Error("a lookup made a link")
	}
	r.out(q.Data)
	r.pass(299 * time.Second)
	q = nat.Packet{Data: udp(prv1, 5000, ext, 53), Side: nat.Inside}
	packet.Parse(q.Data, &q.H)
	if l, ok := r.s.Lookup(&q); !ok || l.ExpiresIn > 2000 {
		t.Errorf("%+v %v", l, ok)
	}
	r.pass(2 * time.Second)
	if r.links() != 0 {
		t.Error("a lookup refreshed the link")
	}
}

// A4.1: a redirect's port is taken without asking, and dynamic flows never get it.
func TestSpecA4_1_ExplicitPort(t *testing.T) {
	r := newRig(t, func(o *nat.Options) {
		o.Rules.PortRange = nat.PortRange{Low: 40000, High: 40003}
		o.Rules.RedirectPort = []nat.RedirectPort{{Proto: packet.ProtoUDP, Public: nat.Alias{Addr: masq, Port: 40001}, Local: []nat.Local{{Addr: prv3, Port: 9}}}}
	})
	for i := range uint16(3) {
		if a := r.out(udp(prv1, 40000+i, ext, 53)); a.port == 40001 {
			t.Error("the redirect's port was given away")
		}
	}
	r.fails(nat.Inside, udp(prv1, 40009, ext, 53), reason.NoPort)
	r.wantIn(udp(ext, 53, masq, 40001), end{prv3, 9})
}

// A4.2: endpoint-dependent flows to different remotes share ports.
func TestSpecA4_2_SharedPorts(t *testing.T) {
	r := newRig(t, both(libalias, func(o *nat.Options) { o.Rules.PortRange = nat.PortRange{Low: 40000, High: 40000} }))
	for i := range uint16(50) {
		r.wantOut(udp(prv1, 100+i, ext, 1000+i), end{masq, 40000})
	}
	for i := range uint16(50) {
		r.wantIn(udp(ext, 1000+i, masq, 40000), end{prv1, 100 + i})
	}
	r.fails(nat.Inside, udp(prv2, 100, ext, 1000), reason.NoPort)
}

// A4.3: the port range holds for ids too.
func TestSpecA4_3_RangeForAllTypes(t *testing.T) {
	r := newRig(t, func(o *nat.Options) {
		o.Rules.PortRange, o.Rules.SamePorts = nat.PortRange{Low: 40000, High: 40009}, false
	})
	for _, f := range [][]byte{udp(prv1, 5, ext, 53), tcp(syn, prv1, 5, ext, 80), ping(prv1, 5, ext)} {
		if a := r.out(f); a.port < 40000 || a.port > 40009 {
			t.Errorf("leaves with %v", a)
		}
	}
}

// A4.5: an alias port of an endpoint-independent mapping belongs to one internal endpoint; TCP is unaffected by UDP's mode.
func TestSpecA4_5_EIM(t *testing.T) {
	r := newRig(t, both(eim(false), func(o *nat.Options) { o.Rules.PortRange = nat.PortRange{Low: 40000, High: 40001} }))
	a := r.out(udp(prv1, 5, ext, 53))
	b := r.out(udp(prv2, 5, pub, 53)) // another remote: still not the same port
	if a == b {
		t.Errorf("%v belongs to two internal endpoints", a)
	}
	r.fails(nat.Inside, udp(prv3, 5, pub2, 53), reason.NoPort)
	r.out(tcp(syn, prv1, 5, ext, 80))
	r.out(tcp(syn, prv2, 5, ext, 80))
	r.out(tcp(syn, prv3, 5, ext, 81))
}

// A5: port redirects beat address redirects; newest beats older; deleting one leaves its flows alive.
func TestSpecA5_Redirects(t *testing.T) {
	r := newRig(t, nil)
	if _, err := r.s.AddRedirectAddr(nat.RedirectAddr{Public: masq, Local: []packet.Addr{prv3}, Inbound: true}, r.now); err != nil {
		t.Fatal(err)
	}
	first := r.redirect(end{prv1, 0x1234}, end{})
	second := r.redirect(end{prv2, 0x1234}, end{})
	r.meet(ext, 1, prv2)
	r.wantIn(udp(ext, 1, masq, 7), end{prv3, 7})
	r.s.DelRedirect(second, r.now)
	r.meet(ext, 1, prv2)
	r.meet(ext, 2, prv1)
	r.s.DelRedirect(first, r.now)
	r.wantIn(udp(ext, 3, masq, 0xabcd), end{prv3, 0xabcd})
	if r.s.DelRedirect(first, r.now) {
		t.Error("a redirect was deleted twice")
	}
}

// A5, pools of addresses; pick source-hash (part C) keeps a remote on its server.
func TestSpecA5_Pools(t *testing.T) {
	r := newRig(t, func(o *nat.Options) {
		o.Rules.RedirectAddr = []nat.RedirectAddr{{Public: pub, Local: []packet.Addr{prv1, prv2}, Inbound: true}}
		o.Rules.RedirectPort = []nat.RedirectPort{{Proto: packet.ProtoTCP, Public: nat.Alias{Addr: masq, Port: 80}, Pick: nat.SourceHash,
			Local: []nat.Local{{Addr: prv1, Port: 1}, {Addr: prv2, Port: 2}, {Addr: prv3, Port: 3}}}}
	})
	for i := range uint16(4) {
		r.wantIn(udp(ext, i+1, pub, 9), end{[]packet.Addr{prv1, prv2}[i%2], 9})
	}
	servers := map[end]int{}
	for i := range packet.Addr(60) {
		a := r.in(tcp(syn, ext+i, 1, masq, 80))
		r.wantIn(tcp(syn, ext+i, 2, masq, 80), a)
		servers[a]++
	}
	if len(servers) != 3 {
		t.Errorf("60 remotes went to %v", servers)
	}
}

// A5, SetTarget: a new target gets what comes in; links to the old one are over. The port of such a link is this worker's.
func TestSpecA5_SetTarget(t *testing.T) {
	owners := lport.NewOwners(nil)
	t.Cleanup(owners.Close) // after the shard's
	if err := owners.Add(masq); err != nil {
		t.Fatal(err)
	}
	r := newRig(t, both(libalias, func(o *nat.Options) {
		o.Rules.Target, o.Owners, o.Worker, o.Workers = prv1, owners, 4, 8
	}))
	r.wantIn(udp(ext, 5, masq, 700), end{prv1, 700})
	if b := owners.Byte(masq, lport.RowUDP, 700); b != 5 {
		t.Errorf("owner byte %d, want 5", b)
	}
	r.set(func(r *nat.Rules) { r.Target = prv2 })
	r.wantIn(udp(ext, 5, masq, 700), end{prv2, 700})
	r.pass(301 * time.Second)
	if b := owners.Byte(masq, lport.RowUDP, 700); b != 0 {
		t.Errorf("owner byte %d after the links expired", b)
	}
}

// A6: links of every protocol are counted, those of address redirects too (libalias forgets them).
func TestSpecA6_Counters(t *testing.T) {
	r := newRig(t, func(o *nat.Options) {
		o.Rules.RedirectAddr = []nat.RedirectAddr{{Public: pub, Local: []packet.Addr{prv3}, Inbound: true}}
	})
	r.out(udp(prv1, 1, ext, 2))
	r.out(udp(prv1, 1, ext, 3))
	r.in(udp(ext, 1, pub, 2))
	r.out(tcp(syn, prv1, 1, ext, 2))
	r.out(ping(prv1, 1, ext))
	r.out(proto(47, prv1, ext))
	c := r.s.Counters()
	if c.Links != 6 || c.Proto != [4]uint64{1, 3, 1, 1} || c.Created != 6 {
		t.Errorf("links %d, by protocol %v, created %d", c.Links, c.Proto, c.Created)
	}
}

// A7: the keywords of ipfw nat as they map to Rules: all of them replaced at once.
func TestSpecA7_Keywords(t *testing.T) {
	r := newRig(t, libalias)
	r.set(func(r *nat.Rules) { // "ip masq deny_in same_ports"
		r.DenyIncoming, r.SamePorts, r.PortRange = true, true, nat.PortRange{Low: 1024, High: 65535}
	})
	r.wantOut(udp(prv1, 5000, ext, 53), end{masq, 5000})
	r.fails(nat.Outside, udp(ext, 53, masq, 5001), reason.NoMapping)
	r.set(func(r *nat.Rules) { // "ip masq port_range 2000-2009", nothing else
		r.DenyIncoming, r.SamePorts, r.PortRange = false, false, nat.PortRange{Low: 2000, High: 2009}
	})
	if a := r.out(udp(prv1, 5001, ext, 53)); a.port < 2000 || a.port > 2009 {
		t.Errorf("port_range: %v", a)
	}
	if p := r.fails(nat.Outside, udp(ext, 53, masq, 5001), reason.ToHost); p.Verdict != nat.Host {
		t.Error("deny_in is still on")
	}
	// "redirect_port udp 10.0.222.173:6000-6003 1.2.3.4:5000-5003 18.52.86.120": one redirect a port.
	r.set(func(r *nat.Rules) {
		for i := range uint16(4) {
			r.RedirectPort = append(r.RedirectPort, nat.RedirectPort{Proto: packet.ProtoUDP, Public: nat.Alias{Addr: masq, Port: 5000 + i},
				Local: []nat.Local{{Addr: prv1, Port: 6000 + i}}, Remote: nat.Remote{Addr: ext}})
		}
	})
	for i := range uint16(4) {
		r.wantIn(udp(ext, 9, masq, 5000+i), end{prv1, 6000 + i})
	}
	if p := r.send(nat.Outside, udp(pub, 9, masq, 5000)); p.Verdict == nat.Forward {
		t.Error("a redirect for one remote let another in")
	}
	// "redirect_addr 10.0.222.173 1.2.222.173", "redirect_proto gre 172.16.222.173"
	r.set(func(r *nat.Rules) {
		r.RedirectAddr = []nat.RedirectAddr{{Public: pub, Local: []packet.Addr{prv1}, Inbound: true}}
		r.RedirectProto = []nat.RedirectProto{{Proto: 47, Local: prv2}}
	})
	r.wantIn(udp(ext, 9, pub, 123), end{prv1, 123})
	r.wantIn(proto(47, ext, masq), end{prv2, 0})
	// "reset": off and on are in TestSpecA2_ResetOnAddressChange; "unreg_only", "unreg_cgn", "udp_eim" in TestLibalias.
}

// A7: bad redirects are refused whole, nothing changes.
func TestSpecA7_BadRules(t *testing.T) {
	r := newRig(t, nil)
	a := r.out(udp(prv1, 5000, ext, 53))
	for name, change := range map[string]func(*nat.Rules){
		"range":    func(r *nat.Rules) { r.PortRange = nat.PortRange{Low: 9, High: 8} },
		"protocol": func(r *nat.Rules) { r.RedirectPort = []nat.RedirectPort{{Proto: 47, Local: []nat.Local{{Addr: prv1}}}} },
		"no local": func(r *nat.Rules) { r.RedirectPort = []nat.RedirectPort{{Proto: 17, Public: nat.Alias{Port: 9}}} },
		"no server": func(r *nat.Rules) {
			r.RedirectAddr = []nat.RedirectAddr{{Public: pub}}
		},
		"tcp as protocol": func(r *nat.Rules) { r.RedirectProto = []nat.RedirectProto{{Proto: 6, Local: prv1}} },
		"timeout":         func(r *nat.Rules) { r.Timeouts.UDP = 0 },
		"alias twice":     func(r *nat.Rules) { r.Alias = []packet.Addr{masq, masq} },
		"block size":      func(r *nat.Rules) { r.Blocks.Size = 1 << 16 },
	} {
		bad := r.rules
		bad.DenyIncoming = false
		change(&bad)
		if err := r.s.SetRules(bad, r.now); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
	r.wantIn(udp(ext, 53, masq, a.port), end{prv1, 5000})
	r.fails(nat.Outside, udp(ext, 53, masq, 9), reason.NoMapping)
}
