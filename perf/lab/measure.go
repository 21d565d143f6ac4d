package lab

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	netlab "pollux/internal/lab"
	"pollux/perf/pktgen"
)

const (
	sessionFill = 100_000               // flows that memory is measured with
	drain       = 30 * time.Millisecond // after the generator: what is queued in the gateway has arrived when nothing did for so long
	drainMax    = 3 * time.Second
	firstRate   = 20_000      // packets per second before the first round
	firstTime   = time.Second // of it
	idleRate    = 1000        // packets per second of "idle"
	probeRate   = 2000        // round trips per second under load
	ephemeral   = 64          // ports of a source address
	heldTurns   = 3           // of a slot of new flows go before those that are counted
	firstPort   = 10000
	tcpPort     = 5001
)

// pointF is a point of a latency CDF.
type pointF struct{ us, percent float64 }

// measure gives a peer its turn.
func (p *peer) measure(o *Options) (Cell, error) {
	c := Cell{Name: p.name, SessionBytes: p.sessionBytes(o)}
	var err error
	for _, column := range o.Columns {
		if err := p.alive(); err != nil {
			return c, err
		}
		switch column {
		case PPS:
			err = p.full(o, o.Flows, pktgen.Sizes{64}, func(m slot) { c.PPS, c.CPUFull, c.Offered, c.Busy = m.pps, m.cpu, m.offered, m.busy })
		case PPSMany:
			err = p.full(o, o.ManyFlows, pktgen.Sizes{64}, func(m slot) { c.PPSMany = m.pps })
		case IMIX:
			err = p.full(o, o.Flows, pktgen.IMIX, func(m slot) { c.IMIX = m.pps })
		case NewFlows:
			err = p.newFlows(o, &c)
		case NewFlowsHeld:
			err = p.newFlowsHeld(o, &c)
		case TCP1:
			c.TCP1, err = p.tcp(1, o.Slot)
		case TCP8:
			c.TCP8, err = p.tcp(8, o.Slot)
		case RTTIdle:
			c.Idle, _, err = p.roundTrips(o, idleRate, 1)
		case RTTHalf:
			err = p.half(o, &c)
		}
		if err != nil {
			return c, fmt.Errorf("%s: %w", column, err)
		}
	}
	return c, p.alive()
}

// slot is what came of one run of the generator.
type slot struct {
	pps     float64 // arrived
	offered float64
	busy    float64 // part of a core that the gateway's threads used
	cpu     float64 // seconds of the gateway's threads per million packets that arrived
	arrived uint64
	sent    uint64
	far     pktgen.Arrivals // at the outside host
	reply   pktgen.Arrivals // at the inside host
}

// run sends and counts. back > 0 has every so manyth packet sent back.
func (p *peer) run(f pktgen.Flows, sizes pktgen.Sizes, rate float64, d time.Duration, back int) (m slot, err error) {
	inside, outside := p.net.Inside[0], p.net.Outside[0]
	if f.Dst.Count == 0 {
		f.Dst = pktgen.Range{First: outside.Addr, Count: 1}
	}
	open := func(h *netlab.Host, back int) (s pktgen.Sink, err error) {
		err = h.Do(func() error {
			s, err = pktgen.OpenSink(pktgen.SinkOptions{Device: h.Device, Backend: pktgen.Kernel, BackEvery: back})
			return err
		})
		return s, err
	}
	far, err := open(outside, back)
	if err != nil {
		return m, err
	}
	defer far.Close()
	near, err := open(inside, 0)
	if err != nil {
		return m, err
	}
	defer near.Close()
	busy := p.busy()
	var r pktgen.Report
	err = inside.Do(func() error {
		g, err := pktgen.NewGenerator(pktgen.Options{
			Device: inside.Device, DstMAC: p.dst, Sizes: sizes, Flows: f, Rate: rate, Duration: d, Backend: pktgen.Kernel, RTPriority: p.priority,
		})
		if err != nil {
			return err
		}
		defer g.Close()
		r, err = g.Run()
		return err
	})
	if err != nil {
		return m, err
	}
	p.settle(far, near)
	busy = p.busy() - busy
	a, err := far.Arrivals()
	if err != nil {
		return m, err
	}
	if m.reply, err = near.Arrivals(); err != nil {
		return m, err
	}
	m.pps, m.offered, m.arrived, m.sent, m.far = float64(a.Packets)/r.Seconds, r.PPS, a.Packets, r.Sent, a
	m.busy = busy.Seconds() / r.Seconds
	if a.Packets > 0 {
		m.cpu = busy.Seconds() / (float64(a.Packets) / 1e6)
	}
	return m, nil
}

// settle waits until nothing arrives any more.
func (p *peer) settle(far, near pktgen.Sink) {
	quiet := max(p.quiet, drain)
	changed := time.Now()
	for last, end := uint64(0), changed.Add(drainMax); time.Since(changed) < quiet && time.Now().Before(end); {
		time.Sleep(drain / 3)
		a, b := far.Received(), near.Received()
		if a+b != last {
			last, changed = a+b, time.Now()
		}
	}
}

// flows are n flows from sources that no other column uses.
func flows(n int) pktgen.Flows {
	return pktgen.Flows{
		Src:      pktgen.Range{First: netip.MustParseAddr("10.64.0.0"), Count: uint32(n+ephemeral-1) / ephemeral},
		SrcPorts: pktgen.PortRange{First: firstPort, Count: ephemeral}, DstPorts: pktgen.PortRange{First: 9, Count: 1}, Count: uint64(n),
	}
}

// full is the most that a peer forwards. The warm-up opens the flows.
func (p *peer) full(o *Options, n int, sizes pktgen.Sizes, note func(slot)) error {
	if _, err := p.run(flows(n), sizes, 0, o.WarmUp, 0); err != nil {
		return err
	}
	m, err := p.run(flows(n), sizes, 0, o.Slot, 0)
	if err == nil && m.arrived == 0 {
		err = errors.New("nothing arrived at the outside host")
	}
	if err == nil {
		note(m)
	}
	return err
}

// firstWarmUp is what every peer gets before the first round: page faults, the runtime's first collections and whatever else
// happens once after a start is over then.
func (p *peer) firstWarmUp(o *Options) error {
	m, err := p.run(flows(o.Flows), pktgen.Sizes{64}, firstRate, firstTime, 0)
	if err != nil {
		return err
	}
	if m.arrived == 0 {
		return fmt.Errorf("nothing arrived at the outside host in %v at %d packets/s", firstTime, firstRate)
	}
	_, err = p.run(flows(o.Flows), pktgen.Sizes{64}, 0, o.WarmUp, 0)
	return err
}

// freshFlows is a space of flows that the peer has not seen: hosts that use one port after the other, as their kernels do, toward
// many services. (A few ports for all would put all flows behind a few ports of the alias address, which is another question:
// perf onegroup.)
func (p *peer) freshFlows() pktgen.Flows {
	f := pktgen.Flows{
		Src:      pktgen.Range{First: netip.AddrFrom4([4]byte{10, 128 + byte(p.offset>>8&127), byte(p.offset), 0}), Count: 64},
		SrcPorts: pktgen.PortRange{First: 28000, Count: 32768}, DstPorts: pktgen.PortRange{First: 1024, Count: 4096},
	}
	p.offset++
	return f
}

// newFlows is how many flows a second a peer opens when every packet begins one. What the generator sends beyond that is
// lost before the gateway looks at it. Memory of a session is measured beside.
func (p *peer) newFlows(o *Options, c *Cell) error {
	if err := p.forget(); err != nil {
		return err
	}
	before, err := p.slab()
	if err != nil {
		return err
	}
	m, err := p.run(p.freshFlows(), pktgen.Sizes{64}, 0, o.NewFlowsSlot, 0)
	if err != nil {
		return err
	}
	if m.arrived == 0 {
		return errors.New("nothing arrived at the outside host")
	}
	c.NewFlows = m.pps
	if !translates(p.name) || afxdp(p.name) {
		return nil
	}
	after, err := p.slab()
	if err == nil && after.entries > 1000 && after.bytes > before.bytes {
		c.SessionBytes = float64(after.bytes-before.bytes) / float64(after.entries)
	}
	return errors.Join(err, p.forget())
}

// newFlowsHeld is newFlows when the gateway has sessions already, as it has in service. Nothing is forgotten in between.
func (p *peer) newFlowsHeld(o *Options, c *Cell) error {
	if err := p.forget(); err != nil {
		return err
	}
	if _, err := p.run(p.freshFlows(), pktgen.Sizes{64}, 0, heldTurns*o.NewFlowsSlot, 0); err != nil {
		return err
	}
	m, err := p.run(p.freshFlows(), pktgen.Sizes{64}, 0, o.NewFlowsSlot, 0)
	if err == nil && m.arrived == 0 {
		err = errors.New("nothing arrived at the outside host")
	}
	if err != nil {
		return err
	}
	c.NewFlowsHeld = m.pps
	return p.forget()
}

// slab is the kernel's memory in small objects, and how many sessions the gateway's kernel tracks.
type slab struct{ bytes, entries uint64 }

func (p *peer) slab() (s slab, err error) {
	if !translates(p.name) || afxdp(p.name) {
		return s, nil
	}
	time.Sleep(100 * time.Millisecond) // forgotten sessions are freed after a grace period
	err = p.net.Gateway.Do(func() error {
		b, err := os.ReadFile("/proc/sys/net/netfilter/nf_conntrack_count")
		if err != nil {
			return err
		}
		s.entries, err = strconv.ParseUint(strings.TrimSpace(string(b)), 10, 64)
		return err
	})
	b, err2 := os.ReadFile("/proc/meminfo")
	for line := range strings.Lines(string(b)) {
		if rest, ok := strings.CutPrefix(line, "Slab:"); ok {
			kb, _ := strconv.ParseUint(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(rest), "kB")), 10, 64)
			s.bytes = kb << 10
		}
	}
	return s, errors.Join(err, err2)
}

// roundTrips sends at a rate, has some come back, and returns how long they took from the generator's stamp to the sink at
// the inside host, all in the kernel.
func (p *peer) roundTrips(o *Options, rate float64, back int) (*RTT, slot, error) {
	m, err := p.run(flows(ephemeral), pktgen.Sizes{64}, rate, o.Slot, back)
	if err != nil {
		return nil, m, err
	}
	l := m.reply.Latency
	if l.Count == 0 {
		return nil, m, errors.New("nothing came back to the inside host")
	}
	r := &RTT{P50: l.P50, P99: l.P99, Max: l.Max, N: l.Count}
	if want := m.sent / uint64(back); want > l.Count {
		r.Lost = want - l.Count
	}
	for _, q := range m.reply.CDF() {
		r.cdf = append(r.cdf, pointF{float64(q.NS) / 1e3, q.Percent})
	}
	return r, m, nil
}

// half measures at half of what the peer can forward.
func (p *peer) half(o *Options, c *Cell) error {
	top := c.PPS
	if top == 0 {
		m, err := p.run(flows(o.Flows), pktgen.Sizes{64}, 0, o.WarmUp, 0)
		if err != nil {
			return err
		}
		top = m.pps
	}
	rtt, m, err := p.roundTrips(o, top/2, max(int(top/2/probeRate), 1))
	if err == nil {
		c.Half, c.CPUHalf, c.HalfReached = rtt, m.cpu, m.offered/(top/2)
	}
	return err
}

// tcp returns the bit/s that a number of TCP connections carry from the inside host to the outside host.
func (p *peer) tcp(streams int, d time.Duration) (float64, error) {
	inside, outside := p.net.Inside[0], p.net.Outside[0]
	address := net.JoinHostPort(outside.Addr.String(), strconv.Itoa(tcpPort))
	listener, err := outside.Listen("tcp4", address)
	if err != nil {
		return 0, err
	}
	defer listener.Close()
	var received atomic.Uint64
	var readers, writers sync.WaitGroup
	go func() {
		for {
			c, err := listener.Accept()
			if err != nil {
				return
			}
			readers.Add(1)
			go func() {
				defer readers.Done()
				defer c.Close()
				b := make([]byte, 256<<10)
				for {
					n, err := c.Read(b)
					received.Add(uint64(n))
					if err != nil {
						return
					}
				}
			}()
		}
	}()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	var conns []net.Conn
	defer func() {
		for _, c := range conns {
			c.Close()
		}
	}()
	for range streams {
		c, err := inside.Dial(ctx, "tcp4", address)
		if err != nil {
			return 0, err
		}
		conns = append(conns, c)
	}
	runtime.GC() // not while it is timed
	end := time.Now().Add(d + 200*time.Millisecond)
	for _, c := range conns {
		_ = c.SetDeadline(end.Add(time.Second))
		writers.Add(1)
		go func() {
			defer writers.Done()
			b := make([]byte, 256<<10)
			for time.Now().Before(end) {
				if _, err := c.Write(b); err != nil {
					return
				}
			}
		}()
	}
	time.Sleep(200 * time.Millisecond) // slow start is over
	from, start := received.Load(), time.Now()
	time.Sleep(d)
	bits, took := float64(received.Load()-from)*8, time.Since(start)
	writers.Wait()
	for _, c := range conns {
		c.Close()
	}
	readers.Wait()
	if bits == 0 {
		return 0, errors.New("no TCP data arrived")
	}
	return bits / took.Seconds(), nil
}
