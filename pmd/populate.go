package pmd

import (
	"log/slog"
	"time"
)

// populate takes the memory of all tables now, if that is asked for. Otherwise a worker takes it from the kernel page by page as
// links are made: the kernel clears a huge page in a fraction of a millisecond, but may also look for one for many, and packets
// wait meanwhile. Tables on huge pages took theirs when they were made; this is for what the kernel had none for. began is when
// the first table was.
func (g *Gateway) populate(began time.Time) error {
	if !g.o.Populate {
		return nil
	}
	mapped := uint64(0)
	for _, w := range g.workers {
		var err error
		if onCore(w.core, func() { err = w.shard.Populate() }); err != nil {
			return err
		}
		mapped += w.shard.Counters().Memory
	}
	slog.Info("the memory for links is taken", "MiB", mapped>>20, "after", time.Since(began).Round(time.Millisecond))
	return nil
}
