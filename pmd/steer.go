package pmd

import "pollux/nat"

// steer is stage 3: who owns each packet? What is another worker's goes into the ring to that worker; the rest is returned,
// moved together.
func (w *Worker) steer(b []nat.Packet) []nat.Packet {
	if w.peers.mesh == nil {
		return b // one worker owns all
	}
	s, me := w.o.Steering, uint32(w.o.Index)
	k := 0
	for i := range b {
		p := &b[i]
		to, why := s.owner(p)
		if to != me {
			w.handOver(p, &p.H, to, why, false)
			continue
		}
		if i != k {
			b[k] = *p
		}
		k++
	}
	return b[:k]
}

// steerAgain is steer for a packet in the second pass of a hairpin. True: it is another worker's now.
func (w *Worker) steerAgain(p *nat.Packet, i int) bool {
	if w.peers.mesh == nil {
		return false
	}
	to, why := w.o.Steering.owner(p)
	if to == uint32(w.o.Index) {
		return false
	}
	w.handOver(p, &w.first[i], to, why, false)
	return true
}
