package pktgen

import (
	"errors"
	"fmt"
	"net"
	"runtime"
	"sync"
	"sync/atomic"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"pollux/internal/cpu"
	"pollux/rings"
)

// verifyEvery is of how many packets one has its checksums verified.
const verifyEvery = 64

// SinkOptions says where to listen.
type SinkOptions struct {
	Device     string
	Backend    Backend
	Queues     []int // AFXDP: one thread each, default queue 0
	Cores      []int // AFXDP: the i-th thread's; empty: not pinned
	RTPriority int   // AFXDP: FIFO priority of the threads
	BackEvery  int   // Kernel: send every so manyth packet of a stream back to where it came from; 0: none
}

// OpenSink begins to count test packets that arrive on a device of the calling thread's network namespace. Other packets
// go on to the kernel's stack.
func OpenSink(o SinkOptions) (Sink, error) {
	dev, err := net.InterfaceByName(o.Device)
	if err != nil {
		return nil, fmt.Errorf("pktgen: no network device %q; `ip link` lists them", o.Device)
	}
	if o.Backend == Kernel {
		s, err := openKernelSink(o, dev.Index)
		if err != nil {
			return nil, fmt.Errorf("pktgen: %w", err)
		}
		return s, nil
	}
	if o.BackEvery != 0 {
		return nil, errors.New("pktgen: only the kernel's sink sends packets back")
	}
	s, err := openSocketSink(o, dev.Index)
	if err != nil {
		return nil, fmt.Errorf("pktgen: %w", err)
	}
	return s, nil
}

// socketSink receives through AF_XDP sockets, a thread each.
type socketSink struct {
	o       SinkOptions
	umem    *rings.UMEM
	sockets []*rings.Socket
	pools   []*rings.Pool
	parts   []*analysis
	program *ebpf.Program
	table   *ebpf.Map
	link    link.Link
	stop    atomic.Bool
	threads sync.WaitGroup
	ended   sync.Once
	errs    []error
}

func openSocketSink(o SinkOptions, ifindex int) (*socketSink, error) {
	if len(o.Queues) == 0 {
		o.Queues = []int{0}
	}
	if len(o.Cores) != 0 && len(o.Cores) != len(o.Queues) {
		return nil, fmt.Errorf("%d queues, but %d cores: give one for each, or none", len(o.Queues), len(o.Cores))
	}
	s := &socketSink{o: o, errs: make([]error, len(o.Queues))}
	if err := s.open(ifindex); err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

func (s *socketSink) open(ifindex int) error {
	queues := make([]rings.PortQueue, len(s.o.Queues))
	for i, q := range s.o.Queues {
		queues[i] = rings.PortQueue{Name: s.o.Device, Index: ifindex, Queue: q}
	}
	mode, _, err := rings.ChooseMode(rings.Auto, queues)
	if err != nil {
		return err
	}
	per := rings.SocketFrames(rings.RingSizeDefault, mode) + burstMax
	if s.umem, err = rings.NewUMEM(rings.UMEMOptions{Frames: per * len(queues)}); err != nil {
		return err
	}
	spec, err := loadKernel()
	if err != nil {
		return err
	}
	var obj struct {
		Program *ebpf.Program `ebpf:"to_socket"`
		Sockets *ebpf.Map     `ebpf:"sockets"`
	}
	if err := spec.LoadAndAssign(&obj, nil); err != nil {
		return fmt.Errorf("load the sink's XDP program: %w", err)
	}
	s.program, s.table = obj.Program, obj.Sockets
	for i, q := range queues {
		pool, err := s.umem.NewPool(per)
		if err != nil {
			return err
		}
		socket, err := rings.OpenSocket(s.umem, rings.SocketOptions{Port: q, Mode: mode})
		if err != nil {
			return err
		}
		s.pools, s.sockets = append(s.pools, pool), append(s.sockets, socket)
		socket.Service(pool)
		if err := s.table.Put(uint32(s.o.Queues[i]), uint32(socket.FD())); err != nil {
			return fmt.Errorf("%s: %w", q, err)
		}
		s.parts = append(s.parts, &analysis{histogram: newHistogram()})
	}
	for i := range s.sockets {
		s.threads.Add(1)
		go s.receive(i)
	}
	s.link, err = link.AttachXDP(link.XDPOptions{Program: s.program, Interface: ifindex, Flags: link.XDPDriverMode})
	if errors.Is(err, unix.EOPNOTSUPP) {
		s.link, err = link.AttachXDP(link.XDPOptions{Program: s.program, Interface: ifindex, Flags: link.XDPGenericMode})
	}
	if err != nil {
		return fmt.Errorf("%s: attach the sink's XDP program: %w", s.o.Device, err)
	}
	return nil
}

// receive is one thread; its loop allocates nothing once it has seen each stream.
func (s *socketSink) receive(i int) {
	defer s.threads.Done()
	runtime.LockOSThread() // for good: the thread may be pinned
	if len(s.o.Cores) > 0 {
		if s.errs[i] = cpu.Pin(s.o.Cores[i]); s.errs[i] != nil {
			return
		}
	}
	if s.o.RTPriority > 0 {
		if s.errs[i] = cpu.SetFIFO(s.o.RTPriority); s.errs[i] != nil {
			return
		}
	}
	var burst [burstMax]rings.Frame
	fds := []unix.PollFd{{Fd: int32(s.sockets[i].FD()), Events: unix.POLLIN}}
	for !s.stop.Load() {
		if s.round(i, &burst) == 0 {
			_, _ = unix.Poll(fds, 20)
		}
	}
}

// round takes one burst and returns how many frames it was.
func (s *socketSink) round(i int, burst *[burstMax]rings.Frame) int {
	socket, pool, a := s.sockets[i], s.pools[i], s.parts[i]
	n := socket.Receive(burst[:])
	if n > 0 {
		now := Now()
		stamped := uint64(0)
		for _, f := range burst[:n] {
			data := s.umem.Data(f)
			if stamp, ok := FindStamp(data); ok {
				a.see(stamp, len(data)+crcBytes, now)
				stamped++
				if stamp.Seq%verifyEvery == 0 {
					a.looked++
					if verify(data) != nil {
						a.badSums++
					}
				}
			}
			pool.Put(s.umem.Chunk(f.Addr))
		}
		a.received.Add(stamped)
	}
	socket.Service(pool)
	return n
}

func (s *socketSink) Received() (n uint64) {
	for _, p := range s.parts {
		n += p.received.Load()
	}
	return n
}

// Arrivals ends the threads: an AF_XDP sink counts no more afterwards.
func (s *socketSink) Arrivals() (Arrivals, error) {
	s.end()
	return merge(s.parts), errors.Join(s.errs...)
}

func (s *socketSink) end() {
	s.ended.Do(func() {
		s.stop.Store(true)
		s.threads.Wait()
	})
}

func (s *socketSink) Close() error {
	s.end()
	var errs []error
	if s.link != nil {
		errs = append(errs, s.link.Close())
	}
	for i, socket := range s.sockets {
		errs = append(errs, socket.Close(s.pools[i]))
	}
	if s.program != nil {
		errs = append(errs, s.program.Close(), s.table.Close())
	}
	if s.umem != nil {
		errs = append(errs, s.umem.Close())
	}
	s.link, s.sockets, s.program, s.umem = nil, nil, nil, nil
	return errors.Join(errs...)
}
