package pmd

import (
	"encoding/binary"
	"fmt"
	"math/bits"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"pollux/internal/clock"
	"pollux/internal/cpu"
)

// LoopOptions say where and how a worker runs.
type LoopOptions struct {
	Core       int // -1: not pinned
	Idle       Idle
	RTPriority int // 0: none; else the FIFO priority of the worker's thread

	Begin <-chan struct{} // nil, or closed when the worker may poll
}

// Sleeper is a Port that a sleeping worker can wait for. A worker whose ports are no Sleepers is woken by its mailbox and
// its timers only.
type Sleeper interface {
	FD() int       // readable while there are frames to receive
	Pending() bool // another Service can get something moving: do not sleep
}

// Limits of sleep.
const (
	spinBeforeSleep = 50 * time.Microsecond // Adaptive without FIFO priority: how long an idle worker still spins
	gapBuckets      = 32
)

// sleepMax is how often a worker looks around at least. A variable, for the test that nobody depends on it.
var sleepMax = time.Second

// Loop is a running worker: a goroutine locked to its thread, pinned to its core.
type Loop struct {
	w     *Worker
	o     LoopOptions
	mail  mailbox
	stop  atomic.Bool
	ended chan struct{}
	err   error // why it ended by itself; valid once ended is closed

	sleepers []Sleeper
	fds      []unix.PollFd // one of each sleeper, last the eventfd
	eventMu  sync.Mutex
	event    int // eventfd that wakes the worker, -1 once it has ended; guarded by eventMu but for the worker itself
	timeout  unix.Timespec

	// asleep is set by the worker before it looks at its rings and mailbox for the last time, and read by whoever has just
	// put something there. Both are sequentially consistent, so at least one of the two sees the other's store.
	asleep atomic.Bool
	short  atomic.Bool // it sleeps without free frames: wake it when some come home

	base   time.Time // of now
	baseNS int64
	gaps   [gapBuckets]atomic.Uint64 // written by the worker only
	sleeps atomic.Uint64
	spent  spent // the worker's alone
}

// StartLoop starts a worker on a thread of its own. It returns when the thread is pinned and has its priority, or can't.
func StartLoop(w *Worker, o LoopOptions) (*Loop, error) {
	l := &Loop{w: w, o: o, ended: make(chan struct{})}
	var now unix.Timespec
	if err := unix.ClockGettime(unix.CLOCK_MONOTONIC, &now); err != nil {
		return nil, fmt.Errorf("pmd: clock: %w", err)
	}
	l.base, l.baseNS = time.Now(), now.Nano()
	event, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return nil, fmt.Errorf("pmd: eventfd: %w", err)
	}
	l.event = event
	for i := range w.ports {
		if s, ok := w.ports[i].Port.(Sleeper); ok {
			l.sleepers = append(l.sleepers, s)
			l.fds = append(l.fds, unix.PollFd{Fd: int32(s.FD()), Events: unix.POLLIN})
		}
	}
	l.fds = append(l.fds, unix.PollFd{Fd: int32(event), Events: unix.POLLIN})
	started := make(chan error, 1)
	go l.run(started)
	if err := <-started; err != nil {
		<-l.ended
		return nil, err
	}
	return l, nil
}

// Stop ends the worker and waits for it. What waits in its mailbox gets ErrEnded.
func (l *Loop) Stop() error {
	l.stop.Store(true)
	l.wake()
	<-l.ended
	return l.err
}

// Ended is closed when the worker has ended.
func (l *Loop) Ended() <-chan struct{} { return l.ended }

// Do has the worker call slice once per round, between bursts, until it says that it is done, and waits for that. slice
// runs on the worker's goroutine: it must be short and may use everything that is the worker's.
func (l *Loop) Do(slice func(now clock.Tick) (done bool)) error {
	r := &request{slice: slice, done: make(chan struct{})}
	l.mail.push(r)
	l.wake()
	select {
	case <-r.done:
		return nil
	case <-l.ended:
	}
	select {
	case <-r.done: // served in the last round
		return nil
	default:
		return ErrEnded
	}
}

// wake gets the worker out of its sleep, if it sleeps.
func (l *Loop) wake() {
	if !l.asleep.Load() {
		return
	}
	l.eventMu.Lock()
	defer l.eventMu.Unlock()
	if l.event >= 0 {
		var one [8]byte
		binary.NativeEndian.PutUint64(one[:], 1)
		_, _ = unix.Write(l.event, one[:]) // fails only when the counter is full: then it is awake
	}
}

func (l *Loop) run(started chan<- error) {
	runtime.LockOSThread() // and never unlocked: a pinned thread dies with its goroutine
	defer l.end()
	if err := l.place(); err != nil {
		started <- err
		return
	}
	started <- nil
	if l.o.Begin != nil {
		<-l.o.Begin
	}
	l.w.nat.Own()
	l.rounds()
}

// end runs when the worker ends, by Stop or by a panic, which must not take the host's other work with it: XDP and sockets
// are still there and the owner of the loop detaches them.
func (l *Loop) end() {
	if r := recover(); r != nil {
		stack := make([]byte, 16<<10)
		l.err = fmt.Errorf("worker %d died: %v\n%s", l.w.o.Index, r, stack[:runtime.Stack(stack, false)])
	}
	l.w.nat.Disown()
	close(l.ended)
	l.asleep.Store(false)
	l.eventMu.Lock()
	defer l.eventMu.Unlock()
	unix.Close(l.event)
	l.event = -1
}

// place gives the thread its name, core and priority.
func (l *Loop) place() error {
	cpu.NameThread(fmt.Sprintf("worker%d", l.w.o.Index))
	if l.o.Core >= 0 {
		if err := cpu.Pin(l.o.Core); err != nil {
			return fmt.Errorf("worker %d: %w", l.w.o.Index, err)
		}
	}
	if l.o.RTPriority > 0 {
		if err := cpu.SetFIFO(l.o.RTPriority); err != nil {
			return fmt.Errorf("worker %d: %w", l.w.o.Index, err)
		}
	}
	return nil
}

// rounds polls until it is told to stop. Every turn calls Poll, which is not inlined: a point where the garbage collector
// can stop the thread. While there is work nothing here blocks, allocates or yields.
func (l *Loop) rounds() {
	last := l.nanos()
	worked, busy := last, false
	l.spent.since = last
	spin := spinBeforeSleep.Nanoseconds()
	if l.o.RTPriority > 0 {
		// A FIFO thread that spins starves whatever feeds it on the same core, NAPI first of all: it sleeps at once.
		spin = 0
	}
	for !l.stop.Load() {
		ns := l.nanos()
		l.gap(ns - last)
		if busy {
			l.spent.busy += ns - last
		}
		last, l.spent.until = ns, ns
		now := clock.Tick(ns / 1e6)
		work := l.w.Poll(now)
		if l.mail.waiting() {
			l.mail.serve(now)
			work++
		}
		busy = work > 0
		switch {
		case busy:
			worked = ns
		case l.o.Idle == Adaptive && ns-worked >= spin:
			l.sleep(now)
			last = l.nanos()
			l.spent.asleep += last - ns
		}
	}
}

// nanos reads CLOCK_MONOTONIC, without a system call.
func (l *Loop) nanos() int64 { return l.baseNS + int64(time.Since(l.base)) }

// gap counts the time between two polls, sleep apart, in buckets of powers of two of a microsecond.
func (l *Loop) gap(ns int64) {
	if us := uint64(ns) / 1000; us > 0 {
		g := &l.gaps[min(bits.Len64(us), gapBuckets)-1]
		g.Store(g.Load() + 1)
	}
}

// sleep is the protocol of DESIGN 10: say that we sleep, look once more at everything that could wake us, then wait for
// the sockets and the eventfd, until the next timer at most. An interrupted wait (EINTR) is as good as any other.
func (l *Loop) sleep(now clock.Tick) {
	l.w.publishAll()
	timeout := sleepMax
	if due, ok := l.w.Due(now); ok {
		timeout = min(timeout, time.Duration(int32(due-now))*time.Millisecond)
	}
	if timeout <= 0 {
		if l.w.advanced != now {
			return
		}
		timeout = time.Millisecond // all that this tick had to do is done: not before the next one
	}
	l.short.Store(l.w.pool.Len() == 0)
	l.asleep.Store(true)
	if !l.mail.waiting() && !l.stop.Load() && !l.pending() && !l.w.waiting() {
		l.sleeps.Store(l.sleeps.Load() + 1)
		l.timeout = unix.NsecToTimespec(int64(timeout))
		_, _ = unix.Ppoll(l.fds, &l.timeout, nil)
	}
	l.asleep.Store(false)
	if e := &l.fds[len(l.fds)-1]; e.Revents != 0 {
		e.Revents = 0
		var n [8]byte
		_, _ = unix.Read(l.event, n[:])
	}
}

// refresh looks at the sockets' descriptors anew. It is the worker's.
func (l *Loop) refresh() {
	for i, s := range l.sleepers {
		l.fds[i].Fd = int32(s.FD())
	}
}

func (l *Loop) pending() bool {
	for _, s := range l.sleepers {
		if s.Pending() {
			return true
		}
	}
	return false
}

// monotonicTick is the tick now, by the same clock as a running worker's.
func monotonicTick() clock.Tick {
	var now unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &now) // can't fail: the clock exists
	return clock.Tick(now.Nano() / 1e6)
}
