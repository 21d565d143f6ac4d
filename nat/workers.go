package nat

import (
	"sync/atomic"

	"pollux/internal/packet"
)

// Steering says which worker owns what (DESIGN 4). It is pure: the same question always gets the same answer but for owner
// bytes, and any worker may ask. Ports are ids for ICMP queries and 0 for other protocols.
type Steering interface {
	// Outbound owns packets from an inside endpoint to a remote one.
	Outbound(proto uint8, src packet.Addr, sport uint16, dst packet.Addr, dport uint16) int
	// Inbound owns packets from a remote endpoint to an alias one.
	Inbound(proto uint8, src packet.Addr, sport uint16, dst packet.Addr, dport uint16) int
	// Whole owns a packet as if it were not fragmented; it has a transport header, or is an ICMP error.
	Whole(p *Packet) int
}

// FlowProtocols returns the protocols of which each flow may be at a worker of its own: those whose mappings and filters both
// look at the whole remote endpoint, so that no flow needs to know of another one. An ICMP id has no remote port: there the
// address is the whole.
func FlowProtocols(r *Rules) (list []uint8) {
	for _, p := range []struct {
		proto           uint8
		mapping, filter Behaviour
		least           Behaviour
	}{
		{packet.ProtoTCP, r.Mapping.TCP, r.Filtering.TCP, AddressAndPortDependent},
		{packet.ProtoUDP, r.Mapping.UDP, r.Filtering.UDP, AddressAndPortDependent},
		{packet.ProtoICMP, r.Mapping.ICMP, r.Filtering.ICMP, AddressDependent},
	} {
		if p.mapping >= p.least && p.filter >= p.least {
			list = append(list, p.proto)
		}
	}
	return list
}

// mineOut reports whether the outbound packets of a link to be made come to this worker. A link whose two directions belong to
// different workers must not be: one of them would never find it. That can be asked for while a redirect is new and its port
// still another's, or when a DMZ host is reached by a port that another host has.
func (s *Shard) mineOut(n *newLink) bool {
	return s.steering == nil || s.steering.Outbound(n.proto, n.local.Addr, n.local.Port, n.remote.Addr, n.remote.Port) == s.worker
}

// mineIn is mineOut for the inbound packets.
func (s *Shard) mineIn(n *newLink) bool {
	return s.steering == nil || s.steering.Inbound(n.proto, n.remote.Addr, n.remote.Port, n.alias.Addr, n.alias.Port) == s.worker
}

// LinkShare is limits.links when several shards share it: they take from it in small credits, so that no packet pays for a word
// that all share, and a shard that needs more than its part gets it while others need less. What shards have in hand and do not use
// is at most a thirtieth of the whole, nothing where the limit is small, and nothing of a shard without links.
type LinkShare struct {
	left    atomic.Int64
	credit  int64
	workers int64
}

// creditMax is how many links a shard takes from the share at once; where it is less than creditPart of its part, less.
const (
	creditMax  = 64
	creditPart = 64
)

// NewLinkShare divides links among workers.
func NewLinkShare(links, workers int) *LinkShare {
	l := &LinkShare{credit: min(max(int64(links/(creditPart*workers)), 1), creditMax), workers: int64(workers)}
	l.left.Store(int64(links))
	return l
}

// take gets one credit, or less where little is left; 0: nothing.
func (l *LinkShare) take() int64 {
	for {
		left := l.left.Load()
		if left <= 0 {
			return 0
		}
		n := min(l.credit, max(left/(2*l.workers), 1))
		if l.left.CompareAndSwap(left, left-n) {
			return n
		}
	}
}

// more gets room for another link out of the share.
func (l *links) more() bool {
	if int64(l.live) < l.granted {
		return true
	}
	l.granted += l.share.take()
	return int64(l.live) < l.granted
}

// less gives back what is not needed any more. One credit stays in hand, so that a link that comes and goes costs nothing, unless
// others may need it.
func (l *links) less() {
	s, spare := l.share, l.granted-int64(l.live)
	switch {
	case s.credit == 1, l.live == 0, s.left.Load() < s.credit:
	case spare >= 2*s.credit:
		spare = s.credit
	default:
		return
	}
	l.granted -= spare
	s.left.Add(spare)
}

// smallTable is how many links every shard has room for, about 13 MiB of them.
const smallTable = 1 << 16

// WorkerLimits is one shard's part of limits that workers share. Links are a total that LinkShare keeps; a shard has room for
// four times its even part of them, so that need decides and memory does not grow with the workers, and for all of a small number. A fragmented datagram may
// be known at two shards, the one with its table and the one that owns its flow: each has room for twice its even part.
func WorkerLimits(l Limits, workers int) Limits {
	if workers > 1 {
		part := func(n, times int) int { return min(n, times*((n+workers-1)/workers)) }
		l.Links, l.Fragments = max(part(l.Links, 4), min(l.Links, smallTable)), part(l.Fragments, 2)
	}
	return l
}
