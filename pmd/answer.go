package pmd

import (
	"slices"

	"pollux/internal/clock"
	"pollux/internal/packet"
	"pollux/internal/reason"
	"pollux/nat"
	"pollux/rings"
	"pollux/rtcache"
)

// Codes of "destination unreachable" (RFC 792, RFC 1812 5.2.7.1).
const (
	codeNet                 = 0
	codeHost                = 1
	codeFragmentationNeeded = 4
	codeProhibited          = 13
)

// answer ends a packet with an ICMP error to its sender, if one may be sent, the limit allows it and a frame is free.
// The frame is as it was on the wire and sent describes it.
func (w *Worker) answer(p *nat.Packet, sent *packet.Headers, r reason.Reason, icmpType, code uint8, mtu uint16, now clock.Tick) {
	answered := packet.MayAnswer(sent, p.Data) && w.sendError(p, sent, icmpType, code, mtu, now)
	w.drop(p.Frame, p.Data, r, answered)
}

func (w *Worker) sendError(p *nat.Packet, sent *packet.Headers, icmpType, code uint8, mtu uint16, now clock.Tick) bool {
	from := w.errorSource(p.Ingress, sent.Dst)
	if from == 0 {
		return false
	}
	// The error goes the way that any packet to the sender would, and nowhere if the sender's address is a lie. While that
	// way is not usable it goes back to the machine that handed the packet to us, which is what the swapped MACs say.
	hop, v := w.routes.Route(nil, p.Ingress, sent.Src, sent.Src, 0)
	if v != rtcache.OK && v != rtcache.Unresolved || !w.errors.allow(sent.Src, now) {
		return false
	}
	addr, ok := w.pool.Get()
	if !ok {
		return false
	}
	data := w.umem.Data(rings.Frame{Addr: addr, Len: uint32(w.umem.ChunkSize())})
	n := packet.ICMPError(data, p.Data, sent, from, icmpType, code, mtu)
	if n == 0 {
		w.pool.Put(addr)
		return false
	}
	to := p.Ingress
	if v == rtcache.OK {
		to = hop.Port()
		hop.WriteMACs(data)
	}
	w.one[0] = rings.Frame{Addr: addr, Len: uint32(n)}
	return w.emit(to, w.one[:]) == 1
}

// errorSource chooses the source address of an ICMP error. The outside must see an address that it knows: the alias
// address that it wrote to. Everybody else sees the gateway's address on the side where they are.
func (w *Worker) errorSource(ingress uint16, dst packet.Addr) packet.Addr {
	if w.ports[ingress].side == nat.Outside && slices.Contains(w.o.Aliases, dst) {
		return dst
	}
	return w.o.Source(ingress)
}

// Limits of ICMP errors: RFC 1812 4.3.2.8 wants the rate limited. One destination can use up a quarter of it only, so that
// a single noisy host does not blind traceroute and path MTU discovery of the others.
const (
	errorsPerSecond     = 1000
	errorsPerSecondEach = 250
	errorBuckets        = 256
)

// errorLimit is a token bucket for all ICMP errors and one for each group of destinations that share a hash.
type errorLimit struct {
	all  bucket
	each [errorBuckets]bucket
}

func (l *errorLimit) allow(dst packet.Addr, now clock.Tick) bool {
	each := &l.each[uint32(dst)*0x9e3779b1>>24]
	return each.has(errorsPerSecondEach, now) && l.all.has(errorsPerSecond, now) && each.take() && l.all.take()
}

// bucket is a token bucket that fills at a rate per second and holds what a second brings. The zero value is full.
type bucket struct {
	missing uint32 // thousandths of a token
	last    clock.Tick
}

// has refills the bucket and reports whether it holds a token.
func (b *bucket) has(perSecond uint32, now clock.Tick) bool {
	elapsed := min(now.Since(b.last), clock.PerSecond)
	b.last = now
	b.missing -= min(b.missing, elapsed*perSecond) // a tick is a thousandth of a second
	return b.missing+1000 <= perSecond*1000
}

func (b *bucket) take() bool {
	b.missing += 1000
	return true
}
