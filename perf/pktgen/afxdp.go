package pktgen

import (
	"time"

	"golang.org/x/sys/unix"

	"pollux/rings"
)

const (
	burstMax  = 64
	sleepFrom = 200 * time.Microsecond // waits of this length are slept, shorter ones are spun
)

// txQueue sends through an AF_XDP socket.
type txQueue struct {
	socket *rings.Socket
	pool   *rings.Pool
	umem   *rings.UMEM
	burst  [burstMax]rings.Frame
}

// shared is the memory that all sockets use.
type sharedUMEM struct {
	umem *rings.UMEM
}

func (s *sharedUMEM) close() error { return s.umem.Close() }

func (g *Generator) openAFXDP() error {
	queues := make([]rings.PortQueue, len(g.o.Queues))
	for i, q := range g.o.Queues {
		queues[i] = rings.PortQueue{Name: g.o.Device, Index: g.ifindex, Queue: q}
	}
	mode, _, err := rings.ChooseMode(rings.Auto, queues)
	if err != nil {
		return err
	}
	per := rings.SocketFrames(rings.RingSizeDefault, mode) + burstMax
	umem, err := rings.NewUMEM(rings.UMEMOptions{Frames: per * len(queues), ChunkSize: 2048})
	if err != nil {
		return err
	}
	g.shared = &sharedUMEM{umem}
	for i, q := range queues {
		pool, err := umem.NewPool(per)
		if err != nil {
			return err
		}
		socket, err := rings.OpenSocket(umem, rings.SocketOptions{Port: q, Mode: mode})
		if err != nil {
			return err
		}
		g.threads[i].sender = &txQueue{socket: socket, pool: pool, umem: umem}
	}
	return nil
}

// send is the hot loop: it allocates nothing.
func (q *txQueue) send(th *thread) error {
	start := Now()
	end := start + uint64(th.duration)
	patterns := len(th.template.pattern)
	var seq uint64
	for seq < th.count && !th.stop.Load() {
		now := Now()
		if now >= end {
			break
		}
		want := uint64(burstMax)
		if th.rate > 0 {
			elapsed := float64(now-start) / 1e9
			due := uint64(elapsed*th.rate) + 1
			if due <= seq {
				q.idle(time.Duration(float64(seq)/th.rate*1e9) - time.Duration(now-start))
				continue
			}
			want = min(want, due-seq)
		}
		want = min(want, th.count-seq)
		q.socket.Service(q.pool)
		n := 0
		for ; n < int(want); n++ {
			addr, ok := q.pool.Get()
			if !ok {
				break
			}
			f := rings.Frame{Addr: addr, Len: headerMax}
			k := seq + uint64(n)
			f.Len = uint32(th.template.write(q.umem.Data(f), th.flows, th.nextFlow(k, int64(now-start)), uint32(k), now, int(k%uint64(patterns))))
			q.burst[n] = f
		}
		sent := q.socket.Transmit(q.burst[:n])
		for _, f := range q.burst[sent:n] {
			q.pool.Put(f.Addr)
		}
		seq += uint64(sent)
		th.sent.Store(seq)
	}
	th.took = time.Duration(Now() - start)
	q.drain()
	return nil
}

// idle waits for at most d, or somewhat less.
func (q *txQueue) idle(d time.Duration) {
	q.socket.Service(q.pool)
	if d >= sleepFrom {
		ts := unix.NsecToTimespec(int64(min(d, 10*time.Millisecond) - sleepFrom/2))
		_ = unix.Nanosleep(&ts, nil)
	}
}

// drain waits until what was queued has left, for a second at most: closing the socket would throw it away.
func (q *txQueue) drain() {
	for end := Now() + uint64(time.Second); q.socket.Frames().TX > 0 && Now() < end; {
		q.socket.Service(q.pool)
	}
}

func (q *txQueue) close() error {
	return q.socket.Close(q.pool)
}
