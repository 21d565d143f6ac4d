package nat_test

import (
	"bytes"
	"math/rand/v2"
	"testing"
	"time"

	"pollux/internal/packet"
	"pollux/internal/reason"
	"pollux/nat"
)

// One test for each defect of libalias (and its rivals) that SPEC B1 says not to copy.

// busyPort is a shard with one published TCP port that has n links, made in order of their remotes.
func busyPort(t testing.TB, n int) *rig {
	r := newRig(t, func(o *nat.Options) {
		o.Limits.Links = n + 5000
		o.Rules.RedirectPort = []nat.RedirectPort{{Proto: packet.ProtoTCP, Public: nat.Alias{Addr: masq, Port: 443}, Local: []nat.Local{{Addr: prv1, Port: 443}}}}
	})
	buf := make([]byte, 2048)
	b := make([]nat.Packet, 1)
	for i := range n {
		src := packet.Addr(0x20000000 + i)
		b[0] = nat.Packet{Data: buf[:copy(buf, tcp(syn, src, uint16(1+i%60000), masq, 443))], Side: nat.Outside}
		packet.Parse(b[0].Data, &b[0].H)
		r.s.Translate(b, r.now)
		if b[0].Verdict != nat.Forward {
			t.Fatalf("link %d: %v", i, b[0].Reason)
		}
	}
	return r
}

// B1.1, the cost of a busy group, is TestDefect01_GroupCost beside the tree.

// B1.2: a miss changes nothing, and sorted inserts leave no list behind (the depth is TestDefect01_GroupCost's).
func TestDefect02_NoWriteOnLookup(t *testing.T) {
	r := busyPort(t, 100_000)
	before := *r.s.Counters()
	r.fails(nat.Outside, udp(0x20000000, 1, masq, 443), reason.NoMapping)
	after := *r.s.Counters()
	if before.Links != after.Links || before.Created != after.Created {
		t.Error("a packet that was refused changed the links")
	}
}

// B1.3: no new flow fails while a port is free: 32,768 flows toward one peer, all of which come back.
func TestDefect03_LastPort(t *testing.T) {
	for _, same := range []bool{false, true} {
		r := newRig(t, both(libalias, func(o *nat.Options) {
			o.Limits.Links = 40000
			o.Rules.SamePorts = same
		}))
		rng := rand.New(rand.NewPCG(1, 9))
		send := func(i int) *result {
			return r.send(nat.Inside, udp(prv1+packet.Addr(i/1000), uint16(rng.Uint32()), ext, 53))
		}
		seen := map[uint16]bool{}
		made := map[end]bool{}
		for i := 0; len(made) < 32768; i++ {
			local := end{prv1 + packet.Addr(i>>14), uint16(i)}
			p := r.send(nat.Inside, udp(local.addr, local.port, ext, 53))
			if p.Verdict != nat.Forward || seen[p.h.SrcPort] {
				t.Fatalf("flow %d: verdict %d, reason %v, port %d", len(made)+1, p.Verdict, p.Reason, p.h.SrcPort)
			}
			seen[p.h.SrcPort], made[local] = true, true
		}
		p := r.fails(nat.Inside, udp(prv3, 9, ext, 53), reason.NoPort)
		if p.Verdict != nat.Answer || p.ICMPType != 3 || p.ICMPCode != 13 {
			t.Errorf("flow 32,769: verdict %d, ICMP %d/%d", p.Verdict, p.ICMPType, p.ICMPCode)
		}
		r.pass(301 * time.Second)
		if n := r.links(); n != 0 {
			t.Fatalf("%d links left", n)
		}
		for i := range 100 {
			if p := send(i); p.Verdict != nat.Forward {
				t.Fatalf("after all went: %v", p.Reason)
			}
		}
	}
}

// B1.4: every kind of state expires on an idle box, with nothing but the timer running.
func TestDefect04_IdleBox(t *testing.T) {
	r := newRig(t, nil)
	f := r.open(end{prv1, 5000}, end{ext, 80})
	f.in(rst)
	r.out(udp(prv1, 5000, ext, 53))
	for i := range 2000 {
		r.out(ping(prv1, uint16(i), ext))
	}
	r.out(proto(47, prv1, ext))
	r.out(tcp(syn, prv2, 1, ext, 80))
	if p := r.sendAs(nat.Outside, split(big(ext, 53, masq, 5000), 400)[1], 11); p.Verdict != nat.Keep {
		t.Errorf("an early fragment: verdict %d", p.Verdict)
	}
	if p := r.sendAs(nat.Outside, tcp(syn, ext, 9, masq, 9), 12); p.Verdict != nat.Keep {
		t.Errorf("an unsolicited SYN: verdict %d", p.Verdict)
	}
	r.pass(7 * time.Second)
	if len(r.freed) != 1 || r.freed[0].Frame != 12 || r.freed[0].Again {
		t.Errorf("after 7 s the held SYN is not released: %+v", r.freed)
	}
	r.pass(4 * time.Second)
	if len(r.freed) != 2 || r.freed[1].Frame != 11 || r.freed[1].Reason != reason.FragmentTimeout {
		t.Errorf("after 11 s the held fragment is not released: %+v", r.freed)
	}
	r.pass(300 * time.Second)
	if c := r.s.Counters(); c.Links != 0 || c.Hosts != 0 {
		t.Errorf("%d links and %d hosts are left", c.Links, c.Hosts)
	}
	if _, waiting := r.s.Due(); waiting {
		t.Error("an empty shard waits for something")
	}
}

// B1.5: an address change with many links is applied in bounded slices, and forwarding goes on at once.
func TestDefect05_BoundedTeardown(t *testing.T) {
	const n = 50_000
	r := newRig(t, func(o *nat.Options) { o.Limits.Links = n + 100 })
	for i := range n {
		r.out(udp(prv1+packet.Addr(i/100), uint16(2000+i%100), ext, 53))
	}
	r.set(func(r *nat.Rules) { r.Alias = []packet.Addr{pub2} })
	if a := r.out(udp(prv1, 2000, ext, 53)); a.addr != pub2 {
		t.Errorf("right after the change a flow leaves with %v", a)
	}
	slices := 0
	for {
		work := r.s.Advance(r.now, 100)
		if work > 100 {
			t.Fatalf("a slice of 100 did %d", work)
		}
		if work == 0 {
			break
		}
		slices++
		if slices%100 == 0 {
			r.out(udp(prv2, uint16(1000+slices), ext, 53))
		}
	}
	if slices < n/100 {
		t.Errorf("%d links went in %d slices of 100", n, slices)
	}
	if got := r.find(func(l nat.LinkInfo) bool { return l.Alias.Addr == masq }); len(got) != 0 {
		t.Errorf("%d links of the old address are left", len(got))
	}
}

// B1.6: two redirects of one server on two alias addresses: replies leave with the address the connection came in on; deleting
// one leaves the other whole.
func TestDefect06_TwoPublicAddresses(t *testing.T) {
	r := newRig(t, func(o *nat.Options) { o.Rules.Alias = []packet.Addr{masq, pub2} })
	add := func(public packet.Addr) uint32 {
		id, err := r.s.AddRedirect(nat.RedirectPort{Proto: packet.ProtoTCP, Public: nat.Alias{Addr: public, Port: 80},
			Local: []nat.Local{{Addr: prv1, Port: 8080}}}, r.now)
		if err != nil {
			t.Fatal(err)
		}
		return id
	}
	add(masq)
	second := add(pub2)
	check := func(remote packet.Addr, public packet.Addr) {
		t.Helper()
		r.wantIn(tcp(syn, remote, 9, public, 80), end{prv1, 8080})
		r.wantOut(tcp(syn|ack, prv1, 8080, remote, 9), end{public, 80})
	}
	check(ext, masq)
	check(pub, pub2)
	check(ext+1, pub2)
	check(ext+2, masq)
	r.s.DelRedirect(second, r.now)
	r.wantOut(tcp(ack, prv1, 8080, ext, 9), end{masq, 80})
	r.wantOut(tcp(ack, prv1, 8080, pub, 9), end{pub2, 80})
	check(ext+3, masq)

	// One client endpoint on both addresses: the newest connection has the server's answers, then the older has them again.
	third := add(pub2)
	check(ext+5, masq)
	check(ext+5, pub2)
	for _, l := range r.find(func(l nat.LinkInfo) bool { return l.Remote.Addr == ext+5 && l.Alias.Addr == pub2 }) {
		r.s.Delete(l.ID, r.now)
	}
	r.wantOut(tcp(ack, prv1, 8080, ext+5, 9), end{masq, 80})
	r.s.DelRedirect(third, r.now)
	r.fails(nat.Outside, tcp(ack, ext+4, 9, pub2, 80), reason.None)
}

// B1.7: an expired link that was not swept is as good as absent: the same packet goes on to the redirect.
func TestDefect07_ExpiredLinkHidesNothing(t *testing.T) {
	r := newRig(t, nil)
	r.redirect(end{prv1, 0x1234}, end{})
	r.meet(ext, 5, prv1)
	r.redirect(end{prv2, 0x1234}, end{})
	r.now = r.now.Add(301 * time.Second) // time goes by, the timer does not run
	r.meet(ext, 5, prv2)
}

// B1.8: the table, hosts' links, hosts' rate: what is new is refused and counted, what is old lives; closing links make room.
func TestDefect08_Limits(t *testing.T) {
	t.Run("table", func(t *testing.T) {
		r := newRig(t, func(o *nat.Options) { o.Limits.Links = 10 })
		for i := range uint16(10) {
			r.out(udp(prv1, 5000+i, ext, 53))
		}
		p := r.fails(nat.Inside, udp(prv2, 5000, ext, 53), reason.TableFull)
		if p.Verdict != nat.Answer {
			t.Errorf("verdict %d, want an answer", p.Verdict)
		}
		for i := range uint16(10) {
			r.wantOut(udp(prv1, 5000+i, ext, 53), end{masq, 5000 + i})
		}
		if c := r.s.Counters(); c.Refused[reason.TableFull] != 1 || c.Links != 10 {
			t.Errorf("%d refused, %d links", c.Refused[reason.TableFull], c.Links)
		}
	})
	t.Run("closing links make room", func(t *testing.T) {
		r := newRig(t, func(o *nat.Options) { o.Limits.Links = 3 })
		first := r.open(end{prv1, 1}, end{ext, 80})
		second := r.open(end{prv1, 2}, end{ext, 80})
		third := r.open(end{prv1, 3}, end{ext, 80})
		second.in(rst)
		r.now++
		first.in(rst)
		r.out(tcp(syn, prv1, 4, ext, 80)) // takes the place of second, which has been closing longest
		third.in(ack)
		first.in(ack)
		r.fails(nat.Outside, tcp(ack, ext, 80, second.alias.addr, second.alias.port), reason.None)
	})
	t.Run("links per host", func(t *testing.T) {
		r := newRig(t, func(o *nat.Options) {
			o.Limits.LinksPerHost = 3
			o.Rules.RedirectPort = []nat.RedirectPort{{Proto: packet.ProtoUDP, Public: nat.Alias{Addr: masq, Port: 53}, Local: []nat.Local{{Addr: prv1, Port: 53}}}}
		})
		r.out(udp(prv1, 1, ext, 1))
		r.out(tcp(syn, prv1, 1, ext, 1))
		r.out(ping(prv1, 1, ext))
		r.fails(nat.Inside, udp(prv1, 1, ext, 2), reason.HostLimit)
		r.out(udp(prv2, 1, ext, 2))
		for i := range packet.Addr(9) { // a published server is not limited by it
			r.in(udp(ext+i, 1, masq, 53))
		}
		r.pass(61 * time.Second) // the ping goes
		r.out(udp(prv1, 1, ext, 2))
	})
	t.Run("rate per host", func(t *testing.T) {
		r := newRig(t, func(o *nat.Options) { o.Limits.NewLinksPerHost = 5 })
		for i := range uint16(5) {
			r.out(udp(prv1, 1000+i, ext, 1))
		}
		r.fails(nat.Inside, udp(prv1, 2000, ext, 1), reason.HostRate)
		r.out(udp(prv2, 2000, ext, 1))
		r.pass(time.Second)
		for i := range uint16(5) {
			r.out(udp(prv1, 3000+i, ext, 1))
		}
		r.fails(nat.Inside, udp(prv1, 4000, ext, 1), reason.HostRate)
	})
	t.Run("ports per host", func(t *testing.T) {
		r := newRig(t, func(o *nat.Options) { o.Limits.PortsPerHost = 2 })
		r.out(udp(prv1, 1000, ext, 1))
		r.out(udp(prv1, 1000, ext, 2)) // the same mapping
		r.out(udp(prv1, 1001, ext, 1))
		r.fails(nat.Inside, udp(prv1, 1002, ext, 1), reason.HostLimit)
		r.out(udp(prv2, 1002, ext, 1))
	})
}

// B1.9: traffic that is not to be translated leaves byte-identical but for the TTL (and the header checksum that covers it), both
// ways, and makes no state.
func TestDefect09_UntranslatedIsUntouched(t *testing.T) {
	r := newRig(t, func(o *nat.Options) { o.Rules.UnregisteredOnly = true })
	for _, c := range []struct {
		side  nat.Side
		frame []byte
	}{
		{nat.Inside, udp(pub, 7, ext, 53)}, {nat.Inside, tcp(syn, pub, 7, ext, 80)}, {nat.Inside, ping(cgn, 9, ext)}, {nat.Inside, proto(47, pub, ext)},
		{nat.Outside, udp(ext, 53, pub, 7)}, {nat.Outside, proto(47, ext, pub)},
		// ICMP that could not be translated: a redirect, a mask request, an extended echo; an error about a later fragment
		{nat.Inside, packet.Build{Src: pub, Dst: ext}.ICMP(5, 1, 0, make([]byte, 28))},
		{nat.Inside, packet.Build{Src: pub, Dst: ext}.ICMP(17, 0, 9, make([]byte, 4))},
		{nat.Outside, packet.Build{Src: ext, Dst: pub}.ICMP(42, 0, 9, nil)},
		{nat.Outside, icmpError(ext, pub, 11, 1, 0, packet.Build{Src: pub, Dst: ext, FragOff: 64}.IP(packet.ProtoUDP, make([]byte, 64)))},
	} {
		p := r.goes(c.side, c.frame)
		want := bytes.Clone(c.frame)
		var h packet.Headers
		packet.Parse(want, &h)
		packet.DecrementTTL(want, &h)
		if !bytes.Equal(p.Data, want) {
			t.Errorf("%v %v -> %v was changed:\n got % x\nwant % x", c.side, h.Src, h.Dst, p.Data, want)
		}
		if p.Hop != nil {
			t.Error("a packet of no link has a hop slot")
		}
	}
	if n := r.links(); n != 0 {
		t.Errorf("%d links", n)
	}
}

// B1.10: an unsolicited first fragment is the unsolicited packet it is, and so is its tail.
func TestDefect10_FragmentsDontBypassDeny(t *testing.T) {
	r := newRig(t, nil)
	for i, f := range split(big(ext, 53, masq, 9999), 400) {
		p := r.send(nat.Outside, f)
		if p.Verdict != nat.Drop || i == 0 && p.Reason != reason.NoMapping {
			t.Errorf("fragment %d: verdict %d, reason %v", i, p.Verdict, p.Reason)
		}
	}
	r.out(udp(prv1, 9999, pub, 53)) // a mapping that the filter does not open for ext
	f := big(ext, 53, masq, 9999)
	f[14+4]++ // another IP id
	var h packet.Headers
	f[14+10], f[14+11] = 0, 0
	sum := ^packet.Sum(f[14:34], 0)
	f[14+10], f[14+11] = byte(sum>>8), byte(sum)
	if packet.Parse(f, &h); h.Reason != 0 {
		t.Fatal(h.Reason)
	}
	for i, piece := range split(f, 400) {
		if p := r.send(nat.Outside, piece); p.Verdict != nat.Drop || i == 0 && p.Reason != reason.Filtered {
			t.Errorf("filtered fragment %d: verdict %d, reason %v", i, p.Verdict, p.Reason)
		}
	}
}

// B1.11: a SYN on a closed 5-tuple opens it again at once, with the same alias port, from either side.
func TestDefect11_Reopen(t *testing.T) {
	for name, end2 := range map[string]func(*flow){
		"RST": func(f *flow) { f.in(rst) },
		"FIN": func(f *flow) { f.out(fin | ack); f.in(fin | ack); f.out(ack) },
	} {
		r := newRig(t, nil)
		f := r.open(end{prv1, 5000}, end{ext, 80})
		end2(f)
		if s := r.state(); s != nat.Closing {
			t.Fatalf("%s: %v", name, s)
		}
		if a := f.out(syn); a != f.alias {
			t.Errorf("%s: opens again with %v, was %v", name, a, f.alias)
		}
		if s := r.state(); s != nat.Opening {
			t.Errorf("%s: state after the SYN: %v", name, s)
		}
		f.in(syn | ack)
		f.out(ack)
		if s := r.state(); s != nat.Established {
			t.Errorf("%s: state after the handshake: %v", name, s)
		}
		r.pass(300 * time.Second)
		f.in(ack)
	}
}

// B1.12: fragments that come before their first are held and released, in both directions.
func TestDefect12_EarlyFragments(t *testing.T) {
	for _, side := range []nat.Side{nat.Outside, nat.Inside} {
		r := newRig(t, nil)
		r.out(udp(prv1, 5000, ext, 53))
		frame := big(ext, 53, masq, 5000)
		if side == nat.Inside {
			frame = big(prv1, 5000, ext, 53)
		}
		pieces := split(frame, 400)
		for i := len(pieces) - 1; i > 0; i-- {
			if p := r.sendAs(side, pieces[i], uint64(i)); p.Verdict != nat.Keep || p.Reason != reason.Held {
				t.Fatalf("%v: early fragment %d: verdict %d, reason %v", side, i, p.Verdict, p.Reason)
			}
		}
		r.goes(side, pieces[0])
		back := map[uint64]bool{}
		for {
			f, ok := r.s.NextReleased()
			if !ok {
				break
			}
			if !f.Again || f.Side != side {
				t.Fatalf("%v: released as %+v", side, f)
			}
			back[f.Frame] = true
			p := r.goes(side, pieces[f.Frame])
			if side == nat.Outside && p.h.Dst != prv1 || side == nat.Inside && p.h.Src != masq {
				t.Errorf("%v: fragment %d goes as %v -> %v", side, f.Frame, p.h.Src, p.h.Dst)
			}
		}
		if len(back) != len(pieces)-1 {
			t.Errorf("%v: %d of %d early fragments were released", side, len(back), len(pieces)-1)
		}
	}
}

// B1.13: a second inside host that talks the same protocol to the same remote is refused, never misdelivered.
func TestDefect13_ProtoConflict(t *testing.T) {
	for _, number := range []uint8{packet.ProtoGRE, packet.ProtoESP, 200} {
		r := newRig(t, nil)
		r.out(proto(number, prv1, ext))
		r.fails(nat.Inside, proto(number, prv2, ext), reason.ProtoConflict)
		r.wantIn(proto(number, ext, masq), end{prv1, 0})
		r.out(proto(number, prv2, pub))
		r.wantIn(proto(number, pub, masq), end{prv2, 0})
		r.pass(61 * time.Second)
		r.out(proto(number, prv2, ext))
		r.wantIn(proto(number, ext, masq), end{prv2, 0})
	}
}

// B1.14: a flood of refused flows does less work per packet than accepted ones (no search, no record, no change but the
// counters), and starves nobody.
func TestDefect14_CheapRefusals(t *testing.T) {
	r := newRig(t, func(o *nat.Options) {
		o.Rules.PortRange = nat.PortRange{Low: 1024, High: 1024 + 8191}
		o.Rules.SamePorts = false
		o.Limits.Links = 20000
	})
	for i := range 8192 {
		r.out(udp(prv1+packet.Addr(i>>11), uint16(1000+i&2047), ext, 53))
	}
	steps, before := r.s.Ports().Stats().Steps, *r.s.Counters()
	for i := range 2000 {
		r.fails(nat.Inside, udp(prv1+7, uint16(1000+i), ext, 53), reason.NoPort)
	}
	after := *r.s.Counters()
	if before.Links != 8192 || after.Links != before.Links || after.Created != before.Created || after.Recycled != before.Recycled {
		t.Errorf("%d links before, %d after, %d made", before.Links, after.Links, after.Created-before.Created)
	}
	for i, n := range r.s.Ports().Stats().Steps {
		if i >= 3 && n > steps[i]+1 { // the first one finds out
			t.Errorf("%d refusals took %d steps or more", n-steps[i], 1<<(i-1))
		}
	}
	r.out(udp(prv1, 1000, pub, 53)) // who has a mapping is not concerned
	r.out(tcp(syn, prv3, 1, ext, 80))
}

// B1.15: choices follow the seed and nothing else; two shards with two seeds have nothing in common.
func TestDefect15_GuessablePorts(t *testing.T) {
	ports := func(seed byte, worker int) (list []uint16) {
		r := newRig(t, func(o *nat.Options) {
			o.Seed, o.Rules.SamePorts = [32]byte{seed}, false
			o.Worker, o.Workers = worker, 2
		})
		for i := range uint16(100) {
			list = append(list, r.out(udp(prv1, 5000+i, ext, 53)).port)
		}
		return
	}
	equal := func(a, b []uint16) (n int) {
		for i := range a {
			if a[i] == b[i] {
				n++
			}
		}
		return
	}
	a := ports(1, 0)
	if n := equal(a, ports(1, 0)); n != 100 {
		t.Errorf("one seed, two results: %d of 100 equal", n)
	}
	if n := equal(a, ports(2, 0)); n > 3 {
		t.Errorf("two seeds: %d of 100 ports equal", n)
	}
	if n := equal(a, ports(1, 1)); n > 3 {
		t.Errorf("two workers: %d of 100 ports equal", n)
	}
	low, steps := 0, map[uint16]int{}
	for i, p := range a {
		if p < 33280 {
			low++
		}
		if i > 0 {
			steps[p-a[i-1]]++
		}
	}
	if low < 25 || low > 75 || len(steps) < 90 {
		t.Errorf("ports are not spread: %d of 100 in the lower half, %d different steps", low, len(steps))
	}
}

// B1.16: deleting links never touches rules.
func TestDefect16_ClearingKeepsRedirects(t *testing.T) {
	r := newRig(t, nil)
	r.redirect(end{prv1, 0x1234}, end{})
	for i := range uint16(20) {
		r.meet(ext, 100+i, prv1)
		r.out(udp(prv2, 5000+i, ext, 53))
	}
	for _, l := range r.find(func(nat.LinkInfo) bool { return true }) {
		if !r.s.Delete(l.ID, r.now) {
			t.Errorf("link %d was not there", l.ID)
		}
	}
	if n := r.links(); n != 0 {
		t.Errorf("%d links left", n)
	}
	r.meet(ext, 100, prv1)
	r.wantOut(udp(prv2, 5000, ext, 53), end{masq, 5000})
	r.fails(nat.Outside, udp(ext, 53, masq, 5001), reason.NoMapping)
}

// B1.17: a full table reclaims expired links only; every live one stays, however old.
func TestDefect17_ExpiredCostsNoLiveOne(t *testing.T) {
	r := newRig(t, func(o *nat.Options) { o.Limits.Links = 100 })
	for i := range uint16(50) {
		r.out(udp(prv1, 1000+i, ext, 53))
	}
	r.now = r.now.Add(200 * time.Second)
	for i := range uint16(50) {
		r.out(tcp(syn, prv1, 2000+i, ext, 80))
	}
	r.now = r.now.Add(101 * time.Second) // the first fifty have expired, nobody has swept
	for i := range uint16(50) {
		r.out(udp(prv2, 3000+i, ext, 53))
	}
	r.fails(nat.Inside, udp(prv2, 4000, ext, 53), reason.TableFull)
	live := r.find(func(l nat.LinkInfo) bool { return l.Proto == packet.ProtoTCP })
	if len(live) != 50 {
		t.Errorf("%d of 50 live links are left", len(live))
	}
}
