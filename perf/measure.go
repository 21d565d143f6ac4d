package perf

import (
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// cpuTime is the processor time that the calling thread has used; the caller has locked the thread. On a shared machine it
// says more than the time that passed.
func cpuTime() time.Duration {
	var t unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t)
	return time.Duration(t.Nano())
}

// nanoseconds runs a function that handles n packets and returns the processor time of each.
func nanoseconds(n int, f func()) float64 {
	start := cpuTime()
	f()
	return float64(cpuTime()-start) / float64(n)
}

// onThread locks the goroutine to its thread while f runs, as cpuTime needs it.
func onThread(f func() error) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	return f()
}

// netOf alternates runs of bare, which only makes n packets, with runs of full, which also works on them, and sums up the
// differences per packet. One run of each goes before and is not counted.
func netOf(repeat, n int, bare, full func()) Stat {
	bare()
	full()
	var net []float64
	for range repeat {
		without := nanoseconds(n, bare)
		net = append(net, nanoseconds(n, full)-without)
	}
	return NewStat(net)
}
