package pmd

import (
	"pollux/internal/clock"
	"pollux/internal/packet"
	"pollux/lport"
	"pollux/nat"
)

// Holder is what is known of one alias endpoint of one protocol now.
type Holder struct {
	Proto     uint8
	Byte      uint8 // the owner byte: lport.ByteFree, a worker's index + 1, ByteKernel or ByteRedirect
	Links     []nat.LinkInfo
	More      bool // links were left out
	Block     *BlockInfo
	Redirects []RedirectInfo // that publish the endpoint
}

// holderLinks is how many links of one endpoint are told, of each worker.
const holderLinks = 100

// WhoHas says who has an alias endpoint now, for each of some protocols (TCP, UDP, ICMP). known is false when the address is no
// alias address.
func (g *Gateway) WhoHas(a nat.Alias, protos []uint8) (list []Holder, known bool, err error) {
	redirects, err := g.Redirects()
	if err != nil {
		return nil, false, err
	}
	for _, proto := range protos {
		h := Holder{Proto: proto}
		if h.Byte, known = g.owners.Look(a.Addr, rowOf(proto), a.Port); !known {
			return nil, false, nil
		}
		for _, w := range g.workers {
			var links []nat.LinkInfo
			var block lport.BlockInfo
			has := false
			if err := w.loop.Do(func(clock.Tick) bool {
				w.shard.GroupLinks(a, proto, holderLinks+1, func(l nat.LinkInfo) bool { links = append(links, l); return true })
				block, has = w.shard.Ports().BlockOf(a.Addr, a.Port)
				return true
			}); err != nil {
				return nil, true, err
			}
			if len(links) > holderLinks {
				links, h.More = links[:holderLinks], true
			}
			h.Links = append(h.Links, links...)
			if has {
				h.Block = &BlockInfo{block, w.worker.o.Index, monotonicTick().Since(block.Since)}
			}
		}
		for _, r := range redirects {
			if (r.Public.Addr == a.Addr || r.Public.Addr == 0 && a.Addr == g.defaultAlias()) &&
				(r.Kind == "address" || r.Kind == "port" && r.Proto == proto && r.Public.Port == a.Port) {
				h.Redirects = append(h.Redirects, r)
			}
		}
		list = append(list, h)
	}
	return list, true, nil
}

// defaultAlias is the alias address that redirects without one follow, 0 if there is none.
func (g *Gateway) defaultAlias() packet.Addr {
	g.world.mu.Lock()
	defer g.world.mu.Unlock()
	if list := g.world.current.Alias; len(list) > 0 {
		return list[0]
	}
	return 0
}

// Computed says whose an alias endpoint is by nat.deterministic, at any time under the present configuration. on is false when that is off; host
// is 0 when the endpoint is nobody's.
func (g *Gateway) Computed(a nat.Alias) (host packet.Addr, on bool, err error) {
	g.world.mu.Lock()
	r := g.world.current
	g.world.mu.Unlock()
	return Computed(&r, a)
}

// Computed is what the rules say of an alias endpoint whether or not a gateway runs by them; see Gateway.Computed.
func Computed(r *nat.Rules, a nat.Alias) (host packet.Addr, on bool, err error) {
	if !r.Deterministic.Inside.IsValid() {
		return 0, false, nil
	}
	plan, err := lport.NewPlan(r.Deterministic.Inside, r.Alias, r.PortRange.Low, r.PortRange.High, r.Deterministic.PortsPerHost)
	if err != nil {
		return 0, true, err
	}
	host, _ = plan.Inverse(a.Addr, a.Port)
	return host, true, nil
}
