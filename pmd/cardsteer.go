package pmd

import (
	"fmt"
	"slices"

	"pollux/internal/packet"
	"pollux/internal/rss"
	"pollux/nat"
)

// cardSteering picks the owner of a flow as a card picks the queue of its outbound packets, so that they come in at their owner.
// It is taken from the first inside port's card when the gateway starts and never changes: were the card's table to
// change, live flows would still have one owner each, and be handed over.
type cardSteering struct {
	mask   uint32
	part   [12][256]uint16     // what each byte of addresses and ports contributes to the class
	worker [rss.TableMax]uint8 // by class
}

// newCardSteering makes it for packets of which the card hashes some fields; queues[i] is worker i's.
func newCardSteering(s *rss.State, f rss.Fields, queues []int) (*cardSteering, error) {
	l, err := s.Linear(f)
	if err != nil {
		return nil, err
	}
	c := &cardSteering{mask: uint32(len(s.Table) - 1)}
	for b := range uint32(256) {
		for i := range 4 {
			c.part[i][b] = uint16(l.Hash(b<<(8*i), 0, 0, 0) & c.mask)
			c.part[4+i][b] = uint16(l.Hash(0, b<<(8*i), 0, 0) & c.mask)
		}
		for i := range 2 {
			c.part[8+i][b] = uint16(l.Hash(0, 0, uint16(b<<(8*i)), 0) & c.mask)
			c.part[10+i][b] = uint16(l.Hash(0, 0, 0, uint16(b<<(8*i))) & c.mask)
		}
	}
	for class, q := range s.Table {
		w := slices.Index(queues, int(q))
		if w < 0 { // what comes there is dropped; its owner only must be somebody
			w = class % len(queues)
		}
		c.worker[class] = uint8(w)
	}
	return c, nil
}

// owner is the worker of a flow, by its endpoints on the inside.
func (c *cardSteering) owner(local packet.Addr, lport uint16, remote packet.Addr, rport uint16) uint32 {
	t := &c.part
	class := t[0][uint8(local)] ^ t[1][uint8(local>>8)] ^ t[2][uint8(local>>16)] ^ t[3][uint8(local>>24)] ^
		t[4][uint8(remote)] ^ t[5][uint8(remote>>8)] ^ t[6][uint8(remote>>16)] ^ t[7][uint8(remote>>24)] ^
		t[8][uint8(lport)] ^ t[9][uint8(lport>>8)] ^ t[10][uint8(rport)] ^ t[11][uint8(rport>>8)]
	return uint32(c.worker[uint32(class)&c.mask&(rss.TableMax-1)])
}

// ofCard returns the card's owner of a flow; ok is false where none is known for its protocol.
func (s *Steering) ofCard(proto uint8, local packet.Addr, lport uint16, remote packet.Addr, rport uint16) (worker uint32, ok bool) {
	c := s.cards[0]
	if proto == packet.ProtoUDP {
		c = s.cards[1]
	}
	if c == nil {
		return 0, false
	}
	return c.owner(local, lport, remote, rport), true
}

// steerByCard lets flows be steered as the first inside port's card does, if it tells how.
func (g *Gateway) steerByCard() {
	if !g.o.SteerFlow {
		return
	}
	i := slices.IndexFunc(g.ports, func(p *gatewayPort) bool { return p.side == nat.Inside })
	source, err := dialRSS()
	if err != nil {
		g.spread.inside = err.Error()
		return
	}
	defer source.Close()
	g.spread.insidePort = i
	state, err := source.Get(g.ports[i].ifindex, g.ports[i].name)
	if err == nil {
		err = state.FieldsErr
	}
	if err != nil {
		g.spread.inside = err.Error()
		return
	}
	var queues []int
	for _, w := range g.workers {
		queues = append(queues, w.queue)
	}
	text := fmt.Sprintf("at the start: %s, %d entries", state.HashFunc, len(state.Table))
	for k, f := range []rss.Fields{state.TCP4, state.UDP4} {
		c, err := newCardSteering(&state, f, queues)
		if err != nil {
			text += fmt.Sprintf("; %s: %v", []string{"tcp", "udp"}[k], err)
			continue
		}
		g.steering.cards[k] = c
		text += fmt.Sprintf("; %s: flows have the owners that its hash of %s picks", []string{"tcp", "udp"}[k], f)
	}
	g.spread.inside = text
}
