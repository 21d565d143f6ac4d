package nat

import (
	"pollux/internal/clock"
	"pollux/internal/packet"
)

// What a TCP link has seen, in cold.tcp (SPEC C, RFC 5382, RFC 7857).
const (
	tcpSynOut = 1 << iota
	tcpSynIn
	tcpAckOut // an ACK after the other side's SYN
	tcpAckIn
	tcpFinOut
	tcpFinIn

	tcpOpen   = tcpSynOut | tcpSynIn | tcpAckOut | tcpAckIn
	tcpClosed = tcpFinOut | tcpFinIn
)

// segment follows one TCP segment of a link in a direction.
//
//	opening      until each side has acknowledged the other's SYN, which is the handshake's last ACK; a simultaneous open and one
//	             begun from outside are no different. A link picked up midway stays in it.
//	established  until both sides have sent FIN, or one RST
//	closing      until the timer ends, or a SYN opens the same 5-tuple again
func (s *Shard) segment(id uint32, direction uint32, p *Packet, now clock.Tick) {
	c := &s.cold[id]
	f := p.H.TCPFlags
	if s.track && !s.windows[id].accept(direction, p) {
		return
	}
	d := uint8(direction)
	switch {
	case c.state == Closing:
		if f&(packet.TCPSyn|packet.TCPRst) == packet.TCPSyn {
			s.reopen(id, d, p, now)
		}
		return
	case f&packet.TCPRst != 0:
		s.setState(id, Closing, now)
		return
	case f&packet.TCPSyn != 0 && c.state == Opening:
		c.tcp |= tcpSynOut << d
	}
	if f&packet.TCPAck != 0 && c.tcp&(tcpSynIn>>d) != 0 {
		c.tcp |= tcpAckOut << d
	}
	if f&packet.TCPFin != 0 {
		c.tcp |= tcpFinOut << d
	}
	switch {
	case c.tcp&tcpClosed == tcpClosed:
		s.setState(id, Closing, now)
	case c.state == Opening && c.tcp&tcpOpen == tcpOpen:
		s.setState(id, Established, now)
	case c.state == Opening:
		s.watch(id)
	}
}

// reopen starts a closed 5-tuple's next life with the SYN in p.
func (s *Shard) reopen(id uint32, d uint8, p *Packet, now clock.Tick) {
	s.setState(id, Opening, now)
	s.cold[id].tcp = tcpSynOut << d
	for i := range uint32(2) {
		l := &s.lines[2*id+i]
		l.packets, l.bytes = 0, 0
	}
	if s.track {
		s.windows[id] = window{}
		s.windows[id].accept(uint32(d), p)
	}
	s.watch(id)
	s.counters.Reopened++
}

// setState moves a link to the state's timer.
func (s *Shard) setState(id uint32, to State, now clock.Tick) {
	c := &s.cold[id]
	s.wheelOf(id).remove(id)
	s.counters.State[c.state]--
	c.state = to
	s.counters.State[to]++
	s.watch(id)
	s.wheelOf(id).add(id, now+clock.Tick(s.limit(id))+1)
}

// watch says which packets of a link need the slow path.
func (s *Shard) watch(id uint32) {
	c := &s.cold[id]
	var w uint8
	if s.protoOf(id) == packet.ProtoTCP {
		switch {
		case s.track, c.state == Opening && c.tcp&(tcpSynOut|tcpSynIn) != 0:
			w = watchAlways
		case c.state == Closing:
			w = packet.TCPSyn
		default:
			w = packet.TCPSyn | packet.TCPFin | packet.TCPRst
		}
	}
	s.lines[2*id].watch, s.lines[2*id+1].watch = w, w
	if c.flags&flagHairpin != 0 {
		s.lines[2*id].watch = watchAlways
	}
}
