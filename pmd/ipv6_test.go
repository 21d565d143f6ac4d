package pmd

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"testing"

	"pollux/internal/packet"
	"pollux/internal/reason"
	"pollux/rtcache"
)

var (
	hostV6    = netip.MustParseAddr("2001:db8:1::2")
	serverV6  = netip.MustParseAddr("2001:db8:ffff::7")
	insideV6  = netip.MustParseAddr("2001:db8:1::1")
	outsideV6 = netip.MustParseAddr("2001:db8:2::1")
)

// udpV6 is a UDP datagram over IPv6 with a right checksum.
func udpV6(mac [6]byte, src, dst netip.Addr, ttl uint8, size int) []byte {
	payload := make([]byte, packet.UDPLen+size)
	binary.BigEndian.PutUint16(payload[0:], 4000)
	binary.BigEndian.PutUint16(payload[2:], 53)
	binary.BigEndian.PutUint16(payload[4:], uint16(len(payload)))
	b := packet.Build{SrcMAC: peerMAC, DstMAC: mac, TTL: ttl}
	frame := b.IPv6(src.As16(), dst.As16(), packet.ProtoUDP, payload)
	h := packet.Headers{Kind: packet.KindIPv6, Proto: packet.ProtoUDP, L3: packet.EthernetLen, L4: packet.EthernetLen + packet.IPv6Len, Len: uint16(packet.IPv6Len + len(payload))}
	packet.CompleteChecksum(frame, &h)
	return frame
}

func TestForwardIPv6(t *testing.T) {
	r := newRig(t, rigOptions{ipv6: true})
	out := udpV6(inMAC, hostV6, serverV6, 64, 100)
	in := udpV6(outMAC, serverV6, hostV6, 2, 100)
	r.push(inPort, out, out)
	r.push(outPort, in)
	r.poll()
	for _, c := range []struct {
		port int
		n    int
		sent []byte
		mac  [6]byte
	}{{outPort, 2, out, outMAC}, {inPort, 1, in, inMAC}} {
		got := r.takeSent(c.port)
		if len(got) != c.n {
			t.Fatalf("%d packets left by port %d, want %d", len(got), c.port, c.n)
		}
		want := bytes.Clone(c.sent)
		copy(want[0:6], peerMAC[:])
		copy(want[6:12], c.mac[:])
		want[packet.EthernetLen+7]--
		for _, f := range got {
			if !bytes.Equal(f, want) {
				t.Errorf("sent\n% x, want\n% x", f[:60], want[:60])
			}
		}
	}
	if c := r.w.routes.C; c.Hits != 1 || c.Unattached != 2 {
		t.Errorf("a second packet of a flow did not find its next hop: %+v", c)
	}
}

func TestHalfMadeIPv6ChecksumIsCompleted(t *testing.T) {
	r := newRig(t, rigOptions{ipv6: true})
	frame := udpV6(inMAC, hostV6, serverV6, 64, 33)
	whole := bytes.Clone(frame)
	sum := uint32(packet.Sum(frame[packet.EthernetLen+8:packet.EthernetLen+40], 0)) + uint32(len(frame)-packet.EthernetLen-packet.IPv6Len) + packet.ProtoUDP
	binary.BigEndian.PutUint16(frame[packet.EthernetLen+packet.IPv6Len+6:], uint16(sum>>16+sum&0xffff))
	r.push(inPort, frame)
	r.poll()
	got := r.takeSent(outPort)
	if len(got) != 1 || !bytes.Equal(got[0][packet.EthernetLen+packet.IPv6Len:], whole[packet.EthernetLen+packet.IPv6Len:]) {
		t.Errorf("not completed: % x", got)
	}
}

// icmpV6 checks one frame that left by a port as an ICMPv6 error from the gateway about sent.
func icmpV6(t *testing.T, r *rig, port int, sent []byte, icmpType, code uint8, mtu uint32) {
	t.Helper()
	f := r.takeSent(port)
	if len(f) != 1 {
		t.Fatalf("%d frames left by port %d, want one ICMPv6 error", len(f), port)
	}
	e := f[0]
	ip := e[packet.EthernetLen:]
	from := insideV6.As16()
	if ip[6] != packet.ProtoICMPv6 || !bytes.Equal(ip[8:24], from[:]) || !bytes.Equal(ip[24:40], sent[packet.EthernetLen+8:packet.EthernetLen+24]) {
		t.Fatalf("no ICMPv6 from the gateway to the sender: % x", ip[:48])
	}
	if ip[40] != icmpType || ip[41] != code || binary.BigEndian.Uint32(ip[44:]) != mtu {
		t.Errorf("type %d code %d MTU %d, want %d %d %d", ip[40], ip[41], binary.BigEndian.Uint32(ip[44:]), icmpType, code, mtu)
	}
	if !bytes.Equal(ip[48:], sent[packet.EthernetLen:][:len(ip)-48]) {
		t.Error("it does not quote the packet as it was sent")
	}
	if !bytes.Equal(e[0:6], peerMAC[:]) || !bytes.Equal(e[6:12], inMAC[:]) {
		t.Errorf("MACs % x", e[:12])
	}
}

func TestIPv6Endings(t *testing.T) {
	prefix := func(s string) netip.Prefix { return netip.MustParsePrefix(s) }
	routes := func(o *rtcache.StaticOptions) {
		o.Routes = append(o.Routes,
			rtcache.StaticRoute{Prefix: prefix("2001:db8:a::/48"), Verdict: rtcache.Unreachable},
			rtcache.StaticRoute{Prefix: prefix("2001:db8:b::/48"), Verdict: rtcache.Prohibit},
			rtcache.StaticRoute{Prefix: prefix("2001:db8:c::/48"), Verdict: rtcache.Blackhole})
	}
	at := netip.MustParseAddr
	for _, c := range []struct {
		name     string
		src, dst netip.Addr
		ttl      uint8
		size     int
		why      reason.Reason
		kind     int // of the ICMPv6 error, -1: none
		code     uint8
		mtu      uint32
	}{
		{"hop limit 1", hostV6, serverV6, 1, 10, reason.TTLExpired, packet.ICMPv6TimeExceeded, 0, 0},
		{"too long", hostV6, serverV6, 64, 1460, reason.MTUExceeded, packet.ICMPv6TooBig, 0, 1500},
		{"unreachable", hostV6, at("2001:db8:a::1"), 64, 10, reason.NoRoute, packet.ICMPv6Unreachable, packet.ICMPv6NoRoute, 0},
		{"prohibited", hostV6, at("2001:db8:b::1"), 64, 10, reason.NoRoute, packet.ICMPv6Unreachable, packet.ICMPv6Prohibited, 0},
		{"blackhole", hostV6, at("2001:db8:c::1"), 64, 10, reason.NoRoute, -1, 0, 0},
		{"link-local source", at("fe80::2"), serverV6, 64, 10, reason.BadSource, packet.ICMPv6Unreachable, packet.ICMPv6BeyondScope, 0},
		{"a source of the other side", serverV6, hostV6, 64, 10, reason.ReversePath, -1, 0, 0},
		{"no source", at("::"), serverV6, 64, 10, reason.BadSource, -1, 0, 0},
		{"loopback source", at("::1"), serverV6, 64, 10, reason.BadSource, -1, 0, 0},
		{"to the gateway", hostV6, insideV6, 1, 10, reason.Punted, -1, 0, 0},
		{"link-local to the gateway", at("fe80::2"), insideV6, 64, 10, reason.Punted, -1, 0, 0},
		{"to a group", hostV6, at("ff0e::1"), 64, 10, reason.Punted, -1, 0, 0},
		{"link-local", at("fe80::2"), at("fe80::1"), 64, 10, reason.Punted, -1, 0, 0},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t, rigOptions{ipv6: true, punt: true, routes: routes})
			sent := udpV6(inMAC, c.src, c.dst, c.ttl, c.size)
			r.push(inPort, sent)
			r.poll()
			r.want(c.why, 1)
			if c.kind >= 0 {
				icmpV6(t, r, inPort, sent, uint8(c.kind), c.code, c.mtu)
			}
			if n := len(r.sent[inPort]) + len(r.sent[outPort]); n != 0 {
				t.Errorf("%d frames left", n)
			}
			if c.why == reason.Punted && (len(r.punted) != 1 || !bytes.Equal(r.punted[0], sent)) {
				t.Error("the kernel did not get the packet as it was sent")
			}
		})
	}
	r := newRig(t, rigOptions{ipv6: true, routes: func(o *rtcache.StaticOptions) { o.NoDefault = true }})
	sent := udpV6(inMAC, hostV6, serverV6, 64, 10)
	r.push(inPort, sent)
	r.poll()
	icmpV6(t, r, inPort, sent, packet.ICMPv6Unreachable, packet.ICMPv6NoRoute, 0)
	r = newRig(t, rigOptions{punt: true}) // ipv6: kernel
	r.push(inPort, sent)
	r.poll()
	r.want(reason.Punted, 1)
}

// Packets wait for their neighbour in order with those of IPv4, and fail as those do.
func TestIPv6WaitsForNeighbour(t *testing.T) {
	r := newRig(t, rigOptions{ipv6: true, routes: func(o *rtcache.StaticOptions) { o.Unresolved = true }})
	if err := r.table.SetStaticHop(inPort, peerMAC, rtcache.OK); err != nil {
		t.Fatal(err)
	}
	for i := range 3 {
		r.push(inPort, udpV6(inMAC, hostV6, serverV6, 64, 100+i), fromInside(host1, 4000).UDP(make([]byte, 50)))
	}
	r.poll()
	if n := len(r.takeSent(outPort)); n != 0 || r.w.c.held != 6 {
		t.Fatalf("%d sent, %d held", n, r.w.c.held)
	}
	if err := r.table.SetStaticHop(outPort, peerMAC, rtcache.OK); err != nil {
		t.Fatal(err)
	}
	r.push(inPort, udpV6(inMAC, hostV6, serverV6, 64, 103)) // must not overtake
	r.now++
	r.poll()
	next := 100
	for _, f := range r.takeSent(outPort) {
		if f[12] != 0x86 {
			continue
		}
		if n := len(f) - packet.EthernetLen - packet.IPv6Len - packet.UDPLen; n != next || f[packet.EthernetLen+7] != 63 {
			t.Errorf("packet %d with hop limit %d, want packet %d", n, f[packet.EthernetLen+7], next)
		}
		next++
	}
	if next != 104 {
		t.Errorf("the last was packet %d, want 103", next-1)
	}
	if err := r.table.SetStaticHop(outPort, peerMAC, rtcache.Failed); err != nil {
		t.Fatal(err)
	}
	sent := udpV6(inMAC, hostV6, serverV6, 64, 10)
	r.push(inPort, sent)
	r.now++
	r.poll()
	r.want(reason.NoNeighbour, 1)
	icmpV6(t, r, inPort, sent, packet.ICMPv6Unreachable, packet.ICMPv6AddressUnreachable, 0)
}

func TestForwardIPv6AllocatesNothing(t *testing.T) {
	r := newRig(t, rigOptions{ipv6: true, silent: true})
	good, expired := udpV6(inMAC, hostV6, serverV6, 64, 10), udpV6(inMAC, hostV6, serverV6, 1, 10)
	if n := testing.AllocsPerRun(100, func() {
		r.push(inPort, good, expired, good)
		r.now += 50
		r.poll()
	}); n != 0 {
		t.Errorf("%.1f allocations", n)
	}
}

// A source that the reverse path refuses does not get by on the entry of an honest flow to the same destination, and two
// flows that share a place never use each other's next hop.
func TestPlainFlowsKeepApart(t *testing.T) {
	r := newRig(t, rigOptions{routes: func(o *rtcache.StaticOptions) {
		o.Routes = append(o.Routes, rtcache.StaticRoute{Prefix: netip.MustParsePrefix("10.9.0.0/16"), Port: outPort})
	}})
	dst := addr("10.0.0.77")
	honest := packet.Build{SrcMAC: peerMAC, DstMAC: inMAC, Src: host1, Dst: dst, SrcPort: 1, DstPort: 2}
	for range 3 {
		r.push(inPort, honest.UDP(nil))
	}
	r.poll()
	if n := len(r.takeSent(inPort)); n != 3 {
		t.Fatalf("%d of 3 forwarded", n)
	}
	if c := r.w.routes.C; c.Hits != 2 || c.Unattached != 1 || c.NoSlot != 0 {
		t.Errorf("inside to inside does not keep its next hop: %+v", c)
	}
	// Lies from everywhere in 10.9.0.0/16, which is routed to the outside: far more flows than there are places.
	lies := 3 * plainFlows
	for i := range lies {
		b := honest
		b.Src, b.SrcPort = addr("10.9.0.0")+packet.Addr(i&0xffff), uint16(i>>4)
		r.push(inPort, b.UDP(nil))
		if i%512 == 511 {
			r.poll()
		}
	}
	r.poll()
	if n := len(r.takeSent(inPort)); n != 0 {
		t.Errorf("%d of %d spoofed packets passed the reverse path check", n, lies)
	}
	r.want(reason.ReversePath, uint64(lies))
}
