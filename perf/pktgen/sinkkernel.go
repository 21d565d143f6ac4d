package pktgen

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// kernelSink counts at tc ingress. Nothing of it outlives the process.
type kernelSink struct {
	program   *ebpf.Program
	streams   *ebpf.Map
	latencies *ebpf.Map
	link      link.Link
}

func openKernelSink(o SinkOptions, ifindex int) (*kernelSink, error) {
	spec, err := loadKernel()
	if err != nil {
		return nil, err
	}
	if err := spec.Variables[kernelVarBackEvery].Set(uint32(o.BackEvery)); err != nil {
		return nil, err
	}
	var obj struct {
		Program   *ebpf.Program `ebpf:"sink"`
		Streams   *ebpf.Map     `ebpf:"streams"`
		Latencies *ebpf.Map     `ebpf:"latencies"`
	}
	if err := spec.LoadAndAssign(&obj, nil); err != nil {
		return nil, fmt.Errorf("load the sink into the kernel: %w", err)
	}
	s := &kernelSink{program: obj.Program, streams: obj.Streams, latencies: obj.Latencies}
	s.link, err = link.AttachTCX(link.TCXOptions{Interface: ifindex, Program: s.program, Attach: ebpf.AttachTCXIngress})
	if err != nil {
		s.Close()
		return nil, fmt.Errorf("%s: attach the sink at tc ingress (Linux 6.6 is needed): %w", o.Device, err)
	}
	return s, nil
}

func (s *kernelSink) Received() (n uint64) {
	a, err := s.counts()
	if err != nil {
		return 0
	}
	return a.Packets
}

// counts reads the streams' counters of all processors.
func (s *kernelSink) counts() (Arrivals, error) {
	var a Arrivals
	var cpus []kernelStream
	for i := range s.streams.MaxEntries() {
		if err := s.streams.Lookup(i, &cpus); err != nil {
			return a, fmt.Errorf("pktgen: read the sink's counters: %w", err)
		}
		var first, high, got uint64
		for _, c := range cpus {
			if c.Packets == 0 {
				continue
			}
			if got == 0 {
				a.Streams++
				first, high = c.First, c.High
			}
			first, high = min(first, c.First), max(high, c.High)
			got += c.Packets
			a.Bytes += c.Bytes + crcBytes*c.Packets
			a.Reordered += c.Reordered
			a.SentBack += c.SentBack
		}
		a.Packets += got
		if got > 0 && high-first+1 > got {
			a.Lost += high - first + 1 - got
		}
	}
	return a, nil
}

func (s *kernelSink) Arrivals() (Arrivals, error) {
	a, err := s.counts()
	if err != nil {
		return a, err
	}
	var cpus []kernelHistogram
	if err := s.latencies.Lookup(uint32(0), &cpus); err != nil {
		return a, fmt.Errorf("pktgen: read the sink's latencies: %w", err)
	}
	a.histogram = newHistogram()
	for i := range cpus {
		record(a.histogram, &cpus[i])
	}
	a.Latency = summary(a.histogram)
	return a, nil
}

// record puts a histogram of the kernel's into h, each bucket at its middle.
func record(h *hdrhistogram.Histogram, k *kernelHistogram) {
	for i, n := range k.Bucket {
		if n > 0 {
			low, width := bucketOf(i)
			_ = h.RecordValues(min(low+width/2, latencyMax), int64(n)) // within range, so it can't fail
		}
	}
}

// bucketOf is the inverse of the kernel's bucket function: 32 buckets for every power of two.
func bucketOf(i int) (low, width int64) {
	if i < 32 {
		return int64(i), 1
	}
	shift := i/32 - 1
	return int64(32+i%32) << shift, 1 << shift
}

func (s *kernelSink) Close() error {
	var errs []error
	if s.link != nil {
		errs = append(errs, s.link.Close())
	}
	errs = append(errs, s.program.Close(), s.streams.Close(), s.latencies.Close())
	return errors.Join(errs...)
}
