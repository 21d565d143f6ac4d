package rings

// Pool is a worker's stack of free frames: UMEM addresses of whole chunks. It belongs to one worker. The frame freed last
// is taken first, because its bytes are likely still in the cache.
//
// With several workers each chunk has a home: the pool that it was given to first. Frames travel between workers, so a pool
// is also handed chunks of others. It keeps them apart, in Away, until its worker has sent them home: every worker always
// gets its own frames back, whatever way the traffic flows.
type Pool struct {
	free   []uint64 // capacity is fixed
	excess uint64
	first  uint64              // the pool's own chunks begin here
	size   uint64              // and span so many bytes
	own    int                 // being so many
	away   []uint64            // chunks of other pools; capacity is fixed
	in     map[uint64]struct{} // the same addresses, in a build with the tag framecheck only
}

// NewPool returns an empty pool with room for n frames; Put never grows it beyond that. See UMEM.NewPool for a filled one.
func NewPool(n int) *Pool { return &Pool{free: make([]uint64, 0, n), size: ^uint64(0), own: n} }

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
	if addr-p.first >= p.size {
		p.putAway(addr)
		return
	}
	n := len(p.free)
	if n == p.own {
		p.excess++
		return
	}
	p.free = p.free[:n+1]
	p.free[n] = addr
	if frameCheck {
		p.check(addr)
	}
}

// putAway keeps a chunk of another pool's.
func (p *Pool) putAway(addr uint64) {
	n := len(p.away)
	if n == cap(p.away) {
		p.excess++
		return
	}
	p.away = p.away[:n+1]
	p.away[n] = addr
	if frameCheck {
		p.check(addr)
	}
}

// Away returns the chunks of other pools that were given back here. Whoever takes them says so by SentHome.
func (p *Pool) Away() []uint64 { return p.away }

// SentHome forgets all of Away but the last keep, which could not be sent.
func (p *Pool) SentHome(keep int) {
	if frameCheck {
		for _, addr := range p.away[:len(p.away)-keep] {
			delete(p.in, addr)
		}
	}
	p.away = p.away[:copy(p.away, p.away[len(p.away)-keep:])]
}

// First returns the address of the first of the chunks that are the pool's own.
func (p *Pool) First() uint64 { return p.first }

// Span returns how many bytes the chunks that are the pool's own span.
func (p *Pool) Span() uint64 { return p.size }

// Size returns how many chunks are the pool's own.
func (p *Pool) Size() int { return p.own }

// Len returns how many frames are free.
func (p *Pool) Len() int { return len(p.free) }

// Excess returns how many frames were given back to a full pool. Anything but 0 is a bug in the caller.
func (p *Pool) Excess() uint64 { return p.excess }
