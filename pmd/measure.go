package pmd

import "pollux/nat"

// Parts of a worker that measurements look at alone.

// Owner is steer's decision about one packet.
func (s *Steering) Owner(p *nat.Packet) int {
	to, _ := s.owner(p)
	return int(to)
}

// HandBurst hands as many packets of a burst to another worker as its ring has room for, as steer does, and returns how many.
// Their frames are then on their way.
func (w *Worker) HandBurst(b []nat.Packet, to int) int {
	n := min(len(b), w.peers.out[to].Room(len(b)))
	for i := range b[:n] {
		w.handOver(&b[i], &b[i].H, uint32(to), byHost, false)
	}
	w.show()
	return n
}

// TakeBurst takes up to most packets that another worker has handed over into the worker's burst, as far as its stages are
// not concerned, and returns how many. What becomes of their frames is the caller's business.
func (w *Worker) TakeBurst(from, most int) int {
	return w.gather(from, 0, min(most, BurstFrames))
}

// HandedOut is how many packets the worker has handed over. It is for whoever runs the worker's rounds himself.
func (w *Worker) HandedOut() uint64 { return w.c.handedOut }
