package pmd

import (
	"pollux/internal/packet"
	"pollux/nat"
	"pollux/rings"
)

// fromShard is the source of a burst that comes from no port: packets that the shard held and lets go.
const fromShard = -1

// rx is stage 1: it takes a burst from a port, or from what the shard lets go. n is how much work that was: a released
// packet that ends here is work but not in b.
func (w *Worker) rx(from int) (b []nat.Packet, n int) {
	if from == fromShard {
		return w.rxReleased()
	}
	p := &w.ports[from]
	n = p.Receive(w.rxq[:])
	if n == 0 {
		return nil, 0
	}
	b = w.burst[:n]
	memory, side := w.umem.Memory(), p.side
	for i, f := range w.rxq[:n] {
		q := &b[i]
		q.Data = memory.Data(f)
		q.Frame = f.Addr
		q.Ingress = uint16(from)
		q.Side = side
		q.Hairpin, q.Directed = false, false
	}
	w.c.received += uint64(n)
	w.c.bursts++
	return b, n
}

// rxReleased takes what the shard lets go. A packet that goes round again was counted when it was received.
func (w *Worker) rxReleased() (b []nat.Packet, n int) {
	k := 0
	for k < BurstFrames {
		r, ok := w.nat.NextReleased()
		if !ok {
			w.released = false
			break
		}
		n++
		w.c.held--
		data := w.umem.Data(rings.Frame{Addr: r.Frame, Len: r.Len})
		if !r.Again {
			w.drop(r.Frame, data, r.Reason, false)
			continue
		}
		q := &w.burst[k]
		q.Data, q.Frame, q.Ingress, q.Side, q.Hairpin, q.Directed = data, r.Frame, r.Ingress, r.Side, r.Hairpin, false
		w.first[k].Kind = packet.KindNone // not kept: a hairpinned packet that was held can't be undone any more
		k++
	}
	return w.burst[:k], n
}
