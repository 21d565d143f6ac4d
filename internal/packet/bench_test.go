package packet

import "testing"

var (
	benchUDP  = Build{Src: 0x0a000001, Dst: 0xc6336401, SrcPort: 1234, DstPort: 53}
	benchSink Headers
)

func benchmarkParse(b *testing.B, frame []byte, want Kind) {
	b.ReportAllocs()
	var h Headers
	for b.Loop() {
		Parse(frame, &h)
	}
	if h.Kind != want || h.Reason != 0 {
		b.Fatalf("kind %d reason %v", h.Kind, h.Reason)
	}
	benchSink = h
}

func BenchmarkParse(b *testing.B) {
	u := benchUDP
	u.Pad = 60
	options := u
	options.Options = []byte{1, 1, 1, 1}
	half := u
	half.HalfMade = true
	b.Run("udp-60-bytes", func(b *testing.B) { benchmarkParse(b, u.UDP(make([]byte, 18)), KindUDP) })
	b.Run("tcp-60-bytes", func(b *testing.B) { benchmarkParse(b, u.TCP(nil), KindTCP) })
	b.Run("udp-short-frame", func(b *testing.B) { benchmarkParse(b, benchUDP.UDP(nil), KindUDP) })
	b.Run("udp-ip-options", func(b *testing.B) { benchmarkParse(b, options.UDP(make([]byte, 18)), KindUDP) })
	b.Run("icmp-echo", func(b *testing.B) { benchmarkParse(b, u.Echo(false, 1, make([]byte, 18)), KindICMPQuery) })
	b.Run("tcp-half-made-1460", func(b *testing.B) {
		frame := half.TCP(make([]byte, 1460))
		sum := [2]byte(frame[50:52])
		b.ReportAllocs()
		for b.Loop() {
			copy(frame[50:52], sum[:])
			Parse(frame, &benchSink)
		}
	})
	// A burst of different frames: what a worker sees, without one branch history that fits all.
	b.Run("udp-tcp-burst-of-64", func(b *testing.B) {
		var frames [64][]byte
		for i := range frames {
			f := u
			f.Src, f.SrcPort, f.ID = f.Src+Addr(i*7919), uint16(i), uint16(i*31)
			if frames[i] = f.UDP(make([]byte, 18)); i*i%7 < 3 {
				frames[i] = f.TCP(nil)
			}
		}
		var h [64]Headers
		b.ReportAllocs()
		for b.Loop() {
			for i := range frames {
				Parse(frames[i], &h[i])
			}
		}
		b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/64, "ns/packet")
	})
}

func BenchmarkSetEndpoints(b *testing.B) {
	frame := benchUDP.UDP(make([]byte, 18))
	var h Headers
	Parse(frame, &h)
	b.ReportAllocs()
	port := uint16(1)
	for b.Loop() {
		port++
		SetEndpoints(frame, &h, 0xcb007101, port, h.Dst, h.DstPort)
	}
}

func BenchmarkSum(b *testing.B) {
	for name, n := range map[string]int{"20": 20, "1460": 1460} {
		buf := make([]byte, n)
		b.Run(name, func(b *testing.B) {
			b.SetBytes(int64(n))
			for b.Loop() {
				Sum(buf, 0)
			}
		})
	}
}

func BenchmarkICMPError(b *testing.B) {
	frame := benchUDP.UDP(make([]byte, 18))
	var h Headers
	Parse(frame, &h)
	dst := make([]byte, ICMPErrorMax)
	b.ReportAllocs()
	for b.Loop() {
		ICMPError(dst, frame, &h, 0xc0000201, ICMPTimeExceeded, 0, 0)
	}
}
