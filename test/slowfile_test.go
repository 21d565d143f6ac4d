package integration

import (
	"os"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"pollux/internal/lab"
)

// A configuration that can't be read to its end (a mount that hangs; here a pipe that nobody closes) keeps a reload waiting, but
// not whoever wants to look at the gateway or to stop it.
func TestStopDuringSlowReload(t *testing.T) {
	g := operate(t, newLab(t, lab.Options{}), 1, "alias: [port]")
	if err := os.Remove(g.file); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mkfifo(g.file, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := g.Signal(syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	eventually(t, 10*time.Second, func() error { // succeeds once the gateway has it open
		fd, err := unix.Open(g.file, unix.O_WRONLY|unix.O_NONBLOCK|unix.O_CLOEXEC, 0)
		if err == nil {
			t.Cleanup(func() { unix.Close(fd) })
		}
		return err
	})
	g.must("show", "config")
	if err := g.Stop(syscall.SIGTERM, 10*time.Second); err != nil {
		t.Fatal(err)
	}
}
