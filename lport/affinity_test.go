package lport

import (
	"math/rand/v2"
	"testing"

	"pgregory.net/rapid"

	"pollux/internal/packet"
)

// randomMix is a mix like that of a card's hash: every bit contributes something random.
func randomMix(r *rand.Rand) *Mix {
	var m Mix
	for i := range 32 {
		m.PeerAddr[i], m.AliasAddr[i] = r.Uint32(), r.Uint32()
	}
	for i := range 16 {
		m.PeerPort[i], m.AliasPort[i] = r.Uint32(), r.Uint32()
	}
	return &m
}

// inTurn is a table of n entries over the workers in turn, from one of them.
func inTurn(n, workers, worker int) []bool {
	mine := make([]bool, n)
	for i := range mine {
		mine[i] = i%workers == worker
	}
	return mine
}

// The prepared words say of every port what the mix says bit by bit.
func TestAffinityIsTheMix(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	for _, c := range []struct{ size, workers int }{{128, 4}, {128, 3}, {2048, 8}, {4096, 7}, {2, 2}, {512, 6}} {
		m, mine := randomMix(r), inTurn(c.size, c.workers, 1)
		a, err := NewAffinity(m, mine)
		if err != nil || a == nil {
			t.Fatalf("%+v: %v %v", c, a, err)
		}
		if pow2 := c.workers&(c.workers-1) == 0; pow2 && a.mask != uint32(c.workers-1) || !pow2 && a.mask != uint32(c.size-1) {
			t.Errorf("%+v: mask %#x", c, a.mask)
		}
		for range 20 {
			alias, p := packet.Addr(r.Uint32()), Peer{packet.Addr(r.Uint32()), uint16(r.Uint32())}
			class, n := a.class(alias, p), 0
			for port := range 65536 {
				want := mine[m.Class(alias, uint16(port), p)&uint32(c.size-1)]
				if want {
					n++
				}
				if got := a.near(class, uint32(port)>>6)>>(port&63)&1 != 0; got != want {
					t.Fatalf("%+v: port %d toward %v: %v, want %v", c, port, p, got, want)
				}
			}
			if n == 0 {
				t.Errorf("%+v: no port comes here", c)
			}
		}
	}
}

func TestNothingToPrefer(t *testing.T) {
	m := randomMix(rand.New(rand.NewPCG(5, 6)))
	noPorts := *m
	noPorts.AliasPort, noPorts.PeerPort = [16]uint32{}, [16]uint32{}
	high := *m // ports change only bits that the table does not look at
	for i := range high.AliasPort {
		high.AliasPort[i] &^= 127
	}
	for name, c := range map[string]struct {
		m    *Mix
		mine []bool
	}{
		"addresses alone": {&noPorts, inTurn(128, 4, 0)}, "high bits": {&high, inTurn(128, 4, 0)},
		"one queue": {m, inTurn(128, 1, 0)}, "no queue": {m, make([]bool, 64)},
	} {
		if a, err := NewAffinity(c.m, c.mine); a != nil || err != nil {
			t.Errorf("%s: %v, %v", name, a, err)
		}
	}
	for _, n := range []int{0, 3, 192, 8192} {
		if a, err := NewAffinity(m, make([]bool, n)); a != nil || err == nil {
			t.Errorf("%d classes pass", n)
		}
	}
}

// While a near port is free toward the peer, a near one is given; when none is, any; and none is refused that is free. Against
// a look at every port, with ports coming and going, other links' peers, whole addresses, parity, and the table changing.
func TestAffinityAgainstModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "mix"), 1))
		m := newModel(t, 1, nil)
		defer m.close()
		s, o := m.spaces[0], m.opts[0]
		var mixed *Mix
		var mine []bool
		table := func(t *rapid.T) {
			mixed, mine = nil, nil
			if n := rapid.IntRange(0, 9).Draw(t, "workers"); n > 1 {
				mixed, mine = randomMix(r), inTurn(1<<rapid.IntRange(1, 8).Draw(t, "size"), n, 1)
				if rapid.Bool().Draw(t, "without peer port") {
					mixed.PeerPort = [16]uint32{}
				}
			}
			for rw := range RowICMP {
				var a *Affinity
				if mixed != nil {
					var err error
					if a, err = NewAffinity(mixed, mine); err != nil {
						t.Fatal(err)
					}
				}
				if err := s.SetAffinity(rw, a); err != nil {
					t.Fatal(err)
				}
			}
		}
		near := func(port uint16, p Peer) bool {
			if mixed == nil || p.Port == 0 && mixed.PeerPort != [16]uint32{} {
				return false
			}
			return mine[mixed.Class(alias1, port, p)&uint32(len(mine)-1)]
		}
		t.Repeat(map[string]func(*rapid.T){
			"table": table,
			"toward many": func(t *rapid.T) {
				q, p := drawRequest(t), drawPeer(t)
				for range rapid.IntRange(1, 70).Draw(t, "n") {
					left, wanted := 0, 0 // near ports that are free, and those of the right parity
					for port := o.Low; port <= o.High; port++ {
						if near(port, p) && m.open(0, q.Row, port, false, p) {
							left++
							if port&1 == q.Want&1 {
								wanted++
							}
						}
					}
					right := 0 // free ports of the right parity
					for port := o.Low; port <= o.High; port++ {
						if port&1 == q.Want&1 && m.open(0, q.Row, port, false, p) {
							right++
						}
					}
					port, err := s.Toward(q, p)
					if err != nil {
						m.refused(0, q.Row, false, p, err)
						return
					}
					must := left > 0
					if o.Parity && right > 0 { // parity was asked for, nearness is ours
						must = wanted > 0
						if port&1 != q.Want&1 {
							t.Fatalf("port %d given toward %v, want parity of %d", port, p, q.Want)
						}
					}
					if must && !near(port, p) {
						t.Fatalf("port %d given toward %v although %d near ones are free", port, p, left)
					}
					link := p
					if link.Port == 0 {
						link.Port = uint16(rapid.IntRange(1, 5).Draw(t, "link port"))
					}
					m.given(modelUse{row: q.Row, port: port, host: q.Host, key: p, link: link})
				}
			},
			"exclusive": func(t *rapid.T) {
				q := drawRequest(t)
				if port, err := s.Exclusive(q); err == nil {
					m.given(modelUse{row: q.Row, port: port, host: q.Host, exclusive: true})
				} else {
					m.refused(0, q.Row, true, Peer{}, err)
				}
			},
			"release": func(t *rapid.T) {
				for range rapid.IntRange(1, 60).Draw(t, "n") {
					if len(m.uses) != 0 {
						m.release(rapid.IntRange(0, len(m.uses)-1).Draw(t, "which"))
					}
				}
			},
			"parity": func(t *rapid.T) {
				o.Parity = rapid.Bool().Draw(t, "parity")
				if err := s.Configure(o); err != nil {
					t.Fatal(err)
				}
			},
			"": func(t *rapid.T) { m.consistent() },
		})
	})
}

// Several workers share the ports, each with its own queue: while one has not its share yet, what it takes is near as long as
// a near port is nobody's; and beyond its share it takes near ports among its own.
func TestAffinityOfSeveralWorkers(t *testing.T) {
	const workers = 4
	r := rand.New(rand.NewPCG(7, 8))
	m := randomMix(r)
	owners := NewOwners(nil)
	defer owners.Close()
	if err := owners.Add(alias1); err != nil {
		t.Fatal(err)
	}
	var given, near [workers]int
	for w := range workers {
		wd := newWorld()
		s, err := New(Options{Worker: w, Workers: workers, Owners: owners, Low: 1024, High: 65535, Seed: [32]byte{9}, InUse: wd.inUse})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		mine := inTurn(128, workers, w)
		a, err := NewAffinity(m, mine)
		if err != nil {
			t.Fatal(err)
		}
		if err := s.SetAffinity(RowTCP, a); err != nil {
			t.Fatal(err)
		}
		for range 40000 { // more than the share of 16,128 ports
			p := Peer{remote + packet.Addr(r.IntN(1000)), uint16(1 + r.IntN(65535))}
			port, err := s.Toward(&Request{Alias: alias1, Row: RowTCP, Host: host1}, p)
			if err != nil {
				t.Fatal(err)
			}
			if wd.inUse(alias1, RowTCP, port, p) {
				t.Fatalf("port %d given twice toward %v", port, p)
			}
			wd.add(alias1, RowTCP, port, p, 1)
			given[w]++
			if mine[m.Class(alias1, port, p)&127] {
				near[w]++
			}
		}
		if st := s.Stats(); st.Near != uint64(near[w]) || st.Near+st.Far != st.Given {
			t.Errorf("worker %d counts %d near and %d far of %d given; %d were near", w, st.Near, st.Far, st.Given, near[w])
		}
	}
	for w := range workers {
		if near[w] != given[w] {
			t.Errorf("worker %d: %d of %d ports were near", w, near[w], given[w])
		}
	}
}

// A host's own number goes before nearness, and without a preference (again) nothing is judged.
func TestAffinityYieldsToSamePorts(t *testing.T) {
	w := newWorld()
	s := newSpace(t, w, func(o *Options) { o.SamePorts = true })
	m := randomMix(rand.New(rand.NewPCG(9, 9)))
	mine := inTurn(64, 4, 2)
	a, err := NewAffinity(m, mine)
	if err != nil {
		t.Fatal(err)
	}
	if err := s.SetAffinity(RowTCP, a); err != nil {
		t.Fatal(err)
	}
	near := func(port uint16, p Peer) bool { return mine[m.Class(alias1, port, p)&63] }
	p := Peer{remote, 443}
	for want := uint16(2000); want < 2100; want++ {
		q := &Request{Alias: alias1, Row: RowTCP, Host: host1, Want: want}
		if port, err := s.Toward(q, p); err != nil || port != want {
			t.Fatalf("port %d instead of the host's own %d: %v", port, want, err)
		}
		w.add(alias1, RowTCP, want, p, 1)
		if port, err := s.Toward(q, p); err != nil || !near(port, p) { // the number is taken now
			t.Fatalf("port %d instead of a near one: %v", port, err)
		} else {
			w.add(alias1, RowTCP, port, p, 1)
		}
	}
	st := s.Stats()
	if st.Near+st.Far != 200 || st.Near < 100 || st.Far == 0 {
		t.Errorf("%d near, %d far", st.Near, st.Far)
	}
	if err := s.SetAffinity(RowTCP, nil); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Toward(&Request{Alias: alias1, Row: RowTCP, Host: host1, Want: 9}, p); err != nil || s.Stats().Near+s.Stats().Far != 200 {
		t.Errorf("judged without a preference: %+v %v", s.Stats(), err)
	}
	if err := s.SetAffinity(Rows, a); err == nil {
		t.Error("a row that is none passes")
	}
}

// When no near port is left a refusal of all and a search for any stay cheap: what a search in vain found is remembered.
func TestFarSearchesAreRemembered(t *testing.T) {
	w := newWorld()
	s := newSpace(t, w, nil)
	m := randomMix(rand.New(rand.NewPCG(11, 9)))
	a, err := NewAffinity(m, inTurn(128, 16, 3))
	if err != nil {
		t.Fatal(err)
	}
	if err := s.SetAffinity(RowTCP, a); err != nil {
		t.Fatal(err)
	}
	p := Peer{remote, 443}
	far, last := 0, uint16(0) // near port
	for i := 0; far < 2000; i++ {
		before := s.Stats()
		port, err := s.Toward(&Request{Alias: alias1, Row: RowTCP, Host: host1}, p)
		if err != nil {
			t.Fatal(err)
		}
		w.add(alias1, RowTCP, port, p, 1)
		after := s.Stats()
		if after.Far == before.Far {
			if far > 0 {
				t.Fatalf("flow %d: near port %d was overlooked", i, port)
			}
			last = port
			continue
		}
		if far++; far > 1 {
			for b := 8; b < StepBuckets; b++ { // 128 steps and more
				if after.Steps[b] != before.Steps[b] {
					t.Fatalf("flow %d: a search took 2^%d steps", i, b)
				}
			}
		}
	}
	w.add(alias1, RowTCP, last, p, -1)
	s.Release(alias1, RowTCP, last, host1, p, 0)
	if port, err := s.Toward(&Request{Alias: alias1, Row: RowTCP, Host: host1}, p); err != nil || port != last {
		t.Errorf("port %d instead of the near %d that came back: %v", port, last, err)
	}
}

func TestAffinityAllocatesNothing(t *testing.T) {
	s := newSpace(t, newWorld(), nil)
	a, err := NewAffinity(randomMix(rand.New(rand.NewPCG(1, 9))), inTurn(128, 4, 1))
	if err != nil {
		t.Fatal(err)
	}
	if err := s.SetAffinity(RowTCP, a); err != nil {
		t.Fatal(err)
	}
	q, p := &Request{Alias: alias1, Row: RowTCP, Host: host1}, Peer{remote, 443}
	if n := testing.AllocsPerRun(1000, func() {
		port, err := s.Toward(q, p)
		if err != nil {
			t.Fatal(err)
		}
		s.Release(alias1, RowTCP, port, host1, p, 0)
		if err := s.SetAffinity(RowTCP, a); err != nil {
			t.Fatal(err)
		}
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}
