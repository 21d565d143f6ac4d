package natlog

import (
	"context"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"pollux/internal/clock"
	"pollux/nat"
)

// Options is what a Log is made of.
type Options struct {
	Syslog, IPFIX []Target
	Sessions      bool // sessions and mappings too
	Workers       int
	Version       string // of this program
	Ring, Queue   int    // events that a worker's ring and a collector's queue hold; 0: 65,536
}

const (
	roomDefault = 1 << 16
	readBusy    = 2 * time.Millisecond // how soon rings are looked at again that had something, and that had not
	readIdle    = 20 * time.Millisecond
	readEvents  = 1024
	endTimeout  = 2 * time.Second // what waits at the end has so long to be sent
)

// Log carries events from the workers' rings to the collectors.
type Log struct {
	level      string
	rings      []*nat.EventRing
	ringsLost  []uint64 // as last told to the queues; the reader's
	collectors []*collector

	begun              bool
	stopRead, stopSend chan struct{} // closed one after the other
	end                context.Context
	cancel             context.CancelFunc
	reader, senders    sync.WaitGroup
}

// New makes a log; nothing is sent before Start.
func New(o Options) (*Log, error) {
	if o.Ring == 0 {
		o.Ring = roomDefault
	}
	if o.Queue == 0 {
		o.Queue = roomDefault
	}
	l := &Log{level: "block", ringsLost: make([]uint64, o.Workers), stopRead: make(chan struct{}), stopSend: make(chan struct{})}
	l.end, l.cancel = context.WithCancel(context.Background())
	if o.Sessions {
		l.level = "session"
	}
	hostname, _ := os.Hostname() // unknown: left out
	for _, t := range o.Syslog {
		e, err := newSyslogEncoder(hostname, o.Version, os.Getpid(), l.level)
		if err != nil {
			return nil, err
		}
		c := &collector{target: t, protocol: "syslog", encoder: &syslogDatagrams{syslogEncoder: e}, queue: newQueue(o.Queue)}
		if t.Network == "tcp" {
			c.encoder = &syslogStream{syslogEncoder: e}
		}
		l.collectors = append(l.collectors, c)
	}
	for _, t := range o.IPFIX {
		l.collectors = append(l.collectors, &collector{target: t, protocol: "ipfix", encoder: newIPFIXEncoder(os.Getpid()), queue: newQueue(o.Queue)})
	}
	for range o.Workers {
		r, err := nat.NewEventRing(o.Ring, o.Sessions)
		if err != nil {
			l.free()
			return nil, err
		}
		l.rings = append(l.rings, r)
	}
	return l, nil
}

// Rings returns the ring of each worker, for pmd.Options. They are valid until Close.
func (l *Log) Rings() []*nat.EventRing { return l.rings }

// Start begins to send; a nil Log does nothing. Its threads must be in the network namespace from which collectors are reached.
func (l *Log) Start() {
	if l == nil {
		return
	}
	l.begun = true
	l.toAll([]record{{wall: time.Now().UnixMilli(), extra: extraStart}}, 0)
	for _, c := range l.collectors {
		l.senders.Go(func() { c.run(l.end, l.stopSend) })
	}
	l.reader.Go(l.read)
}

// Close sends what waits, for at most two seconds, and ends the log; a nil Log does nothing. No worker may use the rings any more.
func (l *Log) Close() {
	if l == nil {
		return
	}
	if l.begun {
		close(l.stopRead)
		l.reader.Wait()
		l.toAll([]record{{wall: time.Now().UnixMilli(), extra: extraStop}}, 0)
		close(l.stopSend)
		late := time.AfterFunc(endTimeout, l.cancel)
		l.senders.Wait()
		late.Stop()
	}
	l.free()
}

func (l *Log) free() {
	l.cancel()
	for _, r := range l.rings {
		r.Close()
	}
}

// read moves events from the rings into the queues until the log is closed, then once more.
func (l *Log) read() {
	events := make([]nat.Event, readEvents)
	records := make([]record, readEvents)
	wait := time.NewTimer(readIdle)
	for last := false; !last; {
		select {
		case <-l.stopRead:
			last = true
		case <-wait.C:
		}
		next := readIdle
		for i, r := range l.rings {
			if l.readRing(i, r, events, records) {
				next = readBusy
			}
		}
		wait.Reset(next)
	}
}

// readRing empties one ring, or reads as much as it holds if it fills as fast, and reports whether there was anything.
func (l *Log) readRing(worker int, r *nat.EventRing, events []nat.Event, records []record) (any bool) {
	for range r.Cap()/len(events) + 1 {
		n := r.Read(events)
		lost := r.Lost()
		dropped := lost - l.ringsLost[worker]
		if n == 0 && dropped == 0 {
			return any
		}
		l.ringsLost[worker] = lost
		now, tick := time.Now().UnixMilli(), monotonic()
		for i := range events[:n] {
			e := &events[i]
			records[i] = record{Event: *e, wall: now - int64(int32(tick-e.At)), worker: int32(worker)}
		}
		l.toAll(records[:n], dropped)
		any = true
	}
	return any
}

func (l *Log) toAll(list []record, dropped uint64) {
	now := time.Now().UnixMilli()
	for _, c := range l.collectors {
		c.queue.put(list, dropped, now)
	}
}

// monotonic is the tick now, by the workers' clock.
func monotonic() clock.Tick {
	var now unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &now) // can't fail: the clock exists
	return clock.Tick(now.Nano() / 1e6)
}

// Stats is what became of the log so far.
type Stats struct {
	Level      string           `json:"level"`     // off | block | session
	RingLost   uint64           `json:"ring_lost"` // events that no collector got because a worker's ring was full
	Collectors []CollectorStats `json:"collectors"`
}

// CollectorStats is one collector's part.
type CollectorStats struct {
	Collector string `json:"collector"`
	Protocol  string `json:"protocol"` // syslog | ipfix
	Connected bool   `json:"connected"`
	Sent      uint64 `json:"sent"`    // events
	Writes    uint64 `json:"writes"`  // datagrams, or pieces of a stream
	Waiting   int    `json:"waiting"` // events
	Lost      uint64 `json:"lost"`    // events, ring_lost included
	Failures  uint64 `json:"failures"`
	Problem   string `json:"problem"` // the last failure, while it lasts
}

// Stats returns the counters; any goroutine may call it. A nil Log is off.
func (l *Log) Stats() Stats {
	if l == nil {
		return Stats{Level: "off", Collectors: []CollectorStats{}}
	}
	s := Stats{Level: l.level, Collectors: []CollectorStats{}}
	for _, r := range l.rings {
		s.RingLost += r.Lost()
	}
	for _, c := range l.collectors {
		waiting, lost := c.queue.counts()
		c.mu.Lock()
		problem := c.problem
		c.mu.Unlock()
		s.Collectors = append(s.Collectors, CollectorStats{
			Collector: c.target.String(), Protocol: c.protocol, Connected: c.connected.Load(), Sent: c.sent.Load(), Writes: c.writes.Load(),
			Waiting: waiting, Lost: lost, Failures: c.failures.Load(), Problem: problem,
		})
	}
	return s
}
