package main

import (
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"pollux/internal/lab"
)

// heard collects what the service manager is told.
func heard(t *testing.T, ln *net.UnixConn) <-chan string {
	list := make(chan string, 1000)
	go func() {
		buf := make([]byte, 4096)
		for {
			n, err := ln.Read(buf)
			if err != nil {
				close(list)
				return
			}
			list <- string(buf[:n])
		}
	}()
	t.Cleanup(func() { ln.Close() })
	return list
}

// await returns once the manager was told something.
func await(t *testing.T, list <-chan string, want string) {
	t.Helper()
	limit := time.After(20 * time.Second)
	for {
		select {
		case got := <-list:
			if got == want {
				return
			}
		case <-limit:
			t.Fatalf("the service manager was not told %s", want)
		}
	}
}

// startManaged starts a gateway below a service manager, which the test is, and returns what it tells once it is ready.
func startManaged(t *testing.T, l *lab.Lab, watchdog string) (*lab.Process, <-chan string) {
	t.Helper()
	manager := filepath.Join(l.Dir, "notify")
	ln, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: manager, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	list := heard(t, ln)
	t.Setenv("NOTIFY_SOCKET", manager)
	t.Setenv("WATCHDOG_USEC", watchdog)
	p, err := l.StartGateway(binary, "--idle", "adaptive", "--limits-links", "5000")
	if err != nil {
		t.Fatal(err)
	}
	await(t, list, "READY=1")
	return p, list
}

// TestWatchdogOfAHungWorker stops the thread of one worker only, as a bug in it would: from then on the service manager hears
// nothing, while the rest of the process is well. It then does what systemd does, and a new gateway forwards.
func TestWatchdogOfAHungWorker(t *testing.T) {
	l := newLab(t)
	p, list := startManaged(t, l, "150000")
	await(t, list, "WATCHDOG=1")
	await(t, list, "WATCHDOG=1")

	resume := stopThread(t, p.PID(), "worker0")
	if err := p.WaitFor("a worker hangs", 20*time.Second); err != nil {
		t.Fatal(err)
	}
	for len(list) > 0 {
		<-list
	}
	beats := 0
	for end := time.After(time.Second); ; { // no machine is too slow for this: nothing can be sent, but what was under way
		select {
		case <-list:
			if beats++; beats > 1 {
				t.Fatal("a worker hangs, and the service manager is told that all is well")
			}
			continue
		case <-end:
		}
		break
	}
	resume()
	await(t, list, "WATCHDOG=1")

	resume = stopThread(t, p.PID(), "worker0")
	if err := p.Signal(syscall.SIGABRT); err != nil {
		t.Fatal(err)
	}
	if err := p.WaitFor("goroutine ", 20*time.Second); err != nil {
		t.Fatal(err)
	}
	resume() // a traced thread keeps even a dead process
	if _, err := p.Wait(20 * time.Second); err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(p.Output(), "SIGABRT") || !strings.Contains(p.Output(), "goroutine") {
		t.Errorf("an aborted gateway does not say what it did:\n%s", p.Output())
	}
	p, err := l.StartGateway(binary, "--idle", "adaptive", "--limits-links", "5000")
	if err != nil {
		t.Fatal(err)
	}
	if n := ping(t, l); n != 5 {
		t.Errorf("after the restart %d of 5 pings answered", n)
	}
	if err := p.Stop(syscall.SIGTERM, 10*time.Second); err != nil {
		t.Error(err)
	}
}

// stopThread halts the thread of a process that has a name. The result lets it go on.
func stopThread(t *testing.T, pid int, name string) (resume func()) {
	t.Helper()
	tid := 0
	tasks, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/comm", pid))
	if err != nil {
		t.Fatal(err)
	}
	for _, path := range tasks {
		if b, err := os.ReadFile(path); err == nil && strings.TrimSpace(string(b)) == name {
			if _, err := fmt.Sscanf(path, fmt.Sprintf("/proc/%d/task/%%d/", pid), &tid); err != nil {
				t.Fatal(err)
			}
		}
	}
	if tid == 0 {
		t.Fatalf("process %d has no thread %q", pid, name)
	}
	halted, end, ended := make(chan error), make(chan struct{}), make(chan struct{})
	go func() { // ptrace belongs to a thread
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		defer close(ended)
		err := errors.Join(unix.PtraceSeize(tid), unix.PtraceInterrupt(tid))
		if err == nil {
			var status unix.WaitStatus
			_, err = unix.Wait4(tid, &status, unix.WALL, nil)
		}
		halted <- err
		<-end
		if unix.PtraceDetach(tid) != nil { // it has been killed
			_, _ = unix.Wait4(tid, nil, unix.WALL, nil)
		}
	}()
	if err := <-halted; err != nil {
		t.Fatalf("stop thread %d: %v", tid, err)
	}
	return func() { close(end); <-ended }
}

// Whose limit it is.
func TestWatchdogLimit(t *testing.T) {
	own := fmt.Sprint(os.Getpid())
	for _, c := range []struct {
		usec, pid string
		want      time.Duration
	}{
		{"", "", 0}, {"x", "", 0}, {"-1", "", 0}, {"0", own, 0},
		{"30000000", "", 30 * time.Second},
		{"30000000", own, 30 * time.Second},
		{"30000000", "1", 0}, // a parent's
	} {
		t.Setenv("WATCHDOG_USEC", c.usec)
		t.Setenv("WATCHDOG_PID", c.pid)
		if got := watchdogLimit(); got != c.want {
			t.Errorf("WATCHDOG_USEC=%s WATCHDOG_PID=%s: %v, want %v", c.usec, c.pid, got, c.want)
		}
		if c.pid == own && c.want > 0 {
			if _, ok := os.LookupEnv("WATCHDOG_PID"); ok {
				t.Error("a successor would take the limit for another process's")
			}
		}
	}
}

// A gateway that ends by itself is not reported as a hanging one.
func TestWatchdogEnds(t *testing.T) {
	t.Setenv("NOTIFY_SOCKET", "")
	d := startWatchdog(time.Hour, func(func(int)) error { return errors.New("the worker has ended") })
	<-d.ended
	d.Close()
	startWatchdog(0, nil).Close()
	d = startWatchdog(time.Hour, func(at func(int)) error { at(3); select {} })
	d.Close() // does not wait for a worker that hangs
}
