package lport

import (
	"errors"
	"testing"

	"pgregory.net/rapid"

	"pollux/internal/clock"
	"pollux/internal/packet"
)

// modelUse is one port given, as the naive model keeps it.
type modelUse struct {
	worker    int
	row       Row
	port      uint16
	host      packet.Addr
	exclusive bool
	key       Peer // what Toward was asked for
	link      Peer // the link that nat would then have
}

// model is the slow twin: a list of uses and a set of kernel ports. It answers by trying every port.
type model struct {
	t      *rapid.T
	owners *Owners
	spaces []*Space
	worlds []*world
	opts   []Options
	uses   []modelUse
	kernel map[use]bool
}

func newModel(t *rapid.T, workers int, change func(*Options)) *model {
	m := &model{t: t, owners: NewOwners(nil), kernel: map[use]bool{}}
	if err := m.owners.Add(alias1); err != nil {
		t.Fatal(err)
	}
	for w := range workers {
		wd := newWorld()
		// 64..127 is one word of the bitsets, so that words are used up to the last port.
		o := Options{Worker: w, Workers: workers, Owners: m.owners, Low: 64, High: 127, Seed: [32]byte{byte(w)},
			Hosts: 64, Links: 1024, Caches: 4, InUse: wd.inUse}
		if change != nil {
			change(&o)
		}
		s, err := New(o)
		if err != nil {
			t.Fatal(err)
		}
		m.spaces, m.worlds, m.opts = append(m.spaces, s), append(m.worlds, wd), append(m.opts, o)
	}
	return m
}

func (m *model) close() {
	for _, s := range m.spaces {
		s.Close()
	}
	m.owners.Close()
}

// kept compares what Peek said with what was given.
func (m *model) kept(o Offer, said error, port uint16, err error) {
	switch {
	case said != err:
		m.t.Fatalf("Peek said %v, then it was %v", said, err)
	case err != nil:
	case o.Sure && port != o.Port, !o.Sure && (port < o.Low || port > o.High):
		m.t.Fatalf("Peek said %+v, then it was %d", o, port)
	}
}

// open reports whether worker w may give the port to a link toward p, or exclusively.
func (m *model) open(w int, row Row, port uint16, exclusive bool, p Peer) bool {
	if m.kernel[use{alias1, row, port, Peer{}}] {
		return false
	}
	for _, u := range m.uses {
		if u.row == row && u.port == port && (u.worker != w || u.exclusive || exclusive) {
			return false
		}
	}
	return exclusive || !m.worlds[w].inUse(alias1, row, port, p)
}

func (m *model) anyOpen(w int, row Row, exclusive bool, p Peer) bool {
	for port := m.opts[w].Low; ; port++ {
		if m.open(w, row, port, exclusive, p) {
			return true
		}
		if port == m.opts[w].High {
			return false
		}
	}
}

// given checks a port just given and records it.
func (m *model) given(u modelUse) {
	o := m.opts[u.worker]
	if u.port < o.Low || u.port > o.High {
		m.t.Fatalf("port %d is out of range %d-%d", u.port, o.Low, o.High)
	}
	if !m.open(u.worker, u.row, u.port, u.exclusive, u.key) {
		m.t.Fatalf("%+v was given although it is taken", u)
	}
	if b := m.owners.Byte(alias1, u.row, u.port); b != uint8(u.worker+1) {
		m.t.Fatalf("%+v: owner byte %d", u, b)
	}
	m.record(u)
}

func (m *model) record(u modelUse) {
	m.uses = append(m.uses, u)
	if !u.exclusive {
		m.worlds[u.worker].add(alias1, u.row, u.port, u.link, 1)
	}
}

func (m *model) refused(w int, row Row, exclusive bool, p Peer, err error) {
	if !errors.Is(err, ErrNoPort) {
		m.t.Fatalf("error %v, want ErrNoPort", err)
	}
	if m.anyOpen(w, row, exclusive, p) {
		m.t.Fatalf("worker %d row %d exclusive %v peer %v: refused while a port is free", w, row, exclusive, p)
	}
}

func (m *model) release(i int) {
	u := m.uses[i]
	m.uses[i] = m.uses[len(m.uses)-1]
	m.uses = m.uses[:len(m.uses)-1]
	if !u.exclusive {
		m.worlds[u.worker].add(alias1, u.row, u.port, u.link, -1)
	}
	m.spaces[u.worker].Release(alias1, u.row, u.port, u.host, u.key, 0)
}

func drawRequest(t *rapid.T) *Request {
	return &Request{Alias: alias1, Row: Row(rapid.IntRange(0, 1).Draw(t, "row")), Host: host1 + packet.Addr(rapid.IntRange(0, 3).Draw(t, "host")),
		Want: uint16(rapid.IntRange(50, 160).Draw(t, "want"))}
}

func drawPeer(t *rapid.T) Peer {
	return Peer{remote + packet.Addr(rapid.IntRange(0, 1).Draw(t, "addr")), uint16(rapid.IntRange(0, 3).Draw(t, "port"))}
}

// Ports are never given doubly, never refused while one is free, and all come back: against the naive model, with one worker
// and with three, exclusive and shared, exact peers and whole addresses, the kernel's ports coming and going, rules changing.
func TestAgainstModel(t *testing.T) {
	for _, workers := range []int{1, 3} {
		rapid.Check(t, func(t *rapid.T) {
			m := newModel(t, workers, func(o *Options) { o.SamePorts = rapid.Bool().Draw(t, "same") })
			defer m.close()
			worker := func() int { return rapid.IntRange(0, workers-1).Draw(t, "worker") }
			t.Repeat(map[string]func(*rapid.T){
				"exclusive": func(t *rapid.T) {
					w, r := worker(), drawRequest(t)
					offer, said := m.spaces[w].Peek(r, false, Peer{})
					port, err := m.spaces[w].Exclusive(r)
					m.kept(offer, said, port, err)
					if err != nil {
						m.refused(w, r.Row, true, Peer{}, err)
						return
					}
					m.given(modelUse{worker: w, row: r.Row, port: port, host: r.Host, exclusive: true})
				},
				"toward many": func(t *rapid.T) {
					w, r, p := worker(), drawRequest(t), drawPeer(t)
					for range rapid.IntRange(1, 70).Draw(t, "n") {
						offer, said := m.spaces[w].Peek(r, true, p)
						port, err := m.spaces[w].Toward(r, p)
						m.kept(offer, said, port, err)
						if err != nil {
							m.refused(w, r.Row, false, p, err)
							return
						}
						link := p
						if link.Port == 0 {
							link.Port = uint16(rapid.IntRange(1, 5).Draw(t, "link port"))
						}
						m.given(modelUse{worker: w, row: r.Row, port: port, host: r.Host, key: p, link: link})
					}
				},
				"pair": func(t *rapid.T) {
					w, r := worker(), drawRequest(t)
					port, err := m.spaces[w].Pair(r)
					if err != nil {
						for p := m.opts[w].Low; p < m.opts[w].High; p++ {
							if p%2 == 0 && m.open(w, r.Row, p, true, Peer{}) && m.open(w, r.Row, p+1, true, Peer{}) {
								t.Fatalf("no pair although %d and %d are free", p, p+1)
							}
						}
						return
					}
					if port%2 != 0 {
						t.Fatalf("pair starts at odd %d", port)
					}
					m.given(modelUse{worker: w, row: r.Row, port: port, host: r.Host, exclusive: true})
					m.given(modelUse{worker: w, row: r.Row, port: port + 1, host: r.Host, exclusive: true})
				},
				"fixed": func(t *rapid.T) {
					w, r, p := worker(), drawRequest(t), drawPeer(t)
					p.Port = max(p.Port, 1)
					free := !m.kernel[use{alias1, r.Row, r.Want, Peer{}}]
					for _, u := range m.uses {
						if u.row == r.Row && u.port == r.Want && (u.worker != w || u.exclusive) {
							free = false
						}
					}
					if got := m.spaces[w].Fixed(alias1, r.Row, r.Want, r.Host); got != free {
						t.Fatalf("Fixed(%d) = %v, want %v", r.Want, got, free)
					} else if got {
						m.record(modelUse{worker: w, row: r.Row, port: r.Want, host: r.Host, key: p, link: p})
					}
				},
				"release": func(t *rapid.T) {
					for range rapid.IntRange(1, 30).Draw(t, "n") {
						if len(m.uses) != 0 {
							m.release(rapid.IntRange(0, len(m.uses)-1).Draw(t, "which"))
						}
					}
				},
				"kernel": func(t *rapid.T) {
					row, port := Row(rapid.IntRange(0, 1).Draw(t, "row")), uint16(rapid.IntRange(55, 155).Draw(t, "port"))
					k := use{alias1, row, port, Peer{}}
					if m.kernel[k] = !m.kernel[k]; m.kernel[k] {
						m.owners.SetKernel(alias1, row, port)
					} else {
						m.owners.ClearKernel(alias1, row, port)
					}
				},
				"configure": func(t *rapid.T) {
					w := worker()
					o := m.opts[w]
					o.Low, o.High = 64, 127
					if rapid.Bool().Draw(t, "odd range") {
						o.Low = uint16(rapid.IntRange(55, 70).Draw(t, "low"))
						o.High = o.Low + uint16(rapid.IntRange(0, 90).Draw(t, "size"))
					}
					o.Parity = rapid.Bool().Draw(t, "parity")
					if err := m.spaces[w].Configure(o); err != nil {
						t.Fatal(err)
					}
					m.opts[w] = o
				},
				"": func(t *rapid.T) { m.consistent() },
			})
			for len(m.uses) > 0 {
				m.release(0)
			}
			m.consistent()
		})
	}
}

// consistent compares the sums.
func (m *model) consistent() {
	ports := map[use]bool{}
	for _, u := range m.uses {
		ports[use{alias1, u.row, u.port, Peer{Port: uint16(u.worker)}}] = true
	}
	used, owned := 0, 0
	for _, s := range m.spaces {
		for _, r := range s.Stats().Rows {
			used += r.Used
			owned += r.Owned
			if r.Caches != 0 && r.Used == 0 {
				m.t.Fatalf("row %d has %d caches and no port in use", r.Row, r.Caches)
			}
		}
	}
	if used != len(ports) || owned != used {
		m.t.Fatalf("%d ports in use, %d owned; the model has %d", used, owned, len(ports))
	}
	for row := range Row(2) {
		for port := uint16(50); port < 165; port++ {
			want := uint8(ByteFree)
			if m.kernel[use{alias1, row, port, Peer{}}] {
				want = ByteKernel
			}
			for _, u := range m.uses {
				if u.row == row && u.port == port {
					want = uint8(u.worker + 1)
				}
			}
			if got := m.owners.Byte(alias1, row, port); got != want {
				m.t.Fatalf("row %d port %d: owner byte %d, want %d", row, port, got, want)
			}
		}
	}
}

// Blocks against the model: a host's ports lie in its own blocks, no two hosts have a block at the same time, none gets more than
// it may, a block changes hosts only after idle release and rest, and a refusal is honest.
func TestBlocksAgainstModel(t *testing.T) {
	type held struct {
		host packet.Addr
		at   clock.Tick // given up
		held bool
	}
	rapid.Check(t, func(t *rapid.T) {
		const most = 2
		size := uint16(rapid.SampledFrom([]int{1, 2, 3, 4, 5, 7, 8, 10, 12, 20}).Draw(t, "size"))
		low := uint16(rapid.IntRange(57, 64).Draw(t, "low"))
		start := low
		m := newModel(t, 1, func(o *Options) {
			o.Low, o.High, o.SamePorts = low, 130, rapid.Bool().Draw(t, "same")
			o.Block = Block{Size: int(size), MaxPerHost: most, IdleRelease: 10e6, Rest: 20e6}
		})
		defer m.close()
		s := m.spaces[0]
		now := clock.Tick(0xfffffff0) // across the wrap
		blocks := map[uint16]*held{}
		events := func() {
			for {
				e, ok := s.NextBlockEvent()
				if !ok {
					return
				}
				if e.High-e.Low != size-1 || (e.Low-start)%size != 0 || e.Low < low || e.High > 130 || e.Alias != alias1 {
					t.Fatalf("event %+v is no block of %d", e, size)
				}
				b := blocks[e.Low]
				if b == nil {
					b = &held{}
					blocks[e.Low] = b
				}
				if e.Taken == b.held || !e.Taken && b.host != e.Host {
					t.Fatalf("event %+v, but the block is %+v", e, *b)
				}
				if e.Taken && b.host != 0 && b.host != e.Host && e.At.Since(b.at) < 20 {
					t.Fatalf("event %+v: rested %d ms only", e, e.At.Since(b.at))
				}
				b.host, b.held, b.at = e.Host, e.Taken, e.At
			}
		}
		t.Repeat(map[string]func(*rapid.T){
			"open": func(t *rapid.T) {
				r := drawRequest(t)
				r.Row, r.Now = Row(rapid.IntRange(0, 2).Draw(t, "row")), now
				exclusive := rapid.Bool().Draw(t, "exclusive")
				p := Peer{remote, 80}
				for range rapid.IntRange(1, 12).Draw(t, "n") {
					var port uint16
					var err error
					offer, said := s.Peek(r, !exclusive, p)
					if exclusive {
						port, err = s.Exclusive(r)
					} else {
						port, err = s.Toward(r, p)
					}
					m.kept(offer, said, port, err)
					events()
					mine, free := 0, 0
					for lo := start; lo+size-1 <= 130; lo += size {
						b := blocks[lo]
						switch {
						case b == nil, !b.held && now.Since(b.at) >= 20 && s.Advance(now, 0) == 0 && b.host != r.Host && m.owners.Byte(alias1, RowTCP, lo) == 0:
							free++
						case b.held && b.host == r.Host:
							mine++
							for q := lo; q < lo+size; q++ {
								if err != nil && m.open(0, r.Row, q, exclusive, p) {
									t.Fatalf("%v although port %d of the host's own block is free", err, q)
								}
							}
						case b.host == r.Host:
							free++
						}
					}
					switch {
					case err == nil:
						if b := blocks[port-(port-start)%size]; b == nil || !b.held || b.host != r.Host {
							t.Fatalf("port %d is in no block of host %v", port, r.Host)
						}
						m.given(modelUse{row: r.Row, port: port, host: r.Host, exclusive: exclusive, key: p, link: p})
					case errors.Is(err, ErrHostLimit):
						if mine != most {
							t.Fatalf("host limit with %d blocks", mine)
						}
						return
					case free > 0 && mine < most:
						t.Fatalf("%v with %d blocks of its own and %d free", err, mine, free)
					default:
						return
					}
				}
			},
			"close": func(t *rapid.T) {
				for range rapid.IntRange(1, 12).Draw(t, "n") {
					if len(m.uses) == 0 {
						return
					}
					i := rapid.IntRange(0, len(m.uses)-1).Draw(t, "which")
					u := m.uses[i]
					m.uses[i] = m.uses[len(m.uses)-1]
					m.uses = m.uses[:len(m.uses)-1]
					if !u.exclusive {
						m.worlds[0].add(alias1, u.row, u.port, u.link, -1)
					}
					s.Release(alias1, u.row, u.port, u.host, u.key, now)
				}
			},
			"wait": func(t *rapid.T) {
				now += clock.Tick(rapid.IntRange(1, 15).Draw(t, "ms"))
				for s.Advance(now, 1) != 0 {
				}
				if due, ok := s.Due(); ok && !due.After(now) {
					t.Fatalf("work due at %d is left at %d", due, now)
				}
				events()
			},
		})
		for _, u := range m.uses {
			s.Release(alias1, u.row, u.port, u.host, u.key, now)
		}
		now += 31
		for s.Advance(now, 3) != 0 {
		}
		if st := s.Stats(); st.BlocksHeld != 0 || st.BlocksResting != 0 || s.ledger.used != 0 {
			t.Fatalf("blocks left: %d held, %d resting, %d ledger entries", st.BlocksHeld, st.BlocksResting, s.ledger.used)
		}
		for row := range blockRows {
			for port := range 256 {
				if b := m.owners.Byte(alias1, row, uint16(port)); b != 0 {
					t.Fatalf("row %d port %d is left with owner byte %d", row, port, b)
				}
			}
		}
	})
}
