package rings

import (
	"errors"
	"fmt"
	"slices"
	"time"

	"golang.org/x/sys/unix"
)

// Limits and defaults of a socket.
const (
	RingSizeDefault = 2048
	RingSizeMin     = 64
	RingSizeMax     = 32768

	txBudgetKernel = 32 // packets per sendto unless the kernel can be told otherwise
	refusedMax     = 64

	bindWait     = 2 * time.Second // a closed socket's queue comes free within 14-20 ms [measured]; NICs reset more slowly
	bindPauseMin = 2 * time.Millisecond
	bindPauseMax = 100 * time.Millisecond
)

// SocketOptions says what to bind and how.
type SocketOptions struct {
	Port PortQueue
	Mode Mode // Copy or ZeroCopy; ChooseMode resolves Auto

	RingSize int // slots of RX and TX ring, a power of two; 0 means RingSizeDefault

	// TXBudget is how many packets one sendto may send in copy mode (XDP_MAX_TX_SKB_BUDGET): 0 means as many as the TX
	// ring holds. Kernels without the option send 32; Socket.TXBudget tells.
	TXBudget int

	// BusyPollUS > 0 runs the device's NAPI from this socket's system calls, for at most so many microseconds a call, and
	// BusyPollBudget packets (0 means 64). For real NICs with deferred interrupts; it does nothing on veth.
	BusyPollUS     int
	BusyPollBudget int
}

// SocketFrames returns how many frames one socket of the given ring size can hold at once, RX and TX side together. A
// worker needs that many for each of its sockets and its bursts on top.
func SocketFrames(ringSize int, m Mode) int { return fillSlots(ringSize, m) + ringSize }

// fillSlots: in zero-copy mode the NIC's own ring sits full of frames, so that the RX ring needs as many again.
func fillSlots(ringSize int, m Mode) int {
	if m == ZeroCopy {
		return 2 * ringSize
	}
	return ringSize
}

// OpenSocket binds one queue of one netdev to the UMEM. The network namespace is the calling thread's. Sockets of one UMEM
// may be opened and closed in any order, at most one for a queue. A queue that a closed socket still holds (its teardown
// is asynchronous) is waited for up to two seconds. The error is one line that names netdev, queue and remedy.
//
// The socket receives nothing before Service has filled its ring and Program.SetSocket has put it in the map.
func OpenSocket(u *UMEM, o SocketOptions) (*Socket, error) {
	if o.RingSize == 0 {
		o.RingSize = RingSizeDefault
	}
	if o.RingSize < RingSizeMin || o.RingSize > RingSizeMax || o.RingSize&(o.RingSize-1) != 0 {
		return nil, fmt.Errorf("%s: ring size %d: must be a power of two from %d to %d", o.Port, o.RingSize, RingSizeMin, RingSizeMax)
	}
	if o.Mode == Auto {
		return nil, fmt.Errorf("%s: mode auto must be resolved by ChooseMode before the first bind", o.Port)
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.closed {
		return nil, fmt.Errorf("%s: the UMEM is closed", o.Port)
	}
	for _, s := range u.sockets {
		if s.port.Index == o.Port.Index && s.port.Queue == o.Port.Queue {
			return nil, fmt.Errorf("%s: this process has bound it already: %w", o.Port, unix.EBUSY)
		}
		if s.zeroCopy != (o.Mode == ZeroCopy) {
			return nil, fmt.Errorf("%s: %s mode is not possible, the UMEM's other sockets have the other mode", o.Port, o.Mode)
		}
	}
	if u.ChunkSize() > chunkBytesMax {
		return nil, fmt.Errorf("%s: chunks of %d bytes are more than a socket takes: use 2048 or 4096", o.Port, u.ChunkSize())
	}
	fd, err := unix.Socket(unix.AF_XDP, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, explainSocket(o.Port, err)
	}
	s := &Socket{
		umem: u, port: o.Port, fd: uintptr(fd), chunkMask: u.chunkMask, zeroCopy: o.Mode == ZeroCopy,
		held: newChunkSet(u.frames, u.ChunkSize()), refused: make([]uint64, 0, refusedMax),
	}
	if err := s.setUp(o); err != nil {
		s.release()
		return nil, err
	}
	u.sockets = append(u.sockets, s)
	return s, nil
}

// setUp registers or shares the UMEM, makes and maps the rings, and binds.
func (s *Socket) setUp(o SocketOptions) error {
	fd, u := int(s.fd), s.umem
	first := len(u.sockets) == 0
	if first {
		if err := registerUMEM(fd, u.data, u.ChunkSize()); err != nil {
			return explainRegister(o.Port, u, err)
		}
	}
	fill := fillSlots(o.RingSize, o.Mode)
	for _, r := range []struct{ option, slots int }{
		{unix.XDP_UMEM_FILL_RING, fill},
		{unix.XDP_UMEM_COMPLETION_RING, o.RingSize},
		{unix.XDP_RX_RING, o.RingSize},
		{unix.XDP_TX_RING, o.RingSize},
	} {
		if err := unix.SetsockoptInt(fd, unix.SOL_XDP, r.option, r.slots); err != nil {
			return fmt.Errorf("%s: a ring of %d slots: %w: lower rings.size", o.Port, r.slots, err)
		}
	}
	if err := s.mapRings(o.RingSize, fill); err != nil {
		return fmt.Errorf("%s: %w", o.Port, err)
	}
	s.fillMax, s.txMax = uint32(fill), uint32(o.RingSize)
	s.setBudget(o)
	if err := s.setBusyPoll(o); err != nil {
		return err
	}
	addr := &unix.SockaddrXDP{Flags: unix.XDP_USE_NEED_WAKEUP, Ifindex: uint32(o.Port.Index), QueueID: uint32(o.Port.Queue)}
	switch {
	case !first:
		addr.Flags, addr.SharedUmemFD = unix.XDP_SHARED_UMEM, uint32(u.sockets[0].fd) // the rest is inherited
	case o.Mode == ZeroCopy:
		addr.Flags |= unix.XDP_ZEROCOPY
	default:
		addr.Flags |= unix.XDP_COPY
	}
	if err := bindRetry(fd, addr, bindWait); err != nil {
		return explainBind(o.Port, o.Mode, err)
	}
	var flags uint32
	if _, err := getXDPOption(fd, unix.XDP_OPTIONS, &flags); err != nil {
		return fmt.Errorf("%s: XDP_OPTIONS: %w", o.Port, err)
	}
	s.zeroCopy = flags&unix.XDP_OPTIONS_ZEROCOPY != 0
	return nil
}

// bindRetry binds; while the queue is busy it tries again with growing pauses, up to wait.
func bindRetry(fd int, addr *unix.SockaddrXDP, wait time.Duration) error {
	end := time.Now().Add(wait)
	for pause := bindPauseMin; ; pause = min(2*pause, bindPauseMax) {
		err := unix.Bind(fd, addr)
		if err == nil || !errors.Is(err, unix.EBUSY) || time.Now().After(end) {
			return err
		}
		time.Sleep(pause)
	}
}

func (s *Socket) mapRings(size, fill int) error {
	var off unix.XDPMmapOffsets
	n, err := getXDPOption(int(s.fd), unix.XDP_MMAP_OFFSETS, &off)
	if err != nil || n < int(4*slotBytes[unix.XDPRingOffset]()) {
		return fmt.Errorf("XDP_MMAP_OFFSETS (%d bytes): %w: a kernel of 5.4 or later is needed", n, err)
	}
	for i, r := range []struct {
		pgoff  int64
		length int
	}{
		{unix.XDP_PGOFF_RX_RING, ringBytes[Frame](off.Rx, size)},
		{unix.XDP_PGOFF_TX_RING, ringBytes[Frame](off.Tx, size)},
		{unix.XDP_UMEM_PGOFF_FILL_RING, ringBytes[uint64](off.Fr, fill)},
		{unix.XDP_UMEM_PGOFF_COMPLETION_RING, ringBytes[uint64](off.Cr, size)},
	} {
		if s.mem[i], err = mapRing(int(s.fd), r.pgoff, r.length); err != nil {
			return err
		}
	}
	s.rx = newConsumer[Frame](s.mem[0], off.Rx, size)
	s.tx = newProducer[Frame](s.mem[1], off.Tx, size)
	s.fill = newProducer[uint64](s.mem[2], off.Fr, fill)
	s.cq = newConsumer[uint64](s.mem[3], off.Cr, size)
	return nil
}

// setBudget raises the packets per sendto. The kernel takes 32 to the size of the TX ring, which must exist already.
func (s *Socket) setBudget(o SocketOptions) {
	s.budget = txBudgetKernel
	want := o.TXBudget
	if want == 0 || want > o.RingSize {
		want = o.RingSize
	}
	if want < txBudgetKernel {
		want = txBudgetKernel
	}
	if unix.SetsockoptInt(int(s.fd), unix.SOL_XDP, unix.XDP_MAX_TX_SKB_BUDGET, want) == nil {
		s.budget = want
	} else if o.Mode == Copy {
		s.notice = fmt.Sprintf("%s: this kernel sends %d packets per system call and can't be told otherwise (6.18 can)", o.Port, txBudgetKernel)
	}
}

func (s *Socket) setBusyPoll(o SocketOptions) error {
	if o.BusyPollUS <= 0 {
		return nil
	}
	budget := o.BusyPollBudget
	if budget <= 0 {
		budget = 64
	}
	for _, opt := range []struct {
		name         string
		option, want int
	}{
		{"SO_PREFER_BUSY_POLL", unix.SO_PREFER_BUSY_POLL, 1},
		{"SO_BUSY_POLL", unix.SO_BUSY_POLL, o.BusyPollUS},
		{"SO_BUSY_POLL_BUDGET", unix.SO_BUSY_POLL_BUDGET, budget},
	} {
		if err := unix.SetsockoptInt(int(s.fd), unix.SOL_SOCKET, opt.option, opt.want); err != nil {
			return fmt.Errorf("%s: busy polling: %s = %d: %w: leave it off", o.Port, opt.name, opt.want, err)
		}
	}
	s.busyPoll = true
	return nil
}

// Close takes the socket off its queue and returns every frame that it held to p, wherever the kernel kept it. The
// worker must have ended with it, and its program must no longer lead to it. A zero-copy NIC may write into frames until
// its queue is torn down, so Close waits for that first.
func (s *Socket) Close(p *Pool) error {
	u := s.umem
	u.mu.Lock()
	defer u.mu.Unlock()
	i := slices.Index(u.sockets, s)
	if i < 0 {
		return nil
	}
	u.sockets = slices.Delete(u.sockets, i, i+1)
	err := s.release()
	if s.zeroCopy {
		err = errors.Join(err, waitUnbound(s.port, bindWait))
	}
	s.takeBack(p)
	s.filled, s.sending = 0, 0
	return err
}

// takeBack puts every frame that the kernel held for the socket into p.
func (s *Socket) takeBack(p *Pool) {
	for i, in := range s.held.in {
		if in != 0 {
			p.Put(uint64(i) << s.held.shift)
		}
	}
	for _, addr := range s.refused {
		p.Put(addr)
	}
	clear(s.held.in)
	s.refused = s.refused[:0]
}

// release unmaps the rings, which hold the socket open, and closes it.
func (s *Socket) release() error {
	var err error
	for i, m := range s.mem {
		if m != nil {
			err = errors.Join(err, unix.Munmap(m))
			s.mem[i] = nil
		}
	}
	return errors.Join(err, unix.Close(int(s.fd)))
}

// waitUnbound returns when nothing is bound to q any more: when another socket can be bound there, in copy mode, which
// leaves the NIC alone. A netdev that has gone counts as unbound.
func waitUnbound(q PortQueue, wait time.Duration) error {
	u, err := NewUMEM(UMEMOptions{Frames: 1})
	if err != nil {
		return err
	}
	defer u.Close()
	fd, err := unix.Socket(unix.AF_XDP, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	defer unix.Close(fd)
	if err := registerUMEM(fd, u.data, u.ChunkSize()); err != nil {
		return err
	}
	for _, option := range []int{unix.XDP_UMEM_FILL_RING, unix.XDP_UMEM_COMPLETION_RING, unix.XDP_RX_RING} {
		if err := unix.SetsockoptInt(fd, unix.SOL_XDP, option, RingSizeMin); err != nil {
			return err
		}
	}
	err = bindRetry(fd, &unix.SockaddrXDP{Flags: unix.XDP_COPY, Ifindex: uint32(q.Index), QueueID: uint32(q.Queue)}, wait)
	if errors.Is(err, unix.ENODEV) || errors.Is(err, unix.ENETDOWN) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("%s: the driver still holds the frames of the closed socket: %w", q, err)
	}
	return nil
}

// Statistics are the kernel's own counts of what went wrong on a socket (XDP_STATISTICS), in packets.
type Statistics struct {
	RXDropped     uint64 // for other reasons
	RXInvalid     uint64 // fill ring entries that name no chunk
	TXInvalid     uint64 // TX descriptors that were refused
	RXRingFull    uint64 // the worker was too slow
	FillRingEmpty uint64 // no frame to receive into
	TXRingEmpty   uint64 // the kernel looked and found nothing to send
}

// Statistics asks the kernel.
func (s *Socket) Statistics() (Statistics, error) {
	var st Statistics
	if _, err := getXDPOption(int(s.fd), unix.XDP_STATISTICS, &st); err != nil {
		return st, fmt.Errorf("%s: XDP_STATISTICS: %w", s.port, err)
	}
	return st, nil
}
