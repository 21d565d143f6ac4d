package top

import (
	"cmp"
	"slices"
	"time"

	"pollux/internal/control"
	"pollux/pmd"
)

// Frame is what is shown: the state at a time, and rates over the interval before it. Rates are per second.
type Frame struct {
	At       time.Time      `json:"at"`
	Interval float64        `json:"interval"` // seconds that the rates are over; 0: there are none yet
	Total    Total          `json:"total"`
	Ports    []Port         `json:"ports"`
	Workers  []Worker       `json:"workers"`
	Drops    []Drop         `json:"drops"` // that grew, most first; then those that ever occurred
	Hosts    []control.Host `json:"hosts"`
	NoHosts  string         `json:"no_hosts,omitempty"` // why there are none
}

// Total is the whole gateway's.
type Total struct {
	Links     uint64  `json:"links"`
	Hosts     uint64  `json:"hosts"`
	Created   float64 `json:"links_created"`
	Expired   float64 `json:"links_expired"`
	RX        float64 `json:"rx"` // packets
	TX        float64 `json:"tx"`
	RXBits    float64 `json:"rx_bits"`
	TXBits    float64 `json:"tx_bits"`
	Forwarded float64 `json:"forwarded"`
	Dropped   float64 `json:"dropped"`
	Leaked    int64   `json:"frames_leaked"`
}

// Port is one netdev's.
type Port struct {
	Name   string  `json:"name"`
	Role   string  `json:"role"`
	Up     bool    `json:"up"`
	RX     float64 `json:"rx"`
	TX     float64 `json:"tx"`
	RXBits float64 `json:"rx_bits"`
	TXBits float64 `json:"tx_bits"`
	Passed float64 `json:"passed_to_kernel"`
	Lost   float64 `json:"lost"` // before a worker saw them: RX ring full, no buffer
}

// Worker is one worker's.
type Worker struct {
	Worker     int     `json:"worker"`
	Core       int     `json:"core"`
	Queue      int     `json:"queue"`
	Occupancy  float64 `json:"occupancy"` // 0 to 1
	Received   float64 `json:"received"`
	Forwarded  float64 `json:"forwarded"`
	Dropped    float64 `json:"dropped"`
	HandedOver float64 `json:"handed_over"`
	Burst      float64 `json:"burst"` // packets in one, on average
	Links      uint64  `json:"links"`
	Created    float64 `json:"links_created"`
	GapUS      uint64  `json:"gap_us"` // the longest time between two polls in the interval was less than this
	Leaked     int64   `json:"frames_leaked"`
}

// Drop is one reason's.
type Drop struct {
	Reason string  `json:"reason"`
	Rate   float64 `json:"rate"`
	Count  uint64  `json:"count"`
	Help   string  `json:"help"`
}

// notDrops are reasons of packets that are not lost.
var notDrops = []string{"held", "punted"}

// Between makes a frame of a sample and the one before it. was may be nil: there are no rates then, nor when the gateway
// was started again in between.
func Between(was, is *Sample) Frame {
	f := Frame{At: is.At, NoHosts: is.NoHosts, Ports: []Port{}, Workers: []Worker{}, Drops: []Drop{}, Hosts: []control.Host{}}
	if was != nil && sameRun(was, is) {
		f.Interval = is.At.Sub(was.At).Seconds()
	} else {
		was = &Sample{}
	}
	for i := range is.Ports {
		f.port(find(was.Ports, i), &is.Ports[i])
	}
	for i := range is.Workers {
		f.worker(find(was.Workers, i), &is.Workers[i])
	}
	for i := range is.Drops {
		f.drop(find(was.Drops, i), &is.Drops[i])
	}
	slices.SortStableFunc(f.Drops, func(a, b Drop) int {
		return cmp.Or(cmp.Compare(b.Rate, a.Rate), cmp.Compare(b.Count, a.Count))
	})
	f.Hosts = append(f.Hosts, is.Hosts...)
	return f
}

// sameRun reports whether two samples are of the same process: its clocks went on, and it has the same parts.
func sameRun(was, is *Sample) bool {
	if len(was.Workers) != len(is.Workers) || len(was.Ports) != len(is.Ports) || len(was.Drops) != len(is.Drops) || !is.At.After(was.At) {
		return false
	}
	for i := range is.Workers {
		if is.Workers[i].RunNS < was.Workers[i].RunNS {
			return false
		}
	}
	for i := range is.Ports {
		if is.Ports[i].Name != was.Ports[i].Name {
			return false
		}
	}
	return true
}

// find returns the i-th of a list, or a zero one.
func find[T any](list []T, i int) *T {
	if i < len(list) {
		return &list[i]
	}
	return new(T)
}

// rate is growth a second; what shrank (a device made again) did not grow.
func (f *Frame) rate(was, is uint64) float64 {
	if f.Interval == 0 || is < was {
		return 0
	}
	return float64(is-was) / f.Interval
}

func (f *Frame) port(was, is *pmd.PortStats) {
	p := Port{
		Name: is.Name, Role: is.Role, Up: is.Up, RX: f.rate(was.RX, is.RX), TX: f.rate(was.TX, is.TX),
		RXBits: 8 * f.rate(was.RXBytes, is.RXBytes), TXBits: 8 * f.rate(was.TXBytes, is.TXBytes),
		Passed: f.rate(was.Passed, is.Passed), Lost: f.rate(was.RXDropped+was.RXFull, is.RXDropped+is.RXFull),
	}
	f.Ports = append(f.Ports, p)
	f.Total.RX += p.RX
	f.Total.TX += p.TX
	f.Total.RXBits += p.RXBits
	f.Total.TXBits += p.TXBits
}

func (f *Frame) worker(was, is *pmd.WorkerStats) {
	w := Worker{
		Worker: is.Worker, Core: is.Core, Queue: is.Queue, Received: f.rate(was.Received, is.Received), Forwarded: f.rate(was.Forwarded, is.Forwarded),
		Dropped: f.rate(was.Dropped, is.Dropped), HandedOver: f.rate(was.HandedOut, is.HandedOut), Links: is.Links, Created: f.rate(was.Created, is.Created),
		Leaked: is.Leaked,
	}
	if f.Interval > 0 {
		if ran := is.RunNS - was.RunNS; ran > 0 {
			w.Occupancy = min(float64(is.BusyNS-was.BusyNS)/float64(ran), 1)
		}
		if bursts := f.rate(was.Bursts, is.Bursts); bursts > 0 {
			w.Burst = w.Received / bursts
		}
		for i, n := range is.PollGapsUS {
			if n > *find(was.PollGapsUS, i) {
				w.GapUS = 2 << i
			}
		}
	}
	f.Workers = append(f.Workers, w)
	t := &f.Total
	t.Links += is.Links
	t.Hosts += is.Hosts
	t.Leaked += is.Leaked
	t.Created += w.Created
	t.Expired += f.rate(was.Expired, is.Expired)
	t.Forwarded += w.Forwarded
}

func (f *Frame) drop(was, is *pmd.DropStats) {
	d := Drop{Reason: is.Name, Count: is.Count, Help: is.Help, Rate: f.rate(was.Count, is.Count)}
	if slices.Contains(notDrops, d.Reason) || d.Count == 0 {
		return
	}
	f.Total.Dropped += d.Rate
	f.Drops = append(f.Drops, d)
}
