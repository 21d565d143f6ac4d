package pmd

import "pollux/nat"

// steer is stage 3: who owns each packet? What is another worker's goes into the ring to that worker; the rest is returned,
// moved together.
func (w *Worker) steer(b []nat.Packet) []nat.Packet {
	if w.peers.mesh == nil {
		return b // one worker owns all
	}
	s, me := w.o.Steering, uint32(w.o.Index)
	if k := s.mine(b, me); k < len(b) {
		return b[:k+w.sort(b[k:])]
	}
	return b
}

// sort is steer for packets of which some are others'. It returns how many are this worker's, moved together. First it is
// asked whose they are, then done what follows: that can't be foreseen, so nothing branches on it.
func (w *Worker) sort(b []nat.Packet) int {
	s, x, me := w.o.Steering, &w.peers, uint32(w.o.Index)
	mine, theirs := 0, 0
	for i := range b {
		to, why := s.owner(&b[i])
		x.to[i%BurstFrames], x.why[i%BurstFrames] = uint8(to), why
		x.mine[mine%BurstFrames], x.theirs[theirs%BurstFrames] = uint8(i), uint8(i)
		other := int((to ^ me | -(to ^ me)) >> 31)
		theirs += other
		mine += 1 - other
	}
	for _, i := range x.theirs[:theirs] {
		p := &b[i]
		w.handOver(p, &p.H, uint32(x.to[i%BurstFrames]), x.why[i%BurstFrames], false)
	}
	for k, i := range x.mine[:mine] {
		if k != int(i) {
			b[k] = b[i]
		}
	}
	return mine
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
