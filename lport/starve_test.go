package lport

import (
	"testing"

	"pollux/internal/packet"
)

// shared is some workers' spaces over one owner table.
type shared struct {
	t      *testing.T
	owners *Owners
	spaces []*Space
	worlds []*world
}

const (
	starveLow, starveHigh = 1024, 5119
	starvePorts           = starveHigh - starveLow + 1
)

func newShared(t *testing.T, workers int) *shared {
	t.Helper()
	m := &shared{t: t, owners: NewOwners(nil)}
	t.Cleanup(m.owners.Close)
	if err := m.owners.Add(alias1); err != nil {
		t.Fatal(err)
	}
	for i := range workers {
		w := newWorld()
		s, err := New(Options{Worker: i, Workers: workers, Owners: m.owners, Low: starveLow, High: starveHigh, SamePorts: true, Seed: [32]byte{9}, InUse: w.inUse})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(s.Close)
		m.spaces, m.worlds = append(m.spaces, s), append(m.worlds, w)
	}
	return m
}

type flowTo struct {
	port uint16
	peer Peer
}

func (m *shared) open(worker int, want uint16, p Peer) (flowTo, bool) {
	port, err := m.spaces[worker].Toward(&Request{Alias: alias1, Row: RowTCP, Host: host1, Want: want}, p)
	if err != nil {
		return flowTo{}, false
	}
	m.worlds[worker].add(alias1, RowTCP, port, p, 1)
	return flowTo{port, p}, true
}

func (m *shared) shut(worker int, f flowTo) {
	m.worlds[worker].add(alias1, RowTCP, f.port, f.peer, -1)
	m.spaces[worker].Release(alias1, RowTCP, f.port, host1, f.peer, 0)
}

// held is how many owner bytes a worker has, by the table itself.
func (m *shared) held(worker int) (n int) {
	for port := starveLow; port <= starveHigh; port++ {
		if m.owners.Byte(alias1, RowTCP, uint16(port)) == uint8(worker+1) {
			n++
		}
	}
	return n
}

// TestHungryWorkerIsFed: three workers have flows to many peers, on any ports although few would do; the fourth needs most
// of them toward one peer. It is refused while the others' flows sit on their ports, and gets what it needs as they come and go:
// within one turnover of them. No flow of the others is ever refused.
func TestHungryWorkerIsFed(t *testing.T) {
	m := newShared(t, 4)
	const flows, need = 3000, 3600
	want := func(i int) uint16 { return starveLow + uint16(i*2654435761>>8%starvePorts) }
	peer := func(i int) Peer { return Peer{remote + packet.Addr(i%1000), 443} }
	var live [3][]flowTo
	next := 0
	step := func(w int) {
		f, ok := m.open(w, want(next), peer(next))
		if !ok {
			t.Fatalf("flow %d of worker %d was refused", next, w)
		}
		next++
		live[w] = append(live[w], f)
	}
	for range flows {
		for w := range live {
			step(w)
		}
	}
	for w := range live {
		if n := m.held(w); n < starvePorts/8 {
			t.Fatalf("worker %d holds %d ports: there is nothing to be had from it", w, n)
		}
	}
	hot := Peer{remote - 1, 443}
	got, refused := 0, 0
	for ; got < need; got++ {
		if _, ok := m.open(3, starveLow, hot); !ok {
			break
		}
	}
	if got < starvePorts/4 || got == need {
		t.Fatalf("the hungry worker got %d of %d ports at once, at least its part is %d", got, need, starvePorts/4)
	}
	for turn := 0; got < need; turn++ {
		if turn == flows {
			t.Fatalf("after a turnover of the others' flows the hungry worker has %d ports of %d that it needs; they hold %d, %d and %d", got, need, m.held(0), m.held(1), m.held(2))
		}
		for w := range live {
			m.shut(w, live[w][0])
			live[w] = live[w][1:]
			step(w)
		}
		for got < need {
			if _, ok := m.open(3, starveLow, hot); !ok {
				refused++
				break
			}
			got++
		}
	}
	t.Logf("%d ports after %d refusals; the others hold %d, %d and %d", got, refused, m.held(0), m.held(1), m.held(2))
	if refused > flows {
		t.Errorf("%d refusals", refused)
	}
}

// TestRefusedOnlyWhileOthersUseThem: one worker may have nearly all ports. Another is then refused exactly as often as there is no
// port that nobody uses, and no more once links end.
func TestRefusedOnlyWhileOthersUseThem(t *testing.T) {
	m := newShared(t, 4)
	hot := Peer{remote - 1, 443}
	var live []flowTo
	for range starvePorts - 10 {
		f, ok := m.open(0, starveLow, hot)
		if !ok {
			t.Fatalf("refused with %d of %d ports in use", len(live), starvePorts)
		}
		live = append(live, f)
	}
	try := func(n int) (got int) {
		for range n {
			if _, ok := m.open(3, starveLow, hot); ok {
				got++
			}
		}
		return got
	}
	if got := try(100); got != 10 {
		t.Errorf("%d of 100 flows with 10 ports that nobody uses", got)
	}
	for i := range live {
		if i%2 == 0 {
			m.shut(0, live[i])
		}
	}
	if n := m.held(0); n != len(live)/2 {
		t.Errorf("%d bytes are held for %d links", n, len(live)/2)
	}
	free := starvePorts - m.held(0) - m.held(3)
	if got := try(starvePorts); got != free {
		t.Errorf("%d flows after %d ports came back", got, free)
	}
	if n := m.held(0) + m.held(3); n != starvePorts {
		t.Errorf("%d of %d ports are held at the end", n, starvePorts)
	}
}

// TestNewcomersAreNotStarved: with equal need all workers get ports, whoever comes first: no refusals, and nobody holds much more
// than its part.
func TestNewcomersAreNotStarved(t *testing.T) {
	m := newShared(t, 4)
	refused := 0
	for w := range m.spaces { // one after the other: the last finds what the others have left
		for i := range 20000 {
			if _, ok := m.open(w, starveLow+uint16(i*2654435761>>8%starvePorts), Peer{remote + packet.Addr(i%2000), 443}); !ok {
				refused++
			}
		}
		if n := m.held(w); n > starvePorts/4+starvePorts/32 {
			t.Errorf("worker %d holds %d of %d ports", w, n, starvePorts)
		}
	}
	if refused != 0 {
		t.Errorf("%d of 80000 flows were refused", refused)
	}
}
