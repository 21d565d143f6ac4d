package pmd

import (
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"

	"pollux/internal/packet"
	"pollux/nat"
)

// TestFlowsOfOneHost: with steer: flow the TCP flows of one host are at all workers, and all have one alias address, also
// when another one has more room.
func TestFlowsOfOneHost(t *testing.T) {
	pool := []packet.Addr{alias1, alias1 + 1, alias1 + 2}
	m := newMeshRig(t, meshOptions{workers: 4, flow: true, rules: func(r *nat.Rules) {
		r.Alias, r.PortRange = pool, nat.PortRange{Low: 2000, High: 2039}
	}})
	const flows = 400
	var alias packet.Addr
	at := map[int]int{}
	send := func(i int, dst packet.Addr) []sentFrame {
		b := fromInside(host1, uint16(4000+i))
		b.Dst = dst
		m.push(i%4, inPort, syn(b))
		m.settle()
		return m.take(outPort)
	}
	for i := range flows {
		f := send(i, server+packet.Addr(i)) // each to a server of its own: one alias port will do
		if len(f) != 1 {
			t.Fatalf("flow %d: %d packets left", i, len(f))
		}
		var h packet.Headers
		packet.Parse(f[0].data, &h)
		if alias == 0 {
			alias = h.Src
		}
		if h.Src != alias {
			t.Fatalf("flow %d has the alias address %v, the first %v", i, h.Src, alias)
		}
		at[f[0].worker]++
	}
	for k := range 4 {
		if at[k] < flows/8 {
			t.Errorf("worker %d has %d of %d flows", k, at[k], flows)
		}
	}
	// Toward one server 40 ports are all there are: the host's address is not left for another one.
	sent := 0
	for i := range 60 {
		for _, f := range send(1000+i, server-1) {
			var h packet.Headers
			if packet.Parse(f.data, &h); h.Src != alias {
				t.Fatalf("the alias address changed to %v", h.Src)
			}
			sent++
		}
	}
	if sent == 0 || sent > 40 {
		t.Errorf("%d flows to one server by 40 ports", sent)
	}
}

// TestAliasOfHost: with steer: flow workers need not ask each other for a host's alias address: it is the same at all of them when
// it has no port left, and after the pool has changed.
func TestAliasOfHost(t *testing.T) {
	rules := nat.DefaultRules()
	rules.Alias, rules.PortRange = []packet.Addr{alias1, alias1 + 1}, nat.PortRange{Low: 2000, High: 2019}
	m := newMeshRig(t, meshOptions{workers: 4, flow: true, rules: func(r *nat.Rules) { *r = rules }})
	port := uint16(4000)
	send := func(src, dst packet.Addr) packet.Addr { // the alias address, 0 when refused
		b := fromInside(src, port)
		b.Dst = dst
		port++
		m.push(int(port)%4, inPort, syn(b))
		m.settle()
		m.take(inPort) // refusals
		f := m.take(outPort)
		if len(f) == 0 {
			return 0
		}
		var h packet.Headers
		packet.Parse(f[0].data, &h)
		return h.Src
	}
	same := func(src, dst packet.Addr, alias *packet.Addr) {
		t.Helper()
		for range 20 {
			switch a := send(src, dst); {
			case *alias == 0:
				*alias = a
			case a != 0 && a != *alias:
				t.Fatalf("host %v has the alias addresses %v and %v", src, *alias, a)
			}
		}
	}
	for i := range 40 { // toward server most ports of both addresses are taken
		send(host1+packet.Addr(i), server)
	}
	const hosts = 20
	var before, after [hosts]packet.Addr
	for i := range before {
		src := host1 + 1000 + packet.Addr(i)
		same(src, server, &before[i])
		same(src, server+1, &before[i])
	}
	rules.Alias = append(rules.Alias, alias1+2, alias1+3)
	if err := Publish(m.owners, &rules); err != nil {
		t.Fatal(err)
	}
	for _, w := range m.w {
		if err := w.nat.SetRules(rules, m.now); err != nil {
			t.Fatal(err)
		}
	}
	moved := 0
	for i := range after {
		same(host1+1000+packet.Addr(i), server+2, &after[i])
		if after[i] != before[i] {
			moved++
		}
	}
	if moved == 0 || moved == hosts {
		t.Errorf("%d of %d hosts moved to new alias addresses", moved, hosts)
	}
}

// TestFlowLimits: with steer: flow each worker counts a host's links for itself: never less than the limit, never more than the
// limit at each.
func TestFlowLimits(t *testing.T) {
	m := newMeshRig(t, meshOptions{workers: 4, flow: true, perHost: 20})
	for i := range 400 {
		m.push(i%4, inPort, syn(fromInside(host1, uint16(4000+i))))
	}
	m.settle()
	for k, w := range m.w {
		if n := w.nat.Counters().Links; n != 20 {
			t.Errorf("worker %d lets the host have %d links, the limit is 20", k, n)
		}
	}
}

// TestFlowProperty: whatever the modes of mapping and filtering, hosts, remotes and queues, both directions of every flow are at
// one worker, the answer meets its link, and a host keeps one alias address.
func TestFlowProperty(t *testing.T) {
	for seed := range uint64(12) {
		random := rand.New(rand.NewPCG(seed, 1))
		mode := func() nat.Behaviour { return nat.Behaviour(random.IntN(3)) }
		var mapping, filtering nat.PerProtocol
		mapping = nat.PerProtocol{UDP: mode(), TCP: mode(), ICMP: mode()}
		filtering = nat.PerProtocol{UDP: mode(), TCP: mode(), ICMP: mode()}
		workers := 2 + random.IntN(7)
		m := newMeshRig(t, meshOptions{workers: workers, frames: 512, flow: true, rules: func(r *nat.Rules) {
			r.Alias = []packet.Addr{alias1, alias1 + 1, alias1 + 2}
			r.Mapping, r.Filtering = mapping, filtering
		}})
		aliases := map[packet.Addr]packet.Addr{}
		for i := range 400 {
			b := fromInside(host1+packet.Addr(random.IntN(9)), uint16(3000+random.IntN(2000)))
			b.Dst, b.DstPort = server+packet.Addr(random.IntN(5)), uint16(50+random.IntN(5))
			var out []byte
			kind := random.IntN(3)
			switch kind {
			case 0:
				out = b.UDP(nil)
			case 1:
				out = syn(b)
			default:
				out = b.Echo(true, b.SrcPort, nil)
			}
			var sent packet.Headers
			packet.Parse(out, &sent)
			m.push(random.IntN(workers), inPort, out)
			m.settle()
			f, h := m.one(outPort)
			if was, ok := aliases[b.Src]; ok && was != h.Src {
				t.Fatalf("seed %d, flow %d: host %v has %v and %v", seed, i, b.Src, was, h.Src)
			}
			aliases[b.Src] = h.Src
			links := m.links()
			back := packet.Build{SrcMAC: peerMAC, DstMAC: outMAC, Src: h.Dst, Dst: h.Src, SrcPort: h.DstPort, DstPort: h.SrcPort}
			var answer []byte
			switch kind {
			case 0:
				answer = back.UDP(nil)
			case 1:
				back.Flags = packet.TCPSyn | packet.TCPAck
				answer = back.TCP(nil)
			default:
				answer = back.Echo(false, h.SrcPort, nil)
			}
			m.push(random.IntN(workers), outPort, answer)
			m.settle()
			r, rh := m.one(inPort)
			if r.worker != f.worker || m.links() != links || rh.Dst != sent.Src || rh.DstPort != sent.SrcPort {
				t.Fatalf("seed %d, flow %d (mapping %v, filtering %v): worker %d out, %d back, %d then %d links, answer to %v:%d", seed, i, mapping, filtering,
					f.worker, r.worker, links, m.links(), rh.Dst, rh.DstPort)
			}
		}
	}
}

// TestUntranslatedIsOneWorkers: a flow that the rules leave alone is forwarded by one worker in both directions, by host or by flow.
func TestUntranslatedIsOneWorkers(t *testing.T) {
	for _, flow := range []bool{false, true} {
		m := newMeshRig(t, meshOptions{workers: 4, flow: flow, rules: func(r *nat.Rules) { r.UnregisteredCGN, r.UnregisteredOnly = true, true }, routed: "192.0.2.0/24"})
		used := map[int]bool{}
		for i := range 40 {
			b := fromInside(addr("192.0.2.10"), uint16(4000+i)) // a registered address: not translated
			m.push(i%4, inPort, syn(b))
			m.settle()
			f, h := m.one(outPort)
			if h.Src != b.Src {
				t.Fatalf("translated to %v", h.Src)
			}
			back := packet.Build{SrcMAC: peerMAC, DstMAC: outMAC, Src: b.Dst, SrcPort: b.DstPort, Dst: b.Src, DstPort: b.SrcPort, Flags: packet.TCPSyn | packet.TCPAck}
			m.push((i+1)%4, outPort, back.TCP(nil))
			m.settle()
			if r, _ := m.one(inPort); r.worker != f.worker {
				t.Fatalf("flow %d, steer flow %v: worker %d out, %d back", i, flow, f.worker, r.worker)
			}
			used[f.worker] = true
		}
		if flow != (len(used) > 1) {
			t.Errorf("steer flow %v: one host's flows are at %d workers", flow, len(used))
		}
	}
}

// TestBlocksNeedHosts: what belongs to a host at one worker is refused with flows spread.
func TestBlocksNeedHosts(t *testing.T) {
	for _, change := range []func(*nat.Rules){
		func(r *nat.Rules) { r.Blocks.Size = 64 },
		func(r *nat.Rules) {
			r.Deterministic = nat.Deterministic{Inside: netip.MustParsePrefix("10.0.0.0/28"), PortsPerHost: 64}
		},
	} {
		r := nat.DefaultRules()
		r.Alias = []packet.Addr{alias1}
		change(&r)
		if s, err := nat.New(nat.Options{Rules: r, Limits: nat.Limits{Links: 100, Fragments: 10}, FlowSteered: true}); err == nil || !strings.Contains(err.Error(), "exclude steering by flow") {
			t.Errorf("got %v", err)
			s.Close()
		}
	}
}
