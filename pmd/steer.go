package pmd

import "pollux/nat"

// steer is stage 3: who owns each packet? It returns those that are this worker's. With one worker all of them are; a
// packet of another worker's would go to that worker's ring here (DESIGN 4).
func (w *Worker) steer(b []nat.Packet) []nat.Packet { return b }
