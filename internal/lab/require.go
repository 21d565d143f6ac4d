package lab

import (
	"fmt"
	"os"

	"golang.org/x/sys/unix"
)

// TB is the part of testing.TB that Require uses, so that a program which links this package does not link testing.
type TB interface {
	Helper()
	Skipf(format string, args ...any)
	Fatalf(format string, args ...any)
}

// Require skips the test, saying why, when this machine can't run a lab with AF_XDP. With POLLUX_REQUIRE_LAB=1 in the
// environment it fails the test instead: where the lab must work, a skip would hide a loss.
func Require(t TB) {
	t.Helper()
	err := Missing()
	switch {
	case err == nil:
	case os.Getenv("POLLUX_REQUIRE_LAB") == "1":
		t.Fatalf("the lab is required (POLLUX_REQUIRE_LAB=1) and can't run: %v", err)
	default:
		t.Skipf("no lab here: %v", err)
	}
}

// Missing returns what keeps this machine from running a lab, nil when nothing does. It tries the real thing: a
// namespace, a veth pair and an AF_XDP socket.
func Missing() error {
	if os.Geteuid() != 0 {
		return fmt.Errorf("not root: run it with sudo")
	}
	l, err := New(Options{})
	if err != nil {
		return fmt.Errorf("can't make namespaces and veth pairs: %w", err)
	}
	defer l.Close()
	return l.Gateway.Do(func() error {
		fd, err := unix.Socket(unix.AF_XDP, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return fmt.Errorf("no AF_XDP sockets (kernel built without CONFIG_XDP_SOCKETS, or not allowed): %w", err)
		}
		return unix.Close(fd)
	})
}
