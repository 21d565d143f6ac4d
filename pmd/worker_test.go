package pmd

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"
	"time"

	"pollux/internal/packet"
	"pollux/internal/reason"
	"pollux/nat"
	"pollux/rtcache"
)

func TestForwardBothWays(t *testing.T) {
	r := newRig(t, rigOptions{})
	r.push(inPort, fromInside(host1, 5000).UDP([]byte("question")))
	r.poll()
	f, h := r.one(outPort)
	if h.Src != alias1 || h.Dst != server || h.DstPort != 53 || h.TTL != 63 {
		t.Errorf("left as %+v", h)
	}
	if !bytes.Equal(f[:6], peerMAC[:]) || !bytes.Equal(f[6:12], outMAC[:]) {
		t.Errorf("MACs %x", f[:12])
	}
	r.push(outPort, fromOutside(alias1, h.SrcPort).UDP([]byte("answer")))
	r.poll()
	f, h = r.one(inPort)
	if h.Dst != host1 || h.DstPort != 5000 || h.Src != server {
		t.Errorf("came back as %+v", h)
	}
	if !bytes.Equal(f[6:12], inMAC[:]) {
		t.Errorf("MACs %x", f[:12])
	}
	if c := &r.w.pub; c.received.Load() != 2 || c.forwarded.Load() != 2 || c.translated.Load() != 2 || c.bursts.Load() != 2 {
		t.Errorf("published %d received, %d forwarded, %d translated", c.received.Load(), c.forwarded.Load(), c.translated.Load())
	}
}

func TestBurstKeepsOrderAcrossDrops(t *testing.T) {
	r := newRig(t, rigOptions{})
	var want []uint16
	for i := range uint16(100) {
		f := fromInside(host1, 5000)
		f.ID = i + 1
		switch i % 3 {
		case 0:
			f.DstMAC = peerMAC // not for us
		case 1:
			want = append(want, f.ID)
		case 2:
			f.TTL = 1
		}
		r.push(inPort, f.UDP(nil))
	}
	r.poll()
	var got []uint16
	for _, f := range r.takeSent(outPort) {
		var h packet.Headers
		packet.Parse(f, &h)
		got = append(got, h.FragID)
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("left %v, want %v", got, want)
	}
}

// TestEndings has one packet for each way that a packet can end in the worker itself.
func TestEndings(t *testing.T) {
	frame := func(edit func(*packet.Build)) []byte {
		b := fromInside(host1, 5000)
		edit(&b)
		return b.UDP([]byte("payload"))
	}
	spoil := func(f []byte, at int) []byte { f[at] ^= 0x55; return f }
	routes := func(v rtcache.Verdict) func(*rtcache.StaticOptions) {
		return func(o *rtcache.StaticOptions) {
			o.Routes = append(o.Routes, rtcache.StaticRoute{Prefix: netip.MustParsePrefix("198.51.100.0/24"), Port: outPort, Verdict: v})
		}
	}
	type icmp struct{ kind, code uint8 }
	for _, c := range []struct {
		name   string
		port   int
		frame  []byte
		o      rigOptions
		reason reason.Reason
		answer *icmp
	}{
		{name: "too short", frame: []byte{2, 0, 0}, reason: reason.BadHeader},
		{name: "another MAC", frame: frame(func(b *packet.Build) { b.DstMAC = peerMAC }), reason: reason.NotForUs},
		{name: "header checksum", frame: spoil(frame(func(*packet.Build) {}), 24), reason: reason.BadChecksum},
		{name: "truncated", frame: frame(func(*packet.Build) {})[:40], reason: reason.BadHeader},
		{name: "source", frame: frame(func(b *packet.Build) { b.Src = addr("127.0.0.1") }), reason: reason.BadSource},
		{name: "broadcast MAC", frame: frame(func(b *packet.Build) { b.DstMAC = [6]byte{255, 255, 255, 255, 255, 255} }), reason: reason.ToHost},
		{name: "multicast", frame: frame(func(b *packet.Build) { b.Dst = addr("239.1.1.1") }), reason: reason.ToHost},
		{name: "broadcast", frame: frame(func(b *packet.Build) { b.Dst = addr("255.255.255.255") }), reason: reason.ToHost},
		{name: "class E", frame: frame(func(b *packet.Build) { b.Dst = addr("240.0.0.1") }), reason: reason.NoRoute},
		{name: "IPv6", frame: packet.Build{DstMAC: inMAC}.IPv6([16]byte{0x20, 15: 1}, [16]byte{0x20, 15: 2}, 59, nil), reason: reason.ToHost},
		{name: "own inside address", frame: frame(func(b *packet.Build) { b.Dst = inside }), reason: reason.ToHost},
		{name: "own outside address from inside", frame: frame(func(b *packet.Build) { b.Dst = outside }), reason: reason.ToHost},
		{name: "own outside address", port: outPort, frame: fromOutside(outside, 22).TCP(nil), reason: reason.ToHost},
		{name: "no mapping", port: outPort, frame: fromOutside(alias1, 9999).UDP(nil), reason: reason.NoMapping},
		{name: "TTL", frame: frame(func(b *packet.Build) { b.TTL = 1 }), reason: reason.TTLExpired, answer: &icmp{11, 0}},
		{name: "no route", frame: frame(func(*packet.Build) {}), o: rigOptions{routes: func(o *rtcache.StaticOptions) { o.NoDefault = true }},
			reason: reason.NoRoute, answer: &icmp{3, 0}},
		{name: "unreachable", frame: frame(func(*packet.Build) {}), o: rigOptions{routes: routes(rtcache.Unreachable)}, reason: reason.NoRoute, answer: &icmp{3, 1}},
		{name: "prohibit", frame: frame(func(*packet.Build) {}), o: rigOptions{routes: routes(rtcache.Prohibit)}, reason: reason.NoRoute, answer: &icmp{3, 13}},
		{name: "blackhole", frame: frame(func(*packet.Build) {}), o: rigOptions{routes: routes(rtcache.Blackhole)}, reason: reason.NoRoute},
		{name: "spoofed", frame: frame(func(b *packet.Build) { b.Src = addr("192.0.2.9") }), reason: reason.ReversePath},
		{name: "too long", frame: func() []byte { b := fromInside(host1, 5000); b.DF = true; return b.UDP(make([]byte, 1473)) }(),
			reason: reason.MTUExceeded, answer: &icmp{3, 4}},
	} {
		t.Run(c.name, func(t *testing.T) {
			r := newRig(t, c.o)
			sent := bytes.Clone(c.frame)
			r.push(c.port, c.frame)
			r.poll()
			r.want(c.reason, 1)
			if c.answer == nil {
				if n := len(r.sent[0]) + len(r.sent[1]); n != 0 {
					t.Errorf("%d frames left", n)
				}
				return
			}
			f, h := r.one(c.port)
			_, q, mtu := icmpAbout(t, f)
			if h.ICMPType != c.answer.kind || h.ICMPCode != c.answer.code || h.Src != inside || h.Dst != host1 {
				t.Errorf("answer %+v", h)
			}
			if q.Src != host1 || q.SrcPort != 5000 || q.TTL != sent[22] {
				t.Errorf("quote %+v: not as the host sent it", q)
			}
			if quote := f[q.L3:]; !bytes.Equal(quote, sent[14:14+len(quote)]) {
				t.Errorf("quote\n%x of\n%x", quote, sent[14:])
			}
			if c.reason == reason.MTUExceeded && mtu != 1500 {
				t.Errorf("MTU %d", mtu)
			}
			if r.w.c.answered != 1 {
				t.Errorf("%d counted as answered", r.w.c.answered)
			}
		})
	}
}

func TestAnswerToTheOutsideComesFromTheAlias(t *testing.T) {
	r := newRig(t, rigOptions{})
	r.push(inPort, fromInside(host1, 5000).UDP(nil))
	r.poll()
	_, h := r.one(outPort)
	late := fromOutside(alias1, h.SrcPort)
	late.TTL = 1
	r.push(outPort, late.UDP(nil))
	r.poll()
	f, e := r.one(outPort)
	_, q, _ := icmpAbout(t, f)
	if e.Src != alias1 || e.Dst != server || q.Dst != alias1 || q.TTL != 1 {
		t.Errorf("answer %+v about %+v", e, q)
	}
}

func TestFragmentsWhatIsTooLong(t *testing.T) {
	r := newRig(t, rigOptions{})
	payload := make([]byte, 3000)
	for i := range payload {
		payload[i] = byte(i)
	}
	r.push(inPort, fromInside(host1, 5000).UDP(payload))
	r.poll()
	var got []byte
	frames := r.takeSent(outPort)
	for i, f := range frames {
		var h packet.Headers
		packet.Parse(f, &h)
		if h.Len > 1500 || h.Src != alias1 || int(h.FragOff) != len(got) || (h.Flags&packet.FlagMF != 0) != (i < len(frames)-1) {
			t.Errorf("piece %d: %+v", i, h)
		}
		got = append(got, f[h.L4:]...)
	}
	if len(frames) != 3 || !bytes.Equal(got[8:], payload) {
		t.Errorf("%d pieces of %d bytes", len(frames), len(got))
	}
	if r.w.c.forwarded != 1 || r.w.c.made != 3 {
		t.Errorf("forwarded %d, made %d", r.w.c.forwarded, r.w.c.made)
	}
}

func TestFragmentWithoutFrames(t *testing.T) {
	r := newRig(t, rigOptions{frames: 3})
	r.push(inPort, fromInside(host1, 5000).UDP(make([]byte, 3000)))
	r.poll()
	r.want(reason.NoFrame, 1)
}

func TestTransmitRingFull(t *testing.T) {
	r := newRig(t, rigOptions{})
	r.ports[outPort].Room = 5
	for range 20 {
		r.push(inPort, fromInside(host1, 5000).UDP(nil))
	}
	r.poll()
	r.want(reason.TXFull, 15)
	if n := len(r.takeSent(outPort)); n != 5 {
		t.Errorf("%d left", n)
	}
}

func TestWaitForNeighbour(t *testing.T) {
	r := newRig(t, rigOptions{routes: func(o *rtcache.StaticOptions) { o.Unresolved = true }})
	for i := range 70 { // more than a burst
		b := fromInside(host1, 5000)
		b.ID = uint16(i + 1)
		r.push(inPort, b.UDP(nil))
	}
	r.poll()
	if r.w.c.held != 70 || len(r.sent[outPort]) != 0 {
		t.Fatalf("held %d, sent %d, ended %v", r.w.c.held, len(r.sent[outPort]), r.reasons())
	}
	if err := r.table.SetStaticHop(outPort, peerMAC, rtcache.OK); err != nil {
		t.Fatal(err)
	}
	b := fromInside(host1, 5000)
	b.ID = 71
	r.push(inPort, b.UDP(nil)) // must not overtake
	r.poll()
	frames := r.takeSent(outPort)
	if len(frames) != 71 || r.w.c.held != 0 {
		t.Fatalf("%d left, %d still held", len(frames), r.w.c.held)
	}
	for i, f := range frames {
		var h packet.Headers
		packet.Parse(f, &h)
		if int(h.FragID) != i+1 {
			t.Fatalf("packet %d left as number %d", h.FragID, i+1)
		}
	}
}

func TestNeighbourFails(t *testing.T) {
	for _, gone := range []string{"told", "silent"} {
		t.Run(gone, func(t *testing.T) {
			r := newRig(t, rigOptions{routes: func(o *rtcache.StaticOptions) { o.Unresolved = true }})
			r.push(inPort, fromInside(host1, 5000).UDP([]byte("payload")))
			r.poll()
			if gone == "told" {
				if err := r.table.SetStaticHop(outPort, peerMAC, rtcache.Failed); err != nil {
					t.Fatal(err)
				}
			} else {
				r.now = r.now.Add(5100 * time.Millisecond)
			}
			r.now++
			r.poll()
			r.want(reason.NoNeighbour, 1)
			f, h := r.one(inPort)
			_, q, _ := icmpAbout(t, f)
			if h.ICMPType != 3 || h.ICMPCode != 1 || q.Src != host1 || q.SrcPort != 5000 || q.TTL != 64 {
				t.Errorf("answer %+v about %+v", h, q)
			}
		})
	}
}

func TestWaitIsBounded(t *testing.T) {
	r := newRig(t, rigOptions{frames: 8192, routes: func(o *rtcache.StaticOptions) { o.Unresolved = true }})
	for range 10 {
		for range 100 {
			r.push(inPort, fromInside(host1, 5000).UDP(nil))
		}
		r.poll()
	}
	if r.w.c.held != HoldPerHop {
		t.Errorf("%d held for one hop, want %d", r.w.c.held, HoldPerHop)
	}
	r.want(reason.NoNeighbour, 1000-HoldPerHop)
}

func TestErrorsAreLimited(t *testing.T) {
	r := newRig(t, rigOptions{})
	send := func(src packet.Addr, n int) {
		for range n {
			b := fromInside(src, 5000)
			b.TTL = 1
			r.push(inPort, b.UDP(nil))
			r.poll()
		}
	}
	send(host1, 2000)
	if n := r.w.c.answered; n != errorsPerSecondEach {
		t.Errorf("one host got %d answers, want %d", n, errorsPerSecondEach)
	}
	send(host2, 10)
	if n := r.w.c.answered; n != errorsPerSecondEach+10 {
		t.Errorf("the next host got %d answers of 10", n-errorsPerSecondEach)
	}
	r.want(reason.TTLExpired, 2010)
	r.now = r.now.Add(100 * time.Millisecond)
	send(host1, 100)
	if n := r.w.c.answered - errorsPerSecondEach - 10; n != errorsPerSecondEach/10 {
		t.Errorf("%d answers after a tenth of a second, want %d", n, errorsPerSecondEach/10)
	}
}

func TestPunt(t *testing.T) {
	r := newRig(t, rigOptions{punt: true})
	f := fromInside(host1, 5000)
	f.Dst = inside
	raw := f.UDP([]byte("for the gateway"))
	r.push(inPort, raw)
	r.poll()
	r.want(reason.Punted, 1)
	if len(r.punted) != 1 || !bytes.Equal(r.punted[0], raw) {
		t.Errorf("punted %x, want %x", r.punted, raw)
	}
	r.refuse = true
	r.push(inPort, raw)
	r.poll()
	if m := r.reasons(); m["to-host"] != 1 || m["punted"] != 1 {
		t.Errorf("over the limit: %v", m)
	}
}

func TestHairpin(t *testing.T) {
	open := func(r *nat.Rules) {
		r.Filtering = nat.PerProtocol{UDP: nat.EndpointIndependent, TCP: nat.EndpointIndependent, ICMP: nat.EndpointIndependent}
	}
	r := newRig(t, rigOptions{rules: open})
	r.push(inPort, fromInside(host2, 6000).UDP(nil))
	r.poll()
	_, h := r.one(outPort)
	b := fromInside(host1, 5000)
	b.Dst, b.DstPort = alias1, h.SrcPort
	r.push(inPort, b.UDP([]byte("neighbour")))
	r.poll()
	f, got := r.one(inPort)
	if got.Src != alias1 || got.Dst != host2 || got.DstPort != 6000 || got.TTL != 63 {
		t.Errorf("hairpinned %+v, ended %v", got, r.reasons())
	}
	if !bytes.Equal(f[6:12], inMAC[:]) {
		t.Errorf("MACs %x", f[:12])
	}
	// What can't be delivered is quoted as its sender sent it.
	long := b
	long.DF = true
	raw := long.UDP(make([]byte, 1473))
	r.push(inPort, raw)
	r.poll()
	f, e := r.one(inPort)
	_, q, _ := icmpAbout(t, f)
	if e.Dst != host1 || q.Src != host1 || q.Dst != alias1 || !bytes.Equal(f[q.L3:], raw[14:14+len(f)-int(q.L3)]) {
		t.Errorf("answer %+v about %+v", e, q)
	}
}

// TestAccounting throws everything at the worker in random bursts; rig.poll checks the law after every round.
func TestAccounting(t *testing.T) {
	random := rand.New(rand.NewPCG(1, 2))
	r := newRig(t, rigOptions{frames: 2048, punt: true, links: 300})
	for range 400 {
		for range random.IntN(100) {
			port := random.IntN(2)
			b := fromInside(host1+packet.Addr(random.IntN(50)), uint16(1024+random.IntN(2000)))
			if port == outPort {
				b = fromOutside(alias1, uint16(1024+random.IntN(2000)))
			}
			b.TTL = uint8(random.IntN(3))
			b.DF = random.IntN(2) == 0
			b.MF = random.IntN(8) == 0
			b.ID = uint16(random.IntN(20))
			if random.IntN(8) == 0 {
				b.FragOff = uint16(random.IntN(4)) * 256
			}
			payload := make([]byte, 8*random.IntN(300))
			var f []byte
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
			r.push(port, f)
		}
		r.refuse = random.IntN(2) == 0
		r.ports[random.IntN(2)].Room = 10 + random.IntN(1000)
		switch random.IntN(12) {
		case 0:
			r.table.SetStaticHop(uint16(random.IntN(2)), peerMAC, rtcache.Unresolved)
		case 1:
			r.table.SetStaticHop(uint16(random.IntN(2)), peerMAC, rtcache.Failed)
		case 2, 3, 4:
			r.table.SetStaticHop(inPort, peerMAC, rtcache.OK)
			r.table.SetStaticHop(outPort, peerMAC, rtcache.OK)
		}
		r.poll()
		r.now = r.now.Add(time.Duration(random.IntN(2000)) * time.Millisecond)
		r.takeSent(inPort)
		r.takeSent(outPort)
	}
	if r.w.c.forwarded == 0 || len(r.reasons()) < 8 {
		t.Errorf("forwarded %d, ended %v: this test has lost its grip", r.w.c.forwarded, r.reasons())
	}
}

func TestPollAllocatesNothing(t *testing.T) {
	r := newRig(t, rigOptions{silent: true, punt: false})
	long := fromInside(host1, 5000)
	long.DF = true
	expired := fromInside(host1, 5000)
	expired.TTL = 1
	own := fromInside(host1, 5000)
	own.Dst = inside
	frames := [][]byte{
		fromInside(host1, 5000).UDP(nil), fromInside(host1, 5000).TCP(nil), fromInside(host1, 5000).Echo(false, 1, nil),
		fromInside(host1, 5000).UDP(make([]byte, 3000)), long.UDP(make([]byte, 2000)), expired.UDP(nil), own.UDP(nil),
		fromInside(host1, 5000).IP(47, make([]byte, 64)), {1, 2, 3},
	}
	port := uint16(0)
	n := testing.AllocsPerRun(200, func() {
		for _, f := range frames {
			r.ports[inPort].Push(r.pool, f)
		}
		port++
		f := frames[0]
		f[35] = byte(port) // new flows too
		r.ports[outPort].Push(r.pool, frames[1])
		r.now += 7
		for r.w.Poll(r.now) > 0 {
		}
	})
	if n != 0 {
		t.Errorf("%v allocations per round", n)
	}
	if r.w.c.answered == 0 || r.w.c.made == 0 || r.w.c.forwarded == 0 {
		t.Errorf("the round did not do what it should: %+v", r.w.c)
	}
}

func TestMemoryArithmetic(t *testing.T) {
	if err := checkMemory(1000, 200_000); err != nil {
		t.Error(err)
	}
	err := checkMemory(1<<40, 200<<40)
	if err == nil || !strings.Contains(err.Error(), "200 bytes each") || !strings.Contains(err.Error(), "209715200 MiB") {
		t.Errorf("said %v", err)
	}
}

// FuzzPoll: whatever comes in by either port, no packet and no frame gets lost, and nothing panics.
func FuzzPoll(f *testing.F) {
	b := fromInside(host1, 5000)
	f.Add(b.UDP([]byte("x")), fromOutside(alias1, 5000).UDP(nil), uint16(0))
	f.Add(syn(b), fromOutside(alias1, 5000).TCP(nil), uint16(7000))
	f.Add(b.Echo(false, 1, nil), fromOutside(alias1, 5000).Echo(true, 1, nil), uint16(1))
	f.Add(b.IP(47, []byte("gre")), fromOutside(alias1, 0).ICMP(3, 1, 0, fromOutside(alias1, 5000).UDP(nil)[14:]), uint16(1))
	first, later := b, b
	first.MF, later.FragOff = true, 64
	f.Add(first.UDP(make([]byte, 56)), later.IP(17, make([]byte, 64)), uint16(1))
	f.Add(b.UDP(make([]byte, 2000)), []byte{1}, uint16(1))
	r := newRig(f, rigOptions{silent: true, anyMAC: true, rules: func(rules *nat.Rules) {
		rules.Filtering = nat.PerProtocol{}
		rules.Target, rules.DenyIncoming = host2, false
		rules.MSSClamp = 1400
	}})
	f.Fuzz(func(t *testing.T, in, out []byte, wait uint16) {
		r.t = t
		for _, f := range [][]byte{in, out, in} {
			if len(f) <= r.umem.ChunkSize() {
				r.push(inPort, f)
				r.push(outPort, f)
			}
		}
		r.now = r.now.Add(time.Duration(wait) * time.Millisecond)
		r.poll()
	})
}
