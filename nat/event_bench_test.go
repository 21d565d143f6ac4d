package nat

import (
	"runtime"
	"testing"

	"pollux/internal/clock"
	"pollux/internal/packet"
)

// benchRing is a ring for a benchmark or a test of allocations.
func benchRing(b testing.TB, sessions bool) *EventRing {
	ring, err := NewEventRing(1<<16, sessions)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(ring.Close)
	return ring
}

// BenchmarkLogging makes and ends links without a log, with blocks and refusals logged, and with every session logged.
func BenchmarkLogging(b *testing.B) {
	for _, level := range []string{"off", "block", "session"} {
		b.Run(level, func(b *testing.B) {
			const links = 1 << 18
			var ring *EventRing
			if level != "off" {
				ring = benchRing(b, level == "session")
			}
			s := benchShard(b, links, func(o *Options) { o.Events = ring })
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			t := newTraffic(false)
			var ps [burst]Packet
			var events [1024]Event
			var created, ended []float64
			now := clock.Tick(1)
			for range 9 {
				n := uint32(links / 2)
				var used, start = 0.0, cpuTime()
				for i := uint32(0); i < n; i += burst {
					for k := range ps {
						t.flow(&ps[k], i+uint32(k), Inside)
					}
					pipeline(s, ps[:], now)
					if ring != nil && i%(1<<14) == 0 { // what the reader does, on another core, is not counted
						used += float64((cpuTime() - start).Nanoseconds())
						for ring.Read(events[:]) > 0 {
						}
						start = cpuTime()
					}
				}
				created = append(created, (used+float64((cpuTime()-start).Nanoseconds()))/float64(n))
				now += 400_000
				used, start = 0, cpuTime()
				for round := 0; s.live > 0; round++ {
					s.Advance(now, 64)
					if ring != nil && round%256 == 0 {
						used += float64((cpuTime() - start).Nanoseconds())
						for ring.Read(events[:]) > 0 {
						}
						start = cpuTime()
					}
				}
				ended = append(ended, (used+float64((cpuTime()-start).Nanoseconds()))/float64(n))
			}
			if ring != nil && ring.Lost() > 0 {
				b.Fatalf("%d events lost", ring.Lost())
			}
			b.ReportMetric(median(created), "create-ns/link")
			b.ReportMetric(median(ended), "end-ns/link")
			b.ReportMetric(0, "ns/op")
		})
	}
}

// TestLoggingAllocatesNothing: neither links made and ended nor refusals, with a ring that has room and with one that is full.
func TestLoggingAllocatesNothing(t *testing.T) {
	s := benchShard(t, 100_000, func(o *Options) { o.Events, o.Limits.LinksPerHost = benchRing(t, true), 2 })
	var b [1]Packet
	data := udp(prv1, 1024, ext1, 53)
	frame := append([]byte(nil), data...)
	host, now := packet.Addr(10<<24), clock.Tick(1)
	once := func() {
		host++
		now += 1000
		for port := range uint16(3) { // the third is refused
			copy(data, frame)
			b[0] = Packet{Data: data, Side: Inside}
			packet.Parse(data, &b[0].H)
			b[0].H.Src, b[0].H.SrcPort = host, 1024+port
			s.Touch(b[:])
			s.Translate(b[:], now)
		}
		s.Advance(now, 64)
	}
	for range 2 {
		if n := testing.AllocsPerRun(10_000, once); n != 0 {
			t.Errorf("%v allocations", n)
		}
	}
	if s.log.ring.Lost() == 0 || s.counters.Expired == 0 || s.counters.Refused == [len(s.counters.Refused)]uint64{} {
		t.Errorf("%d events lost, %d links expired", s.log.ring.Lost(), s.counters.Expired)
	}
}
