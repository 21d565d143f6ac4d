package pmd

import (
	"fmt"
	"runtime"

	"golang.org/x/sys/unix"
)

// namespace is the network namespace that Start was called in. Netlink and punting act on the calling thread's own, so
// control goroutines that do such things run on threads that are there. In a program that never changes namespaces (the
// pollux command) every thread is there already, and no privilege is needed.
type namespace struct{ fd int }

func thisNamespace() (namespace, error) {
	fd, err := unix.Open("/proc/thread-self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return namespace{-1}, fmt.Errorf("pmd: network namespace: %w", err)
	}
	return namespace{fd}, nil
}

func (n *namespace) close() {
	if n.fd >= 0 {
		unix.Close(n.fd)
		n.fd = -1
	}
}

// enter takes the calling goroutine's thread into the namespace. A thread that had to move stays locked to its goroutine
// and ends with it.
func (n *namespace) enter() error {
	runtime.LockOSThread()
	var there, here unix.Stat_t
	if err := unix.Fstat(n.fd, &there); err != nil {
		return err
	}
	if err := unix.Stat("/proc/thread-self/ns/net", &here); err != nil {
		return err
	}
	if here.Ino == there.Ino && here.Dev == there.Dev {
		runtime.UnlockOSThread()
		return nil
	}
	if err := unix.Setns(n.fd, unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("pmd: enter the network namespace: %w", err)
	}
	return nil
}
