package nat

import (
	"math/rand/v2"
	"testing"
)

// TestIndexAgainstMap drives an index at its highest load and a map with the same operations. The hash is bad on purpose, so
// that clusters are long and run over the end of the table.
func TestIndexAgainstMap(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	for name, hash := range map[string]func(v uint32) uint32{
		"good":      func(v uint32) uint32 { return v * 2654435761 },
		"few":       func(v uint32) uint32 { return v % 7 * 0x24924924 },
		"all-last":  func(v uint32) uint32 { return 0xffffffff - v%3 },
		"all-equal": func(uint32) uint32 { return 0x80000000 },
	} {
		t.Run(name, func(t *testing.T) {
			x := index{slots: make([]uint64, 101)}
			model := map[uint32]bool{}
			for step := range 20000 {
				v := uint32(rng.IntN(80) + 1)
				switch {
				case model[v]:
					if !x.remove(hash(v), v) {
						t.Fatalf("step %d: %d is lost", step, v)
					}
					delete(model, v)
				case len(model) < 75:
					x.insert(hash(v), v)
					model[v] = true
				}
				if x.used != len(model) {
					t.Fatalf("step %d: used %d, want %d", step, x.used, len(model))
				}
				if step%50 != 0 {
					continue
				}
				for v := uint32(1); v <= 80; v++ {
					if _, ok := x.find(hash(v), v); ok != model[v] {
						t.Fatalf("step %d: find %d = %v", step, v, ok)
					}
				}
				// Every slot is reachable from its home without a gap: nothing but that keeps probes right.
				for i, s := range x.slots {
					for at := x.home(uint32(s >> 32)); s != 0 && at != uint32(i); at = x.next(at) {
						if x.slots[at] == 0 {
							t.Fatalf("step %d: gap at %d before slot %d", step, at, i)
						}
					}
				}
			}
		})
	}
}

func TestIndexReplace(t *testing.T) {
	x := index{slots: make([]uint64, 8)}
	x.insert(5, 1)
	x.insert(5, 2)
	if !x.replace(5, 2, 3) || x.replace(5, 2, 4) || x.used != 2 {
		t.Error("replace")
	}
	if _, ok := x.find(5, 3); !ok {
		t.Error("replaced value not found")
	}
}

// TestHashSeeds checks that shards hash differently even from one seed, and that a zero seed mixes.
func TestHashSeeds(t *testing.T) {
	a, b := newSeed([32]byte{}, 0), newSeed([32]byte{}, 1)
	same, bits := 0, uint32(0)
	for i := range uint64(1000) {
		if a.hash(i, 0) == b.hash(i, 0) {
			same++
		}
		bits |= a.hash(i, 0) ^ a.hash(i+1, 0)
	}
	if same > 1 || bits != 0xffffffff {
		t.Errorf("%d equal hashes, bits %#x", same, bits)
	}
}
