package main

import (
	"strconv"
	"syscall"
	"testing"
	"time"

	"pollux/internal/control"
)

// TestSuccessorOfAService restarts a gateway below a service manager, which the test is: it is told of the new process, which is its own
// child, has a watchdog that works, and ends by SIGTERM with status 0. systemd kills at once what is not its child.
func TestSuccessorOfAService(t *testing.T) {
	l := newLab(t)
	p, list := startManaged(t, l, "300000")
	r, err := control.NewClient(l.Socket()).Restart(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	await(t, list, "MAINPID="+strconv.Itoa(r.PID))
	for limit := time.Now().Add(20 * time.Second); syscall.Kill(p.PID(), 0) == nil; time.Sleep(10 * time.Millisecond) {
		if time.Now().After(limit) {
			t.Fatalf("the old process stays:\n%s", p.Output())
		}
	}
	for len(list) > 0 {
		<-list
	}
	await(t, list, "WATCHDOG=1")
	if n := ping(t, l); n != 5 {
		t.Errorf("%d of 5 pings answered", n)
	}
	if err := syscall.Kill(r.PID, syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	var status syscall.WaitStatus
	go func() {
		_, err := syscall.Wait4(r.PID, &status, 0, nil)
		ended <- err
	}()
	select {
	case err := <-ended:
		if err != nil || !status.Exited() || status.ExitStatus() != 0 {
			t.Errorf("the successor is not its manager's child, or did not end well: %v, status %#x", err, status)
		}
	case <-time.After(20 * time.Second):
		_ = syscall.Kill(r.PID, syscall.SIGKILL)
		t.Error("the successor did not heed SIGTERM")
	}
}
