package cpu

import (
	"os"
	"runtime"
	"slices"
	"strconv"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func TestParseList(t *testing.T) {
	for _, c := range []struct {
		in   string
		want []int
	}{{"", nil}, {"3", []int{3}}, {"2-5", []int{2, 3, 4, 5}}, {"8,0-1", []int{8, 0, 1}}} {
		if got, err := ParseList(c.in); err != nil || !slices.Equal(got, c.want) {
			t.Errorf("ParseList(%q) = %v, %v, want %v", c.in, got, err, c.want)
		}
	}
	for _, bad := range []string{"x", "1-", "-1", "5-2", "1,,2", "99999", "1024"} {
		if got, err := ParseList(bad); err == nil {
			t.Errorf("ParseList(%q) = %v, want an error", bad, got)
		}
	}
}

// locked runs f on a thread that is thrown away afterwards, so that its affinity and priority harm nobody.
func locked(f func()) {
	done := make(chan struct{})
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		defer close(done)
		f()
	}()
	<-done
}

func TestPinChangesTheCallingThreadOnly(t *testing.T) {
	all, err := Allowed()
	if err != nil || len(all) == 0 {
		t.Fatalf("Allowed() = %v, %v", all, err)
	}
	last := all[len(all)-1]
	locked(func() {
		if err := Pin(last); err != nil {
			t.Fatal(err)
		}
		if got, _ := Affinity(); !slices.Equal(got, []int{last}) {
			t.Errorf("pinned to %d, affinity is %v", last, got)
		}
	})
	if again, _ := Allowed(); !slices.Equal(again, all) {
		t.Errorf("the process's cores went from %v to %v", all, again)
	}
	locked(func() {
		if err := Pin(coresMax); err == nil {
			t.Error("a core that does not exist was accepted")
		}
	})
}

func TestSetFIFO(t *testing.T) {
	if err := SetFIFO(0); err == nil {
		t.Error("priority 0 was accepted")
	}
	if err := SetFIFO(99); err == nil {
		t.Error("priority 99 was accepted")
	}
	locked(func() {
		if err := SetFIFO(1); err != nil {
			if os.Getenv("POLLUX_REQUIRE_LAB") == "1" {
				t.Fatalf("needs CAP_SYS_NICE, which POLLUX_REQUIRE_LAB=1 says is there: %v", err)
			}
			t.Skipf("needs CAP_SYS_NICE: %v", err)
		}
		attr, err := unix.SchedGetAttr(0, 0)
		if err != nil || attr.Policy != unix.SCHED_FIFO || attr.Priority != 1 {
			t.Errorf("policy %+v, %v: want FIFO 1", attr, err)
		}
	})
}

func TestNodeOfAVirtualDevice(t *testing.T) {
	if n := Node("lo"); n != -1 {
		t.Errorf("Node(lo) = %d, want -1", n)
	}
	if c := NodeCores(1 << 20); c != nil {
		t.Errorf("NodeCores of no node = %v", c)
	}
}

func TestConfineProcess(t *testing.T) {
	all, err := Allowed()
	if err != nil || len(all) < 2 {
		if os.Getenv("POLLUX_REQUIRE_LAB") == "1" {
			t.Fatalf("needs two cores, which POLLUX_REQUIRE_LAB=1 says are there: %v %v", all, err)
		}
		t.Skipf("needs two cores: %v %v", all, err)
	}
	defer ConfineProcess(all)
	for range 8 { // more threads
		go locked(func() { time.Sleep(50 * time.Millisecond) })
	}
	if err := ConfineProcess(all[:1]); err != nil {
		t.Fatal(err)
	}
	tasks, err := os.ReadDir("/proc/self/task")
	if err != nil {
		t.Fatal(err)
	}
	for _, task := range tasks {
		tid, _ := strconv.Atoi(task.Name())
		var set unix.CPUSet
		if unix.SchedGetaffinity(tid, &set) == nil && (set.Count() != 1 || !set.IsSet(all[0])) {
			t.Errorf("thread %d may run on %v", tid, cores(&set))
		}
	}
	locked(func() {
		if got, _ := Affinity(); !slices.Equal(got, all[:1]) {
			t.Errorf("a later thread may run on %v", got)
		}
	})
}
