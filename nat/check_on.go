//go:build framecheck

package nat

import (
	"fmt"
	"sync/atomic"
	"syscall"
)

// keeper stops the process when a shard is used by two goroutines at a time, or by another thread than its owner.
type keeper struct {
	thread atomic.Int64 // 0: nobody's own
	inside atomic.Bool
}

func (g *keeper) enter() {
	if owner := g.thread.Load(); owner != 0 && owner != int64(syscall.Gettid()) {
		panic(fmt.Sprintf("nat: thread %d uses the shard of thread %d", syscall.Gettid(), owner))
	}
	if !g.inside.CompareAndSwap(false, true) {
		panic("nat: two goroutines use one shard")
	}
}

func (g *keeper) leave() { g.inside.Store(false) }

// Own says that only the calling thread, locked, may use the shard from now on. Builds with the tag framecheck hold it to that.
func (s *Shard) Own() { s.keeper.thread.Store(int64(syscall.Gettid())) }

// Disown ends Own: the worker has ended, and whoever comes next may look at what it left.
func (s *Shard) Disown() { s.keeper.thread.Store(0) }
