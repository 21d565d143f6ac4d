package pmd

import (
	"crypto/rand"
	"encoding/binary"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"runtime"
	"slices"
	"sync"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"pollux/internal/clock"
	"pollux/internal/cpu"
	"pollux/internal/offheap"
	"pollux/internal/packet"
	"pollux/lport"
	"pollux/nat"
	"pollux/rings"
	"pollux/rtcache"
)

// Sizes of packet memory.
const (
	chunkSmall   = 2048
	chunkLarge   = 4096
	mtuSmall     = chunkSmall - rings.RXHeadroomBytes - packet.EthernetLen
	mtuMax       = 3498              // of a 4 KiB page: Ethernet header, headroom and the kernel's own tail are taken off
	sparedFrames = HoldFrames + 1024 // beside those that sockets and fragments hold: bursts, SYNs, ICMP errors
)

// Start brings the dataplane up: it probes first and changes nothing when a check fails. The error is one line for people:
// what, where, what to do.
func Start(o Options) (*Gateway, error) {
	g := &Gateway{o: o, quit: make(chan struct{}), done: make(chan struct{}), space: namespace{-1}}
	for _, step := range []func() error{
		g.resolve, g.probe, g.keepAway, g.openTables, g.openRoutes, g.openShards, g.readSpread, g.openSockets, g.loadPrograms, g.startWorkers, g.restoreSnapshot, g.attach,
	} {
		if err := step(); err != nil {
			if undo := g.Stop(); undo != nil {
				slog.Warn("after the failed start something could not be undone", "error", undo)
			}
			return nil, err
		}
	}
	g.startControl()
	return g, nil
}

// resolve checks the options against each other and against the cores that there are.
func (g *Gateway) resolve() (err error) {
	o := &g.o
	switch {
	case len(o.Ports) > rings.PortsMax:
		return fmt.Errorf("ports: %d are named, at most %d are possible", len(o.Ports), rings.PortsMax)
	}
	allowed, err := cpu.Allowed()
	if err != nil {
		return err
	}
	cores, err := placeWorkers(o, allowed)
	if err != nil {
		return err
	}
	if n := len(o.Queues); n > 0 && n != len(cores) {
		return fmt.Errorf("workers: %d queues are named for %d workers: name as many cores", n, len(cores))
	}
	if n := len(o.Events); n > 0 && n != len(cores) {
		return fmt.Errorf("workers: there are %d event rings for %d workers", n, len(cores))
	}
	for i, core := range cores {
		w := &gatewayWorker{core: core, queue: i}
		if len(o.Queues) > 0 {
			w.queue = o.Queues[i]
		}
		g.workers = append(g.workers, w)
	}
	if len(allowed) < len(cores)+1 {
		slog.Warn("there are too few cores for the workers and everything else: idle: adaptive lets them share", "workers", len(cores), "cores", len(allowed))
	}
	if o.Idle == Spin && o.RTPriority > 0 && cpu.Throttled() {
		slog.Warn("a worker that spins with FIFO priority loses its core for part of each second: sysctl kernel.sched_rt_runtime_us=-1, or idle: adaptive")
	}
	if o.RingSize == 0 {
		o.RingSize = rings.RingSizeDefault
	}
	runtime.GOMAXPROCS(max(runtime.GOMAXPROCS(0), len(cores)+2)) // spinning workers must not hold all Ps, or nothing else runs
	return nil
}

// kernelRelease is the running kernel's; tests put another in its place.
var kernelRelease = func() string {
	var u unix.Utsname
	if unix.Uname(&u) != nil {
		return ""
	}
	return unix.ByteSliceToString(u.Release[:])
}

// checkKernel refuses kernels that lack what pollux needs. A release that can't be read passes: what is missing will show.
func checkKernel(release string) error {
	var major, minor int
	if n, _ := fmt.Sscanf(release, "%d.%d", &major, &minor); n == 2 && (major < 6 || major == 6 && minor < 1) {
		return fmt.Errorf("kernel %s is too old: 6.1 or later is needed", release)
	}
	return nil
}

// probe looks at the netdevs.
func (g *Gateway) probe() (err error) {
	if err := checkKernel(kernelRelease()); err != nil {
		return err
	}
	if g.space, err = thisNamespace(); err != nil {
		return err
	}
	roles := map[nat.Side]bool{}
	for _, p := range g.o.Ports {
		dev, err := netlink.LinkByName(p.Name)
		if err != nil {
			return fmt.Errorf("%s: there is no such interface in this network namespace: see: ip link", p.Name)
		}
		a := dev.Attrs()
		switch {
		case slices.ContainsFunc(g.ports, func(q *gatewayPort) bool { return q.ifindex == a.Index }):
			return fmt.Errorf("%s: named twice: a port has one role", p.Name)
		case a.EncapType != "ether" || a.Flags&net.FlagLoopback != 0:
			return fmt.Errorf("%s: the device has no Ethernet header (%s): name an Ethernet device", p.Name, a.EncapType)
		case a.Flags&net.FlagUp == 0:
			return fmt.Errorf("%s: the interface is down: ip link set %s up", p.Name, p.Name)
		case a.MTU > mtuMax:
			return fmt.Errorf("%s: an MTU of %d is too large, packets of up to %d fit a frame: ip link set %s mtu 1500", p.Name, a.MTU, mtuMax, p.Name)
		}
		if a.OperState == netlink.OperDown || a.OperState == netlink.OperLowerLayerDown {
			slog.Warn("the interface has no carrier: nothing comes in until it has", "port", p.Name)
		}
		node := cpu.Node(p.Name)
		for i, w := range g.workers {
			if node >= 0 && !slices.Contains(cpu.NodeCores(node), w.core) {
				slog.Warn("a worker's core is on another NUMA node than the device", "port", p.Name, "node", node, "worker", i, "core", w.core)
			}
		}
		roles[p.Side] = true
		g.ports = append(g.ports, &gatewayPort{name: p.Name, side: p.Side, ifindex: a.Index})
		g.world.ports = append(g.world.ports, rtcache.Port{Name: p.Name, IfIndex: a.Index, Inside: p.Side == nat.Inside, MTU: a.MTU, Up: true})
	}
	if !roles[nat.Inside] || !roles[nat.Outside] {
		return errors.New("ports: at least one inside and one outside port are needed")
	}
	return nil
}

// keepAway keeps the process's other threads off the workers' cores: collector, control goroutines, netlink.
func (g *Gateway) keepAway() error {
	allowed, err := cpu.Allowed()
	if err != nil {
		return err
	}
	others := slices.DeleteFunc(allowed, func(c int) bool {
		return slices.ContainsFunc(g.workers, func(w *gatewayWorker) bool { return w.core == c })
	})
	if len(others) == 0 {
		return nil
	}
	g.confined = true
	return cpu.ConfineProcess(others)
}

// openTables makes the owner table that workers and XDP programs share.
func (g *Gateway) openTables() (err error) {
	if g.tables, err = rings.NewTables(); err != nil {
		return err
	}
	g.owners = lport.NewOwners(func(alias packet.Addr) ([]byte, error) { return g.tables.SetAlias(alias, rings.AliasOptions{}) })
	return nil
}

// openRoutes starts the mirror of the kernel's routing; its callbacks fill the world before it returns.
func (g *Gateway) openRoutes() (err error) {
	w := &g.world
	w.changed = make(chan struct{}, 1)
	g.table, err = rtcache.New(rtcache.Options{
		Ports: slices.Clone(w.ports), ReversePath: g.o.ReversePath, CacheOff: !g.o.RTCache, ReceiveBuffer: g.o.RouteBuffer,
		OnPort: w.onPort, OnAddresses: w.onAddresses, OnWarning: tellWarning, Generation: g.generation,
	})
	if err != nil {
		return err
	}
	for _, w := range g.workers {
		w.view = g.table.View()
	}
	return nil
}

// openShards makes the NAT state: a shard for each worker.
func (g *Gateway) openShards() error {
	began := time.Now()
	rules, addresses := g.world.rules(&g.o)
	aliases, want := Aliases(rules), wanted(rules)
	if err := g.publishNew(rules, aliases, want, addresses); err != nil {
		return err
	}
	if err := g.dropOld(rules, aliases, want); err != nil {
		return err
	}
	o, err := g.shardOptions(rules)
	if err != nil {
		return err
	}
	if g.steering != nil {
		g.steerByCard()
	}
	mapped := uint64(0)
	for i, w := range g.workers {
		var err error
		o.Worker = i
		if len(g.o.Events) > 0 {
			o.Events = g.o.Events[i]
		}
		onCore(w.core, func() { w.shard, err = nat.New(o) })
		if errors.Is(err, unix.ENOMEM) {
			free, _ := offheap.Available()
			return fmt.Errorf("limits.links: tables for %d links do not fit, %d MiB are available: %w", g.o.Limits.Links, free>>20, err)
		}
		if err != nil {
			return err
		}
		mapped += w.shard.Counters().Memory - w.shard.Taken()
	}
	if err := checkMemory(g.o.Limits.Links, mapped); err != nil {
		return err
	}
	return g.populate(began)
}

// onCore runs f on a thread of the core, so that the memory that it takes is of the core's NUMA node.
func onCore(core int, f func()) {
	var done sync.WaitGroup
	done.Go(func() {
		runtime.LockOSThread() // never unlocked: the thread ends with its affinity
		_ = cpu.Pin(core)      // or wherever it is: the worker's own start tells what is wrong with its core
		f()
	})
	done.Wait()
}

// shardOptions says what shards are made of, but for each one's number. It makes the steering.
func (g *Gateway) shardOptions(rules *nat.Rules) (nat.Options, error) {
	n := len(g.workers)
	o := nat.Options{
		Shared: true, ByUse: !g.o.Populate, Rules: *rules, Limits: nat.WorkerLimits(g.o.Limits, n), Workers: n, FlowSteered: g.o.SteerFlow, Owners: g.owners, SideOf: SideOf(g.table), Reverse: Reverse(g.table), Now: monotonicTick(),
	}
	if _, err := rand.Read(o.Seed[:]); err != nil {
		return o, fmt.Errorf("pmd: random seed: %w", err)
	}
	if n > 1 {
		var seed [8]byte
		if _, err := rand.Read(seed[:]); err != nil {
			return o, fmt.Errorf("pmd: random seed: %w", err)
		}
		// By the rules as configured: a redirect that follows a port's address steers also while there is none.
		g.steering = NewSteering(n, g.owners, &g.o.Rules, g.o.SteerFlow, binary.NativeEndian.Uint64(seed[:]))
		o.Steering, o.Share = g.steering, nat.NewLinkShare(g.o.Limits.Links, n)
	}
	return o, nil
}

// checkMemory refuses tables that would not fit, with the arithmetic shown. They are mapped already, but memory is only
// taken as they fill up: without this check the machine would run out of it some day under load.
func checkMemory(links int, mapped uint64) error {
	free, ok := offheap.Available()
	if ok && mapped > free {
		return fmt.Errorf("limits.links: %d links take %d MiB (%d bytes each), but %d MiB are available: at most %d links fit",
			links, mapped>>20, mapped/uint64(links), free>>20, free/(mapped/uint64(links)))
	}
	return nil
}

// openSockets maps packet memory and binds one socket for each port.
func (g *Gateway) openSockets() error {
	var queues []rings.PortQueue
	chunk := chunkSmall
	ports := g.table.Ports()
	for i, p := range g.ports {
		for _, w := range g.workers {
			queues = append(queues, rings.PortQueue{Name: p.name, Index: p.ifindex, Queue: w.queue})
		}
		if ports[i].MTU > mtuSmall {
			chunk = chunkLarge
		}
	}
	mode, notice, err := rings.ChooseMode(ringsMode(g.o.Mode), queues)
	if err != nil {
		return err
	}
	note(notice)
	g.mode = mode
	n := len(g.workers)
	need := len(g.ports)*rings.SocketFrames(g.o.RingSize, mode) + sparedFrames + g.o.Limits.Fragments
	each := g.o.Frames / n
	if g.o.Frames == 0 {
		each = need
	}
	if least := len(g.ports)*g.o.RingSize + sparedFrames; each < least {
		return fmt.Errorf("rings.frames: %d frames are too few for %d workers with %d ports and rings of %d: %d are needed, 0 computes them",
			g.o.Frames, n, len(g.ports), g.o.RingSize, n*least)
	}
	g.frames = n * each
	if g.umem, err = rings.NewUMEM(rings.UMEMOptions{Frames: g.frames, ChunkSize: chunk, HugePages: true}); err != nil {
		return err
	}
	if n := g.umem.Notice(); n != "" {
		slog.Info(n)
	}
	var pools []*rings.Pool
	for k, w := range g.workers {
		if w.pool, err = g.umem.NewPool(each); err != nil {
			return err
		}
		pools = append(pools, w.pool)
		for i := range g.ports {
			socket, err := rings.OpenSocket(g.umem, rings.SocketOptions{Port: queues[i*n+k], Mode: mode, RingSize: g.o.RingSize})
			if err != nil {
				return err
			}
			w.sockets = append(w.sockets, socket)
			note(socket.Notice())
		}
	}
	if n > 1 {
		g.mesh = NewMesh(pools)
	}
	return nil
}

func ringsMode(m Mode) rings.Mode {
	switch m {
	case ModeCopy:
		return rings.Copy
	case ModeZeroCopy:
		return rings.ZeroCopy
	}
	return rings.Auto
}

// loadPrograms loads one XDP program for each port; nothing is attached yet.
func (g *Gateway) loadPrograms() (err error) {
	ports := g.table.Ports()
	for i, p := range g.ports {
		p.program, err = rings.LoadProgram(rings.ProgramOptions{Tables: g.tables, Number: i, MAC: ports[i].MAC[:], ForwardIPv6: g.o.IPv6Forward, ARPByWorker: !rings.CanSendBack(p.name)})
		if err != nil {
			return fmt.Errorf("%s: %w", p.name, err)
		}
		for _, w := range g.workers {
			if err := p.program.SetSocket(w.queue, w.sockets[i].FD()); err != nil {
				return fmt.Errorf("%s: %w", p.name, err)
			}
		}
	}
	return nil
}

// startWorkers starts polling: the fill rings get their frames before the first packet can come.
func (g *Gateway) startWorkers() error {
	if err := g.makeWorkers(); err != nil {
		return err
	}
	if err := g.runWorkers(nil); err != nil {
		return err
	}
	for _, w := range g.workers {
		// One round has passed when this returns: every fill ring is full.
		if err := w.loop.Do(func(clock.Tick) bool { return true }); err != nil {
			return err
		}
	}
	return nil
}

// makeWorkers makes them; nothing runs yet.
func (g *Gateway) makeWorkers() error {
	ports := g.table.Ports()
	for k, w := range g.workers {
		o := WorkerOptions{
			Index: k, UMEM: g.umem, Pool: w.pool, NAT: w.shard, Routes: w.view, Table: g.table, Aliases: g.world.aliases,
			IPv6Forward: g.o.IPv6Forward, Mesh: g.mesh, Steering: g.steering,
		}
		for i, p := range g.ports {
			o.Ports = append(o.Ports, WorkerPort{Port: w.sockets[i], Side: p.side, MAC: ports[i].MAC, ARP: !rings.CanSendBack(p.name)})
		}
		var err error
		if w.punter, err = newPunter(g); err != nil {
			return err
		}
		o.Punt = w.punter
		if w.worker, err = NewWorker(o); err != nil {
			return err
		}
		w.punter.worker = w.worker
	}
	return nil
}

// runWorkers gives each a thread, which waits for begin to be closed before it polls; nil: it doesn't wait.
func (g *Gateway) runWorkers(begin <-chan struct{}) error {
	for k, w := range g.workers {
		var err error
		w.loop, err = StartLoop(w.worker, LoopOptions{Core: w.core, Idle: g.o.Idle, RTPriority: g.o.RTPriority, Begin: begin})
		if err != nil {
			return err
		}
		if g.mesh != nil {
			g.mesh.loops[k].Store(w.loop)
		}
	}
	return nil
}

// attach hangs the XDP programs on the netdevs. From here on packets come.
func (g *Gateway) attach() error {
	for _, p := range g.ports {
		notice, err := p.program.Attach(p.name, p.ifindex)
		if err != nil {
			return err
		}
		p.generic = notice != ""
		note(notice)
	}
	return nil
}

// startControl starts the goroutines that follow the kernel.
func (g *Gateway) startControl() {
	for _, w := range g.workers {
		g.goInSpace(func() { g.watch(w) })
		g.goInSpace(w.punter.run)
	}
	g.goInSpace(g.follow)
	g.goInSpace(g.watchListeners)
	g.goInSpace(g.followSpread)
	g.goInSpace(g.announcements)
	g.goInSpace(g.snapshots)
}

// goInSpace runs f on a goroutine whose thread is in the gateway's network namespace.
func (g *Gateway) goInSpace(f func()) {
	var started sync.WaitGroup
	started.Add(1)
	g.wait.Go(func() {
		err := g.space.enter()
		started.Done()
		if err != nil {
			slog.Error("a control goroutine can't run", "error", err)
			return
		}
		f()
	})
	started.Wait()
}

func note(notice string) {
	if notice != "" {
		slog.Warn(notice)
	}
}
