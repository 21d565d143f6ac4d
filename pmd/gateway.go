package pmd

import (
	"errors"
	"fmt"
	"net"
	"sync"
	"sync/atomic"

	"pollux/internal/clock"
	"pollux/internal/cpu"
	"pollux/internal/reason"
	"pollux/lport"
	"pollux/nat"
	"pollux/rings"
	"pollux/rtcache"
)

// Gateway is a running dataplane: ports bound, XDP attached, workers polling. Its methods may be called from any goroutine.
type Gateway struct {
	o     Options // its Live part: guarded by changing once workers run
	space namespace
	ports []*gatewayPort

	confined bool // the process's other threads were moved off the workers' cores
	mode     rings.Mode

	frames   int // of the UMEM
	umem     *rings.UMEM
	tables   *rings.Tables
	owners   *lport.Owners
	table    *rtcache.Table
	mesh     *Mesh     // nil: one worker
	steering *Steering // likewise
	workers  []*gatewayWorker

	world  world  // what the kernel tells, and what follows from it
	spread spread // how the first outside port's card spreads packets over the workers

	generation  uint32        // of the next hops that flows carry; 0: nobody's before
	kernelMarks map[mark]bool // ports of the kernel's that a predecessor marked

	changing sync.Mutex // held while rules, or what follows from the world, are put in force
	draining atomic.Bool

	life sync.RWMutex // held while something looks inside; written when there is nothing left to look into
	gone bool

	capturing atomic.Bool

	quit chan struct{} // closed by Stop: control goroutines end
	wait sync.WaitGroup
	stop sync.Once
	died sync.Once
	done chan struct{}
	err  error // why the worker ended; valid once done is closed
	end  error // what Stop returned
}

// gatewayPort is one netdev of the gateway.
type gatewayPort struct {
	name    string
	side    nat.Side
	ifindex int // that its sockets are bound to, 0: none, it was deleted; guarded by life once workers run
	program *rings.Program
	generic bool   // likewise
	refused string // why the netdev that was made again can't be used yet; follow's alone
}

// gatewayWorker is one worker and all that is its alone.
type gatewayWorker struct {
	core    int
	queue   int
	pool    *rings.Pool
	sockets []*rings.Socket // by port
	view    *rtcache.View
	shard   *nat.Shard
	worker  *Worker
	loop    *Loop
	punter  *punter
	counted counts      // by a predecessor
	last    insideStats // valid once the gateway is gone
}

// Done is closed when a worker died by itself; Err then says why.
func (g *Gateway) Done() <-chan struct{} { return g.done }

// Err returns why Done was closed.
func (g *Gateway) Err() error {
	select {
	case <-g.done:
		return g.err
	default:
		return nil
	}
}

// Stop detaches everything and returns when the workers have ended. A second call waits for the first and returns the same.
func (g *Gateway) Stop() error {
	g.stop.Do(func() { g.end = g.tearDown() })
	return g.end
}

// WorkerStats is one worker's counters. Frame counts are by place. Frames move between workers, so that their sum is constant
// over all workers only; a worker keeps account of those that came and went, and Leaked is exact at any time.
type WorkerStats struct {
	Worker     int               `json:"worker"`
	Core       int               `json:"core"`
	Queue      int               `json:"queue"`
	RunNS      uint64            `json:"run_ns"`   // since it began
	BusyNS     uint64            `json:"busy_ns"`  // of that: in rounds that had work; its share is the occupancy
	SleptNS    uint64            `json:"slept_ns"` // and asleep; the rest was looking for work in vain
	Received   uint64            `json:"received"`
	Translated uint64            `json:"translated"`
	Forwarded  uint64            `json:"forwarded"` // sent on, translated or not
	Sent       uint64            `json:"transmitted"`
	Dropped    uint64            `json:"dropped"`
	Answered   uint64            `json:"answered"`     // of the dropped: an ICMP error went back
	ARP        uint64            `json:"arp_answered"` // requests for pool addresses
	Bursts     uint64            `json:"bursts"`
	Polls      uint64            `json:"polls"`
	Sleeps     uint64            `json:"sleeps"`
	Links      uint64            `json:"links"`
	Created    uint64            `json:"links_created"`
	Expired    uint64            `json:"links_expired"`
	Recycled   uint64            `json:"links_recycled"`  // closing ones that made room
	Hosts      uint64            `json:"hosts"`           // inside hosts that are kept account of
	HandedOut  uint64            `json:"handed_over"`     // packets of other workers that came in by this one's queues
	HandedIn   uint64            `json:"handed_in"`       // and those that others received for this one
	HandedWhy  map[string]uint64 `json:"handed_over_why"` // of HandedOut, by what decided
	PortsNear  uint64            `json:"ports_near"`      // ports given whose answers come in by this worker's own queue
	PortsFar   uint64            `json:"ports_far"`       // and not, although that was looked for
	Frames     map[string]uint64 `json:"frames"`
	Leaked     int64             `json:"frames_leaked"`
	Routing    rtcache.Counters  `json:"rtcache"`          // attached next hops: hits, and misses by cause
	PollGapsUS []uint64          `json:"poll_gap_us_log2"` // [i]: gaps of 2^i..2^(i+1)-1 microseconds
	Rings      []RingStats       `json:"rings"`            // by port
	Handoff    []RingLevel       `json:"handoff_rings"`    // to each other worker
}

// RingStats is how full the rings of one port are, in frames.
type RingStats struct {
	Port string `json:"port"`
	Size int    `json:"size"` // of each ring
	Fill uint64 `json:"fill"` // fill ring and the kernel's receive side
	RX   uint64 `json:"rx"`   // received, not taken yet
	TX   uint64 `json:"tx"`   // queued, not completed yet
}

// RingLevel is how full the ring of packets to another worker is.
type RingLevel struct {
	To   int `json:"to"`
	Size int `json:"size"`
	Used int `json:"used"`
}

// PortStats is one netdev's state and counters.
type PortStats struct {
	Name      string `json:"name"`
	Role      string `json:"role"`
	IfIndex   int    `json:"ifindex"` // 0: the netdev was deleted
	MAC       string `json:"mac"`
	MTU       int    `json:"mtu"`
	Address   string `json:"address"`
	Mode      string `json:"mode"` // zerocopy | copy
	XDP       string `json:"xdp"`  // native | generic
	Up        bool   `json:"up"`
	Queues    []int  `json:"queues"`
	RX        uint64 `json:"rx"`
	TX        uint64 `json:"tx"`
	RXBytes   uint64 `json:"rx_bytes"` // of RX: Ethernet headers included
	TXBytes   uint64 `json:"tx_bytes"` // of what was put on the transmit rings
	RXDropped uint64 `json:"rx_dropped"`
	RXFull    uint64 `json:"rx_ring_full"`
	FillEmpty uint64 `json:"fill_ring_empty"`
	TXInvalid uint64 `json:"tx_invalid"`
	Passed    uint64 `json:"passed_to_kernel"`
	RSS       string `json:"rss"` // with several workers, of the first outside port, and with steer: flow of the first inside port: how its card picks a queue, and what follows
}

// DropStats is one reason's count.
type DropStats struct {
	Reason reason.Reason `json:"-"`
	Name   string        `json:"reason"`
	Count  uint64        `json:"count"`
	Help   string        `json:"help"`
	Last   *Example      `json:"last"` // nil: a worker has ended no packet for it yet
}

// insideStats is what only the worker may read, copied between two bursts.
type insideStats struct {
	nat     nat.Counters
	ports   lport.Stats // without rows
	spent   spent
	polls   uint64
	owned   int64 // frames that are here
	frames  map[string]uint64
	sockets []rings.Counters
	rings   []rings.Frames // by port
	routing rtcache.Counters
}

// look asks a worker for a copy, by its mailbox. A worker that has ended gives the last state.
func (g *Gateway) look(w *gatewayWorker) insideStats {
	s := insideStats{frames: map[string]uint64{"free": 0, "fill": 0, "rx": 0, "tx": 0, "held": 0}}
	read := func(clock.Tick) bool {
		s.nat, s.ports = *w.shard.Counters(), w.shard.Ports().Totals()
		s.polls = w.worker.c.polls
		if w.loop != nil {
			s.spent = w.loop.spent
		}
		s.frames["free"] = uint64(w.pool.Len())
		s.frames["held"] = w.worker.c.held
		s.owned = int64(w.pool.Size()) + int64(w.worker.c.framesIn-w.worker.c.framesOut)
		if g.mesh != nil {
			s.frames["going-home"] = uint64(len(w.pool.Away()))
		}
		s.routing = w.view.C
		for _, socket := range w.sockets {
			f := socket.Frames()
			s.frames["fill"] += f.Fill
			s.frames["rx"] += f.RX
			s.frames["tx"] += f.TX
			s.sockets = append(s.sockets, socket.Counters())
			s.rings = append(s.rings, f)
		}
		return true
	}
	g.life.RLock()
	defer g.life.RUnlock()
	if g.gone {
		return w.last
	}
	if err := w.loop.Do(read); err != nil {
		read(0) // it has ended: nobody else touches it any more
	}
	return s
}

// Workers returns the workers' counters.
func (g *Gateway) Workers() []WorkerStats {
	var list []WorkerStats
	for _, w := range g.workers {
		list = append(list, g.stats(w, g.look(w)))
	}
	return list
}

func (g *Gateway) stats(w *gatewayWorker, in insideStats) WorkerStats {
	p := &w.worker.pub
	s := WorkerStats{
		Worker: w.worker.o.Index, Core: w.core, Queue: w.queue,
		Received: p.received.Load(), Translated: p.translated.Load(), Forwarded: p.forwarded.Load(),
		Answered: p.answered.Load(), ARP: p.arps.Load(),
		RunNS: uint64(in.spent.until - in.spent.since), BusyNS: uint64(in.spent.busy), SleptNS: uint64(in.spent.asleep),
		Bursts: p.bursts.Load(), Polls: in.polls, Sleeps: w.loop.sleeps.Load(),
		Links: in.nat.Links, Created: in.nat.Created, Expired: in.nat.Expired, Recycled: in.nat.Recycled, Hosts: in.nat.Hosts, Frames: in.frames, Leaked: in.owned, Routing: in.routing,
		HandedOut: p.handedOut.Load(), HandedIn: p.handedIn.Load(), HandedWhy: map[string]uint64{},
		PortsNear: in.ports.Near, PortsFar: in.ports.Far,
	}
	for i := range p.handedWhy {
		if n := p.handedWhy[i].Load(); n > 0 {
			s.HandedWhy[steerWhyNames[i]] = n
		}
	}
	for i := range p.reasons {
		if r := reason.Reason(i); r != reason.Punted && r != reason.Held {
			s.Dropped += p.reasons[i].Load()
		}
	}
	for _, n := range in.frames {
		s.Leaked -= int64(n)
	}
	if g.mesh != nil {
		s.Frames["handed-over"] = uint64(g.mesh.underWayFrom(s.Worker)) // in no worker's hands
		for to, ring := range g.mesh.packets[s.Worker] {
			if ring != nil {
				s.Handoff = append(s.Handoff, RingLevel{To: to, Size: ring.Cap(), Used: ring.Len()})
			}
		}
	}
	for _, c := range in.sockets {
		s.Sent += c.Completed
	}
	for i, f := range in.rings {
		s.Rings = append(s.Rings, RingStats{Port: g.ports[i].name, Size: g.o.RingSize, Fill: f.Fill, RX: f.RX, TX: f.TX})
	}
	for i := range w.loop.gaps {
		s.PollGapsUS = append(s.PollGapsUS, w.loop.gaps[i].Load())
	}
	return s
}

// Ports returns one entry per configured port, in config order.
func (g *Gateway) Ports() []PortStats {
	var in []insideStats
	for _, w := range g.workers {
		in = append(in, g.look(w))
	}
	return g.portStats(in)
}

func (g *Gateway) portStats(in []insideStats) []PortStats {
	var queues []int
	for _, w := range g.workers {
		queues = append(queues, w.queue)
	}
	known := g.table.Ports()
	var list []PortStats
	for i, p := range g.ports {
		k := known[i]
		s := PortStats{
			Name: p.name, Role: p.side.String(), MAC: net.HardwareAddr(k.MAC[:]).String(), MTU: k.MTU,
			Mode: g.mode.String(), XDP: "native", Up: k.Up, Queues: queues,
		}
		for _, w := range in {
			s.RX += w.sockets[i].Received
			s.TX += w.sockets[i].Completed
			s.RXBytes += w.sockets[i].RXBytes
			s.TXBytes += w.sockets[i].TXBytes
		}
		if k.Addr != 0 {
			s.Address = k.Addr.String()
		}
		var generic bool
		if s.IfIndex, generic = g.bound(i); generic {
			s.XDP = "generic"
		}
		s.RSS = g.rssText(i)
		g.kernelCounts(i, &s)
		list = append(list, s)
	}
	return list
}

// kernelCounts adds what the kernel counts: on the sockets, and in the XDP program.
func (g *Gateway) kernelCounts(port int, s *PortStats) {
	g.life.RLock()
	defer g.life.RUnlock()
	if g.gone {
		return
	}
	for _, w := range g.workers {
		if g.ports[port].ifindex == 0 {
			break
		}
		if k, err := w.sockets[port].Statistics(); err == nil {
			s.RXDropped += k.RXDropped
			s.RXFull += k.RXRingFull
			s.FillEmpty += k.FillRingEmpty
			s.TXInvalid += k.TXInvalid
		}
	}
	if n, err := g.ports[port].program.Counters(); err == nil {
		for c := rings.CausePassNotIP; c < rings.Causes; c++ {
			s.Passed += n[c]
		}
	}
}

// Drops returns every reason with its count, zero counts included, in the order of the list.
func (g *Gateway) Drops() []DropStats {
	list := g.dropCounts()
	if examples, err := g.Examples(); err == nil {
		for i := range list {
			list[i].Last = examples[list[i].Reason]
		}
	}
	return list
}

// dropCounts is Drops without asking the workers for examples.
func (g *Gateway) dropCounts() []DropStats {
	var list []DropStats
	for r := reason.None + 1; r < reason.Count; r++ {
		list = append(list, DropStats{Reason: r, Name: r.String(), Help: r.Help()})
	}
	at := func(r reason.Reason) *DropStats { return &list[r-reason.None-1] }
	for _, w := range g.workers {
		p := &w.worker.pub
		for r := reason.None + 1; r < reason.Count; r++ {
			at(r).Count += p.reasons[r].Load()
		}
		at(reason.Held).Count += p.held.Load() // held now
	}
	g.life.RLock()
	defer g.life.RUnlock()
	if g.gone {
		return list
	}
	for _, p := range g.ports {
		if n, err := p.program.Counters(); err == nil {
			at(reason.NoQueue).Count += n[rings.CauseNoQueue]
		}
	}
	return list
}

// SetRTCache switches the attached next hops on or off at run time.
func (g *Gateway) SetRTCache(on bool) { g.table.SetCache(on) }

// RTCache reports whether attached next hops are in use.
func (g *Gateway) RTCache() bool { return g.table.Cache() }

// Table is the mirror of the kernel's routing: Table.Routes, RouteTo, NextHops and Warnings list it, at any time, also after Stop.
func (g *Gateway) Table() *rtcache.Table { return g.table }

// watch waits for a worker's end and tells why, unless it was Stop's doing.
func (g *Gateway) watch(w *gatewayWorker) {
	select {
	case <-w.loop.Ended():
		if w.loop.err != nil {
			g.died.Do(func() {
				g.err = w.loop.err
				close(g.done)
			})
		}
	case <-g.quit:
	}
}

// tearDown undoes Start in the opposite order, whatever part of it was reached. The XDP programs go first: from then on the
// kernel has its packets, and nothing comes in any more.
func (g *Gateway) tearDown() error {
	var errs []error
	for _, p := range g.ports {
		if p.program != nil {
			errs = append(errs, p.program.Detach())
		}
	}
	close(g.quit)
	for _, w := range g.workers {
		if w.loop != nil {
			if err := w.loop.Stop(); err != nil && g.Err() == nil {
				errs = append(errs, err)
			}
		}
	}
	last := make([]insideStats, len(g.workers))
	for i, w := range g.workers {
		if w.loop != nil {
			last[i] = g.look(w)
		}
	}
	g.life.Lock()
	g.gone = true
	for i, w := range g.workers {
		w.last = last[i]
	}
	g.life.Unlock()
	g.wait.Wait()
	found, started := 0, len(g.workers) > 0
	for _, w := range g.workers {
		for _, socket := range w.sockets {
			errs = append(errs, socket.Close(w.pool))
		}
		if started = started && w.worker != nil; started {
			found += w.pool.Len() + len(w.pool.Away()) + int(w.worker.c.held)
		}
	}
	for _, p := range g.ports {
		if p.program != nil {
			errs = append(errs, p.program.Close())
		}
	}
	if g.mesh != nil {
		found += g.mesh.underWay()
	}
	if started && found != g.frames {
		errs = append(errs, fmt.Errorf("pmd: %d of %d frames are missing", g.frames-found, g.frames))
	}
	for _, w := range g.workers {
		if w.punter != nil {
			errs = append(errs, w.punter.close())
		}
	}
	if g.table != nil {
		errs = append(errs, g.table.Close())
	}
	for _, w := range g.workers {
		if w.shard != nil {
			errs = append(errs, w.shard.Close())
		}
	}
	if g.owners != nil {
		g.owners.Close()
	}
	if g.tables != nil {
		errs = append(errs, g.tables.Close())
	}
	if g.umem != nil {
		errs = append(errs, g.umem.Close())
	}
	if g.confined {
		if allowed, err := cpu.Allowed(); err == nil {
			errs = append(errs, cpu.ConfineProcess(allowed))
		}
	}
	g.space.close()
	return errors.Join(errs...)
}
