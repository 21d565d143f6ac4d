package nat

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"testing"

	"pgregory.net/rapid"

	"pollux/internal/clock"
	"pollux/internal/packet"
	"pollux/internal/reason"
)

// worker plays the part of pmd for one shard: it parses, translates, sends hairpins round, keeps what the shard keeps and
// brings back what it releases. Every frame put in comes out in exactly one of sent, dropped, host, or stays in kept.
type worker struct {
	t       testing.TB
	s       *Shard
	now     clock.Tick
	frames  uint64
	kept    map[uint64][]byte
	sent    [][]byte
	dropped map[reason.Reason]int
	host    [][]byte
}

const (
	hostA  = packet.Addr(0x0a000001)
	hostB  = packet.Addr(0x0a000002)
	aliasA = packet.Addr(0xcb007101)
	peer   = packet.Addr(0xc6336401)
)

func newFragmentWorker(t testing.TB, fragments int, change func(*Rules)) *worker {
	t.Helper()
	r := DefaultRules()
	r.Alias = []packet.Addr{aliasA}
	if change != nil {
		change(&r)
	}
	now := clock.Tick(0xfffffff0) // the tick wraps soon
	s, err := New(Options{Rules: r, Limits: Limits{Links: 5000, Fragments: fragments}, Now: now})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return &worker{t: t, s: s, now: now, kept: map[uint64][]byte{}, dropped: map[reason.Reason]int{}}
}

// put hands a frame in and returns what became of it at first.
func (w *worker) put(side Side, frame []byte) Packet {
	w.frames++
	p := w.one(side, false, bytes.Clone(frame), w.frames)
	w.drain()
	return p
}

func (w *worker) one(side Side, hairpin bool, data []byte, id uint64) Packet {
	b := []Packet{{Data: data, Frame: id, Side: side, Hairpin: hairpin, Ingress: uint16(side) + 5}}
	p := &b[0]
	packet.Parse(p.Data, &p.H)
	received := bytes.Clone(data)
	w.s.Translate(b, w.now)
	switch p.Verdict {
	case Forward:
		w.sent = append(w.sent, p.Data)
	case Again:
		return w.one(Outside, true, p.Data, id)
	case Keep:
		w.kept[id] = p.Data
	case Host:
		w.host = append(w.host, p.Data)
	default:
		w.dropped[p.Reason]++
	}
	if p.Verdict != Forward && !bytes.Equal(data, received) {
		w.t.Errorf("verdict %d changed the frame", p.Verdict)
	}
	return *p
}

func (w *worker) drain() {
	for {
		r, ok := w.s.NextReleased()
		if !ok {
			return
		}
		data, ok := w.kept[r.Frame]
		if !ok || int(r.Len) != len(data) || r.Ingress != uint16(r.Side)+5 && !r.Hairpin {
			w.t.Errorf("released %+v was not kept like that", r)
			return
		}
		delete(w.kept, r.Frame)
		if r.Again {
			w.one(r.Side, r.Hairpin, data, r.Frame)
			continue
		}
		w.dropped[r.Reason]++
	}
}

func (w *worker) advance(to clock.Tick) {
	w.now = to
	for w.s.Advance(w.now, 10) > 0 {
	}
	w.drain()
}

// empty checks that no fragment state is left but for datagrams that are done.
func (w *worker) empty() {
	w.t.Helper()
	f := &w.s.frag
	done := uint32(0)
	for id := f.done.oldest; id != 0; id = f.list[id].next {
		done++
	}
	if uint32(f.index.used) != done || f.held != 0 || f.live != (fragmentQueue{}) || len(w.kept) != 0 {
		w.t.Errorf("left over: %d datagrams, %d pieces, %d frames", uint32(f.index.used)-done, f.held, len(w.kept))
	}
	if _, ok := f.due(); ok != (done != 0) {
		w.t.Error("fragments are due though there are none")
	}
	w.balance()
}

// balance checks that every frame is in exactly one place.
func (w *worker) balance() {
	w.t.Helper()
	n := len(w.sent) + len(w.host) + len(w.kept)
	for _, k := range w.dropped {
		n += k
	}
	if uint64(n) != w.frames {
		w.t.Errorf("%d frames went in, %d are accounted for: %d sent, %d host, %d kept, dropped %v",
			w.frames, n, len(w.sent), len(w.host), len(w.kept), w.dropped)
	}
}

// cut splits a frame into fragments.
func cut(t testing.TB, frame []byte, mtu int) (pieces [][]byte) {
	t.Helper()
	var h packet.Headers
	packet.Parse(frame, &h)
	if !packet.Fragment(frame, &h, mtu, func() []byte { return make([]byte, 14+mtu) }, func(b []byte) { pieces = append(pieces, b) }) {
		t.Fatal("not to be fragmented")
	}
	return pieces
}

// glue joins fragments in any order into the datagram they make; nil when they don't make one.
func glue(pieces [][]byte) []byte {
	data, size := make([]byte, 65536), 0
	var head []byte
	have := 0
	for _, f := range pieces {
		var h packet.Headers
		packet.Parse(bytes.Clone(f), &h)
		body := f[h.L4 : int(h.L3)+int(h.Len)]
		have += copy(data[h.FragOff:], body)
		if h.FragOff == 0 {
			head = f[:h.L4]
		}
		if h.Flags&packet.FlagMF == 0 {
			size = int(h.FragOff) + len(body)
		}
	}
	if size == 0 || have != size || head == nil {
		return nil
	}
	var h packet.Headers
	packet.Parse(append(bytes.Clone(head), data[:size]...), &h)
	b := packet.Build{Src: h.Src, Dst: h.Dst, ID: h.FragID, TTL: head[22], DstMAC: [6]byte(head[:6]), SrcMAC: [6]byte(head[6:12])}
	return b.IP(h.Proto, data[:size])
}

func permutations(n int, visit func([]int)) {
	order := make([]int, n)
	for i := range order {
		order[i] = i
	}
	var walk func(int)
	walk = func(k int) {
		if k == n {
			visit(order)
			return
		}
		for i := k; i < n; i++ {
			order[k], order[i] = order[i], order[k]
			walk(k + 1)
			order[k], order[i] = order[i], order[k]
		}
	}
	walk(0)
}

// Fragments pass in any order in both directions, with the checksum of the whole right at the far end (SPEC B1.12, RFC 4787
// REQ-14).
func TestFragmentsInAnyOrder(t *testing.T) {
	for _, proto := range []string{"udp", "tcp", "echo"} {
		permutations(4, func(order []int) {
			w := newFragmentWorker(t, 16, nil)
			send := func(side Side, b packet.Build, reply bool) []byte {
				t.Helper()
				payload := bytes.Repeat([]byte("abcdefg"), 50)
				whole := b.UDP(payload)
				switch proto {
				case "tcp":
					b.Flags = packet.TCPSyn
					if reply {
						b.Flags |= packet.TCPAck
					}
					whole = b.TCP(payload)
				case "echo":
					if reply {
						b.SrcPort = b.DstPort
					}
					whole = b.Echo(reply, 1, payload)
				}
				pieces := cut(t, whole, 20+104)
				if len(pieces) != 4 {
					t.Fatalf("%d pieces", len(pieces))
				}
				w.sent = nil
				for n, i := range order {
					if p := w.put(side, pieces[i]); p.Verdict == Keep && p.Reason != reason.Held {
						t.Errorf("kept for %v", p.Reason)
					}
					w.balance()
					if w.frames != uint64(n+1) {
						t.Errorf("%d frames of %d", w.frames, n+1)
					}
				}
				got := glue(w.sent)
				if got == nil {
					t.Fatalf("%s %v %v: %d sent, they make no datagram; dropped %v", proto, side, order, len(w.sent), w.dropped)
				}
				if err := packet.Verify(got); err != nil {
					t.Errorf("%s %v %v: %v", proto, side, order, err)
				}
				w.frames, w.dropped = 0, map[reason.Reason]int{}
				return got
			}
			var h packet.Headers
			packet.Parse(send(Inside, packet.Build{Src: hostA, Dst: peer, SrcPort: 4000, DstPort: 53, ID: 7, TTL: 9}, false), &h)
			if h.Src != aliasA || h.Dst != peer || h.TTL != 8 || h.SrcPort == 0 {
				t.Fatalf("out: %+v", h)
			}
			alias := h.SrcPort
			packet.Parse(send(Outside, packet.Build{Src: peer, Dst: aliasA, SrcPort: 53, DstPort: alias, ID: 8, TTL: 9}, true), &h)
			if h.Src != peer || h.Dst != hostA || h.TTL != 8 || h.DstPort != 4000 {
				t.Fatalf("in: %+v", h)
			}
			w.sent, w.frames = nil, 0
			w.empty()
		})
	}
}

// What the first fragment meets, its tail meets, before and after it (SPEC B1.10).
func TestFragmentFate(t *testing.T) {
	inbound := packet.Build{Src: peer, Dst: aliasA, SrcPort: 53, DstPort: 4000, ID: 9}
	outbound := packet.Build{Src: hostA, Dst: peer, SrcPort: 4000, DstPort: 53, ID: 9}
	expiring := outbound
	expiring.TTL = 1
	cases := []struct {
		name   string
		change func(*Rules)
		side   Side
		b      packet.Build
		why    reason.Reason // of the drop, or ToHost
	}{
		{"unsolicited", nil, Outside, inbound, reason.NoMapping},
		{"for the kernel", func(r *Rules) { r.Kernel = r.Alias }, Outside, inbound, reason.ToHost},
		{"TTL runs out", nil, Inside, expiring, reason.TTLExpired},
		{"no alias address", func(r *Rules) { r.Alias = nil }, Inside, outbound, reason.NoPort},
	}
	for _, c := range cases {
		permutations(3, func(order []int) {
			w := newFragmentWorker(t, 16, c.change)
			pieces := cut(t, c.b.UDP(make([]byte, 200)), 20+72)
			for _, i := range order {
				w.put(c.side, pieces[i])
			}
			got := w.dropped[c.why]
			if c.why == reason.ToHost {
				got = len(w.host)
				for _, f := range w.host {
					if !bytes.Equal(f, pieces[0]) && !bytes.Equal(f, pieces[1]) && !bytes.Equal(f, pieces[2]) {
						t.Errorf("%s: the kernel gets %x", c.name, f)
					}
				}
			}
			if got != 3 {
				t.Errorf("%s %v: %d of 3 for %v; sent %d, dropped %v", c.name, order, got, c.why, len(w.sent), w.dropped)
			}
			w.empty()
		})
	}
}

// An unsolicited SYN is held as such even if it comes in pieces; its tail is not.
func TestFragmentedSYN(t *testing.T) {
	w := newFragmentWorker(t, 16, nil)
	b := packet.Build{Src: peer, Dst: aliasA, SrcPort: 53, DstPort: 4000, ID: 9, Flags: packet.TCPSyn}
	pieces := cut(t, b.TCP(make([]byte, 100)), 20+72)
	w.put(Outside, pieces[1])
	if p := w.put(Outside, pieces[0]); p.Verdict != Keep {
		t.Fatalf("verdict %d, %v", p.Verdict, p.Reason)
	}
	if w.dropped[reason.NoMapping] != 1 || len(w.kept) != 1 {
		t.Errorf("tail: kept %d, dropped %v", len(w.kept), w.dropped)
	}
	w.advance(w.now + 6001)
	if w.dropped[reason.NoMapping] != 2 {
		t.Errorf("SYN: kept %d, dropped %v", len(w.kept), w.dropped)
	}
	w.empty()
}

// A later fragment whose own TTL runs out is dropped in silence; the others go on.
func TestFragmentTTL(t *testing.T) {
	w := newFragmentWorker(t, 16, nil)
	b := packet.Build{Src: hostA, Dst: peer, SrcPort: 4000, DstPort: 53, ID: 9}
	pieces := cut(t, b.UDP(make([]byte, 200)), 20+72)
	var h packet.Headers
	packet.Parse(pieces[1], &h)
	for range 63 {
		packet.DecrementTTL(pieces[1], &h)
	}
	for _, p := range pieces {
		w.put(Inside, p)
	}
	if len(w.sent) != 2 || w.dropped[reason.TTLExpired] != 1 {
		t.Errorf("sent %d, dropped %v", len(w.sent), w.dropped)
	}
	w.empty()
}

// A hairpinned datagram goes round piece by piece; the inside peer sees the external endpoint (RFC 4787 REQ-9a).
func TestFragmentHairpin(t *testing.T) {
	permutations(3, func(order []int) {
		w := newFragmentWorker(t, 16, func(r *Rules) {
			r.RedirectPort = []RedirectPort{{Proto: packet.ProtoUDP, Public: Alias{aliasA, 53}, Local: []Local{{hostB, 5353}}}}
		})
		b := packet.Build{Src: hostA, Dst: aliasA, SrcPort: 4000, DstPort: 53, ID: 9, TTL: 9}
		pieces := cut(t, b.UDP(make([]byte, 200)), 20+72)
		for _, i := range order {
			w.put(Inside, pieces[i])
		}
		got := glue(w.sent)
		if got == nil {
			t.Fatalf("%v: sent %d, dropped %v", order, len(w.sent), w.dropped)
		}
		var h packet.Headers
		packet.Parse(got, &h)
		if err := packet.Verify(got); err != nil || h.Src != aliasA || h.Dst != hostB || h.DstPort != 5353 || h.TTL != 8 {
			t.Errorf("%v: %+v, %v", order, h, err)
		}
		for _, f := range w.sent {
			if f[22] != 8 {
				t.Errorf("%v: a piece leaves with TTL %d", order, f[22])
			}
		}
		w.empty()
	})
}

// State that a hairpin made does not let pieces in that come from outside with the same addresses and id.
func TestFragmentHairpinForged(t *testing.T) {
	w := newFragmentWorker(t, 16, func(r *Rules) {
		r.RedirectPort = []RedirectPort{{Proto: packet.ProtoUDP, Public: Alias{aliasA, 53}, Local: []Local{{hostB, 5353}}}}
	})
	b := packet.Build{Src: hostA, Dst: aliasA, SrcPort: 4000, DstPort: 53, ID: 9}
	if p := w.put(Inside, cut(t, b.UDP(make([]byte, 200)), 20+72)[0]); p.Verdict != Forward {
		t.Fatalf("hairpin: %d %v", p.Verdict, p.Reason)
	}
	b.Src = aliasA
	if p := w.put(Outside, later(b, 72, 72, true)); p.Verdict == Forward {
		t.Error("a forged piece was let in")
	}
}

// later builds one later fragment of the UDP datagram b.
func later(b packet.Build, off, n int, more bool) []byte {
	b.FragOff, b.MF = uint16(off), more
	return b.IP(packet.ProtoUDP, make([]byte, n))
}

// Pieces that contradict each other end the whole datagram: those that are held, and all that come after.
func TestFragmentBad(t *testing.T) {
	b := packet.Build{Src: hostA, Dst: peer, SrcPort: 4000, DstPort: 53, ID: 9}
	pieces := cut(t, b.UDP(make([]byte, 285)), 20+72) // 0..71, 72..143, 144..215, 216..287, 288..292
	otherPorts := b
	otherPorts.SrcPort = 4001
	for name, bad := range map[string][]byte{
		"across two":               later(b, 64, 16, true),
		"into the hole":            later(b, 136, 16, true),
		"over the hole":            later(b, 136, 80, true),
		"inside another":           later(b, 80, 8, true),
		"two seen pieces as one":   later(b, 216, 77, false),
		"same place, shorter":      later(b, 72, 64, true),
		"same place, now the last": later(b, 216, 72, false),
		"no multiple of 8":         later(b, 144, 15, true),
		"empty":                    later(b, 144, 0, true),
		"beyond 64 KiB":            later(b, 65528, 8, false),
		"behind the end":           later(b, 296, 8, true),
		"another end, same unit":   later(b, 288, 4, false),
		"second beginning":         cut(t, otherPorts.UDP(make([]byte, 285)), 20+72)[0],
	} {
		t.Run(name, func(t *testing.T) {
			for _, early := range []bool{false, true} {
				w := newFragmentWorker(t, 16, nil)
				before := [][]byte{pieces[0], pieces[1], pieces[3], pieces[4]}
				if early {
					if before = before[1:]; name == "across two" || name == "second beginning" {
						continue // contradict the first piece
					}
				}
				for _, f := range before {
					w.put(Inside, f)
				}
				for _, f := range [][]byte{bad, pieces[2], pieces[0]} {
					w.put(Inside, f)
				}
				want := 3
				if early {
					want += 3
				}
				if w.dropped[reason.FragmentBad] != want || early && len(w.sent) != 0 {
					t.Errorf("early %v: sent %d, dropped %v, want %d for fragment-bad", early, len(w.sent), w.dropped, want)
				}
				w.advance(w.now.Add(w.s.rules.Timeouts.Fragment) + 1)
				w.empty()
				w.sent = nil
				for _, f := range pieces {
					w.put(Inside, f)
				}
				if glue(w.sent) == nil {
					t.Error("after the timeout the id can't be used again")
				}
			}
		})
	}
}

// Pieces without a beginning wait for timeouts.fragment from the first of them, then they are dropped; Due says when.
func TestFragmentTimeout(t *testing.T) {
	w := newFragmentWorker(t, 16, nil)
	b := packet.Build{Src: peer, Dst: aliasA, SrcPort: 53, DstPort: 4000, ID: 9}
	pieces := cut(t, b.UDP(make([]byte, 200)), 20+72)
	start := w.now
	w.put(Outside, pieces[2])
	w.advance(start + 6000)
	w.put(Outside, pieces[1]) // does not extend the time
	if at, ok := w.s.frag.due(); !ok || at != start+10001 {
		t.Errorf("due at %d (%v) after the start", at-start, ok)
	}
	w.advance(start + 10000)
	if len(w.kept) != 2 {
		t.Fatalf("after exactly 10 s %d pieces are held", len(w.kept))
	}
	w.advance(start + 10001)
	if w.dropped[reason.FragmentTimeout] != 2 {
		t.Errorf("dropped %v", w.dropped)
	}
	w.empty()

	// Also when nobody called Advance: the late state is not used.
	w.put(Outside, pieces[2])
	w.now += 10001
	w.put(Outside, pieces[1])
	if w.dropped[reason.FragmentTimeout] != 3 || len(w.kept) != 1 {
		t.Errorf("kept %d, dropped %v", len(w.kept), w.dropped)
	}
}

// Held pieces are bounded, all of them and of one datagram, and so are datagrams.
func TestFragmentLimit(t *testing.T) {
	w := newFragmentWorker(t, 4, nil)
	b := packet.Build{Src: peer, Dst: aliasA, SrcPort: 53, DstPort: 4000}
	for id := range 6 {
		b.ID = uint16(id)
		w.put(Outside, later(b, 72, 72, false))
	}
	if len(w.kept) != 4 || w.dropped[reason.FragmentLimit] != 2 {
		t.Errorf("datagrams: kept %d, dropped %v", len(w.kept), w.dropped)
	}
	w.advance(w.now + 10001)
	w.empty()
	for i := range 6 {
		w.put(Outside, later(b, 72+8*i, 8, true))
	}
	if len(w.kept) != 4 || w.dropped[reason.FragmentLimit] != 4 {
		t.Errorf("pieces: kept %d, dropped %v", len(w.kept), w.dropped)
	}

	w = newFragmentWorker(t, 1000, nil)
	for i := range heldMax + 2 {
		w.put(Outside, later(b, 72+8*i, 8, true))
	}
	if len(w.kept) != 0 || w.dropped[reason.FragmentLimit] != heldMax+2 {
		t.Errorf("one datagram: kept %d, dropped %v", len(w.kept), w.dropped)
	}
}

// A flood of pieces without beginnings does not keep out datagrams that come in order.
func TestFragmentsBesideOrphans(t *testing.T) {
	w := newFragmentWorker(t, 4, nil)
	flood := packet.Build{Src: peer, Dst: aliasA, SrcPort: 53, DstPort: 4000}
	orphans := func() {
		for range 6 {
			flood.ID++
			w.put(Outside, later(flood, 72, 72, false))
		}
	}
	b := packet.Build{Src: hostA, Dst: peer, SrcPort: 4000, DstPort: 53, ID: 9000}
	orphans()
	for range 10 {
		b.ID++
		before := w.dropped[reason.FragmentLimit]
		for i, f := range cut(t, b.UDP(make([]byte, 341)), 20+72) {
			if got := w.put(Inside, f).Verdict; got != Forward {
				t.Fatalf("datagram %d, piece %d: %v, dropped %v", b.ID, i, got, w.dropped)
			}
			orphans()
		}
		if w.dropped[reason.FragmentLimit] == before {
			t.Fatal("nothing was refused: the flood does not fill the table")
		}
	}
	if len(w.kept) > 4 {
		t.Errorf("%d pieces are kept", len(w.kept))
	}
	w.balance()
}

// Pieces on their way back count for the limit, so that the queue behind NextReleased can't overflow.
func TestFragmentLimitCountsReleased(t *testing.T) {
	w := newFragmentWorker(t, 4, nil)
	b := packet.Build{Src: hostA, Dst: peer, SrcPort: 4000, DstPort: 53, ID: 9}
	pieces := cut(t, b.UDP(make([]byte, 341)), 20+72)
	for _, f := range pieces[1:] {
		w.put(Inside, f)
	}
	if len(w.kept) != 4 {
		t.Fatalf("%d kept", len(w.kept))
	}
	w.frames += 2
	w.one(Inside, false, bytes.Clone(pieces[0]), w.frames-1) // lets go of four, which nobody takes yet
	b.ID++
	w.one(Inside, false, later(b, 72, 72, true), w.frames)
	if w.dropped[reason.FragmentLimit] != 1 {
		t.Errorf("with four released and not taken a fifth was kept: %d kept, dropped %v", len(w.kept), w.dropped)
	}
	w.drain()
	if w.put(Inside, later(b, 72, 72, true)).Verdict != Keep || glue(w.sent) == nil {
		t.Errorf("afterwards: sent %d, dropped %v", len(w.sent), w.dropped)
	}
	w.balance()
}

// A sender that is out of ids may use one again as soon as the datagram is whole; no state piles up.
func TestFragmentIDReuse(t *testing.T) {
	w := newFragmentWorker(t, 4, nil)
	b := packet.Build{Src: hostA, Dst: peer, SrcPort: 4000, DstPort: 53, ID: 9}
	for i := range 1000 {
		b.SrcPort = uint16(4000 + i%3) // another port each time: not a repetition
		for _, f := range cut(t, b.UDP(make([]byte, 200)), 20+72) {
			w.put(Inside, f)
		}
	}
	if len(w.sent) != 3000 {
		t.Errorf("sent %d of 3000; dropped %v", len(w.sent), w.dropped)
	}
	w.empty()
}

// What a network doubles passes doubled.
func TestFragmentRepeated(t *testing.T) {
	w := newFragmentWorker(t, 16, nil)
	b := packet.Build{Src: hostA, Dst: peer, SrcPort: 4000, DstPort: 53, ID: 9}
	pieces := cut(t, b.UDP(make([]byte, 200)), 20+72)
	for _, i := range []int{2, 2, 0, 0, 2, 1, 1, 2} { // the last two when it is whole already
		w.put(Inside, pieces[i])
	}
	if len(w.sent) != 8 || len(w.dropped) != 0 {
		t.Errorf("sent %d, dropped %v", len(w.sent), w.dropped)
	}
	w.empty()
	w.advance(w.now + doneTicks + 1)
	if w.s.frag.index.used != 0 {
		t.Error("a whole datagram is remembered for longer than a second")
	}
	if p := w.put(Inside, pieces[2]); p.Verdict != Keep {
		t.Errorf("a piece after that is no repetition: verdict %d", p.Verdict)
	}
}

// What is remembered of whole datagrams takes no place from others.
func TestFragmentDoneMakesRoom(t *testing.T) {
	w := newFragmentWorker(t, 2, nil)
	for id := range uint16(50) {
		b := packet.Build{Src: hostA, Dst: peer, SrcPort: 4000, DstPort: 53, ID: id}
		for _, f := range cut(t, b.UDP(make([]byte, 200)), 20+104) {
			w.put(Inside, f)
		}
	}
	if len(w.sent) != 100 || len(w.dropped) != 0 {
		t.Errorf("sent %d of 100, dropped %v", len(w.sent), w.dropped)
	}
	w.empty()
}

// Datagrams of many hosts, cut, lost, doubled and shuffled: every frame is accounted for, what arrives whole leaves whole,
// and after the timeout nothing is left.
func TestFragmentsUnderChaos(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		w := newFragmentWorker(t, 4096, nil)
		rnd := rand.New(rand.NewPCG(rapid.Uint64().Draw(rt, "seed"), 1))
		type sent struct {
			frame []byte
			id    int
		}
		var queue []sent
		lost := map[int]bool{}
		n := rapid.IntRange(1, 40).Draw(rt, "datagrams")
		for id := range n {
			b := packet.Build{Src: hostA + packet.Addr(id%3), Dst: peer, SrcPort: uint16(4000 + id%5), DstPort: 53, ID: uint16(id)}
			for _, f := range cut(t, b.UDP(bytes.Repeat([]byte{byte(id)}, 100+rnd.IntN(800))), 20+8*(1+rnd.IntN(40))) {
				if rnd.IntN(50) == 0 {
					lost[id] = true
					continue
				}
				queue = append(queue, sent{f, id})
			}
		}
		rnd.Shuffle(len(queue), func(i, j int) { queue[i], queue[j] = queue[j], queue[i] })
		for _, q := range queue {
			w.put(Inside, q.frame)
		}
		out := map[uint16][][]byte{}
		for _, f := range w.sent {
			var h packet.Headers
			packet.Parse(bytes.Clone(f), &h)
			out[h.FragID] = append(out[h.FragID], f)
		}
		tooMany := w.dropped[reason.FragmentLimit] > 0
		for id := range n {
			if lost[id] || tooMany {
				continue
			}
			whole := glue(out[uint16(id)])
			if whole == nil {
				rt.Fatalf("datagram %d did not leave whole: %d pieces; dropped %v", id, len(out[uint16(id)]), w.dropped)
			}
			if err := packet.Verify(whole); err != nil {
				rt.Fatal(err)
			}
		}
		w.advance(w.now + 10001)
		w.empty()
		if t.Failed() {
			rt.FailNow()
		}
	})
}

// Whatever pieces come, in whatever order and however they lie: every frame is accounted for, the limits hold, and after the
// timeout nothing is left.
func FuzzFragments(f *testing.F) {
	f.Add([]byte("\x00\x00\x09\x01\x00\x09\x09\x00"))
	f.Add([]byte("\x00\x09\x09\x00\x00\x00\x09\x01\x10\x09\x09\x01\x05\xff\x08\x00\x80\x00\x00\x00"))
	f.Fuzz(func(t *testing.T, script []byte) {
		w := newFragmentWorker(t, 8, func(r *Rules) {
			r.RedirectPort = []RedirectPort{{Proto: packet.ProtoUDP, Public: Alias{aliasA, 53}, Local: []Local{{hostB, 5353}}}}
		})
		for ; len(script) >= 4; script = script[4:] {
			op, at, n, more := script[0], script[1], script[2], script[3]&1 != 0
			if op&0x80 != 0 {
				w.advance(w.now + clock.Tick(at)*100)
				continue
			}
			b := packet.Build{Src: hostA, Dst: peer, SrcPort: 4000, DstPort: 53, ID: uint16(op & 3), FragOff: uint16(at) * 8, MF: more}
			side := Inside
			switch op >> 4 & 3 {
			case 1:
				side, b.Src, b.Dst, b.DstPort = Outside, peer, aliasA, 4000
			case 2:
				b.Dst = aliasA
			case 3:
				b.SrcPort = 4001
			}
			if at == 0 {
				w.put(side, b.UDP(make([]byte, n)))
			} else {
				w.put(side, b.IP(packet.ProtoUDP, make([]byte, n)))
			}
			fr := &w.s.frag
			if len(w.kept) != fr.held || fr.held > 8 || fr.index.used > 8 {
				t.Fatalf("%d kept, %d held, %d datagrams", len(w.kept), fr.held, fr.index.used)
			}
		}
		w.balance()
		w.advance(w.now + 10001)
		w.empty()
	})
}

// mark against a model that keeps a list of the pieces.
func TestExtentAgainstModel(t *testing.T) {
	type seen struct {
		from, to int
		last     bool
	}
	rapid.Check(t, func(t *rapid.T) {
		var x extent
		var d datagram
		var list []seen
		for range rapid.IntRange(1, 30).Draw(t, "n") {
			p := seen{from: 8 * rapid.IntRange(0, 20).Draw(t, "from"), last: rapid.IntRange(0, 5).Draw(t, "last") == 0}
			p.to = p.from + rapid.IntRange(0, 10).Draw(t, "units")*8
			if p.last {
				p.to += rapid.IntRange(0, 7).Draw(t, "odd")
			}
			if rapid.IntRange(0, 4).Draw(t, "far") == 0 {
				p.from, p.to = p.from+64800, p.to+64800
			}
			wantOK, wantRepeated := p.to > p.from && p.to+20 <= 65535, false
			for _, q := range list {
				switch {
				case p == q:
					wantRepeated = true
				case p.from < (q.to+7)/8*8 && q.from < (p.to+7)/8*8,
					q.last && p.to >= q.to, p.last && q.to >= p.to:
					wantOK = false
				}
			}
			h := packet.Headers{L3: 14, L4: 34, Len: uint16(20 + p.to - p.from), FragOff: uint16(p.from)}
			if !p.last {
				h.Flags = packet.FlagMF
			}
			repeated, ok := x.mark(&d, &h)
			if ok != wantOK || ok && repeated != wantRepeated {
				t.Fatalf("%+v after %+v: ok %v repeated %v, want %v %v", p, list, ok, repeated, wantOK, wantRepeated)
			}
			if ok && !repeated {
				list = append(list, p)
			}
		}
		units, end := 0, 0
		for _, q := range list {
			units += (q.to - q.from + 7) / 8
			if q.last {
				end = (q.to + 7) / 8
			}
		}
		if got, want := d.complete(), end != 0 && units == end; got != want {
			t.Fatalf("complete is %v, want %v: %+v", got, want, list)
		}
	})
}

// Fragments take no memory from the heap.
func TestFragmentNoAllocations(t *testing.T) {
	w := newFragmentWorker(t, 16, nil)
	b := packet.Build{Src: hostA, Dst: peer, SrcPort: 4000, DstPort: 53}
	pieces := cut(t, b.UDP(make([]byte, 200)), 20+72)
	batch := make([]Packet, 3)
	copies := make([][]byte, 3)
	for i := range copies {
		copies[i] = make([]byte, len(pieces[i]))
	}
	round := func(order [3]int) {
		for k, i := range order {
			copy(copies[i], pieces[i])
			batch[k] = Packet{Data: copies[i], Side: Inside}
			packet.Parse(batch[k].Data, &batch[k].H)
		}
		w.s.Translate(batch, w.now)
		for {
			r, ok := w.s.NextReleased()
			if !ok {
				return
			}
			if r.Again {
				w.s.Translate(batch[:1], w.now)
			}
		}
	}
	round([3]int{0, 1, 2})
	if n := testing.AllocsPerRun(100, func() { round([3]int{0, 1, 2}); round([3]int{2, 0, 1}) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkFragments(b *testing.B) {
	for _, n := range []int{2, 6, 44} {
		b.Run(fmt.Sprintf("datagram-of-%d", n), func(b *testing.B) {
			w := newFragmentWorker(b, 4096, nil)
			pieces := cut(b, packet.Build{Src: hostA, Dst: peer, SrcPort: 4000, DstPort: 53}.UDP(make([]byte, 1480*n-100)), 1500)
			batch := make([]Packet, n)
			var heads [64][34]byte
			for i := range pieces {
				heads[i] = [34]byte(pieces[i])
				batch[i] = Packet{Data: pieces[i], Side: Inside}
				packet.Parse(pieces[i], &batch[i].H)
			}
			b.ReportAllocs()
			for b.Loop() {
				for i := range pieces {
					copy(pieces[i], heads[i][:])
				}
				w.s.Translate(batch, w.now)
			}
			if batch[n-1].Verdict != Forward {
				b.Fatalf("verdict %d, %v", batch[n-1].Verdict, batch[n-1].Reason)
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(n), "ns/fragment")
		})
	}
}
