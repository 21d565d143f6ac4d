package pktgen

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

// A system call costs the kernel two RCU grace periods besides its packets (it makes the program known to the dispatcher and
// forgets it again), tens of milliseconds on a busy machine, in which nothing is sent. So calls are long, and what they leave
// out is taken off the time of the run only before its first packet.
const (
	callTime  = time.Second // after which Stop is looked at and progress is published
	callFirst = 1 << 12     // repetitions of the call that tells what one costs
	callMin   = 1 << 12
	callMax   = 1 << 28

	// fullNS is less than what a packet takes at full speed, so that one call is enough and its last repetitions, after the end, are
	// idle ones: the pause between two calls would count as a time in which nothing was offered.
	fullNS = 150

	// breath is how long a real-time generator then leaves its core to others.
	breath = 60 * time.Microsecond
)

// kernelTimes are the program's variables.
type kernelTimes struct {
	Sent     *ebpf.Variable `ebpf:"sent"`
	Duration *ebpf.Variable `ebpf:"duration_ns"`
	Start    *ebpf.Variable `ebpf:"start_ns"`
	Last     *ebpf.Variable `ebpf:"last_ns"`
	Call     *ebpf.Variable `ebpf:"call_ns"`
	Called   *ebpf.Variable `ebpf:"called_ns"`
}

// kernelSender sends by BPF_PROG_TEST_RUN.
type kernelSender struct {
	program *ebpf.Program
	kernelTimes
	frame   []byte
	context [24]byte
}

func (g *Generator) openKernel() error {
	for _, th := range g.threads {
		s := &kernelSender{frame: make([]byte, headerMax)}
		for _, z := range th.template.pattern {
			if z.bytes > len(s.frame) {
				s.frame = make([]byte, z.bytes)
			}
		}
		th.sender = s
		if err := s.load(th, g.ifindex); err != nil {
			return err
		}
	}
	return nil
}

func (s *kernelSender) load(th *thread, ifindex int) error {
	spec, err := loadKernel()
	if err != nil {
		return err
	}
	f, t := th.flows, th.template
	c := kernelConfig{
		Flows: f.Count, Space: f.space, Limit: th.count, NewFlows: uint64(f.NewPerS), Ifindex: uint32(ifindex),
		Src: f.Src.low32(), Srcs: f.Src.Count, Dst: f.Dst.low32(), Dsts: f.Dst.Count, DstStep: f.step(),
		Sport: uint32(f.SrcPorts.First), Sports: f.SrcPorts.Count, Dport: uint32(f.DstPorts.First), Dports: f.DstPorts.Count,
		Patterns: uint32(len(t.pattern)), TemplateBytes: uint32(len(s.frame)), Proto: t.proto,
	}
	if t.proto == protoICMPv6 {
		c.Proto = protoICMP
	}
	if t.v6 {
		c.V6 = 1
	}
	if t.stamp != 0 {
		c.Stamped = 1
	}
	if f.Random {
		c.Random = 1
	}
	for i := range c.Header {
		c.Header[i] = binary.LittleEndian.Uint64(t.header[8*i:])
	}
	for i, z := range t.pattern {
		c.Pattern[i].Bytes, c.Pattern[i].IpSum, c.Pattern[i].L4Sum = uint32(z.bytes), z.ipSum, z.l4Sum
	}
	if th.rate > 0 {
		c.Gap = uint64(1e9 * 1024 / th.rate)
	}
	if err := spec.Variables[kernelVarCfg].Set(&c); err != nil {
		return err
	}
	var obj struct {
		Program *ebpf.Program `ebpf:"generate"`
		kernelTimes
	}
	if err := spec.LoadAndAssign(&obj, nil); err != nil {
		return fmt.Errorf("load the generator into the kernel: %w", err)
	}
	s.program, s.kernelTimes = obj.Program, obj.kernelTimes
	binary.NativeEndian.PutUint32(s.context[4:], uint32(len(s.frame))) // struct xdp_md: data_end
	binary.NativeEndian.PutUint32(s.context[12:], uint32(ifindex))     // ingress_ifindex
	return nil
}

func (s *kernelSender) send(th *thread) error {
	each := float64(fullNS)
	if th.rate > 0 { // the program's own clock paces, so most repetitions are idle: what one costs is tried before
		idle, err := s.call(callFirst) // sends nothing before duration_ns is set
		if err != nil {
			return err
		}
		each = max(idle, 1)
	}
	if err := errors.Join(s.Start.Set(uint64(0)), s.Duration.Set(uint64(th.duration))); err != nil {
		return err
	}
	begin := Now()
	for !th.stop.Load() {
		left := time.Duration(begin) + th.duration - time.Duration(Now())
		if left <= 0 {
			break
		}
		repeat := uint64(min(max(float64(min(left, callTime))/each, callMin), callMax))
		if th.rate == 0 {
			repeat = min(repeat, th.count-th.sent.Load())
		}
		if _, err := s.call(uint32(repeat)); err != nil {
			return err
		}
		var sent, start, last uint64
		if err := errors.Join(s.Sent.Get(&sent), s.Start.Get(&start), s.Last.Get(&last)); err != nil {
			return err
		}
		th.sent.Store(sent)
		begin = start
		th.took = time.Duration(max(last, start) - start)
		if th.rate > 0 && sent > 0 {
			th.took += time.Duration(1e9 / th.rate) // a packet's time ends when the next one is due
		}
		if sent >= th.count {
			break
		}
		if th.breathes {
			ts := unix.NsecToTimespec(int64(breath))
			_ = unix.Nanosleep(&ts, nil)
		}
	}
	return nil
}

// call runs the program so many times and returns how long each took, in ns.
func (s *kernelSender) call(repeat uint32) (float64, error) {
	if err := s.Call.Set(uint64(0)); err != nil {
		return 0, err
	}
	_, err := s.program.Run(&ebpf.RunOptions{Data: s.frame, Context: s.context[:], BatchSize: 64, Flags: unix.BPF_F_TEST_XDP_LIVE_FRAMES, Repeat: repeat})
	if err != nil {
		return 0, fmt.Errorf("the kernel does not run the generator (Linux 5.18 is needed): %w", err)
	}
	var first, last uint64
	err = errors.Join(s.Call.Get(&first), s.Called.Get(&last))
	return float64(last-first) / float64(repeat), err
}

func (s *kernelSender) close() error {
	if s.program == nil {
		return nil
	}
	return s.program.Close()
}
