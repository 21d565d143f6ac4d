package nat

import (
	"unsafe"

	"pollux/internal/clock"
	"pollux/internal/packet"
)

// host is what is known of an inside host while it has links, or its rate bucket is not full again.
type host struct {
	addr   packet.Addr
	alias  packet.Addr // paired pooling: the alias address of all its links
	links  uint32      // that it opened itself
	tokens uint32      // of the bucket for new links, in thousandths
	at     clock.Tick  // when tokens was right
	next   uint32      // free list; idle queue
	queued uint32      // 1: in the idle queue
	epoch  uint32      // with flows spread over the workers: of the rules that alias was chosen under
}

const _ = -(unsafe.Sizeof(host{}) ^ 32)

// hosts finds hosts by address.
type hosts struct {
	seed        *seed
	index       index
	list        []host
	refused     []uint32 // by host: new flows refused since it is known
	free, fresh uint32
	idle, tail  uint32 // queue of hosts without links whose bucket fills up
	live        int
}

func (x *hosts) init(m *memory, s *seed, n int) (err error) {
	x.seed = s
	if x.index.slots, err = table[uint64](m, n+n/3+8); err != nil {
		return err
	}
	if x.list, err = table[host](m, n+1); err != nil {
		return err
	}
	x.refused, err = table[uint32](m, n+1)
	x.fresh = 1
	return err
}

func (x *hosts) hashOf(a packet.Addr) uint32 { return x.seed.hash(uint64(a), 0x68) }

// find returns the number of a host, 0 if it is not known.
func (x *hosts) find(a packet.Addr) uint32 {
	h := x.hashOf(a)
	for i := x.index.home(h); x.index.slots[i] != 0; i = x.index.next(i) {
		if id := uint32(x.index.slots[i]); uint32(x.index.slots[i]>>32) == h && x.list[id].addr == a {
			return id
		}
	}
	return 0
}

// full reports whether there is no room for another host.
func (x *hosts) full() bool { return x.free == 0 && int(x.fresh) == len(x.list) }

// add makes a host known; 0: no room.
func (x *hosts) add(a packet.Addr, tokens uint32, now clock.Tick) uint32 {
	id := x.free
	switch {
	case id != 0:
		x.free = x.list[id].next
	case int(x.fresh) < len(x.list):
		id = x.fresh
		x.fresh++
	default:
		return 0
	}
	x.list[id] = host{addr: a, tokens: tokens, at: now}
	x.index.insert(x.hashOf(a), id)
	x.live++
	return id
}

// drop forgets a host.
func (x *hosts) drop(id uint32) {
	h := &x.list[id]
	x.index.remove(x.hashOf(h.addr), id)
	*h = host{next: x.free}
	x.refused[id] = 0
	x.free = id
	x.live--
}

// enqueue puts a host without links at the end of the idle queue.
func (x *hosts) enqueue(id uint32) {
	h := &x.list[id]
	if h.queued != 0 {
		return
	}
	h.queued, h.next = 1, 0
	if x.tail == 0 {
		x.idle = id
	} else {
		x.list[x.tail].next = id
	}
	x.tail = id
}

// dequeue takes the head of the idle queue out.
func (x *hosts) dequeue() uint32 {
	id := x.idle
	if id != 0 {
		x.idle = x.list[id].next
		if x.idle == 0 {
			x.tail = 0
		}
		x.list[id].queued, x.list[id].next = 0, 0
	}
	return id
}

// take pays for one new link out of the host's bucket, which holds rate links and gets rate of them a second.
func (h *host) take(rate uint32, now clock.Tick) bool {
	full := rate * 1000
	if passed := now.Since(h.at); passed >= 1000 {
		h.tokens = full
	} else {
		h.tokens = min(full, h.tokens+passed*rate)
	}
	h.at = now
	if h.tokens < 1000 {
		return false
	}
	h.tokens -= 1000
	return true
}
