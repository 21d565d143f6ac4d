package nat

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"testing"

	"pollux/internal/clock"
	"pollux/internal/packet"
	"pollux/internal/reason"
)

// plane is a worker around a shard for tests that send whatever they like: bursts through parse, touch and translate, the
// second pass of hairpins, packets that the shard holds and gives back. It judges every packet on its way:
//
//   - no byte outside the frame is written, nor one in it that translation has no business with;
//   - checksums that were right stay right: IP, TCP, UDP, ICMP, and those of a quoted packet; the sum of a first fragment
//     stays what it was, so that the reassembled datagram's is right too;
//   - what is not sent on is as it was received, unless it is dropped;
//   - no source of the inside networks leaves on the outside, and none of their addresses in a quoted packet, unless the
//     rules leave the packet alone;
//   - nothing is sent on with a TTL of 0;
//   - every frame held is given back once.
type plane struct {
	t      testing.TB
	s      *Shard
	inside func(packet.Addr) bool // the inside networks
	now    clock.Tick

	burst []Packet
	orig  [][]byte // what each packet of the burst was on the wire
	held  map[uint64]*parcel
	next  uint64
	story func() string // what led here, for messages

	// done is told every packet whose fate is sealed, by the number that add gave it; may be nil. Data is as it leaves, H as
	// it came. Of one that was held and then dropped only Frame, Verdict and Reason are there.
	done func(p *Packet)

	verdicts [Host + 1]int
}

// parcel is a frame in its buffer.
type parcel struct {
	data  []byte // of a longer buffer
	side  Side
	hair  bool
	frame uint64
}

const guard = 32

func newPlane(t testing.TB, s *Shard, now clock.Tick, inside func(packet.Addr) bool) *plane {
	return &plane{t: t, s: s, now: now, inside: inside, held: map[uint64]*parcel{}}
}

func (w *plane) fail(format string, args ...any) {
	w.t.Helper()
	story := ""
	if w.story != nil {
		story = w.story()
	}
	w.t.Fatalf("%s\n%s", fmt.Sprintf(format, args...), story)
}

// enclose copies a frame into a buffer with guard bytes behind it. No slice reaches before a frame.
func enclose(frame []byte) []byte {
	b := bytes.Repeat([]byte{0xa5}, len(frame)+guard)
	copy(b, frame)
	return b[:len(frame)]
}

// guarded checks that nothing behind a frame was written.
func (w *plane) guarded(frame []byte) {
	for i, b := range frame[len(frame) : len(frame)+guard] {
		if b != 0xa5 {
			w.fail("byte %d behind the frame was written", i)
		}
	}
}

// add puts a frame into the next burst and returns its number.
func (w *plane) add(side Side, frame []byte) uint64 {
	w.next++
	w.put(&parcel{data: enclose(frame), side: side, frame: w.next})
	return w.next
}

func (w *plane) put(c *parcel) {
	p := Packet{Data: c.data, Side: c.side, Hairpin: c.hair, Frame: c.frame, Ingress: uint16(c.side)}
	packet.Parse(p.Data, &p.H)
	w.burst = append(w.burst, p)
	w.orig = append(w.orig, bytes.Clone(c.data)) // half-made checksums are completed by now
}

// flush translates the burst, and whatever comes back because of it.
func (w *plane) flush() {
	for len(w.burst) > 0 {
		w.s.Touch(w.burst)
		w.s.Translate(w.burst, w.now)
		for i := range w.burst {
			p := &w.burst[i]
			w.judge(p, w.orig[i])
		}
		w.burst, w.orig = w.burst[:0], w.orig[:0]
		w.released()
	}
}

// released takes back what the shard gives back.
func (w *plane) released() {
	for {
		r, ok := w.s.NextReleased()
		if !ok {
			return
		}
		c := w.held[r.Frame]
		if c == nil {
			w.fail("frame %d was given back, but not held", r.Frame)
		}
		delete(w.held, r.Frame)
		if int(r.Len) != len(c.data) || r.Side != c.side || r.Hairpin != c.hair || r.Ingress != uint16(c.side) {
			w.fail("given back as %+v, held was %d bytes of side %v, hairpin %v", r, len(c.data), c.side, c.hair)
		}
		if r.Again {
			w.put(c)
			continue
		}
		if r.Reason == reason.None {
			w.fail("given back to be dropped for no reason")
		}
		w.finish(&Packet{Frame: r.Frame, Verdict: Drop, Reason: r.Reason})
	}
}

// advance runs the clock on in steps, timers included.
func (w *plane) advance(d, step uint32, budget int) {
	for end := w.now + clock.Tick(d); ; {
		for w.s.Advance(w.now, budget) >= budget {
			w.released()
			w.flush()
		}
		w.released()
		w.flush()
		left := end.Since(w.now)
		if left == 0 {
			return
		}
		w.now += clock.Tick(min(left, step))
	}
}

// judge checks what was done with a packet; was is the frame before.
func (w *plane) judge(p *Packet, was []byte) {
	if len(p.Data) != len(was) {
		w.fail("a frame of %d bytes has %d now", len(was), len(p.Data))
	}
	w.guarded(p.Data)
	same := bytes.Equal(p.Data, was)
	switch p.Verdict {
	case Forward, Again:
		w.rewritten(p, was)
	case Drop:
		if p.Reason == reason.None {
			w.fail("dropped for no reason")
		}
		w.finish(p)
		return
	case Answer:
		if !same {
			w.fail("answered with %d/%d, but the frame was changed: % x, was % x", p.ICMPType, p.ICMPCode, p.Data, was)
		}
		if p.Reason == reason.None || p.ICMPType != 3 && p.ICMPType != 11 {
			w.fail("answered with %d/%d for %v", p.ICMPType, p.ICMPCode, p.Reason)
		}
		w.finish(p)
		return
	case Host:
		if !same || p.Reason != reason.ToHost {
			w.fail("the host's packet was changed: % x, was % x (%v)", p.Data, was, p.Reason)
		}
		w.finish(p)
		return
	case Keep:
		if !same || w.held[p.Frame] != nil {
			w.fail("a held packet was changed, or is held twice: % x, was % x", p.Data, was)
		}
		w.held[p.Frame] = &parcel{data: p.Data, side: p.Side, hair: p.Hairpin, frame: p.Frame}
		return
	}
	if p.Verdict == Again {
		w.secondPass(p)
		return
	}
	w.leaves(p)
}

// secondPass submits a hairpinned packet once more, as its receiver will see it.
func (w *plane) secondPass(p *Packet) {
	if p.Hairpin || p.Side != Inside {
		w.fail("a packet of side %v, hairpin %v, goes round", p.Side, p.Hairpin)
	}
	b := []Packet{*p}
	q := &b[0]
	q.Side, q.Hairpin = Outside, true
	packet.Parse(q.Data, &q.H)
	was := bytes.Clone(q.Data)
	if q.H.Reason != reason.None {
		w.fail("after the first pass: %v in % x", q.H.Reason, was)
	}
	w.s.Translate(b, w.now)
	if q.Verdict == Again {
		w.fail("a packet goes round twice: % x", was)
	}
	w.judge(q, was)
	p.Verdict, p.Reason = q.Verdict, q.Reason
}

// rewritten checks what one pass did to the bytes of a packet.
func (w *plane) rewritten(p *Packet, was []byte) {
	h, l3, l4 := &p.H, int(p.H.L3), int(p.H.L4)
	may := make([]bool, len(was))
	allow := func(from, to int) {
		for i := from; i < min(to, len(may)); i++ {
			may[i] = true
		}
	}
	allow(l3+8, l3+9)
	allow(l3+10, l3+12)
	if h.Kind == packet.KindICMPError || p.Side == Outside {
		allow(l3+16, l3+20)
	}
	if p.Side == Inside {
		allow(l3+12, l3+16)
	}
	field := 0 // of the L4 checksum
	port := l4
	if p.Side == Outside {
		port += 2
	}
	switch h.Kind {
	case packet.KindTCP:
		allow(port, port+2)
		field = l4 + 16
		if h.TCPFlags&packet.TCPSyn != 0 && w.s.rules.MSSClamp != 0 {
			allow(l4+20, l4+int(was[l4+12]>>4)*4)
		}
	case packet.KindUDP:
		allow(port, port+2)
		field = l4 + 6
	case packet.KindICMPQuery:
		allow(l4+4, l4+6)
		field = l4 + 2
	case packet.KindICMPError:
		field = l4 + 2
	}
	if field != 0 {
		allow(field, field+2)
	}
	if h.Kind == packet.KindICMPError {
		w.quoteRewritten(p, was, allow)
	}
	for i := range was {
		if was[i] != p.Data[i] && !may[i] {
			w.fail("byte %d of a frame of kind %d by side %v was changed: % x, was % x", i, h.Kind, p.Side, p.Data, was)
		}
	}
	steps := was[l3+8] - p.Data[l3+8]
	if want := map[Verdict]uint8{Forward: 1, Again: 0}[p.Verdict]; steps != want && !(h.Kind == packet.KindLaterFragment && steps <= 1) {
		w.fail("the TTL lost %d, want %d: % x, was % x", steps, want, p.Data, was)
	}
	if sum16(p.Data[l3:l4], 0) != 0xffff {
		w.fail("the IP header checksum is wrong: % x, was % x", p.Data, was)
	}
	end := l3 + int(h.Len)
	switch h.Kind {
	case packet.KindTCP, packet.KindUDP:
		if zero := was[field]|was[field+1] == 0; h.Kind == packet.KindUDP && zero {
			if p.Data[field]|p.Data[field+1] != 0 {
				w.fail("a UDP checksum of 0 became another: % x, was % x", p.Data, was)
			}
			return
		} else if h.Kind == packet.KindUDP && p.Data[field]|p.Data[field+1] == 0 {
			w.fail("a UDP checksum became 0: % x, was % x", p.Data, was)
		}
		w.sumKept("L4", p.Data[l3+12:l3+20], p.Data[l4:end], was[l3+12:l3+20], was[l4:end])
	case packet.KindICMPQuery, packet.KindICMPError:
		w.sumKept("ICMP", nil, p.Data[l4:end], nil, was[l4:end])
	}
}

// quoteRewritten checks what was done to the packet that an ICMP error quotes.
func (w *plane) quoteRewritten(p *Packet, was []byte, allow func(from, to int)) {
	var q packet.Headers
	if !packet.ParseQuoted(was, &p.H, &q) {
		return
	}
	l3, l4, end := int(q.L3), int(q.L4), int(p.H.L3)+int(p.H.Len)
	allow(l3+10, l3+20)
	w.sumKept("quoted IP", nil, p.Data[l3:l4], nil, was[l3:l4])
	field, pseudo := 0, true
	switch q.Kind {
	case packet.KindTCP:
		allow(l4, l4+4)
		field = l4 + 16
	case packet.KindUDP:
		allow(l4, l4+4)
		field = l4 + 6
	case packet.KindICMPQuery:
		allow(l4+4, l4+6)
		field, pseudo = l4+2, false
	}
	if field == 0 || field+2 > end || q.Kind == packet.KindUDP && was[field]|was[field+1] == 0 {
		return
	}
	allow(field, field+2)
	after, before := p.Data[l3+12:l3+20], was[l3+12:l3+20]
	if !pseudo {
		after, before = nil, nil
	}
	w.sumKept("quoted L4", after, p.Data[l4:end], before, was[l4:end])
}

// sumKept checks that translation left the sum over addresses and bytes as it was: then a checksum that was right is right.
func (w *plane) sumKept(what string, addrs, b, wasAddrs, was []byte) {
	got, want := sum16(b, uint32(sum16(addrs, 0)))%0xffff, sum16(was, uint32(sum16(wasAddrs, 0)))%0xffff
	if got != want {
		w.fail("%s checksum off by %#04x: % x % x, was % x % x", what, got-want, addrs, b, wasAddrs, was)
	}
}

// sum16 is the ones' complement sum of big-endian words (RFC 1071), written apart from the code under test.
func sum16(b []byte, sum uint32) uint16 {
	for ; len(b) >= 2; b = b[2:] {
		sum += uint32(binary.BigEndian.Uint16(b))
	}
	if len(b) == 1 {
		sum += uint32(b[0]) << 8
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return uint16(sum)
}

// leaves checks a packet on its way out.
func (w *plane) leaves(p *Packet) {
	if p.Reason != reason.None {
		w.fail("sent on, with reason %v", p.Reason)
	}
	ip := p.Data[p.H.L3:]
	if ip[8] == 0 {
		w.fail("sent on with TTL 0: % x", p.Data)
	}
	src, dst := packet.Addr(binary.BigEndian.Uint32(ip[12:])), packet.Addr(binary.BigEndian.Uint32(ip[16:]))
	if p.Side == Inside && !w.inside(dst) {
		if w.inside(src) && !w.plain(src, dst) {
			w.fail("%v left for %v with its own address: % x", src, dst, p.Data)
		}
		var q packet.Headers
		if p.H.Kind == packet.KindICMPError && packet.ParseQuoted(p.Data, &p.H, &q) && w.inside(q.Dst) && !w.plain(q.Dst, dst) {
			w.fail("%v left for %v in a quoted packet: % x", q.Dst, dst, p.Data)
		}
	}
	w.finish(p)
}

// finish counts a packet whose fate is sealed.
func (w *plane) finish(p *Packet) {
	w.verdicts[p.Verdict]++
	if w.done != nil {
		w.done(p)
	}
}

// plain reports whether the rules leave packets of an inside host to a remote alone.
func (w *plane) plain(host, remote packet.Addr) bool {
	for _, e := range w.s.rules.Exempt {
		if e.Contains(remote.Netip()) {
			return true
		}
	}
	r := &w.s.rules
	private := host>>24 == 10 || host>>20 == 0xac1 || host>>16 == 0xc0a8 || r.UnregisteredCGN && host>>22 == 0x6440>>6
	return (r.UnregisteredOnly || r.UnregisteredCGN) && !private
}
