package pmd

import (
	"pollux/internal/packet"
	"pollux/internal/reason"
	"pollux/nat"
	"pollux/rings"
)

// line puts a received packet in line for the transmit ring of a port.
func (w *Worker) line(to uint16, q *nat.Packet) {
	p := &w.ports[to]
	if p.n == BurstFrames {
		w.flush(p)
	}
	p.line(q)
}

// line is that without looking for room: n must be less than BurstFrames.
func (p *port) line(q *nat.Packet) {
	p.out[p.n&(BurstFrames-1)] = rings.Frame{Addr: q.Frame, Len: uint32(len(q.Data))}
	p.n++
}

// tx is stage 7: what stands in line goes to the transmit rings.
func (w *Worker) tx() {
	for i := range w.ports {
		if p := &w.ports[i]; p.n > 0 {
			w.flush(p)
		}
	}
}

// flush hands a port's line to its ring. What the ring does not take is dropped: a ring that stays full through a whole
// burst means that the wire is slower than what comes in.
func (w *Worker) flush(p *port) {
	line := p.out[:p.n]
	p.n = 0
	sent := p.Transmit(line)
	w.c.forwarded += uint64(sent)
	if w.tap != nil {
		w.tap.sent(line[:sent], p.number)
	}
	if w.o.Finished != nil {
		for _, f := range line[:sent] {
			w.o.Finished(w.umem.Chunk(f.Addr), nil, reason.None, false)
		}
	}
	for _, f := range line[sent:] {
		w.drop(f.Addr, w.umem.Data(f), reason.TXFull, false)
	}
}

// emit sends frames that pollux made itself: ICMP errors, fragments. It returns how many were taken; the rest are free.
func (w *Worker) emit(to uint16, frames []rings.Frame) int {
	p := &w.ports[to]
	if p.n > 0 {
		w.flush(p)
	}
	sent := p.Transmit(frames)
	w.c.made += uint64(sent)
	if w.tap != nil {
		w.tap.sent(frames[:sent], p.number)
	}
	w.c.dirty = true
	for _, f := range frames[sent:] {
		w.pool.Put(w.umem.Chunk(f.Addr))
	}
	return sent
}

// fragmentsMax is how many pieces a packet may be split into: 64 KiB at an MTU of 1280 is 53.
const fragmentsMax = 64

// split collects the pieces of one packet. get and put are made once, because a closure made per packet would allocate.
type split struct {
	frames [fragmentsMax]rings.Frame
	n      int
	addr   uint64 // the frame that get gave out
	get    func() []byte
	put    func([]byte)
}

func (s *split) init(w *Worker) {
	s.get = func() []byte {
		if s.n == fragmentsMax {
			return nil
		}
		addr, ok := w.pool.Get()
		if !ok {
			return nil
		}
		s.addr = addr
		return w.umem.Data(rings.Frame{Addr: addr, Len: uint32(w.umem.ChunkSize())})
	}
	s.put = func(b []byte) {
		s.frames[s.n] = rings.Frame{Addr: s.addr, Len: uint32(len(b))}
		s.n++
	}
}

// fragment splits a packet that is longer than the egress MTU into frames of its own (RFC 791 3.2); its MACs are already
// the next hop's. The packet counts as forwarded when all of its pieces went out.
func (w *Worker) fragment(p *nat.Packet, to uint16, mtu int) {
	s := &w.split
	s.n = 0
	free := w.pool.Len()
	whole := packet.Fragment(p.Data, &p.H, mtu, s.get, s.put)
	if !whole {
		if free-w.pool.Len() > s.n { // given out, not filled
			w.pool.Put(s.addr)
		}
		for _, f := range s.frames[:s.n] {
			w.pool.Put(f.Addr)
		}
		w.drop(p.Frame, p.Data, reason.NoFrame, false)
		return
	}
	if w.emit(to, s.frames[:s.n]) < s.n {
		w.drop(p.Frame, p.Data, reason.TXFull, false)
		return
	}
	w.c.forwarded++
	chunk := w.umem.Chunk(p.Frame)
	if w.o.Finished != nil {
		w.o.Finished(chunk, nil, reason.None, false)
	}
	if w.tap != nil {
		w.tap.forget(chunk)
	}
	w.pool.Put(chunk)
}
