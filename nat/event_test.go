package nat_test

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"pollux/internal/packet"
	"pollux/internal/reason"
	"pollux/nat"
)

// logged gives a shard a ring of events.
func logged(t testing.TB, n int, sessions bool) (*nat.EventRing, func(*nat.Options)) {
	ring, err := nat.NewEventRing(n, sessions)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(ring.Close)
	return ring, func(o *nat.Options) { o.Events = ring }
}

// events takes all that is there.
func events(ring *nat.EventRing) (list []nat.Event) {
	var buf [100]nat.Event
	for {
		n := ring.Read(buf[:])
		if n == 0 {
			return list
		}
		list = append(list, buf[:n]...)
	}
}

// What an event log tells is replayed, and what it says is there must be what is there: links, mappings, blocks.
type ledger struct {
	t        *testing.T
	sessions map[string]bool
	mappings map[string]bool
	blocks   map[string]bool
}

func newLedger(t *testing.T) *ledger {
	return &ledger{t, map[string]bool{}, map[string]bool{}, map[string]bool{}}
}

func (l *ledger) add(list []nat.Event) {
	l.t.Helper()
	enter := func(m map[string]bool, what, key string) {
		if m[key] {
			l.t.Fatalf("%s %s is made twice", what, key)
		}
		m[key] = true
	}
	leave := func(m map[string]bool, what, key string) {
		if !m[key] {
			l.t.Fatalf("%s %s ends but was never made", what, key)
		}
		delete(m, key)
	}
	for _, e := range list {
		session := fmt.Sprint(e.Proto, e.Local, e.Alias, e.Remote, e.Inbound)
		mapping := fmt.Sprint(e.Proto, e.Local, e.Alias)
		block := fmt.Sprint(e.Local.Addr, e.Alias, e.Remote.Port)
		switch e.Kind {
		case nat.EventSessionCreate:
			enter(l.sessions, "session", session)
		case nat.EventSessionDelete:
			leave(l.sessions, "session", session)
		case nat.EventMappingCreate:
			enter(l.mappings, "mapping", mapping)
		case nat.EventMappingDelete:
			leave(l.mappings, "mapping", mapping)
		case nat.EventBlockTaken:
			enter(l.blocks, "block", block)
		case nat.EventBlockGiven:
			leave(l.blocks, "block", block)
		}
	}
}

// TestEventsTellTheTable drives a shard with random flows in and out, of all protocols, with blocks, deletions, changes of
// rules and time, and compares what the events add up to with the table.
func TestEventsTellTheTable(t *testing.T) {
	ring, on := logged(t, 1<<16, true)
	r := newRig(t, both(on, blocks(16, 4), func(o *nat.Options) {
		o.Limits.Links = 300
		o.Rules.Timeouts.UDP, o.Rules.Timeouts.Other = 10*time.Second, 5*time.Second
		o.Rules.Filtering.UDP = nat.EndpointIndependent
		o.Rules.Blocks.IdleRelease, o.Rules.Blocks.Rest = 3*time.Second, time.Second
		o.Rules.RedirectPort = []nat.RedirectPort{{Proto: packet.ProtoTCP, Public: nat.Alias{Addr: masq, Port: 80}, Local: []nat.Local{{Addr: prv1, Port: 8080}}}}
	}))
	rng := rand.New(rand.NewPCG(7, 7))
	book := newLedger(t)
	made := 0
	for range 4000 {
		host, remote := packet.Addr(10<<24+rng.IntN(40)), ext+packet.Addr(rng.IntN(5))
		port := uint16(1024 + rng.IntN(50))
		switch rng.IntN(10) {
		case 0:
			r.send(nat.Outside, tcp(syn, remote, port, masq, 80))
		case 1:
			r.send(nat.Outside, udp(remote, port, masq, uint16(1024+rng.IntN(100))))
		case 2:
			r.send(nat.Inside, ping(host, port, remote))
		case 3:
			r.send(nat.Inside, proto(47, host, remote))
		case 4:
			r.send(nat.Inside, tcp(syn, host, port, remote, 80))
			r.send(nat.Inside, tcp(rst, host, port, remote, 80))
		case 5:
			r.pass(time.Duration(rng.IntN(3000)) * time.Millisecond)
		case 6:
			if all := r.find(func(nat.LinkInfo) bool { return true }); len(all) > 0 && rng.IntN(4) == 0 {
				r.s.Delete(all[rng.IntN(len(all))].ID, r.now)
			}
		case 7:
			if rng.IntN(20) == 0 {
				r.set(func(x *nat.Rules) { x.RedirectPort[0].Local[0].Port++ })
			}
		default:
			r.send(nat.Inside, udp(host, port, remote, 53))
		}
		r.advance()
		list := events(ring)
		made += len(list)
		book.add(list)
		want, mappings := 0, map[string]bool{}
		for _, l := range r.find(func(nat.LinkInfo) bool { return true }) {
			want++
			if !book.sessions[fmt.Sprint(l.Proto, l.Local, l.Alias, l.Remote, l.Inbound)] {
				t.Fatalf("the log tells nothing of %+v", l)
			}
			if l.Proto == packet.ProtoUDP || l.Proto == packet.ProtoICMP {
				mappings[fmt.Sprint(l.Proto, l.Local, l.Alias)] = true
			}
		}
		for m := range mappings {
			if !book.mappings[m] {
				t.Fatalf("the log tells nothing of mapping %s", m)
			}
		}
		if open := int(r.s.Counters().Links); len(book.sessions) != open || want > open {
			t.Fatalf("%d sessions are open by the log, %d by the table", len(book.sessions), open)
		}
		if held := r.s.Ports().Stats().BlocksHeld; len(book.blocks) != held {
			t.Fatalf("%d blocks are held by the log, %d by the port space", len(book.blocks), held)
		}
	}
	r.pass(time.Hour * 3)
	book.add(events(ring))
	if n := len(book.sessions) + len(book.mappings) + len(book.blocks); n != 0 || made < 4000 || ring.Lost() != 0 {
		t.Errorf("%d things never end by the log; %d events, %d lost", n, made, ring.Lost())
	}
}

// A session's end tells what went both ways, with lengths as IP counts them, and who opened it; a block comes before what it is for.
func TestEventContents(t *testing.T) {
	ring, on := logged(t, 100, true)
	r := newRig(t, both(on, blocks(64, 1)))
	start := r.now
	a := r.out(udp(prv1, 5000, ext, 53))
	r.in(udp(ext, 53, a.addr, a.port))
	r.in(udp(ext, 53, a.addr, a.port))
	r.pass(301 * time.Second)
	list := events(ring)
	kinds := []nat.EventKind{nat.EventBlockTaken, nat.EventMappingCreate, nat.EventSessionCreate, nat.EventSessionDelete, nat.EventMappingDelete}
	if len(list) != len(kinds) {
		t.Fatalf("%d events: %+v", len(list), list)
	}
	for i, e := range list {
		if e.Kind != kinds[i] {
			t.Errorf("event %d is %+v", i, e)
		}
		if i < 3 && e.At != start || i >= 3 && (e.At.Since(start) < 300_000 || e.At.Since(start) > 301_000) {
			t.Errorf("event %d happened %d ms after the start", i, e.At.Since(start))
		}
	}
	b, c, d := list[0], list[2], list[3]
	if b.Local.Addr != prv1 || b.Alias.Addr != masq || b.Remote.Port-b.Alias.Port != 63 || a.port < b.Alias.Port || a.port > b.Remote.Port {
		t.Errorf("block %+v for port %d", b, a.port)
	}
	if c.Proto != packet.ProtoUDP || c.Local != (nat.Local{Addr: prv1, Port: 5000}) || c.Alias != (nat.Alias{Addr: masq, Port: a.port}) ||
		c.Remote != (nat.Remote{Addr: ext, Port: 53}) || c.Inbound {
		t.Errorf("created: %+v", c)
	}
	if d.Packets != [2]uint64{1, 2} || d.Bytes != [2]uint64{50, 100} || d.Alias != c.Alias {
		t.Errorf("deleted: %+v", d)
	}
}

// At the level of blocks nothing is told of sessions.
func TestEventsOfBlocksOnly(t *testing.T) {
	ring, on := logged(t, 100, false)
	r := newRig(t, both(on, blocks(64, 1)))
	r.out(udp(prv1, 5000, ext, 53))
	r.out(tcp(syn, prv1, 5000, ext, 53))
	r.pass(3 * time.Hour)
	if list := events(ring); len(list) != 2 || list[0].Kind != nat.EventBlockTaken || list[1].Kind != nat.EventBlockGiven {
		t.Errorf("%+v", list)
	}
}

// Refusals are told with their limit, ten a second, and how many were not told.
func TestEventsOfRefusals(t *testing.T) {
	ring, on := logged(t, 100, false)
	r := newRig(t, both(on, func(o *nat.Options) { o.Limits.LinksPerHost = 3 }))
	for i := range 3 {
		r.out(udp(prv1, 5000, ext, uint16(i)))
	}
	refuse := func(n int) {
		for i := range n {
			r.fails(nat.Inside, udp(prv1, 5000, ext, uint16(100+i)), reason.HostLimit)
		}
	}
	refuse(25)
	list := events(ring)
	if len(list) != 10 {
		t.Fatalf("%d refusals told in a second", len(list))
	}
	if e := list[0]; e.Kind != nat.EventRefused || e.Reason != reason.HostLimit || e.Limit() != 3 || e.Untold() != 0 ||
		e.Local != (nat.Local{Addr: prv1, Port: 5000}) || e.Remote != (nat.Remote{Addr: ext, Port: 100}) || e.Alias != (nat.Alias{}) {
		t.Errorf("%+v", e)
	}
	r.pass(time.Second)
	refuse(1)
	if list = events(ring); len(list) != 1 || list[0].Untold() != 15 {
		t.Errorf("%+v", list)
	}
	// No port is left on the address, and no address at all.
	none, on := logged(t, 100, false)
	r = newRig(t, both(on, func(o *nat.Options) { o.Rules.PortRange = nat.PortRange{Low: 5000, High: 5000} }))
	r.out(udp(prv1, 5000, ext, 53))
	r.fails(nat.Inside, udp(prv2, 5000, ext, 53), reason.NoPort)
	r.set(func(x *nat.Rules) { x.Alias = nil })
	r.fails(nat.Inside, udp(prv2, 5000, ext, 53), reason.NoPort)
	if list = events(none); len(list) != 2 || list[0].Alias.Addr != masq || list[1].Alias.Addr != 0 || list[1].Reason != reason.NoPort {
		t.Errorf("%+v", list)
	}
}

// A ring that nobody reads loses events and counts them; the shard goes on.
func TestEventRingOverflows(t *testing.T) {
	ring, on := logged(t, 8, true)
	r := newRig(t, on)
	for i := range 20 {
		r.out(tcp(syn, prv1, uint16(5000+i), ext, 53))
	}
	if list := events(ring); len(list) != 8 || ring.Lost() != 12 || list[7].Local.Port != 5007 {
		t.Errorf("%d events, %d lost", len(list), ring.Lost())
	}
	r.out(tcp(syn, prv1, 6000, ext, 53))
	if list := events(ring); len(list) != 1 || list[0].Local.Port != 6000 {
		t.Errorf("%+v", list)
	}
}
