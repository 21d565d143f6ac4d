package rings

import (
	"math/rand/v2"
	"runtime"
	"sync/atomic"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

// ringMemory is a ring on the heap, where the race detector watches it, laid out as the kernel would.
func ringMemory[T any](n int) ([]byte, unix.XDPRingOffset) {
	o := unix.XDPRingOffset{Producer: 0, Consumer: 64, Flags: 128, Desc: 192}
	words := make([]uint64, (ringBytes[T](o, n)+7)/8) // 8-byte aligned, as a mapping is
	return unsafe.Slice((*byte)(unsafe.Pointer(&words[0])), len(words)*8), o
}

// kernelSide is the other side of a ring: it consumes what the worker produces, or produces what it consumes.
func kernelProducer[T any](mem []byte, o unix.XDPRingOffset, n int) producer[T] {
	return newProducer[T](mem, o, n)
}
func kernelConsumer[T any](mem []byte, o unix.XDPRingOffset, n int) consumer[T] {
	return newConsumer[T](mem, o, n)
}

func TestFrameHasTheKernelsLayout(t *testing.T) {
	var f Frame
	if unsafe.Sizeof(f) != 16 || unsafe.Offsetof(f.Addr) != 0 || unsafe.Offsetof(f.Len) != 8 || unsafe.Offsetof(f.Options) != 12 {
		t.Error("Frame is not struct xdp_desc")
	}
}

// The indexes run freely: everything must hold when they pass 2^32.
func TestRingAcrossTheWrapOfItsIndexes(t *testing.T) {
	const n = 8
	mem, o := ringMemory[Frame](n)
	start := uint32(0xfffffff0)
	wordAt(mem, o.Producer).Store(start)
	wordAt(mem, o.Consumer).Store(start)
	k, w := kernelProducer[Frame](mem, o, n), newConsumer[Frame](mem, o, n)
	next, want := uint64(0), uint64(0)
	for round := range 40 {
		put := uint32(round%n + 1)
		for i := range put {
			*k.slot(i) = Frame{Addr: next}
			next++
		}
		k.publish(put)
		if got := w.available(1); got != put {
			t.Fatalf("round %d: %d available, want %d", round, got, put)
		}
		b := make([]Frame, put)
		w.take(b)
		for i := range b {
			if b[i].Addr != want {
				t.Fatalf("round %d: frame %d, want %d", round, b[i].Addr, want)
			}
			want++
		}
		if w.available(1) != 0 || k.pending() != 0 {
			t.Fatalf("round %d: not empty", round)
		}
	}
	if w.tail > start {
		t.Fatal("the indexes did not wrap")
	}
}

func TestConsumerAsksTheKernelOnlyWhenItKnowsOfTooFew(t *testing.T) {
	mem, o := ringMemory[uint64](16)
	k, w := kernelProducer[uint64](mem, o, 16), newConsumer[uint64](mem, o, 16)
	k.publish(4)
	if n := w.available(2); n != 4 {
		t.Fatalf("%d", n)
	}
	k.publish(4)
	if n := w.available(2); n != 4 {
		t.Errorf("%d: the kernel's index was read though 4 were known", n)
	}
	if n := w.available(5); n != 8 {
		t.Errorf("%d: the kernel's index was not read though only 4 were known", n)
	}
}

func TestNeedWakeupIsReadFromTheFlags(t *testing.T) {
	mem, o := ringMemory[uint64](16)
	w := newProducer[uint64](mem, o, 16)
	if w.needWakeup() {
		t.Error("set at first")
	}
	wordAt(mem, o.Flags).Store(unix.XDP_RING_NEED_WAKEUP | 0x80)
	if !w.needWakeup() {
		t.Error("not seen")
	}
}

// fakePort is a Socket whose four rings lie on the heap, with the kernel's side of each.
type fakePort struct {
	*Socket
	fill consumer[uint64]
	rx   producer[Frame]
	tx   consumer[Frame]
	cq   producer[uint64]
}

func newFakePort(u *UMEM, n int) *fakePort {
	fm, fo := ringMemory[uint64](n)
	rm, ro := ringMemory[Frame](n)
	tm, to := ringMemory[Frame](n)
	cm, co := ringMemory[uint64](n)
	s := &Socket{umem: u, fd: ^uintptr(0), chunkMask: u.chunkMask, fillMax: uint32(n), txMax: uint32(n),
		held: newChunkSet(u.frames, u.ChunkSize()), refused: make([]uint64, 0, refusedMax)}
	s.fill, s.rx = newProducer[uint64](fm, fo, n), newConsumer[Frame](rm, ro, n)
	s.tx, s.cq = newProducer[Frame](tm, to, n), newConsumer[uint64](cm, co, n)
	return &fakePort{Socket: s, fill: kernelConsumer[uint64](fm, fo, n), rx: kernelProducer[Frame](rm, ro, n),
		tx: kernelConsumer[Frame](tm, to, n), cq: kernelProducer[uint64](cm, co, n)}
}

// kernel moves frames as a driver does until stop: fill to RX, TX to completion, in pieces of random size. It checks that
// no frame is in two places and that a packet's bytes are those its sender wrote.
func (f *fakePort) kernel(t *testing.T, u *UMEM, stop *atomic.Bool, seed uint64) {
	r := rand.New(rand.NewPCG(seed, 1))
	number := uint64(0)
	for !stop.Load() {
		n := f.fill.available(1)
		if n > 0 {
			n = min(n, uint32(r.IntN(8)+1))
			for i := range n {
				addr := *f.fill.slot(i) + RXHeadroomBytes
				number++
				*(*uint64)(unsafe.Pointer(&u.Data(Frame{Addr: addr, Len: 60})[0])) = number
				*f.rx.slot(i) = Frame{Addr: addr, Len: 60}
			}
			f.fill.release(n)
			f.rx.publish(n)
		}
		n = f.tx.available(1)
		if n > 0 {
			n = min(n, uint32(r.IntN(8)+1))
			for i := range n {
				d := *f.tx.slot(i)
				if *(*uint64)(unsafe.Pointer(&u.Data(d)[8])) != ^*(*uint64)(unsafe.Pointer(&u.Data(d)[0])) {
					t.Error("a packet left before its bytes were written")
				}
				*f.cq.slot(i) = d.Addr
			}
			f.tx.release(n)
			f.cq.publish(n)
		}
		runtime.Gosched()
	}
}

// A worker and two kernels, each on its own goroutine, as the race detector sees them.
func TestNoFrameIsLostBetweenTwoPorts(t *testing.T) {
	const n, spare = 16, 20
	u, p := testUMEM(t, 4*n+spare)
	ports := [2]*fakePort{newFakePort(u, n), newFakePort(u, n)}
	var stop atomic.Bool
	ended := make(chan bool)
	for i, f := range ports {
		go func() { f.kernel(t, u, &stop, uint64(i)); ended <- true }()
	}
	r := rand.New(rand.NewPCG(3, 4))
	burst := make([]Frame, 12)
	var last [2]uint64
	moved := 0
	for moved < 20000 {
		for i := range ports {
			in, out := ports[i], ports[1-i]
			out.Service(p)
			got := in.Receive(burst[:1+r.IntN(len(burst))])
			for j := range got {
				b := u.Data(burst[j])
				number := *(*uint64)(unsafe.Pointer(&b[0]))
				if number != last[i]+1 {
					t.Fatalf("port %d: packet %d after %d", i, number, last[i])
				}
				last[i] = number
				*(*uint64)(unsafe.Pointer(&b[8])) = ^number
			}
			sent := 0
			if got > 0 && r.IntN(4) > 0 {
				sent = out.Transmit(burst[:got])
			}
			for j := sent; j < got; j++ {
				p.Put(u.Chunk(burst[j].Addr))
			}
			moved += got
		}
		if moved%64 == 0 {
			runtime.Gosched()
		}
	}
	stop.Store(true)
	<-ended
	<-ended
	sum, held := uint64(p.Len()), 0
	for _, f := range ports {
		x := f.Frames()
		sum += x.Fill + x.RX + x.TX
		for _, in := range f.held.in {
			held += int(in)
		}
		if c := f.Counters(); c.Queued < c.Completed || c.Received == 0 {
			t.Errorf("%+v", c)
		}
	}
	if sum != 4*n+spare || p.Excess() != 0 || held != 4*n+spare-p.Len() {
		t.Errorf("%d frames counted, %d in sets and %d in the pool, %d given back twice; there are %d", sum, held, p.Len(), p.Excess(), 4*n+spare)
	}
}

func BenchmarkBurstOf64(b *testing.B) {
	u, err := NewUMEM(UMEMOptions{Frames: 8192})
	if err != nil {
		b.Fatal(err)
	}
	defer u.Close()
	p, _ := u.NewPool(8192)
	f := newFakePort(u, 2048)
	burst := make([]Frame, 64)
	f.Service(p)
	b.ReportAllocs()
	for b.Loop() {
		for i := range uint32(64) { // the kernel's part, a few ns a packet
			*f.rx.slot(i) = Frame{Addr: *f.fill.slot(i) + RXHeadroomBytes, Len: 60}
		}
		f.fill.release(64)
		f.rx.publish(64)
		n := f.Receive(burst)
		f.Transmit(burst[:n])
		for i := range uint32(64) {
			*f.cq.slot(i) = f.tx.slot(i).Addr
		}
		f.tx.release(64)
		f.cq.publish(64)
		f.Service(p)
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/64, "ns/packet")
}
