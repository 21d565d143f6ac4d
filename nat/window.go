package nat

import (
	"encoding/binary"
	"unsafe"

	"pollux/internal/packet"
)

// window is what tracking knows of the two sequence spaces of a TCP link, per direction of travel: 0 out, 1 in.
type window struct {
	end   [2]uint32 // highest sequence number sent, plus 1
	ack   [2]uint32 // highest acknowledged: where the sender's receive window begins
	size  [2]uint32 // the sender's receive window in bytes, scaled
	scale [2]uint8  // shift offered in the SYN
	seen  [2]uint8  // windowSent, windowAcked
}

const (
	windowSent  = 1
	windowAcked = 2
	_           = -(unsafe.Sizeof(window{}) ^ 28)
)

// accept follows a segment and reports whether it may change the link's state: a RST counts only where the receiver would
// take it, at or inside its window (RFC 5961 3.2, RFC 7857 2.2). A segment with sequence numbers far outside is passed
// on like any other but teaches nothing.
func (w *window) accept(direction uint32, p *Packet) bool {
	h := &p.H
	d, o := direction&1, direction&1^1
	tcp := (*[packet.TCPLen]byte)(p.Data[h.L4:])
	seq, ack := binary.BigEndian.Uint32(tcp[4:]), binary.BigEndian.Uint32(tcp[8:])
	header := uint32(tcp[12]>>4) * 4
	next := seq + uint32(h.Len) - uint32(h.L4-h.L3) - header
	if h.TCPFlags&(packet.TCPSyn|packet.TCPFin) != 0 {
		next++
	}
	if h.TCPFlags&packet.TCPRst != 0 {
		switch {
		case w.seen[o]&windowAcked != 0:
			off := seq - w.ack[o]
			return off == 0 || off < w.size[o]
		case w.seen[o]&windowSent != 0: // an answer to a SYN: it must acknowledge it
			return h.TCPFlags&packet.TCPAck != 0 && ack == w.end[o]
		}
		return true
	}
	if w.seen[o]&windowAcked != 0 && h.TCPFlags&packet.TCPSyn == 0 {
		// Data up to a window before the window's beginning are retransmissions; the rest is not the peer's.
		slack := int32(max(w.size[o], 0xffff))
		if off := int32(seq - w.ack[o]); off > slack || off < -slack {
			return h.TCPFlags&packet.TCPFin == 0
		}
	}
	if h.TCPFlags&packet.TCPSyn != 0 {
		w.scale[d] = windowScale(p, header)
		w.end[d], w.seen[d] = next, w.seen[d]|windowSent
	} else if w.seen[d]&windowSent == 0 || int32(next-w.end[d]) > 0 {
		w.end[d], w.seen[d] = next, w.seen[d]|windowSent
	}
	if h.TCPFlags&packet.TCPAck != 0 && (w.seen[d]&windowAcked == 0 || int32(ack-w.ack[d]) >= 0) {
		w.ack[d], w.seen[d] = ack, w.seen[d]|windowAcked
		w.size[d] = uint32(binary.BigEndian.Uint16(tcp[14:]))
		if h.TCPFlags&packet.TCPSyn == 0 {
			w.size[d] <<= w.scale[d]
		}
	}
	return true
}

// windowScale reads the window scale option of a SYN (RFC 7323 2.2), 0 if there is none.
func windowScale(p *Packet, header uint32) uint8 {
	options := p.Data[p.H.L4:]
	if int(header) > len(options) || header < packet.TCPLen {
		return 0
	}
	options = options[packet.TCPLen:header]
	for i := 0; i < len(options) && options[i] != 0; {
		if options[i] == 1 {
			i++
			continue
		}
		if i+1 >= len(options) || options[i+1] < 2 || i+int(options[i+1]) > len(options) {
			return 0
		}
		if options[i] == 3 && options[i+1] == 3 {
			return min(options[i+2], 14)
		}
		i += int(options[i+1])
	}
	return 0
}
