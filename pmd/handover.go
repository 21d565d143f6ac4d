package pmd

import (
	"errors"
	"fmt"
	"hash/fnv"
	"sync/atomic"
	"time"

	"pollux/internal/clock"
	"pollux/internal/offheap"
	"pollux/internal/reason"
	"pollux/nat"
	"pollux/rings"
)

// A graceful restart. The gateway hands links, ports, timers, sockets and packet memory to a successor process:
//
//	predecessor (HandOver)                          successor (Inherit, Inheritance.Start)
//	descriptors and what they are  ───────────────> maps everything, loads its XDP program, mirrors the routes
//	                               <─────────────── ready, or why not: then nothing has happened
//	workers stop between two bursts
//	image of what is on the heap   ───────────────> takes it up, starts its workers, which wait
//	                               <─────────────── committed, or why not: then the workers go on
//	never touches anything again                    workers poll, the XDP program takes its place
//	                               <─────────────── how long nobody polled
//
// Packets that come in meanwhile wait in the receive rings. Whatever fails before the commit leaves the predecessor as it was.

// handoverVersion moves when the conversation changes its meaning. Layouts have a fingerprint of their own.
const handoverVersion = 1

// How long each side waits for the other.
const (
	readyWithin  = time.Minute
	commitWithin = 2 * time.Second
	toldWithin   = 10 * time.Second
)

// manifest is what a successor gets first. Numbers of descriptors are places in the list that follows it.
type manifest struct {
	Layout      uint64
	Descriptors int
	Files       int // the last so many are the application's
	App         []byte

	Cores, Queues []int
	Mode          rings.Mode
	Each          int // frames of a worker
	UMEM          rings.UMEMInfo
	Image         offheap.RegionInfo // room for it
	Shards        []shardInfo
	Sockets       [][]rings.SocketInfo // by worker and port
	Tables        rings.TablesInfo
	IfIndex       []int     // by port
	Rules         nat.Rules // in force, as they are made of what is configured and of the world
	Steering      uint64
	Cards         [2][]byte // images of its cards
	Inside        string    // what is told of them, of port
	InsidePort    int
	Routes        uint32 // generation of what flows carry
	Draining      bool
}

type shardInfo struct {
	Tables []offheap.RegionInfo
	Ports  int // of them, the port space's
}

// answer is what a successor says.
type answer struct {
	Error string
	Gap   time.Duration
}

// layout is what must be equal in both processes.
func layout() uint64 {
	h := fnv.New64a()
	fmt.Fprint(h, handoverVersion, nat.Layout(), offheap.Fingerprint(counts{}, manifest{}, rings.Counters{}, cardSteering{}))
	return h.Sum64()
}

// HandOver hands the gateway to a successor at the other end of c, along with app and files, which are the application's. When
// it returns nil the gateway is the successor's: the process must end without Stop. Otherwise it runs on as before; abort is
// called before it does, and must return when the successor is dead. gap is how long no worker polled.
func (g *Gateway) HandOver(c *Courier, app []byte, files []int, abort func()) (gap time.Duration, err error) {
	g.changing.Lock() // rules and ports stay what they are
	defer g.changing.Unlock()
	if err := g.swept(); err != nil { // rules that the successor is told are in force
		return 0, err
	}
	room, err := g.imageRoom()
	if err != nil {
		abort()
		return 0, err
	}
	defer room.Free()
	m, fds, err := g.describe()
	if err != nil {
		abort()
		return 0, err
	}
	m.Image, fds = room.Info(), append(fds, room.FD())
	m.App, m.Files, m.Descriptors = app, len(files), len(fds)+len(files)
	var a answer
	for _, step := range []func() error{
		func() error { return c.send(m) },
		func() error { return c.sendFDs(append(fds, files...)) },
		func() error { return c.expect(&a, readyWithin) },
	} {
		if err := step(); err != nil {
			abort()
			return 0, fmt.Errorf("the new process did not get ready: %w", err)
		}
	}
	if a.Error != "" {
		abort()
		return 0, fmt.Errorf("the new process can't take over: %s", a.Error)
	}
	park, err := g.park()
	if err != nil {
		abort()
		return 0, err
	}
	stopped := time.Now()
	err = func() error {
		image, err := g.freeze(room.Bytes()[:0])
		if err != nil {
			return err
		}
		if len(image) > len(room.Bytes()) {
			return errors.New("the state outgrew its room meanwhile; try again")
		}
		if err := c.send(len(image)); err != nil {
			return err
		}
		if err := c.expect(&a, commitWithin); err != nil {
			return err
		}
		if a.Error != "" {
			return errors.New(a.Error)
		}
		return nil
	}()
	if err != nil {
		abort()
		park.release()
		return 0, fmt.Errorf("the new process failed, the old one goes on after %v: %w", time.Since(stopped).Round(time.Millisecond), err)
	}
	gap = time.Since(stopped)
	if err := c.expect(&a, toldWithin); err == nil && a.Error == "" {
		gap = a.Gap
	}
	return gap, nil
}

// imageRoom maps memory that the image will fit, with all its pages: taking some while nobody forwards would take time.
func (g *Gateway) imageRoom() (*offheap.Region, error) {
	n := 1 << 20
	for _, w := range g.workers {
		if err := w.loop.Do(func(clock.Tick) bool {
			n += w.shard.ImageBytes() + 8*g.frames + len(w.sockets)*(g.frames+1<<10)
			return true
		}); err != nil {
			return nil, err
		}
	}
	r, _, err := offheap.NewShared(n+n/4, false)
	if err != nil {
		return nil, err
	}
	return r, r.Populate()
}

// describe lists everything that a successor needs, and its descriptors.
func (g *Gateway) describe() (m *manifest, fds []int, err error) {
	m = &manifest{Layout: layout(), Mode: g.mode, Each: g.frames / len(g.workers), UMEM: g.umem.Info(), Rules: g.world.current, Routes: g.table.Generation(), Draining: g.Draining()}
	if g.steering != nil {
		m.Steering, m.Inside, m.InsidePort = g.steering.seed, g.spread.inside, g.spread.insidePort
		for k, c := range g.steering.cards { // never changed once they are there
			if c == nil {
				continue
			}
			e := offheap.NewEncoder(nil)
			if err := e.Write(c); err != nil {
				return nil, nil, err
			}
			m.Cards[k] = e.Bytes()
		}
	}
	fds = append(fds, g.umem.FD())
	tables, more := g.tables.Info()
	m.Tables, fds = tables, append(fds, more...)
	for i, p := range g.ports {
		ifindex, _ := g.bound(i)
		if ifindex == 0 {
			return nil, nil, fmt.Errorf("%s: the interface is gone; a restart waits until it is back", p.name)
		}
		m.IfIndex = append(m.IfIndex, ifindex)
		list, err := p.program.FDs()
		if err != nil {
			return nil, nil, fmt.Errorf("%s: %w", p.name, err)
		}
		fds = append(fds, list...)
	}
	for _, w := range g.workers {
		m.Cores, m.Queues = append(m.Cores, w.core), append(m.Queues, w.queue)
		regions, ports, err := w.shard.Regions()
		if err != nil {
			return nil, nil, err
		}
		s := shardInfo{Ports: ports}
		for _, r := range regions {
			s.Tables = append(s.Tables, r.Info())
			fds = append(fds, r.FD())
		}
		m.Shards = append(m.Shards, s)
		var sockets []rings.SocketInfo
		for _, socket := range w.sockets {
			sockets = append(sockets, socket.Info())
			fds = append(fds, socket.FD())
		}
		m.Sockets = append(m.Sockets, sockets)
	}
	return m, fds, nil
}

// parked is workers that stand between two bursts.
type parked struct {
	hold chan struct{}
	done []chan error
}

func (p *parked) release() {
	close(p.hold)
	for _, d := range p.done {
		<-d
	}
}

// park has every worker finish what it has taken in, let go of packets that wait for a neighbour, and stand still. Nothing is
// under way between workers then.
func (g *Gateway) park() (*parked, error) {
	p := &parked{hold: make(chan struct{})}
	var here atomic.Int32
	var give atomic.Bool
	arrived := make(chan struct{}, len(g.workers))
	for _, w := range g.workers {
		done := make(chan error, 1)
		p.done = append(p.done, done)
		go func() {
			done <- w.loop.Do(func(now clock.Tick) bool {
				w.worker.dropWaiting()
				here.Add(1)
				for g.mesh != nil && !give.Load() && (int(here.Load()) < len(g.workers) || g.mesh.underWay() > 0) {
					w.worker.takeHanded(now)
					w.worker.sendHome()
				}
				w.worker.publishAll()
				arrived <- struct{}{}
				<-p.hold
				return true
			})
		}()
	}
	late := time.After(commitWithin)
	for range g.workers {
		select {
		case <-arrived:
		case <-late:
			give.Store(true)
			p.release()
			return nil, errors.New("the workers do not come to a stop; they go on")
		}
	}
	if g.mesh != nil && g.mesh.underWay() > 0 {
		p.release()
		return nil, errors.New("packets are under way between workers; try again")
	}
	return p, nil
}

// dropWaiting gives up packets that wait for a neighbour: the next of their flow asks again.
func (w *Worker) dropWaiting() {
	h := &w.hold
	for i := range h.held[:h.n] {
		e := &h.held[i]
		w.c.held--
		w.drop(e.p.Frame, e.p.Data, reason.NoNeighbour, false)
	}
	h.n = 0
}

// freeze writes what only this process knows: time of the stop, and of each worker its shard, pool, sockets and counters.
func (g *Gateway) freeze(image []byte) ([]byte, error) {
	stop := monotonicNanos()
	for k, w := range g.workers {
		regions, _, err := w.shard.Regions()
		if err != nil {
			return nil, err
		}
		e := offheap.NewEncoder(regions)
		e.Into(image)
		if k == 0 {
			if err := e.Write(&stop); err != nil {
				return nil, err
			}
		}
		if err := w.shard.Freeze(e); err != nil {
			return nil, err
		}
		if err := w.pool.Freeze(e); err != nil {
			return nil, err
		}
		for _, s := range w.sockets {
			if err := s.Freeze(e); err != nil {
				return nil, err
			}
		}
		if err := e.Write(&w.worker.c); err != nil {
			return nil, err
		}
		image = e.Bytes()
	}
	return image, nil
}
