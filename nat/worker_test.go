package nat

import (
	"net/netip"
	"testing"
	"time"

	"pollux/internal/packet"
	"pollux/internal/reason"
	"pollux/lport"
)

// TestSharedOwners runs two shards on one owner table: no alias port is ever with both, and all come back.
func TestSharedOwners(t *testing.T) {
	owners := lport.NewOwners(nil)
	t.Cleanup(owners.Close) // after the shards
	if err := owners.Add(pub1); err != nil {
		t.Fatal(err)
	}
	var ws [2]*world
	for i := range ws {
		ws[i] = newWorld(t, func(o *Options) {
			o.Worker, o.Workers, o.Owners = i, 2, owners
			o.Rules.PortRange = PortRange{4000, 4019}
		})
	}
	used := map[uint16]bool{}
	for i := range uint16(10) {
		for n, w := range ws {
			port := w.out(udp(prv1+packet.Addr(n), 100+i, ext1, 1)).Port
			if used[port] {
				t.Fatalf("port %d is given twice", port)
			}
			used[port] = true
			if b := owners.Byte(pub1, lport.RowUDP, port); int(b) != n+1 {
				t.Fatalf("owner byte of port %d is %d, want %d", port, b, n+1)
			}
		}
	}
	ws[0].refused(Inside, udp(prv1, 999, ext1, 1), Answer, reason.NoPort)
	ws[1].pass(302 * time.Second)
	ws[0].out(udp(prv1, 999, ext1, 1)) // idle ports of the other are there for all
	ws[0].pass(302 * time.Second)
	ws[0].wantEmpty()
	ws[1].wantEmpty()
}

func TestBlocks(t *testing.T) {
	w := newWorld(t, func(o *Options) {
		o.Rules.Blocks.Size, o.Rules.Blocks.MaxPerHost = 8, 2
		o.Rules.PortRange = PortRange{4096, 4096 + 31}
	})
	for host := range packet.Addr(2) {
		blocks := map[uint16]bool{}
		for i := range uint16(16) {
			blocks[w.out(udp(prv1+host, 100+i, ext1, 1)).Port/8] = true
		}
		if len(blocks) != 2 {
			t.Errorf("host %d has ports in %d blocks", host, len(blocks))
		}
		w.refused(Inside, udp(prv1+host, 999, ext1, 1), Answer, reason.HostLimit)
	}
	w.refused(Inside, udp(prv1+9, 999, ext1, 1), Answer, reason.NoPort)
	w.pass(302 * time.Second) // links gone, blocks idle and then at rest
	if w.s.live != 0 {
		t.Fatal("links left")
	}
	w.pass(241 * time.Second)
	w.out(udp(prv1+9, 999, ext1, 1))
}

func TestDeterministic(t *testing.T) {
	w := newWorld(t, func(o *Options) {
		o.Rules.Alias = []packet.Addr{pub1, pub2}
		o.Rules.Deterministic = Deterministic{Inside: netip.MustParsePrefix("10.0.0.0/24"), PortsPerHost: 100}
	})
	alias, low, high, ok := w.s.plan.Forward(prv2)
	if !ok {
		t.Fatal("no plan for prv2")
	}
	for i := range uint16(100) {
		if a := w.out(udp(prv2, 100+i, ext1, 1)); a.Addr != alias || a.Port < low || a.Port > high {
			t.Fatalf("%v is not in %v:%d-%d", a, alias, low, high)
		}
	}
	w.refused(Inside, udp(prv2, 999, ext1, 1), Answer, reason.NoPort)
	w.refused(Inside, udp(addr("10.9.9.9"), 999, ext1, 1), Answer, reason.NoPort)
}

// TestTeardownIsSliced removes many links by one rule change: the call itself touches none of them, and Advance works in
// slices of what it is given.
func TestTeardownIsSliced(t *testing.T) {
	const n = 20_000
	s := benchShard(t, n, nil)
	newTraffic(false).fill(t, s, n)
	r := s.rules
	r.Alias = []packet.Addr{pub2}
	if err := s.SetRules(r, 2); err != nil {
		t.Fatal(err)
	}
	if s.live != n {
		t.Fatalf("SetRules removed %d links itself", n-s.live)
	}
	seen := 0
	s.Links(0, n+1, func(LinkInfo) bool { seen++; return true })
	if seen != 0 {
		t.Errorf("%d dead links are visible", seen)
	}
	for rounds := 0; s.live > 0; rounds++ {
		before := s.live
		if work := s.Advance(2, 50); work > 50 || before-s.live > 50 {
			t.Fatalf("a slice of 50 did %d, removed %d", work, before-s.live)
		}
		if rounds > n {
			t.Fatal("cleaning up does not end")
		}
	}
}
