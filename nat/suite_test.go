package nat_test

import (
	"bytes"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"pollux/internal/clock"
	"pollux/internal/packet"
	"pollux/internal/reason"
	"pollux/nat"
)

func ip(s string) packet.Addr { return packet.AddrFrom(netip.MustParseAddr(s)) }

// The hosts of the libalias tests.
var (
	masq = ip("1.2.3.4")        // the alias address
	pub  = ip("1.2.222.173")    // public: a second alias, or a remote
	pub2 = ip("1.2.222.174")    // another public one
	prv1 = ip("10.0.222.173")   // inside
	prv2 = ip("172.16.222.173") // inside
	prv3 = ip("192.168.222.173")
	cgn  = ip("100.64.222.173") // inside, shared address space
	ext  = ip("18.52.86.120")   // remote
)

// end is an address with a port (an ICMP id; 0 for protocols without).
type end struct {
	addr packet.Addr
	port uint16
}

func (e end) String() string { return fmt.Sprintf("%v:%d", e.addr, e.port) }

// rig is a shard under test with its clock. Everything goes through the public API.
type rig struct {
	t     testing.TB
	s     *nat.Shard
	rules nat.Rules
	now   clock.Tick
	freed []nat.Released
}

// newRig makes a shard with SPEC part C's defaults and the alias address masq; change adapts the options.
func newRig(t testing.TB, change func(*nat.Options)) *rig {
	t.Helper()
	o := nat.Options{Rules: nat.DefaultRules(), Limits: nat.Limits{Links: 4096, Fragments: 64}, Seed: [32]byte{7}, Now: 0xffffe000}
	o.Rules.Alias = []packet.Addr{masq}
	if change != nil {
		change(&o)
	}
	s, err := nat.New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return &rig{t: t, s: s, rules: o.Rules, now: o.Now}
}

// libalias turns the defaults into what a libalias instance does after Init: everything endpoint-dependent, inbound
// flows let in unless denied, ports from 32768, a random port unless SamePorts is asked for.
func libalias(o *nat.Options) {
	r := &o.Rules
	r.DenyIncoming, r.SamePorts, r.ResetOnAddressChange = false, false, false
	r.PortRange = nat.PortRange{Low: 32768, High: 65535}
	dep := nat.AddressAndPortDependent
	r.Mapping = nat.PerProtocol{UDP: dep, TCP: dep, ICMP: dep}
}

// both applies several changes.
func both(f ...func(*nat.Options)) func(*nat.Options) {
	return func(o *nat.Options) {
		for _, g := range f {
			g(o)
		}
	}
}

// set changes the rules at run time.
func (r *rig) set(change func(*nat.Rules)) {
	r.t.Helper()
	change(&r.rules)
	if err := r.s.SetRules(r.rules, r.now); err != nil {
		r.t.Fatal(err)
	}
}

// pass lets time go by with its timers; what the shard releases is collected.
func (r *rig) pass(d time.Duration) {
	r.t.Helper()
	stop := r.now.Add(d)
	for {
		r.advance()
		if !r.now.Before(stop) {
			return
		}
		step := stop
		if due, ok := r.s.Due(); ok && due.After(r.now) && due.Before(stop) {
			step = due
		} else if next := r.now.Add(100 * time.Millisecond); next.Before(stop) {
			step = next
		}
		r.now = step
	}
}

// advance runs all timers that are due now.
func (r *rig) advance() {
	for range 1 << 20 {
		n := r.s.Advance(r.now, 1000)
		for {
			f, ok := r.s.NextReleased()
			if !ok {
				break
			}
			r.freed = append(r.freed, f)
		}
		if n == 0 {
			return
		}
	}
	r.t.Fatal("Advance never comes to an end")
}

// result is what became of one packet.
type result struct {
	nat.Packet
	sent []byte // as it went in
	h    packet.Headers
}

// src and dst are the endpoints after translation.
func (p *result) src() end { return end{p.h.Src, p.h.SrcPort} }
func (p *result) dst() end { return end{p.h.Dst, p.h.DstPort} }

// send translates one frame as a worker would, second pass of a hairpin included. A packet that goes on must have right
// checksums and one TTL step less, any other must be as it was.
func (r *rig) send(side nat.Side, frame []byte) *result {
	r.t.Helper()
	return r.sendAs(side, frame, 1)
}

// sendAs names the frame for NextReleased.
func (r *rig) sendAs(side nat.Side, frame []byte, name uint64) *result {
	r.t.Helper()
	b := []nat.Packet{{Data: bytes.Clone(frame), Side: side, Frame: name}}
	for range 2 {
		packet.Parse(b[0].Data, &b[0].H)
		r.s.Touch(b)
		r.s.Translate(b, r.now)
		if b[0].Verdict != nat.Again {
			break
		}
		if b[0].Side != nat.Inside {
			r.t.Fatal("Again for a packet from outside")
		}
		b[0] = nat.Packet{Data: b[0].Data, Side: nat.Outside, Hairpin: true, Frame: name}
	}
	p := &result{Packet: b[0], sent: frame}
	packet.Parse(bytes.Clone(p.Data), &p.h)
	switch {
	case p.Verdict == nat.Forward:
		if err := packet.Verify(p.Data); err != nil {
			r.t.Errorf("after translation: %v", err)
		}
		var was packet.Headers
		packet.Parse(bytes.Clone(frame), &was)
		if p.h.TTL != was.TTL-1 {
			r.t.Errorf("TTL went from %d to %d", was.TTL, p.h.TTL)
		}
	case p.Verdict == nat.Again:
		r.t.Fatal("Again on the second pass")
	case !p.Hairpin && !bytes.Equal(p.Data, completed(frame)):
		r.t.Errorf("verdict %d, reason %v: the frame was changed", p.Verdict, p.Reason)
	}
	return p
}

// completed is a frame as Parse leaves it: a half-made checksum completed.
func completed(frame []byte) []byte {
	var h packet.Headers
	b := bytes.Clone(frame)
	packet.Parse(b, &h)
	return b
}

// goes sends a frame that must be forwarded.
func (r *rig) goes(side nat.Side, frame []byte) *result {
	r.t.Helper()
	p := r.send(side, frame)
	if p.Verdict != nat.Forward {
		r.t.Fatalf("%v %v -> %v: verdict %d, reason %v; want it forwarded", side, p.src(), p.dst(), p.Verdict, p.Reason)
	}
	return p
}

// out sends a frame from inside and returns the alias endpoint it leaves with; the remote must stay.
func (r *rig) out(frame []byte) end {
	r.t.Helper()
	p := r.goes(nat.Inside, frame)
	var was packet.Headers
	packet.Parse(bytes.Clone(frame), &was)
	if p.h.Kind != packet.KindICMPQuery && p.dst() != (end{was.Dst, was.DstPort}) || p.h.Dst != was.Dst {
		r.t.Errorf("the destination became %v", p.dst())
	}
	return p.src()
}

// in sends a frame from outside and returns the local endpoint it goes to; the remote must stay.
func (r *rig) in(frame []byte) end {
	r.t.Helper()
	p := r.goes(nat.Outside, frame)
	var was packet.Headers
	packet.Parse(bytes.Clone(frame), &was)
	if p.h.Kind != packet.KindICMPQuery && p.src() != (end{was.Src, was.SrcPort}) || p.h.Src != was.Src {
		r.t.Errorf("the source became %v", p.src())
	}
	return p.dst()
}

// wantOut and wantIn say where a frame must go.
func (r *rig) wantOut(frame []byte, want end) {
	r.t.Helper()
	if got := r.out(frame); got != want {
		r.t.Errorf("left with %v, want %v", got, want)
	}
}

func (r *rig) wantIn(frame []byte, want end) {
	r.t.Helper()
	if got := r.in(frame); got != want {
		r.t.Errorf("went to %v, want %v", got, want)
	}
}

// fails sends a frame that must not be forwarded, for a reason (None: any).
func (r *rig) fails(side nat.Side, frame []byte, why reason.Reason) *result {
	r.t.Helper()
	p := r.send(side, frame)
	if p.Verdict == nat.Forward {
		r.t.Errorf("%v: forwarded as %v -> %v; want it refused (%v)", side, p.src(), p.dst(), why)
	} else if why != reason.None && p.Reason != why {
		r.t.Errorf("%v: reason %v, want %v", side, p.Reason, why)
	}
	return p
}

// links counts the links alive.
func (r *rig) links() int {
	n := 0
	for c := uint32(0); ; {
		c = r.s.Links(c, 64, func(nat.LinkInfo) bool { n++; return true })
		if c == 0 {
			return n
		}
	}
}

// find returns the links that a test asks for.
func (r *rig) find(want func(nat.LinkInfo) bool) (list []nat.LinkInfo) {
	for c := uint32(0); ; {
		c = r.s.Links(c, 1<<20, func(l nat.LinkInfo) bool {
			if want(l) {
				list = append(list, l)
			}
			return true
		})
		if c == 0 {
			return list
		}
	}
}

// state returns the state of the only link.
func (r *rig) state() nat.State {
	r.t.Helper()
	all := r.find(func(nat.LinkInfo) bool { return true })
	if len(all) != 1 {
		r.t.Fatalf("%d links, want one", len(all))
	}
	return all[0].State
}

func udp(src packet.Addr, sport uint16, dst packet.Addr, dport uint16) []byte {
	return packet.Build{Src: src, SrcPort: sport, Dst: dst, DstPort: dport}.UDP([]byte("twenty-two bytes, UDP."))
}

func tcp(flags uint8, src packet.Addr, sport uint16, dst packet.Addr, dport uint16) []byte {
	return packet.Build{Src: src, SrcPort: sport, Dst: dst, DstPort: dport, Flags: flags}.TCP(nil)
}

func ping(src packet.Addr, id uint16, dst packet.Addr) []byte {
	return packet.Build{Src: src, SrcPort: id, Dst: dst}.Echo(false, 1, []byte("ping"))
}

func pong(src packet.Addr, id uint16, dst packet.Addr) []byte {
	return packet.Build{Src: src, SrcPort: id, Dst: dst}.Echo(true, 1, []byte("ping"))
}

func proto(number uint8, src, dst packet.Addr) []byte {
	return packet.Build{Src: src, Dst: dst}.IP(number, []byte("payload of 21 bytes.."))
}

// icmpError is an error from somebody about a packet (a frame) that arrived there.
func icmpError(from, to packet.Addr, icmpType, code uint8, rest uint32, about []byte) []byte {
	quote := about[packet.EthernetLen:]
	return packet.Build{Src: from, Dst: to}.ICMP(icmpType, code, rest, quote[:min(len(quote), 28)])
}

// flow is a TCP connection seen through the NAT.
type flow struct {
	r             *rig
	local, remote end
	alias         end
}

const (
	syn = packet.TCPSyn
	ack = packet.TCPAck
	fin = packet.TCPFin
	rst = packet.TCPRst
)

// open makes a connection from inside: three packets.
func (r *rig) open(local, remote end) *flow {
	r.t.Helper()
	f := &flow{r: r, local: local, remote: remote}
	f.alias = f.out(syn)
	f.in(syn | ack)
	f.out(ack)
	return f
}

func (f *flow) out(flags uint8) end {
	f.r.t.Helper()
	return f.r.out(tcp(flags, f.local.addr, f.local.port, f.remote.addr, f.remote.port))
}

func (f *flow) in(flags uint8) end {
	f.r.t.Helper()
	got := f.r.in(tcp(flags, f.remote.addr, f.remote.port, f.alias.addr, f.alias.port))
	if got != f.local {
		f.r.t.Errorf("went to %v, want %v", got, f.local)
	}
	return got
}
