package nat

import (
	"encoding/binary"
	"math/bits"

	"pollux/internal/clock"
	"pollux/internal/packet"
)

// candidate returns the first line whose hash is h, 0 if there is none. Its key is still to be compared. Nine out of ten are
// in the first two slots, which are looked at together: a branch for each would be mispredicted too often.
func candidate(pair *[2]uint64, h uint32) (n uint32, ok bool) {
	n = uint32(pair[1])
	d, e := uint32(pair[0]>>32)^h, uint32(pair[1]>>32)^h
	if d == 0 {
		n = uint32(pair[0])
	}
	return n, uint64(d)*uint64(e) == 0
}

// distant goes on where candidate gave up.
//
//go:noinline
func (s *Shard) distant(h uint32) uint32 {
	x := &s.exact
	for i := x.home(h); ; i = x.next(i) {
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

// Translate decides what becomes of each packet of a burst, in order, and rewrites the frames that go on. It returns how
// many of them do not simply go on: whose Verdict is not Forward. Packets that were touched must not have changed since.
func (s *Shard) Translate(b []Packet, now clock.Tick) (others int) {
	s.keeper.enter()
	s.now = now
	for {
		n := s.hitPlain(b, now)
		s.counters.Hits += uint64(n)
		if n == len(b) {
			s.keeper.leave()
			return others
		}
		p := &b[n]
		b = b[n+1:]
		if s.hit(p, now) {
			s.counters.Hits++
			continue
		}
		s.counters.Misses++
		s.Miss(p, now)
		if p.Verdict != Forward {
			others++
		}
	}
}

// hitPlain is hit for plain packets, in which everything has its place: it translates those at the front of a burst and
// returns how many they were.
func (s *Shard) hitPlain(b []Packet, now clock.Tick) int {
	lines, epoch, quick := s.lines, s.epoch8, s.quick
	for i := range b {
		p := &b[i]
		n, frame, h := p.slot, p.Data, &p.H
		if uint(n) >= uint(len(lines)) || len(frame) < plainLen {
			return i
		}
		l := &lines[n]
		if p.key != l.key || h.Flags&packet.FlagPlain == 0 || h.TTL <= 1 || l.watch&(h.TCPFlags|0x80) != 0 ||
			l.epoch != epoch || now.Since(l.last) > quick {
			return i
		}
		p.slot = 0
		f := (*[plainLen]byte)(frame)
		word := binary.LittleEndian.Uint32(f[22:26]) // TTL, protocol, checksum
		sum := packet.ApplyDelta(bits.ReverseBytes16(uint16(word>>16)), l.ip)
		binary.LittleEndian.PutUint32(f[22:26], uint32(uint16(word-1))|uint32(bits.ReverseBytes16(sum))<<16)
		if n&1 == out {
			binary.BigEndian.PutUint32(f[26:30], uint32(l.addr))
			binary.BigEndian.PutUint16(f[34:36], l.port)
		} else {
			binary.BigEndian.PutUint32(f[30:34], uint32(l.addr))
			binary.BigEndian.PutUint16(f[36:38], l.port)
		}
		if h.Kind == packet.KindUDP {
			binary.BigEndian.PutUint16(f[40:42], packet.ApplyDeltaUDP(binary.BigEndian.Uint16(f[40:42]), l.l4))
		} else {
			t := frame[50:52]
			binary.BigEndian.PutUint16(t, packet.ApplyDelta(binary.BigEndian.Uint16(t), l.l4))
		}
		l.last = now
		l.packets++
		l.bytes += uint64(h.Len)
		p.Hop = &l.hop
		p.Verdict, p.Reason, p.ICMPType, p.ICMPCode = Forward, 0, 0, 0
	}
	return len(b)
}

// plainLen is the length of the shortest plain frame: Ethernet, IPv4, UDP.
const plainLen = packet.EthernetLen + packet.IPv4Len + packet.UDPLen

// hit translates a packet of an established link that Touch found: one line, stored deltas, one timer touch. It reports false
// and changes nothing when the packet needs a longer look.
func (s *Shard) hit(p *Packet, now clock.Tick) bool {
	n := p.slot
	p.slot = 0
	if n == 0 || int(n) >= len(s.lines) {
		return false
	}
	l := &s.lines[n]
	t, ok := tupleOf(p)
	h := &p.H
	if l.key != t || !ok || h.TTL <= 1 || h.Fragment() ||
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
