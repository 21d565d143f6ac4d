package pmd

import "pollux/nat"

// touch is stage 4: the memory that the burst will need is asked for, all packets at once, so that its latencies overlap.
func (w *Worker) touch(b []nat.Packet) {
	if len(b) > 1 {
		w.nat.Touch(b)
	}
}
