package lport

import (
	"errors"
	"testing"

	"pollux/internal/packet"
)

const (
	alias1 packet.Addr = 0xcb007101 // 203.0.113.1
	alias2 packet.Addr = 0xcb007102
	host1  packet.Addr = 0x0a000001
	host2  packet.Addr = 0x0a000002
	remote packet.Addr = 0xc6336407
)

// use is one full link as nat's index would know it.
type use struct {
	alias packet.Addr
	row   Row
	port  uint16
	peer  Peer
}

// world is a stand-in for nat's link index.
type world struct {
	exact map[use]int
	wide  map[use]int // peer port 0
	asked int
}

func newWorld() *world { return &world{exact: map[use]int{}, wide: map[use]int{}} }

func (w *world) inUse(alias packet.Addr, row Row, port uint16, p Peer) bool {
	w.asked++
	if p.Port == 0 {
		return w.wide[use{alias, row, port, p}] > 0
	}
	return w.exact[use{alias, row, port, p}] > 0
}

func (w *world) add(alias packet.Addr, row Row, port uint16, p Peer, n int) {
	w.exact[use{alias, row, port, p}] += n
	w.wide[use{alias, row, port, Peer{Addr: p.Addr}}] += n
}

// newSpace makes a Space with one alias address, after the change to its options.
func newSpace(t testing.TB, w *world, change func(*Options)) *Space {
	t.Helper()
	o := Options{Workers: 1, Owners: NewOwners(nil), Low: 1024, High: 65535, Seed: [32]byte{1}}
	if w != nil {
		o.InUse = w.inUse
	}
	if change != nil {
		change(&o)
	}
	if err := o.Owners.Add(alias1); err != nil {
		t.Fatal(err)
	}
	s, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		s.Close()
		o.Owners.Close()
	})
	return s
}

// SPEC B1.3: with 32,768 ports toward one peer, flow 32,768 succeeds and 32,769 is refused; all come back.
func TestTowardNeverFailsWhileAPortIsFree(t *testing.T) {
	w := newWorld()
	s := newSpace(t, w, func(o *Options) { o.Low, o.High = 32768, 65535 })
	p := Peer{remote, 443}
	for round := range 2 {
		seen := map[uint16]bool{}
		for i := range 32768 {
			port, err := s.Toward(&Request{Alias: alias1, Row: RowTCP, Host: host1, Want: uint16(i)}, p)
			if err != nil {
				t.Fatalf("round %d: flow %d refused: %v", round, i+1, err)
			}
			if port < 32768 || seen[port] {
				t.Fatalf("round %d: flow %d got port %d: out of range or given before", round, i+1, port)
			}
			seen[port] = true
			w.add(alias1, RowTCP, port, p, 1)
		}
		if port, err := s.Toward(&Request{Alias: alias1, Row: RowTCP, Host: host1}, p); !errors.Is(err, ErrNoPort) {
			t.Fatalf("flow 32,769 got port %d, error %v; want ErrNoPort", port, err)
		}
		if _, err := s.Toward(&Request{Alias: alias1, Row: RowTCP, Host: host1}, Peer{remote, 80}); err != nil {
			t.Fatalf("another peer refused: %v", err)
		}
		for port := range seen {
			w.add(alias1, RowTCP, port, p, -1)
			s.Release(alias1, RowTCP, port, host1, p, 0)
		}
		st := s.Stats()
		if st.Caches != 0 {
			t.Fatalf("%d caches alive after all links went", st.Caches)
		}
		if st.Rows[0].Used != round+1 {
			t.Fatalf("%d ports in use, want %d", st.Rows[0].Used, round+1)
		}
	}
}

func TestExclusiveNeverFailsWhileAPortIsFree(t *testing.T) {
	s := newSpace(t, nil, func(o *Options) { o.Low, o.High = 1024, 65535; o.SamePorts = true })
	seen := map[uint16]bool{}
	for i := 1024; i < 65536; i++ {
		port, err := s.Exclusive(&Request{Alias: alias1, Row: RowUDP, Host: host1, Want: uint16(i / 2)})
		if err != nil || seen[port] || port < 1024 {
			t.Fatalf("mapping %d got port %d, error %v", i, port, err)
		}
		seen[port] = true
		if s.o.Owners.Byte(alias1, RowUDP, port) != 1 {
			t.Fatalf("owner byte of port %d is not this worker's", port)
		}
	}
	if _, err := s.Exclusive(&Request{Alias: alias1, Row: RowUDP, Host: host1}); !errors.Is(err, ErrNoPort) {
		t.Fatalf("error %v, want ErrNoPort", err)
	}
	s.Release(alias1, RowUDP, 4711, host1, Peer{}, 0)
	if port, err := s.Exclusive(&Request{Alias: alias1, Row: RowUDP, Host: host1}); err != nil || port != 4711 {
		t.Fatalf("the last port was not found: %d, %v", port, err)
	}
}
