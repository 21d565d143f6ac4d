package perf

import (
	"encoding/binary"

	"pollux/internal/packet"
	"pollux/nat"
	"pollux/rings"
)

// endpoint is an address and a port, whatever its side.
type endpoint struct {
	addr packet.Addr
	port uint16
}

// writer writes packets.
type writer struct {
	umem  *rings.UMEM
	tcp   bool
	flags uint8 // TCP
}

// frameLen is the length of every packet: the shortest Ethernet frame without its checksum.
const frameLen = 60

// The MAC address of both of the gateway's ports, and of what is behind them.
var (
	portMAC = [6]byte{2, 0, 0, 0, 1, 2}
	peerMAC = [6]byte{2, 0, 0, 0, 0, 0xfe}
)

// put writes a packet, all checksums right, into the chunk at addr.
func (w *writer) put(addr uint64, src, dst endpoint) rings.Frame {
	f := rings.Frame{Addr: addr, Len: frameLen}
	d := (*[frameLen]byte)(w.umem.Data(f))
	addrs := uint64(src.addr>>16) + uint64(src.addr&0xffff) + uint64(dst.addr>>16) + uint64(dst.addr&0xffff)
	ports := uint64(src.port) + uint64(dst.port)
	binary.LittleEndian.PutUint64(d[0:], 0xfe02_0201_0000_0002) // MAC addresses: to the port's
	binary.LittleEndian.PutUint64(d[8:], 0x0045_0008_fe00_0000) // ethertype, version
	binary.BigEndian.PutUint32(d[26:], uint32(src.addr))
	binary.BigEndian.PutUint32(d[30:], uint32(dst.addr))
	binary.BigEndian.PutUint16(d[34:], src.port)
	binary.BigEndian.PutUint16(d[36:], dst.port)
	if w.tcp {
		binary.LittleEndian.PutUint64(d[16:], 0x0640_0000_0000_2800) // length 40, TTL 64
		binary.BigEndian.PutUint16(d[24:], sum(addrs+0x4500+40+0x4006))
		binary.BigEndian.PutUint16(d[46:], 0x5000|uint16(w.flags))
		binary.BigEndian.PutUint16(d[48:], 0xffff)
		binary.BigEndian.PutUint16(d[50:], sum(addrs+ports+packet.ProtoTCP+20+0x5000+uint64(w.flags)+0xffff))
		return f
	}
	binary.LittleEndian.PutUint64(d[16:], 0x1140_0000_0000_2e00) // length 46, TTL 64
	binary.BigEndian.PutUint16(d[24:], sum(addrs+0x4500+46+0x4011))
	binary.BigEndian.PutUint16(d[38:], 26)
	check := sum(addrs + ports + packet.ProtoUDP + 26 + 26)
	if check == 0 {
		check = 0xffff // 0 means that there is none (RFC 768)
	}
	binary.BigEndian.PutUint16(d[40:], check)
	return f
}

// sum folds a sum of 16-bit words into an Internet checksum.
func sum(s uint64) uint16 {
	s = s>>16 + s&0xffff
	return ^uint16(s>>16 + s)
}

// flows numbers the flows of a scenario: flow i goes from an inside host to a remote endpoint, and keeps its local port as
// its alias port, so that packets of both directions follow from i. Every remote address has one flow, and every 16 flows
// have one host.
type flows struct {
	alias   packet.Addr
	remotes []packet.Addr // nil: computed from i
	crowd   uint32        // not 0: all flows are of so many hosts and go to one remote endpoint
}

const (
	flowsMax   = 1 << 27
	firstHost  = packet.Addr(10 << 24)
	firstOther = packet.Addr(16 << 24) // computed remotes lie in 16.0.0.0/5
	aliasFirst = packet.Addr(203<<24 | 113<<8 | 1)
)

func (f *flows) local(i uint32) endpoint {
	port := uint16(1024 + i*2654435761>>16%60000)
	if f.crowd != 0 {
		return endpoint{firstHost + packet.Addr(i%f.crowd), port}
	}
	return endpoint{firstHost + packet.Addr(i>>4), port}
}

func (f *flows) remote(i uint32) endpoint {
	if f.crowd != 0 {
		return endpoint{firstOther, 443}
	}
	if f.remotes != nil {
		return endpoint{f.remotes[i], 443}
	}
	return endpoint{firstOther + packet.Addr(i*2654435761&(flowsMax-1)), 443}
}

// ends are the source and destination of a packet of flow i as it comes in on a side.
func (f *flows) ends(i uint32, side nat.Side) (src, dst endpoint) {
	if side == nat.Inside {
		return f.local(i), f.remote(i)
	}
	return f.remote(i), endpoint{f.alias, f.local(i).port}
}
