package pmd

import (
	"fmt"

	"pollux/internal/clock"
)

// Pulse returns when every worker has gone round once more since it was called: it polled, and answered between two bursts. It
// waits as long as one hangs, and fails when one has ended. at, if not nil, is told each worker before it is waited for.
func (g *Gateway) Pulse(at func(worker int)) error {
	for k, w := range g.workers {
		if at != nil {
			at(k)
		}
		if err := w.loop.Do(func(clock.Tick) bool { return true }); err != nil {
			return fmt.Errorf("worker %d: %w", k, err)
		}
	}
	return nil
}
