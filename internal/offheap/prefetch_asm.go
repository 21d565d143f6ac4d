//go:build amd64 || arm64

package offheap

import "unsafe"

// Prefetch brings the cache lines of all addresses near. It returns at once; an address that is not mapped does nothing.
//
//go:noescape
func Prefetch(addresses []uintptr)

// PrefetchIndexed is Prefetch of base + index*size for each index: the caller stores 4 bytes an item and computes nothing.
//
//go:noescape
func PrefetchIndexed(base unsafe.Pointer, size uintptr, index []uint32)
