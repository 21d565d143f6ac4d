package pktgen

import (
	"errors"
	"fmt"
	"math"
	"net"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"pollux/internal/cpu"
)

// Backend says who makes or counts the packets; see the package comment.
type Backend uint8

const (
	AFXDP Backend = iota
	Kernel
)

// ParseBackend reads "afxdp" or "kernel".
func ParseBackend(s string) (Backend, error) {
	for _, b := range []Backend{AFXDP, Kernel} {
		if s == b.String() {
			return b, nil
		}
	}
	return 0, fmt.Errorf("%q is no backend: write afxdp or kernel", s)
}

// String is ParseBackend's word.
func (b Backend) String() string { return [...]string{"afxdp", "kernel"}[b] }

// Options says what to send. The device is one of the calling thread's network namespace.
type Options struct {
	Device     string
	SrcMAC     net.HardwareAddr // nil: the device's
	DstMAC     net.HardwareAddr // the next hop's
	Protocol   Protocol
	Sizes      Sizes
	Flows      Flows
	Rate       float64 // packets per second, all queues together; 0: as fast as can be
	Duration   time.Duration
	Count      uint64 // packets; Duration or Count must be given
	Backend    Backend
	Queues     []int // AFXDP: one thread each, default queue 0; Kernel: only how many
	Cores      []int // the i-th thread's; empty: not pinned
	RTPriority int   // FIFO priority of the threads, 0: none
	Run        uint8 // tells runs apart in a sink that outlives one
}

// Report is what a generator did. In the kernel a packet counts as sent once it is redirected; whether the device took it,
// only the device's counters tell.
type Report struct {
	Sent    uint64  `json:"sent"`
	Bytes   uint64  `json:"bytes"` // with the frames' checksums
	Seconds float64 `json:"seconds"`
	PPS     float64 `json:"pps"`
	Notice  string  `json:"notice,omitempty"`
}

// Generator sends one stream per thread. NewGenerator opens all it needs, Run sends, Close gives it back.
type Generator struct {
	o       Options
	ifindex int
	notice  string
	threads []*thread
	shared  closer // what threads have in common
	stop    atomic.Bool
}

type closer interface{ close() error }

// sender is a backend's part of one thread.
type sender interface {
	closer
	send(th *thread) error // until the thread's bounds, or stop
}

// thread is one stream. Only its own goroutine touches it while it runs, but for sent.
type thread struct {
	sender   sender
	template *template
	flows    *Flows
	stop     *atomic.Bool
	rate     float64
	duration time.Duration
	count    uint64
	random   uint64        // state
	breathes bool          // Kernel: pause between calls
	took     time.Duration // from the first packet to the last, when the sender knows; else the time of Run counts
	sent     atomic.Uint64
	_        [128]byte
}

// NewGenerator checks the options, which must bound the run, and opens the device.
func NewGenerator(o Options) (*Generator, error) {
	if o.Duration <= 0 && o.Count == 0 {
		return nil, errors.New("pktgen: give a duration or a number of packets: there is no sending without end")
	}
	if o.Rate < 0 || math.IsNaN(o.Rate) || o.Rate > 1e9 {
		return nil, fmt.Errorf("pktgen: a rate of %g packets a second is not possible", o.Rate)
	}
	if o.Duration <= 0 {
		o.Duration = math.MaxInt64 / 4
	}
	if o.Count == 0 {
		o.Count = math.MaxUint64
	}
	if len(o.Sizes) == 0 {
		o.Sizes = Sizes{SizeMin}
	}
	if len(o.Queues) == 0 {
		o.Queues = []int{0}
	}
	if len(o.Queues) > 64 {
		return nil, fmt.Errorf("pktgen: %d queues, at most 64 are possible", len(o.Queues))
	}
	if len(o.Cores) != 0 && len(o.Cores) != len(o.Queues) {
		return nil, fmt.Errorf("pktgen: %d queues, but %d cores: give one for each, or none", len(o.Queues), len(o.Cores))
	}
	if err := o.Flows.check(); err != nil {
		return nil, fmt.Errorf("pktgen: %w", err)
	}
	dev, err := net.InterfaceByName(o.Device)
	if err != nil {
		return nil, fmt.Errorf("pktgen: no network device %q; `ip link` lists them", o.Device)
	}
	if o.SrcMAC == nil {
		o.SrcMAC = dev.HardwareAddr
	}
	g := &Generator{o: o, ifindex: dev.Index}
	n := uint64(len(o.Queues))
	for i := range o.Queues {
		t, notice, err := newTemplate(&g.o.Flows, o.Protocol, o.Sizes, o.SrcMAC, o.DstMAC, o.Run, uint8(i))
		if err != nil {
			return nil, fmt.Errorf("pktgen: %w", err)
		}
		g.notice = notice
		th := &thread{template: t, flows: &g.o.Flows, stop: &g.stop, rate: o.Rate / float64(n), duration: o.Duration, count: o.Count, random: uint64(i) + 1, breathes: o.RTPriority > 0}
		if o.Count != math.MaxUint64 {
			th.count = o.Count / n
			if uint64(i) < o.Count%n {
				th.count++
			}
		}
		g.threads = append(g.threads, th)
	}
	open := g.openAFXDP
	if o.Backend == Kernel {
		open = g.openKernel
	}
	if err := open(); err != nil {
		g.Close()
		return nil, fmt.Errorf("pktgen: %w", err)
	}
	return g, nil
}

// Run sends until the bounds are reached or Stop is called. It must be called on a thread of the device's network
// namespace, at most once.
func (g *Generator) Run() (Report, error) {
	start := time.Now()
	errs := make([]error, len(g.threads))
	var wg sync.WaitGroup
	run := func(i int) {
		defer wg.Done()
		// The thread is left locked, so it ends with the goroutine: nobody else gets its core and priority.
		runtime.LockOSThread()
		if err := g.place(i); err != nil {
			errs[i] = err
			return
		}
		errs[i] = g.threads[i].sender.send(g.threads[i])
	}
	ns, err := currentNamespace()
	if err != nil {
		return Report{}, err
	}
	defer unix.Close(ns)
	for i := range g.threads {
		wg.Add(1)
		go func() {
			runtime.LockOSThread()
			if err := unix.Setns(ns, unix.CLONE_NEWNET); err != nil {
				errs[i] = fmt.Errorf("enter the device's network namespace: %w", err)
				wg.Done()
				return
			}
			run(i)
		}()
	}
	wg.Wait()
	took := time.Duration(0)
	for _, th := range g.threads {
		took = max(took, th.took)
	}
	if took == 0 {
		took = time.Since(start)
	}
	return g.report(took), errors.Join(errs...)
}

func (g *Generator) place(i int) error {
	if len(g.o.Cores) > 0 {
		if err := cpu.Pin(g.o.Cores[i]); err != nil {
			return err
		}
	}
	if g.o.RTPriority > 0 {
		return cpu.SetFIFO(g.o.RTPriority)
	}
	return nil
}

func (g *Generator) report(d time.Duration) Report {
	r := Report{Sent: g.Sent(), Seconds: d.Seconds(), Notice: g.notice}
	r.Bytes = uint64(float64(r.Sent) * g.o.Sizes.Mean())
	r.PPS = float64(r.Sent) / r.Seconds
	return r
}

// Sent returns how many packets have been sent so far. Any goroutine may call it.
func (g *Generator) Sent() (n uint64) {
	for _, th := range g.threads {
		n += th.sent.Load()
	}
	return n
}

// Stop ends Run early; any goroutine may call it.
func (g *Generator) Stop() { g.stop.Store(true) }

// Notice says in one line what was asked for and is not so; empty when nothing.
func (g *Generator) Notice() string { return g.notice }

// Close gives everything back. Run must have returned.
func (g *Generator) Close() error {
	var errs []error
	for _, th := range g.threads {
		if th.sender != nil {
			errs = append(errs, th.sender.close())
		}
	}
	if g.shared != nil {
		errs = append(errs, g.shared.close())
	}
	g.threads, g.shared = nil, nil
	return errors.Join(errs...)
}

// nextFlow picks the flow of the next packet.
func (th *thread) nextFlow(seq uint64, elapsedNS int64) uint64 {
	f := th.flows
	n := seq
	if f.Random {
		th.random ^= th.random << 13
		th.random ^= th.random >> 7
		th.random ^= th.random << 17
		n = th.random
	}
	n %= f.Count
	if f.NewPerS > 0 {
		n += uint64(float64(elapsedNS) * f.NewPerS / 1e9)
	}
	return n % f.space
}

// Now returns CLOCK_MONOTONIC in nanoseconds, the time in stamps.
func Now() uint64 {
	var ts unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &ts) // the clock exists
	return uint64(ts.Nano())
}

func currentNamespace() (int, error) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	fd, err := unix.Open("/proc/thread-self/ns/net", unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return -1, fmt.Errorf("which network namespace this is: %w", err)
	}
	return fd, nil
}
