package rtcache

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"

	"pollux/internal/packet"
)

// BenchmarkHit is an established flow's packet: the attached next hop is reused. 1 flow, and many random ones, whose
// slots and stamps come from memory.
func BenchmarkHit(b *testing.B) {
	for _, flows := range []int{1, 1 << 10, 1 << 20} {
		b.Run(fmt.Sprintf("flows=%d", flows), func(b *testing.B) {
			table := static(b, StaticOptions{})
			v := table.View()
			type flow struct {
				slot [2]uint64
				dst  packet.Addr
			}
			all := make([]flow, flows)
			src := addr4("10.0.0.5")
			for i := range all {
				all[i].dst = packet.Addr(rand.Uint32N(0x7f000000-0x0b000000) + 0x0b000000)
				v.Route(&all[i].slot, 0, src, all[i].dst, 1)
				v.Route(&all[i].slot, 0, src, all[i].dst, 1)
			}
			v.C = Counters{}
			b.ResetTimer()
			for i := range b.N {
				f := &all[i&(flows-1)]
				v.Route(&f.slot, 0, src, f.dst, 1)
			}
			if v.C.Hits != uint64(b.N) {
				b.Fatalf("%d hits of %d: %+v", v.C.Hits, b.N, v.C)
			}
		})
	}
}

// randomRoutes gives n different prefixes with the lengths of a full table (most are /24, /22, /23).
func randomRoutes(n int) []netip.Prefix {
	r := rand.New(rand.NewPCG(1, 2))
	lengths := []int{24, 24, 24, 24, 24, 24, 23, 22, 22, 21, 20, 19, 18, 16}
	seen := make(map[netip.Prefix]bool, n)
	all := make([]netip.Prefix, 0, n)
	for len(all) < n {
		a := packet.Addr(r.Uint32N(0xdf000000-0x0b000000) + 0x0b000000)
		p := netip.PrefixFrom(a.Netip(), lengths[r.IntN(len(lengths))]).Masked()
		if !seen[p] {
			seen[p] = true
			all = append(all, p)
		}
	}
	return all
}
