package cpu

import (
	"os"
	"strconv"
	"testing"

	"golang.org/x/sys/unix"
)

func TestSetProcessFIFO(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("needs root")
	}
	defer SetProcessFIFO(0)
	for _, want := range []struct{ set, policy, priority int }{{1, unix.SCHED_FIFO, 1}, {0, unix.SCHED_NORMAL, 0}} {
		if err := SetProcessFIFO(want.set); err != nil {
			t.Fatal(err)
		}
		tasks, err := os.ReadDir("/proc/self/task")
		if err != nil || len(tasks) < 2 {
			t.Fatalf("%d threads, %v", len(tasks), err)
		}
		for _, task := range tasks {
			tid, _ := strconv.Atoi(task.Name())
			a, err := unix.SchedGetAttr(tid, 0)
			if err != nil {
				continue // it ended
			}
			if int(a.Policy) != want.policy || int(a.Priority) != want.priority {
				t.Errorf("thread %d: policy %d, priority %d; want %d, %d", tid, a.Policy, a.Priority, want.policy, want.priority)
			}
		}
	}
	for _, bad := range []int{-1, PriorityMax + 1} {
		if SetProcessFIFO(bad) == nil {
			t.Errorf("priority %d is taken", bad)
		}
	}
}
