package rings

import (
	"errors"
	"fmt"
	"net"
	"runtime"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

// Forwarder sends what comes in on one port out of the other, with new MAC addresses and nothing else: what AF_XDP costs
// by itself, for comparison with a worker that translates.
type Forwarder struct {
	umem  *UMEM
	pool  *Pool
	ports [2]*Socket
	macs  [2][12]byte // written over the first 12 bytes of what leaves by port i
	burst []Frame
	full  uint64
	stop  atomic.Bool
}

// ForwarderOptions says which sockets to join.
type ForwarderOptions struct {
	UMEM    *UMEM
	Pool    *Pool // of UMEM, with frames for both sockets
	Ports   [2]*Socket
	NextHop [2]net.HardwareAddr // destination MAC of what leaves by port i
	MAC     [2]net.HardwareAddr // source MAC of it: the port's own
	Burst   int                 // packets at a time; 0 means 64
}

// NewForwarder checks the options. The sockets, UMEM and pool stay the caller's.
func NewForwarder(o ForwarderOptions) (*Forwarder, error) {
	if o.Burst <= 0 {
		o.Burst = 64
	}
	f := &Forwarder{umem: o.UMEM, pool: o.Pool, ports: o.Ports, burst: make([]Frame, o.Burst)}
	for i := range f.ports {
		if len(o.NextHop[i]) != 6 || len(o.MAC[i]) != 6 {
			return nil, fmt.Errorf("forwarder: port %d needs a next hop and a source MAC address", i)
		}
		copy(f.macs[i][:6], o.NextHop[i])
		copy(f.macs[i][6:], o.MAC[i])
	}
	return f, nil
}

// Poll does one round over both directions and returns how many packets it received.
func (f *Forwarder) Poll() (work int) {
	work = f.direction(f.ports[0], f.ports[1], &f.macs[1])
	return work + f.direction(f.ports[1], f.ports[0], &f.macs[0])
}

func (f *Forwarder) direction(in, out *Socket, macs *[12]byte) int {
	out.Service(f.pool)
	n := in.Receive(f.burst)
	if n == 0 {
		return 0
	}
	b := f.burst[:n]
	for i := range b {
		if p := f.umem.Data(b[i]); len(p) >= len(macs) {
			copy(p, macs[:])
		}
	}
	sent := out.Transmit(b)
	for i := sent; i < n; i++ {
		f.pool.Put(f.umem.Chunk(b[i].Addr))
	}
	f.full += uint64(n - sent)
	return n
}

// Run polls until Stop. With sleep it blocks in poll(2) when nothing is to be done, otherwise it spins. The caller pins
// the thread and sets its priority.
func (f *Forwarder) Run(sleep bool) error {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	fds := []unix.PollFd{{Fd: int32(f.ports[0].FD()), Events: unix.POLLIN}, {Fd: int32(f.ports[1].FD()), Events: unix.POLLIN}}
	for !f.stop.Load() {
		if f.Poll() != 0 || !sleep || f.ports[0].Pending() || f.ports[1].Pending() {
			continue
		}
		if _, err := unix.Poll(fds, 100); err != nil && !errors.Is(err, unix.EINTR) {
			return fmt.Errorf("forwarder: poll: %w", err)
		}
	}
	return nil
}

// Stop ends Run; any goroutine may call it.
func (f *Forwarder) Stop() { f.stop.Store(true) }

// Dropped returns how many packets found the TX ring full.
func (f *Forwarder) Dropped() uint64 { return f.full }
