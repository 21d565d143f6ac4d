package pmd

import (
	"math/bits"

	"pollux/internal/packet"
	"pollux/lport"
	"pollux/nat"
	"pollux/rings"
)

// Why a packet is another worker's; the rows of the table in DESIGN 4.
type steerWhy uint8

const (
	byHost     steerWhy = iota // hash of the inside address: dynamic flows outbound, and what is not translated
	byFlow                     // hash of the 5-tuple: the same with steer: flow, where the mapping is endpoint-dependent
	byPort                     // the owner byte of the alias port
	byRedirect                 // hash of the remote endpoint: published ports and addresses
	byTarget                   // hash of the DMZ host
	byProtocol                 // hash of remote address and protocol: protocols without ports
	byQuote                    // an ICMP error, by the packet that it quotes
	byFragment                 // hash of the datagram: its table is there
	byNobody                   // hash of an alias port that nobody has
	steerWhys
)

var steerWhyNames = [steerWhys]string{
	"inside-address", "flow", "alias-port", "redirect", "target", "protocol", "icmp-error", "fragment", "unowned-port",
}

// Steering says which worker owns a packet, by owner byte and by what is configured. Nothing in it changes while workers poll:
// a reload replaces it whole when all of them stand still (Gateway.together). Redirects that follow a port's address steer
// their local endpoints also while the address is missing, so that no live flow ever moves; everything else that changes is in
// the owner bytes. Each worker reads it without a look at anybody. Only workers may read one that is in use.
type Steering struct {
	owners  *lport.Owners
	workers uint32
	flows   uint32 // a bit for each protocol whose flows are steered one by one
	seed    uint64
	target  packet.Addr // 0: none
	locals  []localRule // open-addressed, by local endpoint; nil: no redirects. A port and protocol of 0 stand for the address
	mask    uint32
	rules   []remoteRule     // [0] is none
	cards   [2]*cardSteering // of TCP and UDP flows that are steered one by one; nil: by the seed
	hosts   [64]uint64       // a bit for each local address, by hash: most hosts have no redirect and need no further look
}

type localRule struct {
	key  uint64 // localKey
	rule uint32 // first of its rules; 0: the slot is free
}

// remoteRule is the remote that a redirect asks for; 0 means any.
type remoteRule struct {
	remote nat.Remote
	next   uint32
}

// NewSteering makes what all workers steer by. seed is secret: who could guess it could send all he likes to one worker. With
// flow, the flows of one host are spread over the workers, those of the protocols that FlowProtocols names; what that says
// must not change while the gateway runs.
func NewSteering(workers int, owners *lport.Owners, r *nat.Rules, flow bool, seed uint64) *Steering {
	s := &Steering{owners: owners, workers: uint32(workers), seed: seed | 1, rules: make([]remoteRule, 1)}
	if flow {
		for _, proto := range nat.FlowProtocols(r) {
			s.flows |= 1 << proto
		}
	}
	if !r.DenyIncoming {
		s.target = r.Target
	}
	n := 0
	for i := range r.RedirectPort {
		n += len(r.RedirectPort[i].Local)
	}
	for i := range r.RedirectAddr {
		n += len(r.RedirectAddr[i].Local)
	}
	if n == 0 {
		return s
	}
	size := 1 << bits.Len(uint(2*n))
	s.locals, s.mask = make([]localRule, size), uint32(size-1)
	for i := range r.RedirectPort {
		p := &r.RedirectPort[i]
		for _, l := range p.Local {
			s.add(localKey(p.Proto, l.Addr, l.Port), p.Remote)
		}
	}
	for i := range r.RedirectAddr {
		for _, l := range r.RedirectAddr[i].Local {
			s.add(localKey(0, l, 0), nat.Remote{})
		}
	}
	return s
}

func (s *Steering) add(key uint64, remote nat.Remote) {
	w, bit := hostBit(packet.Addr(key >> 24))
	s.hosts[w] |= bit
	i := s.home(key)
	for s.locals[i].rule != 0 && s.locals[i].key != key {
		i = (i + 1) & s.mask
	}
	s.rules = append(s.rules, remoteRule{remote, s.locals[i].rule})
	s.locals[i] = localRule{key, uint32(len(s.rules) - 1)}
}

func localKey(proto uint8, addr packet.Addr, port uint16) uint64 {
	return uint64(addr)<<24 | uint64(port)<<8 | uint64(proto)
}

// hostBit is an address's place in hosts.
func hostBit(a packet.Addr) (word uint32, bit uint64) {
	h := uint32(a) * 0x9e3779b1
	return h >> 26, 1 << (h >> 20 & 63)
}

func (s *Steering) home(key uint64) uint32 { return uint32(key*0x9e3779b97f4a7c15>>32) & s.mask }

// published reports whether a redirect publishes a local endpoint to a remote one.
func (s *Steering) published(key uint64, dst packet.Addr, dport uint16) bool {
	for i := s.home(key); s.locals[i].rule != 0; i = (i + 1) & s.mask {
		if s.locals[i].key != key {
			continue
		}
		for at := s.locals[i].rule; at != 0; at = s.rules[at].next {
			if r := &s.rules[at].remote; (r.Addr == 0 || r.Addr == dst) && (r.Port == 0 || r.Port == dport) {
				return true
			}
		}
		return false
	}
	return false
}

// pick maps a number to a worker, evenly: also numbers in sequence, as an inside network's hosts are, and whatever the seed. Two
// multiplications by fixed odd numbers do that; one by a number made of the seed gave some seeds all hosts at one worker.
func (s *Steering) pick(x uint64) uint32 {
	x = (x ^ s.seed) * 0x9e3779b97f4a7c15
	x = (x ^ x>>32) * 0xd6e8feb86659fd93
	return s.scale(x >> 32)
}

// scale maps a hash to a worker.
func (s *Steering) scale(h uint64) uint32 { return uint32(uint64(uint32(h)) * uint64(s.workers) >> 32) }

// host is the worker of an inside address.
func (s *Steering) host(a packet.Addr) uint32 { return s.pick(uint64(a)) }

// remote is the worker of a remote endpoint.
func (s *Steering) remote(a packet.Addr, port uint16) uint32 {
	return s.pick(uint64(a)<<16 | uint64(port) | 1<<48)
}

// protocol is the worker of a protocol without ports: two remotes that share an owner byte share the worker too.
func (s *Steering) protocol(remote packet.Addr, proto uint8) uint32 {
	return s.pick(uint64(rings.OtherSlot(remote, proto)) | 2<<48)
}

// datagram is the worker that keeps the table of a fragmented datagram.
func (s *Steering) datagram(h *packet.Headers) uint32 {
	return s.pick(uint64(h.Src) ^ bits.RotateLeft64(uint64(h.Dst), 24) ^ uint64(h.FragID)<<40 ^ uint64(h.Proto)<<56 ^ 3<<30)
}

// outbound owns packets from an inside endpoint to a remote one.
func (s *Steering) outbound(proto uint8, src packet.Addr, sport uint16, dst packet.Addr, dport uint16) (uint32, steerWhy) {
	switch proto {
	case packet.ProtoTCP, packet.ProtoUDP:
	case packet.ProtoICMP:
		dport = 0 // an id belongs to one side only
	default:
		return s.protocol(dst, proto), byProtocol
	}
	if w, bit := hostBit(src); s.hosts[w]&bit != 0 && (s.published(localKey(proto, src, sport), dst, dport) || s.published(localKey(0, src, 0), dst, dport)) {
		return s.remote(dst, dport), byRedirect
	}
	return s.dynamic(proto, src, sport, dst, dport)
}

// dynamic owns flows between an inside endpoint and a remote one that no rule speaks of. A DMZ host is owned whole: what comes
// to it by a port that nobody has is.
func (s *Steering) dynamic(proto uint8, local packet.Addr, lport uint16, remote packet.Addr, rport uint16) (uint32, steerWhy) {
	if s.flows>>(proto&31)&1 != 0 && local != s.target {
		if w, ok := s.ofCard(proto, local, lport, remote, rport); ok {
			return w, byFlow
		}
		hi, lo := bits.Mul64((uint64(local)<<32|uint64(remote))^s.seed, (uint64(lport)<<24|uint64(rport)<<8|uint64(proto))^bits.RotateLeft64(s.seed, 29)^0x9e3779b97f4a7c15)
		return s.scale(hi ^ lo), byFlow
	}
	return s.host(local), byHost
}

// inbound owns packets from a remote endpoint to an alias one.
func (s *Steering) inbound(proto uint8, src packet.Addr, sport uint16, dst packet.Addr, dport uint16) (uint32, steerWhy) {
	row := lport.RowTCP
	switch proto {
	case packet.ProtoTCP:
	case packet.ProtoUDP:
		row = lport.RowUDP
	case packet.ProtoICMP:
		row, sport = lport.RowICMP, 0
	default:
		return s.protocol(src, proto), byProtocol
	}
	b, alias := s.owners.Look(dst, row, dport)
	switch {
	case uint32(b)-1 < s.workers:
		return uint32(b) - 1, byPort
	case b == lport.ByteRedirect:
		return s.remote(src, sport), byRedirect
	case !alias:
		return s.dynamic(proto, dst, dport, src, sport)
	case s.target != 0 && b == lport.ByteFree:
		return s.host(s.target), byTarget
	}
	return s.pick(uint64(dst)<<16 | uint64(dport) | 4<<48), byNobody
}

// owner is the worker that a packet goes to: for a fragment the one with its datagram's table. Whole TCP and UDP packets that no
// redirect can concern are the first cases, because nearly all are.
func (s *Steering) owner(p *nat.Packet) (uint32, steerWhy) {
	h := &p.H
	if h.Flags&packet.FlagPlain != 0 {
		if p.Side == nat.Inside {
			if w, bit := hostBit(h.Src); s.hosts[w]&bit == 0 {
				return s.dynamic(h.Proto, h.Src, h.SrcPort, h.Dst, h.DstPort)
			}
		} else if b := s.owners.Byte(h.Dst, rowOfPlain(h.Proto), h.DstPort); uint32(b)-1 < s.workers {
			return uint32(b) - 1, byPort
		}
	}
	return s.slow(p)
}

// mine returns how many packets at the head of a burst are a worker's beyond doubt: whole TCP and UDP packets by the two rules that
// nearly all come under. Where a card's queues fit the owners that is the whole burst, at less than half the cost of owner.
func (s *Steering) mine(b []nat.Packet, me uint32) int {
	var alias packet.Addr // of bytes: mostly it stays the same
	bytes := s.owners.Bytes(alias)
	published, byHost := s.locals != nil, s.flows == 0
	for i := range b {
		p := &b[i]
		h := &p.H
		switch {
		case h.Flags&packet.FlagPlain == 0:
			return i
		case p.Side == nat.Outside:
			if h.Dst != alias {
				alias, bytes = h.Dst, s.owners.Bytes(h.Dst)
			}
			if uint32(bytes.At(rowOfPlain(h.Proto), h.DstPort)) != me+1 {
				return i
			}
		default:
			if published {
				if w, bit := hostBit(h.Src); s.hosts[w]&bit != 0 {
					return i
				}
			}
			if byHost && s.host(h.Src) == me {
				continue
			}
			if to, _ := s.dynamic(h.Proto, h.Src, h.SrcPort, h.Dst, h.DstPort); to != me {
				return i
			}
		}
	}
	return len(b)
}

// rowOfPlain is rowOf for TCP and UDP.
func rowOfPlain(proto uint8) lport.Row {
	if proto == packet.ProtoTCP {
		return lport.RowTCP
	}
	return lport.RowUDP
}

// slow is owner for everything.
//
//go:noinline
func (s *Steering) slow(p *nat.Packet) (uint32, steerWhy) {
	if p.H.Fragment() {
		return s.datagram(&p.H), byFragment
	}
	return s.whole(p)
}

// whole is owner for a packet taken as if it were not fragmented.
func (s *Steering) whole(p *nat.Packet) (uint32, steerWhy) {
	h := &p.H
	if h.Kind == packet.KindICMPError {
		return s.quoted(p), byQuote
	}
	if p.Side == nat.Inside {
		return s.outbound(h.Proto, h.Src, h.SrcPort, h.Dst, h.DstPort)
	}
	return s.inbound(h.Proto, h.Src, h.SrcPort, h.Dst, h.DstPort)
}

// quoted is the worker of an ICMP error: that of an answer to the packet that it quotes. An error that quotes nothing
// usable is refused wherever it is looked at.
//
//go:noinline
func (s *Steering) quoted(p *nat.Packet) uint32 {
	var q packet.Headers
	if !packet.ParseQuoted(p.Data, &p.H, &q) || q.Kind == packet.KindLaterFragment || q.Kind == packet.KindICMPError || q.Kind == packet.KindICMPOther {
		return s.host(p.H.Dst)
	}
	var to uint32
	if p.Side == nat.Inside {
		to, _ = s.outbound(q.Proto, q.Dst, q.DstPort, q.Src, q.SrcPort)
	} else {
		to, _ = s.inbound(q.Proto, q.Dst, q.DstPort, q.Src, q.SrcPort)
	}
	return to
}

// Outbound is nat.Steering's.
func (s *Steering) Outbound(proto uint8, src packet.Addr, sport uint16, dst packet.Addr, dport uint16) int {
	to, _ := s.outbound(proto, src, sport, dst, dport)
	return int(to)
}

// Inbound is nat.Steering's.
func (s *Steering) Inbound(proto uint8, src packet.Addr, sport uint16, dst packet.Addr, dport uint16) int {
	to, _ := s.inbound(proto, src, sport, dst, dport)
	return int(to)
}

// Whole is nat.Steering's.
func (s *Steering) Whole(p *nat.Packet) int {
	to, _ := s.whole(p)
	return int(to)
}
