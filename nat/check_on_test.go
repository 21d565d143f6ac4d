//go:build framecheck

package nat

import (
	"runtime"
	"testing"
)

// TestShardOfAnotherThread: a checked build stops whoever uses a shard that is not his.
func TestShardOfAnotherThread(t *testing.T) {
	r := DefaultRules()
	s, err := New(Options{Rules: r, Limits: Limits{Links: 10, Fragments: 10}})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	owned := make(chan struct{})
	done := make(chan struct{})
	go func() {
		runtime.LockOSThread()
		s.Own()
		s.Translate(nil, 1)
		close(owned)
		<-done
	}()
	<-owned
	defer close(done)
	caught := make(chan any)
	go func() {
		runtime.LockOSThread()
		defer func() { caught <- recover() }()
		s.Translate(nil, 1)
	}()
	if <-caught == nil {
		t.Error("a stranger could use the shard")
	}
	s.Disown()
	s.Translate(nil, 1)
}
