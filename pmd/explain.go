package pmd

import (
	"errors"
	"fmt"
	"net"
	"slices"

	"pollux/internal/clock"
	"pollux/internal/packet"
	"pollux/internal/reason"
	"pollux/nat"
	"pollux/rings"
	"pollux/rtcache"
)

// Stage is one step on a packet's way, what is decided there, and why.
type Stage struct {
	Stage    string `json:"stage"` // rx | parse | steer | nat | route | tx
	Decision string `json:"decision"`
	Why      string `json:"why"`
}

// Explanation is what would become of a packet.
type Explanation struct {
	Packet  string  `json:"packet"`
	Ingress string  `json:"in"` // port
	Stages  []Stage `json:"stages"`

	// Outcome is forward, hold (until a neighbour or a first fragment comes, or an unsolicited SYN's time is over), drop, or
	// kernel (the packet is the gateway's own).
	Outcome  string `json:"outcome"`
	Reason   string `json:"reason"`    // as in show drops; none: sent on
	ICMP     string `json:"icmp"`      // TYPE/CODE of the ICMP error that the sender is sent; empty: none
	Worker   int    `json:"worker"`    // that decides; -1: none
	NewLink  bool   `json:"new_link"`  // a link would be made
	Egress   string `json:"out"`       // port; empty unless the packet is forwarded
	Src      string `json:"src"`       // as the packet leaves: "addr:port", "addr:id", "addr"
	Dst      string `json:"dst"`       //
	SrcPorts string `json:"src_ports"` // where the source port is left to chance: LOW-HIGH
	Pieces   bool   `json:"pieces"`    // it leaves in fragments
	Chance   bool   `json:"chance"`    // the outcome hangs on a choice left to chance, and this is one of the possible ones

	reason   reason.Reason
	anyAlias bool // which alias address is left to chance
}

func (x *Explanation) say(stage, decision, why string, args ...any) {
	x.Stages = append(x.Stages, Stage{stage, decision, fmt.Sprintf(why, args...)})
}

// asked is a packet that somebody asks about, on its way through the workers.
type asked struct {
	names    []string                                                  // of ports
	steering *Steering                                                 // nil: one worker
	do       func(worker int, f func(w *Worker, now clock.Tick)) error // between two bursts of a worker
	x        *Explanation
	p        nat.Packet // as it is in the present pass
	first    packet.Headers
	worker   int
	before   *nat.Explanation // of the first pass of a hairpin
}

func (q *asked) end(outcome string, r reason.Reason) {
	q.x.Outcome, q.x.Reason, q.x.reason = outcome, r.String(), r
}

// explain takes the packet in q.p through what the workers do. Its frame is a copy, of which nobody else knows.
func (q *asked) explain() error {
	p := &q.p
	packet.Parse(p.Data, &p.H)
	q.x.Worker = -1
	ok := false
	if err := q.do(0, func(w *Worker, _ clock.Tick) { ok = q.parsed(w) }); err != nil || !ok {
		return err
	}
	q.first = p.H
	for {
		q.steer()
		again := false
		if err := q.do(q.worker, func(w *Worker, now clock.Tick) { again = q.translate(w, now) }); err != nil {
			return err
		}
		if !again {
			return nil
		}
	}
}

// parsed follows Worker.parse and refuse; false: the packet ends there.
func (q *asked) parsed(w *Worker) bool {
	p, h := &q.p, &q.p.H
	drop := func(r reason.Reason, why string) bool {
		q.x.say("parse", "drop", "%s", why)
		q.end("drop", r)
		return false
	}
	kernel := func(why string) bool {
		q.x.say("parse", "kernel", "%s", why)
		q.host(w)
		return false
	}
	switch {
	case len(p.Data) < packet.EthernetLen:
		return drop(reason.BadHeader, "shorter than an Ethernet header")
	case h.Kind == packet.KindARP && w.ports[p.Ingress].arp:
		q.x.say("parse", "kernel", "ARP: a request for a pool address is answered, all else is the kernel's")
		q.end("kernel", reason.ToHost)
		return false
	case p.Data[0]&1 != 0:
		return kernel("broadcast and multicast are the kernel's")
	case !w.toPort(p):
		return drop(reason.NotForUs, "the destination MAC is not the port's")
	case h.Reason != reason.None:
		return drop(h.Reason, h.Reason.Help())
	case h.Dst >= multicast && h.Dst < 240<<24, h.Dst == 0xffff_ffff:
		return kernel("multicast and broadcast are the kernel's")
	case h.Dst >= multicast:
		return drop(reason.NoRoute, "addresses from 240.0.0.0 on are nobody's")
	case h.Kind-1 >= packet.KindLaterFragment:
		return kernel("no IPv4 packet")
	}
	q.x.say("parse", "accept", "%s, %d bytes, TTL %d", describe(p.Data), h.Len, h.TTL)
	return true
}

// steer follows Worker.steer.
func (q *asked) steer() {
	h := &q.p.H
	if q.steering == nil {
		q.worker = 0
	} else if b := q.before; b != nil && b.New && b.Alias.Addr == h.Dst && b.Alias.Port == h.DstPort {
		q.x.say("steer", fmt.Sprintf("worker %d", q.worker), "by alias-port, which it has just taken")
	} else {
		to, why := q.steering.owner(&q.p)
		if int(to) != q.worker {
			q.before = nil
		}
		q.worker = int(to)
		q.x.say("steer", fmt.Sprintf("worker %d", to), "by %s", steerWhyNames[why])
	}
	q.x.Worker = q.worker
}

// translate follows the rest of the way at a worker; true: the packet goes round again, as a hairpinned one.
func (q *asked) translate(w *Worker, now clock.Tick) (again bool) {
	p := &q.p
	e := w.nat.Explain(p, q.before, now)
	q.x.NewLink = q.x.NewLink || e.New
	if e.Guess {
		q.x.SrcPorts = fmt.Sprintf("%d-%d", e.Low, e.High)
	}
	q.x.anyAlias = q.x.anyAlias || e.AnyAlias
	q.x.Chance = q.x.Chance || e.Verdict == nat.Again && e.Guess || e.AnyAlias && p.H.Kind == packet.KindOther
	said := func(decision string) { q.x.say("nat", decision, "%s", q.words(&e)) }
	switch e.Verdict {
	case nat.Again:
		if p.Hairpin {
			said("drop")
			q.end("drop", reason.Unsupported)
			return false
		}
		said("hairpin")
		q.rewrite(&e)
		q.before = &e
		p.Side, p.Hairpin, p.Directed = nat.Outside, true, false
		packet.Parse(p.Data, &p.H)
		return true
	case nat.Forward:
		said("forward")
		q.route(w, &e, now)
	case nat.Keep:
		said("hold")
		q.end("hold", reason.Held)
	case nat.Away:
		said("hand over")
		q.end("hold", reason.Held)
	case nat.Host:
		said("kernel")
		q.host(w)
	default:
		q.refused(w, &e, now)
	}
	return false
}

// words is why, and between which ends.
func (q *asked) words(e *nat.Explanation) string {
	if !e.HasSlot {
		return e.Why
	}
	alias := fmt.Sprintf("%v:%d", e.Alias.Addr, e.Alias.Port)
	if e.Guess {
		alias = fmt.Sprintf("%v:%d-%d", e.Alias.Addr, e.Low, e.High)
	}
	if e.AnyAlias {
		alias = "any of the pool, " + alias
	}
	return fmt.Sprintf("%s (local %v:%d, alias %s, remote %v:%d)", e.Why, e.Local.Addr, e.Local.Port, alias, e.Remote.Addr, e.Remote.Port)
}

// rewrite makes the frame what it is after the first pass of a hairpin.
func (q *asked) rewrite(e *nat.Explanation) {
	p := &q.p
	var quote packet.Headers
	if p.H.Kind == packet.KindICMPError && packet.ParseQuoted(p.Data, &p.H, &quote) && e.Link != nil {
		packet.SetEndpoints(p.Data, &p.H, e.Src, 0, e.Dst, 0)
		packet.SetQuoted(p.Data, &p.H, &quote, quote.Src, quote.SrcPort, e.Link.Alias.Addr, e.Link.Alias.Port)
		return
	}
	packet.SetEndpoints(p.Data, &p.H, e.Src, e.SrcPort, e.Dst, e.DstPort)
}

// refused follows Worker.judge for what the translator drops.
func (q *asked) refused(w *Worker, e *nat.Explanation, now clock.Tick) {
	p := &q.p
	switch e.Reason {
	case reason.NoMapping:
		if w.table.Local(p.H.Dst) {
			q.x.say("nat", "kernel", "%s; but the destination is an address of the gateway's kernel", e.Why)
			q.host(w)
			return
		}
	case reason.NoRoute:
		if _, v, why := w.routes.Peek(nil, p.Ingress, q.first.Src, p.H.Dst, 0); v != rtcache.OK && v != rtcache.Unresolved {
			q.x.say("nat", "no route", "%s", e.Why)
			q.unroutable(w, v, why, now)
			return
		}
	}
	if e.Verdict == nat.Answer {
		q.answer(w, "nat", e.Why, e.Reason, e.ICMPType, e.ICMPCode, now)
		return
	}
	q.x.say("nat", "drop", "%s", e.Why)
	q.end("drop", e.Reason)
}

// host follows Worker.host.
func (q *asked) host(w *Worker) {
	r := reason.ToHost
	if w.o.Punt != nil {
		r = reason.Punted
	}
	q.end("kernel", r)
}

// answer follows Worker.answer.
func (q *asked) answer(w *Worker, stage, why string, r reason.Reason, icmpType, code uint8, now clock.Tick) {
	q.end("drop", r)
	if told, how := q.told(w, now); !told {
		q.x.say(stage, "drop", "%s; the sender is not told: %s", why, how)
		return
	}
	q.x.ICMP = fmt.Sprintf("%d/%d", icmpType, code)
	q.x.say(stage, "drop", "%s; the sender is told by ICMP type %d code %d", why, icmpType, code)
}

// told follows Worker.sendError.
func (q *asked) told(w *Worker, now clock.Tick) (yes bool, why string) {
	p, sent := &q.p, &q.first
	if !packet.MayAnswer(sent, p.Data) {
		return false, "about such a packet no ICMP error may be sent"
	}
	if w.errorSource(p.Ingress, sent.Dst) == 0 {
		return false, "the gateway has no address to send an ICMP error from"
	}
	if _, v, _ := w.routes.Peek(nil, p.Ingress, sent.Src, sent.Src, 0); v != rtcache.OK && v != rtcache.Unresolved {
		return false, "no way leads to it"
	}
	if limit := w.errors; !limit.allow(sent.Src, now) { // a copy
		return false, "too many ICMP errors were sent within a second"
	}
	if w.pool.Len() == 0 {
		return false, "no frame is free"
	}
	return true, ""
}

// unroutable follows Worker.unroutable.
func (q *asked) unroutable(w *Worker, v rtcache.Verdict, why string, now clock.Tick) {
	switch v {
	case rtcache.Local:
		q.x.say("route", "kernel", "%s", why)
		q.host(w)
	case rtcache.ReversePath:
		q.x.say("route", "drop", "%s", why)
		q.end("drop", reason.ReversePath)
	case rtcache.Blackhole:
		q.x.say("route", "drop", "%s", why)
		q.end("drop", reason.NoRoute)
	case rtcache.Prohibit:
		q.answer(w, "route", why, reason.NoRoute, packet.ICMPUnreachable, codeProhibited, now)
	case rtcache.Unreachable:
		q.answer(w, "route", why, reason.NoRoute, packet.ICMPUnreachable, codeHost, now)
	case rtcache.Failed:
		q.answer(w, "route", why, reason.NoNeighbour, packet.ICMPUnreachable, codeHost, now)
	default:
		q.answer(w, "route", why, reason.NoRoute, packet.ICMPUnreachable, codeNet, now)
	}
}

// route follows Worker.route, detour and send.
func (q *asked) route(w *Worker, e *nat.Explanation, now clock.Tick) {
	p := &q.p
	dst, hash := e.Dst, flowHash(&p.H)
	if p.Side == nat.Inside {
		dst = p.H.Dst
	}
	slot := e.Slot
	if !e.HasSlot {
		if known := &w.plain.v4[hash%plainFlows]; known.src == q.first.Src && known.dst == dst && known.hash == hash {
			slot = known.slot
		}
	}
	hop, v, why := w.routes.Peek(&slot, p.Ingress, q.first.Src, dst, hash)
	switch v {
	case rtcache.OK:
	case rtcache.Unresolved:
		q.wait(w, hop, why)
		return
	default:
		q.unroutable(w, v, why, now)
		return
	}
	mac := hop.MAC()
	q.x.say("route", q.names[hop.Port()], "%s: next hop %v, MTU %d", why, net.HardwareAddr(mac[:]), hop.MTU())
	q.transmit(w, e, hop, now)
}

// wait follows Worker.wait.
func (q *asked) wait(w *Worker, hop *rtcache.Hop, why string) {
	same := 0
	for _, other := range w.hold.hops[:w.hold.n] {
		if other == hop {
			same++
		}
	}
	if same == HoldPerHop || w.hold.n == len(w.hold.held) {
		q.x.say("route", "drop", "%s, but as many packets as there is room for wait already", why)
		q.end("drop", reason.NoNeighbour)
		return
	}
	q.x.say("route", "hold", "%s", why)
	q.end("hold", reason.Held)
}

// transmit follows Worker.send.
func (q *asked) transmit(w *Worker, e *nat.Explanation, hop *rtcache.Hop, now clock.Tick) {
	p, mtu := &q.p, hop.MTU()
	switch {
	case int(p.H.Len) <= mtu:
		q.x.say("tx", "send", "%d bytes fit the MTU", p.H.Len)
	case p.H.Flags&packet.FlagDF == 0:
		q.x.say("tx", "send", "%d bytes are more than the MTU: it leaves in fragments", p.H.Len)
		q.x.Pieces = true
	default:
		q.answer(w, "tx", fmt.Sprintf("%d bytes are more than the MTU of %d, and the packet is not to be fragmented", p.H.Len, mtu),
			reason.MTUExceeded, packet.ICMPUnreachable, codeFragmentationNeeded, now)
		return
	}
	q.end("forward", reason.None)
	q.x.Egress = q.names[hop.Port()]
	ports := p.H.Kind == packet.KindTCP || p.H.Kind == packet.KindUDP || p.H.Kind == packet.KindICMPQuery
	end := func(a packet.Addr, port uint16) string {
		if !ports {
			return a.String()
		}
		return fmt.Sprintf("%v:%d", a, port)
	}
	q.x.Src, q.x.Dst = end(e.Src, e.SrcPort), end(e.Dst, e.DstPort)
}

// portIndex finds a port by name.
func (g *Gateway) portIndex(name string) (int, error) {
	var names []string
	for i, p := range g.ports {
		if p.name == name {
			return i, nil
		}
		names = append(names, p.name)
	}
	return 0, fmt.Errorf("there is no port %q; allowed: one of %v", name, names)
}

// ingressOf guesses by which port a packet comes in: the one that leads back to its source. An address of ours, or one that no
// route leads to, comes from outside.
func (g *Gateway) ingressOf(src packet.Addr) (int, string) {
	if route, ok := g.table.RouteTo(src.Netip()); ok && len(route.Paths) > 0 {
		return int(route.Paths[0].Port), "the route back to the source leaves by it"
	}
	i := slices.IndexFunc(g.ports, func(p *gatewayPort) bool { return p.side == nat.Outside })
	return i, "no route leads back to the source by a port: taken as from outside"
}

// Explain says what the gateway would do with a frame that comes in by a port (empty: by the one that leads back to its source),
// stage by stage, without sending it and without a trace. It follows the code that packets go through, by the tables that they
// meet. A destination MAC of zeros stands for the port's own. The frame is not changed.
func (g *Gateway) Explain(frame []byte, in string) (Explanation, error) {
	x := Explanation{Packet: describe(frame), Worker: -1}
	if len(frame) < packet.EthernetLen || len(frame) > packet.EthernetLen+0xffff {
		return x, fmt.Errorf("the packet has %d bytes; allowed: a frame of %d to %d", len(frame), packet.EthernetLen, packet.EthernetLen+0xffff)
	}
	data := slices.Clone(frame)
	var h packet.Headers
	packet.Parse(slices.Clone(data), &h)
	if h.Kind == packet.KindIPv6 && g.o.IPv6Forward {
		return x, errors.New("IPv6 is not translated and goes by its route alone: see show routes --to ADDRESS")
	}
	port, why := 0, "named"
	if in == "" {
		port, why = g.ingressOf(h.Src)
	} else {
		var err error
		if port, err = g.portIndex(in); err != nil {
			return x, err
		}
	}
	mac := g.table.Ports()[port].MAC
	if [6]byte(data[:6]) == [6]byte{} {
		copy(data, mac[:])
	}
	x.Ingress = g.ports[port].name
	cause, err := g.judge(port, mac[:], data)
	if err != nil {
		return x, err
	}
	x.say("rx", cause.String(), "port %s, %s (%s); %s", x.Ingress, g.ports[port].side, why, cause.Help())
	if cause != rings.CauseToWorker {
		if x.Outcome, x.Reason = "kernel", reason.None.String(); cause == rings.CauseARPAnswered {
			x.Outcome = "answer"
		}
		return x, nil
	}
	q := asked{x: &x, steering: g.steering, p: nat.Packet{Data: data, Ingress: uint16(port), Side: g.ports[port].side}}
	for _, p := range g.ports {
		q.names = append(q.names, p.name)
	}
	q.do = func(worker int, f func(*Worker, clock.Tick)) error {
		w := g.workers[worker]
		return w.loop.Do(func(now clock.Tick) bool { f(w.worker, now); return true })
	}
	return x, q.explain()
}

// judge asks an instance of the XDP program that is attached nowhere.
func (g *Gateway) judge(port int, mac net.HardwareAddr, frame []byte) (cause rings.Cause, err error) {
	g.life.RLock()
	defer g.life.RUnlock()
	if g.gone {
		return 0, ErrEnded
	}
	p := g.ports[port]
	j, err := rings.NewJudge(rings.ProgramOptions{Tables: g.tables, Number: port, MAC: mac, ForwardIPv6: g.o.IPv6Forward, ARPByWorker: !rings.CanSendBack(p.name)})
	if err != nil {
		return 0, err
	}
	defer j.Close()
	done := make(chan struct{})
	go func() { // on a thread that is in the gateway's namespace, where sockets are looked up
		defer close(done)
		if err = g.space.enter(); err == nil {
			cause, err = j.Decide(p.ifindex, frame)
		}
	}()
	<-done
	return cause, err
}
