package pktgen

import (
	"encoding/binary"
	"fmt"

	"pollux/internal/packet"
)

// verify checks the checksums of a test packet as a receiving host would.
func verify(frame []byte) error {
	if binary.BigEndian.Uint16(frame[12:]) == etherIPv6 {
		return verify6(frame)
	}
	return packet.Verify(frame)
}

// verify6 adds up an IPv6 packet without extension headers.
func verify6(frame []byte) error {
	if n := int(binary.BigEndian.Uint16(frame[18:])); n != len(frame)-54 {
		return fmt.Errorf("the header says %d bytes of payload, there are %d", n, len(frame)-54)
	}
	sum := uint64(len(frame)-54) + uint64(frame[20]) // of the pseudo header; the addresses follow
	b := frame[22:]
	for ; len(b) > 1; b = b[2:] {
		sum += uint64(binary.BigEndian.Uint16(b))
	}
	if len(b) == 1 {
		sum += uint64(b[0]) << 8
	}
	if s := fold(sum); s != 0xffff {
		return fmt.Errorf("L4 checksum off by %#04x", ^s)
	}
	return nil
}
