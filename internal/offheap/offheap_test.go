package offheap

import (
	"math/rand/v2"
	"os"
	"runtime"
	"strings"
	"testing"
	"unsafe"

	"golang.org/x/sys/unix"
)

type record struct {
	Key  uint64
	Next uint32
	Rest [52]byte
}

func TestTable(t *testing.T) {
	for _, n := range []int{1, 100, 1 << 16} { // below and above a huge page
		table, err := Alloc[record](n)
		if err != nil {
			t.Fatal(err)
		}
		if len(table.Items) != n || len(table.Bytes()) != n*64 || table.Mapped() < n*64 {
			t.Fatalf("%d elements: %d items, %d bytes, %d mapped", n, len(table.Items), len(table.Bytes()), table.Mapped())
		}
		if p := uintptr(unsafe.Pointer(&table.Items[0])); p%uintptr(os.Getpagesize()) != 0 {
			t.Errorf("table at %#x is not page-aligned", p)
		}
		if err := table.Populate(); err != nil {
			t.Fatal(err)
		}
		for i := range table.Items {
			if table.Items[i] != (record{}) {
				t.Fatalf("element %d is not zero", i)
			}
			table.Items[i].Key = uint64(i)
		}
		if last := table.Bytes()[(n-1)*64:]; uint64(last[0])|uint64(last[1])<<8 != uint64(n-1)&0xffff {
			t.Errorf("Bytes is another memory than Items: % x", last[:8])
		}
		if err := table.Free(); err != nil || table.Items != nil {
			t.Errorf("Free: %v, items %v", err, table.Items)
		}
		if err := table.Free(); err != nil {
			t.Errorf("second Free: %v", err)
		}
	}
}

// What a Region with a descriptor holds is what a successor that maps the descriptor sees.
func TestTakeOver(t *testing.T) {
	r, err := NewRegion(4096)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Free()
	if r.FD() < 0 {
		t.Fatal("a small region has no descriptor")
	}
	copy(r.Bytes(), "state")
	again, err := unix.Mmap(r.FD(), 0, r.Mapped(), unix.PROT_READ, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Munmap(again)
	if got := string(again[:5]); got != "state" {
		t.Errorf("the second mapping holds %q", got)
	}
}

// Every kind of memory that NewRegion may fall back to works alike.
func TestKindsOfPages(t *testing.T) {
	const size = 3<<20 + 5
	small := func() (*Region, error) { return mapFile(size, Small) }
	joined := func() (*Region, error) { return mapFile(size, Transparent) }
	huge := func() (*Region, error) { return mapFile(size, Huge) }
	anonymous := func() (*Region, error) { return mapAnonymous(size) }
	for name, f := range map[string]func() (*Region, error){
		"small": small, "joined": joined, "huge": huge, "anonymous": anonymous, "chosen": func() (*Region, error) { return NewRegion(size) },
	} {
		r, err := f()
		if err != nil {
			if name == "huge" {
				t.Log("no huge pages are reserved here:", err)
				continue
			}
			t.Errorf("%s: %v", name, err)
			continue
		}
		b := r.Bytes()
		if len(b) != size || cap(b) != size || r.Mapped() < size || r.Mapped()%os.Getpagesize() != 0 {
			t.Errorf("%s: %d bytes, %d mapped", name, len(b), r.Mapped())
		}
		if err := r.Populate(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
		b[0], b[size-1] = 1, 2
		if (name == "anonymous") != (r.FD() < 0) && name != "chosen" {
			t.Errorf("%s: descriptor %d", name, r.FD())
		}
		if !strings.Contains("small transparent-huge huge", r.Pages().String()) {
			t.Errorf("%s: %v pages", name, r.Pages())
		}
		if err := r.Free(); err != nil {
			t.Errorf("%s: %v", name, err)
		}
	}
}

// Memory that is not to be had is told by Populate, in words, and not by a signal later.
func TestPopulateTellsTheTruth(t *testing.T) {
	r, err := NewRegion(1 << 20)
	if err != nil {
		t.Fatal(err)
	}
	defer r.Free()
	if err := unix.Ftruncate(r.FD(), 4096); err != nil { // the file is shorter than the mapping now
		t.Fatal(err)
	}
	if err := r.Populate(); err == nil || !strings.Contains(err.Error(), "are not to be had") {
		t.Errorf("error %v", err)
	}
}

// Freed memory goes back to the system, descriptors too.
func TestFreeLeaksNothing(t *testing.T) {
	open := func() int {
		entries, err := os.ReadDir("/proc/self/fd")
		if err != nil {
			t.Fatal(err)
		}
		return len(entries)
	}
	before := open()
	for range 50 {
		for _, size := range []int{4096, 4 << 20} {
			r, err := NewRegion(size)
			if err != nil {
				t.Fatal(err)
			}
			r.Free()
		}
	}
	if after := open(); after > before {
		t.Errorf("%d descriptors open, %d before", after, before)
	}
}

func TestAllocRefuses(t *testing.T) {
	type inner struct{ Name string }
	for name, f := range map[string]func() error{
		"pointer":             func() error { _, err := Alloc[*int](1); return err },
		"string in a struct":  func() error { _, err := Alloc[[2]struct{ I inner }](1); return err },
		"slice":               func() error { _, err := Alloc[[]byte](1); return err },
		"interface":           func() error { _, err := Alloc[any](1); return err },
		"map":                 func() error { _, err := Alloc[map[int]int](1); return err },
		"function":            func() error { _, err := Alloc[func()](1); return err },
		"unsafe pointer":      func() error { _, err := Alloc[unsafe.Pointer](1); return err },
		"no elements":         func() error { _, err := Alloc[int](0); return err },
		"empty element":       func() error { _, err := Alloc[struct{}](1); return err },
		"size that overflows": func() error { _, err := Alloc[record](1 << 60); return err },
		"size without memory": func() error { _, err := Alloc[byte](1 << 60); return err },
	} {
		if err := f(); err == nil || !strings.HasPrefix(err.Error(), "offheap: ") {
			t.Errorf("%s: error %v", name, err)
		}
	}
	if _, err := Alloc[[2]struct{ I inner }](1); !strings.Contains(err.Error(), "I Name string") {
		t.Errorf("the error does not say where: %v", err)
	}
}

// Prefetching changes nothing, allocates nothing, and on machines with the instruction survives any address.
func TestPrefetch(t *testing.T) {
	table, err := Alloc[record](1000)
	if err != nil {
		t.Fatal(err)
	}
	defer table.Free()
	addresses := []uintptr{uintptr(unsafe.Pointer(&table.Items[0])), uintptr(unsafe.Pointer(&table.Items[999]))}
	index := []uint32{0, 5, 999}
	if runtime.GOARCH == "amd64" || runtime.GOARCH == "arm64" {
		addresses = append(addresses, 0, 64, ^uintptr(0))
		index = append(index, 1<<32-1)
	}
	if n := testing.AllocsPerRun(100, func() {
		Prefetch(addresses)
		Prefetch(addresses[:0])
		table.Prefetch(index)
		table.Prefetch(nil)
	}); n != 0 {
		t.Errorf("allocates %v times", n)
	}
	for i := range table.Items {
		if table.Items[i] != (record{}) {
			t.Fatalf("element %d changed", i)
		}
	}
}

// BenchmarkCold is the question that decides how a burst meets its records: 64-byte records at random places of a 256 MiB
// table; each packet's work depends on what its record holds.
func BenchmarkCold(b *testing.B) {
	const n, burst = 4 << 20, 64
	table, err := Alloc[record](n)
	if err != nil {
		b.Fatal(err)
	}
	defer table.Free()
	if err := table.Populate(); err != nil {
		b.Fatal(err)
	}
	items := table.Items
	for i := range items {
		items[i].Next = uint32(i) ^ 0x5a5a
	}
	b.Logf("%v pages", table.Pages())
	var index [burst]uint32
	var addresses [burst]uintptr
	state := rand.Uint64() | 1
	draw := func() {
		for i := range index {
			state ^= state << 13
			state ^= state >> 7
			state ^= state << 17
			index[i] = uint32(state>>20) % n
		}
	}
	work := func(sum uint32) uint32 {
		for _, i := range index {
			r := &items[i]
			for k := uint32(0); k < 8; k++ { // a chain as long as parsing keys and adding deltas
				sum = sum*31 + r.Next + k
			}
			r.Key = uint64(sum)
		}
		return sum
	}
	// One at a time: nothing of the next record is known before this one is done.
	single := func(sum uint32) uint32 {
		for _, i := range index {
			r := &items[(i^sum&1)%n]
			for k := uint32(0); k < 8; k++ {
				sum = sum*31 + r.Next + k
			}
			r.Key = uint64(sum)
		}
		return sum
	}
	run := func(name string, touch func(), work func(uint32) uint32) {
		b.Run(name, func(b *testing.B) {
			var sum uint32
			for b.Loop() {
				draw()
				touch()
				sum = work(sum)
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/burst, "ns/record")
			sink += sum
		})
	}
	run("one-by-one", func() {}, single)
	run("burst-without-touch", func() {}, work)
	run("burst-plain-loads", func() {
		var t uint32
		for _, i := range index {
			t += items[i].Next
		}
		sink += t
	}, work)
	run("burst-prefetch-addresses", func() {
		for k, i := range index {
			addresses[k] = uintptr(unsafe.Pointer(&items[i]))
		}
		Prefetch(addresses[:])
	}, work)
	run("burst-prefetch-indexed", func() { table.Prefetch(index[:]) }, work)
	run("drawing-alone", func() {}, func(sum uint32) uint32 { return sum })
}

var sink uint32
