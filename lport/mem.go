package lport

import (
	"fmt"
	"unsafe"

	"golang.org/x/sys/unix"

	"pollux/internal/offheap"
)

// mapped returns n zeroed values of T in memory that the garbage collector never looks at. T must hold no Go pointers.
// It is for the tables of an alias address, which come and go with it, are a few hundred KiB and mostly untouched:
// plain anonymous pages, which cost nothing until they are touched, and no file descriptor each. What is sized at start
// comes from offheap. unmap gives the memory back.
func mapped[T any](n int) ([]T, error) {
	var zero T
	size := n * int(unsafe.Sizeof(zero))
	if size == 0 {
		return nil, nil
	}
	b, err := unix.Mmap(-1, 0, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANON|unix.MAP_NORESERVE)
	if err != nil {
		return nil, fmt.Errorf("lport: map %d bytes for %T: %w; free memory or lower the limits", size, zero, err)
	}
	return unsafe.Slice((*T)(unsafe.Pointer(&b[0])), n), nil
}

// unmap frees what mapped returned. Nothing may use it any more.
func unmap[T any](v []T) {
	if len(v) == 0 {
		return
	}
	b := unsafe.Slice((*byte)(unsafe.Pointer(&v[0])), len(v)*int(unsafe.Sizeof(v[0])))
	_ = unix.Munmap(b) // can only fail for an address that was never mapped
}

// alloc makes a table of a size that is known at start. Shared ones are used here and there: they take pages as they are touched.
func alloc[T any](n int, shared bool) (*offheap.Table[T], error) {
	if !shared {
		return offheap.Alloc[T](n)
	}
	t, _, err := offheap.AllocShared[T](n, false)
	return t, err
}
