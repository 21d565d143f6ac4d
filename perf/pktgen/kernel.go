package pktgen

import (
	"encoding/binary"
	"errors"
	"fmt"
	"time"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"
)

const (
	// callPackets is how many packets one system call makes, after which Stop is looked at and progress is published.
	callPackets = 1 << 14

	// breath is how long a real-time generator then leaves its core to others: less than a device's queue lasts (256 packets
	// on a veth), and enough for the threads of a gateway under test that must get on.
	breath = 60 * time.Microsecond
)

// kernelSender sends by BPF_PROG_TEST_RUN.
type kernelSender struct {
	program *ebpf.Program
	sent    *ebpf.Variable
	start   *ebpf.Variable
	end     *ebpf.Variable
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
		Program *ebpf.Program  `ebpf:"generate"`
		Sent    *ebpf.Variable `ebpf:"sent"`
		Start   *ebpf.Variable `ebpf:"start_ns"`
		End     *ebpf.Variable `ebpf:"end_ns"`
	}
	if err := spec.LoadAndAssign(&obj, nil); err != nil {
		return fmt.Errorf("load the generator into the kernel: %w", err)
	}
	s.program, s.sent, s.start, s.end = obj.Program, obj.Sent, obj.Start, obj.End
	binary.NativeEndian.PutUint32(s.context[4:], uint32(len(s.frame))) // struct xdp_md: data_end
	binary.NativeEndian.PutUint32(s.context[12:], uint32(ifindex))     // ingress_ifindex
	return nil
}

func (s *kernelSender) send(th *thread) error {
	start := Now()
	end := start + uint64(th.duration)
	if err := errors.Join(s.start.Set(start), s.end.Set(end)); err != nil {
		return err
	}
	o := ebpf.RunOptions{Data: s.frame, Context: s.context[:], BatchSize: 64, Flags: unix.BPF_F_TEST_XDP_LIVE_FRAMES}
	for !th.stop.Load() && Now() < end {
		o.Repeat = callPackets
		if left := th.count - th.sent.Load(); left < callPackets {
			o.Repeat = uint32(left)
		}
		if th.rate > 0 { // the program's own clock paces: most repetitions are idle
			o.Repeat = callPackets * 8
		}
		_, err := s.program.Run(&o)
		if err != nil {
			return fmt.Errorf("the kernel does not run the generator (Linux 5.18 is needed): %w", err)
		}
		var sent uint64
		if err := s.sent.Get(&sent); err != nil {
			return err
		}
		th.sent.Store(sent)
		if sent >= th.count {
			return nil
		}
		if th.breathes {
			ts := unix.NsecToTimespec(int64(breath))
			_ = unix.Nanosleep(&ts, nil)
		}
	}
	return nil
}

func (s *kernelSender) close() error {
	if s.program == nil {
		return nil
	}
	return s.program.Close()
}
