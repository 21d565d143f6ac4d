package replay

import (
	"errors"
	"slices"

	"pollux/internal/clock"
	"pollux/internal/packet"
	"pollux/internal/reason"
	"pollux/lport"
	"pollux/nat"
	"pollux/pmd"
	"pollux/rings"
	"pollux/rtcache"
)

// gateway is a dataplane over in-memory ports, with as many workers as `workers.cores` names. They take turns on one
// goroutine, so that a replay is the same every time.
type gateway struct {
	umem    *rings.UMEM
	table   *rtcache.Table
	owners  *lport.Owners // nil with one worker
	pools   []*rings.Pool
	shards  []*nat.Shard
	workers []*pmd.Worker
	ports   [][portCount]*pmd.MemPort // by worker
}

// Frames of the packet memory. One packet is in flight at a time; all others are held.
const (
	chunkBytes = 16384 // at least: jumbo frames, whatever the MTUs
	ringFrames = 256   // one packet and the pieces that it may be split into
	sparse     = 2048  // frames beside those that hold fragments: SYNs, pieces, answers
	sparseEach = 256   // the same for each of several workers
	framesMax  = 1 << 16
)

func newGateway(o *Options, now clock.Tick, finished func(uint64, []byte, reason.Reason, bool), sent func(port int, frame []byte)) (g *gateway, err error) {
	rules, err := o.rules()
	if err != nil {
		return nil, err
	}
	g = &gateway{}
	defer func() {
		if err != nil {
			err = errors.Join(err, g.close())
		}
	}()
	n := max(1, len(o.Gateway.Cores))
	frames := min(o.Gateway.Limits.Fragments+sparse, framesMax)
	if n > 1 {
		frames = min(o.Gateway.Limits.Fragments/n+sparseEach, framesMax)
	}
	chunk := chunkBytes
	for chunk < max(o.World.InsideMTU, o.World.OutsideMTU)+packet.EthernetLen && chunk < 1<<16 {
		chunk *= 2
	}
	if g.umem, err = rings.NewUMEM(rings.UMEMOptions{Frames: n * frames, ChunkSize: chunk}); err != nil {
		return g, err
	}
	for range n {
		pool, err := g.umem.NewPool(frames)
		if err != nil {
			return g, err
		}
		g.pools = append(g.pools, pool)
	}
	if g.table, err = o.routes(); err != nil {
		return g, err
	}
	var mesh *pmd.Mesh
	var steering *pmd.Steering
	no := nat.Options{
		Rules: rules, Limits: nat.WorkerLimits(o.Gateway.Limits, n), Workers: n, FlowSteered: o.Gateway.SteerFlow, Seed: seed(o.Seed),
		SideOf: pmd.SideOf(g.table), Reverse: pmd.Reverse(g.table), Now: now,
	}
	if n > 1 {
		if o.Gateway.AliasPort {
			rules = pmd.FollowPort(rules, o.World.OutsideAddress)
		}
		g.owners = lport.NewOwners(nil)
		if err := pmd.Publish(g.owners, &rules); err != nil {
			return g, err
		}
		steering = pmd.NewSteering(n, g.owners, &rules, o.Gateway.SteerFlow, o.Seed)
		mesh = pmd.NewMesh(g.pools)
		no.Rules, no.Owners, no.Steering, no.Share = rules, g.owners, steering, nat.NewLinkShare(o.Gateway.Limits.Links, n)
	}
	for k := range n {
		no.Worker = k
		shard, err := nat.New(no)
		if err != nil {
			return g, err
		}
		g.shards = append(g.shards, shard)
		g.ports = append(g.ports, [portCount]*pmd.MemPort{})
		ports := make([]pmd.WorkerPort, portCount)
		for i, side := range []nat.Side{nat.Inside, nat.Outside} {
			p := pmd.NewMemPort(g.umem, ringFrames)
			p.Out = func(frame []byte) { sent(i, frame) }
			mac := o.World.InsideMAC
			if side == nat.Outside {
				mac = o.World.OutsideMAC
			}
			g.ports[k][i], ports[i] = p, pmd.WorkerPort{Port: p, Side: side, MAC: mac, AnyMAC: o.World.AnyMAC}
		}
		worker, err := pmd.NewWorker(pmd.WorkerOptions{
			Index: k, Ports: ports, UMEM: g.umem, Pool: g.pools[k], NAT: shard, Routes: g.table.View(), Table: g.table,
			Aliases: pmd.Aliases(&rules), Source: o.source(&rules), Finished: finished, Mesh: mesh, Steering: steering,
		})
		if err != nil {
			return g, err
		}
		g.workers = append(g.workers, worker)
	}
	return g, nil
}

// rules resolves what only the world can tell: alias addresses that follow the outside port, which of them the gateway has
// itself, and the MSS that fits.
func (o *Options) rules() (nat.Rules, error) {
	r := o.Gateway.Rules
	if own := o.World.OutsideAddress; o.Gateway.AliasPort && !slices.Contains(r.Alias, own) {
		if own == 0 {
			return r, errors.New("nat.alias: port needs replay.outside_address: there is no port to ask")
		}
		r.Alias = append([]packet.Addr{own}, r.Alias...)
	}
	r.Kernel = nil
	for _, a := range pmd.Aliases(&r) {
		if a == o.World.OutsideAddress || a == o.World.InsideAddress {
			r.Kernel = append(r.Kernel, a)
		}
	}
	if o.Gateway.MSSAuto {
		r.MSSClamp = pmd.MSSAuto([]int{o.World.InsideMTU, o.World.OutsideMTU})
	}
	return r, nil
}

// routes is the FIB of the replayed world: the inside networks behind the inside port, all else behind the outside one.
func (o *Options) routes() (*rtcache.Table, error) {
	w := &o.World
	s := rtcache.StaticOptions{
		Ports: []rtcache.Port{
			insidePort:  {Name: "inside", Inside: true, MAC: w.InsideMAC, MTU: w.InsideMTU, Addr: w.InsideAddress},
			outsidePort: {Name: "outside", MAC: w.OutsideMAC, MTU: w.OutsideMTU, Addr: w.OutsideAddress},
		},
		NextHops:    [][6]byte{insidePort: w.NextHopMAC, outsidePort: w.NextHopMAC},
		ReversePath: o.Gateway.ReversePath,
	}
	for _, prefix := range w.InsideNetworks {
		s.Routes = append(s.Routes, rtcache.StaticRoute{Prefix: prefix, Port: insidePort})
	}
	t, err := rtcache.NewStatic(s)
	if err != nil {
		return nil, err
	}
	t.SetCache(o.Gateway.RTCache)
	return t, nil
}

// source is where ICMP errors come from when no alias address is concerned: the gateway's own address on that side, and
// on the outside the first alias address when it has none there.
func (o *Options) source(rules *nat.Rules) func(port uint16) packet.Addr {
	outside := o.World.OutsideAddress
	if outside == 0 && len(rules.Alias) > 0 {
		outside = rules.Alias[0]
	}
	return func(port uint16) packet.Addr {
		if port == outsidePort {
			return outside
		}
		return o.World.InsideAddress
	}
}

// push lets a port receive packet number index. Packets come in by the queues in turn, as far as their workers have frames.
// The reason says why it could not: no port takes frames longer than a chunk.
func (g *gateway) push(index, port int, data []byte) (chunk uint64, r reason.Reason) {
	if len(data) > g.umem.ChunkSize() {
		return 0, reason.Unsupported
	}
	for i := range g.workers {
		k := (index + i) % len(g.workers)
		if chunk, ok := g.ports[k][port].Push(g.pools[k], data); ok {
			return chunk, reason.None
		}
	}
	return 0, reason.NoFrame
}

// settle lets the workers do all that there is to do at a tick.
func (g *gateway) settle(now clock.Tick) {
	for work := 1; work > 0; {
		work = 0
		for _, w := range g.workers {
			work += w.Poll(now)
		}
	}
}

// due is the earliest tick at which a worker may have work without a packet.
func (g *gateway) due(now clock.Tick) (due clock.Tick, ok bool) {
	for _, w := range g.workers {
		if d, is := w.Due(now); is && (!ok || d.Before(due)) {
			due, ok = d, true
		}
	}
	return due, ok
}

func (g *gateway) close() error {
	var errs []error
	for _, shard := range g.shards {
		errs = append(errs, shard.Close())
	}
	if g.owners != nil {
		g.owners.Close()
	}
	if g.umem != nil {
		errs = append(errs, g.umem.Close())
	}
	return errors.Join(errs...)
}
