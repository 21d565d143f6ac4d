package nat

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"pgregory.net/rapid"

	"pollux/internal/clock"
	"pollux/internal/packet"
	"pollux/internal/reason"
	"pollux/lport"
)

// The oracle is a NAT of one Go slice of links, searched from the newest to the oldest. It does not choose ports: it looks at
// what the shard chose and says whether that was allowed, and whether a refusal was due.

type oracleLink struct {
	proto           uint8
	local           Local
	alias           Alias
	remote          Remote
	last            clock.Tick
	state           State
	syn, acked, fin [2]bool // TCP, by direction
	inbound         bool
}

type oracle struct {
	rules  Rules
	limits Limits
	links  []*oracleLink // oldest first
	now    clock.Tick

	recycled uint64 // Counters.Recycled as far as it is known here
}

func (o *oracle) limit(l *oracleLink) time.Duration {
	t := &o.rules.Timeouts
	switch {
	case l.proto == packet.ProtoUDP:
		return t.UDP
	case l.proto == packet.ProtoICMP:
		return t.ICMP
	case l.proto != packet.ProtoTCP:
		return t.Other
	}
	return map[State]time.Duration{Opening: t.TCPOpening, Established: t.TCPEstablished, Closing: t.TCPClosing}[l.state]
}

// bury forgets links that were idle for strictly longer than their timeout, and late more.
func (o *oracle) dead(l *oracleLink, late uint32) bool {
	return o.now.Since(l.last) > clock.Ticks(o.limit(l))+late
}

// find returns the newest live link that meets a condition.
func (o *oracle) find(ok func(l *oracleLink) bool) *oracleLink {
	for i := len(o.links) - 1; i >= 0; i-- {
		if l := o.links[i]; !o.dead(l, 0) && ok(l) {
			return l
		}
	}
	return nil
}

// count counts links that meet a condition and may still hold something: those that ended within the last second do.
func (o *oracle) count(ok func(l *oracleLink) bool) (n int) {
	for _, l := range o.links {
		if !o.dead(l, 1000) && ok(l) {
			n++
		}
	}
	return n
}

func (o *oracle) mapping(proto uint8) Behaviour {
	return map[uint8]Behaviour{6: o.rules.Mapping.TCP, 17: o.rules.Mapping.UDP, 1: o.rules.Mapping.ICMP}[proto]
}

func (o *oracle) filtering(proto uint8) Behaviour {
	return map[uint8]Behaviour{6: o.rules.Filtering.TCP, 17: o.rules.Filtering.UDP, 1: o.rules.Filtering.ICMP}[proto]
}

// touch is the state machine, as the contract words it.
func (l *oracleLink) touch(d int, flags uint8, now clock.Tick) {
	l.last = now
	if l.proto != packet.ProtoTCP {
		return
	}
	switch {
	case l.state == Closing:
		if flags&(syn|rst) == syn {
			l.state, l.syn, l.acked, l.fin = Opening, [2]bool{}, [2]bool{}, [2]bool{}
			l.syn[d] = true
		}
		return
	case flags&rst != 0:
		l.state = Closing
		return
	}
	l.syn[d] = l.syn[d] || flags&syn != 0 && l.state == Opening
	l.acked[d] = l.acked[d] || flags&ack != 0 && l.syn[1-d]
	l.fin[d] = l.fin[d] || flags&fin != 0
	if l.fin[0] && l.fin[1] {
		l.state = Closing
	} else if l.state == Opening && l.syn[0] && l.syn[1] && l.acked[0] && l.acked[1] {
		l.state = Established
	}
}

// shareable reports whether two remotes may use one alias port of different hosts at a time.
func (o *oracle) clash(proto uint8, a, b Remote) bool {
	switch o.mapping(proto) {
	case EndpointIndependent:
		return true
	case AddressDependent:
		return a.Addr == b.Addr
	}
	return a == b || proto == packet.ProtoICMP && a.Addr == b.Addr
}

// outbound checks what the shard did with a packet from local to remote.
func (o *oracle) outbound(p *Packet, local Local, remote Remote) error {
	proto, flags := p.H.Proto, p.H.TCPFlags
	same := func(l *oracleLink) bool { return l.proto == proto && l.local == local }
	exact := o.find(func(l *oracleLink) bool { return same(l) && l.remote == remote })
	if exact == nil && p.Verdict == Answer {
		own := o.count(func(l *oracleLink) bool { return l.local.Addr == local.Addr && !l.inbound })
		all := o.count(func(l *oracleLink) bool { return true })
		closing := o.count(func(l *oracleLink) bool { return l.state == Closing && !o.dead(l, 0) })
		used := map[uint16]bool{}
		for _, l := range o.links {
			if !o.dead(l, 1000) && l.proto == proto && o.clash(proto, l.remote, remote) {
				used[l.alias.Port] = true
			}
		}
		if len(o.rules.RedirectPort) > 0 && proto == packet.ProtoUDP {
			used[o.rules.RedirectPort[0].Public.Port] = true
		}
		switch free := int(o.rules.PortRange.High-o.rules.PortRange.Low) + 1 - len(used); {
		case p.Reason == reason.HostLimit && o.limits.LinksPerHost > 0 && own >= o.limits.LinksPerHost,
			p.Reason == reason.TableFull && all >= o.limits.Links && closing == 0,
			p.Reason == reason.NoPort && free <= 0:
			return nil
		}
		return fmt.Errorf("refused for %v: %d links, %d of the host, %d closing, ports used toward it %v", p.Reason, all, own, closing, used)
	}
	if p.Verdict != Forward {
		return fmt.Errorf("outbound verdict %d, %v", p.Verdict, p.Reason)
	}
	src, dst := ends(p)
	alias := Alias(src)
	if proto == packet.ProtoICMP {
		dst.Port = 0
	}
	if alias.Addr != pub1 || dst != remote {
		return fmt.Errorf("left as %v to %v", src, dst)
	}
	if exact != nil {
		if exact.alias != alias {
			return fmt.Errorf("established flow moved from %v to %v", exact.alias, alias)
		}
		exact.touch(0, flags, o.now)
		return nil
	}
	published := len(o.rules.RedirectPort) > 0 && proto == packet.ProtoUDP && local == o.rules.RedirectPort[0].Local[0]
	m := o.find(func(l *oracleLink) bool {
		return same(l) && (o.mapping(proto) == EndpointIndependent || o.mapping(proto) == AddressDependent && l.remote.Addr == remote.Addr)
	})
	switch {
	case published:
		if alias != o.rules.RedirectPort[0].Public {
			return fmt.Errorf("published server calls out as %v", alias)
		}
	case m != nil && alias != m.alias:
		return fmt.Errorf("mapping %v not kept: %v", m.alias, alias)
	case m == nil:
		other := o.find(func(l *oracleLink) bool {
			return l.proto == proto && l.alias == alias && o.clash(proto, l.remote, remote) && l.state != Closing
		})
		if other != nil {
			return fmt.Errorf("%v shares %v with %v", local, alias, other.local)
		}
		if alias.Port < o.rules.PortRange.Low || alias.Port > o.rules.PortRange.High {
			return fmt.Errorf("port %d is out of range", alias.Port)
		}
	}
	o.add(&oracleLink{proto: proto, local: local, alias: alias, remote: remote}, 0, flags)
	return nil
}

func (o *oracle) add(l *oracleLink, d int, flags uint8) {
	if l.proto == packet.ProtoTCP {
		l.state = Opening
	}
	l.touch(d, flags, o.now)
	o.links = append(o.links, l)
}

// recycle forgets closing links that the shard has given up, which it counts.
func (o *oracle) recycle(s *Shard) error {
	if s.counters.Recycled == o.recycled {
		return nil
	}
	there := map[string]bool{}
	s.Links(0, 1<<20, func(l LinkInfo) bool { there[fmt.Sprint(l.Proto, l.Local, l.Alias, l.Remote)] = true; return true })
	before := len(o.links)
	o.links = slices.DeleteFunc(o.links, func(l *oracleLink) bool {
		return l.state == Closing && !o.dead(l, 0) && !there[fmt.Sprint(l.proto, l.local, l.alias, l.remote)]
	})
	if n := before - len(o.links); n > int(s.counters.Recycled-o.recycled) {
		return fmt.Errorf("%d links gone, %d recycled", n, s.counters.Recycled-o.recycled)
	}
	o.recycled = s.counters.Recycled
	return nil
}

// inbound checks what the shard did with a packet from remote to alias.
func (o *oracle) inbound(p *Packet, alias Alias, remote Remote) error {
	proto, flags := p.H.Proto, p.H.TCPFlags
	here := func(l *oracleLink) bool { return l.proto == proto && l.alias == alias }
	l := o.find(func(l *oracleLink) bool { return here(l) && l.remote == remote })
	var want Local
	switch {
	case l != nil:
		want = l.local
	case len(o.rules.RedirectPort) > 0 && proto == packet.ProtoUDP && alias == o.rules.RedirectPort[0].Public:
		want = o.rules.RedirectPort[0].Local[0]
	default:
		m := o.find(func(l *oracleLink) bool {
			return here(l) && (o.filtering(proto) == EndpointIndependent || o.filtering(proto) == AddressDependent && l.remote.Addr == remote.Addr)
		})
		if m == nil {
			if p.Verdict == Drop && (p.Reason == reason.NoMapping || p.Reason == reason.Filtered) || p.Verdict == Keep {
				return nil
			}
			src, dst := ends(p)
			return fmt.Errorf("unsolicited: verdict %d, %v, from %v to %v, filtering %d", p.Verdict, p.Reason, src, dst, o.filtering(proto))
		}
		want = m.local
	}
	if l == nil && p.Verdict == Drop && p.Reason == reason.TableFull && o.count(func(l *oracleLink) bool { return true }) >= o.limits.Links {
		return nil
	}
	if l == nil && p.Verdict == Drop && p.Reason == reason.NoPort && o.mapping(proto) != EndpointIndependent {
		return nil
	}
	if p.Verdict != Forward {
		return fmt.Errorf("inbound to %v: verdict %d, %v", want, p.Verdict, p.Reason)
	}
	src, dst := ends(p)
	if proto == packet.ProtoICMP {
		src.Port = 0
	}
	if Remote(src) != remote || o.mapping(proto) == EndpointIndependent && Local(dst) != want || l != nil && Local(dst) != want {
		return fmt.Errorf("went from %v to %v, want %v", src, dst, want)
	}
	if l == nil {
		l = &oracleLink{proto: proto, local: Local(dst), alias: alias, remote: remote, inbound: true}
		o.add(l, 1, flags)
		return nil
	}
	l.touch(1, flags, o.now)
	return nil
}

// check compares the whole state.
func (o *oracle) check(s *Shard) error {
	s.now = o.now
	seen := map[string]int{}
	s.Links(0, 1<<20, func(l LinkInfo) bool {
		seen[fmt.Sprint(l.Proto, l.Local, l.Alias, l.Remote, l.State, l.ExpiresIn)]++
		return true
	})
	for _, l := range o.links {
		if o.dead(l, 0) {
			continue
		}
		k := fmt.Sprint(l.proto, l.local, l.alias, l.remote, l.state, clock.Ticks(o.limit(l))-o.now.Since(l.last))
		if seen[k]--; seen[k] < 0 {
			return fmt.Errorf("link lost or changed: %s; shard has %v", k, seen)
		}
	}
	for k, c := range seen {
		if c != 0 {
			return fmt.Errorf("link too many: %s", k)
		}
	}
	return nil
}

func TestAgainstOracle(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		mode := func(name string) Behaviour { return Behaviour(rapid.IntRange(0, 2).Draw(rt, name)) }
		w := newWorld(t, func(o *Options) {
			r := &o.Rules
			r.Mapping, r.Filtering = PerProtocol{mode("mu"), mode("mt"), mode("mi")}, PerProtocol{mode("fu"), mode("ft"), mode("fi")}
			r.PortRange = PortRange{2000, uint16(rapid.IntRange(2003, 2020).Draw(rt, "high"))}
			r.SamePorts = rapid.Bool().Draw(rt, "same")
			o.Limits.Links = rapid.IntRange(10, 200).Draw(rt, "links")
			o.Limits.LinksPerHost = rapid.SampledFrom([]int{0, 0, 20}).Draw(rt, "perhost")
			if rapid.Bool().Draw(rt, "redirect") {
				r.RedirectPort = []RedirectPort{{Proto: packet.ProtoUDP, Public: Alias{pub1, 2001}, Local: []Local{{prv1, 2000}}}}
			}
			o.Now = clock.Tick(rapid.Uint32().Draw(rt, "now"))
			o.Shared = true
		})
		o := &oracle{rules: w.s.rules, limits: w.s.limits, now: w.now}
		defer func() { _ = w.s.Close() }()
		flagSets := []uint8{syn, syn | ack, ack, ack, fin | ack, rst, ack | rst}
		for range rapid.IntRange(1, 300).Draw(rt, "steps") {
			switch rapid.IntRange(0, 99).Draw(rt, "handover") { // to another process: nobody may notice
			case 0, 1:
				w.s = handOver(t, w.s)
			case 2:
				w.s = rebuild(t, w.s)
				o.recycled = 0
			}
			local := Local{prv1 + packet.Addr(rapid.IntRange(0, 3).Draw(rt, "host")), uint16(rapid.IntRange(2000, 2006).Draw(rt, "lport"))}
			remote := Remote{ext1 + packet.Addr(rapid.IntRange(0, 2).Draw(rt, "remote")), uint16(rapid.IntRange(1, 3).Draw(rt, "rport"))}
			alias := Alias{pub1, uint16(rapid.IntRange(2000, 2010).Draw(rt, "aport"))}
			proto := rapid.SampledFrom([]uint8{6, 6, 17, 1}).Draw(rt, "proto")
			inwards := rapid.Bool().Draw(rt, "in")
			b := packet.Build{Src: local.Addr, SrcPort: local.Port, Dst: remote.Addr, DstPort: remote.Port, Flags: rapid.SampledFrom(flagSets).Draw(rt, "flags")}
			if inwards {
				b.Src, b.SrcPort, b.Dst, b.DstPort = remote.Addr, remote.Port, alias.Addr, alias.Port
			}
			var frame []byte
			switch proto {
			case packet.ProtoTCP:
				frame = b.TCP([]byte("odd"))
			case packet.ProtoUDP:
				b.NoChecksum = local.Port%2 == 0
				frame = b.UDP([]byte("odd"))
			default:
				remote.Port = 0
				if inwards {
					b.SrcPort = alias.Port
				}
				frame = b.Echo(inwards, 7, []byte("odd"))
			}
			side := Inside
			if inwards {
				side = Outside
			}
			p := w.send(side, frame)
			err := o.recycle(w.s)
			switch {
			case err != nil:
			case inwards:
				err = o.inbound(p, alias, remote)
			default:
				err = o.outbound(p, local, remote)
			}
			if err == nil {
				err = o.check(w.s)
			}
			if err != nil {
				rt.Fatalf("proto %d flags %02x in %v local %v alias %v remote %v: %v", proto, b.Flags, inwards, local, alias, remote, err)
			}
			if d := rapid.SampledFrom([]time.Duration{0, 0, 0, time.Millisecond, time.Second, time.Minute, 5 * time.Minute}).Draw(rt, "wait"); d > 0 {
				w.pass(d)
				o.now = w.now
				o.links = slices.DeleteFunc(o.links, func(l *oracleLink) bool { return o.dead(l, 2000) })
			}
			for _, ok := w.s.NextReleased(); ok; _, ok = w.s.NextReleased() {
			}
		}
		w.pass(3 * time.Hour)
		w.wantEmpty()
	})
}

// wantEmpty checks that everything came back: links, index slots, groups, mappings, ports, hosts, timers.
func (w *world) wantEmpty() {
	w.t.Helper()
	s := w.s
	left := map[string]int{
		"links": s.live, "index slots": s.exact.used, "groups": s.groups.index.used, "mappings": s.local.used, "hosts": s.hosts.live,
		"host slots": s.hosts.index.used, "timers": s.main.count + s.closing.count, "holds": int(s.holds.tail - s.holds.head),
	}
	for _, a := range s.owners.Aliases() {
		for row := range 4 {
			for port := range 65536 {
				if b := s.owners.Byte(a, lport.Row(row), uint16(port)); b != 0 && b != 255 {
					left["ports"]++
				}
			}
		}
	}
	for what, n := range left {
		if n != 0 {
			w.t.Errorf("%d %s left", n, what)
		}
	}
	nodes := 0
	for n := s.groups.trees.free; n != 0; n = s.groups.trees.nodes[n].val[0] {
		nodes++
	}
	if nodes != int(s.groups.trees.fresh)-1 {
		w.t.Errorf("%d tree nodes left", int(s.groups.trees.fresh)-1-nodes)
	}
	for _, n := range s.counters.State {
		if n != 0 {
			w.t.Errorf("state counters %v", s.counters.State)
		}
	}
}

// TestRuleChangesAgainstOracle changes rules at random under live flows: what stands stays exactly as it was, all else is
// absent at once, and everything comes back in the end.
func TestRuleChangesAgainstOracle(t *testing.T) {
	type flow struct {
		local  Local
		remote Remote
		alias  Alias
		rule   int // redirect that made it, -1: none
	}
	rapid.Check(t, func(rt *rapid.T) {
		aliases := []packet.Addr{pub1, pub2, pub9}
		redirects := []RedirectPort{
			{Proto: packet.ProtoUDP, Public: Alias{pub1, 80}, Local: []Local{{prv1, 80}}},
			{Proto: packet.ProtoUDP, Public: Alias{pub1, 80}, Remote: Remote{ext1, 0}, Local: []Local{{prv2, 81}}},
			{Proto: packet.ProtoUDP, Public: Alias{pub2, 80}, Local: []Local{{prv1, 82}, {prv2, 82}}},
		}
		choice := func(r *Rules) (rules []int) {
			r.Alias, r.RedirectPort = nil, nil
			for _, a := range aliases {
				if rapid.IntRange(0, 3).Draw(rt, "alias") > 0 {
					r.Alias = append(r.Alias, a)
				}
			}
			for i, d := range redirects {
				if rapid.Bool().Draw(rt, "redirect") {
					r.RedirectPort = append(r.RedirectPort, d)
					rules = append(rules, i)
				}
			}
			r.MSSClamp = rapid.IntRange(0, 2).Draw(rt, "other")
			return rules
		}
		var rules []int
		w := newWorld(t, func(o *Options) { rules = choice(&o.Rules); o.Limits.Links, o.Shared = 40, true })
		defer func() { _ = w.s.Close() }()
		flows := map[string]*flow{} // by what identifies it from outside
		for range rapid.IntRange(1, 120).Draw(rt, "steps") {
			switch rapid.IntRange(0, 6).Draw(rt, "what") {
			case 6:
				w.s = handOver(t, w.s)
			case 0:
				r := w.s.rules
				rules = choice(&r)
				if err := w.s.SetRules(r, w.now); err != nil {
					rt.Fatal(err)
				}
				for k, f := range flows {
					// Links on an address that leaves the pool die; those of a redirect that goes, too.
					gone := f.rule >= 0 && !slices.Contains(rules, f.rule) || f.rule < 0 && !slices.Contains(r.Alias, f.alias.Addr)
					if gone {
						delete(flows, k)
					}
				}
				// An address that left the pool while a redirect still publishes it takes that redirect's links along.
				for k, f := range flows {
					p := &Packet{Data: udp(f.remote.Addr, f.remote.Port, f.alias.Addr, f.alias.Port), Side: Outside}
					packet.Parse(p.Data, &p.H)
					if _, ok := w.s.Lookup(p); !ok && f.rule >= 0 && !slices.Contains(r.Alias, f.alias.Addr) {
						delete(flows, k)
					}
				}
			case 1:
				w.s.Advance(w.now, rapid.IntRange(1, 20).Draw(rt, "budget"))
			case 2, 3:
				f := &flow{local: Local{prv1 + packet.Addr(rapid.IntRange(2, 5).Draw(rt, "host")), uint16(rapid.IntRange(5000, 5003).Draw(rt, "port"))},
					remote: Remote{ext2, uint16(rapid.IntRange(1, 3).Draw(rt, "rport"))}, rule: -1}
				p := w.send(Inside, udp(f.local.Addr, f.local.Port, f.remote.Addr, f.remote.Port))
				if len(w.s.rules.Alias) == 0 && p.Verdict != Forward {
					continue
				}
				if p.Verdict == Answer && p.Reason == reason.TableFull && len(flows) >= 40 {
					continue
				}
				if p.Verdict != Forward {
					rt.Fatalf("outbound verdict %d %v, %d flows", p.Verdict, p.Reason, len(flows))
				}
				src, _ := ends(p)
				f.alias = Alias(src)
				k := fmt.Sprint(f.remote, f.alias)
				if old := flows[k]; old != nil && old.local != f.local {
					rt.Fatalf("%v shares %v with %v", f.local, f.alias, old.local)
				}
				for _, old := range flows {
					if old.local == f.local && old.alias != f.alias && old.rule < 0 {
						rt.Fatalf("mapping of %v moved from %v to %v", f.local, old.alias, f.alias)
					}
				}
				flows[k] = f
			case 4:
				at := rapid.IntRange(0, 1).Draw(rt, "pub")
				f := &flow{remote: Remote{[]packet.Addr{ext1, ext2}[rapid.IntRange(0, 1).Draw(rt, "client")], uint16(rapid.IntRange(10, 13).Draw(rt, "rport"))},
					alias: Alias{aliases[at], 80}}
				k := fmt.Sprint(f.remote, f.alias)
				f.rule = map[bool]int{true: 2, false: 0}[at == 1]
				if at == 0 && f.remote.Addr == ext1 && slices.Contains(rules, 1) {
					f.rule = 1
				}
				p := w.send(Outside, udp(f.remote.Addr, f.remote.Port, f.alias.Addr, f.alias.Port))
				old := flows[k]
				switch {
				case old == nil && !slices.Contains(rules, f.rule):
					if p.Verdict == Forward {
						rt.Fatalf("%v let in without a redirect", f)
					}
					continue
				case old == nil && p.Verdict == Drop && p.Reason == reason.TableFull && len(flows) >= 40:
					continue
				}
				if p.Verdict != Forward {
					rt.Fatalf("inbound %v (was %v): verdict %d %v", f, old, p.Verdict, p.Reason)
				}
				_, dst := ends(p)
				if f.local = Local(dst); old == nil {
					flows[k] = f
				} else if old.local != f.local {
					rt.Fatalf("flow moved from %v to %v", old.local, f.local)
				}
			case 5:
				for _, f := range flows {
					if got := w.in(udp(f.remote.Addr, f.remote.Port, f.alias.Addr, f.alias.Port)); got != f.local {
						rt.Fatalf("%v answered to %v", f, got)
					}
				}
			}
		}
		w.pass(time.Hour)
		w.wantEmpty()
	})
}
