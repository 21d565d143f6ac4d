package pmd

import (
	"log/slog"
	"runtime"
	"time"

	"pollux/internal/cpu"
)

// populate takes the memory of all tables now, if that is asked for. Otherwise a worker takes it from the kernel page by page as
// links are made: the kernel clears a huge page in a fraction of a millisecond, but may also look for one for many, and packets
// wait meanwhile. Each shard is filled from its worker's core, so that the memory is of that core's NUMA node.
func (g *Gateway) populate() error {
	if !g.o.Populate {
		return nil
	}
	start := time.Now()
	done := make(chan error, len(g.workers))
	for _, w := range g.workers {
		go func() {
			runtime.LockOSThread() // never unlocked: the thread ends with its affinity
			if err := cpu.Pin(w.core); err != nil {
				done <- err
				return
			}
			done <- w.shard.Populate()
		}()
	}
	var err error
	for range g.workers {
		if e := <-done; err == nil {
			err = e
		}
	}
	if err == nil {
		mapped := uint64(0)
		for _, w := range g.workers {
			mapped += w.shard.Counters().Memory
		}
		slog.Info("the memory for links is taken", "MiB", mapped>>20, "after", time.Since(start).Round(time.Millisecond))
	}
	return err
}
