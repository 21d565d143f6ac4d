package main

import (
	"log/slog"
	"os"
	"strconv"
	"sync/atomic"
	"time"
)

// watchdogBeats is how often within the service manager's limit it hears from a gateway that is well.
const watchdogBeats = 3

// watchdogLimit is how long the service manager waits for a sign of life (sd_watchdog_enabled(3)), 0 when it does not. The limit is
// the service's and not the process's: a successor inherits it, whatever its process id.
func watchdogLimit() time.Duration {
	us, err := strconv.ParseInt(os.Getenv("WATCHDOG_USEC"), 10, 64)
	if err != nil || us <= 0 {
		return 0
	}
	if pid := os.Getenv("WATCHDOG_PID"); pid != "" {
		if pid != strconv.Itoa(os.Getpid()) {
			return 0
		}
		os.Unsetenv("WATCHDOG_PID")
	}
	return time.Duration(us) * time.Microsecond
}

// watchdog sends signs of life for as long as every worker makes progress. When one hangs it says which and falls silent: then the
// service manager ends the process with SIGABRT, which writes down what every goroutine was doing, and starts it anew.
type watchdog struct {
	stop, ended chan struct{}
}

// startWatchdog does nothing where nobody waits. pulse returns when every worker has gone round, and tells each before it waits for it.
func startWatchdog(limit time.Duration, pulse func(at func(worker int)) error) *watchdog {
	if limit <= 0 {
		return nil
	}
	d := &watchdog{stop: make(chan struct{}), ended: make(chan struct{})}
	go d.watch(limit/watchdogBeats, pulse)
	return d
}

// Close ends it, also when a worker hangs. A nil watchdog is fine.
func (d *watchdog) Close() {
	if d != nil {
		close(d.stop)
		<-d.ended
	}
}

func (d *watchdog) watch(every time.Duration, pulse func(at func(worker int)) error) {
	defer close(d.ended)
	var waitsFor atomic.Int64
	at := func(worker int) { waitsFor.Store(int64(worker)) }
	for {
		alive := make(chan error, 1)
		go func() { alive <- pulse(at) }()
		late := time.NewTimer(every)
		for told := false; !told; {
			select {
			case err := <-alive:
				if err != nil {
					return // the gateway ends, and says why
				}
				tell("WATCHDOG=1")
				told = true
			case <-late.C:
				slog.Error("a worker hangs: it has not gone round, and the watchdog is not told that all is well", "worker", waitsFor.Load(), "for", every)
			case <-d.stop:
				late.Stop()
				return
			}
		}
		late.Stop()
		select {
		case <-time.After(every):
		case <-d.stop:
			return
		}
	}
}
