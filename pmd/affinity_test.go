package pmd

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"pollux/internal/lab"
	"pollux/internal/packet"
	"pollux/internal/rss"
	"pollux/lport"
	"pollux/nat"
)

// testKey is the key of the published verification suite.
var testKey = []byte{
	0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67, 0x25, 0x3d, 0x43, 0xa3, 0x8f, 0xb0, 0xd0, 0xca, 0x2b, 0xcb,
	0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3, 0x80, 0x30, 0xf2, 0x0c, 0x6a, 0x42, 0xb7, 0x3b, 0xbe, 0xac, 0x01, 0xfa,
}

func cardState(queues, entries int) rss.State {
	s := rss.State{HashFunc: rss.HashToeplitz, Key: testKey, TCP4: rss.FourTuple, UDP4: rss.FourTuple}
	for i := range entries {
		s.Table = append(s.Table, uint32(i%queues))
	}
	return s
}

// queueOf is where a card would put the answer from a remote endpoint to an alias one, by the definition of the hash.
func queueOf(s *rss.State, r nat.Remote, a nat.Alias) int {
	b := []byte{byte(r.Addr >> 24), byte(r.Addr >> 16), byte(r.Addr >> 8), byte(r.Addr), byte(a.Addr >> 24), byte(a.Addr >> 16), byte(a.Addr >> 8), byte(a.Addr),
		byte(r.Port >> 8), byte(r.Port), byte(a.Port >> 8), byte(a.Port)}
	return s.Queue(rss.Toeplitz(s.Key, b))
}

// The ports that Toward gives after a card was read lead the answers to the worker's queue: key, order of fields and bytes,
// direction and table are those that the hash is defined by.
func TestAnswersComeToTheOwnersQueue(t *testing.T) {
	for _, c := range []struct{ queues, entries int }{{4, 128}, {3, 128}, {6, 512}, {8, 2048}} {
		s := cardState(c.queues, c.entries)
		for queue := range c.queues {
			tcp, udp, why := affinities(&s, queue)
			if tcp == nil || udp == nil || strings.Count(why, "ports are chosen by its hash of sdfn") != 2 {
				t.Fatalf("%+v: %v %v %q", c, tcp == nil, udp == nil, why)
			}
			owners := lport.NewOwners(nil)
			const alias = packet.Addr(0xcb007101)
			if err := owners.Add(alias); err != nil {
				t.Fatal(err)
			}
			space, err := lport.New(lport.Options{Workers: 1, Owners: owners, Low: 1024, High: 65535})
			if err != nil {
				t.Fatal(err)
			}
			if err := space.SetAffinity(lport.RowUDP, udp); err != nil {
				t.Fatal(err)
			}
			for i := range packet.Addr(500) {
				r := nat.Remote{Addr: 0xc6336401 + i*7919, Port: uint16(1 + i*131)}
				port, err := space.Toward(&lport.Request{Alias: alias, Row: lport.RowUDP, Host: 0x0a000001}, lport.Peer(r))
				if err != nil {
					t.Fatal(err)
				}
				if got := queueOf(&s, r, nat.Alias{Addr: alias, Port: port}); got != queue {
					t.Fatalf("%+v: the answer of %v to port %d comes in by queue %d, wanted %d", c, r, port, got, queue)
				}
			}
			space.Close()
			owners.Close()
		}
	}
}

// What can't be predicted is no reason for a preference, and is said.
func TestNoAffinityWithoutPrediction(t *testing.T) {
	for words, change := range map[string]func(*rss.State){
		"tcp: the hash function is not Toeplitz but xor":                    func(s *rss.State) { s.HashFunc = rss.HashXOR },
		"udp: no port is better than another, it hashes sd":                 func(s *rss.State) { s.UDP4, s.TCP4 = rss.TwoTuple, rss.TwoTuple },
		"its driver does not tell which fields it hashes":                   func(s *rss.State) { s.FieldsErr = errors.ErrUnsupported },
		"tcp: the driver does not tell its hash key":                        func(s *rss.State) { s.Key = nil },
		"tcp: the fields are combined by OR before they are hashed":         func(s *rss.State) { s.Transform = rss.SymmetricORXOR },
		"udp: the indirection table has no size that is a power of two":     func(s *rss.State) { s.Table = s.Table[:96] },
		"udp: no port is better than another, it hashes sdfn":               func(s *rss.State) { s.Table = make([]uint32, 128) }, // one queue has all
		"udp: the hashed fields are neither addresses (sd) nor addresses a": func(s *rss.State) { s.UDP4, s.TCP4 = rss.SrcAddr, 0 },
	} {
		s := cardState(4, 128)
		change(&s)
		if tcp, udp, why := affinities(&s, 0); tcp != nil || udp != nil || !strings.Contains(why, words) {
			t.Errorf("%q: %v %v %q", words, tcp != nil, udp != nil, why)
		}
	}
	s := cardState(4, 128)
	s.UDP4 = rss.TwoTuple
	if tcp, udp, _ := affinities(&s, 0); tcp == nil || udp != nil {
		t.Error("with UDP hashed by addresses alone: TCP must have a preference and UDP none")
	}
}

// card is what a test lets the kernel tell of the outside port.
type card struct {
	mu      sync.Mutex
	state   rss.State
	err     error
	asked   map[string]int // by device
	watched chan func()    // who wants to know of changes
}

// connection is one that the gateway dialled.
type connection struct {
	*card
	closed chan struct{}
}

func (c *connection) Get(_ int, name string) (rss.State, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.asked[name]++
	return c.state, c.err
}

func (c *connection) Watch(changed func()) error {
	c.watched <- changed
	<-c.closed
	return nil
}

func (c *connection) Close() error {
	close(c.closed)
	return nil
}

// insert puts a card into the outside port for the time of the test.
func insert(t *testing.T, state rss.State, err error) *card {
	c := &card{state: state, err: err, asked: map[string]int{}, watched: make(chan func(), 1)}
	was := dialRSS
	t.Cleanup(func() { dialRSS = was })
	dialRSS = func() (rssSource, error) { return &connection{c, make(chan struct{})}, nil }
	return c
}

// set changes what the card tells.
func (c *card) set(state rss.State, err error) {
	c.mu.Lock()
	c.state, c.err = state, err
	c.mu.Unlock()
}

func (g *Gateway) outsideRSS() string {
	for _, p := range g.Ports() {
		if p.Role == nat.Outside.String() {
			return p.RSS
		}
	}
	return ""
}

// A card that does not tell, and a veth is one, changes nothing: packets are handed over, and nobody asks it again.
func TestGatewayWithoutATellingCard(t *testing.T) {
	l := newLab(t, lab.Options{Queues: 2})
	o := labOptions()
	o.Cores, o.Oversubscribe = rangeOf(2), true
	g, err := startIn(t, l, o)
	if err != nil {
		t.Fatal(err)
	}
	if text := g.outsideRSS(); text != rss.ErrNotTold.Error() || g.spread.told {
		t.Errorf("a veth: %q, followed %v", text, g.spread.told)
	}
	for _, p := range g.Ports() {
		if p.Role == nat.Inside.String() && p.RSS != "" {
			t.Errorf("%s: %q", p.Name, p.RSS)
		}
	}
	ping, err := lab.Ping(t.Context(), l.Inside[0].Namespace, l.Inside[0].Addr, l.Outside[0].Addr, lab.PingOptions{Count: 3, Timeout: 10 * time.Second})
	if err != nil || len(ping.RTT) != 3 {
		t.Errorf("%+v %v", ping, err)
	}
}

// TestGatewayFollowsTheCard runs a gateway whose outside port has a card that tells: flows get ports whose answers come to the
// worker that owns them, after a change of the table those that the new table asks for, and without a table any.
func TestGatewayFollowsTheCard(t *testing.T) {
	const workers = 3
	l := newLab(t, lab.Options{Queues: workers})
	c := insert(t, cardState(workers, 128), nil)
	o := labOptions()
	o.Cores, o.Oversubscribe = rangeOf(workers), true
	o.Rules.SamePorts = false
	o.Rules.Mapping.UDP = nat.AddressAndPortDependent
	g, err := startIn(t, l, o)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 90*time.Second)
	defer cancel()
	out := l.Outside[0]
	echo, err := lab.ServeUDPEcho(out.Namespace, ":9000")
	if err != nil {
		t.Fatal(err)
	}
	defer echo.Close()
	seen := map[nat.Alias]bool{}
	fresh := func(state rss.State) (near, far int) {
		t.Helper()
		for _, in := range l.Inside {
			flows, err := lab.UDPFlows(ctx, in.Namespace, netip.AddrPortFrom(out.Addr, 9000), lab.FlowOptions{Flows: 60, PerFlow: 2, Size: 64, Timeout: 10 * time.Second, At: 50})
			if err != nil || flows.Answered != flows.Sent || flows.Wrong != 0 {
				t.Errorf("%+v %v, drops %v", flows, err, dropsOf(g))
			}
		}
		if err := g.Links(func(l nat.LinkInfo) bool {
			if l.Proto == packet.ProtoUDP && !seen[l.Alias] {
				seen[l.Alias] = true
				if queueOf(&state, l.Remote, l.Alias) == l.Worker {
					near++
				} else {
					far++
				}
			}
			return true
		}); err != nil {
			t.Error(err)
		}
		return near, far
	}
	changed := <-c.watched
	becomes := func(words string, state rss.State, err error) {
		t.Helper()
		c.set(state, err)
		changed()
		for deadline := time.Now().Add(30 * time.Second); !strings.Contains(g.outsideRSS(), words); time.Sleep(10 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("the gateway says %q, not %q", g.outsideRSS(), words)
			}
		}
	}
	const chosen = "toeplitz, 128 entries; tcp: ports are chosen by its hash of sdfn; udp: ports are chosen by its hash of sdfn"
	if text := g.outsideRSS(); text != chosen {
		t.Errorf("the gateway says %q", text)
	}

	if near, far := fresh(c.state); near < 60 || far != 0 {
		t.Errorf("%d answers come to their owner, %d do not", near, far)
	}
	var given uint64
	for _, w := range g.Workers() {
		given += w.PortsNear
		if w.PortsFar != 0 {
			t.Errorf("worker %d: %d ports whose answers come in elsewhere", w.Worker, w.PortsFar)
		}
	}
	if given < 60 {
		t.Errorf("%d ports were chosen by the card", given)
	}
	if c.asked[lab.InsideDevice] != 0 {
		t.Error("the inside port's card was asked")
	}

	// The table is turned round: what was near is far now, but for new flows.
	turned := cardState(workers, 256)
	for i := range turned.Table {
		turned.Table[i] = uint32((i/7 + 1) % workers)
	}
	becomes("toeplitz, 256 entries; tcp: ports are chosen", turned, nil)
	if near, far := fresh(turned); near < 60 || far != 0 {
		t.Errorf("after the change %d answers come to their owner, %d do not", near, far)
	}

	// It does not tell any more: any port will do.
	becomes("does not tell", rss.State{}, rss.ErrNotTold)
	if near, far := fresh(turned); near == 0 || far == 0 {
		t.Errorf("without a preference %d are near, %d far", near, far)
	}
	if err := g.Stop(); err != nil {
		t.Error(err)
	}
}

// With steer: flow and an inside card that tells, the owner of a flow is the worker at whose queue the card puts its outbound
// packets, by the definition of the hash; answers to what is not translated, and quoted packets, go the same way.
func TestFlowsAreSteeredAsTheCardDoes(t *testing.T) {
	owners := lport.NewOwners(nil)
	defer owners.Close()
	rules := nat.DefaultRules()
	queues := []int{4, 1, 7, 2} // worker i's
	for _, c := range []struct {
		entries int
		fields  rss.Fields
		x       rss.Transform
	}{{128, rss.FourTuple, 0}, {512, rss.FourTuple, rss.SymmetricXOR}, {2048, rss.TwoTuple, 0}, {4096, rss.FourTuple, 0}} {
		state := cardState(1, c.entries)
		state.Transform = c.x
		for i := range state.Table {
			state.Table[i] = uint32(queues[(i*5+i/11)%len(queues)])
		}
		s := NewSteering(len(queues), owners, &rules, true, 99)
		card, err := newCardSteering(&state, c.fields, queues)
		if err != nil {
			t.Fatal(err)
		}
		s.cards[0] = card
		l, err := state.Linear(c.fields)
		if err != nil {
			t.Fatal(err)
		}
		r, moved := uint32(12345), 0
		next := func() uint32 { r = r*1664525 + 1013904223; return r ^ r>>15 }
		plain := NewSteering(len(queues), owners, &rules, true, 99)
		for range 20000 {
			src, dst, sport, dport := packet.Addr(next()), packet.Addr(next()), uint16(next()), uint16(next())
			want := slices.Index(queues, state.Queue(l.Hash(uint32(src), uint32(dst), sport, dport)))
			if got := s.Outbound(packet.ProtoTCP, src, sport, dst, dport); got != want {
				t.Fatalf("%+v: owner %d, the card puts it at worker %d", c, got, want)
			}
			if got := s.Inbound(packet.ProtoTCP, dst, dport, src, sport); got != want {
				t.Fatalf("%+v: owner %d of the answer, want %d", c, got, want)
			}
			if plain.Outbound(packet.ProtoTCP, src, sport, dst, dport) != want {
				moved++
			}
			// UDP is endpoint-independent by default: hosts have owners, whatever the card does.
			if s.Outbound(packet.ProtoUDP, src, sport, dst, dport) != plain.Outbound(packet.ProtoUDP, src, sport, dst, dport) {
				t.Fatal("UDP is steered by the card")
			}
		}
		if moved < 10000 {
			t.Errorf("%+v: the card changed %d owners of 20000: this proves nothing", c, moved)
		}
	}
	// Queues without a worker have some owner, always the same.
	state := cardState(8, 128)
	card, err := newCardSteering(&state, rss.FourTuple, []int{0, 1, 2})
	if err != nil {
		t.Fatal(err)
	}
	for _, w := range card.worker {
		if w > 2 {
			t.Fatalf("owner %d of 3 workers", w)
		}
	}
	state.HashFunc = rss.HashCRC32
	if _, err := newCardSteering(&state, rss.FourTuple, queues); !errors.Is(err, rss.ErrFunction) {
		t.Errorf("%v", err)
	}
}

// TestGatewaySteersByTheCard: a running gateway takes the inside card's way for its flows, and the outside card's for their
// ports, and a reload changes nothing of that.
func TestGatewaySteersByTheCard(t *testing.T) {
	const workers = 3
	l := newLab(t, lab.Options{Queues: workers})
	state := cardState(workers, 128)
	c := insert(t, state, nil)
	o := labOptions()
	o.Cores, o.Oversubscribe, o.SteerFlow = rangeOf(workers), true, true
	o.Rules.SamePorts = false
	o.Rules.Mapping.UDP = nat.AddressAndPortDependent
	g, err := startIn(t, l, o)
	if err != nil {
		t.Fatal(err)
	}
	if c.asked[lab.InsideDevice] != 1 {
		t.Errorf("cards asked: %v", c.asked)
	}
	for _, p := range g.Ports() {
		if p.Role == nat.Inside.String() && !strings.Contains(p.RSS, "udp: flows have the owners that its hash of sdfn picks") {
			t.Errorf("%s says %q", p.Name, p.RSS)
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), 90*time.Second)
	defer cancel()
	out, in := l.Outside[0], l.Inside[0]
	echo, err := lab.ServeUDPEcho(out.Namespace, ":9000")
	if err != nil {
		t.Fatal(err)
	}
	defer echo.Close()
	for round := range 2 {
		flows, err := lab.UDPFlows(ctx, in.Namespace, netip.AddrPortFrom(out.Addr, 9000), lab.FlowOptions{Flows: 60, PerFlow: 2, Size: 64, Timeout: 10 * time.Second, At: 50})
		if err != nil || flows.Answered != flows.Sent || flows.Wrong != 0 {
			t.Errorf("%+v %v, drops %v", flows, err, dropsOf(g))
		}
		links, at := 0, map[int]bool{}
		if err := g.Links(func(l nat.LinkInfo) bool {
			if l.Proto != packet.ProtoUDP {
				return true
			}
			links++
			at[l.Worker] = true
			comes := queueOf(&state, nat.Remote(l.Local), nat.Alias(l.Remote)) // local to remote
			if back := queueOf(&state, l.Remote, l.Alias); comes != l.Worker || back != l.Worker {
				t.Errorf("link of worker %d: its packets come in at %d, answers at %d", l.Worker, comes, back)
			}
			return true
		}); err != nil || links < 60*(round+1)-round*6 || len(at) < 2 { // the second round's ports, drawn by the kernel, may be some of the first's
			t.Errorf("%d links at %v, %v", links, at, err)
		}
		live := Live{Rules: g.o.Rules}
		live.Rules.RedirectPort = []nat.RedirectPort{{Proto: packet.ProtoTCP, Public: nat.Alias{Addr: o.Rules.Alias[0], Port: 8080}, Local: []nat.Local{{Addr: packet.AddrFrom(in.Addr), Port: 80}}}}
		if round == 0 {
			if _, err := g.Reload(live); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := g.Stop(); err != nil {
		t.Error(err)
	}
}
