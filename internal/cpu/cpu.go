// Package cpu places threads: which cores the process may use, on which NUMA node a core or a netdev is, and affinity and
// FIFO priority of threads. Pin and SetFIFO change the calling thread only, so the caller locks it first
// (runtime.LockOSThread) and keeps it locked: threads that the runtime clones later do not inherit from it.
package cpu

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// coresMax is how many cores an affinity mask can name (CPU_SETSIZE).
const coresMax = 1024

// atStart is the affinity that the process was started with. It is read before any thread is pinned, because a pinned
// goroutine may sit on the main thread, whose mask is the only one that can be asked by process id.
var atStart, errAtStart = Affinity()

// Allowed returns the cores that the process may run on, in rising order: cgroups and taskset are respected.
func Allowed() ([]int, error) {
	if errAtStart != nil {
		return nil, fmt.Errorf("which cores may be used: %w", errAtStart)
	}
	return slices.Clone(atStart), nil
}

func cores(set *unix.CPUSet) []int {
	list := make([]int, 0, set.Count())
	for c := range coresMax {
		if set.IsSet(c) {
			list = append(list, c)
		}
	}
	return list
}

// Pin confines the calling thread to one core.
func Pin(core int) error { return confine(0, []int{core}) }

// PinTo confines the calling thread to some cores.
func PinTo(list []int) error { return confine(0, list) }

// ConfineProcess confines every thread that the process has now to some cores; threads made later inherit that from the
// thread that makes them. Threads that shall run elsewhere are pinned afterwards.
func ConfineProcess(list []int) error {
	done := map[int]bool{}
	for fresh := true; fresh; { // again until no new thread was cloned by one that was still unconfined
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
			if err := confine(tid, list); err != nil && !errors.Is(err, unix.ESRCH) {
				return err
			}
			done[tid], fresh = true, true
		}
	}
	return nil
}

// confine sets the affinity of a thread, 0: the calling one.
func confine(tid int, list []int) error {
	names := strings.Trim(fmt.Sprint(list), "[]")
	var set unix.CPUSet
	set.Zero()
	for _, c := range list {
		if c < 0 || c >= coresMax {
			return fmt.Errorf("core %d does not exist", c)
		}
		set.Set(c)
	}
	err := unix.SchedSetaffinity(tid, &set)
	if errors.Is(err, unix.EINVAL) {
		return fmt.Errorf("core %s is not to be had: %v are allowed", names, atStart)
	}
	if err != nil {
		return fmt.Errorf("pin to core %s: %w", names, err)
	}
	return nil
}

// Affinity returns the cores of the calling thread.
func Affinity() ([]int, error) {
	var set unix.CPUSet
	if err := unix.SchedGetaffinity(0, &set); err != nil {
		return nil, err
	}
	return cores(&set), nil
}

// Highest FIFO priority that is sensible: 99 is for the kernel's own migration and watchdog threads.
const PriorityMax = 98

// SetFIFO gives the calling thread the real-time policy SCHED_FIFO with a priority of 1 to PriorityMax. Threads that it
// clones start as ordinary ones (SCHED_FLAG_RESET_ON_FORK). It needs CAP_SYS_NICE.
func SetFIFO(priority int) error {
	if priority < 1 || priority > PriorityMax {
		return fmt.Errorf("FIFO priority %d: 1 to %d are allowed", priority, PriorityMax)
	}
	attr := unix.SchedAttr{
		Size:     unix.SizeofSchedAttr,
		Policy:   unix.SCHED_FIFO,
		Flags:    unix.SCHED_FLAG_RESET_ON_FORK,
		Priority: uint32(priority),
	}
	err := unix.SchedSetAttr(0, &attr, 0)
	if errors.Is(err, unix.EPERM) {
		return fmt.Errorf("FIFO priority %d is not permitted: run as root, or give CAP_SYS_NICE (setcap cap_sys_nice+ep)", priority)
	}
	if err != nil {
		return fmt.Errorf("FIFO priority %d: %w", priority, err)
	}
	return nil
}

// Throttled reports whether the kernel takes the core away from FIFO threads that never sleep, for part of each period
// (sched_rt_runtime_us, normally 50 ms of each second).
func Throttled() bool {
	b, err := os.ReadFile("/proc/sys/kernel/sched_rt_runtime_us")
	return err == nil && strings.TrimSpace(string(b)) != "-1"
}

// Node returns the NUMA node of a netdev, -1 when it has none (virtual devices, machines with one node).
func Node(netdev string) int {
	b, err := os.ReadFile(filepath.Join("/sys/class/net", netdev, "device/numa_node"))
	if err != nil {
		return -1
	}
	n, err := strconv.Atoi(strings.TrimSpace(string(b)))
	if err != nil {
		return -1
	}
	return n
}

// NodeCores returns the cores of a NUMA node, nil when it does not exist.
func NodeCores(node int) []int {
	b, err := os.ReadFile(fmt.Sprintf("/sys/devices/system/node/node%d/cpulist", node))
	if err != nil {
		return nil
	}
	list, err := ParseList(strings.TrimSpace(string(b)))
	if err != nil {
		return nil
	}
	return list
}

// ParseList reads the kernel's notation for core lists: "0-3,8". The result keeps the order given; an empty string is an
// empty list.
func ParseList(s string) ([]int, error) {
	var list []int
	if s == "" {
		return nil, nil
	}
	for part := range strings.SplitSeq(s, ",") {
		low, high, isRange := strings.Cut(strings.TrimSpace(part), "-")
		a, err := strconv.ParseUint(low, 10, 16)
		b := a
		if err == nil && isRange {
			b, err = strconv.ParseUint(high, 10, 16)
		}
		if err != nil || b < a || b >= coresMax {
			return nil, fmt.Errorf("%q is no list of cores such as 2-5 or 1,3", s)
		}
		for ; a <= b; a++ {
			list = append(list, int(a))
		}
	}
	return list, nil
}
