// Package replay plays captures through the dataplane: the very same worker, shard and next hops as `pollux run`, over
// in-memory ports and a virtual clock, without NIC, kernel or privileges (SPEC part C).
package replay

import (
	"encoding/binary"
	"errors"
	"io"
	"net/netip"
	"time"

	"pollux/internal/clock"
	"pollux/internal/packet"
	"pollux/internal/reason"
	"pollux/nat"
	"pollux/pmd"
)

// World is what stands around the gateway: there is no kernel and no netdev to ask.
type World struct {
	InsideMAC, OutsideMAC [6]byte // the gateway's own
	NextHopMAC            [6]byte // of every neighbour on both sides
	InsideAddress         packet.Addr
	OutsideAddress        packet.Addr // the gateway's own on the outside; 0: it has none but the alias addresses
	InsideNetworks        []netip.Prefix
	InsideMTU, OutsideMTU int
	AnyMAC                bool // frames to any unicast MAC are taken
}

// Options of one replay. File names that are empty are left out.
type Options struct {
	Gateway pmd.Options // as for run; ports, cores, queues and rings are not looked at
	World   World

	Inside, Outside           string // captures that come in
	WriteInside, WriteOutside string // captures that are written
	Drops                     string // JSON list of what was not sent on

	Links io.Writer    // where the links at the end are printed as JSON; nil: not asked for
	Seed  uint64       // of every random choice
	Warn  func(string) // is told one line per warning; nil: nobody
}

// Run plays the captures. The error is one line for people.
func Run(o Options) error {
	if o.Gateway.IPv6Forward {
		return errors.New("routing.ipv6: forward: a replayed world is IPv4 alone (replay.inside_networks, replay.next_hop_mac): use kernel, which lists IPv6 as to-host")
	}
	if o.Warn == nil {
		o.Warn = func(string) {}
	}
	warned := false
	warn := func(text string) { // one warning, whichever capture it is about
		if !warned {
			warned = true
			o.Warn(text)
		}
	}
	inside, err := openInput(nat.Inside, o.Inside, warn)
	if err != nil {
		return err
	}
	defer inside.close()
	outside, err := openInput(nat.Outside, o.Outside, warn)
	if err != nil {
		return err
	}
	defer outside.close()
	p, err := newPlayer(&o, inside.nano || outside.nano)
	if err != nil {
		return err
	}
	err = p.play(inside, outside)
	if err == nil {
		err = p.report()
	}
	return errors.Join(err, p.close())
}

// Ports of the replayed gateway.
const (
	insidePort = iota
	outsidePort
	portCount
)

// player is one replay under way.
type player struct {
	o       *Options
	gateway *gateway
	ledger  *ledger
	out     [portCount]*output

	began bool
	base  int64 // ns: when tick tickBase is
	ms    int64 // since then
	tick  clock.Tick
	at    time.Time // the timestamp that outputs carry now
}

// tickBase is the tick of the first packet.
const tickBase clock.Tick = 60 * clock.PerSecond

func newPlayer(o *Options, nano bool) (*player, error) {
	p := &player{o: o, ledger: newLedger(o.Gateway.Rules.Timeouts.Fragment.Nanoseconds()), tick: tickBase}
	var err error
	for i, name := range []string{o.WriteInside, o.WriteOutside} {
		if p.out[i], err = createOutput(name, nano); err != nil {
			return nil, errors.Join(err, p.close())
		}
	}
	if p.gateway, err = newGateway(o, tickBase, p.ledger.finished, p.sent); err != nil {
		return nil, errors.Join(err, p.close())
	}
	return p, nil
}

// sent is told every frame that leaves.
func (p *player) sent(port int, frame []byte) { p.out[port].write(p.at, frame) }

// play merges the captures by timestamp, inside first on a tie, and takes packet by packet through the worker.
func (p *player) play(inside, outside *input) error {
	for inside.more || outside.more {
		in := inside
		if !inside.more || outside.more && outside.at.Before(inside.at) {
			in = outside
		}
		p.packet(in)
		if err := in.next(); err != nil {
			return err
		}
	}
	return nil
}

// packet runs the clock up to a packet's timestamp and then the packet.
func (p *player) packet(in *input) {
	ns := in.at.UnixNano()
	if !p.began {
		p.began, p.base = true, ns
	}
	p.runTo((ns - p.base) / int64(time.Millisecond))
	p.at = in.at
	p.ledger.begin(in, ns)
	port := insidePort
	if in.side == nat.Outside {
		port = outsidePort
	}
	chunk, err := p.gateway.push(len(p.ledger.fates)-1, port, in.data)
	if err != reason.None {
		p.ledger.refused(err)
		return
	}
	p.ledger.pushed(chunk)
	p.gateway.settle(p.tick)
}

// strideMax is how far the clock jumps at once: well within what ticks can be compared over.
const strideMax = 24 * 3600 * clock.PerSecond

// runTo moves the clock to ms milliseconds after the first packet, stopping at every tick at which a timer is due, so that
// what it does carries that time.
func (p *player) runTo(ms int64) {
	for p.ms < ms {
		next := min(ms, p.ms+strideMax)
		if due, ok := p.gateway.due(p.tick); ok {
			next = min(next, p.ms+max(1, int64(int32(due-p.tick))))
		}
		p.tick += clock.Tick(next - p.ms)
		p.ms = next
		p.at = time.Unix(0, p.base+next*int64(time.Millisecond)).UTC()
		p.gateway.settle(p.tick)
	}
}

// report writes the list of drops and the links.
func (p *player) report() error {
	if p.o.Drops != "" {
		if err := writeDrops(p.o.Drops, p.ledger.drops()); err != nil {
			return err
		}
	}
	if p.o.Links != nil {
		return writeLinks(p.o.Links, p.gateway.shards)
	}
	return nil
}

func (p *player) close() error {
	var errs []error
	for _, o := range p.out {
		errs = append(errs, o.close())
	}
	if p.gateway != nil {
		errs = append(errs, p.gateway.close())
	}
	return errors.Join(errs...)
}

// seed spreads a number over the 32 bytes that the translator wants.
func seed(n uint64) (s [32]byte) {
	copy(s[:], "pollux replay: deterministic")
	binary.LittleEndian.PutUint64(s[:], n)
	return s
}
