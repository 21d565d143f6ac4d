package pmd

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"pollux/internal/clock"
	"pollux/internal/packet"
	"pollux/internal/reason"
)

// exampleBytes is how much of a dropped packet is kept: the headers of Ethernet, IP and ports.
const exampleBytes = 64

// example is the last packet that a worker ended for a reason, as it was when it ended. The worker overwrites it, and copies
// it for who asks by the mailbox.
type example struct {
	at     clock.Tick
	length uint16
	data   [exampleBytes]byte
}

// examples are kept for each reason.
type examples [reason.Count]example

// keep remembers the head of a packet.
func (x *examples) keep(r reason.Reason, data []byte, now clock.Tick) {
	e := &x[r]
	e.at = now
	e.length = uint16(copy(e.data[:], data))
}

// Example is a packet that was dropped.
type Example struct {
	Tuple string `json:"tuple"` // "udp 10.0.0.2:5000 -> 198.51.100.9:53"; what is no IP is named by its type
	Age   uint32 `json:"age_ms"`
}

// Examples returns the last packet that was ended for each reason, by reason; nil: none yet.
func (g *Gateway) Examples() ([]*Example, error) {
	list := make([]*Example, reason.Count)
	now := monotonicTick()
	for _, w := range g.workers {
		var copied examples
		g.life.RLock()
		gone := g.gone
		g.life.RUnlock()
		if gone {
			return list, ErrEnded
		}
		if err := w.loop.Do(func(clock.Tick) bool { copied = w.worker.examples; return true }); err != nil {
			return list, err
		}
		for r := range copied {
			e := &copied[r]
			if e.length == 0 {
				continue
			}
			if age := uint32(max(int32(now-e.at), 0)); list[r] == nil || age < list[r].Age {
				list[r] = &Example{describe(e.data[:e.length]), age}
			}
		}
	}
	return list, nil
}

// describe names a packet by its head.
func describe(head []byte) string {
	if len(head) < packet.EthernetLen {
		return fmt.Sprintf("%d bytes", len(head))
	}
	switch kind := binary.BigEndian.Uint16(head[12:]); {
	case kind == 0x86dd && len(head) >= packet.EthernetLen+40:
		ip := head[packet.EthernetLen:]
		src, _ := netip.AddrFromSlice(ip[8:24])
		dst, _ := netip.AddrFromSlice(ip[24:40])
		if p := ip[40:]; (ip[6] == packet.ProtoTCP || ip[6] == packet.ProtoUDP) && len(p) >= 4 {
			return fmt.Sprintf("%s %s -> %s", protoName(ip[6]), netip.AddrPortFrom(src, binary.BigEndian.Uint16(p)), netip.AddrPortFrom(dst, binary.BigEndian.Uint16(p[2:])))
		}
		return fmt.Sprintf("%s %s -> %s", protoName(ip[6]), src, dst)
	case kind != 0x0800 || len(head) < packet.EthernetLen+packet.IPv4Len:
		return fmt.Sprintf("ethertype %#04x", kind)
	}
	ip := head[packet.EthernetLen:]
	src, dst := netip.AddrFrom4([4]byte(ip[12:16])), netip.AddrFrom4([4]byte(ip[16:20]))
	name := protoName(ip[9])
	frag := binary.BigEndian.Uint16(ip[6:])
	l4 := int(ip[0]&15) * 4
	switch {
	case frag&0x1fff != 0:
		return fmt.Sprintf("%s %s -> %s fragment at %d", name, src, dst, int(frag&0x1fff)*8)
	case l4 < packet.IPv4Len || len(ip) < l4+8:
		return fmt.Sprintf("%s %s -> %s", name, src, dst)
	case ip[9] == packet.ProtoTCP, ip[9] == packet.ProtoUDP:
		return fmt.Sprintf("%s %s:%d -> %s:%d", name, src, binary.BigEndian.Uint16(ip[l4:]), dst, binary.BigEndian.Uint16(ip[l4+2:]))
	case ip[9] == packet.ProtoICMP:
		return fmt.Sprintf("%s %s -> %s type %d code %d id %d", name, src, dst, ip[l4], ip[l4+1], binary.BigEndian.Uint16(ip[l4+4:]))
	}
	return fmt.Sprintf("%s %s -> %s", name, src, dst)
}

func protoName(p uint8) string {
	switch p {
	case packet.ProtoTCP:
		return "tcp"
	case packet.ProtoUDP:
		return "udp"
	case packet.ProtoICMP:
		return "icmp"
	case packet.ProtoICMPv6:
		return "icmp6"
	}
	return fmt.Sprint(p)
}
