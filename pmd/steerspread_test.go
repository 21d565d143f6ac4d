package pmd

import (
	"math/rand/v2"
	"testing"

	"pollux/internal/packet"
)

// Hosts are spread over the workers evenly with every seed, in whatever regular pattern their addresses lie.
func TestSteeringSpreadsHosts(t *testing.T) {
	const hosts = 1024
	rng := rand.New(rand.NewPCG(1, 2))
	for range 1000 {
		s := Steering{workers: 4, seed: rng.Uint64()}
		if rng.Uint32N(4) == 0 {
			s.seed >>= rng.Uint32N(64)
		}
		for _, stride := range []packet.Addr{1, 2, 16, 256, 1 << 16} {
			var share [4]int
			for i := range packet.Addr(hosts) {
				share[s.host(10<<24|i*stride)]++
			}
			for w, n := range share {
				if n > hosts/4*4/3 || n < hosts/4*2/3 {
					t.Fatalf("seed %#x, stride %d: worker %d has %d of %d hosts", s.seed, stride, w, n, hosts)
				}
			}
		}
	}
}
