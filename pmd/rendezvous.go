package pmd

import (
	"sync"
	"sync/atomic"
	"time"

	"pollux/internal/clock"
)

// rendezvousPause is how often a worker that waits for the others looks again.
const rendezvousPause = 10 * time.Microsecond

const (
	gathering int32 = iota
	agreed
	abandoned
)

// together changes something that all workers must see change at once: each stops between two bursts, the last to arrive
// runs swap, then each runs f on its own goroutine and goes on. What they hand to each other meanwhile waits in its ring.
// Both must be short: whatever comes in while they run waits in the receive rings. On ErrEnded nothing was run.
func (g *Gateway) together(swap func(), f func(w *gatewayWorker, now clock.Tick)) error {
	var arrived, state atomic.Int32
	var wait sync.WaitGroup
	errs := make([]error, len(g.workers))
	for i, w := range g.workers {
		wait.Go(func() {
			errs[i] = w.loop.Do(func(now clock.Tick) bool {
				if int(arrived.Add(1)) == len(g.workers) {
					swap()
					state.Store(agreed)
				}
				for state.Load() == gathering {
					time.Sleep(rendezvousPause)
				}
				if state.Load() == agreed {
					f(w, now)
				}
				return true
			})
			if errs[i] != nil {
				state.CompareAndSwap(gathering, abandoned)
			}
		})
	}
	wait.Wait()
	for _, err := range errs {
		if err != nil {
			return err
		}
	}
	return nil
}
