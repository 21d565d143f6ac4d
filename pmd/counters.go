package pmd

import (
	"sync/atomic"

	"pollux/internal/reason"
)

// counts are a worker's own counters: plain numbers that nobody else reads. At any time
//
//	received + handed in = forwarded + sum of reasons + held + arps + handed out
//
// exactly: every received packet is sent on, or ended for one reason, or waits, or was an ARP request. Packets that were answered by an ICMP
// error are in reasons too; packets handed to the kernel are reason Punted.
type counts struct {
	received   uint64
	translated uint64 // packets that belong to a link
	forwarded  uint64
	answered   uint64
	made       uint64 // frames sent that are pollux's own: ICMP errors, fragments, ARP
	arps       uint64 // ARP requests answered
	bursts     uint64
	polls      uint64
	held       uint64
	handedIn   uint64 // packets that another worker handed over, and that this one did
	handedOut  uint64
	framesIn   uint64 // frames that came from other workers, as packets or home, and that went
	framesOut  uint64
	handedWhy  [steerWhys]uint64 // of handedOut
	reasons    [reason.Count]uint64
	dirty      bool // reasons or held changed since they were published
}

// spent is where a worker's time went, in nanoseconds.
type spent struct {
	since, until int64 // of the clock: when the first round began, and the last
	busy         int64 // in rounds that had work to do
	asleep       int64
}

// published is what other goroutines may read, written once per round by the worker. Its own cache lines, and their
// neighbours that the CPU prefetches along, are shared with nothing else.
type published struct {
	_ [128]byte

	received, translated, forwarded, answered, made, arps atomic.Uint64
	bursts, held, handedIn, handedOut                     atomic.Uint64
	handedWhy                                             [steerWhys]atomic.Uint64
	reasons                                               [reason.Count]atomic.Uint64

	_ [128]byte
}

// publish stores what changed in this round. An atomic store costs about as much as parsing a packet, so it is done once
// per round, and for the rarer counters only when they moved.
func (w *Worker) publish(work int) {
	w.c.polls++
	if work > 0 {
		w.publishAll()
	}
}

// publishAll is publish for a worker that worked, or is about to sleep.
func (w *Worker) publishAll() {
	c, p := &w.c, &w.pub
	p.bursts.Store(c.bursts)
	p.received.Store(c.received)
	p.translated.Store(c.translated)
	p.forwarded.Store(c.forwarded)
	if c.handedIn != p.handedIn.Load() {
		p.handedIn.Store(c.handedIn)
	}
	if c.handedOut != p.handedOut.Load() {
		p.handedOut.Store(c.handedOut)
		for i := range c.handedWhy {
			p.handedWhy[i].Store(c.handedWhy[i])
		}
	}
	if h := c.held; h != p.held.Load() {
		p.held.Store(h)
	}
	if !c.dirty {
		return
	}
	c.dirty = false
	p.answered.Store(c.answered)
	p.made.Store(c.made)
	p.arps.Store(c.arps)
	for i := range c.reasons {
		if n := c.reasons[i]; n != p.reasons[i].Load() {
			p.reasons[i].Store(n)
		}
	}
}
