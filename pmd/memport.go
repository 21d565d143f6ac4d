package pmd

import "pollux/rings"

// MemPort is a Port in memory: tests, benchmarks and replay run the very same worker over it, with the same UMEM frames
// as AF_XDP sockets. It is the worker's goroutine's, as every Port.
type MemPort struct {
	// Out, if not nil, sees every transmitted frame; the bytes are valid during the call only.
	Out func(frame []byte)
	// Room is how many frames Transmit takes between two calls of Service: the size of the transmit ring.
	Room int

	umem *rings.UMEM
	in   []rings.Frame // received frames not yet taken, from head on
	head int
	sent []rings.Frame // transmitted, not yet completed
}

// NewMemPort returns a port with room for ring frames in each direction.
func NewMemPort(umem *rings.UMEM, ring int) *MemPort {
	return &MemPort{umem: umem, Room: ring, in: make([]rings.Frame, 0, ring), sent: make([]rings.Frame, 0, ring)}
}

// Push lets the port receive a copy of a packet, in a frame of the pool. ok is false when there is no free frame, the
// packet is longer than a chunk, or the ring is full.
func (m *MemPort) Push(pool *rings.Pool, packet []byte) (chunk uint64, ok bool) {
	if m.head == len(m.in) {
		m.in, m.head = m.in[:0], 0
	}
	if len(m.in) == cap(m.in) || len(packet) > m.umem.ChunkSize() {
		return 0, false
	}
	addr, ok := pool.Get()
	if !ok {
		return 0, false
	}
	f := rings.Frame{Addr: addr, Len: uint32(len(packet))}
	copy(m.umem.Data(f), packet)
	m.in = append(m.in, f)
	return addr, true
}

// Receive is Port's.
func (m *MemPort) Receive(b []rings.Frame) int {
	n := copy(b, m.in[m.head:])
	m.head += n
	return n
}

// Transmit is Port's.
func (m *MemPort) Transmit(b []rings.Frame) int {
	n := min(len(b), m.Room-len(m.sent), cap(m.sent)-len(m.sent))
	for _, f := range b[:n] {
		if m.Out != nil {
			m.Out(m.umem.Data(f))
		}
		m.sent = append(m.sent, f)
	}
	return n
}

// Service is Port's: what was transmitted is free again.
func (m *MemPort) Service(p *rings.Pool) {
	for _, f := range m.sent {
		p.Put(m.umem.Chunk(f.Addr))
	}
	m.sent = m.sent[:0]
}
