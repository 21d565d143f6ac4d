package nat_test

import (
	"math/rand/v2"
	"testing"

	"pollux/internal/packet"
	"pollux/internal/reason"
	"pollux/nat"
)

// TestLibalias is the test suite of the second seed (libalias split_full_and_partial), and the newer cases of its
// authors, case by case under their names. Where SPEC parts B and C overrule libalias, the case is adapted and says why.
func TestLibalias(t *testing.T) {
	for _, group := range []struct {
		name  string
		cases []libaliasCase
	}{
		{"1_instance", []libaliasCase{
			{"1_singleinit", singleInit},
			{"2_destroynull", destroyNull},
			{"3_multiinit", multiInit},
			{"4_multiinstance", multiInstance},
		}},
		{"2_natout", []libaliasCase{
			{"1_simplemasq", simpleMasq},
			{"2_unregistered", unregistered},
			{"3_cgn", unregisteredCGN},
			{"4_udp", natUDP},
			{"5_sameport", samePort},
			{"6_cleartable", clearTable},
			{"7_stress", stress},
			{"8_portrange", portRange},
			{"9_udp_eim_mapping", eimMapping},
			{"10_udp_eim_out_in", eimOutIn},
			{"11_udp_eim_with_deny_incoming", eimDeny},
			{"12_udp_eim_hairpinning", eimHairpin},
		}},
		{"3_natin", []libaliasCase{
			{"1_portforward", portForward},
			{"2_portoverlap", portOverlap},
			{"3_redirectany", redirectAny},
			{"4_redirectaddr", redirectAddr},
			{"5_lsnat", lsnat},
			{"6_oneshot", oneShot},
		}},
	} {
		t.Run(group.name, func(t *testing.T) {
			for _, c := range group.cases {
				t.Run(c.name, c.run)
			}
		})
	}
}

type libaliasCase struct {
	name string
	run  func(*testing.T)
}

func smallShard(t testing.TB, seed byte) *nat.Shard {
	s, err := nat.New(nat.Options{Rules: nat.DefaultRules(), Limits: nat.Limits{Links: 16, Fragments: 16}, Seed: [32]byte{seed}})
	if err != nil || s == nil {
		t.Fatalf("New: %v, %v", s, err)
	}
	return s
}

func singleInit(t *testing.T) {
	if err := smallShard(t, 1).Close(); err != nil {
		t.Error(err)
	}
}

// Destroying nothing is a programming error and must not pass unnoticed.
func destroyNull(t *testing.T) {
	defer func() {
		if recover() == nil {
			t.Error("closing a nil shard went unnoticed")
		}
	}()
	_ = (*nat.Shard)(nil).Close()
}

// Initialising an instance again is here setting the same rules again: a no-op that leaves links and ports alone.
func multiInit(t *testing.T) {
	r := newRig(t, nil)
	a := r.out(udp(prv1, 4660, ext, 22136))
	for range 29 {
		if err := r.s.SetRules(r.rules, r.now); err != nil {
			t.Fatal(err)
		}
		r.wantOut(udp(prv1, 4660, ext, 22136), a)
	}
	if n := r.links(); n != 1 {
		t.Errorf("%d links, want 1", n)
	}
}

func multiInstance(t *testing.T) {
	var all []*nat.Shard
	for i := range 300 {
		all = append(all, smallShard(t, byte(i)))
	}
	rand.New(rand.NewPCG(1, 2)).Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	for _, s := range all {
		if err := s.Close(); err != nil {
			t.Fatal(err)
		}
	}
}

// B1.13 overrules libalias for protocols without ports: a second host talking protocol 254 to the same remote is refused
// instead of becoming ambiguous, so each host has a remote of its own here.
func simpleMasq(t *testing.T) {
	r := newRig(t, libalias)
	for i, h := range []packet.Addr{prv1, prv2, prv3, cgn, pub} {
		r.wantOut(proto(254, h, ext+packet.Addr(i)), end{masq, 0})
	}
	r.fails(nat.Inside, proto(254, prv2, ext), reason.ProtoConflict)
}

// B1.9 overrules libalias: a host whose address is left alone gets no link, so its traffic follows the rules of the moment.
// The hosts that are translated keep their links, as libalias says.
func unregistered(t *testing.T) {
	r := newRig(t, both(libalias, func(o *nat.Options) { o.Rules.UnregisteredOnly = true }))
	check := func(cgnAs, pubAs packet.Addr) {
		t.Helper()
		for i, c := range []struct{ host, as packet.Addr }{{prv1, masq}, {prv2, masq}, {prv3, masq}, {cgn, cgnAs}, {pub, pubAs}} {
			r.wantOut(proto(254, c.host, ext+packet.Addr(i)), end{c.as, 0})
		}
	}
	check(cgn, pub)
	if n := r.links(); n != 3 {
		t.Errorf("%d links, want 3: hosts left alone have none", n)
	}
	r.set(func(r *nat.Rules) { r.UnregisteredOnly = false })
	check(masq, masq)
}

func unregisteredCGN(t *testing.T) {
	r := newRig(t, both(libalias, func(o *nat.Options) { o.Rules.UnregisteredCGN = true }))
	check := func(pubAs packet.Addr) {
		t.Helper()
		for i, c := range []struct{ host, as packet.Addr }{{prv1, masq}, {prv2, masq}, {prv3, masq}, {cgn, masq}, {pub, pubAs}} {
			r.wantOut(proto(254, c.host, ext+packet.Addr(i)), end{c.as, 0})
		}
	}
	check(pub)
	r.set(func(r *nat.Rules) { r.UnregisteredCGN = false })
	check(masq)
}

func natUDP(t *testing.T) {
	r := newRig(t, libalias)
	a := r.out(udp(prv1, 0x1234, ext, 0x5678))
	if a.addr != masq || a.port == 0x1234 {
		t.Errorf("first flow leaves with %v", a)
	}
	r.wantIn(udp(ext, 0x5678, masq, a.port), end{prv1, 0x1234})
	b := r.out(udp(prv2, 0x1234, ext, 0x5678))
	if b.addr != masq || b == a {
		t.Errorf("second flow leaves with %v, the first with %v", b, a)
	}
	r.wantIn(udp(ext, 0x5678, masq, b.port), end{prv2, 0x1234})
	r.wantIn(udp(ext, 0x5678, masq, a.port), end{prv1, 0x1234})
}

// libalias keeps the local port whatever its port range says; SPEC C keeps it when it lies inside, so the range covers it here.
func keepPorts(o *nat.Options) {
	o.Rules.SamePorts = true
	o.Rules.PortRange = nat.PortRange{Low: 1024, High: 65535}
}

func samePort(t *testing.T) {
	r := newRig(t, both(libalias, keepPorts))
	r.wantOut(udp(prv1, 0x1234, ext, 0x5678), end{masq, 0x1234})
	if b := r.out(udp(prv2, 0x1234, ext, 0x5678)); b.addr != masq || b.port == 0x1234 {
		t.Errorf("second host leaves with %v", b)
	}
}

// reset changes the alias address and back: dynamic links die, redirects stay.
func (r *rig) reset() {
	r.t.Helper()
	r.set(func(r *nat.Rules) { r.Alias = []packet.Addr{ext} })
	r.set(func(r *nat.Rules) { r.Alias = []packet.Addr{masq} })
}

func denyAndReset(o *nat.Options) {
	o.Rules.DenyIncoming, o.Rules.ResetOnAddressChange = true, true
}

func clearTable(t *testing.T) {
	r := newRig(t, both(libalias, keepPorts, denyAndReset))
	r.wantOut(udp(prv1, 0x1234, ext, 0x5678), end{masq, 0x1234})
	r.wantIn(udp(ext, 0x5678, masq, 0x1234), end{prv1, 0x1234})
	r.reset()
	r.fails(nat.Outside, udp(ext, 0x5678, masq, 0x1234), reason.NoMapping)
	r.wantOut(udp(prv2, 0x1234, ext, 0x5678), end{masq, 0x1234})
	r.wantIn(udp(ext, 0x5678, masq, 0x1234), end{prv2, 0x1234})
}

func stress(t *testing.T) {
	r := newRig(t, both(libalias, keepPorts, func(o *nat.Options) {
		o.Rules.ResetOnAddressChange = true
		o.Limits.Links = 40000
	}))
	rng := rand.New(rand.NewPCG(3, 4))
	near := func(a packet.Addr) packet.Addr { return a&0xffff0000 | packet.Addr(rng.Uint32N(65536)) }
	port := func() uint16 { return uint16(1000 + rng.IntN(59000)) }
	for range 25 {
		type talk struct{ local, remote, alias end }
		var all []talk
		for i := range 1200 {
			f := talk{local: end{0, port()}, remote: end{0, port()}}
			switch i % 4 {
			case 0:
				f.local.addr, f.remote.addr = near(prv1), near(ext)
			case 1:
				f.local.addr, f.remote.addr = near(prv2), near(pub)
			case 2:
				f.local.addr, f.remote.addr = near(prv3), near(ext)
			case 3:
				f.local.addr, f.remote.addr = near(cgn), near(pub)
			}
			if f.remote.addr == masq {
				continue // the alias address is no remote
			}
			f.alias = r.out(udp(f.local.addr, f.local.port, f.remote.addr, f.remote.port))
			if f.alias.addr != masq {
				t.Fatalf("%v leaves with %v", f.local, f.alias)
			}
			all = append(all, f)
		}
		rng.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
		for _, f := range all {
			r.wantIn(udp(f.remote.addr, f.remote.port, f.alias.addr, f.alias.port), f.local)
		}
	}
}

func portRange(t *testing.T) {
	r := newRig(t, libalias)
	use := func(low, high uint16) {
		r.set(func(r *nat.Rules) { r.PortRange = nat.PortRange{Low: low, High: high} })
	}
	if a := r.out(udp(prv1, 0x1234, ext, 0x5678)); a.port < 0x8000 {
		t.Errorf("default range: %v", a)
	}
	use(2000, 3000)
	if a := r.out(udp(prv1, 0x1234, ext, 0x5679)); a.port < 2000 || a.port > 3000 {
		t.Errorf("range 2000-3000: %v", a)
	}
	use(4000, 4001)
	a := r.out(udp(prv1, 0x1234, ext, 0x567a))
	b := r.out(udp(prv1, 0x1235, ext, 0x567a))
	if a.port^b.port != 1 || a.port&^1 != 4000 {
		t.Errorf("range 4000-4001: %v and %v", a, b)
	}
	r.fails(nat.Inside, udp(prv1, 0x1236, ext, 0x567a), reason.NoPort)
	use(32768, 65535)
	if a := r.out(udp(prv1, 0x1234, ext, 0x567b)); a.port < 0x8000 {
		t.Errorf("default range again: %v", a)
	}
}

// eim is UDP_EIM: endpoint-independent mapping, and as filter any remote, or with deny only remotes that were contacted.
func eim(deny bool) func(*nat.Options) {
	return both(libalias, func(o *nat.Options) {
		o.Rules.Mapping.UDP = nat.EndpointIndependent
		o.Rules.Filtering.UDP = nat.EndpointIndependent
		if deny {
			o.Rules.DenyIncoming = true
			o.Rules.Filtering.UDP = nat.AddressAndPortDependent
		}
	})
}

func eimMapping(t *testing.T) {
	r := newRig(t, eim(false))
	a := r.out(udp(prv1, 0x1234, ext, 0x5678))
	r.wantOut(udp(prv1, 0x1234, ext, 0x6789), a)
	r.wantOut(udp(prv1, 0x1234, pub, 0x5678), a)
}

func eimOutIn(t *testing.T) {
	r := newRig(t, eim(false))
	a := r.out(udp(prv1, 0x1234, pub, 0x5678))
	r.wantIn(udp(pub, 0x6789, masq, a.port), end{prv1, 0x1234})
	r.wantIn(udp(pub2, 0x6789, masq, a.port), end{prv1, 0x1234})
}

func eimDeny(t *testing.T) {
	r := newRig(t, eim(true))
	a := r.out(udp(prv1, 0x1234, pub, 0x5678))
	r.wantIn(udp(pub, 0x5678, masq, a.port), end{prv1, 0x1234})
	r.fails(nat.Outside, udp(pub, 0x6789, masq, a.port), reason.Filtered)
	r.fails(nat.Outside, udp(pub2, 0x6789, masq, a.port), reason.Filtered)
}

// libalias has the caller send the packet in again; here the worker does, told by Again, and send plays the worker.
func eimHairpin(t *testing.T) {
	r := newRig(t, eim(false))
	a1 := r.out(udp(prv1, 0x1234, pub, 0x5678))
	a2 := r.out(udp(prv2, 0x2345, pub, 0x5678))
	p := r.goes(nat.Inside, udp(prv1, 0x1234, masq, a2.port))
	if p.src() != a1 || p.dst() != (end{prv2, 0x2345}) {
		t.Errorf("arrives as %v -> %v, want %v -> %v", p.src(), p.dst(), a1, end{prv2, 0x2345})
	}
}

// redirect publishes masq:0xabcd as a local endpoint for a remote (parts that are 0: any).
func (r *rig) redirect(local, remote end) uint32 {
	r.t.Helper()
	id, err := r.s.AddRedirect(nat.RedirectPort{Proto: packet.ProtoUDP, Public: nat.Alias{Addr: masq, Port: 0xabcd},
		Local: []nat.Local{{Addr: local.addr, Port: local.port}}, Remote: nat.Remote{Addr: remote.addr, Port: remote.port}}, r.now)
	if err != nil {
		r.t.Fatal(err)
	}
	return id
}

// meet sends a datagram from a remote to masq:0xabcd. A local address of 0 means that it must not get through.
func (r *rig) meet(remote packet.Addr, port uint16, local packet.Addr) {
	r.t.Helper()
	frame := udp(remote, port, masq, 0xabcd)
	if local == 0 {
		r.fails(nat.Outside, frame, reason.None)
		return
	}
	r.wantIn(frame, end{local, 0x1234})
}

func portForward(t *testing.T) {
	r := newRig(t, both(libalias, denyAndReset))
	for _, c := range []struct {
		local                packet.Addr
		remote               end
		viaPub, viaOtherPort bool
	}{
		{prv1, end{ext, 0x5678}, false, false},
		{prv2, end{ext, 0}, false, true},
		{prv3, end{0, 0x5678}, true, false},
		{cgn, end{0, 0}, true, true},
	} {
		only := func(yes bool) packet.Addr {
			if yes {
				return c.local
			}
			return 0
		}
		id := r.redirect(end{c.local, 0x1234}, c.remote)
		r.meet(ext, 0x5678, c.local)
		r.meet(ext, 0x5678, c.local)
		r.meet(pub, 0x5678, only(c.viaPub))
		r.meet(ext, 0xdead, only(c.viaOtherPort))
		r.reset()
		if !r.s.DelRedirect(id, r.now) {
			t.Error("the redirect was not there")
		}
		r.meet(ext, 0x5678, 0)
	}
}

func portOverlap(t *testing.T) {
	r := newRig(t, both(libalias, denyAndReset))
	r.redirect(end{prv2, 0x1234}, end{ext, 0x5678})
	r.meet(ext, 0x5678, prv2)
	r.reset()
	r.redirect(end{prv1, 0x1234}, end{ext, 0x5678}) // the newest hides the older
	r.meet(ext, 0x5678, prv1)
	r.reset()
	r.redirect(end{prv2, 0x1234}, end{ext, 0})
	r.meet(ext, 0x5679, prv2)
	r.meet(ext, 0x5678, prv1)
	r.reset()
	r.redirect(end{prv3, 0x1234}, end{0, 0x5678})
	r.meet(pub, 0x5678, prv3)
	r.meet(ext, 0x5679, prv2)
	r.meet(ext, 0x5678, prv1)
	r.reset()
	r.redirect(end{cgn, 0x1234}, end{0, 0})
	r.meet(prv1, 0x5679, cgn)
	r.meet(pub, 0x5678, prv3)
	r.meet(ext, 0x5679, prv2)
	r.meet(ext, 0x5678, prv1)
}

func redirectAny(t *testing.T) {
	r := newRig(t, both(libalias, func(o *nat.Options) { o.Rules.Alias, o.Rules.DenyIncoming = nil, true }))
	if _, err := r.s.AddRedirect(nat.RedirectPort{Proto: packet.ProtoUDP, Public: nat.Alias{Port: 0xabcd},
		Local: []nat.Local{{Addr: prv1, Port: 0x1234}}}, r.now); err != nil {
		t.Fatal(err)
	}
	r.set(func(r *nat.Rules) { r.Alias = []packet.Addr{masq} })
	r.wantIn(udp(ext, 0x5678, masq, 0xabcd), end{prv1, 0x1234})
	r.fails(nat.Outside, udp(pub, 0x5678, pub, 0xabcd), reason.None)
	r.set(func(r *nat.Rules) { r.Alias = []packet.Addr{pub} })
	r.wantIn(udp(pub2, 0x5679, pub, 0xabcd), end{prv1, 0x1234})
	r.fails(nat.Outside, udp(ext, 0x5679, masq, 0xabcd), reason.None)
}

// libalias's rule (deny beats an address redirect) holds with inbound: false (SPEC C). B1.13: one host per remote and protocol,
// so hosts that share an address talk to different remotes. What libalias passes unchanged to its host is Host here.
func redirectAddr(t *testing.T) {
	r := newRig(t, libalias)
	add := func(local packet.Addr) uint32 {
		id, err := r.s.AddRedirectAddr(nat.RedirectAddr{Public: pub, Local: []packet.Addr{local}}, r.now)
		if err != nil {
			t.Fatal(err)
		}
		return id
	}
	forHost := func(number uint8) {
		t.Helper()
		if p := r.fails(nat.Outside, proto(number, ext, masq), reason.ToHost); p.Verdict != nat.Host {
			t.Errorf("verdict %d, want Host", p.Verdict)
		}
	}
	add(prv1)
	r.wantIn(proto(254, ext, pub), end{prv1, 0})
	forHost(254)
	second := add(prv2)
	r.wantIn(proto(254, ext, pub), end{prv1, 0}) // the flow that exists
	r.wantIn(proto(253, ext, pub), end{prv2, 0})
	forHost(253)
	r.wantOut(proto(252, prv1, ext), end{pub, 0})
	r.wantOut(proto(252, prv2, ext+1), end{pub, 0})
	r.wantOut(proto(252, prv3, ext), end{masq, 0})
	r.set(func(r *nat.Rules) { r.DenyIncoming = true })
	r.fails(nat.Outside, proto(251, ext, pub), reason.NoMapping)
	r.fails(nat.Outside, proto(251, ext, masq), reason.NoMapping)
	r.set(func(r *nat.Rules) { r.DenyIncoming = false })
	r.s.DelRedirect(second, r.now)
	r.wantIn(proto(250, ext, pub), end{prv1, 0})
	r.wantOut(proto(249, prv1, ext), end{pub, 0})
	r.wantOut(proto(249, prv2, ext), end{masq, 0})
	r.wantOut(proto(249, prv3, ext+1), end{masq, 0})
}

// SPEC C overrules the order: strict rotation in the order of the list (libalias: backwards).
func lsnat(t *testing.T) {
	r := newRig(t, libalias)
	if _, err := r.s.AddRedirect(nat.RedirectPort{Proto: packet.ProtoUDP, Public: nat.Alias{Addr: masq, Port: 0xabcd},
		Local: []nat.Local{{Addr: prv1, Port: 0x1234}, {Addr: prv2, Port: 0x2345}, {Addr: prv3, Port: 0x3456}}}, r.now); err != nil {
		t.Fatal(err)
	}
	for i := range uint16(6) {
		want := []end{{prv1, 0x1234}, {prv2, 0x2345}, {prv3, 0x3456}}[i%3]
		r.wantIn(udp(ext, 0x5678+i, masq, 0xabcd), want)
		r.wantIn(udp(ext, 0x5678+i, masq, 0xabcd), want) // a flow stays on its server
	}
}

func oneShot(t *testing.T) {
	r := newRig(t, both(libalias, denyAndReset))
	id := r.redirect(end{prv1, 0x1234}, end{0, 0})
	if r.s.MakeDynamic(id, r.now) == nil {
		t.Error("a redirect for any remote was made dynamic")
	}
	r.s.DelRedirect(id, r.now)
	id = r.redirect(end{prv1, 0x1234}, end{ext, 0x5678})
	if err := r.s.MakeDynamic(id, r.now); err != nil {
		t.Error(err)
	}
	r.meet(ext, 0x5678, prv1)
	r.reset()
	r.meet(ext, 0x5678, 0)
}
