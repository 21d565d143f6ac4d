package pmd

import (
	"errors"
	"fmt"
	"net"
	"sync"

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
	o     Options
	space namespace
	ports []*gatewayPort
	core  int
	queue int

	confined bool // the process's other threads were moved off the core
	mode     rings.Mode

	frames int // of the UMEM
	umem   *rings.UMEM
	pool   *rings.Pool
	tables *rings.Tables
	owners *lport.Owners
	table  *rtcache.Table
	view   *rtcache.View
	shard  *nat.Shard
	worker *Worker
	loop   *Loop
	punter *punter

	world world // what the kernel tells, and what follows from it

	life sync.RWMutex // held while something looks inside; written when there is nothing left to look into
	gone bool
	last insideStats

	quit chan struct{} // closed by Stop: control goroutines end
	wait sync.WaitGroup
	stop sync.Once
	done chan struct{}
	err  error // why the worker ended; valid once done is closed
	end  error // what Stop returned
}

// gatewayPort is one netdev of the gateway.
type gatewayPort struct {
	name    string
	side    nat.Side
	ifindex int
	program *rings.Program
	socket  *rings.Socket
	generic bool
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

// WorkerStats is one worker's counters. Frame counts are by place; their sum is constant.
type WorkerStats struct {
	Worker     int               `json:"worker"`
	Core       int               `json:"core"`
	Queue      int               `json:"queue"`
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
	Frames     map[string]uint64 `json:"frames"`
	Leaked     int64             `json:"frames_leaked"`
	Routing    rtcache.Counters  `json:"rtcache"`          // attached next hops: hits, and misses by cause
	PollGapsUS []uint64          `json:"poll_gap_us_log2"` // [i]: gaps of 2^i..2^(i+1)-1 microseconds
}

// PortStats is one netdev's state and counters.
type PortStats struct {
	Name      string `json:"name"`
	Role      string `json:"role"`
	IfIndex   int    `json:"ifindex"`
	MAC       string `json:"mac"`
	MTU       int    `json:"mtu"`
	Address   string `json:"address"`
	Mode      string `json:"mode"` // zerocopy | copy
	XDP       string `json:"xdp"`  // native | generic
	Up        bool   `json:"up"`
	Queues    []int  `json:"queues"`
	RX        uint64 `json:"rx"`
	TX        uint64 `json:"tx"`
	RXDropped uint64 `json:"rx_dropped"`
	RXFull    uint64 `json:"rx_ring_full"`
	FillEmpty uint64 `json:"fill_ring_empty"`
	TXInvalid uint64 `json:"tx_invalid"`
	Passed    uint64 `json:"passed_to_kernel"`
}

// DropStats is one reason's count.
type DropStats struct {
	Reason reason.Reason `json:"-"`
	Name   string        `json:"reason"`
	Count  uint64        `json:"count"`
	Help   string        `json:"help"`
}

// insideStats is what only the worker may read, copied between two bursts.
type insideStats struct {
	links   uint64
	frames  map[string]uint64
	sockets []rings.Counters
	routing rtcache.Counters
}

// look asks the worker for a copy, by its mailbox. A worker that has ended gives the last state.
func (g *Gateway) look() insideStats {
	s := insideStats{frames: map[string]uint64{"free": 0, "fill": 0, "rx": 0, "tx": 0, "held": 0}}
	read := func(clock.Tick) bool {
		s.links = g.shard.Counters().Links
		s.frames["free"] = uint64(g.pool.Len())
		s.frames["held"] = g.worker.c.held
		s.routing = g.view.C
		for _, p := range g.ports {
			if p.socket == nil {
				s.sockets = append(s.sockets, rings.Counters{})
				continue
			}
			f := p.socket.Frames()
			s.frames["fill"] += f.Fill
			s.frames["rx"] += f.RX
			s.frames["tx"] += f.TX
			s.sockets = append(s.sockets, p.socket.Counters())
		}
		return true
	}
	g.life.RLock()
	defer g.life.RUnlock()
	if g.gone {
		return g.last
	}
	if err := g.loop.Do(read); err != nil {
		read(0) // it has ended: nobody else touches it any more
	}
	return s
}

// Workers returns the workers' counters.
func (g *Gateway) Workers() []WorkerStats {
	in, p := g.look(), &g.worker.pub
	w := WorkerStats{
		Worker: g.worker.o.Index, Core: g.core, Queue: g.queue,
		Received: p.received.Load(), Translated: p.translated.Load(), Forwarded: p.forwarded.Load(),
		Answered: p.answered.Load(), ARP: p.arps.Load(),
		Bursts: p.bursts.Load(), Polls: p.polls.Load(), Sleeps: g.loop.sleeps.Load(),
		Links: in.links, Frames: in.frames, Leaked: int64(g.frames), Routing: in.routing,
	}
	for i := range p.reasons {
		if r := reason.Reason(i); r != reason.Punted && r != reason.Held {
			w.Dropped += p.reasons[i].Load()
		}
	}
	for _, n := range in.frames {
		w.Leaked -= int64(n)
	}
	for _, s := range in.sockets {
		w.Sent += s.Completed
	}
	for i := range g.loop.gaps {
		w.PollGapsUS = append(w.PollGapsUS, g.loop.gaps[i].Load())
	}
	return []WorkerStats{w}
}

// Ports returns one entry per configured port, in config order.
func (g *Gateway) Ports() []PortStats {
	in := g.look()
	known := g.table.Ports()
	var list []PortStats
	for i, p := range g.ports {
		k := known[i]
		s := PortStats{
			Name: p.name, Role: p.side.String(), IfIndex: p.ifindex, MAC: net.HardwareAddr(k.MAC[:]).String(), MTU: k.MTU,
			Mode: g.mode.String(), XDP: "native", Up: k.Up, Queues: []int{g.queue},
			RX: in.sockets[i].Received, TX: in.sockets[i].Completed,
		}
		if k.Addr != 0 {
			s.Address = k.Addr.String()
		}
		if p.generic {
			s.XDP = "generic"
		}
		g.kernelCounts(p, &s)
		list = append(list, s)
	}
	return list
}

// kernelCounts adds what the kernel counts: on the socket, and in the XDP program.
func (g *Gateway) kernelCounts(p *gatewayPort, s *PortStats) {
	g.life.RLock()
	defer g.life.RUnlock()
	if g.gone {
		return
	}
	if k, err := p.socket.Statistics(); err == nil {
		s.RXDropped, s.RXFull, s.FillEmpty, s.TXInvalid = k.RXDropped, k.RXRingFull, k.FillRingEmpty, k.TXInvalid
	}
	if n, err := p.program.Counters(); err == nil {
		for c := rings.CausePassNotIP; c < rings.Causes; c++ {
			s.Passed += n[c]
		}
	}
}

// Drops returns every reason with its count, zero counts included, in the order of the list.
func (g *Gateway) Drops() []DropStats {
	var list []DropStats
	for r := reason.None + 1; r < reason.Count; r++ {
		list = append(list, DropStats{Reason: r, Name: r.String(), Count: g.worker.pub.reasons[r].Load(), Help: r.Help()})
	}
	at := func(r reason.Reason) *DropStats { return &list[r-reason.None-1] }
	at(reason.Held).Count = g.worker.pub.held.Load() // held now
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

// linkSlice is how many links a worker copies between two bursts.
const linkSlice = 128

// Links calls visit for links in bounded slices between bursts until it returns false or all were seen. visit runs on the
// caller's goroutine: it may take its time.
func (g *Gateway) Links(visit func(nat.LinkInfo) bool) error {
	buffer := make([]nat.LinkInfo, 0, linkSlice)
	for cursor := uint32(0); ; {
		buffer = buffer[:0]
		err := g.loop.Do(func(clock.Tick) bool {
			cursor = g.shard.Links(cursor, linkSlice, func(l nat.LinkInfo) bool {
				buffer = append(buffer, l)
				return len(buffer) < cap(buffer)
			})
			return true
		})
		if err != nil {
			return err
		}
		for i := range buffer {
			if !visit(buffer[i]) {
				return nil
			}
		}
		if cursor == 0 {
			return nil
		}
	}
}

// SetRTCache switches the attached next hops on or off at run time.
func (g *Gateway) SetRTCache(on bool) { g.table.SetCache(on) }

// RTCache reports whether attached next hops are in use.
func (g *Gateway) RTCache() bool { return g.table.Cache() }

// watch waits for the worker's end and tells why, unless it was Stop's doing.
func (g *Gateway) watch() {
	select {
	case <-g.loop.Ended():
		if g.loop.err != nil {
			g.err = g.loop.err
			close(g.done)
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
	if g.loop != nil {
		if err := g.loop.Stop(); err != nil && g.Err() == nil {
			errs = append(errs, err)
		}
		last := g.look()
		g.life.Lock()
		g.last, g.gone = last, true
		g.life.Unlock()
	}
	g.wait.Wait()
	for _, p := range g.ports {
		if p.socket != nil {
			errs = append(errs, p.socket.Close(g.pool))
		}
		if p.program != nil {
			errs = append(errs, p.program.Close())
		}
	}
	if g.worker != nil {
		if found := g.pool.Len() + int(g.worker.c.held); found != g.frames {
			errs = append(errs, fmt.Errorf("pmd: %d of %d frames are missing", g.frames-found, g.frames))
		}
	}
	if g.punter != nil {
		errs = append(errs, g.punter.close())
	}
	if g.table != nil {
		errs = append(errs, g.table.Close())
	}
	if g.shard != nil {
		errs = append(errs, g.shard.Close())
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
