package rss

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Flow types and bits of ETHTOOL_GRXFH (linux/ethtool.h).
const (
	flowTCP4 = 1
	flowUDP4 = 2

	rxhSrcAddr = 1 << 4
	rxhDstAddr = 1 << 5
	rxhSrcPort = 1 << 6 // bytes 0 and 1 of the transport header
	rxhDstPort = 1 << 7 // bytes 2 and 3
)

// rxnfc is struct ethtool_rxnfc of linux/ethtool.h, of which GRXFH uses the beginning.
type rxnfc struct {
	cmd, flow uint32
	data      uint64
	_         [176]byte
}

// fields asks which fields of TCP and UDP packets over IPv4 a device hashes.
func fields(name string) (tcp, udp Fields, err error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, 0, err
	}
	defer unix.Close(fd)
	if tcp, err = fieldsOf(fd, name, flowTCP4); err == nil {
		udp, err = fieldsOf(fd, name, flowUDP4)
	}
	return tcp, udp, err
}

func fieldsOf(fd int, name string, flow uint32) (Fields, error) {
	req := rxnfc{cmd: unix.ETHTOOL_GRXFH, flow: flow}
	if err := ask(fd, name, unsafe.Pointer(&req)); err != nil {
		return 0, fmt.Errorf("%s: hashed fields: %w", name, err)
	}
	return fieldsFrom(req.data), nil
}

// fieldsFrom reads RXH_* bits.
func fieldsFrom(data uint64) (f Fields) {
	for _, b := range []struct {
		bit uint64
		f   Fields
	}{{rxhSrcAddr, SrcAddr}, {rxhDstAddr, DstAddr}, {rxhSrcPort, SrcPort}, {rxhDstPort, DstPort}} {
		if data&b.bit != 0 {
			f |= b.f
			data &^= b.bit
		}
	}
	if data != 0 {
		f |= Other
	}
	return f
}
