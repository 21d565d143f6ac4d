package pmd

import (
	"os"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"pollux/internal/clock"
	"pollux/internal/cpu"
	"pollux/rings"
)

// startRig runs a rig's worker; the test may touch the rig only through Do until the loop has ended.
func startRig(t *testing.T, r *rig, o LoopOptions) *Loop {
	t.Helper()
	l, err := StartLoop(r.w, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Stop() })
	return l
}

func lastCore(t *testing.T) int {
	t.Helper()
	cores, err := cpu.Allowed()
	if err != nil {
		t.Fatal(err)
	}
	return cores[len(cores)-1]
}

// TestSleepingWorkerIsWoken: an idle adaptive worker sleeps, and a request gets it out of its sleep at once.
func TestSleepingWorkerIsWoken(t *testing.T) {
	r := newRig(t, rigOptions{})
	sleepMax = time.Hour // whoever is not woken does not wake
	defer func() { sleepMax = time.Second }()
	l := startRig(t, r, LoopOptions{Core: lastCore(t), Idle: Adaptive})
	defer l.Stop()
	for range 20 {
		for i := 0; !l.asleep.Load(); i++ {
			if i == 2000 {
				t.Fatal("an idle worker never sleeps")
			}
			time.Sleep(time.Millisecond)
		}
		if err := l.Do(func(clock.Tick) bool { return true }); err != nil {
			t.Fatal(err)
		}
	}
	if l.sleeps.Load() == 0 {
		t.Error("no sleep was counted")
	}
}

func TestRequestsAreServedInSlicesInOrder(t *testing.T) {
	r := newRig(t, rigOptions{})
	l := startRig(t, r, LoopOptions{Core: -1, Idle: Adaptive})
	slices, rounds := 0, map[uint64]bool{}
	err := l.Do(func(clock.Tick) bool {
		slices++
		rounds[r.w.c.polls] = true
		return slices == 10
	})
	if err != nil || slices != 10 || len(rounds) != 10 {
		t.Errorf("%d slices in %d rounds, %v", slices, len(rounds), err)
	}
	l.Stop()
	if err := l.Do(func(clock.Tick) bool { return true }); err != ErrEnded {
		t.Errorf("a request to an ended worker: %v", err)
	}
}

func TestWorkerThatPanicsTellsWhy(t *testing.T) {
	r := newRig(t, rigOptions{})
	l := startRig(t, r, LoopOptions{Core: -1, Idle: Spin})
	err := l.Do(func(clock.Tick) bool { panic("lost its way") })
	if err != ErrEnded {
		t.Errorf("the request that killed it: %v", err)
	}
	<-l.Ended()
	if err := l.Stop(); err == nil || !strings.Contains(err.Error(), "lost its way") {
		t.Errorf("it died of %v", err)
	}
}

func TestCoreThatDoesNotExist(t *testing.T) {
	r := newRig(t, rigOptions{})
	if _, err := StartLoop(r.w, LoopOptions{Core: 1000}); err == nil || !strings.Contains(err.Error(), "core 1000") {
		t.Errorf("started: %v", err)
	}
}

// loadPort is a port that always has a burst of the same packets.
type loadPort struct {
	*MemPort
	pool  *rings.Pool
	frame []byte
	on    *atomic.Bool
}

func (p loadPort) Receive(b []rings.Frame) int {
	if p.on.Load() {
		for range len(b) / 2 {
			p.Push(p.pool, p.frame)
		}
	}
	return p.MemPort.Receive(b)
}

// TestGarbageCollection forces a collection every 10 ms, idle and under load, with either idle policy: the world must
// stop and start again, and requests must still be served.
func TestGarbageCollection(t *testing.T) {
	if n := runtime.GOMAXPROCS(0); n < 3 {
		defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(3))
	}
	for name, idle := range map[string]Idle{"spin": Spin, "adaptive": Adaptive} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, rigOptions{silent: true})
			var on atomic.Bool
			r.w.ports[inPort].Port = loadPort{r.ports[inPort], r.pool, fromInside(host1, 5000).UDP(nil), &on}
			l := startRig(t, r, LoopOptions{Core: lastCore(t), Idle: idle})
			for i := range 60 { // a hang is what this test is after: the test's own time limit ends it
				on.Store(i >= 30)
				runtime.GC()
				if err := l.Do(func(clock.Tick) bool { return true }); err != nil {
					t.Fatal(err)
				}
				time.Sleep(10 * time.Millisecond)
			}
			l.Stop()
			if r.w.c.forwarded < 100 {
				t.Errorf("%d packets forwarded", r.w.c.forwarded)
			}
			gaps := uint64(0)
			for i := range l.gaps {
				gaps += l.gaps[i].Load()
			}
			if gaps == 0 {
				t.Error("no gap between polls was counted")
			}
			r.check()
		})
	}
}

// TestTimersRunWhileAsleep: a sleeping worker gets up for the shard's timers.
func TestTimersRunWhileAsleep(t *testing.T) {
	r := newRig(t, rigOptions{})
	l := startRig(t, r, LoopOptions{Core: -1, Idle: Adaptive})
	// An unsolicited SYN is held for six seconds and then dropped in silence.
	err := l.Do(func(clock.Tick) bool {
		r.push(outPort, syn(fromOutside(alias1, 9999)))
		return true
	})
	if err != nil {
		t.Fatal(err)
	}
	for range 100 {
		time.Sleep(100 * time.Millisecond)
		if r.w.pub.received.Load() == 1 && r.w.pub.held.Load() == 0 {
			l.Stop()
			r.check()
			return
		}
	}
	t.Fatal("the SYN is still held after 10 s")
}

// TestPriorityAndCore: the worker's thread alone is pinned and gets FIFO priority.
func TestPriorityAndCore(t *testing.T) {
	r := newRig(t, rigOptions{})
	l, err := StartLoop(r.w, LoopOptions{Core: lastCore(t), Idle: Adaptive, RTPriority: 1})
	if err != nil {
		if strings.Contains(err.Error(), "not permitted") && os.Getenv("POLLUX_REQUIRE_LAB") != "1" {
			t.Skip(err)
		}
		t.Fatal(err)
	}
	defer l.Stop()
	var attr *unix.SchedAttr
	var cores []int
	if err := l.Do(func(clock.Tick) bool {
		attr, err = unix.SchedGetAttr(0, 0)
		cores, _ = cpu.Affinity()
		return true
	}); err != nil || attr == nil {
		t.Fatal(err)
	}
	if attr.Policy != unix.SCHED_FIFO || attr.Priority != 1 || len(cores) != 1 || cores[0] != lastCore(t) {
		t.Errorf("policy %d, priority %d, cores %v", attr.Policy, attr.Priority, cores)
	}
	if mine, err := unix.SchedGetAttr(0, 0); err != nil || mine.Policy != 0 {
		t.Errorf("the test's own thread: %+v %v", mine, err)
	}
}
