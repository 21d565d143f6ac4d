package nat

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"
)

// table maps room for n pointer-free records outside the Go heap, zeroed.
func table[T any](n int) ([]T, error) {
	var t T
	size := uintptr(n) * unsafe.Sizeof(t)
	mem, err := unix.MmapPtr(-1, 0, nil, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		return nil, fmt.Errorf("nat: no memory for %d records of %d bytes: %w", n, unsafe.Sizeof(t), err)
	}
	_ = unix.Madvise(unsafe.Slice((*byte)(mem), size), unix.MADV_HUGEPAGE)
	return unsafe.Slice((*T)(mem), n), nil
}

// unmap gives a table back.
func unmap[T any](t []T) {
	if len(t) > 0 {
		var x T
		_ = unix.MunmapPtr(unsafe.Pointer(unsafe.SliceData(t)), uintptr(len(t))*unsafe.Sizeof(x))
	}
}
