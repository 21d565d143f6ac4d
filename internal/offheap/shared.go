package offheap

import (
	"fmt"
	"os"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// NewShared maps memory that a successor process can take over: always a memfd. dense memory is going to be used whole and at
// random: it is put on huge pages, reserved ones or joined ones (MADV_COLLAPSE, Linux 6.1), and takes its memory at once.
// Where the kernel can't join them now, ok is false and the region is an ordinary one, which may be out of a successor's reach.
// Memory that is not dense takes pages as they are touched.
func NewShared(size int, dense bool) (r *Region, ok bool, err error) {
	if size <= 0 {
		return nil, false, fmt.Errorf("offheap: a region of %d bytes can't be mapped", size)
	}
	if !dense || size < hugePage {
		r, err := mapFile(size, Small)
		return r, true, err
	}
	if r, err := mapFile(size, Huge); err == nil {
		return r, true, nil
	}
	if r, err := mapFile(size, Transparent); err == nil {
		if r.Populate() == nil && unix.Madvise(r.mem, unix.MADV_COLLAPSE) == nil {
			r.pages = Transparent
			return r, true, nil
		}
		r.Free()
	}
	r, err = NewRegion(size)
	return r, r != nil && r.fd >= 0, err
}

// Available returns how many bytes the machine can still give (MemAvailable); ok is false when it doesn't tell.
func Available() (n uint64, ok bool) {
	b, err := os.ReadFile("/proc/meminfo")
	if err != nil {
		return 0, false
	}
	for line := range strings.Lines(string(b)) {
		if _, err := fmt.Sscanf(line, "MemAvailable: %d kB", &n); err == nil {
			return n << 10, true
		}
	}
	return 0, false
}

// AllocShared is Alloc in memory of NewShared.
func AllocShared[T any](n int, dense bool) (t *Table[T], ok bool, err error) {
	size, err := tableBytes[T](n)
	if err != nil {
		return nil, false, err
	}
	r, ok, err := NewShared(size, dense)
	if err != nil {
		return nil, false, err
	}
	return tableOf[T](r, n), ok, nil
}

// RegionInfo describes a region to a successor, which gets the descriptor along with it.
type RegionInfo struct {
	Size, Mapped int
	Pages        Pages
}

// Info describes the region.
func (r *Region) Info() RegionInfo { return RegionInfo{r.size, len(r.mem), r.pages} }

// Adopt maps a predecessor's region; the descriptor is the Region's own from then on, also when it fails. Page tables are
// filled in at once, so that nothing is left to do when the memory changes hands.
func Adopt(fd int, i RegionInfo) (*Region, error) {
	if i.Size <= 0 || i.Mapped < i.Size || i.Pages > Huge {
		unix.Close(fd)
		return nil, fmt.Errorf("offheap: a region of %d bytes in %d is none", i.Size, i.Mapped)
	}
	mem, err := MapShared(fd, i.Mapped, i.Pages)
	if err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("offheap: map the predecessor's %d bytes: %w", i.Mapped, err)
	}
	return &Region{mem: mem, size: i.Size, fd: fd, pages: i.Pages}, nil
}

// MapShared maps length bytes of a memfd for reading and writing, such that huge pages of it can be mapped whole: from a huge page
// on, Transparent and Small mappings begin at a multiple of one. UnmapShared takes it back.
func MapShared(fd, length int, pages Pages) ([]byte, error) {
	if length < hugePage || pages == Huge { // hugetlbfs aligns by itself
		at, err := unix.MmapPtr(fd, 0, nil, uintptr(length), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
		if err != nil {
			return nil, err
		}
		return unsafe.Slice((*byte)(at), length), nil
	}
	// Reserve enough address space for an aligned piece, and put the file over it.
	total := uintptr(length + hugePage)
	base, err := unix.MmapPtr(-1, 0, nil, total, unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS|unix.MAP_NORESERVE)
	if err != nil {
		return nil, err
	}
	skip := -uintptr(base) & (hugePage - 1)
	at, err := unix.MmapPtr(fd, 0, unsafe.Add(base, skip), uintptr(length), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED|unix.MAP_FIXED)
	page := uintptr(os.Getpagesize())
	end := skip + (uintptr(length)+page-1)&^(page-1)
	if skip > 0 {
		_ = unix.MunmapPtr(base, skip)
	}
	if end < total {
		_ = unix.MunmapPtr(unsafe.Add(base, end), total-end)
	}
	if err != nil {
		// The piece in the middle stays as it is: a mapping that fails may have taken the reservation away already, and then
		// another thread, of Go's own heap even, may have got that place.
		return nil, err
	}
	return unsafe.Slice((*byte)(at), length), nil
}

// UnmapShared undoes MapShared; any later access is a fault.
func UnmapShared(m []byte) error {
	return unix.MunmapPtr(unsafe.Pointer(unsafe.SliceData(m)), uintptr(len(m)))
}
