package nat

import (
	"pollux/internal/packet"
)

// HostInfo is what a shard knows of an inside host: while it has links that it opened, and a little longer.
type HostInfo struct {
	Addr    packet.Addr
	Alias   packet.Addr // all its links have this address (paired pooling); 0: not settled
	Links   uint32      // that it opened itself
	Refused uint32      // new flows refused since the shard knows the host
	Ports   int         // different alias ports; -1: not counted, which limits.ports_per_host makes the shard do
	Blocks  int         // port blocks held; -1: blocks are off
	Worker  int
}

// Hosts visits the hosts among max records from cursor on (0: the start) and returns where to go on, 0 when all were seen.
// Visit may stop by returning false; next then is the record after.
func (s *Shard) Hosts(cursor uint32, max int, within *Network, visit func(HostInfo) bool) (next uint32) {
	s.keeper.enter()
	defer s.keeper.leave()
	x := &s.hosts
	for id := cursor; id < x.fresh; id++ {
		if max--; max < 0 {
			return id
		}
		h := &x.list[id]
		if id == 0 || h.addr == 0 || !within.Has(h.addr) {
			continue
		}
		if !visit(s.hostInfo(id)) {
			if id+1 < x.fresh {
				return id + 1
			}
			return 0
		}
	}
	return 0
}

// Host returns what the shard knows of one host; false: nothing.
func (s *Shard) Host(a packet.Addr) (HostInfo, bool) {
	id := s.hosts.find(a)
	if id == 0 {
		return HostInfo{}, false
	}
	return s.hostInfo(id), true
}

func (s *Shard) hostInfo(id uint32) HostInfo {
	h := &s.hosts.list[id]
	info := HostInfo{Addr: h.addr, Alias: h.alias, Links: h.links, Refused: s.hosts.refused[id], Worker: s.worker, Ports: -1, Blocks: -1}
	ports, blocks := s.ports.HostUse(h.addr)
	if s.limits.PortsPerHost > 0 {
		info.Ports = ports
	}
	if s.rules.Blocks.Size > 0 {
		info.Blocks = blocks
	}
	return info
}

// blame counts a refused flow against a host that is known; 0 is none.
func (s *Shard) blame(host uint32) {
	if host != 0 {
		s.hosts.refused[host]++
	}
}

// RedirectInfo describes a redirect. What it publishes is as the rule says: an address of 0 follows the default alias address.
type RedirectInfo struct {
	ID      uint32 // the shard's handle: DelRedirect's
	Kind    string // port | address | protocol
	Proto   uint8  // 0: all
	Public  Alias
	Remote  Remote // 0: any
	Local   []Local
	Pick    Pick
	Config  bool // from the configuration; others were added at run time
	Inbound bool // an address redirect that lets new flows in whatever deny_incoming says
	OneShot bool // gone after its first hit
	Hits    uint64
}

// Redirects visits the redirects among max records from cursor on (0: the start) and returns where to go on, 0 when all were
// seen. A hit is a link made.
func (s *Shard) Redirects(cursor uint32, max int, visit func(RedirectInfo)) (next uint32) {
	s.keeper.enter()
	defer s.keeper.leave()
	list := s.table.list
	for at := cursor; at < uint32(len(list)); at++ {
		if max--; max < 0 {
			return at
		}
		if r := &list[at]; r.kind != ruleFree {
			visit(redirectInfo(r))
		}
	}
	return 0
}

func redirectInfo(r *rule) RedirectInfo {
	info := RedirectInfo{ID: r.id, Kind: "port", Proto: r.proto, Public: r.public, Remote: r.remote, Local: append([]Local(nil), r.locals...),
		Pick: r.pick, Config: r.config && !r.added, Inbound: r.inbound, OneShot: r.oneShot, Hits: r.hits}
	switch {
	case r.kind == ruleAddr:
		info.Kind = "address"
	case protoIndex(r.proto) == 3:
		info.Kind = "protocol"
	}
	return info
}
