package control

import (
	"strconv"

	"pollux/internal/clock"
	"pollux/internal/packet"
	"pollux/nat"
)

// Link is one link as the API shows it. Endpoints are "addr:port" (ICMP "addr:id", other protocols "addr").
type Link struct {
	Proto     string `json:"proto"` // tcp | udp | icmp | NUMBER
	Local     string `json:"local"`
	Alias     string `json:"alias"`
	Remote    string `json:"remote"`
	State     string `json:"state"`      // opening | established | closing | active
	ExpiresIn uint32 `json:"expires_in"` // seconds until it dies if it stays idle, rounded up
	Worker    int    `json:"worker"`
	ID        uint32 `json:"id"`
	Inbound   bool   `json:"inbound"` // opened from outside
	Packets   uint64 `json:"packets"`
	Bytes     uint64 `json:"bytes"`
	Age       uint32 `json:"age"`  // seconds since it was made; wraps after 49 days
	Idle      uint32 `json:"idle"` // seconds since its last packet
}

// AppendLink appends l as the JSON of a Link. It does not allocate when b has room: a dump of a million links shall not
// wake the garbage collector beside the workers.
func AppendLink(b []byte, l *nat.LinkInfo) []byte {
	b = append(b, `{"proto":"`...)
	b = appendProto(b, l.Proto)
	b = append(b, `","local":"`...)
	b = appendEndpoint(b, l.Proto, l.Local.Addr, l.Local.Port)
	b = append(b, `","alias":"`...)
	b = appendEndpoint(b, l.Proto, l.Alias.Addr, l.Alias.Port)
	b = append(b, `","remote":"`...)
	b = appendEndpoint(b, l.Proto, l.Remote.Addr, remotePort(l))
	b = append(b, `","state":"`...)
	b = append(b, l.State.String()...)
	b = append(b, `","expires_in":`...)
	b = strconv.AppendUint(b, (uint64(l.ExpiresIn)+clock.PerSecond-1)/clock.PerSecond, 10)
	b = append(b, `,"worker":`...)
	b = strconv.AppendInt(b, int64(l.Worker), 10)
	b = append(b, `,"id":`...)
	b = strconv.AppendUint(b, uint64(l.ID), 10)
	b = append(b, `,"inbound":`...)
	b = strconv.AppendBool(b, l.Inbound)
	b = append(b, `,"packets":`...)
	b = strconv.AppendUint(b, l.Packets, 10)
	b = append(b, `,"bytes":`...)
	b = strconv.AppendUint(b, l.Bytes, 10)
	b = append(b, `,"age":`...)
	b = strconv.AppendUint(b, uint64(l.Age)/clock.PerSecond, 10)
	b = append(b, `,"idle":`...)
	b = strconv.AppendUint(b, uint64(l.Idle)/clock.PerSecond, 10)
	return append(b, '}')
}

func appendProto(b []byte, proto uint8) []byte {
	switch proto {
	case packet.ProtoTCP:
		return append(b, "tcp"...)
	case packet.ProtoUDP:
		return append(b, "udp"...)
	case packet.ProtoICMP:
		return append(b, "icmp"...)
	}
	return strconv.AppendUint(b, uint64(proto), 10)
}

// hasPorts reports whether a protocol's endpoints have a port or id.
func hasPorts(proto uint8) bool {
	return proto == packet.ProtoTCP || proto == packet.ProtoUDP || proto == packet.ProtoICMP
}

// remotePort is the port shown for the peer. An ICMP query has one id only: the peer answers to the one that it sees, the
// alias's.
func remotePort(l *nat.LinkInfo) uint16 {
	if l.Proto == packet.ProtoICMP && l.Remote.Port == 0 {
		return l.Alias.Port
	}
	return l.Remote.Port
}

func appendEndpoint(b []byte, proto uint8, addr packet.Addr, port uint16) []byte {
	b = addr.Netip().AppendTo(b)
	if !hasPorts(proto) {
		return b
	}
	b = append(b, ':')
	return strconv.AppendUint(b, uint64(port), 10)
}
