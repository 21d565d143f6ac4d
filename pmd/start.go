package pmd

import (
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"runtime"
	"slices"
	"strings"
	"sync"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"pollux/internal/clock"
	"pollux/internal/cpu"
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
		g.resolve, g.probe, g.keepAway, g.openTables, g.openRoutes, g.openShard, g.openSockets, g.loadPrograms, g.startWorker, g.attach,
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
	case o.SteerFlow:
		return errors.New("workers.steer: flow is not built yet: use host")
	case len(o.Queues) > 0 && len(o.Cores) > 0 && len(o.Queues) != len(o.Cores):
		return fmt.Errorf("workers: %d cores and %d queues are named: the i-th core polls the i-th queue, so name as many", len(o.Cores), len(o.Queues))
	case len(o.Ports) > rings.PortsMax:
		return fmt.Errorf("ports: %d are named, at most %d are possible", len(o.Ports), rings.PortsMax)
	}
	if err := CheckWorkers(max(len(o.Cores), len(o.Queues))); err != nil {
		return err
	}
	allowed, err := cpu.Allowed()
	if err != nil {
		return err
	}
	g.core = allowed[len(allowed)-1]
	if len(o.Cores) > 0 {
		g.core = o.Cores[0]
	}
	if !slices.Contains(allowed, g.core) {
		return fmt.Errorf("workers.cores: core %d is not among those that this process may use (%s)", g.core, strings.Trim(fmt.Sprint(allowed), "[]"))
	}
	if len(o.Queues) > 0 {
		g.queue = o.Queues[0]
	}
	if len(allowed) < 2 {
		slog.Warn("there is one core for the worker and everything else: idle: adaptive lets them share it", "core", g.core)
	}
	if o.Idle == Spin && o.RTPriority > 0 && cpu.Throttled() {
		slog.Warn("a worker that spins with FIFO priority loses its core for part of each second: sysctl kernel.sched_rt_runtime_us=-1, or idle: adaptive")
	}
	if o.RingSize == 0 {
		o.RingSize = rings.RingSizeDefault
	}
	runtime.GOMAXPROCS(max(runtime.GOMAXPROCS(0), 1+2)) // a spinning worker must not hold all Ps, or nothing else runs
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
		if node := cpu.Node(p.Name); node >= 0 && !slices.Contains(cpu.NodeCores(node), g.core) {
			slog.Warn("the worker's core is on another NUMA node than the device", "port", p.Name, "node", node, "core", g.core)
		}
		roles[p.Side] = true
		g.ports = append(g.ports, &gatewayPort{name: p.Name, side: p.Side, ifindex: a.Index})
		g.world.ports = append(g.world.ports, rtcache.Port{Name: p.Name, IfIndex: a.Index, Inside: p.Side == nat.Inside, MTU: a.MTU})
	}
	if !roles[nat.Inside] || !roles[nat.Outside] {
		return errors.New("ports: at least one inside and one outside port are needed")
	}
	return nil
}

// keepAway keeps the process's other threads off the worker's core: collector, control goroutines, netlink.
func (g *Gateway) keepAway() error {
	allowed, err := cpu.Allowed()
	if err != nil {
		return err
	}
	others := slices.DeleteFunc(allowed, func(c int) bool { return c == g.core })
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
		OnPort: w.onPort, OnAddresses: w.onAddresses,
	})
	if err != nil {
		return err
	}
	g.view = g.table.View()
	for _, warning := range g.table.Warnings() {
		slog.Warn("routing: " + warning)
	}
	return nil
}

// openShard makes the NAT state.
func (g *Gateway) openShard() (err error) {
	rules, addresses := g.world.rules(&g.o)
	if err := g.publish(rules, addresses); err != nil {
		return err
	}
	o := nat.Options{
		Rules: *rules, Limits: g.o.Limits, Workers: 1, Owners: g.owners, SideOf: SideOf(g.table), Now: monotonicTick(),
	}
	if _, err := rand.Read(o.Seed[:]); err != nil {
		return fmt.Errorf("pmd: random seed: %w", err)
	}
	g.shard, err = nat.New(o)
	if errors.Is(err, unix.ENOMEM) {
		free, _ := memAvailable()
		return fmt.Errorf("limits.links: tables for %d links do not fit, %d MiB are available: %w", o.Limits.Links, free>>20, err)
	}
	if err != nil {
		return err
	}
	return checkMemory(g.o.Limits.Links, g.shard.Counters().Memory)
}

// checkMemory refuses tables that would not fit, with the arithmetic shown. They are mapped already, but memory is only
// taken as they fill up: without this check the machine would run out of it some day under load.
func checkMemory(links int, mapped uint64) error {
	free, ok := memAvailable()
	if ok && mapped > free {
		return fmt.Errorf("limits.links: %d links take %d MiB (%d bytes each), but %d MiB are available: at most %d links fit",
			links, mapped>>20, mapped/uint64(links), free>>20, free/(mapped/uint64(links)))
	}
	return nil
}

// memAvailable reads MemAvailable in bytes.
func memAvailable() (n uint64, ok bool) {
	b, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0, false
	}
	for line := range strings.Lines(string(b)) {
		if _, err := fmt.Sscanf(line, "MemAvailable: %d kB", &n); err == nil {
			return n << 10, true
		}
	}
	return 0, false
}

// openSockets maps packet memory and binds one socket for each port.
func (g *Gateway) openSockets() error {
	var queues []rings.PortQueue
	chunk := chunkSmall
	ports := g.table.Ports()
	for i, p := range g.ports {
		queues = append(queues, rings.PortQueue{Name: p.name, Index: p.ifindex, Queue: g.queue})
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
	need := len(g.ports)*rings.SocketFrames(g.o.RingSize, mode) + sparedFrames + g.o.Limits.Fragments
	g.frames = g.o.Frames
	if g.frames == 0 {
		g.frames = need
	}
	if g.frames < len(g.ports)*g.o.RingSize+sparedFrames {
		return fmt.Errorf("rings.frames: %d frames are too few for %d ports with rings of %d: %d are needed, 0 computes them",
			g.frames, len(g.ports), g.o.RingSize, need)
	}
	if g.umem, err = rings.NewUMEM(rings.UMEMOptions{Frames: g.frames, ChunkSize: chunk, HugePages: true}); err != nil {
		return err
	}
	if n := g.umem.Notice(); n != "" {
		slog.Info(n)
	}
	if g.pool, err = g.umem.NewPool(g.frames); err != nil {
		return err
	}
	for i, p := range g.ports {
		p.socket, err = rings.OpenSocket(g.umem, rings.SocketOptions{Port: queues[i], Mode: mode, RingSize: g.o.RingSize})
		if err != nil {
			return err
		}
		note(p.socket.Notice())
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
		if err := p.program.SetSocket(g.queue, p.socket.FD()); err != nil {
			return fmt.Errorf("%s: %w", p.name, err)
		}
	}
	return nil
}

// startWorker starts polling: the fill rings get their frames before the first packet can come.
func (g *Gateway) startWorker() (err error) {
	if g.punter, err = newPunter(g); err != nil {
		return err
	}
	o := WorkerOptions{
		UMEM: g.umem, Pool: g.pool, NAT: g.shard, Routes: g.view, Table: g.table, Aliases: g.world.aliases, Punt: g.punter,
		IPv6Forward: g.o.IPv6Forward,
	}
	ports := g.table.Ports()
	for i, p := range g.ports {
		o.Ports = append(o.Ports, WorkerPort{Port: p.socket, Side: p.side, MAC: ports[i].MAC, ARP: !rings.CanSendBack(p.name)})
	}
	if g.worker, err = NewWorker(o); err != nil {
		return err
	}
	g.loop, err = StartLoop(g.worker, LoopOptions{Core: g.core, Idle: g.o.Idle, RTPriority: g.o.RTPriority})
	if err != nil {
		return err
	}
	// One round has passed when this returns: every fill ring is full.
	return g.loop.Do(func(clock.Tick) bool { return true })
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
	g.goInSpace(g.watch)
	g.goInSpace(g.punter.run)
	g.goInSpace(g.follow)
	g.goInSpace(g.watchListeners)
	g.goInSpace(g.announcements)
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
