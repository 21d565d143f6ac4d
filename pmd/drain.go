package pmd

import "pollux/internal/clock"

// Drain says whether flows that have no link yet are turned away, with the reason draining.
func (g *Gateway) Drain(on bool) error {
	g.changing.Lock()
	defer g.changing.Unlock()
	for _, w := range g.workers {
		if err := w.loop.Do(func(clock.Tick) bool { w.shard.Drain(on); return true }); err != nil {
			return err
		}
	}
	g.draining.Store(on)
	return nil
}

// Draining reports whether the gateway drains.
func (g *Gateway) Draining() bool { return g.draining.Load() }
