package lport

import (
	"errors"
	"math/rand/v2"
	"net/netip"
	"sync"
	"testing"
	"time"

	"pgregory.net/rapid"

	"pollux/internal/clock"
	"pollux/internal/packet"
)

func TestSamePorts(t *testing.T) {
	w := newWorld()
	s := newSpace(t, w, func(o *Options) { o.SamePorts = true })
	r := &Request{Alias: alias1, Row: RowUDP, Host: host1, Want: 5000}
	if got, err := s.Exclusive(r); err != nil || got != 5000 {
		t.Errorf("free wanted port: got %d, %v", got, err)
	}
	if got, err := s.Exclusive(r); err != nil || got == 5000 {
		t.Errorf("taken wanted port: got %d, %v", got, err)
	}
	r.Want = 53
	if got, err := s.Exclusive(r); err != nil || got < 1024 {
		t.Errorf("wanted port out of range: got %d, %v", got, err)
	}
	r.Row, r.Want = RowTCP, 6000
	for _, p := range []Peer{{remote, 80}, {remote, 81}, {remote + 1, 80}} {
		if got, err := s.Toward(r, p); err != nil || got != 6000 {
			t.Errorf("toward %v: got %d, %v, want 6000 shared", p, got, err)
		}
		w.add(alias1, RowTCP, 6000, p, 1)
	}
	if got, err := s.Toward(r, Peer{remote, 80}); err != nil || got == 6000 {
		t.Errorf("toward a peer that has it: got %d, %v", got, err)
	}
	if got, err := s.Toward(r, Peer{Addr: remote}); err != nil || got == 6000 {
		t.Errorf("toward an address that has it: got %d, %v", got, err)
	}
}

// A kernel port is skipped though wanted; when the listener goes, it may be had again.
func TestWantedPortComesBackFromTheKernel(t *testing.T) {
	s := newSpace(t, nil, func(o *Options) { o.SamePorts = true })
	s.o.Owners.SetKernel(alias1, RowTCP, 8080)
	r := &Request{Alias: alias1, Row: RowTCP, Host: host1, Want: 8080}
	if got, err := s.Exclusive(r); err != nil || got == 8080 {
		t.Fatalf("the kernel's port was given: %d, %v", got, err)
	}
	s.o.Owners.ClearKernel(alias1, RowTCP, 8080)
	if got, err := s.Exclusive(r); err != nil || got != 8080 {
		t.Fatalf("got %d, %v, want 8080", got, err)
	}
}

// A listener that opens on a port in use gets no new links beside it, and has the port when the old ones are gone.
func TestListenerOnASharedPort(t *testing.T) {
	w := newWorld()
	s := newSpace(t, w, func(o *Options) { o.Low, o.High = 9000, 9001 })
	r := &Request{Alias: alias1, Row: RowTCP, Host: host1}
	p := Peer{remote, 80}
	port, err := s.Toward(r, p)
	if err != nil {
		t.Fatal(err)
	}
	s.o.Owners.SetKernel(alias1, RowTCP, port)
	for i := range uint16(20) {
		if got, err := s.Toward(r, Peer{remote, 100 + i}); err != nil || got == port {
			t.Fatalf("got %d, %v: the listener's port", got, err)
		}
	}
	s.Release(alias1, RowTCP, port, host1, p, 0)
	if b := s.o.Owners.Byte(alias1, RowTCP, port); b != ByteKernel {
		t.Errorf("owner byte %d, want the kernel's", b)
	}
}

// RFC 4787 REQ-4: parity is kept while a port of it is left; then any will do.
func TestParity(t *testing.T) {
	s := newSpace(t, nil, func(o *Options) { o.Low, o.High, o.Parity = 3000, 3099, true })
	for i := range 100 {
		port, err := s.Exclusive(&Request{Alias: alias1, Row: RowUDP, Host: host1, Want: 41})
		if err != nil {
			t.Fatal(err)
		}
		if odd := port%2 == 1; odd != (i < 50) {
			t.Fatalf("port %d is number %d for an odd wish", port, i+1)
		}
	}
}

// SPEC A9 portrange: a range of two ports gives two, then none.
func TestRangeOfTwoPorts(t *testing.T) {
	w := newWorld()
	s := newSpace(t, w, func(o *Options) { o.Low, o.High = 4000, 4001 })
	p := Peer{remote, 80}
	r := &Request{Alias: alias1, Row: RowTCP, Host: host1}
	a, err1 := s.Toward(r, p)
	w.add(alias1, RowTCP, a, p, 1)
	b, err2 := s.Toward(r, p)
	w.add(alias1, RowTCP, b, p, 1)
	if err1 != nil || err2 != nil || a == b || a+b != 8001 {
		t.Fatalf("got %d (%v), %d (%v)", a, err1, b, err2)
	}
	if c, err := s.Toward(r, p); !errors.Is(err, ErrNoPort) {
		t.Fatalf("third: %d, %v", c, err)
	}
}

// SPEC B1.15: the same seed repeats, another does not, and the ports are spread.
func TestRandomChoice(t *testing.T) {
	run := func(seed byte) (ports []uint16) {
		s := newSpace(t, nil, func(o *Options) { o.Seed = [32]byte{seed} })
		for range 200 {
			port, err := s.Exclusive(&Request{Alias: alias1, Row: RowUDP, Host: host1, Want: 5000})
			if err != nil {
				t.Fatal(err)
			}
			ports = append(ports, port)
		}
		return
	}
	a, again, b := run(1), run(1), run(2)
	same, near := 0, 0
	for i := range a {
		if a[i] != again[i] {
			t.Fatalf("one seed, two choices: %d and %d", a[i], again[i])
		}
		if a[i] == b[i] {
			same++
		}
		if i > 0 && (a[i]-a[i-1])+64 < 128 {
			near++
		}
	}
	if same > 3 || near > 5 {
		t.Errorf("%d of 200 choices equal under another seed, %d next to the one before", same, near)
	}
}

func TestPortsPerHost(t *testing.T) {
	w := newWorld()
	s := newSpace(t, w, func(o *Options) { o.PortsPerHost, o.SamePorts = 3, true })
	open := func(host packet.Addr, want uint16, p Peer) error {
		port, err := s.Toward(&Request{Alias: alias1, Row: RowTCP, Host: host, Want: want}, p)
		if err == nil {
			w.add(alias1, RowTCP, port, p, 1)
		}
		return err
	}
	for i := range uint16(3) {
		if err := open(host1, 5000+i, Peer{remote, 80}); err != nil {
			t.Fatal(err)
		}
	}
	if err := open(host1, 5003, Peer{remote, 80}); !errors.Is(err, ErrHostLimit) {
		t.Errorf("a fourth port: %v, want ErrHostLimit", err)
	}
	if _, err := s.Exclusive(&Request{Alias: alias1, Row: RowUDP, Host: host1}); !errors.Is(err, ErrHostLimit) {
		t.Errorf("a fourth port in another row: %v", err)
	}
	if err := open(host1, 5001, Peer{remote, 81}); err != nil {
		t.Errorf("a port that the host has already, toward another peer: %v", err)
	}
	if err := open(host2, 5003, Peer{remote, 80}); err != nil {
		t.Errorf("another host: %v", err)
	}
	if ports, _ := s.HostUse(host1); ports != 3 {
		t.Errorf("host has %d ports, want 3", ports)
	}
	s.Release(alias1, RowTCP, 5001, host1, Peer{remote, 80}, 0)
	if err := open(host1, 5003, Peer{remote, 80}); !errors.Is(err, ErrHostLimit) {
		t.Errorf("port 5001 is still used toward another peer, yet: %v", err)
	}
	s.Release(alias1, RowTCP, 5001, host1, Peer{remote, 81}, 0)
	if err := open(host1, 5003, Peer{remote, 80}); err != nil {
		t.Errorf("after a port came back: %v", err)
	}
	if _, err := s.Pair(&Request{Alias: alias1, Row: RowUDP, Host: host2, Want: 1}); err != nil {
		t.Errorf("pair within the limit: %v", err)
	}
	if _, err := s.Pair(&Request{Alias: alias1, Row: RowUDP, Host: host2, Want: 1}); !errors.Is(err, ErrHostLimit) {
		t.Errorf("pair beyond the limit: %v", err)
	}
}

// The limit can be switched on under live links: what was not counted is not counted down.
func TestPortsPerHostSwitchedOn(t *testing.T) {
	s := newSpace(t, nil, nil)
	r := &Request{Alias: alias1, Row: RowUDP, Host: host1}
	old, _ := s.Exclusive(r)
	o := s.o
	o.PortsPerHost = 1
	if err := s.Configure(o); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Exclusive(r); err != nil {
		t.Fatal(err)
	}
	s.Release(alias1, RowUDP, old, host1, Peer{}, 0)
	if _, err := s.Exclusive(r); !errors.Is(err, ErrHostLimit) {
		t.Errorf("a second port: %v, want ErrHostLimit", err)
	}
}

func TestLedgerFull(t *testing.T) {
	s := newSpace(t, nil, func(o *Options) { o.Hosts, o.Links, o.PortsPerHost = 16, 16, 100 })
	given := map[packet.Addr]uint16{}
	refused := 0
	for i := range packet.Addr(500) {
		port, err := s.Exclusive(&Request{Alias: alias1, Row: RowUDP, Host: host1 + i})
		switch {
		case err == nil:
			given[host1+i] = port
		case errors.Is(err, ErrHostLimit):
			refused++
		default:
			t.Fatal(err)
		}
	}
	if len(given) < 16 || refused == 0 {
		t.Errorf("%d hosts served, %d refused", len(given), refused)
	}
	for h, port := range given {
		s.Release(alias1, RowUDP, port, h, Peer{}, 0)
	}
	if s.ledger.used != 0 {
		t.Errorf("%d entries left", s.ledger.used)
	}
}

// Several workers: each finds ports while it or nobody has them, own ones are preferred once it has its share, and what one
// gives back another finds at once.
func TestWorkersShareAnAlias(t *testing.T) {
	owners := NewOwners(nil)
	defer owners.Close()
	if err := owners.Add(alias1); err != nil {
		t.Fatal(err)
	}
	const workers = 4
	var spaces [workers]*Space
	var worlds [workers]*world
	for i := range spaces {
		worlds[i] = newWorld()
		s, err := New(Options{Worker: i, Workers: workers, Owners: owners, Low: 1024, High: 5119, Seed: [32]byte{byte(i)}, InUse: worlds[i].inUse})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		spaces[i] = s
	}
	r := &Request{Alias: alias1, Row: RowTCP, Host: host1}
	// 30,000 flows of each worker toward 3,000 peers: 10 toward each, so few ports suffice.
	for i := range 30000 {
		for w, s := range spaces {
			p := Peer{remote + packet.Addr(i%3000), 443}
			port, err := s.Toward(r, p)
			if err != nil {
				t.Fatalf("worker %d flow %d refused", w, i)
			}
			worlds[w].add(alias1, RowTCP, port, p, 1)
		}
	}
	for w, s := range spaces {
		if n := s.Stats().Rows[0].Owned; n > 1024+16 {
			t.Errorf("worker %d holds %d of 4096 ports, its share is 1024", w, n)
		}
	}
	// One hot peer: all ports that the others do not hold can be had.
	hot := Peer{remote - 1, 443}
	n := 0
	for ; ; n++ {
		port, err := spaces[0].Toward(r, hot)
		if err != nil {
			break
		}
		worlds[0].add(alias1, RowTCP, port, hot, 1)
	}
	others := 0
	for _, s := range spaces[1:] {
		others += s.Stats().Rows[0].Owned
	}
	if n != 4096-others {
		t.Errorf("%d flows toward the hot peer, want %d", n, 4096-others)
	}
	// Another worker lets one port go.
	var freed uint16
	for port := uint16(1024); freed == 0; port++ {
		if owners.Byte(alias1, RowTCP, port) == 2 {
			freed = port
		}
	}
	for u, k := range worlds[1].exact {
		if u.port == freed && k > 0 {
			worlds[1].exact[u]--
			spaces[1].Release(alias1, RowTCP, freed, host1, u.peer, 0)
		}
	}
	if port, err := spaces[0].Toward(r, hot); err != nil || port != freed {
		t.Errorf("got %d, %v, want %d that worker 1 gave back", port, err, freed)
	}
}

// The third seed: a cache is made at the first conflict, not before; a link toward the peer sets its bit; the bit goes with the
// link, the cache with its last bit.
func TestCacheLife(t *testing.T) {
	w := newWorld()
	s := newSpace(t, w, func(o *Options) { o.SamePorts = true })
	p := Peer{remote, 443}
	open := func(want uint16) uint16 {
		port, err := s.Toward(&Request{Alias: alias1, Row: RowTCP, Host: host1, Want: want}, p)
		if err != nil {
			t.Fatal(err)
		}
		w.add(alias1, RowTCP, port, p, 1)
		return port
	}
	shut := func(port uint16) {
		w.add(alias1, RowTCP, port, p, -1)
		s.Release(alias1, RowTCP, port, host1, p, 0)
	}
	a, b := open(2000), open(2001)
	if n := s.Stats().Caches; n != 0 {
		t.Fatalf("%d caches before any conflict", n)
	}
	c := open(2000)
	if n := s.Stats().Caches; n != 1 {
		t.Fatalf("%d caches after a conflict, want 1", n)
	}
	w.asked = 0
	d := open(2000) // known: must not be asked about again
	if w.asked != 1 {
		t.Errorf("InUse asked %d times, want once, for the port given", w.asked)
	}
	for _, port := range []uint16{a, c, d} {
		shut(port)
	}
	if n := s.Stats().Caches; n != 0 {
		t.Errorf("%d caches; the one link left was never seen in a conflict", n)
	}
	if got := open(2000); got != 2000 {
		t.Errorf("the port of a link that went is not given: %d", got)
	}
	shut(b)
}

// Two caches meet when a row goes from endpoint-dependent to address-dependent mapping.
func TestCachesMerge(t *testing.T) {
	w := newWorld()
	s := newSpace(t, w, func(o *Options) { o.Low, o.High = 2000, 2063 })
	r := &Request{Alias: alias1, Row: RowTCP, Host: host1}
	var links []use
	for i := range uint16(40) { // 20 links toward each of two ports, with conflicts
		p := Peer{remote, 80 + i%2}
		port, err := s.Toward(r, p)
		if err != nil {
			t.Fatal(err)
		}
		w.add(alias1, RowTCP, port, p, 1)
		links = append(links, use{alias1, RowTCP, port, p})
	}
	if n := s.Stats().Caches; n != 2 {
		t.Fatalf("%d caches, want one for each exact peer", n)
	}
	ports := map[uint16]bool{}
	for _, l := range links {
		ports[l.port] = true
	}
	wide := Peer{Addr: remote}
	given := 0
	for ; ; given++ {
		port, err := s.Toward(r, wide)
		if err != nil {
			break
		}
		if ports[port] {
			t.Fatalf("port %d is in use toward the address", port)
		}
		ports[port] = true
		p := Peer{remote, 90}
		w.add(alias1, RowTCP, port, p, 1)
	}
	if len(ports) != 64 {
		t.Errorf("%d of 64 ports in use when refused", len(ports))
	}
	if st := s.Stats(); st.Caches != 1 || st.CachesMerged != 2 {
		t.Errorf("%d caches alive, %d merged; want 1 and 2", st.Caches, st.CachesMerged)
	}
	for _, l := range links {
		w.add(l.alias, l.row, l.port, l.peer, -1)
		s.Release(l.alias, l.row, l.port, host1, l.peer, 0)
	}
	back := 0
	for ; ; back++ {
		port, err := s.Toward(r, wide)
		if err != nil {
			break
		}
		w.add(alias1, RowTCP, port, Peer{remote, 91}, 1)
	}
	if given+back != 64 {
		t.Errorf("%d and then %d links toward the address, want 64 in all", given, back)
	}
}

// When the arena is used up, searches still find the last port, and a peer with much to remember gets the cache of one
// with little.
func TestCacheArenaUsedUp(t *testing.T) {
	{
		w := newWorld()
		s := newSpace(t, w, func(o *Options) { o.Low, o.High, o.Caches, o.SamePorts = 1024, 3071, 2, true })
		add := func(want uint16, p Peer) error {
			port, err := s.Toward(&Request{Alias: alias1, Row: RowTCP, Host: host1, Want: want}, p)
			if err == nil {
				w.add(alias1, RowTCP, port, p, 1)
			}
			return err
		}
		for i := range packet.Addr(2) { // two peers with one conflict each take all caches
			for range 2 {
				if err := add(1500, Peer{remote + i, 80}); err != nil {
					t.Fatal(err)
				}
			}
		}
		hot := Peer{remote + 9, 80}
		for i := range 2048 {
			if err := add(1500, hot); err != nil {
				t.Fatalf("flow %d refused", i+1)
			}
		}
		if err := add(1500, hot); !errors.Is(err, ErrNoPort) {
			t.Errorf("flow 2049: %v", err)
		}
		if st := s.Stats(); st.CachesStolen == 0 || st.Caches > 2 {
			t.Errorf("%d stolen, %d alive", st.CachesStolen, st.Caches)
		}
		w.asked = 0
		_ = add(1500, hot)
		if w.asked > 100 {
			t.Errorf("a refusal asked InUse %d times", w.asked)
		}
	}
}

// A refusal costs no scan of the owner bytes and next to no steps (SPEC B1.14).
func TestRefusalIsCheap(t *testing.T) {
	w := newWorld()
	s := newSpace(t, w, nil)
	p := Peer{remote, 80}
	r := &Request{Alias: alias1, Row: RowTCP, Host: host1}
	for {
		port, err := s.Toward(r, p)
		if err != nil {
			break
		}
		w.add(alias1, RowTCP, port, p, 1)
	}
	w.asked = 0
	before := s.stats.steps
	for range 1000 {
		if _, err := s.Toward(r, p); err == nil {
			t.Fatal("not refused")
		}
	}
	for i := 3; i < StepBuckets; i++ {
		if s.stats.steps[i] != before[i] {
			t.Errorf("%d refusals took %d steps or more", s.stats.steps[i]-before[i], 1<<(i-1))
		}
	}
	if w.asked != 0 {
		t.Errorf("InUse was asked %d times", w.asked)
	}
}

func TestDeterministic(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		bits := rapid.IntRange(20, 32).Draw(t, "prefix")
		n := rapid.IntRange(1, 64).Draw(t, "aliases")
		low := uint16(rapid.IntRange(1, 60000).Draw(t, "low"))
		high := uint16(rapid.IntRange(int(low), 65535).Draw(t, "high"))
		each := rapid.IntRange(0, 300).Draw(t, "each")
		aliases := make([]packet.Addr, n)
		for i := range aliases {
			aliases[i] = alias1 + packet.Addr(i*3)
		}
		inside := netip.PrefixFrom(packet.Addr(0x0a000000).Netip(), bits)
		hosts := 1 << (32 - bits)
		p, err := NewPlan(inside, aliases, low, high, each)
		ports := int(high) - int(low) + 1
		need := max(each, 1)
		if fits := ports/need*n >= hosts; (err == nil) != fits {
			t.Fatalf("%d hosts, %d aliases of %d ports, %d each: error %v", hosts, n, ports, each, err)
		}
		if err != nil {
			return
		}
		owner := map[use]packet.Addr{}
		for h := range packet.Addr(hosts) {
			a, lo, hi, ok := p.Forward(0x0a000000 + h)
			if !ok || lo < low || hi > high || lo > hi || each != 0 && int(hi-lo)+1 != each {
				t.Fatalf("host %d: %v %d-%d %v", h, a, lo, hi, ok)
			}
			for _, port := range []uint16{lo, hi, lo + (hi-lo)/2} {
				if back, ok := p.Inverse(a, port); !ok || back != 0x0a000000+h {
					t.Fatalf("host %d has %v:%d, whose inverse is %v %v", h, a, port, back, ok)
				}
			}
			u := use{alias: a, port: lo}
			if _, twice := owner[u]; twice {
				t.Fatalf("two hosts have %v:%d", a, lo)
			}
			owner[u] = h
		}
		if _, _, _, ok := p.Forward(0x0a000000 + packet.Addr(hosts)); ok {
			t.Fatal("a host outside the prefix has ports")
		}
		if _, ok := p.Inverse(alias1-1, low); ok {
			t.Fatal("a foreign alias has a host")
		}
	})
}

func TestDeterministicSpace(t *testing.T) {
	plan, err := NewPlan(netip.MustParsePrefix("10.0.0.0/30"), []packet.Addr{alias1, alias2}, 1024, 1024+15, 8)
	if err != nil {
		t.Fatal(err)
	}
	s := newSpace(t, nil, func(o *Options) { o.Deterministic, o.SamePorts = plan, true })
	for i := range 9 {
		port, err := s.Exclusive(&Request{Alias: alias1, Row: RowUDP, Host: host1, Want: 1024})
		if i < 8 && (err != nil || port < 1032 || port > 1039) {
			t.Fatalf("mapping %d: port %d, %v; want 1032-1039", i, port, err)
		}
		if i == 8 && !errors.Is(err, ErrNoPort) {
			t.Fatalf("mapping beyond the range: %d, %v", port, err)
		}
	}
	for _, h := range []packet.Addr{0x0a000002, 0x0a000004} { // alias2's, nobody's
		if _, err := s.Exclusive(&Request{Alias: alias1, Row: RowUDP, Host: h}); !errors.Is(err, ErrNoPort) {
			t.Errorf("host %v on the wrong alias: %v", h, err)
		}
	}
}

// SPEC C: a block goes back idle_release after its last link, and to another host no sooner than rest after that.
func TestBlockRest(t *testing.T) {
	s := newSpace(t, nil, func(o *Options) {
		o.Low, o.High = 1024, 1024+63
		o.Block = Block{Size: 64, MaxPerHost: 1, IdleRelease: 100 * time.Second, Rest: 50 * time.Second}
	})
	get := func(host packet.Addr, now clock.Tick) error {
		port, err := s.Exclusive(&Request{Alias: alias1, Row: RowUDP, Host: host, Now: now})
		if err == nil {
			s.Release(alias1, RowUDP, port, host, Peer{}, now)
		}
		return err
	}
	at := func(now clock.Tick) {
		for s.Advance(now, 1) > 0 {
		}
	}
	if err := get(host1, 0); err != nil {
		t.Fatal(err)
	}
	if due, ok := s.Due(); !ok || due != 100_000 {
		t.Errorf("due at %d %v, want 100000", due, ok)
	}
	at(99_999)
	if _, blocks := s.HostUse(host1); blocks != 1 {
		t.Error("released before its time")
	}
	at(120_000) // late: counts as released at 100 s
	if _, blocks := s.HostUse(host1); blocks != 0 {
		t.Error("not released")
	}
	if err := get(host2, 149_999); !errors.Is(err, ErrNoPort) {
		t.Errorf("another host while the block rests: %v", err)
	}
	if err := get(host1, 149_999); err != nil {
		t.Errorf("the same host while the block rests: %v", err)
	}
	at(149_999 + 150_000)
	if err := get(host2, 149_999+150_000); err != nil {
		t.Errorf("another host after the rest: %v", err)
	}
	want := []bool{true, false, true, false, true}
	for i, taken := range want {
		if e, ok := s.NextBlockEvent(); !ok || e.Taken != taken {
			t.Errorf("event %d: %+v %v", i, e, ok)
		}
	}
}

// A block serves all three protocols; kernel ports in it are holes; the bytes say whose it is before any link exists.
func TestBlockServesAllProtocols(t *testing.T) {
	s := newSpace(t, nil, func(o *Options) {
		o.Low, o.High, o.SamePorts = 1024, 65535, true
		o.Block = Block{Size: 4, MaxPerHost: 1}
	})
	port, err := s.Exclusive(&Request{Alias: alias1, Row: RowUDP, Host: host1})
	if err != nil {
		t.Fatal(err)
	}
	lo := port &^ 3
	for rw := range blockRows {
		for i := range uint16(4) {
			if b := s.o.Owners.Byte(alias1, rw, lo+i); b != 1 {
				t.Errorf("row %d port %d: byte %d", rw, lo+i, b)
			}
		}
		got, err := s.Exclusive(&Request{Alias: alias1, Row: rw, Host: host1, Want: lo + 3})
		if err != nil || got&^3 != lo {
			t.Errorf("row %d: port %d, %v; block starts at %d", rw, got, err, lo)
		}
		if port != lo+3 && got != lo+3 {
			t.Errorf("row %d: wanted port %d of its own block, got %d", rw, lo+3, got)
		}
	}
	if got, err := s.Exclusive(&Request{Alias: alias1, Row: RowTCP, Host: host2, Want: lo + 1}); err != nil || got&^3 == lo {
		t.Errorf("another host got port %d of the block, %v", got, err)
	}
}

func TestBlockHoles(t *testing.T) {
	s := newSpace(t, nil, func(o *Options) { o.Low, o.High, o.Block = 1024, 1031, Block{Size: 8, MaxPerHost: 1} })
	s.o.Owners.SetKernel(alias1, RowTCP, 1024)
	s.o.Owners.SetRedirect(alias1, RowTCP, 1030)
	seen := map[uint16]bool{}
	for range 6 {
		port, err := s.Exclusive(&Request{Alias: alias1, Row: RowTCP, Host: host1})
		if err != nil || port == 1024 || port == 1030 || seen[port] {
			t.Fatalf("got %d, %v", port, err)
		}
		seen[port] = true
	}
	if _, err := s.Exclusive(&Request{Alias: alias1, Row: RowTCP, Host: host1}); !errors.Is(err, ErrHostLimit) {
		t.Errorf("seventh of six: %v", err)
	}
}

// Two workers never hold one block.
func TestBlockLockedBetweenWorkers(t *testing.T) {
	owners := NewOwners(nil)
	defer owners.Close()
	if err := owners.Add(alias1); err != nil {
		t.Fatal(err)
	}
	var spaces [2]*Space
	for i := range spaces {
		s, err := New(Options{Worker: i, Workers: 2, Owners: owners, Low: 1024, High: 1024 + 16*32 - 1, Block: Block{Size: 16, MaxPerHost: 1}})
		if err != nil {
			t.Fatal(err)
		}
		defer s.Close()
		spaces[i] = s
	}
	rng := rand.New(rand.NewPCG(1, 2))
	blocks := map[uint16]bool{}
	for i := range packet.Addr(32) {
		port, err := spaces[rng.IntN(2)].Exclusive(&Request{Alias: alias1, Row: RowTCP, Host: host1 + i})
		if err != nil || blocks[port>>4] {
			t.Fatalf("host %d: port %d, %v", i, port, err)
		}
		blocks[port>>4] = true
	}
	for i, s := range spaces {
		if _, err := s.Exclusive(&Request{Alias: alias1, Row: RowTCP, Host: host2 + 99}); !errors.Is(err, ErrNoPort) {
			t.Errorf("worker %d: 33rd host of 32 blocks: %v", i, err)
		}
	}
	var freed uint16
	for i := range packet.Addr(32) {
		for port := range blocks {
			for p := port << 4; p < port<<4+16; p++ {
				spaces[1].Release(alias1, RowTCP, p, host1+i, Peer{}, 0)
			}
			if owners.Byte(alias1, RowTCP, port<<4) == 2 {
				freed = port
			}
		}
	}
	for spaces[1].Advance(1, 1) > 0 {
	}
	if freed == 0 {
		t.Fatal("worker 1 had no block")
	}
	if _, err := spaces[0].Exclusive(&Request{Alias: alias1, Row: RowTCP, Host: host2 + 99}); err != nil {
		t.Errorf("worker 0 does not find the blocks that worker 1 gave back: %v", err)
	}
}

// Nor when they take them at once, whatever the size, and none is lost when two get into each other's way.
func TestBlocksTakenAtOnce(t *testing.T) {
	for _, size := range []int{1, 3, 5, 10} {
		const workers, all = 4, 60
		owners := NewOwners(nil)
		defer owners.Close()
		if err := owners.Add(alias1); err != nil {
			t.Fatal(err)
		}
		var spaces [workers]*Space
		var got [workers][]uint16
		for i := range spaces {
			s, err := New(Options{Worker: i, Workers: workers, Owners: owners, Low: 1025, High: uint16(1025 + all*size - 1), Block: Block{Size: size, MaxPerHost: 1}})
			if err != nil {
				t.Fatal(err)
			}
			defer s.Close()
			spaces[i] = s
		}
		take := func(i int) {
			for {
				host := host1 + packet.Addr(i*all+len(got[i]))
				port, err := spaces[i].Exclusive(&Request{Alias: alias1, Row: RowUDP, Host: host})
				if err != nil {
					return
				}
				got[i] = append(got[i], port)
			}
		}
		var wait sync.WaitGroup
		for i := range spaces {
			wait.Go(func() { take(i) })
		}
		wait.Wait()
		taken := map[int]bool{}
		for i := range spaces {
			take(i) // what two have left to each other
			for _, port := range got[i] {
				at := (int(port) - 1025) / size
				if taken[at] {
					t.Errorf("size %d: block %d was given twice", size, at)
				}
				taken[at] = true
			}
		}
		if len(taken) != all {
			t.Errorf("size %d: %d of %d blocks were given", size, len(taken), all)
		}
	}
}

// A block of whose lock another worker has a port is left alone; a port elsewhere in it is a hole.
func TestBlockBesideAnotherWorkersPort(t *testing.T) {
	s := newSpace(t, nil, func(o *Options) { o.Workers, o.Low, o.High, o.Block = 2, 1024, 1039, Block{Size: 8, MaxPerHost: 2} })
	s.o.Owners.Claim(alias1, RowTCP, 1027, 1)
	s.o.Owners.Claim(alias1, RowUDP, 1039, 1)
	for i := range 8 {
		port, err := s.Exclusive(&Request{Alias: alias1, Row: RowUDP, Host: host1})
		if i < 7 && (err != nil || port < 1032 || port > 1038) || i == 7 && err == nil {
			t.Fatalf("port %d is %d, %v; want 1032-1038 and no more", i+1, port, err)
		}
	}
	s.o.Owners.Release(alias1, RowTCP, 1027, 1)
	if port, err := s.Exclusive(&Request{Alias: alias1, Row: RowUDP, Host: host1}); err != nil || port > 1031 {
		t.Errorf("after the other worker let go: %d, %v", port, err)
	}
}

// A port that comes back from an exclusive mapping, or out of a link toward the peer, is found by a peer that had used up all.
func TestUsedUpPeerFindsWhatComesBack(t *testing.T) {
	w := newWorld()
	s := newSpace(t, w, func(o *Options) { o.Low, o.High = 1024, 1024+1023 })
	p, r := Peer{remote, 80}, &Request{Alias: alias1, Row: RowTCP, Host: host1}
	own, err := s.Exclusive(r)
	if err != nil {
		t.Fatal(err)
	}
	fill := func() (n int) {
		for {
			port, err := s.Toward(r, p)
			if err != nil {
				return n
			}
			w.add(alias1, RowTCP, port, p, 1)
			n++
		}
	}
	if n := fill(); n != 1023 {
		t.Fatalf("%d links, want 1023", n)
	}
	s.Release(alias1, RowTCP, own, host1, Peer{}, 0)
	if n := fill(); n != 1 {
		t.Errorf("%d links after a mapping went, want 1", n)
	}
	for port := uint16(1500); port < 1510; port++ {
		w.add(alias1, RowTCP, port, p, -1)
		s.Release(alias1, RowTCP, port, host1, p, 0)
	}
	if n := fill(); n != 10 {
		t.Errorf("%d links after ten went", n)
	}
}

// A new block size dissolves the blocks; links keep their ports and give them back one by one.
func TestBlockSizeChanges(t *testing.T) {
	s := newSpace(t, nil, func(o *Options) { o.Block = Block{Size: 64, MaxPerHost: 2} })
	r := &Request{Alias: alias1, Row: RowUDP, Host: host1}
	port, err := s.Exclusive(r)
	if err != nil {
		t.Fatal(err)
	}
	for _, size := range []int{128, 0, 64} {
		o := s.o
		o.Block.Size = size
		if err := s.Configure(o); err != nil {
			t.Fatal(err)
		}
		for i := range 64 {
			p, want := port&^63+uint16(i), uint8(0)
			if p == port {
				want = 1
			}
			if b := s.o.Owners.Byte(alias1, RowUDP, p); b != want {
				t.Fatalf("size %d: byte of port %d is %d, want %d", size, p, b, want)
			}
		}
	}
	s.Release(alias1, RowUDP, port, host1, Peer{}, 0)
	if b := s.o.Owners.Byte(alias1, RowUDP, port); b != 0 {
		t.Errorf("byte %d after release", b)
	}
	if st := s.Stats(); st.BlocksHeld != 0 || s.ledger.used != 0 {
		t.Errorf("%d blocks, %d ledger entries left", st.BlocksHeld, s.ledger.used)
	}
}

// An alias address that leaves and comes back has its live ports claimed again; one that leaves for good is forgotten.
func TestAliasLeavesAndComesBack(t *testing.T) {
	w := newWorld()
	s := newSpace(t, w, nil)
	r := &Request{Alias: alias1, Row: RowTCP, Host: host1}
	p := Peer{remote, 80}
	port, err := s.Toward(r, p)
	if err != nil {
		t.Fatal(err)
	}
	s.o.Owners.Remove(alias1)
	if _, err := s.Toward(r, p); !errors.Is(err, ErrNoPort) {
		t.Errorf("a port of an address that is gone: %v", err)
	}
	if err := s.o.Owners.Add(alias1); err != nil {
		t.Fatal(err)
	}
	if _, err := s.Toward(r, p); err != nil {
		t.Error(err)
	}
	if b := s.o.Owners.Byte(alias1, RowTCP, port); b != 1 {
		t.Errorf("byte of a live port is %d after the address came back", b)
	}
	s.Release(alias1, RowTCP, port, host1, p, 0)
	s.o.Owners.Remove(alias1)
	for i := range packet.Addr(500) { // a WAN address that changes daily
		a := alias2 + i
		if err := s.o.Owners.Add(a); err != nil {
			t.Fatal(err)
		}
		port, err := s.Exclusive(&Request{Alias: a, Row: RowUDP, Host: host1})
		if err != nil {
			t.Fatal(err)
		}
		s.Release(a, RowUDP, port, host1, Peer{}, 0)
		s.o.Owners.Remove(a)
	}
	if n := len(s.aliases); n > 4 {
		t.Errorf("state of %d addresses is kept", n)
	}
}

func TestOptionsAreChecked(t *testing.T) {
	owners := NewOwners(nil)
	defer owners.Close()
	good := Options{Workers: 1, Owners: owners, Low: 1024, High: 65535}
	plan, err := NewPlan(netip.MustParsePrefix("10.0.0.0/30"), []packet.Addr{alias1}, 1024, 65535, 0)
	if err != nil {
		t.Fatal(err)
	}
	for name, change := range map[string]func(*Options){
		"no owners":         func(o *Options) { o.Owners = nil },
		"no workers":        func(o *Options) { o.Workers = 0 },
		"worker too high":   func(o *Options) { o.Worker = 1 },
		"too many workers":  func(o *Options) { o.Workers = 254 },
		"range upside down": func(o *Options) { o.Low = 65535; o.High = 1 },
		"negative block":    func(o *Options) { o.Block = Block{Size: -1, MaxPerHost: 1} },
		"block of 32769":    func(o *Options) { o.Block = Block{Size: 32769, MaxPerHost: 1} },
		"no block per host": func(o *Options) { o.Block = Block{Size: 64} },
		"no whole block":    func(o *Options) { o.Block = Block{Size: 64, MaxPerHost: 1}; o.Low, o.High = 1025, 1087 },
		"block and plan":    func(o *Options) { o.Block = Block{Size: 64, MaxPerHost: 1}; o.Deterministic = plan },
		"negative limit":    func(o *Options) { o.PortsPerHost = -1 },
	} {
		o := good
		change(&o)
		if s, err := New(o); err == nil {
			s.Close()
			t.Errorf("%s: accepted", name)
		}
	}
}

func TestNoAllocation(t *testing.T) {
	w := newWorld()
	for name, change := range map[string]func(*Options){
		"plain":  nil,
		"limits": func(o *Options) { o.PortsPerHost, o.SamePorts, o.Parity = 1000, true, true },
		"blocks": func(o *Options) { o.Block = Block{Size: 64, MaxPerHost: 4} },
		"narrow": func(o *Options) { o.Low, o.High, o.Caches = 2000, 2001, 1 },
	} {
		t.Run(name, func(t *testing.T) {
			s := newSpace(t, w, change)
			p := Peer{remote, 80}
			r := &Request{Alias: alias1, Row: RowTCP, Host: host1, Want: 2000}
			round := func() {
				a, err1 := s.Toward(r, p)
				b, err2 := s.Exclusive(r)
				c, err3 := s.Pair(r)
				if err1 == nil {
					s.Release(alias1, RowTCP, a, host1, p, 0)
				}
				if err2 == nil {
					s.Release(alias1, RowTCP, b, host1, Peer{}, 0)
				}
				if err3 == nil {
					s.Release(alias1, RowTCP, c, host1, Peer{}, 0)
					s.Release(alias1, RowTCP, c+1, host1, Peer{}, 0)
				}
				s.Advance(1, 8)
			}
			round()
			if n := testing.AllocsPerRun(1000, round); n != 0 {
				t.Errorf("%v allocations per round", n)
			}
		})
	}
}
