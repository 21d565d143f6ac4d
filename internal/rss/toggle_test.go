package rss

import (
	"unsafe"

	"golang.org/x/sys/unix"
)

// toggle switches generic receive offload of a device, which is an ethtool setting that a veth has.
func toggle(name string) error {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	v := struct{ cmd, data uint32 }{cmd: unix.ETHTOOL_GGRO}
	var ifr struct {
		name [unix.IFNAMSIZ]byte
		data unsafe.Pointer
		_    [16]byte
	}
	copy(ifr.name[:], name)
	ifr.data = unsafe.Pointer(&v)
	for _, cmd := range []uint32{unix.ETHTOOL_GGRO, unix.ETHTOOL_SGRO} {
		v.cmd = cmd
		if cmd == unix.ETHTOOL_SGRO {
			v.data ^= 1
		}
		if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&ifr))); errno != 0 {
			return errno
		}
	}
	return nil
}
