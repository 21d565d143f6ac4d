package lab

import (
	"os"
	"os/signal"
	"sync"

	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

var (
	alive     sync.Map // of *Lab: those to take down when the process is interrupted
	watchOnce sync.Once
)

// watchSignals takes every lab down when the process is interrupted, then lets the signal do what it does.
func watchSignals() {
	watchOnce.Do(func() {
		c := make(chan os.Signal, 1)
		signal.Notify(c, unix.SIGINT, unix.SIGTERM, unix.SIGHUP)
		go func() {
			got := <-c
			alive.Range(func(l, _ any) bool {
				l.(*Lab).destroy()
				return true
			})
			signal.Reset(unix.SIGINT, unix.SIGTERM, unix.SIGHUP)
			unix.Kill(os.Getpid(), got.(unix.Signal))
		}()
	})
}

// discard removes a namespace by name alone, with the processes in it.
func discard(name string) {
	if h, err := netns.GetFromName(name); err == nil {
		killInside(h)
		h.Close()
	}
	unname(name)
}
