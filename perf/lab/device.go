package lab

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	netlab "pollux/internal/lab"
)

// Offloads of a veth's end, as the old ethtool requests know them.
const (
	offloadTX  = unix.ETHTOOL_STXCSUM // segmentation needs it and goes with it
	offloadGRO = unix.ETHTOOL_SGRO
)

// setOffload switches an offload of a device of a namespace.
func setOffload(n *netlab.Namespace, device string, request uint32, on bool) error {
	return n.Do(func() error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		value := struct{ cmd, data uint32 }{cmd: request}
		if on {
			value.data = 1
		}
		var req struct { // struct ifreq
			name [unix.IFNAMSIZ]byte
			data unsafe.Pointer
			_    [16]byte
		}
		copy(req.name[:unix.IFNAMSIZ-1], device)
		req.data = unsafe.Pointer(&value)
		if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&req))); errno != 0 {
			return fmt.Errorf("%s in %s: offload %#x: %w", device, n.Name, request, errno)
		}
		return nil
	})
}

// napiThreads moves a device's NAPI into kernel threads and returns their ids. The device must have a NAPI already, which
// on a veth GRO gives it.
func napiThreads(n *netlab.Namespace, device string) ([]int, error) {
	before, err := threadsNamed("napi/" + device + "-")
	if err != nil {
		return nil, err
	}
	// sysfs shows the devices of the namespace in which it was mounted.
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	script := "mount -t sysfs none /sys && echo 1 > /sys/class/net/" + device + "/threaded"
	if _, err := n.Run(ctx, "unshare", "-m", "sh", "-c", script); err != nil {
		return nil, fmt.Errorf("%s in %s: NAPI in threads: %w", device, n.Name, err)
	}
	after, err := threadsNamed("napi/" + device + "-")
	if err != nil {
		return nil, err
	}
	list := slices.DeleteFunc(after, func(pid int) bool { return slices.Contains(before, pid) })
	if len(list) == 0 {
		return nil, fmt.Errorf("%s in %s: the kernel made no NAPI thread", device, n.Name)
	}
	return list, nil
}

// threadsNamed lists the kernel threads whose name begins so.
func threadsNamed(prefix string) (pids []int, err error) {
	names, err := filepath.Glob("/proc/[0-9]*/comm")
	if err != nil {
		return nil, err
	}
	for _, path := range names {
		if b, err := os.ReadFile(path); err == nil && strings.HasPrefix(string(b), prefix[:min(len(prefix), 15)]) {
			if pid, err := strconv.Atoi(strings.Split(path, "/")[2]); err == nil {
				pids = append(pids, pid)
			}
		}
	}
	return pids, nil
}

// place confines a thread to a core, at a FIFO priority.
func place(pid, core, priority int) error {
	var set unix.CPUSet
	set.Set(core)
	if err := unix.SchedSetaffinity(pid, &set); err != nil {
		return fmt.Errorf("pin thread %d to core %d: %w", pid, core, err)
	}
	attr := unix.SchedAttr{Size: unix.SizeofSchedAttr, Policy: unix.SCHED_FIFO, Priority: uint32(priority)}
	if err := unix.SchedSetAttr(pid, &attr, 0); err != nil {
		return fmt.Errorf("FIFO priority of thread %d: %w", pid, err)
	}
	return nil
}

// confineSelf keeps every thread of this process, and all that they start, on a core.
func confineSelf(core int) error {
	var set unix.CPUSet
	set.Set(core)
	for range 2 { // a thread made meanwhile is met the second time
		tasks, err := os.ReadDir("/proc/self/task")
		if err != nil {
			return err
		}
		for _, t := range tasks {
			tid, _ := strconv.Atoi(t.Name())
			if err := unix.SchedSetaffinity(tid, &set); err != nil && !errors.Is(err, unix.ESRCH) {
				return fmt.Errorf("confine to core %d: %w", core, err)
			}
		}
	}
	return nil
}

// cpuTime is the processor time of threads so far: of kernel threads by id, and of all threads of processes.
func cpuTime(threads, processes []int) (sum time.Duration) {
	for _, pid := range threads {
		sum += ran(fmt.Sprintf("/proc/%d/schedstat", pid))
	}
	for _, pid := range processes {
		tasks, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/schedstat", pid))
		for _, path := range tasks {
			sum += ran(path)
		}
	}
	return sum
}

func ran(path string) time.Duration {
	b, err := os.ReadFile(path)
	if err != nil {
		return 0 // it ended
	}
	first, _, _ := strings.Cut(string(b), " ")
	ns, _ := strconv.ParseInt(first, 10, 64)
	return time.Duration(ns)
}
