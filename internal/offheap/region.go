// Package offheap holds tables outside the Go heap: mapped, zeroed, page-aligned, and invisible to the garbage collector.
//
// A table's element type must be free of Go pointers, which Alloc checks; elements refer to each other by index. Memory is
// never moved or grown. Whoever allocates a table owns it and frees it when nobody reads it any more.
package offheap

import (
	"fmt"
	"os"
	"strings"
	"unsafe"

	"golang.org/x/sys/unix"
)

// Pages says what kind of pages back a Region.
type Pages uint8

const (
	Small       Pages = iota // the machine's base pages
	Transparent              // base pages that the kernel was asked to join to huge ones where it can
	Huge                     // reserved huge pages (hugetlbfs)
)

// String returns a word for people.
func (p Pages) String() string {
	return [...]string{"small", "transparent-huge", "huge"}[p]
}

// hugePage is the page size asked of hugetlbfs, and the alignment that lets the kernel join small pages.
const hugePage = 2 << 20

// Region is a piece of zeroed memory. A Region with a file descriptor can be handed to a successor process.
type Region struct {
	mem   []byte // the mapping, whole pages
	size  int    // bytes asked for
	fd    int    // memfd, -1: anonymous memory
	pages Pages
}

// NewRegion maps size bytes. It takes the first of these that the machine offers: reserved huge pages; a memfd whose pages
// the kernel may join (shmem_enabled); anonymous memory whose pages the kernel may join, which no successor can take over
// but which saves a page walk per cold access; a memfd of small pages. Regions of less than a huge page are small. No page
// is touched yet: see Populate.
func NewRegion(size int) (*Region, error) {
	if size <= 0 {
		return nil, fmt.Errorf("offheap: a region of %d bytes can't be mapped", size)
	}
	if size < hugePage {
		return mapFile(size, Small)
	}
	if r, err := mapFile(size, Huge); err == nil {
		return r, nil
	}
	if offers("shmem_enabled") {
		return mapFile(size, Transparent)
	}
	if offers("enabled") {
		return mapAnonymous(size)
	}
	return mapFile(size, Small)
}

// offers reports whether the kernel joins pages on advice, or always, for the named kind of memory.
func offers(kind string) bool {
	b, err := os.ReadFile("/sys/kernel/mm/transparent_hugepage/" + kind)
	if err != nil {
		return false
	}
	for _, word := range []string{"[always]", "[advise]", "[madvise]", "[within_size]", "[force]"} {
		if strings.Contains(string(b), word) {
			return true
		}
	}
	return false
}

func roundUp(n, unit int) int { return (n + unit - 1) / unit * unit }

func mapFile(size int, pages Pages) (*Region, error) {
	flags, unit := unix.MFD_CLOEXEC, os.Getpagesize()
	switch pages {
	case Huge:
		flags |= unix.MFD_HUGETLB | unix.MFD_HUGE_2MB
		unit = hugePage
	case Transparent:
		unit = hugePage
	}
	fd, err := unix.MemfdCreate("pollux", flags)
	if err != nil {
		return nil, fmt.Errorf("offheap: memfd_create: %w", err)
	}
	length := roundUp(size, unit)
	if err := unix.Ftruncate(fd, int64(length)); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("offheap: a memfd of %d bytes: %w", length, err)
	}
	mem, err := MapShared(fd, length, pages)
	if err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("offheap: map %d bytes: %w", length, err)
	}
	r := &Region{mem: mem, size: size, fd: fd, pages: pages}
	r.advise()
	return r, nil
}

func mapAnonymous(size int) (*Region, error) {
	length := roundUp(size, hugePage)
	at, err := unix.MmapPtr(-1, 0, nil, uintptr(length), unix.PROT_READ|unix.PROT_WRITE, unix.MAP_PRIVATE|unix.MAP_ANONYMOUS)
	if err != nil {
		return nil, fmt.Errorf("offheap: map %d bytes: %w", length, err)
	}
	r := &Region{mem: unsafe.Slice((*byte)(at), length), size: size, fd: -1, pages: Transparent}
	r.advise()
	return r, nil
}

// advise asks for joined pages. A kernel that declines leaves small ones: slower, not wrong.
func (r *Region) advise() {
	if r.pages == Transparent && unix.Madvise(r.mem, unix.MADV_HUGEPAGE) != nil {
		r.pages = Small
	}
}

// Populate makes the kernel provide every page now, so that no first touch costs the data path a page fault and memory
// that is not there is told here rather than by a signal later.
func (r *Region) Populate() error {
	err := unix.Madvise(r.mem, unix.MADV_POPULATE_WRITE)
	if err == unix.EINVAL { // kernel before 5.14
		for i := 0; i < len(r.mem); i += os.Getpagesize() {
			r.mem[i] = 0
		}
		return nil
	}
	if err != nil {
		return fmt.Errorf("offheap: %d MiB of %v pages are not to be had: %w", len(r.mem)>>20, r.pages, err)
	}
	return nil
}

// Bytes returns the memory, of the size asked for. It is valid until Free.
func (r *Region) Bytes() []byte { return r.mem[:r.size:r.size] }

// Mapped returns how many bytes the mapping takes: the size rounded up to whole pages.
func (r *Region) Mapped() int { return len(r.mem) }

// FD returns the memfd behind the memory, or -1 if it is anonymous. It stays the Region's own.
func (r *Region) FD() int { return r.fd }

// Pages returns the kind of pages.
func (r *Region) Pages() Pages { return r.pages }

// Free unmaps the memory; any later access to it is a fault. A second call does nothing.
func (r *Region) Free() error {
	if r.mem == nil {
		return nil
	}
	mem := r.mem
	r.mem, r.size = nil, 0
	err := UnmapShared(mem)
	if r.fd >= 0 {
		if e := unix.Close(r.fd); err == nil {
			err = e
		}
		r.fd = -1
	}
	if err != nil {
		return fmt.Errorf("offheap: free: %w", err)
	}
	return nil
}
