package nat

import (
	"encoding/binary"
	"fmt"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"pollux/internal/clock"
	"pollux/internal/packet"
)

// The benchmarks are named after what a user would ask. Each reports net-ns/pkt: the time of parse, Touch and Translate less
// the time of making the packets alone, medians of the rounds of one run, as the C yardstick reports its own. Time is the
// thread's CPU time, so that a busy machine disturbs less.

// traffic makes the packets of numbered flows: flow i goes from a host of 10/8 to remote i/60000, with the alias port equal to
// the local one, so that both directions follow from i.
type traffic struct {
	frames []byte
	next   int
	rng    uint64
	tcp    bool
	flags  uint8
}

const (
	coldFrames = 4096
	frameSpace = 2048
	perRemote  = 60000
)

func newTraffic(tcp bool) *traffic {
	t := &traffic{frames: make([]byte, coldFrames*frameSpace), rng: 88172645463325252, tcp: tcp, flags: packet.TCPAck}
	b := packet.Build{Src: 1, Dst: 2, SrcPort: 1, DstPort: 2, Pad: 60, Flags: t.flags}
	one := b.UDP(make([]byte, 18))
	if tcp {
		one = b.TCP(nil)
	}
	for i := range coldFrames {
		copy(t.frames[i*frameSpace:], one)
	}
	return t
}

func (t *traffic) random() uint64 {
	t.rng ^= t.rng << 13
	t.rng ^= t.rng >> 7
	t.rng ^= t.rng << 17
	return t.rng
}

func flowOf(i uint32) (host packet.Addr, port uint16, remote Remote) {
	host = 10<<24 | packet.Addr(i*2654435761>>16)
	return host, uint16(1024 + i%perRemote), Remote{packet.Addr(198<<24|18<<16) + packet.Addr(i/perRemote), 443}
}

// put writes a packet into the next cold frame.
func (t *traffic) put(p *Packet, side Side, src packet.Addr, sport uint16, dst packet.Addr, dport uint16) {
	f := t.frames[t.next*frameSpace : t.next*frameSpace+60]
	t.next = (t.next + 1) % coldFrames
	f[22] = 64
	binary.BigEndian.PutUint16(f[24:], 0)
	binary.BigEndian.PutUint32(f[26:], uint32(src))
	binary.BigEndian.PutUint32(f[30:], uint32(dst))
	binary.BigEndian.PutUint16(f[34:], sport)
	binary.BigEndian.PutUint16(f[36:], dport)
	if t.tcp {
		f[47] = t.flags
	}
	s := binary.BigEndian.Uint64(f[14:])>>32 + binary.BigEndian.Uint64(f[14:])&0xffffffff + uint64(binary.BigEndian.Uint32(f[22:])) +
		uint64(src) + uint64(dst)
	s = s>>32 + s&0xffffffff
	s = s>>16 + s&0xffff
	s = s>>16 + s&0xffff
	binary.BigEndian.PutUint16(f[24:], ^uint16(s>>16+s))
	p.Data, p.Side = f, side
}

func (t *traffic) flow(p *Packet, i uint32, side Side) {
	host, port, remote := flowOf(i)
	if side == Inside {
		t.put(p, side, host, port, remote.Addr, remote.Port)
	} else {
		t.put(p, side, remote.Addr, remote.Port, pub1, port)
	}
}

// cpuTime is what the calling thread has used; the benchmark is locked to it.
func cpuTime() time.Duration {
	var t unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_THREAD_CPUTIME_ID, &t)
	return time.Duration(t.Nano())
}

// measure runs rounds of bursts with and without the work and reports the difference per packet.
func measure(b *testing.B, size int, make func(p *Packet), work func([]Packet)) {
	var burst [burst]Packet
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	const rounds = 15
	per := max(b.N/rounds/2, 1<<16) / size * size
	var with, without [rounds]float64
	for r := range rounds {
		for phase := range 2 {
			start := cpuTime()
			for n := 0; n < per; n += size {
				for i := range size {
					make(&burst[i])
				}
				if phase == 1 {
					work(burst[:size])
				}
			}
			d := float64((cpuTime() - start).Nanoseconds()) / float64(per)
			if phase == 0 {
				without[r] = d
			} else {
				with[r] = d
			}
		}
	}
	b.ReportMetric(median(with[:])-median(without[:]), "net-ns/pkt")
	b.ReportMetric(with[0]-without[0], "best-ns/pkt") // median has sorted them
	b.ReportMetric(0, "ns/op")
}

func median(x []float64) float64 {
	for i := range x {
		for j := i + 1; j < len(x); j++ {
			if x[j] < x[i] {
				x[i], x[j] = x[j], x[i]
			}
		}
	}
	return x[len(x)/2]
}

func pipeline(s *Shard, b []Packet, now clock.Tick) {
	for i := range b {
		packet.Parse(b[i].Data, &b[i].H)
	}
	s.Touch(b)
	s.Translate(b, now)
}

func benchShard(b testing.TB, links int, change func(*Options)) *Shard {
	o := Options{Rules: DefaultRules(), Limits: Limits{Links: links, Fragments: 64}, Seed: [32]byte{7}, Populate: true}
	o.Rules.Alias = []packet.Addr{pub1}
	o.Rules.Mapping.UDP = AddressAndPortDependent
	if change != nil {
		change(&o)
	}
	s, err := New(o)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = s.Close() })
	return s
}

// fill opens n flows of t.
func (t *traffic) fill(b testing.TB, s *Shard, n uint32) {
	var ps [burst]Packet
	for i := uint32(0); i < n; i += burst {
		for k := range ps {
			t.flow(&ps[k], min(i+uint32(k), n-1), Inside)
		}
		pipeline(s, ps[:], 1)
	}
	if s.live != int(n) {
		b.Fatalf("%d links, want %d", s.live, n)
	}
}

func BenchmarkEstablished(b *testing.B) {
	for _, tc := range []struct {
		name  string
		links uint32
		tcp   bool
	}{{"1k-links", 1 << 10, false}, {"16k-links", 1 << 14, false}, {"1M-links", 1 << 20, false}, {"4M-links", 1 << 22, false},
		{"1k-links-tcp", 1 << 10, true}} {
		b.Run(tc.name, func(b *testing.B) {
			s := benchShard(b, int(tc.links), nil)
			t := newTraffic(tc.tcp)
			t.fill(b, s, tc.links)
			if tc.tcp {
				openAll(b, s, tc.links)
			}
			hits := s.counters.Hits
			packets := uint64(0)
			measure(b, burst, func(p *Packet) {
				r := t.random()
				t.flow(p, uint32((r>>32)*uint64(tc.links)>>32), Side(r&1))
			}, func(ps []Packet) { packets += uint64(len(ps)); pipeline(s, ps, 1) })
			if got := s.counters.Hits - hits; got < packets-packets/256 { // equal 32-bit hashes take the long way
				b.Fatalf("%d hits of %d packets", got, packets)
			}
		})
	}
}

// openAll brings TCP flows from opening to established.
func openAll(b testing.TB, s *Shard, n uint32) {
	for id := uint32(1); id <= n; id++ {
		s.setState(id, Established, 1)
	}
}

// BenchmarkStages takes an established packet's way apart: parse alone, with Touch, whole.
func BenchmarkStages(b *testing.B) {
	s := benchShard(b, 1<<10, nil)
	t := newTraffic(false)
	t.fill(b, s, 1<<10)
	make := func(p *Packet) {
		r := t.random()
		t.flow(p, uint32((r>>32)<<10>>32), Side(r&1))
	}
	parse := func(ps []Packet) {
		for i := range ps {
			packet.Parse(ps[i].Data, &ps[i].H)
		}
	}
	b.Run("parse", func(b *testing.B) { measure(b, burst, make, parse) })
	b.Run("parse+touch", func(b *testing.B) { measure(b, burst, make, func(ps []Packet) { parse(ps); s.Touch(ps) }) })
	b.Run("parse+touch+translate", func(b *testing.B) { measure(b, burst, make, func(ps []Packet) { pipeline(s, ps, 1) }) })
}

func BenchmarkNewLinks(b *testing.B) {
	for _, tc := range []struct {
		name string
		ei   bool
	}{{"endpoint-dependent-udp", false}, {"endpoint-independent-udp", true}} {
		b.Run(tc.name, func(b *testing.B) {
			const links = 1 << 20
			s := benchShard(b, links, func(o *Options) {
				if tc.ei {
					o.Rules.Mapping.UDP = EndpointIndependent
					o.Rules.Alias = nil
					for i := range packet.Addr(32) {
						o.Rules.Alias = append(o.Rules.Alias, pub1+i)
					}
				}
			})
			runtime.LockOSThread()
			defer runtime.UnlockOSThread()
			t := newTraffic(false)
			var ps [burst]Packet
			var rates []float64
			now := clock.Tick(1)
			for round := 0; round < 3; round++ {
				start := cpuTime()
				n := uint32(links / 2)
				for i := uint32(0); i < n; i += burst {
					for k := range ps {
						t.flow(&ps[k], i+uint32(k), Inside)
					}
					pipeline(s, ps[:], now)
				}
				rates = append(rates, float64((cpuTime()-start).Nanoseconds())/float64(n))
				if s.live < links/2*9/10 {
					b.Fatalf("%d links", s.live)
				}
				now += 400_000
				start = cpuTime()
				for s.Advance(now, 64) == 64 {
				}
				b.ReportMetric(float64((cpuTime()-start).Nanoseconds())/float64(n), "expiry-ns/link")
				if s.live != 0 {
					b.Fatalf("%d links left", s.live)
				}
			}
			b.ReportMetric(median(rates), "ns/link")
			b.ReportMetric(0, "ns/op")
		})
	}
}

func BenchmarkRefused(b *testing.B) {
	for name, change := range map[string]func(*Options){
		"table-full":   func(o *Options) { o.Limits.Links = 1 << 14 },
		"ports-out":    func(o *Options) { o.Rules.PortRange = PortRange{1024, 2047}; o.Rules.Mapping.UDP = EndpointIndependent },
		"peer-out":     func(o *Options) { o.Rules.PortRange = PortRange{1024, 2047} },
		"host-limit":   func(o *Options) { o.Limits.LinksPerHost = 1 },
		"deny-inbound": nil,
	} {
		b.Run(name, func(b *testing.B) {
			s := benchShard(b, 1<<18, change)
			t := newTraffic(false)
			var ps [burst]Packet
			for range 1 << 10 {
				for k := range ps {
					r := t.random()
					t.put(&ps[k], Inside, 10<<24|packet.Addr(r>>40&255), uint16(r>>20), ext1, 53)
				}
				pipeline(s, ps[:], 1)
			}
			side := Inside
			dst := ext1
			if name == "deny-inbound" {
				side, dst = Outside, pub1
			}
			created := s.counters.Created
			measure(b, burst, func(p *Packet) {
				r := t.random()
				t.put(p, side, 10<<24|packet.Addr(r>>40&255), uint16(r>>20), dst, uint16(1024|r))
				if name == "peer-out" || name == "ports-out" {
					t.put(p, side, 10<<24|packet.Addr(r>>40&255), uint16(r>>20), dst, 53)
				}
			}, func(ps []Packet) { pipeline(s, ps, 1) })
			if got := s.counters.Created - created; got > 1<<18 && name != "deny-inbound" {
				b.Logf("%d links made", got)
			}
		})
	}
}

func BenchmarkOneGroup(b *testing.B) {
	for _, links := range []uint32{1000, 100_000, 1_000_000} {
		s := benchShard(b, int(links)+1<<20, func(o *Options) {
			o.Rules.RedirectPort = []RedirectPort{{Proto: packet.ProtoTCP, Public: Alias{pub1, 443}, Local: []Local{{prv1, 443}}}}
		})
		t := newTraffic(true)
		client := func(i uint32) (packet.Addr, uint16) {
			x := uint64(i+1) * 0x9e3779b97f4a7c15
			return packet.Addr(x>>32)&0x1fffffff | 0x40000000, uint16(x >> 16)
		}
		fill := func(from, to uint32, b testing.TB) {
			t.flags = packet.TCPSyn
			var p [1]Packet
			for i := from; i < to; i++ {
				a, port := client(i)
				t.put(&p[0], Outside, a, port, pub1, 443)
				pipeline(s, p[:], 1)
			}
		}
		fill(0, links, b)
		for id := uint32(1); id < s.fresh; id++ {
			s.setState(id, Established, 1)
		}
		base := s.live
		for _, size := range []int{1, burst} {
			how := map[int]string{1: "single", burst: "burst"}[size]
			b.Run(fmt.Sprintf("existing/%d/%s", links, how), func(b *testing.B) {
				t.flags = packet.TCPAck
				measure(b, size, func(p *Packet) {
					a, port := client(uint32((t.random() >> 32) * uint64(links) >> 32))
					t.put(p, Outside, a, port, pub1, 443)
				}, func(ps []Packet) { pipeline(s, ps, 1) })
			})
			for _, order := range []string{"scattered", "consecutive"} {
				b.Run(fmt.Sprintf("newSYN-%s/%d/%s", order, links, how), func(b *testing.B) {
					runtime.LockOSThread()
					defer runtime.UnlockOSThread()
					t.flags = packet.TCPSyn
					const rounds, each = 5, 1 << 15
					var ps [burst]Packet
					var net [rounds]float64
					next := uint32(0)
					run := func(work bool) float64 {
						start := cpuTime()
						for n := 0; n < each; n += size {
							for i := range size {
								a, port := client(links + next)
								if order == "consecutive" {
									a, port = 0x20000000+packet.Addr(next>>4), uint16(next<<12)
								}
								next++
								t.put(&ps[i], Outside, a, port, pub1, 443)
							}
							if work {
								pipeline(s, ps[:size], 1)
							}
						}
						return float64((cpuTime() - start).Nanoseconds()) / each
					}
					for r := range rounds {
						bare := run(false)
						net[r] = run(true) - bare
						if s.live < base+each*99/100 {
							b.Fatalf("%d links made of %d", s.live-base, each)
						}
						for id := uint32(1); id < s.fresh; id++ {
							if s.used(id) && s.cold[id].state == Opening {
								s.remove(id, 1)
							}
						}
					}
					b.ReportMetric(median(net[:]), "net-ns/pkt")
					b.ReportMetric(0, "ns/op")
				})
			}
		}
		_ = s.Close()
	}
}
