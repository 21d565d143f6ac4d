package nat

import (
	"math/rand/v2"
	"slices"
	"testing"
)

func newTrees(t testing.TB, n int) *trees {
	var tr trees
	var m memory
	if err := tr.init(&m, n); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.close)
	return &tr
}

// check walks a tree, returns its keys in order and fails on any broken rule of a B+tree. It also counts nodes.
func (t *trees) check(tb testing.TB, id uint32, depth int, leafDepth *int, keys *[]uint64, nodes *int) {
	n := &t.nodes[id]
	*nodes++
	if n.n == 0 || n.n > nodeKeys {
		tb.Fatalf("node %d has %d keys", id, n.n)
	}
	if n.leaf {
		if *leafDepth < 0 {
			*leafDepth = depth
		}
		if depth != *leafDepth {
			tb.Fatalf("leaf %d at depth %d, others at %d", id, depth, *leafDepth)
		}
		*keys = append(*keys, n.keys[:n.n]...)
		return
	}
	for i := range n.n {
		start := len(*keys)
		t.check(tb, n.val[i], depth+1, leafDepth, keys, nodes)
		if i > 0 && (*keys)[start] < n.keys[i] {
			tb.Fatalf("node %d: key %#x below its bound %#x", id, (*keys)[start], n.keys[i])
		}
		if i > 0 && (*keys)[start-1] >= n.keys[i] {
			tb.Fatalf("node %d: key %#x left of bound %#x", id, (*keys)[start-1], n.keys[i])
		}
	}
}

// TestTreeAgainstSortedList drives a tree and a sorted slice with the same operations, in several orders of keys.
func TestTreeAgainstSortedList(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	for name, key := range map[string]func(i int) uint64{
		"random":     func(int) uint64 { return rng.Uint64() >> 16 },
		"few":        func(int) uint64 { return rng.Uint64N(300) },
		"ascending":  func(i int) uint64 { return uint64(i) },
		"descending": func(i int) uint64 { return uint64(1<<40 - i) },
	} {
		t.Run(name, func(t *testing.T) {
			tr := newTrees(t, 4000)
			root := tr.get(true)
			var list []uint64
			for i := range 20000 {
				grow := i < 5000 || i%4000 < 2000
				if k := key(i); grow && len(list) < 8000 || len(list) == 0 {
					if root == 0 {
						root = tr.get(true)
					}
					at, there := slices.BinarySearch(list, k)
					var older uint32
					root, older = tr.insert(root, k, uint32(i+1))
					if there != (older != 0) {
						t.Fatalf("insert %#x: older %d, in list %v", k, older, there)
					}
					if !there {
						list = slices.Insert(list, at, k)
					}
				} else {
					at := rng.IntN(len(list))
					root = tr.remove(root, list[at])
					list = slices.Delete(list, at, at+1)
				}
				if i%97 != 0 || root == 0 {
					continue
				}
				var keys []uint64
				depth, nodes := -1, 0
				tr.check(t, root, 0, &depth, &keys, &nodes)
				if !slices.Equal(keys, list) {
					t.Fatalf("step %d: tree and list differ", i)
				}
				probe := key(i)
				at, there := slices.BinarySearch(list, probe)
				if got := tr.find(root, probe); (got != 0) != there {
					t.Fatalf("find %#x = %d, in list %v", probe, got, there)
				}
				gotKey, id := tr.ceil(root, probe)
				if (id != 0) != (at < len(list)) || id != 0 && gotKey != list[at] {
					t.Fatalf("ceil %#x = %#x, %d", probe, gotKey, id)
				}
			}
			for len(list) > 0 {
				at := rng.IntN(len(list))
				root = tr.remove(root, list[at])
				list = slices.Delete(list, at, at+1)
			}
			if root != 0 {
				t.Fatal("empty tree has a root")
			}
			free := 0
			for n := tr.free; n != 0; n = tr.nodes[n].val[0] {
				free++
			}
			if free != int(tr.fresh)-1 {
				t.Errorf("%d nodes leaked", int(tr.fresh)-1-free)
			}
		})
	}
}

// TestTreeFill checks the memory promise: ascending remotes fill nodes, random ones at least two thirds on average.
func TestTreeFill(t *testing.T) {
	const n = 100_000
	for name, tc := range map[string]struct {
		key func(i uint64) uint64
		min float64
	}{
		"ascending": {func(i uint64) uint64 { return i << 16 }, 13.8},
		"random":    {func(i uint64) uint64 { return i * 0x9e3779b97f4a7c15 >> 16 }, 11},
	} {
		tr := newTrees(t, n/8+n/64+16)
		root := tr.get(true)
		for i := range uint64(n) {
			root, _ = tr.insert(root, tc.key(i+1), 1)
		}
		var keys []uint64
		depth, nodes := -1, 0
		tr.check(t, root, 0, &depth, &keys, &nodes)
		if fill := float64(n) / float64(nodes); fill < tc.min {
			t.Errorf("%s: %.1f keys a node, want %.1f", name, fill, tc.min)
		}
	}
}

// TestDefect01_GroupCost: a busy published port (SPEC B1.1, B1.2) costs a search of a few nodes, in whatever order its remotes came.
func TestDefect01_GroupCost(t *testing.T) {
	const n = 200_000
	for name, key := range map[string]func(i uint64) uint64{
		"ascending":  func(i uint64) uint64 { return i << 16 },
		"descending": func(i uint64) uint64 { return (1<<32 - i) << 16 },
		"random":     func(i uint64) uint64 { return i * 0x9e3779b97f4a7c15 >> 16 },
	} {
		tr := newTrees(t, n/7)
		root := tr.get(true)
		for i := range uint64(n) {
			root, _ = tr.insert(root, key(i+1), 1)
		}
		var keys []uint64
		depth, nodes := -1, 0
		tr.check(t, root, 0, &depth, &keys, &nodes)
		if len(keys) != n || depth > 5 {
			t.Errorf("%s: %d links lie %d nodes below the root", name, len(keys), depth)
		}
	}
}

// TestTreeWorstRemoval removes all but every 16th key and adds elsewhere: half-full nodes may not eat the pool.
func TestTreeWorstRemoval(t *testing.T) {
	const n = 20_000
	tr := newTrees(t, n/8+n/56+16)
	root := tr.get(true)
	for i := range uint64(n) {
		root, _ = tr.insert(root, i*2654435761%(1<<40), 1)
	}
	for round := range uint64(20) {
		removed := 0
		k := uint64(0)
		for c := 0; ; c++ {
			key, id := tr.ceil(root, k)
			if id == 0 {
				break
			}
			k = key + 1
			if c%16 != 0 {
				root = tr.remove(root, key)
				removed++
			}
		}
		for i := range uint64(removed) {
			root, _ = tr.insert(root, 1<<41+(round<<34)+i*2654435761%(1<<30)*4, 1)
		}
	}
}
