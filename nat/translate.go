package nat

import (
	"encoding/binary"
	"unsafe"

	"pollux/internal/clock"
	"pollux/internal/packet"
)

// candidate returns the first line whose hash is h; miss is 0 if one of the two slots has it. Its key is still to be compared.
// Nine out of ten are in the first two slots, which are looked at together: a branch for each would be mispredicted too often.
func candidate(pair *[2]uint64, h uint32) (n uint32, miss uint64) {
	n = uint32(pair[1])
	d, e := uint32(pair[0]>>32)^h, uint32(pair[1]>>32)^h
	if d == 0 {
		n = uint32(pair[0])
	}
	return n, uint64(d) * uint64(e)
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
// returns how many they were. It calls nothing, so that all it needs stays in registers.
func (s *Shard) hitPlain(b []Packet, now clock.Tick) int {
	lines, quick, epoch := s.lines, s.quick, uint16(s.epoch8)<<8
	at, size := uintptr(0), unsafe.Sizeof(Packet{})
	for end := uintptr(len(b)) * size; at < end; at += size { // a pointer or an index would each take a register more
		p := (*Packet)(unsafe.Add(unsafe.Pointer(unsafe.SliceData(b)), at))
		h, n, frame := &p.H, p.slot, p.Data
		if uint(n) >= uint(len(lines)) || len(frame) < plainLen {
			break
		}
		l := &lines[n]
		addrs, _ := h.Key()
		if (addrs^l.key.addrs)|(p.ports^l.key.ports) != 0 || h.Flags&packet.FlagPlain == 0 ||
			((uint16(l.watch)|uint16(l.epoch)<<8)^epoch)&(0xff80|uint16(h.TCPFlags)) != 0 || now.Since(l.last) > quick {
			break
		}
		f := (*[plainLen]byte)(frame)
		if h.Kind == packet.KindUDP {
			if field := binary.LittleEndian.Uint16(f[40:42]); field != 0 {
				binary.LittleEndian.PutUint16(f[40:42], packet.ApplyDeltaUDP(field, l.l4))
			}
		} else {
			if len(frame) < plainTCPLen {
				break // never after Parse
			}
			t := (*[plainTCPLen]byte)(frame)
			binary.LittleEndian.PutUint16(t[50:52], packet.ApplyDelta(binary.LittleEndian.Uint16(t[50:52]), l.l4))
		}
		// TTL, protocol and checksum are one word: packet.ApplyDelta in its upper half, one less in its lowest byte, which is
		// not 0.
		word := uint64(binary.LittleEndian.Uint32(f[22:26])) - uint64(l.ip)<<16 - 1
		binary.LittleEndian.PutUint32(f[22:26], uint32(word)+uint32(word>>32)<<16)
		if n&1 == out {
			binary.LittleEndian.PutUint32(f[26:30], uint32(l.addr))
			binary.LittleEndian.PutUint16(f[34:36], uint16(l.port))
		} else {
			binary.LittleEndian.PutUint32(f[30:34], uint32(l.addr))
			binary.LittleEndian.PutUint16(f[36:38], uint16(l.port))
		}
		l.last = now
		l.packets++
		l.bytes += uint64(h.Len)
		p.Hop = &l.hop
		p.Verdict, p.Reason, p.ICMPType, p.ICMPCode, p.slot = Forward, 0, 0, 0, 0
	}
	return int(at / size)
}

// Lengths of the shortest plain frames: Ethernet, IPv4, UDP or TCP.
const (
	plainLen    = packet.EthernetLen + packet.IPv4Len + packet.UDPLen
	plainTCPLen = packet.EthernetLen + packet.IPv4Len + packet.TCPLen
)

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
	binary.LittleEndian.PutUint16(ip[10:12], packet.ApplyDelta(binary.LittleEndian.Uint16(ip[10:12]), l.ip))
	binary.LittleEndian.PutUint32(ip[12+4*side:16+4*side], uint32(l.addr))
	switch h.Kind {
	case packet.KindUDP:
		u := (*[8]byte)(p.Data[h.L4:])
		binary.LittleEndian.PutUint16(u[2*side:2*side+2], uint16(l.port))
		binary.LittleEndian.PutUint16(u[6:8], packet.ApplyDeltaUDP(binary.LittleEndian.Uint16(u[6:8]), l.l4))
	case packet.KindTCP:
		u := (*[18]byte)(p.Data[h.L4:])
		binary.LittleEndian.PutUint16(u[2*side:2*side+2], uint16(l.port))
		binary.LittleEndian.PutUint16(u[16:18], packet.ApplyDelta(binary.LittleEndian.Uint16(u[16:18]), l.l4))
	case packet.KindICMPQuery:
		u := (*[8]byte)(p.Data[h.L4:])
		binary.LittleEndian.PutUint16(u[4:6], uint16(l.port))
		binary.LittleEndian.PutUint16(u[2:4], packet.ApplyDelta(binary.LittleEndian.Uint16(u[2:4]), l.l4))
	}
	l.last = now
	l.packets++
	l.bytes += uint64(h.Len)
	p.Hop = &l.hop
	p.Verdict = Forward
	p.Reason = 0
}
