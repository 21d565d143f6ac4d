// Package pmd holds the poll-mode workers: pinning, the poll loop and its seven stages, steering and hand-off, idle policy,
// life cycle, mailboxes. It is the only package that knows both a port and a NAT.
package pmd

import "pollux/rings"

// Port is one queue of one netdev as a worker polls it. It is the one interface on the packet's way, called once per
// burst; rings.Socket is the real one, MemPort the one of tests and replay. Only the owning worker calls it.
type Port interface {
	// Receive takes up to len(b) received frames. The caller owns them from then on.
	Receive(b []rings.Frame) int
	// Transmit queues frames and kicks the kernel when needed. It returns how many were taken, from the front; the rest
	// stay the caller's.
	Transmit(b []rings.Frame) int
	// Service returns transmitted frames to the pool and refills the fill ring from it. It is called once per poll round.
	Service(p *rings.Pool)
}
