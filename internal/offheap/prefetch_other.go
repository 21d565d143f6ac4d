//go:build !amd64 && !arm64

package offheap

import "unsafe"

// Prefetch brings the cache lines of all addresses near by loading from them: all must be mapped.
func Prefetch(addresses []uintptr) {
	for i := range addresses {
		load(*(*unsafe.Pointer)(unsafe.Pointer(&addresses[i])))
	}
}

// PrefetchIndexed is Prefetch of base + index*size for each index.
func PrefetchIndexed(base unsafe.Pointer, size uintptr, index []uint32) {
	for _, i := range index {
		load(unsafe.Add(base, uintptr(i)*size))
	}
}

// load is not inlined, so that the compiler can't see that nobody wants the value.
//
//go:noinline
func load(p unsafe.Pointer) byte { return *(*byte)(p) }
