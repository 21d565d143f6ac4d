package pmd

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"runtime"
	"testing"

	"golang.org/x/sys/unix"

	"pollux/internal/packet"
	"pollux/nat"
	"pollux/rings"
)

// benchPort receives one burst after another of packets of random flows, and sends into nothing. Both work on frames of
// the UMEM that have long left the caches: 4096 of them go round, written again for each packet, as a NIC would.
type benchPort struct {
	umem  *rings.UMEM
	flows []benchFlow // of one packet after another: read in order, so that writing them costs little
	next  int
	frame uint64
	on    bool
}

// benchFlow is all that differs between the packets of a flow and direction.
type benchFlow struct {
	src, dst     packet.Addr
	sport, dport uint16
	ip, l4       uint16 // checksums
}

const (
	benchFrames = 4096
	benchOrder  = 1 << 20
	benchLen    = 60 // without payload, with padding
)

func (p *benchPort) Receive(b []rings.Frame) int {
	if !p.on {
		return 0
	}
	p.on = false
	for i := range b {
		f := &p.flows[p.next]
		p.next = (p.next + 1) & (benchOrder - 1)
		p.frame = (p.frame + 1) & (benchFrames - 1)
		b[i] = rings.Frame{Addr: p.frame << 11, Len: benchLen}
		d := (*[benchLen]byte)(p.umem.Data(b[i]))
		binary.LittleEndian.PutUint64(d[0:], 0x0002020100000002)  // MACs: the port's is 02:00:00:00:01:02
		binary.LittleEndian.PutUint64(d[8:], 0x0045000800000000)  // ethertype, version
		binary.LittleEndian.PutUint64(d[16:], 0x1140000000001c00) // length 28, no fragment, TTL 64, UDP
		binary.BigEndian.PutUint16(d[24:], f.ip)
		binary.BigEndian.PutUint32(d[26:], uint32(f.src))
		binary.BigEndian.PutUint32(d[30:], uint32(f.dst))
		binary.BigEndian.PutUint16(d[34:], f.sport)
		binary.BigEndian.PutUint16(d[36:], f.dport)
		binary.BigEndian.PutUint16(d[38:], 8)
		binary.BigEndian.PutUint16(d[40:], f.l4)
	}
	return len(b)
}

func (p *benchPort) Transmit(b []rings.Frame) int { return len(b) }
func (p *benchPort) Service(*rings.Pool)          {}

var benchMAC = [6]byte{2, 0, 0, 0, 1, 2}

// benchFrame builds the packet of a flow with its checksums, by the ordinary builder.
func newBenchFlow(src packet.Addr, sport uint16, dst packet.Addr, dport uint16) benchFlow {
	f := packet.Build{Src: src, SrcPort: sport, Dst: dst, DstPort: dport}.UDP(nil)
	return benchFlow{src, dst, sport, dport, binary.BigEndian.Uint16(f[24:]), binary.BigEndian.Uint16(f[40:])}
}

// BenchmarkEstablished is the whole path of an established packet: parse, lookup, state, timer, checksums, next hop and
// MACs, over cold frames and random flows, half of them in each direction. "fill" is what writing the packets costs, which
// the others include.
func BenchmarkEstablished(b *testing.B) {
	for _, n := range []int{1 << 10, 16 << 10, 1 << 20} {
		b.Run(fmt.Sprintf("%dk", n>>10), func(b *testing.B) {
			w, ports := benchWorker(b, n)
			b.Run("fill", func(b *testing.B) {
				defer reportCPU(b)()
				for i := 0; i < b.N; i += BurstFrames {
					p := ports[i/BurstFrames&1]
					p.on = true
					p.Receive(w.rxq[:])
				}
			})
			b.Run("path", func(b *testing.B) {
				before := w.c.forwarded
				defer reportCPU(b)()
				for i := 0; i < b.N; i += BurstFrames {
					ports[i/BurstFrames&1].on = true
					w.Poll(w.advanced)
				}
				if rounds := uint64(b.N+BurstFrames-1) / BurstFrames; w.c.forwarded-before != rounds*BurstFrames {
					b.Fatalf("%d of %d packets forwarded: %v", w.c.forwarded-before, rounds*BurstFrames, w.c.reasons)
				}
			})
		})
	}
}

// reportCPU reports the processor time that each iteration took, which other programs on the machine disturb less.
func reportCPU(b *testing.B) func() {
	runtime.LockOSThread()
	read := func() int64 {
		var t unix.Timespec
		_ = unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t)
		return t.Nano()
	}
	start := read()
	return func() {
		b.ReportMetric(float64(read()-start)/float64(b.N), "cpu-ns/op")
		runtime.UnlockOSThread()
	}
}

// benchWorker makes a worker with n established flows.
func benchWorker(b *testing.B, n int) (*Worker, [2]*benchPort) {
	r := newRig(b, rigOptions{frames: benchFrames, chunk: 2048, links: n, silent: true, rules: func(rules *nat.Rules) {
		rules.Mapping.UDP = nat.AddressAndPortDependent
		for i := range 31 {
			rules.Alias = append(rules.Alias, alias1+packet.Addr(i+1))
		}
	}})
	w := r.w
	var out, in []benchFlow
	random := rand.New(rand.NewPCG(3, 4))
	for i := range n {
		src, sport := host1+packet.Addr(i>>4), uint16(2000+i&15*64)
		dst, dport := server+packet.Addr(random.IntN(1<<20)), uint16(1+random.IntN(60000))
		r.ports[outPort].Out = func(f []byte) {
			var h packet.Headers
			packet.Parse(f, &h)
			in = append(in, newBenchFlow(h.Dst, h.DstPort, h.Src, h.SrcPort))
		}
		f := packet.Build{DstMAC: inMAC, Src: src, SrcPort: sport, Dst: dst, DstPort: dport}.UDP(nil)
		r.push(inPort, f)
		for w.Poll(r.now) > 0 {
		}
		out = append(out, newBenchFlow(src, sport, dst, dport))
	}
	if len(in) != n {
		b.Fatalf("%d of %d flows: %v", len(in), n, r.reasons())
	}
	var ports [2]*benchPort
	for i, flows := range [][]benchFlow{out, in} {
		p := &benchPort{umem: r.umem}
		for len(p.flows) < benchOrder { // every flow once before any comes again
			for _, k := range random.Perm(n) {
				p.flows = append(p.flows, flows[k])
			}
		}
		ports[i] = p
		w.ports[i].Port = p
		w.ports[i].setMAC(benchMAC)
	}
	for i := range benchOrder / BurstFrames * 2 { // next hops attached
		ports[i&1].on = true
		w.Poll(w.advanced)
	}
	return w, ports
}
