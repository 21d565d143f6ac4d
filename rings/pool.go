package rings

// Pool is a worker's stack of free frames: UMEM addresses of whole chunks. It belongs to one worker.
type Pool struct {
	free []uint64
}

// NewPool returns an empty pool with room for n frames; Put never grows it beyond that.
func NewPool(n int) *Pool { return &Pool{free: make([]uint64, 0, n)} }

// Get takes a free frame's address; ok is false when none is left.
func (p *Pool) Get() (addr uint64, ok bool) {
	n := len(p.free)
	if n == 0 {
		return 0, false
	}
	addr = p.free[n-1]
	p.free = p.free[:n-1]
	return addr, true
}

// Put gives a frame back. addr is the address of its chunk (see UMEM.Chunk).
func (p *Pool) Put(addr uint64) {
	n := len(p.free)
	p.free = p.free[:n+1]
	p.free[n] = addr
}

// Len returns how many frames are free.
func (p *Pool) Len() int { return len(p.free) }
