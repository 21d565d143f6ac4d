package pmd

import (
	"errors"
	"fmt"
	"log/slog"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"pollux/internal/clock"
	"pollux/internal/offheap"
	"pollux/internal/packet"
	"pollux/lport"
	"pollux/nat"
	"pollux/rings"
)

// Inheritance is what a predecessor offers. Until Start has got its shards it changes nothing of the predecessor's.
type Inheritance struct {
	c     *Courier
	m     manifest
	fds   []int
	image *offheap.Region
	o     nat.Options // of its shards
	App   []byte      // what the predecessor's application sent
	Files []*os.File  // likewise
}

// Inherit receives a predecessor's offer.
func Inherit(c *Courier) (*Inheritance, error) {
	h := &Inheritance{c: c}
	if err := c.expect(&h.m, readyWithin); err != nil {
		return nil, fmt.Errorf("pmd: the predecessor's offer: %w", err)
	}
	m := &h.m
	if m.Descriptors < m.Files || m.Files < 0 || m.Descriptors > 1<<16 {
		return nil, errors.New("pmd: the predecessor's offer is none")
	}
	fds, err := c.receiveFDs(m.Descriptors)
	if err != nil {
		return nil, err
	}
	h.fds, h.App = fds[:len(fds)-m.Files], m.App
	for _, fd := range fds[len(fds)-m.Files:] {
		h.Files = append(h.Files, os.NewFile(uintptr(fd), "inherited"))
	}
	if m.Layout != layout() {
		return h, errors.New("this version lays out its tables in another way: stop the old one and start this one (links are lost, or come back from a snapshot)")
	}
	return h, nil
}

// Refuse tells the predecessor why not; it goes on.
func (h *Inheritance) Refuse(why error) { _ = h.c.send(answer{Error: why.Error()}) }

// Start takes the gateway over. o must be what the predecessor runs with. When it fails the predecessor goes on, and the process
// must end without touching anything more. It tells the predecessor, either way.
func (h *Inheritance) Start(o Options) (*Gateway, error) {
	g := &Gateway{o: o, quit: make(chan struct{}), done: make(chan struct{}), space: namespace{-1}}
	err := h.take(g)
	if err != nil {
		h.Refuse(err)
		return nil, err
	}
	g.startControl()
	return g, nil
}

// next takes the next n descriptors.
func (h *Inheritance) next(n int) ([]int, error) {
	if n < 0 || n > len(h.fds) {
		return nil, errors.New("pmd: the predecessor's offer lacks descriptors")
	}
	list := h.fds[:n]
	h.fds = h.fds[n:]
	return list, nil
}

func (h *Inheritance) take(g *Gateway) error {
	var regions [][]*offheap.Region
	for _, step := range []func() error{
		g.resolve, g.probe,
		func() error { return h.fits(g) },
		g.keepAway,
		func() error { return h.memory(g) },
		func() error { return h.tables(g) },
		g.openRoutes,
		func() error { return h.published(g) },
		func() error { return h.programs(g) },
		func() (err error) { regions, err = h.regions(g); return err },
		func() error { return h.heirs(g) },
		func() error { return h.c.send(answer{}) },
	} {
		if err := step(); err != nil {
			return err
		}
	}
	n := 0
	if err := h.c.receive(&n); err != nil {
		return fmt.Errorf("pmd: the predecessor's state: %w", err)
	}
	if n < 0 || n > len(h.image.Bytes()) {
		return errors.New("pmd: the predecessor's state is larger than its room")
	}
	stopped, err := h.thaw(g, h.image.Bytes()[:n], regions)
	if err != nil {
		return err
	}
	defer h.image.Free()
	begin := make(chan struct{})
	for _, w := range g.workers {
		w.inherit()
	}
	if err := g.runWorkers(begin); err != nil {
		return err
	}
	if err := h.c.send(answer{}); err != nil { // committed: from here on this is the gateway
		return err
	}
	close(begin)
	for _, w := range g.workers {
		if err := w.loop.Do(func(clock.Tick) bool { return true }); err != nil {
			return err
		}
	}
	gap := time.Duration(monotonicNanos() - stopped)
	_ = h.c.send(answer{Gap: gap})
	for i, p := range g.ports {
		if err := p.program.TakePlace(); err != nil {
			slog.Warn("the old version's XDP program stays", "port", g.ports[i].name, "error", err)
		}
	}
	g.draining.Store(h.m.Draining)
	g.world.poke() // the world may have changed while the gateway changed hands
	slog.Info("took over from another process", "gap", gap)
	return nil
}

// fits compares what the predecessor runs with to what this process would.
func (h *Inheritance) fits(g *Gateway) error {
	m := &h.m
	if len(m.Shards) != len(g.workers) || len(m.Sockets) != len(g.workers) || len(m.Cores) != len(g.workers) || len(m.Queues) != len(g.workers) || len(m.IfIndex) != len(g.ports) {
		return errors.New("pmd: the predecessor has other workers or ports")
	}
	for i, w := range g.workers {
		w.core = m.Cores[i] // it may have been the last allowed one there
		if w.queue != m.Queues[i] || len(m.Sockets[i]) != len(g.ports) {
			return errors.New("pmd: the predecessor polls other queues")
		}
	}
	for i, p := range g.ports {
		if p.ifindex != m.IfIndex[i] {
			return fmt.Errorf("%s: it is another device than the predecessor's", p.name)
		}
	}
	return nil
}

func (h *Inheritance) memory(g *Gateway) error {
	fds, err := h.next(1)
	if err != nil {
		return err
	}
	g.mode, g.frames = h.m.Mode, h.m.Each*len(g.workers)
	if g.umem, err = rings.AdoptUMEM(fds[0], h.m.UMEM); err != nil {
		return err
	}
	var pools []*rings.Pool
	for _, w := range g.workers {
		if w.pool, err = g.umem.NewPool(h.m.Each); err != nil {
			return err
		}
		pools = append(pools, w.pool)
	}
	if len(pools) > 1 {
		g.mesh = NewMesh(pools)
	}
	return nil
}

func (h *Inheritance) tables(g *Gateway) error {
	fds, err := h.next(len(h.m.Tables.Maps) + len(h.m.Tables.Aliases))
	if err != nil {
		return err
	}
	if g.tables, err = rings.AdoptTables(h.m.Tables, fds); err != nil {
		return err
	}
	g.owners = lport.NewOwners(func(alias packet.Addr) ([]byte, error) { return g.tables.SetAlias(alias, rings.AliasOptions{}) })
	g.generation = h.m.Routes + 1
	return nil
}

// published makes the owner table know what its bytes, the predecessor's, stand for.
func (h *Inheritance) published(g *Gateway) error {
	_, addresses := g.world.rules(&g.o)
	rules := &h.m.Rules
	aliases, want := Aliases(rules), wanted(rules)
	for _, a := range g.tables.Aliases() {
		if err := g.owners.Add(a); err != nil {
			return err
		}
	}
	if err := g.publishNew(rules, aliases, want, addresses); err != nil {
		return err
	}
	if err := g.dropOld(rules, aliases, want); err != nil {
		return err
	}
	g.kernelMarks = map[mark]bool{}
	for _, a := range g.owners.Aliases() {
		g.owners.AdoptKernelPorts(a, func(row lport.Row, port uint16) { g.kernelMarks[mark{a, row, port}] = true })
	}
	return nil
}

func (h *Inheritance) programs(g *Gateway) error {
	ports := g.table.Ports()
	for i, p := range g.ports {
		fds, err := h.next(3)
		if err != nil {
			return err
		}
		p.program, err = rings.AdoptProgram(rings.ProgramOptions{Tables: g.tables, Number: i, MAC: ports[i].MAC[:], ForwardIPv6: g.o.IPv6Forward, ARPByWorker: !rings.CanSendBack(p.name)}, fds)
		if err != nil {
			return fmt.Errorf("%s: %w", p.name, err)
		}
	}
	return nil
}

// regions maps tables and sockets.
func (h *Inheritance) regions(g *Gateway) (all [][]*offheap.Region, err error) {
	for k, w := range g.workers {
		fds, err := h.next(len(h.m.Shards[k].Tables))
		if err != nil {
			return nil, err
		}
		var list []*offheap.Region
		for i, info := range h.m.Shards[k].Tables {
			r, err := offheap.Adopt(fds[i], info)
			if err != nil {
				return nil, err
			}
			if g.o.Populate && i < len(fds)-h.m.Shards[k].Ports { // those of ports are used here and there
				if err := r.Populate(); err != nil { // page tables: the pages are there
					return nil, err
				}
			}
			list = append(list, r)
		}
		all = append(all, list)
		if fds, err = h.next(len(g.ports)); err != nil {
			return nil, err
		}
		for i := range g.ports {
			s, err := rings.AdoptSocket(g.umem, fds[i], h.m.Sockets[k][i])
			if err != nil {
				return nil, err
			}
			w.sockets = append(w.sockets, s)
		}
	}
	return all, nil
}

// heirs makes workers with shards that are nothing yet, and maps the room for the image.
func (h *Inheritance) heirs(g *Gateway) (err error) {
	fds, err := h.next(1)
	if err != nil {
		return err
	}
	if h.image, err = offheap.Adopt(fds[0], h.m.Image); err != nil {
		return err
	}
	if err := h.image.Populate(); err != nil {
		return err
	}
	h.o, err = g.shardOptions(&h.m.Rules)
	if err != nil {
		return err
	}
	if g.steering != nil {
		*g.steering = *NewSteering(len(g.workers), g.owners, &g.o.Rules, g.o.SteerFlow, h.m.Steering)
		g.spread.inside, g.spread.insidePort = h.m.Inside, h.m.InsidePort
		for k, b := range h.m.Cards {
			if len(b) == 0 {
				continue
			}
			c := new(cardSteering)
			if err := offheap.NewDecoder(b, nil).Read(c); err != nil {
				return err
			}
			g.steering.cards[k] = c
		}
	}
	for _, w := range g.workers {
		w.shard = nat.Heir()
	}
	return g.makeWorkers()
}

// thaw makes the shards, pools and sockets.
func (h *Inheritance) thaw(g *Gateway, image []byte, regions [][]*offheap.Region) (stopped int64, err error) {
	d := offheap.NewDecoder(image, nil)
	if err := d.Read(&stopped); err != nil {
		return 0, err
	}
	for k, w := range g.workers {
		d.Over(regions[k])
		h.o.Worker = k
		if len(g.o.Events) > 0 {
			h.o.Events = g.o.Events[k]
		}
		if err := w.shard.Thaw(h.o, regions[k], h.m.Shards[k].Ports, d); err != nil {
			return 0, err
		}
		if err := w.pool.Thaw(d); err != nil {
			return 0, err
		}
		for _, s := range w.sockets {
			if err := s.Thaw(d); err != nil {
				return 0, err
			}
		}
		if err := d.Read(&w.counted); err != nil {
			return 0, err
		}
	}
	if d.Rest() != 0 {
		return 0, fmt.Errorf("pmd: %d bytes of the predecessor's state are too many", d.Rest())
	}
	return stopped, nil
}

// inherit lets a worker count on, and look after what its shard may hold for it.
func (w *gatewayWorker) inherit() {
	w.worker.c = w.counted
	w.worker.c.dirty, w.worker.released = true, true
	w.worker.publishAll()
}

func monotonicNanos() int64 {
	var now unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &now) // can't fail: the clock exists
	return now.Nano()
}
