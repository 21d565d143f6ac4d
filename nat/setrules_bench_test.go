package nat

import (
	"fmt"
	"testing"

	"pollux/internal/packet"
)

// BenchmarkSetRules is how long a worker stands still for a change of rules, by how many redirects there are.
func BenchmarkSetRules(b *testing.B) {
	for _, n := range []int{10, 1000, 10_000} {
		b.Run(fmt.Sprintf("redirects-%d", n), func(b *testing.B) {
			s, err := New(Options{Rules: DefaultRules(), Limits: Limits{Links: 1000, Fragments: 64}})
			if err != nil {
				b.Fatal(err)
			}
			defer s.Close()
			r := s.rules
			r.Alias = []packet.Addr{pub1}
			for i := range n {
				r.RedirectPort = append(r.RedirectPort, RedirectPort{Proto: packet.ProtoUDP, Public: Alias{pub1, uint16(1024 + i)}, Local: []Local{{prv1, uint16(i + 1)}}})
			}
			for i := 0; b.Loop(); i++ {
				r.MSSClamp = 1000 + i%2
				if err := s.SetRules(r, 1); err != nil {
					b.Fatal(err)
				}
			}
		})
	}
}
