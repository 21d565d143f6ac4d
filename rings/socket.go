package rings

import (
	"golang.org/x/sys/unix"
)

// Socket is one AF_XDP socket: one queue of one netdev, with its own four rings, on a shared UMEM. It is a pmd.Port.
// OpenSocket makes one.
type Socket struct {
	// What the worker touches on every burst.
	rx   consumer[Frame]
	tx   producer[Frame]
	cq   consumer[uint64]
	fill producer[uint64]
	held chunkSet // chunks in the kernel's hands

	chunkMask uint64
	fillMax   uint32 // frames kept in fill and RX ring together; both rings have room for them
	txMax     uint32 // frames kept in TX and completion ring together
	filled    uint32 // frames in fill and RX ring, and on their way in the kernel
	sending   uint32 // frames in TX and completion ring, and on their way
	fd        uintptr
	behind    bool // the last kick left frames in the TX ring that nobody but another kick will move
	down      bool // the last kick failed: link down or device gone
	busyPoll  bool // NAPI runs from our system calls
	refused   []uint64
	count     Counters

	// What never changes.
	umem     *UMEM
	port     PortQueue
	zeroCopy bool
	budget   int
	notice   string
	mem      [4][]byte
}

// Counters of one socket. Packets, but for bytes and kicks.
type Counters struct {
	Received    uint64 // taken from the RX ring
	Queued      uint64 // put on the TX ring
	RXBytes     uint64 // of Received: Ethernet header included, frame check sequence not
	TXBytes     uint64 // of Queued
	Completed   uint64 // given back by the completion ring: transmitted
	Refused     uint64 // descriptors that the kernel would reject for ever: no length, or beyond the chunk
	Kicks       uint64 // sendto calls
	KickRetries uint64 // of those, repeated because the kernel wanted to be called again
	KickErrors  uint64 // of those, failed otherwise; LastError tells how
	Wakeups     uint64 // recvfrom calls
	LastError   unix.Errno
}

// Frames counts the frames a socket holds, by place.
type Frames struct {
	Fill uint64 // fill ring and the kernel's receive side
	RX   uint64 // received, not taken yet
	TX   uint64 // TX ring, the kernel's transmit side, and completions not taken yet
}

// Receive takes up to len(b) received frames. The caller owns them from then on.
func (s *Socket) Receive(b []Frame) int {
	n := s.rx.available(uint32(len(b)))
	if n == 0 {
		return 0
	}
	if n > uint32(len(b)) {
		n = uint32(len(b))
	}
	b = b[:n]
	s.rx.take(b)
	bytes := uint64(0)
	for i := range b {
		s.held.remove(b[i].Addr)
		bytes += uint64(b[i].Len)
	}
	s.filled -= n
	s.count.Received += uint64(n)
	s.count.RXBytes += bytes
	return int(n)
}

// Transmit queues frames and kicks the kernel when needed. It returns how many were taken, from the front; the rest stay
// the caller's. A frame that the kernel would never send (length 0, or beyond its chunk) is taken, counted as Refused and
// given back by the next Service.
func (s *Socket) Transmit(b []Frame) int {
	if room := s.txMax - s.sending; uint32(len(b)) > room {
		b = b[:room]
	}
	n, bytes := uint32(0), uint64(0)
	for i := range b {
		f := &b[i]
		if f.Len-1 > uint32(s.chunkMask-(f.Addr&s.chunkMask)) { // also when Len is 0
			if len(s.refused) == cap(s.refused) {
				b = b[:i]
				break
			}
			s.refused = append(s.refused, f.Addr&^s.chunkMask)
			s.count.Refused++
			continue
		}
		*s.tx.slot(n) = Frame{Addr: f.Addr, Len: f.Len}
		s.held.add(f.Addr)
		n++
		bytes += uint64(f.Len)
	}
	if n > 0 {
		s.tx.publish(n)
		s.sending += n
		s.count.Queued += uint64(n)
		s.count.TXBytes += bytes
		if s.tx.needWakeup() {
			s.kick()
		}
	}
	return len(b)
}

// Service returns transmitted frames to the pool and refills the fill ring from it. It is called once per poll round.
func (s *Socket) Service(p *Pool) {
	if s.sending != 0 {
		s.reap(p)
		if s.behind && s.tx.needWakeup() {
			s.kick()
		}
	}
	for _, addr := range s.refused {
		p.Put(addr)
	}
	s.refused = s.refused[:0]
	if s.filled < s.fillMax {
		s.refill(p)
	}
	if s.busyPoll || s.fill.needWakeup() {
		s.wake()
	}
}

// reap takes all completions.
func (s *Socket) reap(p *Pool) {
	n := s.cq.available(s.sending)
	if n == 0 {
		return
	}
	for i := uint32(0); i < n; i++ {
		addr := *s.cq.slot(i) &^ s.chunkMask
		s.held.remove(addr)
		p.Put(addr)
	}
	s.cq.release(n)
	s.sending -= n
	s.count.Completed += uint64(n)
}

// refill gives the kernel as many frames as it is short of and the pool has.
func (s *Socket) refill(p *Pool) {
	n := s.fillMax - s.filled
	if free := uint32(p.Len()); n > free {
		n = free
	}
	if n == 0 {
		return
	}
	for i := uint32(0); i < n; i++ {
		addr, _ := p.Get()
		*s.fill.slot(i) = addr
		s.held.add(addr)
	}
	s.fill.publish(n)
	s.filled += n
}

// kickStallsMax is how many calls in a row may move nothing before a kick leaves the rest to the next Service.
const kickStallsMax = 4

// kick has the kernel send what is on the TX ring. In copy mode one call sends at most the budget and then asks to be
// called again (EAGAIN); it may also lack socket memory or a slot in the device's queue until packets have left.
//
// The call never blocks (MSG_DONTWAIT), so it needs no word with the scheduler: RawSyscall. A kick of 64 packets takes
// about 35 us, longer than the 20 us after which the runtime's watchdog may give the processor of a thread in an ordinary
// system call away. Where core and watchdog are left alone the two kinds of call cost the same within the noise [measured].
func (s *Socket) kick() {
	left := s.tx.pending()
	s.down = false
	for stalls := 0; ; {
		s.count.Kicks++
		_, _, errno := unix.RawSyscall6(unix.SYS_SENDTO, s.fd, 0, 0, unix.MSG_DONTWAIT, 0, 0)
		was := left
		left = s.tx.pending()
		if left == 0 {
			break
		}
		switch errno {
		case 0:
			// A zero-copy driver was woken and sends by itself. In copy mode the completion ring is full: reap first.
		case unix.EAGAIN, unix.EBUSY, unix.ENOBUFS:
			s.count.KickRetries++
			if left == was {
				stalls++
			}
			if stalls < kickStallsMax {
				continue
			}
		default: // ENETDOWN, ENXIO: the frames wait until the link is up or the socket closed
			s.count.KickErrors++
			s.count.LastError = errno
			s.down = true
		}
		s.behind = !s.zeroCopy || errno != 0
		return
	}
	s.behind = false
}

// wake lets a driver that found the fill ring empty, or that is busy-polled, run its receive side.
func (s *Socket) wake() {
	s.count.Wakeups++
	_, _, _ = unix.RawSyscall6(unix.SYS_RECVFROM, s.fd, 0, 0, unix.MSG_DONTWAIT, 0, 0)
}

// Pending reports whether the TX ring holds frames that another Service can get sent: do not sleep now.
func (s *Socket) Pending() bool { return s.behind && !s.down }

// Frames counts the frames that the socket holds at this moment. The sum of all sockets', pools' and workers' frames is
// constant.
func (s *Socket) Frames() Frames {
	rx := uint64(s.rx.available(^uint32(0)))
	return Frames{Fill: uint64(s.filled) - rx, RX: rx, TX: uint64(s.sending) + uint64(len(s.refused))}
}

// Counters returns the socket's counters since it was opened.
func (s *Socket) Counters() Counters { return s.count }

// FD returns the descriptor to poll for POLLIN, -1 once the socket is abandoned. It stays the socket's.
func (s *Socket) FD() int { return int(s.fd) }

// Port returns which queue of which netdev this is.
func (s *Socket) Port() PortQueue { return s.port }

// ZeroCopy reports what the kernel bound: zero-copy, or copy.
func (s *Socket) ZeroCopy() bool { return s.zeroCopy }

// TXBudget returns how many packets one sendto sends in copy mode: 32 where the kernel can't be told otherwise.
func (s *Socket) TXBudget() int { return s.budget }

// Notice says in one line what was asked for and not to be had; empty when nothing.
func (s *Socket) Notice() string { return s.notice }
