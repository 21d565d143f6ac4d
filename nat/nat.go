// Package nat is the translator: links, groups, redirects, TCP state, ICMP, fragments, timers, for one shard.
//
// It is a pure library: packet bytes and a clock tick in, verdicts and rewritten bytes out. It knows no NIC, netlink,
// goroutine, lock, log or time source. A Shard belongs to one worker; no other goroutine may call any method of it.
package nat

import (
	"unsafe"

	"pollux/internal/packet"
	"pollux/internal/reason"
)

// Side is the role of the port a packet came in by.
type Side uint8

const (
	Inside  Side = iota // from the private hosts: translated outbound
	Outside             // from the world: translated inbound
)

// String returns "inside" or "outside".
func (s Side) String() string {
	if s == Inside {
		return "inside"
	}
	return "outside"
}

// Local, Alias and Remote are the three endpoints of a link. They are distinct types so that a swap does not compile.
// Port is the ICMP id for ICMP and 0 for other protocols. Addresses and ports are in host order.
type (
	Local struct {
		Addr packet.Addr
		Port uint16
	}
	Alias struct {
		Addr packet.Addr
		Port uint16
	}
	Remote struct {
		Addr packet.Addr
		Port uint16
	}
)

// Verdict says what the worker does with a packet after Translate.
type Verdict uint8

const (
	// Drop: Packet.Reason says why; the frame goes back to the free list.
	Drop Verdict = iota
	// Forward: the frame is rewritten (or deliberately untouched but for TTL) and goes on to routing by its present destination.
	Forward
	// Again: an inside packet was translated and its destination is an alias address (hairpin). The worker parses it
	// again and submits it once more with Side Outside and Hairpin set.
	Again
	// Answer: dropped, but the sender is owed an ICMP error of ICMPType/ICMPCode; the frame is as it was received. Reason is set.
	Answer
	// Keep: the shard holds the packet (early fragment, unsolicited SYN) under Packet.Frame until it comes back by Released. Reason is Held.
	Keep
	// Host: the packet belongs to the gateway's own stack; the frame is as it was received. Reason is ToHost.
	Host
	// Away: a fragment whose datagram belongs to worker Owner; the frame is untouched. The worker hands it there, Directed.
	Away
)

// HopSlot is room for what rtcache attaches to one direction of a link. nat carries it and never looks inside; all zero
// means nothing is attached. It is 8-byte aligned.
type HopSlot [2]uint64

// Packet is one packet of a burst: what goes into Translate and what comes out. It is reused, never allocated per packet.
type Packet struct {
	Data    []byte         // the frame from its Ethernet header; rewritten in place, never grown
	H       packet.Headers // filled by packet.Parse before Translate
	Frame   uint64         // opaque to nat: the worker's name for the frame (UMEM address), given back by Released
	Ingress uint16         // opaque to nat: port index, kept with held packets
	Side    Side
	Hairpin bool // second pass of a hairpinned packet

	// Directed fragments come from the worker that keeps their datagram's table, in an order that begins with the first one.
	Directed bool
	Owner    uint8 // with Away: the worker's index
	_        uint16

	Verdict  Verdict // eight bytes that an established packet's are written to in one
	Reason   reason.Reason
	ICMPType uint8    // with Answer
	ICMPCode uint8    // with Answer
	slot     uint32   // Touch: the line that may be its link's; 0: none was found. Before that, the hash of its key
	Hop      *HopSlot // with Forward: slot of the link's direction; nil when the packet belongs to no link, and with all else

	// Between Touch and Translate.
	ports uint64 // second word of the key that the packet is looked up by; the first is in H
}

// A Packet begins as packet.ParseEach will have it.
const (
	_ = -unsafe.Offsetof(Packet{}.Data)
	_ = -(unsafe.Offsetof(Packet{}.H) ^ unsafe.Offsetof(packet.Record{}.H))
)

// Parse is packet.ParseEach for a burst.
func Parse(b []Packet, accept *packet.Accept) int {
	if len(b) == 0 {
		return 0
	}
	return packet.ParseEach((*packet.Record)(unsafe.Pointer(&b[0])), unsafe.Sizeof(b[0]), len(b), accept)
}

// Released is a held packet that goes back to the worker: either to be parsed and translated again, or to be dropped.
type Released struct {
	Frame   uint64
	Len     uint32
	Ingress uint16
	Side    Side
	Again   bool          // submit once more; otherwise drop for Reason
	Reason  reason.Reason // FragmentTimeout, FragmentBad, FragmentLimit, NoMapping
	Hairpin bool
}
