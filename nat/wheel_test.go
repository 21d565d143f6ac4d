package nat

import (
	"math/rand/v2"
	"testing"

	"pollux/internal/clock"
)

func newWheel(t testing.TB, n int, now clock.Tick) *wheel {
	var m memory
	t.Cleanup(m.close)
	w := new(wheel)
	if err := w.init(&m, make([]cold, n+1), now); err != nil {
		t.Fatal(err)
	}
	return w
}

// TestWheelAgainstList checks that links come off neither early nor more than a slot late, across the wrap of the tick, with
// jumps of the clock, removals, and deadlines beyond a turn.
func TestWheelAgainstList(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 6))
	const n = 300
	now := clock.Tick(0xffff0000)
	w := newWheel(t, n, now)
	due := map[uint32]clock.Tick{}
	waits := []uint32{1, 100, 255, 256, 257, 60_000, 240_000, 7_440_000, 8_388_608 - 256, 8_388_608, 9_000_000, 1 << 30}
	for step := range 50_000 {
		id := uint32(rng.IntN(n) + 1)
		if _, queued := due[id]; !queued {
			due[id] = now + clock.Tick(waits[rng.IntN(len(waits))]+uint32(rng.IntN(300)))
			w.add(id, due[id])
		} else if rng.IntN(3) == 0 {
			w.remove(id)
			delete(due, id)
		}
		now += clock.Tick([]uint32{0, 0, 1, 200, 300, 5000, 100_000}[rng.IntN(7)])
		for {
			id := w.due(now)
			if id == 0 {
				break
			}
			if due[id].After(now) { // longer than a turn: goes round
				if due[id]-now > 8_388_608 || due[id]-now < 2 {
					w.add(id, due[id])
					continue
				}
				w.add(id, due[id])
				continue
			}
			delete(due, id)
		}
		if w.count != len(due) {
			t.Fatalf("step %d: %d queued, want %d", step, w.count, len(due))
		}
		if step%100 != 0 {
			continue
		}
		first, id := w.first()
		for other, at := range due {
			if now.Since(at) < 1<<31 && now.Since(at) > 256 {
				t.Fatalf("step %d: %d is %d late", step, other, now.Since(at))
			}
		}
		if id != 0 && !first.After(now) {
			t.Fatalf("step %d: first at %d, now %d", step, first, now)
		}
	}
}

// TestWheelOrder checks that links of one slot come off in the order they came, and that after walks them all.
func TestWheelOrder(t *testing.T) {
	w := newWheel(t, 10, 0)
	for id := uint32(1); id <= 10; id++ {
		w.add(id, clock.Tick(1000+(id-1)/4*100_000))
	}
	at, id := w.first()
	for want := uint32(1); want <= 10; want++ {
		if id != want {
			t.Fatalf("walk: %d, want %d", id, want)
		}
		at, id = w.after(at, id)
	}
	if id != 0 {
		t.Fatalf("walk goes on to %d", id)
	}
	for want := uint32(1); want <= 10; want++ {
		if got := w.due(1 << 20); got != want {
			t.Fatalf("due: %d, want %d", got, want)
		}
	}
	if w.due(1<<20) != 0 {
		t.Fatal("wheel not empty")
	}
}
