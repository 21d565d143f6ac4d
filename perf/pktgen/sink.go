package pktgen

import (
	"sync/atomic"

	"github.com/HdrHistogram/hdrhistogram-go"
)

// Latencies that a sink can tell, in ns: a longer one counts as the longest.
const (
	latencyMax    = int64(100e9)
	latencyDigits = 3
)

// windowBits is how far back, in packets of a stream, a sink tells a late packet from a duplicate.
const windowBits = 1 << 14

// tracker judges one stream of one run.
type tracker struct {
	packets    uint64
	bytes      uint64
	first      uint64
	high       uint64 // highest sequence number so far, extended to 64 bits
	reordered  uint64
	duplicates uint64
	tooLate    uint64              // so late that nobody can say whether it came before
	window     [windowWords]uint64 // bit n modulo windowBits: number n came
}

const windowWords = windowBits / 64

// see takes note of a packet.
func (t *tracker) see(seq32 uint32, bytes int) {
	t.bytes += uint64(bytes)
	if t.packets == 0 {
		t.packets = 1
		// The first to come need not be the first sent: begin some way up, so that earlier ones have numbers too.
		t.first = uint64(seq32) + 1<<32
		t.high = t.first
		t.set(t.high)
		return
	}
	t.packets++
	seq := t.high + uint64(int64(int32(seq32-uint32(t.high))))
	switch {
	case seq > t.high:
		if seq-t.high >= windowBits {
			clear(t.window[:])
		} else {
			for n := t.high + 1; n <= seq; n++ {
				t.unset(n)
			}
		}
		t.high = seq
		t.set(seq)
	case t.high-seq >= windowBits:
		t.tooLate++
		t.reordered++
	case t.has(seq):
		t.duplicates++
	default:
		t.set(seq)
		t.reordered++
		t.first = min(t.first, seq)
	}
}

func (t *tracker) set(n uint64)   { t.window[n/64%windowWords] |= 1 << (n % 64) }
func (t *tracker) unset(n uint64) { t.window[n/64%windowWords] &^= 1 << (n % 64) }
func (t *tracker) has(n uint64) bool {
	return t.window[n/64%windowWords]>>(n%64)&1 != 0
}

// lost is how many packets between the first and the highest did not come.
func (t *tracker) lost() uint64 {
	if t.packets == 0 {
		return 0
	}
	span := t.high - t.first + 1
	if got := t.packets - t.duplicates; got < span {
		return span - got
	}
	return 0
}

// Arrivals is what a sink saw. Loss and order are judged within each stream, which is one thread of the generator; packets
// missing at the very end of a stream are known to the generator alone (compare with its count).
type Arrivals struct {
	Packets    uint64  `json:"packets"`
	Bytes      uint64  `json:"bytes"` // with the frames' checksums
	Streams    int     `json:"streams"`
	Lost       uint64  `json:"lost"`
	Reordered  uint64  `json:"reordered"`
	Duplicates uint64  `json:"duplicates"` // the kernel's sink can't tell: always 0, and loss is less by as many
	BadSum     uint64  `json:"bad_checksums"`
	Looked     uint64  `json:"checksums_verified"` // one of so many packets only; the kernel's sink: none
	SentBack   uint64  `json:"sent_back"`
	Latency    Latency `json:"latency_ns"`

	histogram *hdrhistogram.Histogram
}

// Latency is the distribution of one-way latencies, or of round trips when packets came back; all in nanoseconds.
type Latency struct {
	Count uint64  `json:"count"`
	Min   int64   `json:"min"`
	Mean  float64 `json:"mean"`
	P50   int64   `json:"p50"`
	P90   int64   `json:"p90"`
	P99   int64   `json:"p99"`
	P999  int64   `json:"p99_9"`
	Max   int64   `json:"max"`
}

// Point is one step of a cumulative distribution.
type Point struct {
	NS      int64   `json:"ns"`
	Percent float64 `json:"percent"`
}

// CDF returns the cumulative distribution of latencies in a few dozen points.
func (a Arrivals) CDF() (points []Point) {
	if a.histogram == nil || a.histogram.TotalCount() == 0 {
		return nil
	}
	for _, b := range a.histogram.CumulativeDistribution() {
		points = append(points, Point{b.ValueAt, b.Quantile})
	}
	return points
}

func newHistogram() *hdrhistogram.Histogram { return hdrhistogram.New(1, latencyMax, latencyDigits) }

func summary(h *hdrhistogram.Histogram) Latency {
	if h.TotalCount() == 0 {
		return Latency{}
	}
	return Latency{
		Count: uint64(h.TotalCount()), Min: h.Min(), Mean: h.Mean(), Max: h.Max(),
		P50: h.ValueAtQuantile(50), P90: h.ValueAtQuantile(90), P99: h.ValueAtQuantile(99), P999: h.ValueAtQuantile(99.9),
	}
}

// Sink counts test packets that arrive on a device.
type Sink interface {
	Arrivals() (Arrivals, error) // since it was opened; a Kernel sink also while it runs
	Received() uint64            // stamped packets so far; any goroutine, any time
	Close() error
}

// analysis is what an AF_XDP sink's thread knows. It allocates when a stream is seen for the first time only.
type analysis struct {
	streams   [1 << 16]*tracker // by run and stream
	histogram *hdrhistogram.Histogram
	received  atomic.Uint64
	badSums   uint64
	looked    uint64
}

func (a *analysis) see(s Stamp, bytes int, now uint64) {
	t := a.streams[uint(s.Run)<<8|uint(s.Stream)]
	if t == nil {
		t = new(tracker)
		a.streams[uint(s.Run)<<8|uint(s.Stream)] = t
	}
	t.see(s.Seq, bytes)
	if now >= s.Time {
		_ = a.histogram.RecordValue(min(int64(now-s.Time), latencyMax)) // within range, so it can't fail
	}
}

// merge sums up what several threads saw. A stream that reached more than one of them is judged by each for itself: its
// numbers are then put together as far as they go.
func merge(parts []*analysis) Arrivals {
	a := Arrivals{histogram: newHistogram()}
	for i := range parts[0].streams {
		var first, high, got uint64
		for _, p := range parts {
			t := p.streams[i]
			if t == nil {
				continue
			}
			if got == 0 {
				a.Streams++
				first, high = t.first, t.high
			}
			first, high = min(first, t.first), max(high, t.high)
			got += t.packets - t.duplicates
			a.Packets += t.packets
			a.Bytes += t.bytes
			a.Reordered += t.reordered
			a.Duplicates += t.duplicates
		}
		if got > 0 && high-first+1 > got {
			a.Lost += high - first + 1 - got
		}
	}
	for _, p := range parts {
		a.histogram.Merge(p.histogram)
		a.BadSum += p.badSums
		a.Looked += p.looked
	}
	a.Latency = summary(a.histogram)
	return a
}
