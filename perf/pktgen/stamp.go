package pktgen

import "encoding/binary"

// A stamp is the first 16 bytes behind the L4 header, in network order: magic (2), run (1), stream (1), sequence number
// (4), time (8). bpf/pktgen.bpf.c has the same.
const (
	stampBytes = 16
	stampMagic = 0x7078
)

// Stamp is what a test packet says of itself.
type Stamp struct {
	Run, Stream uint8
	Seq         uint32 // counts the stream's packets, modulo 2^32
	Time        uint64 // CLOCK_MONOTONIC in ns
}

// FindStamp returns a frame's stamp; ok is false when it is no test packet. IPv4 with options, VLAN tags and fragments do
// not occur among test packets.
func FindStamp(frame []byte) (s Stamp, ok bool) {
	at, ok := stampOffset(frame)
	if !ok || len(frame) < at+stampBytes {
		return s, false
	}
	b := frame[at : at+stampBytes]
	if binary.BigEndian.Uint16(b) != stampMagic {
		return s, false
	}
	return Stamp{b[2], b[3], binary.BigEndian.Uint32(b[4:]), binary.BigEndian.Uint64(b[8:])}, true
}

func stampOffset(frame []byte) (int, bool) {
	if len(frame) < 54 {
		return 0, false
	}
	var at int
	var proto byte
	switch binary.BigEndian.Uint16(frame[12:]) {
	case etherIPv4:
		if frame[14] != 0x45 {
			return 0, false
		}
		at, proto = 34, frame[23]
	case etherIPv6:
		at, proto = 54, frame[20]
	default:
		return 0, false
	}
	switch proto {
	case protoTCP:
		return at + 20, true
	case protoUDP, protoICMP, protoICMPv6:
		return at + 8, true
	}
	return 0, false
}
