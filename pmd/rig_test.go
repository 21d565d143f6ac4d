package pmd

import (
	"encoding/binary"
	"net/netip"
	"testing"

	"pollux/internal/clock"
	"pollux/internal/packet"
	"pollux/internal/reason"
	"pollux/nat"
	"pollux/rings"
	"pollux/rtcache"
)

// The world of the tests: hosts of 10.0.0.0/8 behind port 0, all else behind port 1.
const (
	inPort  = 0
	outPort = 1
)

var (
	host1   = addr("10.0.0.2")
	host2   = addr("10.0.0.3")
	server  = addr("198.51.100.7")
	alias1  = addr("203.0.113.1")
	inside  = addr("10.255.255.1") // the gateway's own
	outside = addr("203.0.113.254")

	inMAC   = [6]byte{2, 0, 0, 0, 0, 1}
	outMAC  = [6]byte{2, 0, 0, 0, 1, 1}
	peerMAC = [6]byte{2, 0, 0, 0, 0, 0xfe}
)

func addr(s string) packet.Addr { return packet.AddrFrom(netip.MustParseAddr(s)) }

// rig is a worker with two in-memory ports and static routes.
type rig struct {
	t      testing.TB
	umem   *rings.UMEM
	pool   *rings.Pool
	table  *rtcache.Table
	w      *Worker
	ports  [2]*MemPort
	sent   [2][][]byte // what left by each port
	frames int
	now    clock.Tick
	punted [][]byte
	refuse bool // the punter is over its limit
}

type rigOptions struct {
	frames   int
	rules    func(*nat.Rules)
	routes   func(*rtcache.StaticOptions)
	links    int
	punt     bool
	silent   bool // do not keep what is sent
	ring     int
	chunk    int
	anyMAC   bool
	finished func(uint64, []byte, reason.Reason, bool)
	options  func(*nat.Options)
	ipv6     bool // forward it: 2001:db8:1::/48 is inside
}

func newRig(t testing.TB, o rigOptions) *rig {
	t.Helper()
	if o.frames == 0 {
		o.frames = 4096
	}
	if o.links == 0 {
		o.links = 4096
	}
	if o.chunk == 0 {
		o.chunk = 4096
	}
	if o.ring == 0 {
		o.ring = 1024
	}
	r := &rig{t: t, frames: o.frames, now: 1000}
	var err error
	check := func() {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	r.umem, err = rings.NewUMEM(rings.UMEMOptions{Frames: o.frames, ChunkSize: o.chunk, HugePages: true})
	check()
	t.Cleanup(func() { r.umem.Close() })
	r.pool, err = r.umem.NewPool(o.frames)
	check()
	routes := rtcache.StaticOptions{
		Ports: []rtcache.Port{
			{Name: "in", Inside: true, MAC: inMAC, MTU: 1500, Addr: inside},
			{Name: "out", MAC: outMAC, MTU: 1500, Addr: outside},
		},
		NextHops: [][6]byte{peerMAC, peerMAC},
		Routes:   []rtcache.StaticRoute{{Prefix: netip.MustParsePrefix("10.0.0.0/8"), Port: inPort}},
	}
	if o.ipv6 {
		routes.Ports[inPort].AddrV6, routes.Ports[outPort].AddrV6 = insideV6, outsideV6
		routes.Routes = append(routes.Routes, rtcache.StaticRoute{Prefix: netip.MustParsePrefix("2001:db8:1::/48"), Port: inPort})
	}
	if o.routes != nil {
		o.routes(&routes)
	}
	r.table, err = rtcache.NewStatic(routes)
	check()
	rules := nat.DefaultRules()
	rules.Alias = []packet.Addr{alias1}
	if o.rules != nil {
		o.rules(&rules)
	}
	no := nat.Options{
		Rules: rules, Limits: nat.Limits{Links: o.links, Fragments: 256}, Workers: 1,
		SideOf: SideOf(r.table), Now: r.now,
	}
	if o.options != nil {
		o.options(&no)
	}
	shard, err := nat.New(no)
	check()
	t.Cleanup(func() { shard.Close() })
	wo := WorkerOptions{UMEM: r.umem, Pool: r.pool, NAT: shard, Routes: r.table.View(), Table: r.table, Aliases: Aliases(&rules), Finished: o.finished, IPv6Forward: o.ipv6}
	if o.punt {
		wo.Punt = r
	}
	for i, mac := range [][6]byte{inMAC, outMAC} {
		r.ports[i] = NewMemPort(r.umem, o.ring)
		if !o.silent {
			r.ports[i].Out = func(f []byte) { r.sent[i] = append(r.sent[i], append([]byte(nil), f...)) }
		}
		side := nat.Inside
		if i == outPort {
			side = nat.Outside
		}
		wo.Ports = append(wo.Ports, WorkerPort{Port: r.ports[i], Side: side, MAC: mac, AnyMAC: o.anyMAC})
	}
	r.w, err = NewWorker(wo)
	check()
	return r
}

// Punt makes the rig a Punter.
func (r *rig) Punt(frame []byte, ingress uint16) bool {
	if r.refuse {
		return false
	}
	r.punted = append(r.punted, append([]byte(nil), frame...))
	return true
}

// push lets a port receive frames; their destination MAC is the port's unless it is set.
func (r *rig) push(port int, frames ...[]byte) {
	r.t.Helper()
	for _, f := range frames {
		if _, ok := r.ports[port].Push(r.pool, f); !ok {
			r.t.Fatal("the port takes no more")
		}
	}
}

// poll runs rounds until there is nothing to do, and checks that nothing got lost on the way.
func (r *rig) poll() {
	r.t.Helper()
	for r.w.Poll(r.now) > 0 {
		r.check()
	}
	r.check()
}

// check is the law of accounting: every packet has exactly one fate, every frame exactly one place.
func (r *rig) check() {
	r.t.Helper()
	c := &r.w.c
	sum := c.forwarded + c.held + c.arps
	for _, n := range c.reasons {
		sum += n
	}
	if c.received != sum {
		r.t.Fatalf("received %d, forwarded %d, held %d, ended %v", c.received, c.forwarded, c.held, r.reasons())
	}
	place := r.pool.Len() + int(c.held)
	for _, p := range r.ports {
		place += len(p.in) - p.head + len(p.sent)
	}
	if place != r.frames {
		r.t.Fatalf("%d frames, %d found: %d free, %d held", r.frames, place, r.pool.Len(), c.held)
	}
}

// reasons returns the counters that are not 0.
func (r *rig) reasons() map[string]uint64 {
	m := map[string]uint64{}
	for i, n := range r.w.c.reasons {
		if n > 0 {
			m[reason.Reason(i).String()] = n
		}
	}
	return m
}

// want checks that exactly one reason moved, and by how much.
func (r *rig) want(name reason.Reason, n uint64) {
	r.t.Helper()
	m := r.reasons()
	if len(m) != 1 || m[name.String()] != n {
		r.t.Fatalf("ended %v, want %d %v", m, n, name)
	}
}

// takeSent returns what left by a port since the last call.
func (r *rig) takeSent(port int) [][]byte {
	f := r.sent[port]
	r.sent[port] = nil
	return f
}

func (r *rig) one(port int) ([]byte, *packet.Headers) {
	r.t.Helper()
	f := r.takeSent(port)
	if len(f) != 1 {
		r.t.Fatalf("%d frames left by port %d, want 1", len(f), port)
	}
	if err := packet.Verify(f[0]); err != nil {
		r.t.Error(err)
	}
	h := new(packet.Headers)
	packet.Parse(f[0], h)
	return f[0], h
}

func fromInside(src packet.Addr, sport uint16) packet.Build {
	return packet.Build{SrcMAC: peerMAC, DstMAC: inMAC, Src: src, SrcPort: sport, Dst: server, DstPort: 53}
}

func fromOutside(dst packet.Addr, dport uint16) packet.Build {
	return packet.Build{SrcMAC: peerMAC, DstMAC: outMAC, Src: server, SrcPort: 53, Dst: dst, DstPort: dport}
}

// icmpAbout checks that a frame is an ICMP error and returns its headers, the quoted ones and the MTU it tells.
func icmpAbout(t testing.TB, frame []byte) (h, q packet.Headers, mtu uint16) {
	t.Helper()
	packet.Parse(frame, &h)
	if h.Kind != packet.KindICMPError || !packet.ParseQuoted(frame, &h, &q) {
		t.Fatalf("no ICMP error: %+v", h)
	}
	if err := packet.Verify(frame); err != nil {
		t.Error(err)
	}
	return h, q, binary.BigEndian.Uint16(frame[h.L4+6:])
}

// syn makes a TCP SYN of a frame.
func syn(b packet.Build) []byte {
	b.Flags = packet.TCPSyn
	return b.TCP(nil)
}
