package replay

import (
	"errors"
	"slices"

	"pollux/internal/clock"
	"pollux/internal/packet"
	"pollux/internal/reason"
	"pollux/nat"
	"pollux/pmd"
	"pollux/rings"
	"pollux/rtcache"
)

// gateway is a dataplane with one worker over in-memory ports.
type gateway struct {
	umem   *rings.UMEM
	pool   *rings.Pool
	table  *rtcache.Table
	shard  *nat.Shard
	worker *pmd.Worker
	ports  [portCount]*pmd.MemPort
}

// Frames of the packet memory. One packet is in flight at a time; all others are held.
const (
	chunkBytes = 16384 // at least: jumbo frames, whatever the MTUs
	ringFrames = 256   // one packet and the pieces that it may be split into
	sparse     = 2048  // frames beside those that hold fragments: SYNs, pieces, answers
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
	frames := min(o.Gateway.Limits.Fragments+sparse, framesMax)
	chunk := chunkBytes
	for chunk < max(o.World.InsideMTU, o.World.OutsideMTU)+packet.EthernetLen && chunk < 1<<16 {
		chunk *= 2
	}
	if g.umem, err = rings.NewUMEM(rings.UMEMOptions{Frames: frames, ChunkSize: chunk}); err != nil {
		return g, err
	}
	if g.pool, err = g.umem.NewPool(frames); err != nil {
		return g, err
	}
	if g.table, err = o.routes(); err != nil {
		return g, err
	}
	view := g.table.View()
	g.shard, err = nat.New(nat.Options{
		Rules: rules, Limits: o.Gateway.Limits, Workers: 1, Seed: seed(o.Seed),
		SideOf: pmd.SideOf(g.table), Reverse: pmd.Reverse(g.table), Now: now,
	})
	if err != nil {
		return g, err
	}
	ports := make([]pmd.WorkerPort, portCount)
	for i, side := range []nat.Side{nat.Inside, nat.Outside} {
		g.ports[i] = pmd.NewMemPort(g.umem, ringFrames)
		g.ports[i].Out = func(frame []byte) { sent(i, frame) }
		mac := o.World.InsideMAC
		if side == nat.Outside {
			mac = o.World.OutsideMAC
		}
		ports[i] = pmd.WorkerPort{Port: g.ports[i], Side: side, MAC: mac, AnyMAC: o.World.AnyMAC}
	}
	g.worker, err = pmd.NewWorker(pmd.WorkerOptions{
		Ports: ports, UMEM: g.umem, Pool: g.pool, NAT: g.shard, Routes: view, Table: g.table,
		Aliases: pmd.Aliases(&rules), Source: o.source(&rules), Finished: finished,
	})
	return g, err
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

// push lets a port receive a packet. The reason says why it could not: no port takes frames longer than a chunk.
func (g *gateway) push(port int, data []byte) (chunk uint64, r reason.Reason) {
	if len(data) > g.umem.ChunkSize() {
		return 0, reason.Unsupported
	}
	chunk, ok := g.ports[port].Push(g.pool, data)
	if !ok {
		return 0, reason.NoFrame
	}
	return chunk, reason.None
}

// settle lets the worker do all that there is to do at a tick.
func (g *gateway) settle(now clock.Tick) {
	for g.worker.Poll(now) > 0 {
	}
}

func (g *gateway) close() error {
	var errs []error
	if g.shard != nil {
		errs = append(errs, g.shard.Close())
	}
	if g.umem != nil {
		errs = append(errs, g.umem.Close())
	}
	return errors.Join(errs...)
}
