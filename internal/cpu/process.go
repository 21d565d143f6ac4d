package cpu

import (
	"errors"
	"fmt"
	"os"
	"strconv"

	"golang.org/x/sys/unix"
)

// SetProcessFIFO gives every thread that the process has now the real-time policy SCHED_FIFO with a priority of 1 to
// PriorityMax, or with 0 the ordinary policy. Threads made later inherit it from the thread that makes them.
//
// It is for the threads beside a worker with a FIFO priority, on cores of their own. The runtime takes the processor (P)
// away from a goroutine every 10 ms, and one that is locked to its thread gets it back from another thread only: when that
// thread finds no time on its core, the worker waits for it, whatever its own priority.
func SetProcessFIFO(priority int) error {
	if priority < 0 || priority > PriorityMax {
		return fmt.Errorf("FIFO priority %d: 0 to %d are allowed", priority, PriorityMax)
	}
	attr := unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_NORMAL}
	if priority > 0 {
		attr.Policy, attr.Priority = unix.SCHED_FIFO, uint32(priority)
	}
	return eachThread(func(tid int) error {
		if err := unix.SchedSetAttr(tid, &attr, 0); err != nil && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("FIFO priority %d: %w", priority, err)
		}
		return nil
	})
}

// eachThread calls f for every thread of the process, those included that are cloned meanwhile by threads it was not called
// for yet.
func eachThread(f func(tid int) error) error {
	done := map[int]bool{}
	for fresh := true; fresh; {
		fresh = false
		tasks, err := os.ReadDir("/proc/self/task")
		if err != nil {
			return fmt.Errorf("list the process's threads: %w", err)
		}
		for _, t := range tasks {
			tid, err := strconv.Atoi(t.Name())
			if err != nil || done[tid] {
				continue
			}
			if err := f(tid); err != nil {
				return err
			}
			done[tid], fresh = true, true
		}
	}
	return nil
}
