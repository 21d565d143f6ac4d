package rings

import (
	"encoding/binary"
	"sync/atomic"
	"unsafe"

	"golang.org/x/sys/unix"

	"pollux/internal/offheap"
)

// All pointer arithmetic of the package is in this file.

// wordAt returns the shared index or flags word at byte offset off.
func wordAt(mem []byte, off uint64) *atomic.Uint32 {
	return (*atomic.Uint32)(unsafe.Pointer(&mem[off : off+4][0]))
}

// slotsAt returns the n slots that begin at byte offset off.
func slotsAt[T any](mem []byte, off uint64, n int) []T {
	var t T
	b := mem[off : off+uint64(n)*uint64(unsafe.Sizeof(t))] // the bounds check
	return unsafe.Slice((*T)(unsafe.Pointer(&b[0])), n)
}

// slotBytes returns the size of one slot.
func slotBytes[T any]() uint64 {
	var t T
	return uint64(unsafe.Sizeof(t))
}

// CacheLine is how much memory travels at once, in bytes.
const CacheLine = 64

// Prefetch asks for lines of the packet memory, by address/CacheLine, so that their latencies overlap.
func (u *UMEM) Prefetch(lines []uint32) {
	offheap.PrefetchIndexed(unsafe.Pointer(unsafe.SliceData(u.data)), CacheLine, lines)
}

// registerUMEM tells the kernel where the packet memory is (XDP_UMEM_REG). The memory is a mapping, so it never moves.
func registerUMEM(fd int, data []byte, chunkSize int) error {
	var reg [32]byte // struct xdp_umem_reg: addr, len, chunk_size, headroom, flags, tx_metadata_len
	binary.NativeEndian.PutUint64(reg[0:], uint64(uintptr(unsafe.Pointer(&data[0]))))
	binary.NativeEndian.PutUint64(reg[8:], uint64(len(data)))
	binary.NativeEndian.PutUint32(reg[16:], uint32(chunkSize))
	return unix.SetsockoptString(fd, unix.SOL_XDP, unix.XDP_UMEM_REG, string(reg[:]))
}

// getXDPOption reads a SOL_XDP option into *v and returns the bytes that the kernel filled in.
func getXDPOption[T any](fd, option int, v *T) (int, error) {
	size := uint32(unsafe.Sizeof(*v))
	_, _, errno := unix.Syscall6(unix.SYS_GETSOCKOPT, uintptr(fd), unix.SOL_XDP, uintptr(option),
		uintptr(unsafe.Pointer(v)), uintptr(unsafe.Pointer(&size)), 0)
	if errno != 0 {
		return 0, errno
	}
	return int(size), nil
}

// ethtoolChannels returns how many receive queues a netdev uses (ETHTOOL_GCHANNELS); ok is false when its driver
// doesn't tell.
func ethtoolChannels(name string) (queues int, ok bool) {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return 0, false
	}
	defer unix.Close(fd)
	var channels struct{ cmd, maxRX, maxTX, maxOther, maxCombined, rx, tx, other, combined uint32 }
	channels.cmd = unix.ETHTOOL_GCHANNELS
	var req struct { // struct ifreq
		name [unix.IFNAMSIZ]byte
		data unsafe.Pointer
		_    [16]byte
	}
	if len(name) >= len(req.name) {
		return 0, false
	}
	copy(req.name[:], name)
	req.data = unsafe.Pointer(&channels)
	_, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&req)))
	return int(channels.combined + channels.rx), errno == 0
}

// driverName returns a netdev's driver as ethtool -i shows it; empty when the driver doesn't tell.
func driverName(name string) string {
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return ""
	}
	defer unix.Close(fd)
	info, err := unix.IoctlGetEthtoolDrvinfo(fd, name)
	if err != nil {
		return ""
	}
	return unix.ByteSliceToString(info.Driver[:])
}
