package rings

import (
	"runtime"
	"sync"
	"testing"

	"github.com/puzpuzpuz/xsync/v4"
)

// TestSPSCInTurns fills, publishes and takes in every possible rhythm: what comes out is what went in, in order, and neither
// side ever gets a slot that is the other's.
func TestSPSCInTurns(t *testing.T) {
	r := NewSPSC[uint32](6)
	if r.Cap() != 8 {
		t.Fatalf("%d slots, want 8", r.Cap())
	}
	var in, shown, out uint32
	for step := range uint32(200_000) {
		switch x := step * 0x9e3779b1 >> 13; x % 4 {
		case 0, 1:
			s := r.Next()
			if full := in-out == 8; (s == nil) != full {
				t.Fatalf("%d in the ring, a slot: %v", in-out, s != nil)
			}
			if s != nil {
				*s = in
				in++
			}
		case 2:
			if r.Publish() != (shown != in) {
				t.Fatal("Publish does not know whether there was something new")
			}
			shown = in
		case 3:
			list := r.Take(int(x>>3%5) + 1)
			if len(list) == 0 && shown != out || uint32(len(list)) > shown-out {
				t.Fatalf("%d taken, %d are there", len(list), shown-out)
			}
			for _, v := range list {
				if v != out {
					t.Fatalf("took %d, want %d", v, out)
				}
				out++
			}
			r.Release(len(list))
		}
		if n := r.Len(); n != int(shown-out) || r.Waiting() != (n > 0) {
			t.Fatalf("%d waiting, want %d", n, shown-out)
		}
	}
	if out < 10_000 {
		t.Errorf("%d went through", out)
	}
}

// TestSPSCBetweenGoroutines is for the race detector: every word that crosses is ordered.
func TestSPSCBetweenGoroutines(t *testing.T) {
	const n = 200_000
	r := NewSPSC[[4]uint64](64)
	var wait sync.WaitGroup
	wait.Go(func() {
		for i := uint64(0); i < n; {
			for range 1 + i%40 {
				s := r.Next()
				if s == nil || i == n {
					break
				}
				*s = [4]uint64{i, i + 1, i + 2, i + 3}
				i++
			}
			if !r.Publish() {
				runtime.Gosched()
			}
		}
	})
	for i := uint64(0); i < n; {
		list := r.Take(32)
		for _, v := range list {
			if v != [4]uint64{i, i + 1, i + 2, i + 3} {
				t.Fatalf("took %v, want %d", v, i)
			}
			i++
		}
		if r.Release(len(list)); len(list) == 0 {
			runtime.Gosched()
		}
	}
	wait.Wait()
}

// TestFramesGoHome: a pool keeps chunks of others apart until they are sent home, and knows one that comes twice.
func TestFramesGoHome(t *testing.T) {
	u, err := NewUMEM(UMEMOptions{Frames: 8})
	if err != nil {
		t.Fatal(err)
	}
	defer u.Close()
	a, _ := u.NewPool(5)
	b, _ := u.NewPool(3)
	if a.Size() != 5 || b.Size() != 3 || b.First() != 5*4096 {
		t.Fatalf("pools of %d and %d, the second from %#x on", a.Size(), b.Size(), b.First())
	}
	x, _ := a.Get()
	y, _ := a.Get()
	b.Put(x)
	b.Put(y)
	if b.Len() != 3 || len(b.Away()) != 2 || b.Away()[0] != x {
		t.Fatalf("%d free, away %v", b.Len(), b.Away())
	}
	b.SentHome(1)
	if len(b.Away()) != 1 || b.Away()[0] != y {
		t.Fatalf("away %v, want %#x", b.Away(), y)
	}
	a.Put(x)
	b.SentHome(0)
	a.Put(y)
	if a.Len() != 5 || a.Excess()+b.Excess() != 0 {
		t.Errorf("%d free, excess %d", a.Len(), a.Excess()+b.Excess())
	}
}

// BenchmarkSPSC moves words of the size of a handed packet from one goroutine to another, each on a thread of its own, in
// bursts of 32; beside it a queue of the same kind from elsewhere, and single steps of one goroutine.
func BenchmarkSPSC(b *testing.B) {
	type word [6]uint64
	const burst = 32
	b.Run("ring", func(b *testing.B) {
		r := NewSPSC[word](1024)
		var wait sync.WaitGroup
		wait.Go(func() {
			runtime.LockOSThread()
			for got := 0; got < b.N; {
				list := r.Take(burst)
				for i := range list {
					sinkWord += list[i][0]
				}
				if len(list) > 0 {
					r.Release(len(list))
				} else {
					runtime.Gosched()
				}
				got += len(list)
			}
		})
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		for i := 0; i < b.N; {
			n := 0
			for ; n < burst && i < b.N; n++ {
				s := r.Next()
				if s == nil {
					break
				}
				s[0] = uint64(i)
				i++
			}
			if !r.Publish() {
				runtime.Gosched()
			}
		}
		wait.Wait()
	})
	b.Run("xsync", func(b *testing.B) {
		q := xsync.NewSPSCQueue[word](1024)
		var wait sync.WaitGroup
		wait.Go(func() {
			runtime.LockOSThread()
			for got := 0; got < b.N; {
				if v, ok := q.TryDequeue(); ok {
					sinkWord += v[0]
					got++
				} else {
					runtime.Gosched()
				}
			}
		})
		runtime.LockOSThread()
		defer runtime.UnlockOSThread()
		for i := 0; i < b.N; {
			if q.TryEnqueue(word{uint64(i)}) {
				i++
			} else {
				runtime.Gosched()
			}
		}
		wait.Wait()
	})
	b.Run("ring, one goroutine", func(b *testing.B) {
		r := NewSPSC[word](1024)
		for i := 0; i < b.N; i += burst {
			for range burst {
				r.Next()[0] = uint64(i)
			}
			r.Publish()
			list := r.Take(burst)
			for k := range list {
				sinkWord += list[k][0]
			}
			r.Release(len(list))
		}
	})
	b.Run("xsync, one goroutine", func(b *testing.B) {
		q := xsync.NewSPSCQueue[word](1024)
		for i := 0; i < b.N; i += burst {
			for range burst {
				q.TryEnqueue(word{uint64(i)})
			}
			for range burst {
				v, _ := q.TryDequeue()
				sinkWord += v[0]
			}
		}
	})
}

var sinkWord uint64
