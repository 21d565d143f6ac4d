package nat_test

import (
	"bytes"
	"net/netip"
	"os"
	"path/filepath"
	"regexp"
	"testing"
	"time"

	"pollux/internal/packet"
	"pollux/internal/reason"
	"pollux/lport"
	"pollux/nat"
)

// One test for each requirement that concerns the translator; RFC.md lists all of them, those held elsewhere and those that are
// not met included.

// RFC 4787: UDP.

func TestRFC4787_REQ1_EndpointIndependentMapping(t *testing.T) {
	r := newRig(t, func(o *nat.Options) { o.Rules.SamePorts = false })
	a := r.out(udp(prv1, 5000, ext, 53))
	for _, remote := range []end{{ext, 54}, {pub, 53}, {pub2, 99}} {
		r.wantOut(udp(prv1, 5000, remote.addr, remote.port), a)
	}
	if b := r.out(udp(prv1, 5001, ext, 53)); b == a {
		t.Errorf("another internal endpoint has the same mapping %v", b)
	}
}

func pool(n int) func(*nat.Options) {
	return func(o *nat.Options) {
		o.Rules.Alias = nil
		for i := range n {
			o.Rules.Alias = append(o.Rules.Alias, ip("198.18.0.1")+packet.Addr(i*7))
		}
	}
}

func TestRFC4787_REQ2_PairedPooling(t *testing.T) {
	r := newRig(t, pool(8))
	used := map[packet.Addr]bool{}
	for h := range packet.Addr(40) {
		host := prv1 + h
		a := r.out(udp(host, 5000, ext, 53)).addr
		used[a] = true
		for i := range uint16(20) {
			if b := r.out(udp(host, 6000+i, ext+packet.Addr(i), 53)).addr; b != a {
				t.Fatalf("host %v has %v and %v", host, a, b)
			}
		}
	}
	if len(used) < 4 {
		t.Errorf("40 hosts use %d of 8 addresses", len(used))
	}
	arbitrary := newRig(t, both(pool(8), func(o *nat.Options) { o.Rules.Arbitrary = true }))
	seen := map[packet.Addr]bool{}
	for i := range uint16(60) {
		seen[arbitrary.out(udp(prv1, 6000+i, ext, 53)).addr] = true
	}
	if len(seen) < 4 {
		t.Errorf("arbitrary pooling: one host uses %d of 8 addresses", len(seen))
	}
}

func TestRFC4787_REQ3_NoOverloading(t *testing.T) {
	r := newRig(t, func(o *nat.Options) { o.Rules.PortRange = nat.PortRange{Low: 2000, High: 2019} })
	owner := map[uint16]end{}
	for i := range uint16(20) {
		local := end{prv1 + packet.Addr(i%4), 2000 + i%3} // many with one port, each toward a remote of its own
		local.port += i / 4 * 3
		a := r.out(udp(local.addr, local.port, ext+packet.Addr(i), 53))
		if was, taken := owner[a.port]; taken {
			t.Fatalf("port %d belongs to %v and %v", a.port, was, local)
		}
		owner[a.port] = local
	}
	r.fails(nat.Inside, udp(prv3, 2000, ext+99, 53), reason.NoPort)
}

// REQ-3a recommends to keep well-known ports among themselves: only if asked, by a range that begins at 1.
func TestRFC4787_REQ3a_WellKnownPorts(t *testing.T) {
	r := newRig(t, nil)
	if a := r.out(udp(prv1, 500, ext, 53)); a.port < 1024 {
		t.Errorf("default range: %v", a)
	}
	asked := newRig(t, func(o *nat.Options) { o.Rules.PortRange = nat.PortRange{Low: 1, High: 65535} })
	asked.wantOut(udp(prv1, 500, ext, 53), end{masq, 500})
	if a := asked.out(udp(prv2, 500, ext, 53)); a.port >= 1024 { // also with another number
		t.Errorf("port 500 became %d", a.port)
	}
	for i := range uint16(300) {
		for _, host := range []packet.Addr{prv1, prv2} {
			if a := asked.out(tcp(syn, host, 5000+i, ext, 80)); a.port < 1024 {
				t.Errorf("port %d became %d", 5000+i, a.port)
			}
		}
	}
	// but no flow fails while the other part has a port
	small := newRig(t, func(o *nat.Options) { o.Rules.PortRange = nat.PortRange{Low: 1023, High: 1025} })
	seen := map[uint16]bool{}
	for i := range packet.Addr(3) {
		seen[small.out(udp(prv1+i, 500, ext, 53)).port] = true
	}
	if len(seen) != 3 || !seen[1023] || !seen[1025] {
		t.Errorf("a range of three gave %v", seen)
	}
}

func TestRFC4787_REQ4_Parity(t *testing.T) {
	r := newRig(t, func(o *nat.Options) { o.Rules.PortParity, o.Rules.SamePorts = true, false })
	for i := range uint16(200) {
		if a := r.out(udp(prv1, 5000+i, ext, 53)); a.port%2 != i%2 {
			t.Fatalf("port %d became %d", 5000+i, a.port)
		}
	}
}

func TestRFC4787_REQ5_Timer(t *testing.T) {
	if d := nat.DefaultRules().Timeouts.UDP; d < 5*time.Minute {
		t.Errorf("default UDP timer is %v; two minutes are required, five recommended", d)
	}
	r := newRig(t, func(o *nat.Options) { o.Rules.Timeouts.UDP = 2 * time.Minute })
	a := r.out(udp(prv1, 5000, ext, 53))
	r.pass(2 * time.Minute)
	r.wantIn(udp(ext, 53, masq, a.port), end{prv1, 5000})
	r.pass(2*time.Minute + time.Second)
	r.fails(nat.Outside, udp(ext, 53, masq, a.port), reason.NoMapping)
}

func TestRFC4787_REQ6_OutboundRefresh(t *testing.T) {
	r := newRig(t, nil)
	a := r.out(udp(prv1, 5000, ext, 53))
	r.out(udp(prv1, 5000, pub, 53))
	for range 5 {
		r.pass(250 * time.Second)
		r.wantOut(udp(prv1, 5000, ext, 53), a) // one remote keeps the mapping for all
	}
	r.wantOut(udp(prv1, 5000, pub, 53), a)
}

func TestRFC4787_REQ8_Filtering(t *testing.T) {
	for _, c := range []struct {
		mode                nat.Behaviour
		otherPort, stranger bool
	}{
		{nat.EndpointIndependent, true, true},
		{nat.AddressDependent, true, false},
		{nat.AddressAndPortDependent, false, false},
	} {
		r := newRig(t, func(o *nat.Options) { o.Rules.Filtering.UDP = c.mode })
		a := r.out(udp(prv1, 5000, ext, 53))
		r.wantIn(udp(ext, 53, masq, a.port), end{prv1, 5000})
		for frame, open := range map[string]bool{string(udp(ext, 54, masq, a.port)): c.otherPort, string(udp(pub, 53, masq, a.port)): c.stranger} {
			if open {
				r.wantIn([]byte(frame), end{prv1, 5000})
			} else {
				r.fails(nat.Outside, []byte(frame), reason.Filtered)
			}
		}
	}
}

func TestRFC4787_REQ9_Hairpin(t *testing.T) {
	r := newRig(t, func(o *nat.Options) { o.Rules.SamePorts, o.Rules.Filtering.UDP = false, nat.EndpointIndependent })
	a1 := r.out(udp(prv1, 5000, ext, 53))
	a2 := r.out(udp(prv2, 6000, ext, 53))
	p := r.goes(nat.Inside, udp(prv1, 5000, a2.addr, a2.port))
	if p.src() != a1 || p.dst() != (end{prv2, 6000}) {
		t.Errorf("arrives as %v -> %v", p.src(), p.dst())
	}
	p = r.goes(nat.Inside, udp(prv2, 6000, a1.addr, a1.port))
	if p.src() != a2 || p.dst() != (end{prv1, 5000}) {
		t.Errorf("the answer arrives as %v -> %v", p.src(), p.dst())
	}
	if hop := p.Hop; hop == nil {
		t.Error("no hop slot")
	}
	r.set(func(r *nat.Rules) { r.Hairpin = false })
	r.fails(nat.Inside, udp(prv3, 1, a2.addr, a2.port), reason.HairpinOff)
}

// Behaviour does not depend on load or on conflicts.
func TestRFC4787_REQ11_Deterministic(t *testing.T) {
	r := newRig(t, func(o *nat.Options) { o.Rules.PortRange = nat.PortRange{Low: 2000, High: 2031} })
	var alias [32]end
	for round := range packet.Addr(3) {
		for h := range packet.Addr(32) {
			a := r.out(udp(prv1+h, 2000, ext+round, 53)) // all want port 2000
			if round == 0 {
				alias[h] = a
			} else if a != alias[h] {
				t.Fatalf("host %d has %v and %v", h, alias[h], a)
			}
		}
	}
}

func TestRFC4787_REQ12_ICMPNeverEndsMapping(t *testing.T) {
	r := newRig(t, nil)
	p := r.goes(nat.Inside, udp(prv1, 5000, ext, 53))
	router := ip("192.0.2.77") // a source never contacted: not filtered
	for code := range uint8(16) {
		e := r.goes(nat.Outside, icmpError(router, masq, 3, code, 0, p.Data))
		if e.h.Dst != prv1 {
			t.Errorf("code %d went to %v", code, e.h.Dst)
		}
	}
	r.wantIn(udp(ext, 53, masq, 5000), end{prv1, 5000})
	r.pass(301 * time.Second)
	if r.links() != 0 {
		t.Error("errors kept the mapping alive")
	}
}

func TestRFC4787_REQ14_Fragments(t *testing.T) {
	r := newRig(t, func(o *nat.Options) { o.Limits.Fragments = 8 })
	r.out(udp(prv1, 5000, ext, 53))
	r.out(tcp(syn, prv1, 5000, ext, 80))
	// Out of order is TestDefect12; that the state is bounded (14a) is here.
	held := 0
	for id := range uint16(40) {
		b := packet.Build{Src: ext, Dst: masq, ID: id, FragOff: 800}
		p := r.sendAs(nat.Outside, b.IP(packet.ProtoUDP, make([]byte, 64)), uint64(id))
		if p.Verdict == nat.Keep {
			held++
		} else if p.Reason != reason.FragmentLimit {
			t.Errorf("fragment %d: %v", id, p.Reason)
		}
	}
	if held == 0 || held > 8 {
		t.Errorf("%d of 40 early fragments are held, the limit is 8", held)
	}
	r.pass(11 * time.Second)
	if len(r.freed) != held {
		t.Errorf("%d of %d were given back", len(r.freed), held)
	}
	for _, f := range split(big(ext, 53, masq, 5000), 400) {
		r.goes(nat.Outside, f)
	}
}

// RFC 5382: TCP.

func tcpEIM(o *nat.Options) {
	o.Rules.Mapping.TCP, o.Rules.SamePorts = nat.EndpointIndependent, false
}

// Endpoint-independent by configuration; the default shares ports (libalias).
func TestRFC5382_REQ1_EndpointIndependentMapping(t *testing.T) {
	r := newRig(t, tcpEIM)
	a := r.out(tcp(syn, prv1, 5000, ext, 80))
	r.wantOut(tcp(syn, prv1, 5000, ext, 81), a)
	r.wantOut(tcp(syn, prv1, 5000, pub, 80), a)
	d := newRig(t, func(o *nat.Options) { o.Rules.SamePorts = false })
	if d.out(tcp(syn, prv1, 5000, ext, 80)) == d.out(tcp(syn, prv1, 5000, pub, 80)) {
		t.Error("the default is not endpoint-dependent")
	}
}

func TestRFC5382_REQ2_ConnectionSequences(t *testing.T) {
	local, remote := end{prv1, 5000}, end{ext, 80}
	t.Run("simultaneous open", func(t *testing.T) {
		r := newRig(t, nil)
		f := &flow{r: r, local: local, remote: remote}
		f.alias = f.out(syn)
		f.in(syn) // the peer's own SYN, crossing ours
		f.out(syn | ack)
		f.in(syn | ack)
		f.out(ack)
		f.in(ack)
		if s := r.state(); s != nat.Established {
			t.Errorf("%v", s)
		}
	})
	t.Run("from outside", func(t *testing.T) {
		r := newRig(t, func(o *nat.Options) {
			o.Rules.RedirectPort = []nat.RedirectPort{{Proto: packet.ProtoTCP, Public: nat.Alias{Addr: masq, Port: 443}, Local: []nat.Local{{Addr: prv1, Port: 5000}}}}
		})
		f := &flow{r: r, local: local, remote: remote, alias: end{masq, 443}}
		f.in(syn)
		f.out(syn | ack)
		f.in(ack)
		if s := r.state(); s != nat.Established {
			t.Errorf("%v", s)
		}
	})
	t.Run("half close", func(t *testing.T) {
		r := newRig(t, nil)
		f := r.open(local, remote)
		f.in(fin | ack)
		f.out(ack)
		r.pass(2 * time.Hour)
		f.out(ack)
		f.in(ack)
		f.out(fin | ack)
		f.in(ack)
	})
}

func TestRFC5382_REQ3_Filtering(t *testing.T) {
	for mode, open := range map[nat.Behaviour][2]bool{nat.EndpointIndependent: {true, true}, nat.AddressDependent: {true, false}, nat.AddressAndPortDependent: {false, false}} {
		r := newRig(t, both(tcpEIM, func(o *nat.Options) { o.Rules.Filtering.TCP = mode }))
		a := r.out(tcp(syn, prv1, 5000, ext, 80))
		for i, frame := range [][]byte{tcp(syn, ext, 81, masq, a.port), tcp(syn, pub, 80, masq, a.port)} {
			if open[i] {
				r.wantIn(frame, end{prv1, 5000})
			} else if p := r.send(nat.Outside, frame); p.Verdict != nat.Keep {
				t.Errorf("mode %d: verdict %d, want the SYN held", mode, p.Verdict)
			}
		}
	}
}

func TestRFC5382_REQ4_UnsolicitedSYN(t *testing.T) {
	unsolicited := func(r *rig) {
		t.Helper()
		if p := r.sendAs(nat.Outside, tcp(syn, ext, 80, masq, 5000), 42); p.Verdict != nat.Keep || p.Reason != reason.Held {
			t.Fatalf("verdict %d, reason %v; want it held", p.Verdict, p.Reason)
		}
	}
	t.Run("six seconds of silence", func(t *testing.T) {
		r := newRig(t, nil)
		unsolicited(r)
		r.pass(5900 * time.Millisecond)
		if len(r.freed) != 0 {
			t.Fatal("released early")
		}
		r.pass(1100 * time.Millisecond)
		if len(r.freed) != 1 || r.freed[0].Frame != 42 || r.freed[0].Again || r.freed[0].Reason != reason.NoMapping {
			t.Fatalf("released as %+v", r.freed)
		}
	})
	t.Run("an outbound SYN wins", func(t *testing.T) {
		r := newRig(t, nil)
		unsolicited(r)
		r.pass(3 * time.Second)
		r.wantOut(tcp(syn, prv1, 5000, ext, 80), end{masq, 5000})
		r.pass(4 * time.Second)
		if len(r.freed) != 1 || r.freed[0].Again {
			t.Fatalf("the held SYN was released as %+v, want it dropped", r.freed)
		}
		r.wantIn(tcp(syn, ext, 80, masq, 5000), end{prv1, 5000}) // its repetition gets through
	})
	t.Run("nothing else is held", func(t *testing.T) {
		r := newRig(t, nil)
		for _, flags := range []uint8{ack, rst, syn | ack, fin | ack} {
			r.fails(nat.Outside, tcp(flags, ext, 80, masq, 5000), reason.NoMapping)
		}
	})
	t.Run("bounded", func(t *testing.T) {
		r := newRig(t, nil)
		held := 0
		for i := range 10000 {
			p := r.send(nat.Outside, tcp(syn, ext+packet.Addr(i), 80, masq, 5000))
			if p.Verdict == nat.Keep {
				held++
			} else if p.Verdict != nat.Drop || p.Reason != reason.NoMapping {
				t.Fatalf("verdict %d, reason %v", p.Verdict, p.Reason)
			}
		}
		if held == 0 || held > 1000 {
			t.Errorf("%d SYNs are held", held)
		}
	})
}

func TestRFC5382_REQ5_Timers(t *testing.T) {
	d := nat.DefaultRules().Timeouts
	if d.TCPEstablished < 2*time.Hour+4*time.Minute || d.TCPOpening < 4*time.Minute || d.TCPClosing < 4*time.Minute {
		t.Errorf("defaults %v, %v, %v", d.TCPEstablished, d.TCPOpening, d.TCPClosing)
	}
	r := newRig(t, nil)
	f := r.open(end{prv1, 5000}, end{ext, 80})
	r.pass(7440 * time.Second)
	f.in(ack)
	r.pass(7440 * time.Second)
	f.out(ack)
	r.pass(7441 * time.Second)
	r.fails(nat.Outside, tcp(ack, ext, 80, masq, 5000), reason.NoMapping)
}

func TestRFC5382_REQ7_NoOverloading(t *testing.T) {
	r := newRig(t, both(tcpEIM, func(o *nat.Options) { o.Rules.PortRange = nat.PortRange{Low: 2000, High: 2001} }))
	a, b := r.out(tcp(syn, prv1, 1, ext, 80)), r.out(tcp(syn, prv2, 1, pub, 80))
	if a == b {
		t.Errorf("%v belongs to two internal endpoints", a)
	}
	r.fails(nat.Inside, tcp(syn, prv3, 1, pub2, 80), reason.NoPort)
}

func TestRFC5382_REQ8_Hairpin(t *testing.T) {
	r := newRig(t, func(o *nat.Options) {
		o.Rules.SamePorts = false
		o.Rules.RedirectPort = []nat.RedirectPort{{Proto: packet.ProtoTCP, Public: nat.Alias{Addr: masq, Port: 443}, Local: []nat.Local{{Addr: prv2, Port: 8443}}}}
	})
	p := r.goes(nat.Inside, tcp(syn, prv1, 5000, masq, 443))
	a := p.src()
	if a.addr != masq || a.port == 5000 || p.dst() != (end{prv2, 8443}) {
		t.Fatalf("arrives as %v -> %v", a, p.dst())
	}
	p = r.goes(nat.Inside, tcp(syn|ack, prv2, 8443, a.addr, a.port))
	if p.src() != (end{masq, 443}) || p.dst() != (end{prv1, 5000}) {
		t.Fatalf("the answer arrives as %v -> %v", p.src(), p.dst())
	}
	r.goes(nat.Inside, tcp(ack, prv1, 5000, masq, 443))
	for _, l := range r.find(func(l nat.LinkInfo) bool { return l.State != nat.Established }) {
		t.Errorf("%v -> %v is %v after the handshake", l.Local, l.Remote, l.State)
	}
	// Nobody behind the port: refused, no state.
	n := r.links()
	r.fails(nat.Inside, tcp(syn, prv1, 5000, masq, 444), reason.NoMapping)
	if r.links() != n {
		t.Error("a stray hairpin made state")
	}
}

func TestRFC5382_REQ9_DestinationUnreachable(t *testing.T) {
	r := newRig(t, func(o *nat.Options) { o.Rules.SamePorts = false })
	p := r.goes(nat.Inside, tcp(syn, prv1, 5000, ext, 80))
	e := r.goes(nat.Outside, icmpError(ip("192.0.2.1"), masq, 3, 4, 1400, p.Data))
	var q packet.Headers
	if !packet.ParseQuoted(e.Data, &e.h, &q) || e.h.Dst != prv1 || q.Src != prv1 || q.SrcPort != 5000 {
		t.Errorf("to %v about %v:%d", e.h.Dst, q.Src, q.SrcPort)
	}
	if mtu := int(e.Data[e.h.L4+6])<<8 | int(e.Data[e.h.L4+7]); mtu != 1400 {
		t.Errorf("next-hop MTU became %d", mtu)
	}
}

func TestRFC5382_REQ10_ICMPNeverEndsConnection(t *testing.T) {
	r := newRig(t, nil)
	f := r.open(end{prv1, 5000}, end{ext, 80})
	sent := r.goes(nat.Inside, tcp(ack, prv1, 5000, ext, 80))
	for _, kind := range [][2]uint8{{3, 1}, {3, 3}, {3, 13}, {11, 0}, {12, 0}, {4, 0}} {
		r.send(nat.Outside, icmpError(ext, masq, kind[0], kind[1], 0, sent.Data))
	}
	if s := r.state(); s != nat.Established {
		t.Errorf("state %v", s)
	}
	r.pass(7000 * time.Second)
	f.in(ack)
}

// RFC 7857.

func TestRFC7857_S2_1_TransitoryTimer(t *testing.T) {
	r := newRig(t, func(o *nat.Options) {
		o.Rules.Timeouts.TCPClosing, o.Rules.Timeouts.TCPOpening = 10*time.Second, 20*time.Second
	})
	f := r.open(end{prv1, 5000}, end{ext, 80})
	f.out(fin | ack)
	f.in(fin | ack)
	f.out(ack)
	r.pass(10 * time.Second)
	if r.links() != 1 {
		t.Error("gone before the closing timer")
	}
	r.pass(time.Second)
	if r.links() != 0 {
		t.Error("there after the closing timer")
	}
	r.out(tcp(syn, prv1, 5000, ext, 80))
	r.pass(21 * time.Second)
	if r.links() != 0 {
		t.Error("there after the opening timer")
	}
}

// A RST does not free the port at once, nor does a new SYN on a live connection shorten its timer.
func TestRFC7857_S2_2_RST(t *testing.T) {
	r := newRig(t, nil)
	f := r.open(end{prv1, 5000}, end{ext, 80})
	f.in(rst)
	if a := r.out(tcp(syn, prv2, 5000, ext, 80)); a == f.alias {
		t.Error("another host got the port of a connection just reset")
	}
	f.in(ack) // the RST was forged: the connection goes on
	f.out(ack)
	r.pass(241 * time.Second)
	r.wantOut(tcp(syn, prv3, 5000, ext, 80), end{masq, 5000})
}

func TestRFC7857_S2_2_RSTOutsideWindow(t *testing.T) {
	r := newRig(t, func(o *nat.Options) { o.Rules.TCPWindowTracking = true })
	seg := func(b packet.Build, flags uint8, seq, ack uint32) []byte {
		b.Flags, b.Seq, b.Ack, b.Window = flags, seq, ack, 1000
		return b.TCP(nil)
	}
	o := packet.Build{Src: prv1, SrcPort: 5000, Dst: ext, DstPort: 80}
	i := packet.Build{Src: ext, SrcPort: 80, Dst: masq, DstPort: 5000}
	r.out(seg(o, syn, 100, 0))
	r.in(seg(i, syn|ack, 900, 101))
	r.out(seg(o, ack, 101, 901))
	if s := r.state(); s != nat.Established {
		t.Fatalf("state %v", s)
	}
	r.send(nat.Outside, seg(i, rst, 900+500_000, 0))
	if s := r.state(); s != nat.Established {
		t.Errorf("a RST far outside the window made it %v", s)
	}
	r.send(nat.Outside, seg(i, rst, 901, 0))
	if s := r.state(); s != nat.Closing {
		t.Errorf("a RST in the window left it %v", s)
	}
}

func TestRFC7857_S2_SYNOnLiveFlow(t *testing.T) {
	r := newRig(t, nil)
	f := r.open(end{prv1, 5000}, end{ext, 80})
	f.out(syn)
	f.in(syn)
	if s := r.state(); s != nat.Established {
		t.Errorf("state %v", s)
	}
	r.pass(7000 * time.Second)
	f.in(ack)
}

// Endpoint-dependent mappings may overlap; the 5-tuple stays unique.
func TestRFC7857_S3_PortOverlapping(t *testing.T) {
	r := newRig(t, nil)
	r.wantOut(tcp(syn, prv1, 5000, ext, 80), end{masq, 5000})
	r.wantOut(tcp(syn, prv2, 5000, pub, 80), end{masq, 5000})
	if a := r.out(tcp(syn, prv3, 5000, ext, 80)); a.port == 5000 {
		t.Error("two connections have one 5-tuple")
	}
	r.wantIn(tcp(syn|ack, ext, 80, masq, 5000), end{prv1, 5000})
	r.wantIn(tcp(syn|ack, pub, 80, masq, 5000), end{prv2, 5000})
}

func TestRFC7857_S4_PairedAcrossProtocols(t *testing.T) {
	r := newRig(t, pool(8))
	for h := range packet.Addr(20) {
		a := r.out(udp(prv1+h, 5000, ext, 53)).addr
		for _, f := range [][]byte{tcp(syn, prv1+h, 5000, ext, 80), ping(prv1+h, 9, ext), proto(47, prv1+h, ext+h)} {
			if b := r.out(f).addr; b != a {
				t.Errorf("host %d has %v and %v", h, a, b)
			}
		}
	}
}

// Mappings and filters of one protocol say nothing about another.
func TestRFC7857_S5_S6_ProtocolIndependence(t *testing.T) {
	r := newRig(t, func(o *nat.Options) {
		o.Rules.Mapping.TCP = nat.EndpointIndependent
		o.Rules.Filtering = nat.PerProtocol{}
	})
	r.wantOut(udp(prv1, 5000, ext, 53), end{masq, 5000})
	r.fails(nat.Outside, tcp(ack, ext, 53, masq, 5000), reason.NoMapping)
	r.wantOut(tcp(syn, prv2, 5000, ext, 80), end{masq, 5000})
	r.wantIn(udp(pub, 9, masq, 5000), end{prv1, 5000})
	r.wantIn(tcp(syn, pub, 9, masq, 5000), end{prv2, 5000})
}

func TestRFC7857_S7_1_ErrorsDontRefresh(t *testing.T) {
	r := newRig(t, nil)
	r.out(udp(prv1, 5000, ext, 53))
	p := r.goes(nat.Outside, udp(ext, 53, masq, 5000))
	r.pass(299 * time.Second)
	r.goes(nat.Inside, icmpError(prv1, ext, 3, 3, 0, p.Data))
	r.pass(2 * time.Second)
	if r.links() != 0 {
		t.Error("an ICMP error refreshed the mapping")
	}
}

func TestRFC7857_S8_ParityOffByDefault(t *testing.T) {
	if nat.DefaultRules().PortParity {
		t.Error("parity is on by default")
	}
}

func TestRFC7857_S9_RandomPorts(t *testing.T) {
	r := newRig(t, func(o *nat.Options) { o.Rules.SamePorts = false })
	same, next := 0, 0
	last := uint16(0)
	for i := range uint16(300) {
		p := r.out(udp(prv1, 5000+i, ext, 53)).port
		if p == 5000+i {
			same++
		}
		if p-last < 16 {
			next++
		}
		last = p
	}
	if same > 2 || next > 5 {
		t.Errorf("%d of 300 ports kept, %d next to the one before", same, next)
	}
}

func TestRFC7857_S11_QueryTimeout(t *testing.T) {
	r := newRig(t, func(o *nat.Options) { o.Rules.Timeouts.ICMP = 90 * time.Second })
	a := r.out(ping(prv1, 9, ext))
	r.pass(90 * time.Second)
	r.wantIn(pong(ext, a.port, masq), end{prv1, 9})
	r.pass(91 * time.Second)
	r.fails(nat.Outside, pong(ext, a.port, masq), reason.NoMapping)
}

func TestRFC7857_S12_HairpinnedPing(t *testing.T) {
	r := newRig(t, func(o *nat.Options) {
		o.Rules.RedirectAddr = []nat.RedirectAddr{{Public: pub, Local: []packet.Addr{prv2}, Inbound: true}}
	})
	p := r.goes(nat.Inside, ping(prv1, 9, pub))
	if p.h.Src != masq || p.h.Dst != prv2 {
		t.Fatalf("the ping arrives as %v -> %v", p.h.Src, p.h.Dst)
	}
	p = r.goes(nat.Inside, pong(prv2, p.h.SrcPort, masq))
	if p.h.Src != pub || p.h.Dst != prv1 || p.h.SrcPort != 9 {
		t.Errorf("the answer arrives as %v -> %v", p.src(), p.dst())
	}
}

// RFC 5508: ICMP.

func TestRFC5508_REQ1_QueryMapping(t *testing.T) {
	r := newRig(t, func(o *nat.Options) { o.Rules.SamePorts = false })
	a := r.out(ping(prv1, 9, ext))
	r.wantOut(ping(prv1, 9, pub), a) // independent of the remote (1a)
	r.wantIn(pong(ext, a.port, masq), end{prv1, 9})
	r.wantIn(pong(pub, a.port, masq), end{prv1, 9})
	if b := r.out(ping(prv2, 9, pub2)); b == a {
		t.Error("two hosts have one id")
	}
}

func TestRFC5508_REQ2_Timer(t *testing.T) {
	if d := nat.DefaultRules().Timeouts.ICMP; d < time.Minute {
		t.Errorf("default %v", d)
	}
}

// L4 checksums are handed on, not verified (SPEC C): what was wrong stays wrong for the receiver to see, also in errors (REQ-3
// would have the latter dropped); options in the quoted header are traversed (3b), its transport checksum is not looked at (3c).
func TestRFC5508_REQ3_ErrorValidation(t *testing.T) {
	r := newRig(t, func(o *nat.Options) { o.Rules.SamePorts = false })
	b := packet.Build{Src: prv1, SrcPort: 5000, Dst: ext, DstPort: 53, Options: []byte{7, 7, 4, 0, 0, 0, 0, 0}}
	p := r.goes(nat.Inside, b.UDP([]byte("with options")))
	about := bytes.Clone(p.Data)
	about[p.h.L4+6] ^= 0x55 // the quoted UDP checksum is rubbish
	quote := about[packet.EthernetLen:]
	e := r.goes(nat.Outside, packet.Build{Src: ext, Dst: masq}.ICMP(3, 3, 0, quote[:36]))
	var q packet.Headers
	if !packet.ParseQuoted(e.Data, &e.h, &q) || q.Src != prv1 || q.SrcPort != 5000 {
		t.Errorf("quoted source %v:%d", q.Src, q.SrcPort)
	}
	if packet.Sum(e.Data[q.L3:q.L4], 0) != 0xffff {
		t.Error("the quoted IP checksum is wrong")
	}
	bad := icmpError(ext, masq, 3, 3, 0, p.Data)
	bad[14+20+2] ^= 0x10
	out := r.send(nat.Outside, bad)
	if out.Verdict == nat.Forward && packet.Verify(out.Data) == nil {
		t.Error("a wrong checksum was made right")
	}
}

func TestRFC5508_REQ4_InboundErrors(t *testing.T) {
	r := newRig(t, func(o *nat.Options) { o.Rules.SamePorts = false })
	r.fails(nat.Outside, icmpError(ext, masq, 3, 3, 0, udp(masq, 1234, ext, 53)), reason.NoMapping)
	p := r.goes(nat.Inside, udp(prv1, 5000, ext, 53))
	for _, kind := range [][2]uint8{{3, 0}, {3, 13}, {11, 0}, {11, 1}, {12, 0}} {
		e := r.goes(nat.Outside, icmpError(ip("192.0.2.1"), masq, kind[0], kind[1], 0, p.Data))
		if e.h.ICMPType != kind[0] || e.h.ICMPCode != kind[1] || e.h.Dst != prv1 || e.h.Src != ip("192.0.2.1") {
			t.Errorf("%v came out as type %d code %d, %v -> %v", kind, e.h.ICMPType, e.h.ICMPCode, e.h.Src, e.h.Dst)
		}
	}
}

// Outward errors leave with the alias address, also those of inner routers (5c).
func TestRFC5508_REQ5_OutboundErrors(t *testing.T) {
	r := newRig(t, func(o *nat.Options) { o.Rules.SamePorts = false })
	a := r.out(udp(prv1, 5000, ext, 53))
	p := r.goes(nat.Outside, udp(ext, 53, masq, a.port))
	for _, from := range []packet.Addr{prv1, ip("10.9.9.9")} {
		e := r.goes(nat.Inside, icmpError(from, ext, 11, 0, 0, p.Data))
		var q packet.Headers
		if !packet.ParseQuoted(e.Data, &e.h, &q) || e.h.Src != masq || q.Dst != masq || q.DstPort != a.port || e.h.ICMPType != 11 {
			t.Errorf("from %v: leaves with %v about %v:%d", from, e.h.Src, q.Dst, q.DstPort)
		}
	}
	r.fails(nat.Inside, icmpError(prv1, ext, 3, 3, 0, udp(ext, 53, prv1, 7)), reason.NoMapping)
}

func TestRFC5508_REQ6_ErrorsAboutQueries(t *testing.T) {
	r := newRig(t, nil)
	p := r.goes(nat.Inside, ping(prv1, 9, ext))
	r.pass(59 * time.Second)
	r.goes(nat.Outside, icmpError(ip("192.0.2.1"), masq, 11, 0, 0, p.Data))
	if r.links() != 1 {
		t.Error("the error deleted the session")
	}
	r.wantIn(pong(ext, p.h.SrcPort, masq), end{prv1, 9})
	r.pass(59 * time.Second)
	r.goes(nat.Outside, icmpError(ip("192.0.2.1"), masq, 3, 1, 0, p.Data))
	r.pass(2 * time.Second)
	if r.links() != 0 {
		t.Error("the error refreshed the session")
	}
}

func TestRFC5508_REQ7_HairpinnedErrors(t *testing.T) {
	r := newRig(t, func(o *nat.Options) { o.Rules.SamePorts, o.Rules.Filtering.UDP = false, nat.EndpointIndependent })
	a1 := r.out(udp(prv1, 5000, ext, 53))
	a2 := r.out(udp(prv2, 6000, ext, 53))
	p := r.goes(nat.Inside, udp(prv1, 5000, a2.addr, a2.port)) // arrives at prv2 from a1
	e := r.goes(nat.Inside, icmpError(prv2, a1.addr, 3, 3, 0, p.Data))
	var q packet.Headers
	if !packet.ParseQuoted(e.Data, &e.h, &q) {
		t.Fatal("no quote")
	}
	if e.h.Dst != prv1 || e.h.Src != masq || q.Src != prv1 || q.SrcPort != 5000 || q.Dst != a2.addr || q.DstPort != a2.port {
		t.Errorf("%v -> %v about %v:%d -> %v:%d", e.h.Src, e.h.Dst, q.Src, q.SrcPort, q.Dst, q.DstPort)
	}
}

func TestRFC5508_REQ8_NoResources(t *testing.T) {
	for _, code := range []uint8{13, 1} {
		r := newRig(t, func(o *nat.Options) {
			o.Rules.NoResourceCode = code
			o.Rules.PortRange = nat.PortRange{Low: 2000, High: 2000}
		})
		r.out(udp(prv1, 5000, ext, 53))
		p := r.fails(nat.Inside, udp(prv2, 5000, ext, 53), reason.NoPort)
		if p.Verdict != nat.Answer || p.ICMPType != 3 || p.ICMPCode != code {
			t.Errorf("verdict %d, ICMP %d/%d, want 3/%d", p.Verdict, p.ICMPType, p.ICMPCode, code)
		}
	}
}

func TestRFC5508_REQ10_Types(t *testing.T) {
	r := newRig(t, nil)
	p := r.goes(nat.Inside, udp(prv1, 5000, ext, 53))
	for _, icmpType := range []uint8{3, 11, 12} {
		r.goes(nat.Outside, icmpError(ext, masq, icmpType, 0, 0, p.Data))
	}
	id := r.out(ping(prv1, 9, ext))
	r.wantIn(pong(ext, id.port, masq), end{prv1, 9})
	for _, icmpType := range []uint8{5, 9, 10, 15, 17} { // redirect, router discovery, information, mask: not translated
		r.fails(nat.Inside, packet.Build{Src: prv1, Dst: ext}.ICMP(icmpType, 0, 0, make([]byte, 28)), reason.Unsupported)
	}
}

// RFC 6888: carrier-grade NAT.

func TestRFC6888_REQ2_PairedByDefault(t *testing.T) {
	if nat.DefaultRules().Arbitrary {
		t.Error("arbitrary pooling is the default")
	}
	// SPEC C: a host whose address has no port left is refused, not moved.
	r := newRig(t, both(pool(2), func(o *nat.Options) { o.Rules.PortRange = nat.PortRange{Low: 2000, High: 2003} }))
	for i := range uint16(4) {
		r.out(udp(prv1, 5000+i, ext, 53))
	}
	r.fails(nat.Inside, udp(prv1, 5004, ext, 53), reason.NoPort)
}

func TestRFC6888_REQ3_ScatteredPool(t *testing.T) {
	list := []packet.Addr{ip("203.0.113.9"), ip("198.18.5.5"), ip("192.0.2.200"), ip("198.51.100.77")}
	r := newRig(t, func(o *nat.Options) { o.Rules.Alias = list })
	used := map[packet.Addr]int{}
	for h := range packet.Addr(200) {
		used[r.out(udp(prv1+h, 5000, ext, 53)).addr]++
	}
	for _, a := range list {
		if used[a] < 20 {
			t.Errorf("%v serves %d of 200 hosts", a, used[a])
		}
	}
}

// Ports and the rate of new mappings: TestDefect08. Separate limits per protocol (4b) are not offered.
func TestRFC6888_REQ4_PortLimit(t *testing.T) {
	r := newRig(t, func(o *nat.Options) { o.Limits.PortsPerHost = 3 })
	r.out(udp(prv1, 1000, ext, 1))
	r.out(ping(prv1, 1000, ext))
	r.out(tcp(syn, prv1, 1000, ext, 1))
	for _, f := range [][]byte{udp(prv1, 1001, ext, 1), tcp(syn, prv1, 1001, ext, 1), ping(prv1, 1001, ext)} {
		r.fails(nat.Inside, f, reason.HostLimit)
	}
	r.pass(301 * time.Second)
	r.out(udp(prv1, 1001, ext, 1))
}

func TestRFC6888_REQ5_StateLimit(t *testing.T) {
	r := newRig(t, func(o *nat.Options) { o.Limits.LinksPerHost = 5 })
	for i := range uint16(5) {
		r.out(udp(prv1, 1000, ext, 1+i)) // one mapping, five links
	}
	r.fails(nat.Inside, udp(prv1, 1000, ext, 9), reason.HostLimit)
}

func TestRFC6888_REQ6_Exempt(t *testing.T) {
	r := newRig(t, func(o *nat.Options) { o.Rules.Exempt = []netip.Prefix{netip.MustParsePrefix("18.52.0.0/16")} })
	r.wantOut(udp(prv1, 5000, ext, 53), end{prv1, 5000})
	r.wantIn(udp(ext, 53, prv1, 5000), end{prv1, 5000})
	r.wantOut(tcp(syn, prv1, 5000, pub, 80), end{masq, 5000})
	if n := r.links(); n != 1 {
		t.Errorf("%d links, want 1", n)
	}
	r.fails(nat.Outside, udp(pub, 53, prv1, 5000), reason.NoMapping)
}

// Endpoint-independent filtering is one setting away: TestRFC4787_REQ8.
func TestRFC6888_REQ7_EndpointIndependentFiltering(t *testing.T) {
	r := newRig(t, func(o *nat.Options) { o.Rules.Filtering.UDP = nat.EndpointIndependent })
	a := r.out(udp(prv1, 5000, ext, 53))
	r.wantIn(udp(pub, 9, masq, a.port), end{prv1, 5000})
}

func blocks(size, most int) func(*nat.Options) {
	return func(o *nat.Options) {
		o.Rules.Blocks.Size, o.Rules.Blocks.MaxPerHost = size, most
	}
}

// A port that a host gave up rests 120 s before another host may have it; the same host may have it at once.
func TestRFC6888_REQ8_Rest(t *testing.T) {
	r := newRig(t, both(blocks(64, 1), func(o *nat.Options) { o.Rules.PortRange = nat.PortRange{Low: 1024, High: 1087} }))
	r.out(udp(prv1, 5000, ext, 53))
	r.pass(301 * time.Second) // the link goes; the block is idle
	r.fails(nat.Inside, udp(prv2, 5000, ext, 53), reason.NoPort)
	r.pass(119 * time.Second) // it is given up about now, and rests
	r.pass(119 * time.Second)
	r.fails(nat.Inside, udp(prv2, 5000, ext, 53), reason.NoPort)
	r.pass(5 * time.Second)
	r.out(udp(prv2, 5000, ext, 53))

	again := newRig(t, both(blocks(64, 1), func(o *nat.Options) { o.Rules.PortRange = nat.PortRange{Low: 1024, High: 1087} }))
	again.out(udp(prv1, 5000, ext, 53))
	again.pass(301*time.Second + 130*time.Second)
	again.out(udp(prv1, 5000, ext, 53))
}

func TestRFC6888_REQ11_NoResources(t *testing.T) {
	r := newRig(t, func(o *nat.Options) { o.Limits.Links = 5 })
	for i := range uint16(5) {
		r.out(udp(prv1, 2000+i, ext, 1))
	}
	for range 100 {
		p := r.fails(nat.Inside, udp(prv2, 1, ext, 1), reason.TableFull)
		if p.Verdict != nat.Answer {
			t.Fatalf("verdict %d: the sender is owed an answer", p.Verdict)
		}
	}
	for i := range uint16(5) { // 11d: nothing was deleted to make room
		r.wantIn(udp(ext, 1, masq, 2000+i), end{prv1, 2000 + i})
	}
}

// What there is to log names no destination, and a block is one line however many flows it serves.
func TestRFC6888_REQ12_REQ14_Logging(t *testing.T) {
	r := newRig(t, blocks(512, 1))
	var alias end
	for i := range uint16(300) {
		alias = r.out(udp(prv1, 1000+i, ext, 53))
		r.out(tcp(syn, prv1, 1000+i, ext, 80))
	}
	e, ok := r.s.Ports().NextBlockEvent()
	if !ok || !e.Taken || e.Host != prv1 || e.Alias != masq || alias.port < e.Low || alias.port > e.High {
		t.Fatalf("event %+v %v", e, ok)
	}
	if e, ok := r.s.Ports().NextBlockEvent(); ok {
		t.Errorf("a second event: %+v", e)
	}
}

// Every port of the pool can be used.
func TestRFC6888_REQ13_Utilization(t *testing.T) {
	r := newRig(t, func(o *nat.Options) { o.Rules.PortRange = nat.PortRange{Low: 2000, High: 2999} })
	for i := range packet.Addr(1000) {
		r.out(udp(prv1+i, 5000, ext, 53))
	}
	r.fails(nat.Inside, udp(prv3, 5000, ext, 53), reason.NoPort)
}

func TestRFC6888_REQ15_Guessing(t *testing.T) {
	r := newRig(t, both(blocks(256, 8), func(o *nat.Options) { o.Rules.SamePorts = false }))
	steps := map[uint16]int{}
	last := uint16(0)
	for i := range uint16(100) {
		p := r.out(udp(prv1, 5000+i, ext, 53)).port
		steps[p-last]++
		last = p
	}
	if len(steps) < 60 {
		t.Errorf("%d different steps between 100 ports of a block", len(steps))
	}
}

// Blocks (RFC 6888 section 4 and SPEC C).

func TestBlocks(t *testing.T) {
	r := newRig(t, blocks(64, 2))
	mine := map[uint16]bool{}
	for i := range uint16(128) {
		mine[r.out(udp(prv1, 1000+i, ext, 53)).port>>6] = true
	}
	r.fails(nat.Inside, udp(prv1, 9, ext, 53), reason.HostLimit)
	if len(mine) != 2 {
		t.Errorf("128 flows lie in %d blocks of 64", len(mine))
	}
	for i := range uint16(64) { // TCP and ids come out of the same blocks
		if a := r.out(tcp(syn, prv1, 1000+i, ext, 80)); !mine[a.port>>6] {
			t.Fatalf("TCP leaves with %v", a)
		}
		if a := r.out(ping(prv1, 1000+i, ext)); !mine[a.port>>6] {
			t.Fatalf("ICMP leaves with %v", a)
		}
	}
	if a := r.out(udp(prv2, 1000, ext, 53)); mine[a.port>>6] {
		t.Error("another host is in the block")
	}
}

// RFC 7422: deterministic mapping and its inverse.
func TestRFC7422(t *testing.T) {
	inside := netip.MustParsePrefix("10.0.222.0/24")
	r := newRig(t, both(pool(4), func(o *nat.Options) { o.Rules.Deterministic = nat.Deterministic{Inside: inside, PortsPerHost: 900} }))
	plan, err := lport.NewPlan(inside, r.rules.Alias, 1024, 65535, 900)
	if err != nil {
		t.Fatal(err)
	}
	for h := range packet.Addr(256) {
		host := ip("10.0.222.0") + h
		alias, lo, hi, ok := plan.Forward(host)
		if !ok {
			t.Fatalf("no range for %v", host)
		}
		for i := range uint16(3) {
			for _, f := range [][]byte{udp(host, 5000+i, ext, 53), tcp(syn, host, 5000+i, ext, 80), ping(host, 5000+i, ext)} {
				a := r.out(f)
				if a.addr != alias || a.port < lo || a.port > hi {
					t.Fatalf("%v leaves with %v, its range is %v:%d-%d", host, a, alias, lo, hi)
				}
				if back, ok := plan.Inverse(a.addr, a.port); !ok || back != host {
					t.Fatalf("%v is said to be %v's, but is %v's", a, back, host)
				}
			}
		}
	}
	r.fails(nat.Inside, udp(prv2, 5000, ext, 53), reason.NoPort) // outside the prefix
	if n := len(r.find(func(nat.LinkInfo) bool { return true })); n != 256*9 {
		t.Errorf("%d links", n)
	}
}

// RFC 791, 1812: TTL.
func TestRFC1812_TTL(t *testing.T) {
	r := newRig(t, nil)
	b := packet.Build{Src: prv1, SrcPort: 5000, Dst: ext, DstPort: 53, TTL: 1}
	for range 2 { // without a link, and with one
		p := r.fails(nat.Inside, b.UDP(nil), reason.TTLExpired)
		if p.Verdict != nat.Answer || p.ICMPType != 11 || p.ICMPCode != 0 {
			t.Errorf("verdict %d, ICMP %d/%d", p.Verdict, p.ICMPType, p.ICMPCode)
		}
		r.out(udp(prv1, 5000, ext, 53))
	}
	b.TTL = 2
	if p := r.goes(nat.Inside, b.UDP(nil)); p.h.TTL != 1 {
		t.Errorf("TTL 2 became %d", p.h.TTL)
	}
	p := r.fails(nat.Outside, packet.Build{Src: ext, SrcPort: 53, Dst: masq, DstPort: 5000, TTL: 1}.UDP(nil), reason.TTLExpired)
	if p.Verdict != nat.Answer || p.h.Dst != masq {
		t.Errorf("inbound: verdict %d", p.Verdict)
	}
	fresh := newRig(t, nil)
	b.TTL = 1
	fresh.fails(nat.Inside, b.UDP(nil), reason.TTLExpired)
	if fresh.links() != 0 {
		t.Error("a packet whose TTL ran out made a link")
	}
}

// RFC 791: IP options stay as they are.
func TestRFC791_Options(t *testing.T) {
	r := newRig(t, nil)
	opt := []byte{0x94, 4, 0, 0} // router alert
	p := r.goes(nat.Inside, packet.Build{Src: prv1, SrcPort: 5000, Dst: ext, DstPort: 53, Options: opt}.UDP([]byte("x")))
	if !bytes.Equal(p.Data[34:38], opt) || p.src() != (end{masq, 5000}) {
		t.Errorf("options % x, source %v", p.Data[34:38], p.src())
	}
}

// RFC 1624 equation 3 and RFC 768: incremental checksums are right for every value of the sum, 0 and 0xffff included; UDP sends
// 0xffff instead of 0.
func TestRFC1624_RFC768_EverySum(t *testing.T) {
	r := newRig(t, nil)
	r.out(udp(prv1, 5000, ext, 53))
	r.out(tcp(syn, prv1, 5000, ext, 80))
	r.out(ping(prv1, 5000, ext))
	ones := 0
	for sum := range 65536 {
		load := []byte{byte(sum >> 8), byte(sum)}
		p := r.goes(nat.Inside, packet.Build{Src: prv1, SrcPort: 5000, Dst: ext, DstPort: 53}.UDP(load))
		switch field := [2]byte(p.Data[p.h.L4+6:]); field {
		case [2]byte{0, 0}:
			t.Fatalf("payload %04x: UDP checksum 0 says that there is none", sum)
		case [2]byte{0xff, 0xff}:
			ones++
		}
		r.goes(nat.Outside, packet.Build{Src: ext, SrcPort: 80, Dst: masq, DstPort: 5000, Flags: ack, Seq: uint32(sum)}.TCP(nil))
		r.goes(nat.Inside, packet.Build{Src: prv1, Dst: ext, SrcPort: 5000}.Echo(false, uint16(sum), nil))
	}
	if ones == 0 {
		t.Error("the edge 0xffff never came up")
	}
}

func TestRFC768_ZeroStaysZero(t *testing.T) {
	r := newRig(t, nil)
	for _, c := range []struct {
		side nat.Side
		b    packet.Build
	}{
		{nat.Inside, packet.Build{Src: prv1, SrcPort: 5000, Dst: ext, DstPort: 53, NoChecksum: true}},
		{nat.Outside, packet.Build{Src: ext, SrcPort: 53, Dst: masq, DstPort: 5000, NoChecksum: true}},
	} {
		if p := r.goes(c.side, c.b.UDP([]byte("x"))); p.Data[p.h.L4+6] != 0 || p.Data[p.h.L4+7] != 0 {
			t.Errorf("%v: checksum % x", c.side, p.Data[p.h.L4+6:p.h.L4+8])
		}
	}
}

// The MSS clamp (RFC 1191's stopgap) changes SYNs only, both ways, never upward.
func TestMSSClamp(t *testing.T) {
	r := newRig(t, func(o *nat.Options) { o.Rules.MSSClamp = 1400 })
	mss := func(side nat.Side, b packet.Build, value uint16) uint16 {
		b.TCPOptions = []byte{2, 4, byte(value >> 8), byte(value), 1, 1, 4, 2}
		p := r.goes(side, b.TCP(nil))
		return uint16(p.Data[p.h.L4+22])<<8 | uint16(p.Data[p.h.L4+23])
	}
	o := packet.Build{Src: prv1, SrcPort: 5000, Dst: ext, DstPort: 80, Flags: syn}
	i := packet.Build{Src: ext, SrcPort: 80, Dst: masq, DstPort: 5000, Flags: syn | ack}
	if got := mss(nat.Inside, o, 1460); got != 1400 {
		t.Errorf("SYN: %d", got)
	}
	if got := mss(nat.Outside, i, 8960); got != 1400 {
		t.Errorf("SYN ACK: %d", got)
	}
	if got := mss(nat.Inside, o, 1200); got != 1200 {
		t.Errorf("below the clamp: %d", got)
	}
	o.Flags = ack
	if got := mss(nat.Inside, o, 1460); got != 1460 {
		t.Errorf("no SYN: %d", got)
	}
}

// Every test that RFC.md names exists.
func TestRFCTable(t *testing.T) {
	table, err := os.ReadFile("../RFC.md")
	if err != nil {
		t.Fatal(err)
	}
	have := map[string]bool{}
	for prefix, dir := range map[string]string{"": ".", "lport ": "../lport", "pmd ": "../pmd", "packet ": "../internal/packet", "natlog ": "../internal/natlog"} {
		files, err := filepath.Glob(dir + "/*_test.go")
		if err != nil {
			t.Fatal(err)
		}
		for _, f := range files {
			b, err := os.ReadFile(f)
			if err != nil {
				t.Fatal(err)
			}
			for _, m := range regexp.MustCompile(`(?m)^func (Test\w+)`).FindAllSubmatch(b, -1) {
				have[prefix+string(m[1])] = true
			}
		}
	}
	named := regexp.MustCompile("(lport |pmd |packet |natlog )?`(Test\\w+)`").FindAllSubmatch(table, -1)
	if len(named) < 60 {
		t.Errorf("only %d tests are named", len(named))
	}
	for _, m := range named {
		if !have[string(m[1])+string(m[2])] {
			t.Errorf("RFC.md names %s%s, which does not exist", m[1], m[2])
		}
	}
}
