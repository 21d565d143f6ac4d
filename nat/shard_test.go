package nat

import (
	"net/netip"
	"testing"
	"time"

	"pollux/internal/clock"
	"pollux/internal/packet"
	"pollux/internal/reason"
)

func addr(s string) packet.Addr { return packet.AddrFrom(netip.MustParseAddr(s)) }

var (
	pub1 = addr("203.0.113.1")
	pub2 = addr("203.0.113.2")
	pub9 = addr("203.0.113.9")
	prv1 = addr("10.0.0.2")
	prv2 = addr("10.0.0.3")
	ext1 = addr("198.51.100.7")
	ext2 = addr("198.51.100.8")
)

// world is a shard with a clock, and what a test says about packets.
type world struct {
	t   testing.TB
	s   *Shard
	now clock.Tick
}

func newWorld(t testing.TB, change func(*Options)) *world {
	o := Options{Rules: DefaultRules(), Limits: Limits{Links: 1000, Fragments: 64}, Now: 0xfffff000}
	o.Rules.Alias = []packet.Addr{pub1}
	if change != nil {
		change(&o)
	}
	s, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = s.Close() })
	return &world{t, s, o.Now}
}

// pass runs the clock on, timers included.
func (w *world) pass(d time.Duration) {
	end := w.now.Add(d)
	for w.now.Before(end) {
		if w.now += 200; w.now.After(end) {
			w.now = end
		}
		for w.s.Advance(w.now, 100) >= 100 {
		}
	}
}

// send translates one frame and checks that its checksums stay right.
func (w *world) send(side Side, frame []byte) *Packet {
	w.t.Helper()
	p := &Packet{Data: append([]byte(nil), frame...), Side: side}
	packet.Parse(p.Data, &p.H)
	if p.H.Reason != 0 {
		w.t.Fatalf("bad test frame: %v", p.H.Reason)
	}
	b := []Packet{*p}
	w.s.Touch(b)
	w.s.Translate(b, w.now)
	*p = b[0]
	if p.Verdict == Forward || p.Verdict == Again {
		if err := packet.Verify(p.Data); err != nil {
			w.t.Fatalf("after translation: %v", err)
		}
	}
	return p
}

// ends returns the endpoints of a frame as it is now.
func ends(p *Packet) (src Local, dst Remote) {
	var h packet.Headers
	packet.Parse(p.Data, &h)
	return Local{h.Src, h.SrcPort}, Remote{h.Dst, h.DstPort}
}

func udp(src packet.Addr, sport uint16, dst packet.Addr, dport uint16) []byte {
	return packet.Build{Src: src, SrcPort: sport, Dst: dst, DstPort: dport}.UDP([]byte("hello"))
}

func tcp(flags uint8, src packet.Addr, sport uint16, dst packet.Addr, dport uint16) []byte {
	return packet.Build{Src: src, SrcPort: sport, Dst: dst, DstPort: dport, Flags: flags}.TCP(nil)
}

// out sends a frame from inside, wants it forwarded, and returns its alias endpoint.
func (w *world) out(frame []byte) Alias {
	w.t.Helper()
	p := w.send(Inside, frame)
	if p.Verdict != Forward {
		w.t.Fatalf("outbound: verdict %d, reason %v", p.Verdict, p.Reason)
	}
	src, _ := ends(p)
	return Alias(src)
}

// in sends a frame from outside, wants it forwarded, and returns the inside endpoint it goes to.
func (w *world) in(frame []byte) Local {
	w.t.Helper()
	p := w.send(Outside, frame)
	if p.Verdict != Forward {
		w.t.Fatalf("inbound: verdict %d, reason %v", p.Verdict, p.Reason)
	}
	_, dst := ends(p)
	return Local(dst)
}

// refused sends a frame and wants it not forwarded for why.
func (w *world) refused(side Side, frame []byte, v Verdict, why reason.Reason) {
	w.t.Helper()
	p := w.send(side, frame)
	if p.Verdict != v || p.Reason != why {
		w.t.Fatalf("verdict %d, reason %v; want %d, %v", p.Verdict, p.Reason, v, why)
	}
	if string(p.Data) != string(frame) {
		w.t.Fatal("a packet that is not sent on was changed")
	}
}

func TestUDPOutAndBack(t *testing.T) {
	w := newWorld(t, nil)
	a := w.out(udp(prv1, 4660, ext1, 53))
	if a != (Alias{pub1, 4660}) {
		t.Fatalf("alias %v", a)
	}
	if l := w.in(udp(ext1, 53, pub1, 4660)); l != (Local{prv1, 4660}) {
		t.Fatalf("reply to %v", l)
	}
	if b := w.out(udp(prv1, 4660, ext2, 54)); b != a {
		t.Fatalf("second remote leaves with %v", b)
	}
	if b := w.out(udp(prv2, 4660, ext1, 53)); b == a || b.Addr != pub1 {
		t.Fatalf("second host leaves with %v", b)
	}
	w.refused(Outside, udp(ext1, 99, pub1, 4660), Drop, reason.Filtered)
	w.refused(Outside, udp(ext1, 99, pub1, 4661), Drop, reason.NoMapping)
	hits := w.s.counters.Hits
	w.out(udp(prv1, 4660, ext1, 53))
	if w.s.counters.Hits != hits+1 {
		t.Fatalf("hits %d", w.s.counters.Hits)
	}
	w.pass(301 * time.Second)
	if n := w.s.Counters().Links; n != 0 {
		t.Fatalf("%d links left", n)
	}
}
