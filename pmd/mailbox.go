package pmd

import (
	"errors"
	"sync/atomic"

	"pollux/internal/clock"
)

// ErrEnded is what a request gets from a worker that does not run any more.
var ErrEnded = errors.New("the worker has ended")

// mailbox carries requests from any goroutine to a worker: a lock-free list, newest first, that the worker takes whole.
//
//	head  written by requesters (compare and swap, release) and the worker (swap, acquire)
//	todo  the worker's alone: what it took, oldest first
type mailbox struct {
	head atomic.Pointer[request]
	todo *request
}

// request is one piece of work for the worker. It is called once per round, between bursts, until it says that it is
// done; each call does a bounded slice.
type request struct {
	slice func(now clock.Tick) (done bool)
	done  chan struct{}
	next  *request
}

func (m *mailbox) push(r *request) {
	for {
		r.next = m.head.Load()
		if m.head.CompareAndSwap(r.next, r) {
			return
		}
	}
}

// waiting reports whether there is something to do.
func (m *mailbox) waiting() bool { return m.todo != nil || m.head.Load() != nil }

// serve does one slice of the oldest request.
//
//go:noinline
func (m *mailbox) serve(now clock.Tick) {
	if m.todo == nil {
		for r := m.head.Swap(nil); r != nil; {
			next := r.next
			r.next = m.todo
			m.todo = r
			r = next
		}
	}
	if r := m.todo; r != nil && r.slice(now) {
		m.todo = r.next
		close(r.done)
	}
}
