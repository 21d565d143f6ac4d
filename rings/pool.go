package rings

// Pool is a worker's stack of free frames: UMEM addresses of whole chunks. It belongs to one worker. The frame freed last
// is taken first, because its bytes are likely still in the cache.
type Pool struct {
	free   []uint64 // capacity is fixed
	excess uint64
	in     map[uint64]struct{} // the same addresses, in a build with the tag framecheck only
}

// NewPool returns an empty pool with room for n frames; Put never grows it beyond that. See UMEM.NewPool for a filled one.
func NewPool(n int) *Pool { return &Pool{free: make([]uint64, 0, n)} }

// Get takes a free frame's address; ok is false when none is left.
func (p *Pool) Get() (addr uint64, ok bool) {
	n := len(p.free)
	if n == 0 {
		return 0, false
	}
	addr = p.free[n-1]
	p.free = p.free[:n-1]
	if frameCheck {
		delete(p.in, addr)
	}
	return addr, true
}

// Put gives a frame back. addr is the address of its chunk (see UMEM.Chunk). A full pool takes no more: that can only be
// a frame given back twice, and Excess counts it.
func (p *Pool) Put(addr uint64) {
	n := len(p.free)
	if n == cap(p.free) {
		p.excess++
		return
	}
	p.free = p.free[:n+1]
	p.free[n] = addr
	if frameCheck {
		p.check(addr)
	}
}

// Len returns how many frames are free.
func (p *Pool) Len() int { return len(p.free) }

// Excess returns how many frames were given back to a full pool. Anything but 0 is a bug in the caller.
func (p *Pool) Excess() uint64 { return p.excess }
