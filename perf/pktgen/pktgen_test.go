package pktgen

import (
	"net"
	"testing"
)

var (
	macA = net.HardwareAddr{2, 0, 0, 0, 0, 1}
	macB = net.HardwareAddr{2, 0, 0, 0, 0, 2}
)

func testFlows(t testing.TB, v6 bool, count uint64) *Flows {
	t.Helper()
	src, dst := "10.1.255.0/24", "198.51.100.2-198.51.100.3"
	if v6 {
		src, dst = "2001:db8::ff00-2001:db8::1:ff", "2001:db8:1::7"
	}
	f := &Flows{Count: count}
	var err error
	if f.Src, err = ParseRange(src); err != nil {
		t.Fatal(err)
	}
	if f.Dst, err = ParseRange(dst); err != nil {
		t.Fatal(err)
	}
	f.SrcPorts, _ = ParsePorts("10000-10031")
	f.DstPorts, _ = ParsePorts("9-18")
	if err := f.check(); err != nil {
		t.Fatal(err)
	}
	return f
}

func TestPacketsAreWhatTheySay(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		for _, p := range []Protocol{UDP, TCPSYN, ICMP} {
			for _, n := range []int{64, 78, 101, 1518} {
				f := testFlows(t, v6, 0)
				tpl, notice, err := newTemplate(f, p, Sizes{n}, macA, macB, 7, 3)
				if err != nil {
					if v6 && n == 64 || n == 64+14 && v6 && p == TCPSYN { // the headers alone are longer
						continue
					}
					t.Errorf("%v v6=%v %d bytes: %v", p, v6, n, err)
					continue
				}
				frame := make([]byte, 2048)
				for i := range uint64(5000) {
					seq, now := uint32(i*2654435761), i*0x9e3779b97f4a7c15
					got := frame[:tpl.write(frame, f, i*7919%f.space, seq, now, 0)]
					if len(got) != n-crcBytes {
						t.Fatalf("%v v6=%v: %d bytes, want %d", p, v6, len(got), n-crcBytes)
					}
					if err := verify(got); err != nil {
						t.Fatalf("%v v6=%v %d bytes, packet %d: %v\n%x", p, v6, n, i, err, got)
					}
					s, ok := FindStamp(got)
					if ok == (notice != "") || ok && s != (Stamp{7, 3, seq, now}) {
						t.Fatalf("%v v6=%v %d bytes: stamp %+v %v, notice %q", p, v6, n, s, ok, notice)
					}
				}
			}
		}
	}
}

func TestFlowsAreAllDifferent(t *testing.T) {
	f := testFlows(t, false, 0)
	type tuple struct {
		src, dst     uint32
		sport, dport uint16
	}
	seen := map[tuple]bool{}
	for n := range f.space {
		var k tuple
		k.src, k.dst, k.sport, k.dport = f.tuple(n)
		seen[k] = true
		if s := k.src - f.Src.low32(); s >= f.Src.Count || k.dst-f.Dst.low32() >= f.Dst.Count || k.sport-f.SrcPorts.First >= 32 || k.dport-f.DstPorts.First >= 10 {
			t.Fatalf("flow %d is out of range: %+v", n, k)
		}
	}
	if want := 256 * 2 * 32 * 10; len(seen) != want || f.space != uint64(want) {
		t.Errorf("%d different flows in a space of %d, want %d", len(seen), f.space, want)
	}
}

func TestNewFlowsComeAtTheirRate(t *testing.T) {
	f := testFlows(t, false, 100)
	f.NewPerS = 1000
	th := thread{flows: f, random: 1}
	for _, c := range []struct {
		seq    uint64
		ms     int64
		lo, hi uint64
	}{{5, 0, 5, 5}, {105, 0, 5, 5}, {5, 500, 505, 505}} {
		if n := th.nextFlow(c.seq, c.ms*1e6); n < c.lo || n > c.hi {
			t.Errorf("packet %d after %d ms: flow %d, want %d", c.seq, c.ms, n, c.lo)
		}
	}
	f.Random = true
	seen := map[uint64]bool{}
	for range 2000 {
		n := th.nextFlow(0, 1e9)
		if n < 1000 || n >= 1100 {
			t.Fatalf("flow %d is not one of those in use", n)
		}
		seen[n] = true
	}
	if len(seen) < 90 {
		t.Errorf("2000 random packets met %d of 100 flows", len(seen))
	}
}

func TestTrackerCountsEachMishap(t *testing.T) {
	const big = windowBits + 10
	for _, c := range []struct {
		name                       string
		seq                        []uint32
		lost, reordered, duplicate uint64
	}{
		{"in order", []uint32{0, 1, 2, 3}, 0, 0, 0},
		{"one lost", []uint32{0, 1, 3}, 1, 0, 0},
		{"late", []uint32{0, 2, 1, 3}, 0, 1, 0},
		{"twice", []uint32{0, 1, 1, 2}, 0, 0, 1},
		{"twice and one lost", []uint32{0, 1, 1, 3}, 1, 0, 1},
		{"late and twice", []uint32{0, 2, 1, 1}, 0, 1, 1},
		{"the first is late", []uint32{1, 0, 2}, 0, 1, 0},
		{"across the wrap", []uint32{0xfffffffe, 0xffffffff, 0, 1}, 0, 0, 0},
		{"lost across the wrap", []uint32{0xfffffffe, 1}, 2, 0, 0},
		{"a great gap", []uint32{0, big}, big - 1, 0, 0},
		{"the window moved on, the number is new", []uint32{0, windowBits, windowBits + 1, windowBits + 2}, windowBits - 1, 0, 0},
	} {
		tr := &tracker{}
		for _, s := range c.seq {
			tr.see(s, 64)
		}
		if tr.lost() != c.lost || tr.reordered != c.reordered || tr.duplicates != c.duplicate {
			t.Errorf("%s: lost %d, reordered %d, duplicates %d; want %d, %d, %d", c.name, tr.lost(), tr.reordered, tr.duplicates, c.lost, c.reordered, c.duplicate)
		}
		if tr.bytes != uint64(64*len(c.seq)) {
			t.Errorf("%s: %d bytes", c.name, tr.bytes)
		}
	}
}

func TestKernelBuckets(t *testing.T) {
	next := int64(0)
	for i := range 1200 {
		low, width := bucketOf(i)
		if low != next {
			t.Fatalf("bucket %d begins at %d, the one before ended at %d", i, low, next)
		}
		if low >= 64 && float64(width)/float64(low) > 1.0/31 {
			t.Fatalf("bucket %d is %d wide at %d", i, width, low)
		}
		next = low + width
	}
}

func TestHotLoopsAllocateNothing(t *testing.T) {
	f := testFlows(t, false, 1000)
	f.Random, f.NewPerS = true, 1e5
	tpl, _, err := newTemplate(f, UDP, IMIX, macA, macB, 0, 0)
	if err != nil {
		t.Fatal(err)
	}
	th := &thread{flows: f, template: tpl, random: 1}
	a := &analysis{histogram: newHistogram()}
	frame := make([]byte, 2048)
	seq := uint64(0)
	round := func() {
		n := tpl.write(frame, f, th.nextFlow(seq, int64(seq)*100), uint32(seq), seq, int(seq%12))
		if s, ok := FindStamp(frame[:n]); ok {
			a.see(s, n, s.Time+1234)
		}
		seq++
	}
	round() // a stream's first packet makes its tracker
	if n := testing.AllocsPerRun(1000, round); n != 0 {
		t.Errorf("%v allocations a packet", n)
	}
	if got := merge([]*analysis{a}); got.Packets != seq || got.Lost != 0 || got.Latency.Count != seq || got.Latency.P50 < 1230 || got.Latency.P50 > 1240 {
		t.Errorf("after %d packets: %+v", seq, got)
	}
}

func TestRangesAreRead(t *testing.T) {
	for s, want := range map[string]uint32{"10.0.0.1": 1, "10.0.0.0/24": 256, "10.0.0.250-10.0.1.5": 12, "2001:db8::/112": 65536, "2001:db8::1-2001:db8::2": 2} {
		if r, err := ParseRange(s); err != nil || r.Count != want {
			t.Errorf("%s: %+v, %v; want %d addresses", s, r, err, want)
		}
	}
	for _, s := range []string{"", "x", "10.0.0.1/24", "10.0.0.5-10.0.0.4", "10.0.0.1-2001:db8::1", "10.0.0.0/0", "2001:db8::-2001:db9::", "0.0.0.0-255.255.255.255"} {
		if r, err := ParseRange(s); err == nil {
			t.Errorf("%q is taken for %+v", s, r)
		}
	}
	for _, s := range []string{"", "70000", "5-4", "a-b"} {
		if p, err := ParsePorts(s); err == nil {
			t.Errorf("%q is taken for %+v", s, p)
		}
	}
}

func BenchmarkWrite(b *testing.B) {
	f := testFlows(b, false, 50000)
	tpl, _, _ := newTemplate(f, UDP, Sizes{64}, macA, macB, 0, 0)
	frame := make([]byte, 2048)
	th := &thread{flows: f}
	for i := range b.N {
		tpl.write(frame, f, th.nextFlow(uint64(i), 0), uint32(i), uint64(i), 0)
	}
}
