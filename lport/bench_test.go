package lport

import (
	"fmt"
	"math/rand/v2"
	"testing"

	"pollux/internal/packet"
)

// peerSet is a cheap stand-in for nat's link index: which ports are in use toward the one busy peer.
type peerSet struct {
	peer Peer
	used [65536]bool
}

func (p *peerSet) inUse(_ packet.Addr, _ Row, port uint16, q Peer) bool {
	return q == p.peer && p.used[port]
}

// busy makes a Space of 32,768 ports of which all but free are in use toward one peer. owned: each port also carries a link
// toward another peer, so that the worker has the owner bytes already and keeps them.
func busy(b *testing.B, free, caches int, owned bool) (*Space, *peerSet, *Request) {
	b.Helper()
	set := &peerSet{peer: Peer{remote, 443}}
	s := newSpace(b, nil, func(o *Options) { o.Low, o.High, o.Caches, o.InUse = 32768, 65535, caches, set.inUse })
	r := &Request{Alias: alias1, Row: RowTCP, Host: host1}
	if caches == 1 { // occupy the only cache with a peer that knows more than anybody
		other := Peer{remote + 1, 1}
		for port := range 65536 {
			set.used[port] = true
		}
		set.peer = other
		if _, err := s.Toward(r, other); err == nil {
			b.Fatal("not refused")
		}
		set.peer = Peer{remote, 443}
		clear(set.used[:])
	}
	for i := range 32768 {
		if owned && !s.Fixed(alias1, RowTCP, uint16(32768+i), 0) {
			b.Fatal("not to be had")
		}
	}
	for range 32768 - free {
		port, err := s.Toward(r, set.peer)
		if err != nil {
			b.Fatal(err)
		}
		set.used[port] = true
	}
	return s, set, r
}

var useLevels = []struct {
	name string
	free int
}{{"0%", 32768}, {"50%", 16384}, {"90%", 3277}, {"99%", 328}, {"99.9%", 33}, {"last-port", 1}}

// Benchmark/port: find a port toward a peer at a level of use and give it back. "claimed" includes the atomic claim and
// release of the owner byte, as for a port that carries nothing else; "owned" is a port that other links keep.
func BenchmarkPort(b *testing.B) {
	for _, kind := range []string{"owned", "claimed"} {
		for _, l := range useLevels {
			b.Run(kind+"/"+l.name, func(b *testing.B) {
				s, set, r := busy(b, l.free, 0, kind == "owned")
				for b.Loop() {
					port, err := s.Toward(r, set.peer)
					if err != nil {
						b.Fatal(err)
					}
					s.Release(alias1, RowTCP, port, host1, set.peer, 0)
				}
			})
		}
	}
}

// Without a cache to be had, each conflict asks the link index.
func BenchmarkPortWithoutCache(b *testing.B) {
	for _, l := range useLevels {
		b.Run(l.name, func(b *testing.B) {
			s, set, r := busy(b, l.free, 1, true)
			if s.caches.live != 1 {
				b.Fatal("the cache is free")
			}
			for b.Loop() {
				port, err := s.Toward(r, set.peer)
				if err != nil {
					b.Fatal(err)
				}
				s.Release(alias1, RowTCP, port, host1, set.peer, 0)
			}
		})
	}
}

// Benchmark/exclusive: the same for endpoint-independent mappings, where a port has one user.
func BenchmarkExclusive(b *testing.B) {
	for _, l := range useLevels {
		b.Run(l.name, func(b *testing.B) {
			s := newSpace(b, nil, func(o *Options) { o.Low, o.High = 32768, 65535 })
			r := &Request{Alias: alias1, Row: RowUDP, Host: host1}
			for range 32768 - l.free {
				if _, err := s.Exclusive(r); err != nil {
					b.Fatal(err)
				}
			}
			for b.Loop() {
				port, err := s.Exclusive(r)
				if err != nil {
					b.Fatal(err)
				}
				s.Release(alias1, RowUDP, port, host1, Peer{}, 0)
			}
		})
	}
}

// Benchmark/refused: no port is left (SPEC B1.14).
func BenchmarkRefused(b *testing.B) {
	for _, kind := range []string{"toward", "exclusive"} {
		b.Run(kind, func(b *testing.B) {
			s, set, r := busy(b, 0, 0, kind == "toward")
			for b.Loop() {
				var err error
				if kind == "toward" {
					_, err = s.Toward(r, set.peer)
				} else {
					_, err = s.Exclusive(r)
				}
				if err == nil {
					b.Fatal("given")
				}
			}
		})
	}
}

// Benchmark/block: a port in the host's own block.
func BenchmarkBlock(b *testing.B) {
	for _, size := range []int{64, 512} {
		b.Run(fmt.Sprint(size), func(b *testing.B) {
			s := newSpace(b, nil, func(o *Options) { o.Block = Block{Size: size, MaxPerHost: 8} })
			r := &Request{Alias: alias1, Row: RowUDP, Host: host1}
			for range size / 2 {
				if _, err := s.Exclusive(r); err != nil {
					b.Fatal(err)
				}
			}
			for b.Loop() {
				port, err := s.Exclusive(r)
				if err != nil {
					b.Fatal(err)
				}
				s.Release(alias1, RowUDP, port, host1, Peer{}, 0)
			}
		})
	}
}

// Benchmark/near: as port/owned, with a preference for the ports whose answers come to this worker. Of 4 workers a table in
// turn makes 4 classes, of 6 as many as it has entries.
func BenchmarkNear(b *testing.B) {
	for _, c := range []struct {
		name          string
		size, workers int
	}{{"128x4", 128, 4}, {"2048x6", 2048, 6}} {
		for _, l := range useLevels {
			b.Run(c.name+"/"+l.name, func(b *testing.B) {
				s, set, r := busy(b, l.free, 0, true)
				a, err := NewAffinity(randomMix(rand.New(rand.NewPCG(1, 2))), inTurn(c.size, c.workers, 1))
				if err != nil {
					b.Fatal(err)
				}
				if err := s.SetAffinity(RowTCP, a); err != nil {
					b.Fatal(err)
				}
				for b.Loop() {
					port, err := s.Toward(r, set.peer)
					if err != nil {
						b.Fatal(err)
					}
					s.Release(alias1, RowTCP, port, host1, set.peer, 0)
				}
				st := s.Stats()
				b.ReportMetric(float64(st.Near)/float64(st.Near+st.Far), "near/op")
			})
		}
	}
}

// Benchmark/affinity: preparing the preference anew after the table changed, and handing it to the worker.
func BenchmarkAffinity(b *testing.B) {
	m, mine := randomMix(rand.New(rand.NewPCG(1, 2))), inTurn(2048, 6, 1)
	s := newSpace(b, nil, nil)
	b.Run("prepare", func(b *testing.B) {
		for b.Loop() {
			if _, err := NewAffinity(m, mine); err != nil {
				b.Fatal(err)
			}
		}
	})
	a, err := NewAffinity(m, mine)
	if err != nil {
		b.Fatal(err)
	}
	b.Run("set", func(b *testing.B) {
		for b.Loop() {
			if err := s.SetAffinity(RowTCP, a); err != nil {
				b.Fatal(err)
			}
		}
	})
}
