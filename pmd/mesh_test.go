package pmd

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"runtime"
	"sync"
	"testing"
	"time"

	"pollux/internal/clock"
	"pollux/internal/packet"
	"pollux/internal/reason"
	"pollux/lport"
	"pollux/nat"
	"pollux/rings"
	"pollux/rtcache"
)

// meshRig is several workers over one UMEM, with two in-memory ports each.
type meshRig struct {
	t        testing.TB
	umem     *rings.UMEM
	table    *rtcache.Table
	owners   *lport.Owners
	steering *Steering
	mesh     *Mesh
	w        []*Worker
	pools    []*rings.Pool
	ports    [][2]*MemPort
	each     int // frames of a worker
	now      clock.Tick
	sent     [2][]sentFrame
}

type sentFrame struct {
	worker int
	data   []byte
}

type meshOptions struct {
	workers, frames, links int
	rules                  func(*nat.Rules)
	silent                 bool
	chunk                  int
	flow                   bool   // steer: flow
	perHost                int    // limits.links_per_host
	routed                 string // another prefix that lies inside
}

func newMeshRig(t testing.TB, o meshOptions) *meshRig {
	t.Helper()
	if o.frames == 0 {
		o.frames = 2048
	}
	if o.links == 0 {
		o.links = 4096
	}
	if o.chunk == 0 {
		o.chunk = 4096
	}
	m := &meshRig{t: t, each: o.frames, now: 1000}
	var err error
	check := func() {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	m.umem, err = rings.NewUMEM(rings.UMEMOptions{Frames: o.workers * o.frames, ChunkSize: o.chunk})
	check()
	t.Cleanup(func() { m.umem.Close() })
	routes := []rtcache.StaticRoute{{Prefix: netip.MustParsePrefix("10.0.0.0/8"), Port: inPort}}
	if o.routed != "" {
		routes = append(routes, rtcache.StaticRoute{Prefix: netip.MustParsePrefix(o.routed), Port: inPort})
	}
	m.table, err = rtcache.NewStatic(rtcache.StaticOptions{
		Ports: []rtcache.Port{
			{Name: "in", Inside: true, MAC: inMAC, MTU: 1500, Addr: inside},
			{Name: "out", MAC: outMAC, MTU: 1500, Addr: outside},
		},
		NextHops: [][6]byte{peerMAC, peerMAC},
		Routes:   routes,
	})
	check()
	rules := nat.DefaultRules()
	rules.Alias = []packet.Addr{alias1}
	if o.rules != nil {
		o.rules(&rules)
	}
	m.owners = lport.NewOwners(nil)
	t.Cleanup(m.owners.Close)
	err = Publish(m.owners, &rules)
	check()
	m.steering = NewSteering(o.workers, m.owners, &rules, o.flow, 0x1234567)
	for range o.workers {
		pool, err := m.umem.NewPool(o.frames)
		if err != nil {
			t.Fatal(err)
		}
		m.pools = append(m.pools, pool)
	}
	m.mesh = NewMesh(m.pools)
	share := nat.NewLinkShare(o.links, o.workers)
	for k := range o.workers {
		shard, err := nat.New(nat.Options{
			Rules: rules, Limits: nat.WorkerLimits(nat.Limits{Links: o.links, LinksPerHost: o.perHost, Fragments: 256}, o.workers), Worker: k, Workers: o.workers, Owners: m.owners,
			Steering: m.steering, Share: share, FlowSteered: o.flow, SideOf: SideOf(m.table), Now: m.now,
		})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { shard.Close() })
		wo := WorkerOptions{Index: k, UMEM: m.umem, Pool: m.pools[k], NAT: shard, Routes: m.table.View(), Table: m.table,
			Aliases: Aliases(&rules), Mesh: m.mesh, Steering: m.steering}
		var ports [2]*MemPort
		for i, mac := range [][6]byte{inMAC, outMAC} {
			ports[i] = NewMemPort(m.umem, 1024)
			if !o.silent {
				ports[i].Out = func(f []byte) { m.sent[i] = append(m.sent[i], sentFrame{k, append([]byte(nil), f...)}) }
			}
			side := nat.Inside
			if i == outPort {
				side = nat.Outside
			}
			wo.Ports = append(wo.Ports, WorkerPort{Port: ports[i], Side: side, MAC: mac})
		}
		w, err := NewWorker(wo)
		if err != nil {
			t.Fatal(err)
		}
		m.w, m.ports = append(m.w, w), append(m.ports, ports)
	}
	return m
}

func (m *meshRig) push(worker, port int, f []byte) {
	m.t.Helper()
	if _, ok := m.ports[worker][port].Push(m.pools[worker], f); !ok {
		m.t.Fatal("the port takes no more")
	}
}

// settle runs all workers until there is nothing left to do.
func (m *meshRig) settle() {
	m.t.Helper()
	for work := 1; work > 0; {
		work = 0
		for _, w := range m.w {
			work += w.Poll(m.now)
			work += m.mesh.underWay()
		}
	}
	m.check()
}

// frames counts a worker's frames by place.
func (m *meshRig) frames(k int) int {
	w := m.w[k]
	n := w.pool.Len() + len(w.pool.Away()) + int(w.c.held)
	for _, p := range m.ports[k] {
		n += len(p.in) - p.head + len(p.sent)
	}
	return n
}

// check is the law of accounting for each worker and for all.
func (m *meshRig) check() {
	m.t.Helper()
	found := m.mesh.underWay()
	var in, out uint64
	for k, w := range m.w {
		c := &w.c
		sum := c.forwarded + c.held + c.arps + c.handedOut
		for _, n := range c.reasons {
			sum += n
		}
		if c.received+c.handedIn != sum {
			m.t.Fatalf("worker %d: received %d and %d from others, forwarded %d, held %d, to others %d, ended %v", k, c.received, c.handedIn,
				c.forwarded, c.held, c.handedOut, c.reasons)
		}
		if n := m.frames(k); n != m.each+int(c.framesIn)-int(c.framesOut) {
			m.t.Fatalf("worker %d: %d frames, expected %d+%d-%d", k, n, m.each, c.framesIn, c.framesOut)
		}
		if x := w.pool.Excess(); x != 0 {
			m.t.Fatalf("worker %d: %d frames given back twice", k, x)
		}
		found += m.frames(k)
		in, out = in+c.handedIn, out+c.handedOut
	}
	if found != m.each*len(m.w) {
		m.t.Fatalf("%d of %d frames found", found, m.each*len(m.w))
	}
	if m.mesh.underWay() == 0 && in != out {
		m.t.Fatalf("%d packets handed out, %d came", out, in)
	}
}

func (m *meshRig) take(port int) []sentFrame {
	f := m.sent[port]
	m.sent[port] = nil
	return f
}

// one expects exactly one frame out of a port.
func (m *meshRig) one(port int) (sentFrame, *packet.Headers) {
	m.t.Helper()
	f := m.take(port)
	if len(f) != 1 {
		var why []string
		for _, w := range m.w {
			for i, n := range w.c.reasons {
				if n > 0 {
					why = append(why, fmt.Sprint(reason.Reason(i), n))
				}
			}
		}
		m.t.Fatalf("%d frames left by port %d, want 1; ended %v", len(f), port, why)
	}
	if err := packet.Verify(f[0].data); err != nil {
		m.t.Error(err)
	}
	h := new(packet.Headers)
	packet.Parse(f[0].data, h)
	return f[0], h
}

func (m *meshRig) links() (n int) {
	for _, w := range m.w {
		n += int(w.nat.Counters().Links)
	}
	return n
}

// TestOwnerByKind has, for every row of the table in DESIGN 4, both directions of flows come out at the same worker, from
// whichever worker's queue they came in by: one link is made, and the answer meets it.
func TestOwnerByKind(t *testing.T) {
	pool := packet.Addr(addr("203.0.113.2"))
	static := addr("203.0.113.9")
	dmz := addr("10.0.0.77")
	for _, kind := range []struct {
		name     string
		rules    func(*nat.Rules)
		inbound  bool               // opened from outside
		outgoing func(i int) []byte // as sent by the inside host
		incoming func(i int) []byte // as sent by the remote, to the alias endpoint (outbound flows: made from the packet that left)
		why      steerWhy
		flow     steerWhy // likewise with steer: flow; 0: the same
	}{
		{name: "dynamic UDP", outgoing: func(i int) []byte { return fromInside(host1+packet.Addr(i), uint16(4000+i)).UDP(nil) }, why: byHost},
		{name: "dynamic UDP, endpoint-dependent", rules: func(r *nat.Rules) { r.Mapping.UDP = nat.AddressAndPortDependent },
			outgoing: func(i int) []byte { return fromInside(host1+packet.Addr(i), 4000).UDP(nil) }, why: byHost, flow: byFlow},
		{name: "dynamic TCP", outgoing: func(i int) []byte { return syn(fromInside(host1+packet.Addr(i), 4000)) }, why: byHost, flow: byFlow},
		{name: "dynamic TCP, endpoint-independent", rules: func(r *nat.Rules) { r.Mapping.TCP = nat.EndpointIndependent },
			outgoing: func(i int) []byte { return syn(fromInside(host1+packet.Addr(i), 4000)) }, why: byHost},
		{name: "echo, address-dependent", rules: func(r *nat.Rules) { r.Mapping.ICMP = nat.AddressDependent },
			outgoing: func(i int) []byte { return fromInside(host1+packet.Addr(i), 0).Echo(true, 7, nil) }, why: byHost, flow: byFlow},
		{name: "echo", outgoing: func(i int) []byte { return fromInside(host1+packet.Addr(i), 0).Echo(true, 7, nil) }, why: byHost},
		{name: "GRE", outgoing: func(i int) []byte {
			b := fromInside(host1, 0)
			b.Dst += packet.Addr(i)
			return b.IP(47, []byte{0, 0, 0, 0})
		}, why: byProtocol},
		{name: "redirect_port", inbound: true, rules: func(r *nat.Rules) {
			r.RedirectPort = []nat.RedirectPort{{Proto: packet.ProtoTCP, Public: nat.Alias{Addr: alias1, Port: 443}, Local: []nat.Local{{Addr: host1, Port: 8443}}}}
		}, incoming: func(i int) []byte {
			b := fromOutside(alias1, 443)
			b.Src, b.SrcPort = b.Src+packet.Addr(i), uint16(3000+i)
			return syn(b)
		}, why: byRedirect},
		{name: "redirect_port, opened from inside", rules: func(r *nat.Rules) {
			r.RedirectPort = []nat.RedirectPort{{Proto: packet.ProtoUDP, Public: nat.Alias{Addr: alias1, Port: 443}, Local: []nat.Local{{Addr: host1, Port: 8443}}}}
		}, outgoing: func(i int) []byte {
			b := fromInside(host1, 8443)
			b.Dst += packet.Addr(i)
			return b.UDP(nil)
		}, why: byRedirect},
		{name: "pool", inbound: true, rules: func(r *nat.Rules) {
			r.RedirectPort = []nat.RedirectPort{{Proto: packet.ProtoTCP, Public: nat.Alias{Addr: alias1, Port: 80}, Local: []nat.Local{{Addr: host1, Port: 80}, {Addr: host2, Port: 8080}}}}
		}, incoming: func(i int) []byte {
			b := fromOutside(alias1, 80)
			b.SrcPort = uint16(3000 + i)
			return syn(b)
		}, why: byRedirect},
		{name: "redirect_addr", inbound: true, rules: func(r *nat.Rules) {
			r.RedirectAddr = []nat.RedirectAddr{{Public: static, Local: []packet.Addr{host1}, Inbound: true}}
		}, incoming: func(i int) []byte {
			b := fromOutside(static, uint16(100+i))
			b.SrcPort = uint16(3000 + i)
			return b.UDP(nil)
		}, why: byRedirect},
		{name: "redirect_addr, echo", inbound: true, rules: func(r *nat.Rules) {
			r.RedirectAddr = []nat.RedirectAddr{{Public: static, Local: []packet.Addr{host1}, Inbound: true}}
		}, incoming: func(i int) []byte {
			b := fromOutside(static, 0)
			b.Src += packet.Addr(i)
			return b.Echo(true, uint16(i), nil)
		}, why: byRedirect},
		{name: "redirect_addr, opened from inside", rules: func(r *nat.Rules) {
			r.RedirectAddr = []nat.RedirectAddr{{Public: static, Local: []packet.Addr{host1}, Inbound: true}}
		}, outgoing: func(i int) []byte {
			b := fromInside(host1, uint16(2000+i))
			b.Dst += packet.Addr(i)
			return syn(b)
		}, why: byRedirect},
		{name: "redirect_proto", inbound: true, rules: func(r *nat.Rules) {
			r.RedirectProto = []nat.RedirectProto{{Proto: 47, Public: alias1, Local: host1}}
		}, incoming: func(i int) []byte {
			b := fromOutside(alias1, 0)
			b.Src += packet.Addr(i)
			return b.IP(47, []byte{0, 0, 0, 0})
		}, why: byProtocol},
		{name: "target", inbound: true, rules: func(r *nat.Rules) { r.DenyIncoming, r.Target, r.Alias = false, dmz, []packet.Addr{alias1, pool} },
			incoming: func(i int) []byte {
				b := fromOutside(pool, uint16(2000+i))
				b.SrcPort = uint16(3000 + i)
				return syn(b)
			}, why: byTarget},
	} {
		run := func(t *testing.T, flow bool) {
			m := newMeshRig(t, meshOptions{workers: 4, rules: kind.rules, flow: flow})
			const flows = 40
			for i := range flows {
				first, back, make := inPort, outPort, kind.outgoing
				if kind.inbound {
					first, back, make = outPort, inPort, kind.incoming
				}
				m.push(i%4, first, make(i))
				m.settle()
				f, h := m.one(back)
				if n := m.links(); n != i+1 {
					t.Fatalf("flow %d: %d links", i, n)
				}
				before := m.w[f.worker].nat.Counters().Created
				for queue := range 4 { // the answer, by every queue
					b := packet.Build{SrcMAC: peerMAC, DstMAC: inMAC, Src: h.Dst, Dst: h.Src, SrcPort: h.DstPort, DstPort: h.SrcPort}
					if back == outPort {
						b.DstMAC = outMAC
					}
					var answer []byte
					switch {
					case h.Kind == packet.KindTCP:
						b.Flags = packet.TCPSyn | packet.TCPAck
						answer = b.TCP(nil)
					case h.Kind == packet.KindUDP:
						answer = b.UDP(nil)
					case h.Kind == packet.KindICMPQuery:
						answer = b.Echo(false, h.SrcPort, nil)
					default:
						answer = b.IP(47, []byte{0, 0, 0, 0})
					}
					m.push(queue, back, answer)
					m.settle()
					r, rh := m.one(first)
					if r.worker != f.worker {
						t.Fatalf("flow %d: worker %d one way, %d back", i, f.worker, r.worker)
					}
					var sent packet.Headers
					packet.Parse(make(i), &sent)
					if rh.Src != sent.Dst || rh.Dst != sent.Src || rh.SrcPort != sent.DstPort || rh.DstPort != sent.SrcPort {
						t.Fatalf("flow %d: the answer came as %v:%d > %v:%d", i, rh.Src, rh.SrcPort, rh.Dst, rh.DstPort)
					}
				}
				if m.w[f.worker].nat.Counters().Created != before || m.links() != i+1 {
					t.Fatalf("flow %d: the answer made a link", i)
				}
			}
			why := kind.why
			if flow && kind.flow != 0 {
				why = kind.flow
			}
			var handed uint64
			used := 0
			for _, w := range m.w {
				handed += w.c.handedWhy[why]
				if w.nat.Counters().Links > 0 {
					used++
				}
			}
			if handed == 0 {
				t.Error("nothing was handed over for this reason")
			}
			if used < 2 && kind.why != byTarget {
				t.Errorf("all links are at %d worker", used)
			}
		}
		t.Run(kind.name, func(t *testing.T) { run(t, false) })
		t.Run(kind.name+", steer: flow", func(t *testing.T) { run(t, true) })
	}
}

// TestErrorsGoToTheOwner: an ICMP error reaches the host concerned by the packet that it quotes, from any queue and sender.
func TestErrorsGoToTheOwner(t *testing.T) {
	m := newMeshRig(t, meshOptions{workers: 4})
	for i := range 20 {
		out := fromInside(host1+packet.Addr(i), 5000).UDP(nil)
		m.push(i%4, inPort, out)
		m.settle()
		f, h := m.one(outPort)
		for queue := range 4 {
			b := packet.Build{SrcMAC: peerMAC, DstMAC: outMAC, Src: server + 1000, Dst: h.Src}
			m.push(queue, outPort, b.ICMP(3, 1, 0, f.data[14:]))
			m.settle()
			e, eh := m.one(inPort)
			_, q, _ := icmpAbout(t, e.data)
			if eh.Dst != host1+packet.Addr(i) || q.Src != eh.Dst || q.SrcPort != 5000 || e.worker != f.worker {
				t.Fatalf("flow %d by queue %d: error to %v about %v:%d at worker %d, want %d", i, queue, eh.Dst, q.Src, q.SrcPort, e.worker, f.worker)
			}
		}
	}
}

// TestFragmentsOfAnyOrderAndQueue: the pieces of datagrams arrive in any order and by any queue, and all leave.
func TestFragmentsOfAnyOrderAndQueue(t *testing.T) {
	random := rand.New(rand.NewPCG(5, 6))
	m := newMeshRig(t, meshOptions{workers: 4, rules: func(r *nat.Rules) {
		r.RedirectPort = []nat.RedirectPort{{Proto: packet.ProtoUDP, Public: nat.Alias{Addr: alias1, Port: 53}, Local: []nat.Local{{Addr: host2, Port: 53}}}}
	}})
	pieces := func(b packet.Build, id int) [][]byte {
		b.ID = uint16(id)
		whole := b.UDP(make([]byte, 3*800-8))
		var list [][]byte
		for off := 0; off < 3*800; off += 800 {
			p := b
			p.FragOff, p.MF = uint16(off), off < 2*800
			list = append(list, p.IP(packet.ProtoUDP, whole[34+off:34+off+800]))
		}
		return list
	}
	for i := range 200 {
		from, to := inPort, outPort
		b := fromInside(host1+packet.Addr(i%50), uint16(5000+i%3))
		switch i % 3 {
		case 1: // to a published port
			from, to = outPort, inPort
			b = fromOutside(alias1, 53)
			b.SrcPort = uint16(2000 + i)
		case 2: // the same from inside: a hairpin
			from, to = inPort, inPort
			b.Dst, b.DstPort = alias1, 53
		}
		list := pieces(b, i)
		random.Shuffle(len(list), func(i, j int) { list[i], list[j] = list[j], list[i] })
		for _, f := range list {
			m.push(random.IntN(4), from, f)
			if random.IntN(2) == 0 {
				m.settle()
			}
		}
		m.settle()
		got := m.take(to)
		if len(got) != 3 {
			t.Fatalf("datagram %d: %d pieces left, want 3", i, len(got))
		}
		var src packet.Addr
		for n, f := range got {
			var h packet.Headers
			packet.Parse(f.data, &h)
			if n == 0 {
				src = h.Src
			}
			if h.Src != src || h.TTL != 63 {
				t.Fatalf("datagram %d: a piece from %v, TTL %d; the first from %v", i, h.Src, h.TTL, src)
			}
		}
	}
}

// TestHairpinBetweenWorkers: two inside hosts of different owners talk by alias addresses, over any queue.
func TestHairpinBetweenWorkers(t *testing.T) {
	m := newMeshRig(t, meshOptions{workers: 4, rules: func(r *nat.Rules) { r.Filtering.UDP = nat.EndpointIndependent }})
	for i := range 30 {
		a, b := host1+packet.Addr(2*i), host1+packet.Addr(2*i+1)
		m.push(i%4, inPort, fromInside(a, 6000).UDP(nil))
		m.settle()
		_, h := m.one(outPort)
		alias := packet.Build{SrcMAC: peerMAC, DstMAC: inMAC, Src: b, SrcPort: 7000, Dst: h.Src, DstPort: h.SrcPort}
		m.push((i+1)%4, inPort, alias.UDP(nil))
		m.settle()
		_, got := m.one(inPort)
		if got.Dst != a || got.DstPort != 6000 || got.TTL != 63 {
			t.Fatalf("pair %d: came to %v:%d, TTL %d", i, got.Dst, got.DstPort, got.TTL)
		}
		for queue := range 4 {
			back := packet.Build{SrcMAC: peerMAC, DstMAC: inMAC, Src: a, SrcPort: 6000, Dst: got.Src, DstPort: got.SrcPort}
			m.push(queue, inPort, back.UDP(nil))
			m.settle()
			_, again := m.one(inPort)
			if again.Dst != b || again.DstPort != 7000 || again.Src != h.Src || again.SrcPort != h.SrcPort {
				t.Fatalf("pair %d: answer came to %v:%d from %v:%d", i, again.Dst, again.DstPort, again.Src, again.SrcPort)
			}
		}
	}
}

// hostile is a packet of a random kind, often malformed.
func hostile(random *rand.Rand) (port int, f []byte) {
	port = random.IntN(2)
	b := fromInside(host1+packet.Addr(random.IntN(50)), uint16(1024+random.IntN(2000)))
	if random.IntN(6) == 0 {
		b.Dst = alias1
		b.DstPort = uint16(1024 + random.IntN(2000))
	}
	if port == outPort {
		b = fromOutside(alias1, uint16(1024+random.IntN(2000)))
	}
	b.TTL = uint8(random.IntN(5))
	b.DF = random.IntN(2) == 0
	b.MF = random.IntN(8) == 0
	b.ID = uint16(random.IntN(20))
	if random.IntN(8) == 0 {
		b.FragOff = uint16(random.IntN(4)) * 256
	}
	payload := make([]byte, 8*random.IntN(200))
	switch random.IntN(6) {
	case 0:
		f = b.TCP(payload)
	case 1:
		f = b.Echo(random.IntN(2) == 0, 1, payload)
	case 2:
		f = b.ICMP(3, uint8(random.IntN(5)), 1400, fromOutside(alias1, 2000).UDP(nil)[14:])
	case 3:
		f = b.IP(47, payload)
	default:
		f = b.UDP(payload)
	}
	if random.IntN(10) == 0 {
		f[random.IntN(len(f))] ^= byte(1 << random.IntN(8))
	}
	return port, f
}

func hostileRules(r *nat.Rules) {
	r.RedirectPort = []nat.RedirectPort{
		{Proto: packet.ProtoUDP, Public: nat.Alias{Addr: alias1, Port: 1500}, Local: []nat.Local{{Addr: host1, Port: 1500}}},
		{Proto: packet.ProtoTCP, Public: nat.Alias{Addr: alias1, Port: 1501}, Local: []nat.Local{{Addr: host1, Port: 1500}, {Addr: host2, Port: 1500}}},
	}
	r.RedirectAddr = []nat.RedirectAddr{{Public: alias1 + 1, Local: []packet.Addr{host1 + 5}, Inbound: true}}
	r.DenyIncoming, r.Target = false, host1+7
	r.Filtering.UDP = nat.EndpointIndependent
}

// TestHostileSpray: whatever comes in by whichever queue, every packet has one fate and every frame one place.
func TestHostileSpray(t *testing.T) {
	for _, n := range []int{2, 3, 4} {
		random := rand.New(rand.NewPCG(uint64(n), 2))
		m := newMeshRig(t, meshOptions{workers: n, links: 300, rules: hostileRules})
		for range 300 {
			for range random.IntN(80) {
				port, f := hostile(random)
				m.push(random.IntN(n), port, f)
			}
			switch random.IntN(12) {
			case 0:
				m.table.SetStaticHop(uint16(random.IntN(2)), peerMAC, rtcache.Unresolved)
			case 1, 2, 3:
				m.table.SetStaticHop(inPort, peerMAC, rtcache.OK)
				m.table.SetStaticHop(outPort, peerMAC, rtcache.OK)
			}
			for _, ports := range m.ports {
				ports[random.IntN(2)].Room = 10 + random.IntN(1000)
			}
			for range random.IntN(5) { // some workers go on, some rest
				m.w[random.IntN(n)].Poll(m.now)
				m.check()
			}
			m.settle()
			m.now = m.now.Add(time.Duration(random.IntN(2000)) * time.Millisecond)
			m.take(inPort)
			m.take(outPort)
		}
		var forwarded, handed uint64
		reasons := map[reason.Reason]bool{}
		for _, w := range m.w {
			forwarded, handed = forwarded+w.c.forwarded, handed+w.c.handedOut
			for i, x := range w.c.reasons {
				if x > 0 {
					reasons[reason.Reason(i)] = true
				}
			}
		}
		if forwarded == 0 || handed == 0 || len(reasons) < 8 {
			t.Errorf("%d workers: forwarded %d, handed over %d, ended %v: this test has lost its grip", n, forwarded, handed, reasons)
		}
	}
}

// TestWorkersInParallel is the spray with every worker on a goroutine of its own; each also makes its own packets.
func TestWorkersInParallel(t *testing.T) {
	for _, n := range []int{2, 4} {
		m := newMeshRig(t, meshOptions{workers: n, links: 300, silent: true, rules: hostileRules})
		var wait sync.WaitGroup
		for k := range n {
			wait.Go(func() {
				random := rand.New(rand.NewPCG(uint64(k), 9))
				now := m.now
				for round := range 400 {
					for range random.IntN(40) {
						port, f := hostile(random)
						if _, ok := m.ports[k][port].Push(m.pools[k], f); !ok {
							break
						}
					}
					m.w[k].Poll(now)
					if round%16 == 0 {
						now = now.Add(time.Duration(random.IntN(500)) * time.Millisecond)
						runtime.Gosched()
					}
				}
			})
		}
		wait.Wait()
		m.now = m.now.Add(time.Hour)
		m.settle()
		m.now = m.now.Add(time.Minute)
		m.settle()
		var handed, full uint64
		for _, w := range m.w {
			handed, full = handed+w.c.handedOut, full+w.c.reasons[reason.HandoffFull]
			if w.c.held != 0 {
				t.Errorf("%d packets are still held an hour later", w.c.held)
			}
		}
		if handed == 0 {
			t.Error("nothing was handed over")
		}
		t.Logf("%d workers: %d handed over, %d found a full ring", n, handed, full)
	}
}

// TestFullRing: a worker that does not move costs the others packets, with their own reason, never a stall.
func TestFullRing(t *testing.T) {
	m := newMeshRig(t, meshOptions{workers: 2, frames: 2 * handoffRing})
	var src packet.Addr
	for src = host1; m.steering.host(src) != 1; src++ {
	}
	for range handoffRing + 100 {
		m.push(0, inPort, fromInside(src, 5000).UDP(nil))
		m.w[0].Poll(m.now)
	}
	m.check()
	if n := m.w[0].c.reasons[reason.HandoffFull]; n != 100 {
		t.Errorf("%d packets found the ring full, want 100", n)
	}
	m.settle()
	if m.pools[0].Len() != m.each || m.pools[1].Len() != m.each {
		t.Errorf("pools of %d and %d frames in the end, want %d each: frames did not go home", m.pools[0].Len(), m.pools[1].Len(), m.each)
	}
}

// TestLimitIsShared: limits.links is a total, and any one worker may use all of it, also after the others had their part; what they
// keep in hand while they have links is bounded.
func TestLimitIsShared(t *testing.T) {
	for _, c := range []struct{ workers, links int }{{4, 10}, {4, 100}, {8, 100}, {8, 1000}, {4, 5000}} {
		t.Run(fmt.Sprint(c.workers, " workers, ", c.links, " links"), func(t *testing.T) {
			m := newMeshRig(t, meshOptions{workers: c.workers, links: c.links, silent: true})
			offer := func(hosts, n int, of func(worker uint32) bool) {
				for i := 0; n > 0; i++ {
					src := host1 + packet.Addr(i%hosts)
					if !of(m.steering.host(src)) {
						continue
					}
					b := fromInside(src, uint16(2000+i/hosts%60000))
					m.push(i%c.workers, inPort, b.UDP(nil))
					if n--; n%512 == 0 {
						m.settle()
					}
				}
				m.settle()
			}
			all := func(uint32) bool { return true }
			refused := func() (n uint64) {
				for _, w := range m.w {
					n += w.c.reasons[reason.TableFull]
				}
				return n
			}
			for only := range uint32(c.workers) {
				offer(1000, c.links+50, func(k uint32) bool { return k == only })
				if n := m.links(); n != c.links {
					t.Fatalf("%d links of worker %d, want all %d", n, only, c.links)
				}
				if n := refused(); n != 50*uint64(2*only+1) {
					t.Fatalf("%d refusals, want 50 for each filling", n)
				}
				m.now = m.now.Add(400 * time.Second)
				m.settle()
				if n := m.links(); n != 0 {
					t.Fatalf("%d links after their timeout", n)
				}
				offer(1000, c.links+50, all) // all workers at once
				if n := m.links(); n != c.links {
					t.Errorf("%d links of all workers, want %d", n, c.links)
				}
				m.now = m.now.Add(400 * time.Second)
				m.settle()
			}
		})
	}
}

// BenchmarkOwner is the owner decision in bursts of 32, both directions.
func BenchmarkOwner(b *testing.B) {
	m := newMeshRig(b, meshOptions{workers: 4, rules: hostileRules})
	var burst [32]nat.Packet
	fill := func(side nat.Side, f func(i int) []byte) {
		for i := range burst {
			p := &burst[i]
			p.Data, p.Side = f(i), side
			packet.Parse(p.Data, &p.H)
		}
	}
	for _, c := range []struct {
		name string
		side nat.Side
		f    func(i int) []byte
	}{
		{"outbound", nat.Inside, func(i int) []byte { return fromInside(host1+packet.Addr(i), uint16(3000+i)).UDP(nil) }},
		{"inbound", nat.Outside, func(i int) []byte { return fromOutside(alias1, uint16(3000+i)).UDP(nil) }},
	} {
		b.Run(c.name, func(b *testing.B) {
			fill(c.side, c.f)
			if c.side == nat.Outside {
				for i := range burst {
					m.owners.Claim(alias1, lport.RowUDP, uint16(3000+i), i%4)
				}
			}
			defer reportCPU(b)()
			var sum uint32
			for i := 0; i < b.N; i += len(burst) {
				for k := range burst {
					to, _ := m.steering.owner(&burst[k])
					sum += to
				}
			}
			sink = sum
		})
	}
}

var sink uint32

// TestHandingOverAllocatesNothing: a packet's way over two workers costs no allocation, in both directions, hairpins included.
func TestHandingOverAllocatesNothing(t *testing.T) {
	m := newMeshRig(t, meshOptions{workers: 4, silent: true, rules: func(r *nat.Rules) { r.Filtering.UDP = nat.EndpointIndependent }})
	var frames [][2]any // port, frame
	for i := range 64 {
		src := host1 + packet.Addr(i)
		frames = append(frames, [2]any{inPort, fromInside(src, 5000).UDP(nil)})
		hairpin := fromInside(src, 5001)
		hairpin.Dst, hairpin.DstPort = alias1, 5000
		frames = append(frames, [2]any{inPort, hairpin.UDP(nil)})
	}
	at := 0
	round := func() {
		for range 32 {
			f := frames[at%len(frames)]
			m.push((at/3)%4, f[0].(int), f[1].([]byte))
			at++
		}
		for work := 1; work > 0; {
			work = 0
			for _, w := range m.w {
				work += w.Poll(m.now)
			}
		}
	}
	for range 50 {
		round()
	}
	if n := testing.AllocsPerRun(50, round); n != 0 {
		t.Errorf("%v allocations in a round of 32 packets", n)
	}
	var out uint64
	for _, w := range m.w {
		out += w.c.handedOut
	}
	if out < 1000 {
		t.Errorf("%d packets handed over: this proves little", out)
	}
}
