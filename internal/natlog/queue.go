package natlog

import (
	"sync"

	"pollux/nat"
)

// record is an event on its way to a collector.
type record struct {
	nat.Event
	wall   int64 // when it happened, in milliseconds since 1970 UTC
	worker int32
	extra  extra // what is no event of a shard
}

type extra uint8

const (
	extraNone  extra = iota
	extraStart       // the log begins
	extraStop        // and ends
	extraLost        // Packets[0] events were lost since it was last told, Packets[1] in all
)

// queue holds records for one sender. What finds it full is lost.
type queue struct {
	mu     sync.Mutex
	ring   []record
	get, n int
	lost   uint64        // here, or before a record could get here
	told   uint64        // of lost, in a record
	wake   chan struct{} // there is something to take
}

func newQueue(n int) *queue {
	return &queue{ring: make([]record, n), wake: make(chan struct{}, 1)}
}

// put appends records, and first, if some were lost since it was told last and there is room again, how many that were.
// dropped is how many were lost before they could get here.
func (q *queue) put(list []record, dropped uint64, now int64) {
	q.mu.Lock()
	q.lost += dropped
	if q.lost > q.told && q.n < len(q.ring) {
		r := record{wall: now, extra: extraLost}
		r.Packets[0], r.Packets[1] = q.lost-q.told, q.lost
		q.told = q.lost
		q.add(&r)
	}
	for i := range list {
		if q.n == len(q.ring) {
			q.lost += uint64(len(list) - i)
			break
		}
		q.add(&list[i])
	}
	waits := q.n > 0
	q.mu.Unlock()
	if waits {
		select {
		case q.wake <- struct{}{}:
		default:
		}
	}
}

func (q *queue) add(r *record) {
	q.ring[(q.get+q.n)%len(q.ring)] = *r
	q.n++
}

// take moves the oldest records into buf.
func (q *queue) take(buf []record) int {
	q.mu.Lock()
	defer q.mu.Unlock()
	n := min(len(buf), q.n)
	for i := range n {
		buf[i] = q.ring[(q.get+i)%len(q.ring)]
	}
	q.get, q.n = (q.get+n)%len(q.ring), q.n-n
	return n
}

// lose counts records that were taken and could not be sent.
func (q *queue) lose(n int) {
	q.mu.Lock()
	q.lost += uint64(n)
	q.mu.Unlock()
}

func (q *queue) counts() (waiting int, lost uint64) {
	q.mu.Lock()
	defer q.mu.Unlock()
	return q.n, q.lost
}
