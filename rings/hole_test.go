package rings

import (
	"sync/atomic"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// TestRefusedHugePagesUnmapNothing: where there are not enough huge pages, memory that others map at the same time stays
// theirs. What is lost of it is a fault, which ends the test.
func TestRefusedHugePagesUnmapNothing(t *testing.T) {
	var end atomic.Bool
	done := make(chan struct{})
	go func() {
		defer close(done)
		const size = 1 << 20
		var ring [64]unsafe.Pointer
		for i := 0; !end.Load(); i++ {
			p, err := unix.MmapPtr(-1, 0, nil, size, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
			if err != nil {
				t.Error(err)
				return
			}
			slot := &ring[i%len(ring)]
			if *slot != nil {
				*(*byte)(*slot) = 1
				_ = unix.MunmapPtr(*slot, size)
			}
			*slot = p
		}
		for _, p := range ring {
			if p != nil {
				*(*byte)(p) = 1
				_ = unix.MunmapPtr(p, size)
			}
		}
	}()
	for range 30000 {
		fd, err := unix.MemfdCreate("test", unix.MFD_CLOEXEC|unix.MFD_HUGETLB|unix.MFD_HUGE_2MB)
		if err != nil {
			break // no huge pages at all: nothing is laid over the reservation
		}
		if err = unix.Ftruncate(fd, 1<<38); err == nil {
			var m []byte
			if m, err = mapShared(fd, 1<<38, hugePageBytes); err == nil {
				_ = unmapShared(m) // a machine with 256 GiB of huge pages
			}
		}
		unix.Close(fd)
	}
	end.Store(true)
	<-done
}
