package rings

import (
	"slices"
	"sync/atomic"
)

// Abandon takes a socket whose netdev was deleted out of use, on its worker's goroutine: the kernel has taken it off its queue
// and touches neither rings nor frames any more. Every frame that it held goes to p. The Socket stays where it is, as one that
// receives and takes nothing, with its counters, until Replace gives it another netdev. What is left in the kernel's hands is
// the caller's to Close, on any goroutine and at leisure.
func (s *Socket) Abandon(p *Pool) (dead *Socket) {
	if s.fd == noSocket {
		return nil
	}
	old := *s
	dead = &old
	dead.zeroCopy = false // its queue is gone: nothing to wait for
	u := s.umem
	u.mu.Lock()
	if i := slices.Index(u.sockets, s); i >= 0 {
		u.sockets[i] = dead
	}
	u.mu.Unlock()
	s.takeBack(p)
	dead.held, dead.refused = chunkSet{}, nil
	s.idle()
	return dead
}

// Replace makes s the socket that n is: rings, queue and descriptor; s's counters go on. It belongs to the goroutine of the
// worker that has s, which must have abandoned it. n must not have been used and is nothing afterwards.
func (s *Socket) Replace(n *Socket) {
	u := s.umem
	u.mu.Lock()
	defer u.mu.Unlock()
	if i := slices.Index(u.sockets, n); i >= 0 {
		u.sockets[i] = s
	}
	count := s.count
	*s = *n
	s.count = count
	n.held = chunkSet{}
	n.mem = [4][]byte{}
	n.idle()
}

// noSocket is the descriptor of a socket that is abandoned. As an int it is -1, which poll(2) passes over.
const noSocket = ^uintptr(0)

// idle makes s a socket that receives and takes nothing.
func (s *Socket) idle() {
	nothing := new(atomic.Uint32)
	s.rx = consumer[Frame]{index: nothing, ready: nothing}
	s.cq = consumer[uint64]{index: nothing, ready: nothing}
	s.tx = producer[Frame]{index: nothing, done: nothing, flags: nothing}
	s.fill = producer[uint64]{index: nothing, done: nothing, flags: nothing}
	s.fillMax, s.txMax, s.filled, s.sending = 0, 0, 0, 0
	s.behind, s.down, s.busyPoll = false, false, false
	s.fd, s.mem = noSocket, [4][]byte{}
}
