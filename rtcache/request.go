package rtcache

import "sync/atomic"

// request is what a worker asks of the control goroutine: a hop for an on-link address that has none yet, or that the
// kernel resolve a hop.
type request struct {
	hop    uint32 // not 0: resolve this hop; else make one for:
	egress uint16
	v6     bool
	hi, lo uint64 // address, IPv4 in lo
}

const requestsPerView = 1024 // a power of two

// requests is a single-producer single-consumer ring: the view's worker pushes, the control goroutine takes.
//
//	word  writer   reader   pairs with
//	head  worker   control  entries below head are written before head is stored
//	tail  control  worker   entries below tail were read before tail is stored
type requests struct {
	head atomic.Uint32
	_    [60]byte
	tail atomic.Uint32
	_    [60]byte
	ring [requestsPerView]request
}

// push reports false when the ring is full.
func (r *requests) push(q *request) bool {
	head := r.head.Load()
	if head-r.tail.Load() == requestsPerView {
		return false
	}
	r.ring[head%requestsPerView] = *q
	r.head.Store(head + 1)
	return true
}

func (r *requests) take() (q request, ok bool) {
	tail := r.tail.Load()
	if tail == r.head.Load() {
		return request{}, false
	}
	q = r.ring[tail%requestsPerView]
	r.tail.Store(tail + 1)
	return q, true
}

func (r *requests) empty() bool { return r.tail.Load() == r.head.Load() }
