package nat

import (
	"encoding/binary"

	"pollux/internal/clock"
	"pollux/internal/packet"
)

// candidate returns the first line whose hash is h, 0 if there is none. Its key is still to be compared. Nine out of ten are
// in the first two slots, which are looked at together: a branch for each would be mispredicted too often.
func (s *Shard) candidate(h uint32) uint32 {
	i := s.exact.home(h)
	pair := (*[2]uint64)(s.padded[i:])
	n, d, e := uint32(pair[1]), uint32(pair[0]>>32)^h, uint32(pair[1]>>32)^h
	if d == 0 {
		n = uint32(pair[0])
	}
	if uint64(d)*uint64(e) != 0 {
		n = s.distant(h, i)
	}
	return n
}

// distant goes on where candidate gave up.
func (s *Shard) distant(h, i uint32) uint32 {
	x := &s.exact
	for ; ; i = x.next(i) {
		switch slot := x.slots[i]; {
		case slot == 0:
			return 0
		case uint32(slot>>32) == h:
			return uint32(slot)
		}
	}
}

// lookup returns the line of a tuple, 0 if there is none.
func (s *Shard) lookup(t tuple, h uint32) uint32 {
	x := &s.exact
	for i := x.home(h); ; i = x.next(i) {
		slot := x.slots[i]
		if slot == 0 {
			return 0
		}
		if l := uint32(slot); uint32(slot>>32) == h && s.lines[l].key == t {
			return l
		}
	}
}

// Translate decides what becomes of each packet of a burst, in order, and rewrites the frames that go on.
func (s *Shard) Translate(b []Packet, now clock.Tick) {
	s.keeper.enter()
	s.now = now
	hits := uint64(0)
	for i := range b {
		p := &b[i]
		if s.Hit(p, now) {
			hits++
			continue
		}
		s.Miss(p, now)
	}
	s.counters.Hits += hits
	s.counters.Misses += uint64(len(b)) - hits
	s.keeper.leave()
}

// Hit translates a packet of an established link that Touch found: one line, stored deltas, one timer touch. It reports false
// and changes nothing when the packet needs a longer look.
func (s *Shard) Hit(p *Packet, now clock.Tick) bool {
	n := p.slot
	p.slot = 0
	if int(n) >= len(s.lines) {
		return false
	}
	l := &s.lines[n]
	t, ok := tupleOf(p)
	h := &p.H
	if l.key != t || !ok || h.TTL <= 1 || h.FragOff != 0 || h.Flags&packet.FlagMF != 0 ||
		l.watch&(h.TCPFlags|0x80) != 0 || l.epoch != s.epoch8 || now.Since(l.last) > s.quick {
		return false
	}
	s.forward(p, l, n&1, now)
	return true
}

// forward rewrites the frame by a line's deltas and touches the line: outbound packets get another source, inbound ones
// another destination.
func (s *Shard) forward(p *Packet, l *line, direction uint32, now clock.Tick) {
	h := &p.H
	side := direction & 1
	ip := (*[20]byte)(p.Data[h.L3:])
	ip[8]--
	binary.BigEndian.PutUint16(ip[10:12], packet.ApplyDelta(binary.BigEndian.Uint16(ip[10:12]), l.ip))
	binary.BigEndian.PutUint32(ip[12+4*side:16+4*side], uint32(l.addr))
	switch h.Kind {
	case packet.KindUDP:
		u := (*[8]byte)(p.Data[h.L4:])
		binary.BigEndian.PutUint16(u[2*side:2*side+2], l.port)
		binary.BigEndian.PutUint16(u[6:8], packet.ApplyDeltaUDP(binary.BigEndian.Uint16(u[6:8]), l.l4))
	case packet.KindTCP:
		u := (*[18]byte)(p.Data[h.L4:])
		binary.BigEndian.PutUint16(u[2*side:2*side+2], l.port)
		binary.BigEndian.PutUint16(u[16:18], packet.ApplyDelta(binary.BigEndian.Uint16(u[16:18]), l.l4))
	case packet.KindICMPQuery:
		u := (*[8]byte)(p.Data[h.L4:])
		binary.BigEndian.PutUint16(u[4:6], l.port)
		binary.BigEndian.PutUint16(u[2:4], packet.ApplyDelta(binary.BigEndian.Uint16(u[2:4]), l.l4))
	}
	l.last = now
	l.packets++
	l.bytes += uint64(h.Len)
	p.Hop = &l.hop
	p.Verdict = Forward
	p.Reason = 0
}
