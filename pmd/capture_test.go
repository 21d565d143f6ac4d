package pmd

import (
	"bytes"
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"testing"
	"time"

	"pollux/internal/packet"
	"pollux/internal/reason"
	"pollux/nat"
)

// seen is a Captured that stays.
type seen struct {
	Captured
	data []byte
}

// tapped puts a tap on a rig's worker and returns what reads it.
func tapped(t testing.TB, r *rig, o CaptureOptions) (read func() []seen, c *Capture) {
	t.Helper()
	if o.Buffer == 0 {
		o.Buffer = CaptureBufferMin
	}
	tp, err := newTap(o, r.umem, 0, 2, make([]origin, r.umem.Frames()))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { tp.region.Free() })
	r.w.tapBy(tp)
	c = &Capture{g: &Gateway{ports: make([]*gatewayPort, 2)}, taps: []*tap{tp}}
	return func() (list []seen) {
		c.Read(func(p *Captured) bool {
			list = append(list, seen{*p, bytes.Clone(p.Data)})
			return true
		})
		return list
	}, c
}

const allStages = CaptureRX | CaptureSent | CaptureDrop

func every() CaptureOptions {
	return CaptureOptions{Stages: allStages, Filter: CaptureFilter{Device: -1}}
}

// A packet that goes through is seen as received and as sent, one that does not with its reason; both as they were, and each
// under one id.
func TestCaptureStages(t *testing.T) {
	r := newRig(t, rigOptions{})
	read, _ := tapped(t, r, every())
	there := packet.Build{SrcMAC: peerMAC, DstMAC: inMAC, Src: host1, SrcPort: 5000, Dst: server, DstPort: 53}.UDP([]byte("question"))
	stray := packet.Build{SrcMAC: peerMAC, DstMAC: outMAC, Src: server, SrcPort: 53, Dst: alias1, DstPort: 6000}.UDP([]byte("stray"))
	dead := packet.Build{SrcMAC: peerMAC, DstMAC: inMAC, Src: host1, SrcPort: 5000, Dst: server, DstPort: 53, TTL: 1}.UDP([]byte("dies"))
	r.push(inPort, bytes.Clone(there))
	r.push(outPort, bytes.Clone(stray))
	r.poll()
	r.push(inPort, bytes.Clone(dead))
	r.poll()
	list := read()
	want := []struct {
		stage    CaptureStage
		device   int
		why      reason.Reason
		answered bool
		same     int // another one with this id
		data     []byte
	}{
		{CaptureRX, inPort, reason.None, false, 1, there},
		{CaptureSent, outPort, reason.None, false, 0, r.sent[outPort][0]},
		{CaptureRX, outPort, reason.None, false, 3, stray},
		{CaptureDrop, outPort, reason.NoMapping, false, 2, stray},
		{CaptureRX, inPort, reason.None, false, 6, dead},
		{CaptureSent, inPort, reason.None, false, -1, r.sent[inPort][0]}, // time exceeded
		{CaptureDrop, inPort, reason.TTLExpired, true, 4, dead},
	}
	if len(list) != len(want) {
		t.Fatalf("%d captured: %+v", len(list), list)
	}
	for i, w := range want {
		p := list[i]
		if p.Stage != w.stage || p.Device != w.device || p.Reason != w.why || p.Answered != w.answered || !bytes.Equal(p.data, w.data) || p.Length != len(w.data) {
			t.Errorf("%d: %+v\n%x\nwant %+v", i, p.Captured, p.data, w)
		}
		if w.same < 0 && p.ID != 0 || w.same >= 0 && (p.ID == 0 || p.ID != list[w.same].ID) {
			t.Errorf("%d has id %x", i, p.ID)
		}
		if p.At.IsZero() || i > 0 && p.At.Before(list[i-1].At) {
			t.Errorf("%d is of %v", i, p.At)
		}
	}
}

// What a filter picks when it comes in, it picks when it is sent; what it does not pick stays out.
func TestCaptureFilter(t *testing.T) {
	r := newRig(t, rigOptions{})
	udp := func(src packet.Addr, sport uint16, dst packet.Addr, dport uint16) []byte {
		return packet.Build{SrcMAC: peerMAC, DstMAC: inMAC, Src: src, SrcPort: sport, Dst: dst, DstPort: dport}.UDP([]byte("some payload"))
	}
	net := func(a packet.Addr) nat.Network { return nat.Network{Base: a, Mask: 0xffffffff, Valid: true} }
	for name, tc := range map[string]struct {
		change func(*CaptureOptions)
		want   int
	}{
		"all":                 {func(o *CaptureOptions) {}, 10},
		"host":                {func(o *CaptureOptions) { o.Filter.Address = net(host1) }, 4},  // two packets, in and out
		"alias":               {func(o *CaptureOptions) { o.Filter.Address = net(alias1) }, 6}, // four as sent, and the stray one twice
		"peer":                {func(o *CaptureOptions) { o.Filter.Address = net(server) }, 10},
		"nobody":              {func(o *CaptureOptions) { o.Filter.Address = net(1) }, 0},
		"port":                {func(o *CaptureOptions) { o.Filter.Port, o.Filter.ByPort = 5001, true }, 4},
		"echo id":             {func(o *CaptureOptions) { o.Filter.Port, o.Filter.ByPort = 77, true }, 2},
		"udp":                 {func(o *CaptureOptions) { o.Filter.Proto, o.Filter.ByProto = packet.ProtoUDP, true }, 6},
		"tcp":                 {func(o *CaptureOptions) { o.Filter.Proto, o.Filter.ByProto = packet.ProtoTCP, true }, 2},
		"received only":       {func(o *CaptureOptions) { o.Stages = CaptureRX }, 5},
		"sent only":           {func(o *CaptureOptions) { o.Stages = CaptureSent }, 4},
		"sent of a host":      {func(o *CaptureOptions) { o.Stages, o.Filter.Address = CaptureSent, net(host1) }, 2},
		"dropped only":        {func(o *CaptureOptions) { o.Stages = CaptureDrop }, 1},
		"outside device":      {func(o *CaptureOptions) { o.Filter.Device = outPort }, 6},
		"a reason":            {func(o *CaptureOptions) { o.Stages, o.Filter.Reason = CaptureDrop, reason.NoMapping }, 1},
		"another reason":      {func(o *CaptureOptions) { o.Stages, o.Filter.Reason = CaptureDrop, reason.NoPort }, 0},
		"port of the dropped": {func(o *CaptureOptions) { o.Filter.Port, o.Filter.ByPort = 6000, true }, 2},
	} {
		t.Run(name, func(t *testing.T) {
			o := every()
			tc.change(&o)
			read, _ := tapped(t, r, o)
			r.push(inPort, udp(host1, 5000, server, 53), udp(host2, 5001, server, 53),
				packet.Build{SrcMAC: peerMAC, DstMAC: inMAC, Src: host1, SrcPort: 5001, Dst: server, DstPort: 80, Flags: packet.TCPSyn}.TCP(nil),
				packet.Build{SrcMAC: peerMAC, DstMAC: inMAC, Src: host2, SrcPort: 77, Dst: server}.Echo(false, 1, []byte("ping")))
			stray := udp(server, 53, alias1, 6000)
			copy(stray, outMAC[:])
			r.push(outPort, stray)
			r.poll()
			if list := read(); len(list) != tc.want {
				for _, p := range list {
					t.Logf("%+v", p.Captured)
				}
				t.Errorf("%d captured, want %d", len(list), tc.want)
			}
			r.w.tapBy(nil)
		})
	}
}

// A ring that nobody empties loses what it has no room for, and counts it by device; every packet goes on.
func TestCaptureOverflow(t *testing.T) {
	r := newRig(t, rigOptions{})
	o := every()
	o.SnapLen = SnapLenMin
	read, c := tapped(t, r, o)
	slots, sent := int(c.taps[0].slots), 0
	long := bytes.Repeat([]byte("x"), 1000)
	for sent < slots { // twice as many as there is room for
		for range 32 {
			r.push(inPort, packet.Build{SrcMAC: peerMAC, DstMAC: inMAC, Src: host1, SrcPort: 5000, Dst: server, DstPort: 53}.UDP(long))
			sent++
		}
		r.poll()
	}
	list := read()
	lost := c.Lost()
	if len(list) != slots || lost[inPort]+lost[outPort] != uint64(2*sent-slots) || lost[2] != 0 {
		t.Errorf("%d of %d captured, %v lost", len(list), 2*sent, lost)
	}
	if len(r.sent[outPort]) != sent {
		t.Errorf("%d of %d sent", len(r.sent[outPort]), sent)
	}
	for _, p := range list {
		if len(p.data) != SnapLenMin || p.Length != 1042 {
			t.Fatalf("%d bytes of %d", len(p.data), p.Length)
		}
	}
	r.push(inPort, packet.Build{SrcMAC: peerMAC, DstMAC: inMAC, Src: host1, SrcPort: 5000, Dst: server, DstPort: 53}.UDP(long))
	r.poll()
	if list = read(); len(list) != 2 {
		t.Errorf("%d captured once there was room again", len(list))
	}
}

// The fragments of a packet are new packets; its chunk is forgotten, so that no other packet bears its id.
func TestCaptureForgets(t *testing.T) {
	r := newRig(t, rigOptions{})
	read, c := tapped(t, r, every())
	long := packet.Build{SrcMAC: peerMAC, DstMAC: inMAC, Src: host1, SrcPort: 5000, Dst: server, DstPort: 53}.UDP(bytes.Repeat([]byte("y"), 2000))
	long[20] &^= 0x40 // it may be split
	fixIP(long)
	r.push(inPort, long)
	r.poll()
	list := read()
	if len(list) < 3 || list[0].ID == 0 {
		t.Fatalf("%+v", list)
	}
	if slices.ContainsFunc(c.taps[0].chunks, func(o origin) bool { return o.id != 0 }) {
		t.Error("a chunk still bears an id")
	}
}

// fixIP writes the checksum of an IPv4 header without options.
func fixIP(frame []byte) {
	h := frame[packet.EthernetLen : packet.EthernetLen+20]
	h[10], h[11] = 0, 0
	sum := uint32(0)
	for i := 0; i < 20; i += 2 {
		sum += uint32(h[i])<<8 | uint32(h[i+1])
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	h[10], h[11] = byte(^sum>>8), byte(^sum)
}

// Neither a tap that keeps nothing nor one that keeps all allocates.
func TestCaptureAllocatesNothing(t *testing.T) {
	r := newRig(t, rigOptions{silent: true})
	_, c := tapped(t, r, every())
	frame := packet.Build{SrcMAC: peerMAC, DstMAC: inMAC, Src: host1, SrcPort: 5000, Dst: server, DstPort: 53}.UDP([]byte("again"))
	if n := testing.AllocsPerRun(2000, func() {
		r.push(inPort, frame)
		for r.w.Poll(r.now) > 0 {
			continue
		}
	}); n != 0 {
		t.Errorf("%v allocations a round", n)
	}
	if c.Lost()[inPort] == 0 {
		t.Error("the ring was never full")
	}
}

// BenchmarkCapture is the whole path of an established packet without a capture, with one whose filter picks nothing, and
// with one that copies every packet twice. A reader on another core is stood in for by taking all off at once.
func BenchmarkCapture(b *testing.B) {
	w, ports := benchWorker(b, 1<<10)
	for _, tc := range []struct {
		name string
		o    *CaptureOptions
	}{
		{"off", nil},
		{"nothing picked", &CaptureOptions{Stages: allStages, Filter: CaptureFilter{Device: -1, Port: 1, ByPort: true, Proto: packet.ProtoTCP, ByProto: true}}},
		{"all", func() *CaptureOptions { o := every(); return &o }()},
	} {
		b.Run(tc.name, func(b *testing.B) {
			var tp *tap
			if tc.o != nil {
				o := *tc.o
				o.Buffer = 8 << 20
				var err error
				if tp, err = newTap(o, w.umem, 0, 2, make([]origin, w.umem.Frames())); err != nil {
					b.Fatal(err)
				}
				defer tp.region.Free()
			}
			w.tapBy(tp)
			defer w.tapBy(nil)
			defer reportCPU(b)()
			for i := 0; i < b.N; i += BurstFrames {
				ports[i/BurstFrames&1].on = true
				w.Poll(w.advanced)
				if tp != nil {
					tp.get.Store(tp.put.Load())
				}
			}
		})
	}
}

// Workers on goroutines of their own hand packets to each other while a third goroutine reads: every copy is a whole
// packet's head, all that was received is captured or counted as lost, and nothing is sent or dropped before it was received.
func TestCaptureOfWorkersInParallel(t *testing.T) {
	const workers = 2
	m := newMeshRig(t, meshOptions{workers: workers, links: 300, silent: true, rules: hostileRules})
	chunks := make([]origin, m.umem.Frames())
	c := &Capture{g: &Gateway{ports: make([]*gatewayPort, 2)}}
	for k := range workers {
		o := every()
		o.Buffer, o.SnapLen = CaptureBufferMin, SnapLenMin
		tp, err := newTap(o, m.umem, k, 2, chunks)
		if err != nil {
			t.Fatal(err)
		}
		defer tp.region.Free()
		m.w[k].tapBy(tp)
		c.taps = append(c.taps, tp)
	}
	var stages [CaptureDrop + 1]uint64
	came, early := map[uint64]bool{}, 0
	read := func() {
		c.Read(func(p *Captured) bool {
			stages[p.Stage]++
			if came[p.ID] = came[p.ID] || p.Stage == CaptureRX; p.ID != 0 && !came[p.ID] {
				early++
			}
			if len(p.Data) != min(p.Length, SnapLenMin) || p.Device < 0 || p.Device > 1 || (p.Stage == CaptureDrop) != (p.Reason != reason.None) || p.Stage != CaptureSent && p.ID == 0 {
				t.Errorf("%+v", p)
			}
			return true
		})
	}
	quit, done := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case <-quit:
				return
			default:
				read()
				runtime.Gosched()
			}
		}
	}()
	var wait sync.WaitGroup
	for k := range workers {
		wait.Go(func() {
			random := rand.New(rand.NewPCG(uint64(k), 9))
			now := m.now
			for range 300 {
				for range random.IntN(40) {
					port, f := hostile(random)
					if _, ok := m.ports[k][port].Push(m.pools[k], f); !ok {
						break
					}
				}
				m.w[k].Poll(now)
				now = now.Add(time.Duration(random.IntN(50)) * time.Millisecond)
			}
		})
	}
	wait.Wait()
	close(quit)
	<-done
	read()
	var received, handed, lost uint64
	for _, w := range m.w {
		received, handed = received+w.c.received, handed+w.c.handedOut
	}
	for _, n := range c.Lost() {
		lost += n
	}
	if got := stages[CaptureRX]; handed == 0 || got+lost < received || got > received || lost == 0 && got != received {
		t.Errorf("%d of %d received were captured, %d lost, %d handed over", got, received, lost, handed)
	}
	t.Logf("%d lost, %d handed over, by stage %v", lost, handed, stages)
	if early > 0 && lost == 0 {
		t.Errorf("%d packets ended before they were received", early)
	}
	if stages[CaptureSent] == 0 || stages[CaptureDrop] == 0 {
		t.Errorf("captured by stage: %v", stages)
	}
}

// Whatever bytes come, the filter reads nothing beyond them, and agrees with the parser about what is TCP, UDP or an echo.
func FuzzCaptureFilter(f *testing.F) {
	f.Add(packet.Build{Src: host1, SrcPort: 5000, Dst: server, DstPort: 53}.UDP([]byte("x")), uint16(53))
	f.Add(packet.Build{Src: host1, SrcPort: 77, Dst: server}.Echo(true, 1, []byte("x")), uint16(77))
	f.Add(packet.Build{Src: host1, SrcPort: 1, Dst: server, DstPort: 2, Flags: packet.TCPSyn}.TCP(nil), uint16(3))
	f.Fuzz(func(t *testing.T, frame []byte, port uint16) {
		port = max(port, 1)
		by := CaptureFilter{Port: port, ByPort: true, Device: -1}
		got := by.picks(bytes.Clone(frame)[:len(frame):len(frame)])
		var h packet.Headers
		packet.Parse(bytes.Clone(frame), &h)
		if h.Reason != reason.None || h.Fragment() {
			return
		}
		switch h.Kind {
		case packet.KindTCP, packet.KindUDP:
			if want := h.SrcPort == port || h.DstPort == port; got != want {
				t.Errorf("port %d: picked %t of %+v", port, got, h)
			}
		}
		only := CaptureFilter{Address: nat.Network{Base: h.Src, Mask: 0xffffffff, Valid: true}, Proto: h.Proto, ByProto: true, Device: -1}
		if (h.Kind == packet.KindTCP || h.Kind == packet.KindUDP) && !only.picks(frame) {
			t.Errorf("not picked by its own source and protocol: %+v", h)
		}
	})
}
