package rings

import (
	"errors"
	"fmt"
	"os"
	"sync"
	"unsafe"

	"golang.org/x/sys/unix"

	"pollux/internal/offheap"
)

// Sizes of a UMEM.
const (
	ChunkBytesDefault = 4096
	chunkBytesMax     = 4096 // that a socket takes: a page
	hugePageBytes     = 2 << 20

	// RXHeadroomBytes is what the kernel leaves free in front of a received packet (XDP_PACKET_HEADROOM). A chunk of
	// 2048 bytes therefore holds 1792 bytes of packet.
	RXHeadroomBytes = 256
)

// UMEMOptions sizes a UMEM.
type UMEMOptions struct {
	Frames    int  // number of chunks; at least 1
	ChunkSize int  // bytes, a power of two from 2048 to 65536, of which sockets take 2048 and 4096; 0 means ChunkBytesDefault
	HugePages bool // ask for reserved 2 MiB pages; without any the UMEM falls back to ordinary pages and says so (Notice)
}

// UMEM is the packet memory that every socket of a process shares: equal chunks, one packet in each. It is a memfd
// mapping, so that a successor process can map the same bytes. It needs no socket: an in-memory port uses it as well.
//
// Every chunk has exactly one owner at any time: a Pool, a ring, or a worker's burst. Data and Chunk may be called by
// any goroutine; NewPool, Register (by OpenSocket) and Close take a lock.
type UMEM struct {
	data      []byte // Frames * ChunkSize bytes
	chunkMask uint64 // ChunkSize - 1
	frames    int

	mapping []byte // data, rounded up to whole pages
	fd      int
	notice  string
	huge    bool

	mu      sync.Mutex
	next    int       // first chunk never given to a pool
	sockets []*Socket // bound ones; any of them stands for the UMEM in the next bind
	closed  bool
}

// NewUMEM maps packet memory. It fails, with the arithmetic shown, when the memory is not there.
func NewUMEM(o UMEMOptions) (*UMEM, error) {
	if o.ChunkSize == 0 {
		o.ChunkSize = ChunkBytesDefault
	}
	if o.ChunkSize < 2048 || o.ChunkSize > 65536 || o.ChunkSize&(o.ChunkSize-1) != 0 {
		return nil, fmt.Errorf("umem: a chunk of %d bytes is not possible, use 2048 or 4096 (up to 65536 where no socket uses it)", o.ChunkSize)
	}
	if o.Frames < 1 {
		return nil, fmt.Errorf("umem: %d frames, at least 1 is needed", o.Frames)
	}
	size := uint64(o.Frames) * uint64(o.ChunkSize)
	if free, ok := offheap.Available(); ok && size > free {
		return nil, fmt.Errorf("umem: %d frames of %d bytes need %d MiB, but %d MiB are available: lower rings.frames or rings.size",
			o.Frames, o.ChunkSize, size>>20, free>>20)
	}
	u := &UMEM{frames: o.Frames, chunkMask: uint64(o.ChunkSize) - 1, fd: -1}
	if o.HugePages {
		if err := u.mapMemfd(size, offheap.Huge); err == nil {
			u.huge = true
			return u, nil
		} else if !errors.Is(err, unix.ENOMEM) && !errors.Is(err, unix.ENODEV) && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOSYS) {
			return nil, fmt.Errorf("umem: %d MiB of huge pages: %w", size>>20, err)
		}
		n := (size + hugePageBytes - 1) / hugePageBytes
		u.notice = fmt.Sprintf("umem: %d huge pages of 2 MiB are not there, ordinary pages are used; reserve them with: sysctl vm.nr_hugepages=%d", n, n)
	}
	pages := offheap.Small
	if size >= hugePageBytes/2 && o.ChunkSize <= chunkBytesMax { // larger chunks are mostly untouched: don't fill them with pages
		pages = offheap.Transparent
	}
	if err := u.mapMemfd(size, pages); err != nil {
		return nil, fmt.Errorf("umem: map %d MiB: %w", size>>20, err)
	}
	if pages == offheap.Transparent {
		u.collapse()
	}
	return u, nil
}

// collapse asks for transparent huge pages, which need no reservation. MADV_COLLAPSE (Linux 6.1) makes them at once, and of
// a memfd too, whatever shmem_enabled says; a 2 MiB range must have one page present to be considered. Where memory is too
// fragmented, or the kernel older, ordinary pages remain: they work as well, only with more TLB misses (2-3 % [measured]).
func (u *UMEM) collapse() {
	for i := 0; i < len(u.mapping); i += hugePageBytes {
		u.mapping[i] = 0
	}
	if unix.Madvise(u.mapping, unix.MADV_COLLAPSE) != nil {
		_ = unix.Madvise(u.mapping, unix.MADV_HUGEPAGE) // for khugepaged, where shmem_enabled allows
	}
}

func (u *UMEM) mapMemfd(size uint64, pages offheap.Pages) error {
	flags, page := 0, uint64(os.Getpagesize())
	if pages != offheap.Small {
		page = hugePageBytes
	}
	if pages == offheap.Huge {
		flags = unix.MFD_HUGETLB | unix.MFD_HUGE_2MB
	}
	length := (size + page - 1) &^ (page - 1)
	fd, err := unix.MemfdCreate("pollux-umem", flags|unix.MFD_CLOEXEC)
	if err != nil {
		return err
	}
	if err := unix.Ftruncate(fd, int64(length)); err != nil {
		unix.Close(fd)
		return err
	}
	m, err := offheap.MapShared(fd, int(length), pages)
	if err != nil {
		unix.Close(fd)
		return err
	}
	u.fd, u.mapping, u.data = fd, m, m[:size:size]
	return nil
}

// Data returns the bytes of f: f.Len of them, with capacity to the end of its chunk. They are valid as long as the caller
// owns the frame.
func (u *UMEM) Data(f Frame) []byte {
	return u.data[f.Addr : f.Addr+uint64(f.Len) : (f.Addr|u.chunkMask)+1]
}

// Memory is what finding the bytes of a frame takes, small enough for registers: a loop over a burst keeps a copy. It holds
// as long as the UMEM is open.
type Memory struct {
	base unsafe.Pointer
	size uint64
}

// Memory returns the UMEM's memory.
func (u *UMEM) Memory() Memory {
	return Memory{unsafe.Pointer(unsafe.SliceData(u.data)), uint64(len(u.data))}
}

// Data is UMEM.Data without capacity beyond the packet. A frame outside of the memory panics.
func (m Memory) Data(f Frame) []byte {
	if f.Addr >= m.size || uint64(f.Len) > m.size-f.Addr {
		panic("rings: a frame outside of the UMEM")
	}
	return (*[1 << 40]byte)(unsafe.Add(m.base, f.Addr))[:f.Len:f.Len]
}

// Chunk returns the address of the chunk that addr lies in: what a Pool keeps.
func (u *UMEM) Chunk(addr uint64) uint64 { return addr &^ u.chunkMask }

// ChunkSize returns the bytes of one chunk.
func (u *UMEM) ChunkSize() int { return int(u.chunkMask) + 1 }

// Frames returns how many chunks there are.
func (u *UMEM) Frames() int { return u.frames }

// FD returns the memfd, owned by the UMEM: pass it on (SCM_RIGHTS), never close it.
func (u *UMEM) FD() int { return u.fd }

// HugePages reports whether reserved huge pages back the memory.
func (u *UMEM) HugePages() bool { return u.huge }

// Notice says in one line what was asked for and not to be had; empty when nothing.
func (u *UMEM) Notice() string { return u.notice }

// NewPool gives n chunks that nobody owns yet to a new pool, whose own they are from then on. The chunks of several pools
// lie one after another. A pool also has room for every chunk of the others, because frames move between workers.
func (u *UMEM) NewPool(n int) (*Pool, error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if n < 0 || n > u.frames-u.next {
		return nil, fmt.Errorf("umem: a pool of %d frames does not fit, %d of %d are left", n, u.frames-u.next, u.frames)
	}
	p := NewPool(u.frames)
	p.first, p.size = uint64(u.next)*(u.chunkMask+1), uint64(n)*(u.chunkMask+1)
	p.own = n
	if n < u.frames {
		p.away = make([]uint64, 0, u.frames-n)
	}
	for i := u.next + n - 1; i >= u.next; i-- { // lowest address on top
		p.Put(uint64(i) * (u.chunkMask + 1))
	}
	u.next += n
	return p, nil
}

// Close unmaps the memory. All sockets must be closed before, and nobody may use a frame afterwards.
func (u *UMEM) Close() error {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.closed {
		return nil
	}
	if n := len(u.sockets); n > 0 {
		return fmt.Errorf("umem: %d sockets still use it", n)
	}
	u.closed, u.data = true, nil
	return errors.Join(offheap.UnmapShared(u.mapping), unix.Close(u.fd))
}
