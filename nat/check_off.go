//go:build !framecheck

package nat

// keeper is empty but for builds with the tag framecheck.
type keeper struct{}

func (*keeper) enter() {}
func (*keeper) leave() {}

// Own says that only the calling thread, locked, may use the shard from now on. Builds with the tag framecheck hold it to that.
func (s *Shard) Own() {}

// Disown ends Own: the worker has ended, and whoever comes next may look at what it left.
func (s *Shard) Disown() {}
