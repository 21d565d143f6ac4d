package pmd

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"
	"time"

	"pollux/internal/clock"
	"pollux/internal/packet"
	"pollux/internal/reason"
	"pollux/nat"
	"pollux/rtcache"
)

// truth is a rig that is asked what it would do with a packet, and then does it.
type truth struct {
	*rig
	fates map[uint64]fate
}

type fate struct {
	reason   reason.Reason
	answered bool
}

func newTruth(t testing.TB, o rigOptions) *truth {
	v := &truth{fates: map[uint64]fate{}}
	o.finished = func(chunk uint64, _ []byte, r reason.Reason, answered bool) { v.fates[chunk] = fate{r, answered} }
	o.punt = true
	v.rig = newRig(t, o)
	return v
}

func (v *truth) ask(port int, frame []byte) Explanation {
	v.t.Helper()
	x := Explanation{}
	side := nat.Inside
	if port == outPort {
		side = nat.Outside
	}
	q := asked{names: []string{"in", "out"}, x: &x, p: nat.Packet{Data: append([]byte(nil), frame...), Ingress: uint16(port), Side: side},
		do: func(_ int, f func(*Worker, clock.Tick)) error { f(v.w, v.now); return nil }}
	if err := q.explain(); err != nil {
		v.t.Fatal(err)
	}
	return x
}

// check compares what is said with what is done.
func (v *truth) check(port int, frame []byte) Explanation {
	v.t.Helper()
	trace := func() string {
		return fmt.Sprint(*v.w.nat.Counters(), v.w.routes.C, v.w.c, v.pool.Len(), v.w.errors, v.w.nat.Ports().Stats(), len(v.punted))
	}
	before := trace()
	x := v.ask(port, frame)
	if after := trace(); after != before {
		v.t.Fatalf("asking leaves a trace:\n%s\n%s", before, after)
	}
	if again := v.ask(port, frame); fmt.Sprint(again.Stages) != fmt.Sprint(x.Stages) {
		v.t.Fatalf("asked twice, the answers differ: asking leaves a trace\n%v\n%v", x.Stages, again.Stages)
	}
	created := v.w.nat.Counters().Created
	v.takeSent(inPort)
	v.takeSent(outPort)
	clear(v.fates)
	chunk, ok := v.ports[port].Push(v.pool, frame)
	if !ok {
		v.t.Fatal("the port takes no more")
	}
	v.poll()
	if err := v.compare(&x, chunk, v.w.nat.Counters().Created-created); err != nil && !x.Chance {
		v.t.Fatalf("%v\nsaid %+v\nof %s by port %d", err, x, describe(frame), port)
	}
	return x
}

func (v *truth) compare(x *Explanation, chunk uint64, made uint64) error {
	f, ended := v.fates[chunk]
	sent := [2][][]byte{v.takeSent(inPort), v.takeSent(outPort)}
	switch {
	case !ended:
		if x.Outcome != "hold" {
			return fmt.Errorf("the packet is held")
		}
		return nil
	case f.reason != x.reason:
		return fmt.Errorf("it ended as %v", f.reason)
	case f.answered != (x.ICMP != ""):
		return fmt.Errorf("the sender was told: %t", f.answered)
	case x.NewLink != (made > 0) && f.reason == reason.None:
		return fmt.Errorf("%d links were made", made)
	}
	if f.answered {
		for _, frames := range sent {
			for _, e := range frames {
				var h packet.Headers
				packet.Parse(e, &h)
				if h.Kind == packet.KindICMPError && x.ICMP == fmt.Sprintf("%d/%d", h.ICMPType, h.ICMPCode) {
					return nil
				}
			}
		}
		return fmt.Errorf("no ICMP error of that kind was sent")
	}
	if f.reason != reason.None {
		return nil
	}
	if x.Outcome != "forward" {
		return fmt.Errorf("it was sent on")
	}
	port := map[string]int{"in": inPort, "out": outPort}[x.Egress]
	if len(sent[port]) == 0 {
		return fmt.Errorf("it left by another port")
	}
	for _, e := range sent[port] { // the piece with the ports
		var h packet.Headers
		packet.Parse(e, &h)
		if h.Kind == packet.KindLaterFragment && x.Pieces {
			continue
		}
		if got := h.Fragment() && h.FragOff == 0; got != x.Pieces && x.Pieces {
			return fmt.Errorf("in pieces: %t", got)
		}
		return v.ends(x, &h)
	}
	return fmt.Errorf("no piece with ports left")
}

func (v *truth) ends(x *Explanation, h *packet.Headers) error {
	src, dst := h.Src.String(), h.Dst.String()
	if strings.Contains(x.Dst, ":") {
		src, dst = fmt.Sprintf("%v:%d", h.Src, h.SrcPort), fmt.Sprintf("%v:%d", h.Dst, h.DstPort)
	}
	if x.SrcPorts != "" { // a choice left to chance: the address and the range must be right
		var low, high uint16
		fmt.Sscanf(x.SrcPorts, "%d-%d", &low, &high)
		port := h.SrcPort
		if !strings.HasPrefix(x.Src, h.Src.String()+":") && !x.anyAlias || port < low || port > high {
			return fmt.Errorf("it left from %s", src)
		}
		if h.Kind == packet.KindICMPQuery {
			dst = x.Dst // the id is the same on both ends
		}
	} else if src != x.Src && !x.anyAlias {
		return fmt.Errorf("it left from %s", src)
	}
	if dst != x.Dst {
		return fmt.Errorf("it left to %s", dst)
	}
	return nil
}

// Each case says what to prepare, which packet to ask about, and what the answer must say; and what is done must be just that.
func TestExplainTellsTheTruth(t *testing.T) {
	type ask struct {
		port  int
		frame []byte
		want  string // outcome reason icmp
	}
	udp := func(port int, src string, sport uint16, dst string, dport uint16) []byte {
		b := packet.Build{SrcMAC: peerMAC, DstMAC: inMAC, Src: addr(src), SrcPort: sport, Dst: addr(dst), DstPort: dport}
		if port == outPort {
			b.DstMAC = outMAC
		}
		return b.UDP(nil)
	}
	out := func(f func(*packet.Build)) packet.Build {
		b := fromInside(host1, 5000)
		f(&b)
		return b
	}
	back := func(f func(*packet.Build)) packet.Build {
		b := fromOutside(alias1, 5000)
		f(&b)
		return b
	}
	first := ask{inPort, fromInside(host1, 5000).UDP(nil), "forward none"}
	for name, c := range map[string]struct {
		rules   func(*nat.Rules)
		options func(*nat.Options)
		routes  func(*rtcache.StaticOptions)
		hop     func(*rtcache.Table)
		drain   bool // after the first
		asks    []ask
	}{
		"draining": {drain: true, asks: []ask{first, first,
			{inPort, fromInside(host2, 5000).UDP(nil), "drop draining 3/13"}}},
		"a new flow and its answers": {asks: []ask{first, first,
			{outPort, fromOutside(alias1, 5000).UDP(nil), "forward none"},
			{outPort, fromOutside(alias1, 5001).UDP(nil), "drop no-mapping"},
			{outPort, udp(outPort, "198.51.100.8", 53, "203.0.113.1", 5000), "drop filtered"}}},
		"an open filter": {rules: func(r *nat.Rules) { r.Filtering.UDP = nat.EndpointIndependent }, asks: []ask{first,
			{outPort, udp(outPort, "198.51.100.8", 99, "203.0.113.1", 5000), "forward none"}}},
		"TTL": {asks: []ask{first,
			{inPort, out(func(b *packet.Build) { b.TTL = 1 }).UDP(nil), "drop ttl-expired 11/0"},
			{inPort, out(func(b *packet.Build) { b.TTL = 1; b.SrcPort = 6000 }).UDP(nil), "drop ttl-expired 11/0"},
			{outPort, back(func(b *packet.Build) { b.TTL = 1 }).UDP(nil), "drop ttl-expired 11/0"}}},
		"MTU": {routes: func(o *rtcache.StaticOptions) { o.Ports[outPort].MTU = 600 }, asks: []ask{
			{inPort, out(func(b *packet.Build) { b.DF = true }).UDP(make([]byte, 1000)), "drop mtu-exceeded 3/4"},
			{inPort, fromInside(host1, 5000).UDP(make([]byte, 1000)), "forward none"},
			{inPort, out(func(b *packet.Build) { b.DF = true }).UDP(make([]byte, 572)), "forward none"}}},
		"the next hop is unknown, then dead": {hop: func(t *rtcache.Table) { t.SetStaticHop(outPort, peerMAC, rtcache.Unresolved) }, asks: []ask{
			{inPort, fromInside(host1, 5000).UDP(nil), "hold held"}}},
		"the next hop does not answer": {hop: func(t *rtcache.Table) { t.SetStaticHop(outPort, peerMAC, rtcache.Failed) }, asks: []ask{
			{inPort, fromInside(host1, 5000).UDP(nil), "drop no-neighbour 3/1"}}},
		"sources": {asks: []ask{
			{inPort, udp(inPort, "203.0.113.1", 1, "198.51.100.9", 53), "drop bad-source"},
			{outPort, udp(outPort, "203.0.113.1", 1, "203.0.113.1", 53), "drop bad-source"},
			{outPort, udp(outPort, "198.51.100.9", 1, "10.0.0.2", 53), "drop no-mapping"},
			{outPort, udp(outPort, "198.51.100.9", 1, "198.51.100.10", 53), "drop no-mapping"},
			{inPort, udp(inPort, "10.0.0.2", 1, "127.0.0.1", 53), "drop no-route"},
			{inPort, udp(inPort, "10.0.0.2", 1, "10.0.0.3", 53), "forward none"},
			{inPort, udp(inPort, "10.0.0.2", 1, "10.255.255.1", 53), "kernel punted"}}},
		"reverse path": {options: func(o *nat.Options) { o.Reverse = func(src packet.Addr, ingress uint16) bool { return src != host2 } }, asks: []ask{first,
			{inPort, fromInside(host2, 5000).UDP(nil), "drop reverse-path"}}},
		"MAC addresses": {asks: []ask{
			{inPort, out(func(b *packet.Build) { b.DstMAC = peerMAC }).UDP(nil), "drop not-for-us"},
			{inPort, out(func(b *packet.Build) { b.DstMAC = [6]byte{255, 255, 255, 255, 255, 255} }).UDP(nil), "kernel punted"}}},
		"malformed": {asks: []ask{
			{inPort, fromInside(host1, 5000).UDP(nil)[:20], "drop bad-header"},
			{inPort, corrupt(fromInside(host1, 5000).UDP(nil), 24), "drop bad-checksum"},
			{inPort, fromInside(host1, 5000).UDP(nil)[:10], "drop bad-header"}}},
		"published": {rules: hostileRules, asks: []ask{
			{outPort, fromOutside(alias1, 1500).UDP(nil), "forward none"},
			{outPort, syn(fromOutside(alias1, 1501)), "forward none"},
			{outPort, syn(back(func(b *packet.Build) { b.DstPort = 1501; b.SrcPort = 99 })), "forward none"}, // the pool's next
			{outPort, udp(outPort, "198.51.100.9", 7, "203.0.113.2", 80), "forward none"},
			{inPort, udp(inPort, "10.0.0.2", 1500, "198.51.100.9", 7), "forward none"},
			{inPort, udp(inPort, "10.0.0.7", 1500, "198.51.100.9", 7), "forward none"},
			{outPort, fromOutside(alias1, 7777).UDP(nil), "forward none"}}}, // the target
		"unsolicited": {asks: []ask{
			{outPort, syn(fromOutside(alias1, 80)), "hold held"},
			{outPort, syn(fromOutside(alias1, 80)), "drop no-mapping"},
			{outPort, fromOutside(alias1, 80).TCP(nil), "drop no-mapping"},
			{outPort, fromOutside(alias1, 80).Echo(true, 1, nil), "drop no-mapping"}}},
		"the kernel's alias": {rules: func(r *nat.Rules) { r.Kernel = []packet.Addr{alias1} }, asks: []ask{first,
			{outPort, fromOutside(alias1, 22).TCP(nil), "kernel punted"},
			{outPort, fromOutside(alias1, 5000).Echo(false, 1, nil), "kernel punted"},
			{outPort, udp(outPort, "198.51.100.8", 53, "203.0.113.1", 5000), "drop filtered"}}},
		"ICMP": {asks: []ask{
			{inPort, fromInside(host1, 7077).Echo(false, 1, nil), "forward none"},
			{outPort, back(func(b *packet.Build) { b.SrcPort = 7077 }).Echo(true, 1, nil), "forward none"},
			{outPort, back(func(b *packet.Build) { b.SrcPort = 7078 }).Echo(true, 1, nil), "drop no-mapping"}, first,
			{outPort, fromOutside(alias1, 0).ICMP(3, 1, 0, quote(alias1, 5000, server, 53)), "forward none"},
			{outPort, fromOutside(alias1, 0).ICMP(3, 1, 0, quote(alias1, 5999, server, 53)), "drop no-mapping"},
			{outPort, fromOutside(alias1, 0).ICMP(5, 1, 0, quote(alias1, 5000, server, 53)), "drop unsupported"}}},
		"a protocol without ports": {asks: []ask{
			{inPort, fromInside(host1, 0).IP(47, nil), "forward none"},
			{inPort, fromInside(host2, 0).IP(47, nil), "drop proto-conflict"},
			{outPort, fromOutside(alias1, 0).IP(47, nil), "forward none"}}},
		"hairpin": {rules: func(r *nat.Rules) { r.Filtering.UDP = nat.EndpointIndependent }, asks: []ask{first,
			{inPort, udp(inPort, "10.0.0.3", 6000, "203.0.113.1", 5000), "forward none"},
			{inPort, udp(inPort, "10.0.0.3", 6000, "203.0.113.1", 5000), "forward none"},
			{inPort, udp(inPort, "10.0.0.2", 5000, "203.0.113.1", 6000), "forward none"},
			{inPort, udp(inPort, "10.0.0.3", 6000, "203.0.113.1", 5005), "drop no-mapping"}}},
		"no hairpin": {rules: func(r *nat.Rules) { r.Hairpin = false }, asks: []ask{first,
			{inPort, udp(inPort, "10.0.0.3", 6000, "203.0.113.1", 5000), "drop hairpin-off"}}},
		"not translated": {rules: func(r *nat.Rules) {
			r.Exempt = []netip.Prefix{netip.MustParsePrefix("198.51.100.0/24")}
			r.UnregisteredOnly = true
		}, asks: []ask{first, {outPort, udp(outPort, "198.51.100.7", 53, "10.0.0.2", 5000), "forward none"},
			{inPort, udp(inPort, "192.0.2.1", 5, "192.0.2.200", 5), "drop reverse-path"}}},
		"limits": {options: func(o *nat.Options) { o.Limits.LinksPerHost = 2; o.Limits.NewLinksPerHost = 3 }, asks: []ask{first,
			{inPort, fromInside(host1, 5001).UDP(nil), "forward none"},
			{inPort, fromInside(host1, 5002).UDP(nil), "drop host-limit 3/13"},
			{inPort, fromInside(host2, 5000).UDP(nil), "forward none"}}},
		"a full table": {options: func(o *nat.Options) { o.Limits.Links = 1 }, asks: []ask{first,
			{inPort, fromInside(host2, 5000).UDP(nil), "drop table-full 3/13"}}},
		"ports used up": {rules: func(r *nat.Rules) { r.PortRange = nat.PortRange{Low: 5000, High: 5001} }, asks: []ask{first,
			{inPort, fromInside(host2, 5000).UDP(nil), "forward none"}, // 5001 is left, which nobody may know
			{inPort, fromInside(host1+2, 5000).UDP(nil), "drop no-port 3/13"}}},
		"blocks": {rules: func(r *nat.Rules) { r.Blocks.Size, r.Blocks.MaxPerHost = 64, 1 }, asks: []ask{first, first,
			{inPort, fromInside(host1, 5001).UDP(nil), "forward none"}}},
		"deterministic": {rules: func(r *nat.Rules) {
			r.Deterministic = nat.Deterministic{Inside: netip.MustParsePrefix("10.0.0.0/24"), PortsPerHost: 200}
		}, asks: []ask{first, {inPort, udp(inPort, "10.0.1.1", 5, "198.51.100.9", 7), "drop no-port 3/13"}}},
		"fragments": {asks: []ask{
			{inPort, out(func(b *packet.Build) { b.FragOff, b.ID = 1480, 9 }).IP(17, make([]byte, 8)), "hold held"},
			{inPort, out(func(b *packet.Build) { b.MF, b.ID = true, 8 }).UDP(make([]byte, 1472)), "forward none"},
			{inPort, out(func(b *packet.Build) { b.FragOff, b.ID = 1480, 8 }).IP(17, make([]byte, 8)), "forward none"}}},
	} {
		t.Run(name, func(t *testing.T) {
			v := newTruth(t, rigOptions{rules: c.rules, options: c.options, routes: c.routes})
			if c.hop != nil {
				c.hop(v.table)
			}
			for i, a := range c.asks {
				x := v.check(a.port, a.frame)
				if got := strings.TrimSpace(x.Outcome + " " + x.Reason + " " + x.ICMP); got != a.want {
					t.Errorf("ask %d: %q, want %q: %v", i, got, a.want, x.Stages)
				}
				v.now += 10
				if c.drain {
					v.w.nat.Drain(true)
				}
			}
		})
	}
}

func corrupt(f []byte, at int) []byte {
	f[at] ^= 0x55
	return f
}

// quote is the IP packet that an ICMP error is about.
func quote(src packet.Addr, sport uint16, dst packet.Addr, dport uint16) []byte {
	b := packet.Build{Src: src, SrcPort: sport, Dst: dst, DstPort: dport}
	return b.UDP(nil)[packet.EthernetLen:]
}

// Packets of any kind, in any state that many of them lead to, under many rules: what is said is what is done.
func TestExplainTellsTheTruthOfAnything(t *testing.T) {
	for name, o := range map[string]rigOptions{
		"defaults":  {},
		"published": {rules: hostileRules},
		"kernel":    {rules: func(r *nat.Rules) { r.Kernel = []packet.Addr{alias1}; r.Alias = append(r.Alias, alias1+9) }},
		"dependent": {rules: func(r *nat.Rules) {
			dep := nat.AddressAndPortDependent
			r.Mapping = nat.PerProtocol{UDP: dep, TCP: dep, ICMP: dep}
			r.PortRange = nat.PortRange{Low: 1500, High: 1700}
		}},
		"by address": {rules: func(r *nat.Rules) {
			dep := nat.AddressDependent
			r.Mapping, r.Filtering = nat.PerProtocol{UDP: dep, TCP: dep, ICMP: dep}, nat.PerProtocol{UDP: dep, TCP: dep, ICMP: dep}
		}},
		"scarce": {rules: func(r *nat.Rules) { r.PortRange = nat.PortRange{Low: 2000, High: 2040} }},
		"limited": {options: func(o *nat.Options) {
			o.Limits.LinksPerHost, o.Limits.NewLinksPerHost, o.Limits.PortsPerHost = 20, 10, 15
		}},
		"full":    {links: 60},
		"blocks":  {rules: func(r *nat.Rules) { r.Blocks.Size, r.Blocks.MaxPerHost = 16, 2 }},
		"tracked": {rules: func(r *nat.Rules) { r.TCPWindowTracking = true; r.NoResourceCode = 1 }},
		"arbitrary": {rules: func(r *nat.Rules) {
			r.Arbitrary = true
			r.Alias = append(r.Alias, alias1+9)
		}},
	} {
		t.Run(name, func(t *testing.T) {
			random := rand.New(rand.NewPCG(3, 4))
			v := newTruth(t, o)
			seen, chance := map[string]int{}, 0
			for range 8000 {
				port, f := hostile(random)
				var h packet.Headers
				if packet.Parse(append([]byte(nil), f...), &h); h.Fragment() {
					continue // what overlaps is not looked at
				}
				x := v.check(port, f)
				seen[x.Outcome+" "+x.Reason]++
				if x.Chance {
					chance++
				}
				if random.IntN(4) == 0 {
					v.now = v.now.Add(time.Duration(random.IntN(1500)) * time.Millisecond)
					v.poll()
				}
			}
			if len(seen) < 5 || chance > 1000 {
				t.Errorf("%v was seen, %d left to chance", seen, chance)
			}
		})
	}
}

// With several workers the owner is part of the truth: it is the one that sends the packet on, or counts its end.
func TestExplainTellsTheOwner(t *testing.T) {
	random := rand.New(rand.NewPCG(3, 4))
	m := newMeshRig(t, meshOptions{workers: 3, rules: func(r *nat.Rules) {
		hostileRules(r)
		r.Alias = append(r.Alias, alias1+9)
	}})
	sum := func() (n [3][reason.Count]uint64) {
		for k, w := range m.w {
			n[k] = w.c.reasons
		}
		return n
	}
	owners := map[int]int{}
	for range 5000 {
		port, f := hostile(random)
		var h packet.Headers
		if packet.Parse(append([]byte(nil), f...), &h); h.Fragment() {
			continue
		}
		x := Explanation{}
		q := asked{names: []string{"in", "out"}, x: &x, steering: m.steering, p: nat.Packet{Data: append([]byte(nil), f...), Ingress: uint16(port), Side: nat.Side(port)},
			do: func(k int, g func(*Worker, clock.Tick)) error { g(m.w[k], m.now); return nil }}
		if err := q.explain(); err != nil {
			t.Fatal(err)
		}
		before := sum()
		queue := random.IntN(3)
		m.take(inPort)
		m.take(outPort)
		m.push(queue, port, f)
		m.settle()
		after := sum()
		if x.Worker < 0 {
			x.Worker = queue // refused where it came in
		}
		if x.Chance {
			continue
		}
		switch x.Outcome {
		case "forward":
			owners[x.Worker]++
			sent := m.take(map[string]int{"in": inPort, "out": outPort}[x.Egress])
			if len(sent) == 0 || len(sent) > 1 && !x.Pieces || sent[0].worker != x.Worker {
				t.Fatalf("sent %d packets, want one by worker %d: %+v", len(sent), x.Worker, x)
			}
		case "drop":
			if after[x.Worker][x.reason] == before[x.Worker][x.reason] {
				t.Fatalf("worker %d counted nothing: %+v", x.Worker, x)
			}
		}
		if random.IntN(4) == 0 {
			m.now = m.now.Add(time.Duration(random.IntN(500)) * time.Millisecond)
			m.settle()
		}
	}
	if len(owners) != 3 {
		t.Errorf("owners %v", owners)
	}
}
