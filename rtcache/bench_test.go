package rtcache

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"pollux/internal/packet"
)

// onCPU runs a benchmark's loop on one thread and reports the time that the thread ran, which on a machine with other
// work says more than the time that passed.
func onCPU(b *testing.B, loop func()) {
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	used := func() int64 {
		var r unix.Rusage
		if unix.Getrusage(unix.RUSAGE_THREAD, &r) != nil {
			b.Fatal("no thread times")
		}
		return unix.TimevalToNsec(r.Utime) + unix.TimevalToNsec(r.Stime)
	}
	b.ResetTimer()
	begun := used()
	loop()
	b.ReportMetric(float64(used()-begun)/float64(b.N), "cpu-ns/op")
}

// BenchmarkHit is an established flow's packet: the attached next hop is reused. 1 flow, and many random ones, whose
// slots and stamps come from memory.
func BenchmarkHit(b *testing.B) {
	for _, flows := range []int{1, 1 << 10, 1 << 20} {
		b.Run(fmt.Sprintf("flows=%d", flows), func(b *testing.B) {
			table := static(b, StaticOptions{})
			v := table.View()
			type flow struct {
				slot [2]uint64
				dst  packet.Addr
			}
			all := make([]flow, flows)
			src := addr4("10.0.0.5")
			for i := range all {
				all[i].dst = packet.Addr(rand.Uint32N(0x7f000000-0x0b000000) + 0x0b000000)
				v.Route(&all[i].slot, 0, src, all[i].dst, 1)
				v.Route(&all[i].slot, 0, src, all[i].dst, 1)
			}
			v.C = Counters{}
			onCPU(b, func() {
				for i := range b.N {
					f := &all[i&(flows-1)]
					v.Route(&f.slot, 0, src, f.dst, 1)
				}
			})
			if v.C.Hits != uint64(b.N) {
				b.Fatalf("%d hits of %d: %+v", v.C.Hits, b.N, v.C)
			}
		})
	}
}

// randomRoutes gives n different prefixes with the lengths of a full table (most are /24, /22, /23).
func randomRoutes(n int) []netip.Prefix {
	r := rand.New(rand.NewPCG(1, 2))
	lengths := []int{24, 24, 24, 24, 24, 24, 23, 22, 22, 21, 20, 19, 18, 16}
	seen := make(map[netip.Prefix]bool, n)
	all := make([]netip.Prefix, 0, n)
	for len(all) < n {
		a := packet.Addr(r.Uint32N(0xdf000000-0x0b000000) + 0x0b000000)
		p := netip.PrefixFrom(a.Netip(), lengths[r.IntN(len(lengths))]).Masked()
		if !seen[p] && a>>24 != 127 {
			seen[p] = true
			all = append(all, p)
		}
	}
	return all
}

// loaded is a table with n routes over 8 routers on the outside port, all resolved, read in one dump.
func loaded(tb testing.TB, n int) (*modelBed, []netip.Prefix) {
	prefixes := randomRoutes(n)
	return loadedWith(tb, prefixes), prefixes
}

func loadedWith(tb testing.TB, prefixes []netip.Prefix) *modelBed {
	m := newModel(false)
	router := func(i int) netip.Addr { return netip.AddrFrom4([4]byte{198, 51, 2, byte(i % 8)}) }
	for i := range 8 {
		m.neighs[neighKey{2, router(i)}] = neighInfo{mac: [6]byte{2, 0, 0, 0, 2, byte(i)}, state: neighValid}
	}
	m.fake.dumpFrom = func(s sink) {
		m.dump(s)
		e := routeEvent{kind: setOne, hops: []nextHop{{index: 2, weight: 1}}}
		for i, p := range prefixes {
			e.prefix, e.hops[0].gateway = p, router(i)
			s.route(&e)
		}
		for _, own := range []string{"10.0.0.1", "198.51.2.254", "10.255.255.255", "198.51.2.255"} { // a usual local table
			s.route(&routeEvent{local: true, prefix: netip.PrefixFrom(netip.MustParseAddr(own), 32), kind: setLocal, hops: []nextHop{{index: 1, weight: 1}}})
		}
		s.route(&routeEvent{local: true, prefix: pfx("127.0.0.0/8"), kind: setLocal, hops: []nextHop{{index: 1, weight: 1}}})
		s.route(&routeEvent{prefix: pfx("10.0.0.0/8"), kind: setOne, hops: []nextHop{{index: 1, gateway: netip.MustParseAddr("10.9.9.9"), weight: 1}}})
	}
	table, err := start(Options{Hops: 1024, ReversePath: Strict}, []Port{{Name: "dev1", IfIndex: 1, Inside: true}, {Name: "dev2", IfIndex: 2}}, m.fake)
	if err != nil {
		tb.Fatal(err)
	}
	return &modelBed{m: m, table: table, view: table.View()}
}

func destinations(prefixes []netip.Prefix) []packet.Addr {
	r := rand.New(rand.NewPCG(3, 4))
	all := make([]packet.Addr, 1<<16)
	for i := range all {
		all[i] = packet.AddrFrom(prefixes[r.IntN(len(prefixes))].Addr()) + packet.Addr(r.IntN(256))
	}
	return all
}

// BenchmarkLookup is what a packet costs without an attached next hop: destination only, and with the strict check.
func BenchmarkLookup(b *testing.B) {
	for _, n := range []int{1000, 1000000} {
		bed, prefixes := loaded(b, n)
		dst := destinations(prefixes)
		for _, check := range []ReversePathMode{Off, Strict} {
			b.Run(fmt.Sprintf("routes=%d/reverse=%d", n, check), func(b *testing.B) {
				bed.table.SetReversePath(check)
				src := addr4("10.1.2.3")
				onCPU(b, func() {
					for i := range b.N {
						if _, v := bed.view.Route(nil, 0, src, dst[i&(len(dst)-1)], 1); v != OK {
							b.Fatal(v)
						}
					}
				})
			})
		}
		b.Run(fmt.Sprintf("routes=%d/attached", n), func(b *testing.B) {
			slots := make([][2]uint64, len(dst))
			src := addr4("10.1.2.3")
			for range 2 {
				for i := range dst {
					bed.view.Route(&slots[i], 0, src, dst[i], 1)
				}
			}
			onCPU(b, func() {
				for i := range b.N {
					j := i & (len(dst) - 1)
					bed.view.Route(&slots[j], 0, src, dst[j], 1)
				}
			})
		})
	}
}

// BenchmarkLoad reads a million routes: the first dump and a dump after an overrun. Bytes per route are what the tables
// keep; in between, the second has old and new tables side by side.
func BenchmarkLoad(b *testing.B) {
	prefixes := randomRoutes(1000000)
	b.Run("first", func(b *testing.B) {
		for range b.N {
			b.StopTimer()
			var before, after runtime.MemStats
			runtime.GC()
			runtime.ReadMemStats(&before)
			b.StartTimer()
			var bed *modelBed
			onCPU(b, func() { bed = loadedWith(b, prefixes) })
			b.StopTimer()
			runtime.GC()
			runtime.ReadMemStats(&after)
			const fixed = 2 << 18 // stamps
			b.ReportMetric(float64(int64(after.HeapAlloc)-int64(before.HeapAlloc)-fixed)/1e6, "B/route")
			runtime.KeepAlive(bed)
		}
	})
	b.Run("again", func(b *testing.B) {
		bed, _ := loaded(b, 1000000)
		onCPU(b, func() {
			for range b.N {
				bed.m.fake.overrun = true
				bed.step(time.Second)
			}
		})
	})
}

// BenchmarkChurn is a hit while another goroutine applies 1000 route changes a second to a table of a million, and the
// same without: the difference is what churn costs established flows.
func BenchmarkChurn(b *testing.B) {
	bed, prefixes := loaded(b, 1000000)
	dst := destinations(prefixes)
	slots := make([][2]uint64, len(dst))
	src := addr4("10.1.2.3")
	for range 2 {
		for i := range dst {
			bed.view.Route(&slots[i], 0, src, dst[i], 1)
		}
	}
	for _, perSecond := range []int{0, 1000} {
		b.Run(fmt.Sprintf("changes=%d", perSecond), func(b *testing.B) {
			stop, done := make(chan struct{}), make(chan int)
			go func() {
				n := 0
				for perSecond > 0 {
					select {
					case <-stop:
						done <- n
						return
					case <-time.After(time.Second / time.Duration(perSecond)):
					}
					p := prefixes[n*7919%len(prefixes)]
					e := &routeEvent{prefix: p, kind: setOne, mode: routeReplace,
						hops: []nextHop{{index: 2, gateway: netip.AddrFrom4([4]byte{198, 51, 2, byte(n % 8)}), weight: 1}}}
					bed.m.say(func(s sink) { s.route(e) })
					bed.step(time.Millisecond)
					n++
				}
				<-stop
				done <- 0
			}()
			bed.view.C = Counters{}
			onCPU(b, func() {
				for i := range b.N {
					j := i & (len(dst) - 1)
					bed.view.Route(&slots[j], 0, src, dst[j], 1)
				}
			})
			b.StopTimer()
			close(stop)
			changes := <-done
			b.ReportMetric(float64(changes)/b.Elapsed().Seconds(), "changes/s")
			b.ReportMetric(float64(bed.view.C.Hits)/float64(b.N)*100, "%hits")
		})
	}
}

// BenchmarkChange is one route change, published.
func BenchmarkChange(b *testing.B) {
	for _, n := range []int{1000, 1000000} {
		b.Run(fmt.Sprintf("routes=%d", n), func(b *testing.B) {
			bed, prefixes := loaded(b, n)
			b.ReportAllocs()
			onCPU(b, func() {
				for i := range b.N {
					e := &routeEvent{prefix: prefixes[i*7919%n], kind: setOne, mode: routeReplace,
						hops: []nextHop{{index: 2, gateway: netip.AddrFrom4([4]byte{198, 51, 2, byte(i % 7)}), weight: 1}}}
					bed.table.c.route(e)
					bed.table.c.publish()
				}
			})
		})
	}
}
