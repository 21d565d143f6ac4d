package pmd

import (
	"pollux/internal/reason"
	"pollux/nat"
)

// Punter hands frames to the gateway's own network stack. It copies what it keeps, never blocks, and refuses when it is
// behind or over its rate.
type Punter interface {
	Punt(frame []byte, ingress uint16) bool
}

// host ends a packet that is for the gateway's own stack; its frame is as it was received.
func (w *Worker) host(p *nat.Packet) {
	r := reason.ToHost
	if w.o.Punt != nil && w.o.Punt.Punt(p.Data, p.Ingress) {
		r = reason.Punted
	}
	w.drop(p.Frame, p.Data, r, false)
}
