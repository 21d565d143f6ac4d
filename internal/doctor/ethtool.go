package doctor

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// ethtool asks a driver by ioctl. Every request is a struct that starts with its command.
type ethtool struct{ fd int }

func openEthtool() (ethtool, error) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	return ethtool{fd}, err
}

func (e ethtool) close() { unix.Close(e.fd) }

// ask fills the struct at req in. The error is the kernel's: EOPNOTSUPP where the driver has no answer.
func (e ethtool) ask(device string, req unsafe.Pointer) error {
	var ifr struct {
		name [unix.IFNAMSIZ]byte
		data unsafe.Pointer
		_    [16]byte // struct ifreq's union is larger than a pointer
	}
	if len(device) >= len(ifr.name) {
		return unix.ENAMETOOLONG
	}
	copy(ifr.name[:], device)
	ifr.data = req
	if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(e.fd), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&ifr))); errno != 0 {
		return errno
	}
	return nil
}

// driver names the driver, "" when it does not tell.
func (e ethtool) driver(device string) string {
	info, err := unix.IoctlGetEthtoolDrvinfo(e.fd, device)
	if err != nil {
		return ""
	}
	return unix.ByteSliceToString(info.Driver[:])
}

// channels is struct ethtool_channels of linux/ethtool.h.
type channels struct {
	cmd                                 uint32
	maxRX, maxTX, maxOther, maxCombined uint32
	numRX, numTX, numOther, numCombined uint32
}

// rxQueues returns how many receive queues a device has now and could have, 0 when the driver does not tell.
func (e ethtool) rxQueues(device string) (now, most int) {
	c := channels{cmd: unix.ETHTOOL_GCHANNELS}
	if e.ask(device, unsafe.Pointer(&c)) != nil {
		return 0, 0
	}
	return int(c.numRX + c.numCombined), int(c.maxRX + c.maxCombined)
}

// ringParam is struct ethtool_ringparam.
type ringParam struct {
	cmd                             uint32
	maxRX, maxMini, maxJumbo, maxTX uint32
	rx, mini, jumbo, tx             uint32
}

func (e ethtool) rings(device string) (ringParam, bool) {
	r := ringParam{cmd: unix.ETHTOOL_GRINGPARAM}
	err := e.ask(device, unsafe.Pointer(&r))
	return r, err == nil && r.maxRX > 0
}

// Bits of ETHTOOL_GFLAGS (enum ethtool_flags).
const (
	flagRXVLAN = 1 << 8
	flagLRO    = 1 << 15
)

func (e ethtool) flags(device string) uint32 {
	v := struct{ cmd, data uint32 }{cmd: unix.ETHTOOL_GFLAGS}
	if e.ask(device, unsafe.Pointer(&v)) != nil {
		return 0
	}
	return v.data
}
