package perf

import (
	"fmt"
	"io"
	"runtime"
	"sync"
	"sync/atomic"
	"text/tabwriter"
	"time"

	"github.com/puzpuzpuz/xsync/v4"

	"pollux/internal/cpu"
	"pollux/internal/packet"
	"pollux/nat"
)

// HandoffOptions asks what it costs that workers share nothing.
type HandoffOptions struct {
	Links   int // open links of all workers together
	Packets int // in one repetition
	Repeat  int
}

// Handoff is what several workers pay for each other: the owner decision, the ring from one thread to another beside a queue
// of the same kind, and the work of a packet with more workers and more packets that came in by the wrong queue.
type Handoff struct {
	Report
	Burst    int            `json:"burst"`
	Cores    int            `json:"cores"` // that the two threads had
	Links    int            `json:"links"`
	Mapping  string         `json:"mapping"`
	Owner    Stat           `json:"owner_ns"` // both directions, alternating bursts
	Outbound Stat           `json:"owner_outbound_ns"`
	Inbound  Stat           `json:"owner_inbound_ns"`
	Handoff  Stat           `json:"handoff_ns"`
	Xsync    Stat           `json:"xsync_ns"`
	Scaling  []ScalingPoint `json:"scaling"`
	TwoCores []TwoCores     `json:"two_cores"` // empty when there is one core
}

// ScalingPoint is the work of all workers for one packet, done on one core in turns.
type ScalingPoint struct {
	Workers int     `json:"workers"`
	Wrong   int     `json:"wrong_queue_percent"`
	Handed  float64 `json:"handed_percent"` // as counted
	NS      Stat    `json:"ns_per_packet"`
}

// TwoCores compares two workers of one gateway, each on a core of its own, with two gateways of one worker that share nothing.
type TwoCores struct {
	Wrong  int     `json:"wrong_queue_percent"`
	Shared Stat    `json:"shared_ns_per_packet"` // processor time of both cores
	Copies Stat    `json:"copies_ns_per_packet"`
	Ratio  Stat    `json:"scaling_of_copies"` // 1: as good as two copies
	Lost   float64 `json:"lost_percent"`      // packets of the shared gateway that were not sent
}

const handoffBurst = 32

// MeasureHandoff runs the scenario.
func MeasureHandoff(o HandoffOptions) (*Handoff, error) {
	if err := between("links", o.Links, 1024, 30000); err != nil {
		return nil, err
	}
	allowed, err := cpu.Allowed()
	if err != nil {
		return nil, err
	}
	r := &Handoff{Report: NewReport(), Burst: handoffBurst, Cores: min(2, len(allowed)), Links: o.Links, Mapping: "endpoint-dependent"}
	for _, step := range []func(HandoffOptions) error{
		r.owner,
		func(o HandoffOptions) error { return r.rings(o, allowed) },
		r.scaling,
		func(o HandoffOptions) error { return r.twoCores(o, allowed) },
	} {
		if err := step(o); err != nil {
			return nil, err
		}
	}
	return r, nil
}

// parsed makes n bursts of packets as stage 2 leaves them, from a worker's two ports in turn.
func (c *crew) parsed(n int) [][]nat.Packet {
	var list [][]nat.Packet
	for i := range n {
		f := &c.lanes[0].feeds[i%2]
		b := make([]nat.Packet, handoffBurst)
		for k := range b {
			q := f.make()
			b[k] = nat.Packet{Data: c.umem.Data(q), Frame: q.Addr, Ingress: uint16(f.side), Side: f.side}
			packet.Parse(b[k].Data, &b[k].H)
		}
		list = append(list, b)
	}
	return list
}

// owner measures the decision alone, over packets whose headers have just been read.
func (r *Handoff) owner(o HandoffOptions) error {
	c, err := newCrew(4, o.Links, 50)
	if err != nil {
		return err
	}
	defer c.close()
	bursts := c.parsed(16)
	var both, way [2][]float64
	err = onThread(func() error {
		for i := range o.Repeat + 1 {
			for side := range 2 {
				sum := 0
				ns := nanoseconds(o.Packets, func() {
					for n, at := 0, side; n < o.Packets; n, at = n+handoffBurst, (at+2)%len(bursts) {
						b := bursts[at]
						for k := range b {
							sum += c.steering.Owner(&b[k])
						}
					}
				})
				if sum == 0 {
					return fmt.Errorf("perf: every packet has the first worker for an owner")
				}
				if i > 0 { // the first run warms up
					way[side] = append(way[side], ns)
				}
			}
			if i > 0 {
				both[0] = append(both[0], (way[0][i-1]+way[1][i-1])/2)
			}
		}
		return nil
	})
	r.Owner, r.Outbound, r.Inbound = NewStat(both[0]), NewStat(way[nat.Inside]), NewStat(way[nat.Outside])
	return err
}

// item is as large as what workers hand over.
type item [2]uint64

// rings measures a worker's hand-over to another one on a thread of its own, and next to it each time a queue from elsewhere.
func (r *Handoff) rings(o HandoffOptions, cores []int) error {
	c, err := newCrew(2, o.Links, 0)
	if err != nil {
		return err
	}
	defer c.close()
	bursts := c.parsed(32)
	var ours, theirs []float64
	for i := range o.Repeat + 1 {
		at := 0
		a, err := relay(o.Packets, cores, func(n int) int {
			b := bursts[at%len(bursts)]
			at++
			return c.workers[0].HandBurst(b[:min(n, len(b))], 1)
		}, func() int { return c.workers[1].TakeBurst(0, handoffBurst) })
		if err != nil {
			return err
		}
		q := xsync.NewSPSCQueue[item](1024)
		sum, x := uint64(0), item{}
		b, err := relay(o.Packets, cores, func(n int) (done int) {
			for ; done < min(n, handoffBurst); done++ {
				next := item{x[0] + 1}
				if !q.TryEnqueue(next) {
					break
				}
				x = next
			}
			return done
		}, func() (done int) {
			for ; done < handoffBurst; done++ {
				v, ok := q.TryDequeue()
				if !ok {
					break
				}
				sum += v[0]
			}
			return done
		})
		if err != nil {
			return err
		}
		if want := uint64(o.Packets) * uint64(o.Packets+1) / 2; sum != want {
			return fmt.Errorf("perf: the queue beside ours lost something: %d, want %d", sum, want)
		}
		if i > 0 {
			ours, theirs = append(ours, a), append(theirs, b)
		}
	}
	r.Handoff, r.Xsync = NewStat(ours), NewStat(theirs)
	return nil
}

// relay has one thread give n packets and another one take them, and returns the processor time per packet of the one that
// needed less: both run all the time, and what the machine takes away from one is only the other's waiting.
func relay(n int, cores []int, give func(most int) int, take func() int) (float64, error) {
	var spent [2]time.Duration
	err := together(2, cores, func(k int, ready func()) error {
		ready()
		start := cpuTime()
		for done := 0; done < n; {
			got := 0
			if k == 0 {
				got = give(n - done)
			} else {
				got = take()
			}
			if done += got; got == 0 && len(cores) < 2 {
				runtime.Gosched()
			}
		}
		spent[k] = cpuTime() - start
		return nil
	})
	return float64(min(spent[0], spent[1])) / float64(n), err
}

// together runs n goroutines, each on a thread of its own and pinned to a core if there are as many. ready waits for all.
func together(n int, cores []int, f func(k int, ready func()) error) error {
	var wait sync.WaitGroup
	var at atomic.Int32
	var failed atomic.Pointer[error]
	for k := range n {
		wait.Go(func() {
			runtime.LockOSThread() // a pinned thread ends with its goroutine
			var err error
			if len(cores) >= n {
				err = cpu.Pin(cores[k])
			}
			ready := func() {
				for at.Add(1); int(at.Load()) < n; {
					runtime.Gosched()
				}
			}
			if err == nil {
				err = f(k, ready)
			} else {
				ready()
			}
			if err != nil {
				failed.Store(&err)
			}
		})
	}
	wait.Wait()
	if err := failed.Load(); err != nil {
		return *err
	}
	return nil
}

// scaling measures the work of all workers on one core, in turns.
func (r *Handoff) scaling(o HandoffOptions) error {
	for _, workers := range []int{1, 2, 4, 8} {
		for _, wrong := range []int{0, 50, 100} {
			if workers == 1 && wrong > 0 {
				continue
			}
			if err := r.point(o, workers, wrong); err != nil {
				return err
			}
		}
	}
	return nil
}

func (r *Handoff) point(o HandoffOptions, workers, wrong int) error {
	c, err := newCrew(workers, o.Links, wrong)
	if err != nil {
		return err
	}
	defer c.close()
	rounds := max(o.Packets/(2*handoffBurst*workers), 1)
	n := rounds * 2 * handoffBurst * workers
	all := func(f func(k, burst int)) func() {
		return func() {
			for range rounds {
				for k := range workers {
					f(k, handoffBurst)
				}
			}
		}
	}
	runs := uint64(0)
	p := ScalingPoint{Workers: workers, Wrong: wrong}
	sent, handed := c.sent(), c.handed()
	err = onThread(func() error {
		p.NS = netOf(o.Repeat, n, all(c.bare), func() { all(c.poll)(); runs++ })
		return nil
	})
	for range 4 { // what is still between workers
		for k := range workers {
			c.poll(k, 0)
		}
	}
	if got, want := c.sent()-sent, runs*uint64(n); got < want-want/50 {
		return fmt.Errorf("perf: %d of %d packets were sent by %d workers", got, want, workers)
	}
	p.Handed = 100 * float64(c.handed()-handed) / float64(c.sent()-sent)
	r.Scaling = append(r.Scaling, p)
	return err
}

// handed is how many packets workers have given each other.
func (c *crew) handed() (n uint64) {
	for _, w := range c.workers {
		n += w.HandedOut()
	}
	return n
}

// twoCores alternates runs of two workers of one gateway with runs of two gateways, each worker on a core of its own.
func (r *Handoff) twoCores(o HandoffOptions, cores []int) error {
	r.TwoCores = []TwoCores{}
	if len(cores) < 2 {
		return nil
	}
	for _, wrong := range []int{0, 50, 100} {
		shared, err := newCrew(2, o.Links, wrong)
		if err != nil {
			return err
		}
		defer shared.close()
		var copies [2]*crew
		for i := range copies {
			if copies[i], err = newCrew(1, o.Links/2, 0); err != nil {
				return err
			}
			defer copies[i].close()
		}
		of := func(k int) (*crew, int) { return shared, k }
		ofCopies := func(k int) (*crew, int) { return copies[k], 0 }
		var a, b, ratio []float64
		offered, sent := 0, shared.sent()
		for i := range o.Repeat + 1 {
			x, err := pair(o.Packets, cores, of, func() uint64 { return shared.sent() })
			if err != nil {
				return err
			}
			y, err := pair(o.Packets, cores, ofCopies, func() uint64 { return copies[0].sent() + copies[1].sent() })
			if err != nil {
				return err
			}
			offered += o.Packets
			if i > 0 {
				a, b, ratio = append(a, x), append(b, y), append(ratio, y/x)
			}
		}
		r.TwoCores = append(r.TwoCores, TwoCores{Wrong: wrong, Shared: NewStat(a), Copies: NewStat(b), Ratio: NewStat(ratio),
			Lost: max(0, 100*(1-float64(shared.sent()-sent)/float64(offered)))})
	}
	return nil
}

// pairAhead is by how many rounds one of two workers may be ahead of the other.
const pairAhead = 4

// pair runs two workers for n packets together and returns the processor time of both per packet sent, making them included.
func pair(n int, cores []int, of func(k int) (*crew, int), sent func() uint64) (float64, error) {
	rounds := max(n/(4*handoffBurst), 1)
	var spent [2]time.Duration
	var fed atomic.Int32
	var at [2]struct {
		round atomic.Int64
		_     [120]byte
	}
	before := sent()
	err := together(2, cores, func(k int, ready func()) error {
		c, w := of(k)
		ready()
		start := cpuTime()
		for i := range rounds {
			c.poll(w, handoffBurst)
			if i%pairAhead == 0 { // a network does not send more because a gateway is quick
				at[k].round.Store(int64(i))
				for at[1-k].round.Load() < int64(i)-pairAhead {
					c.poll(w, 0)
				}
			}
		}
		at[k].round.Store(int64(rounds))
		spent[k] = cpuTime() - start
		for fed.Add(1); fed.Load() < 2; { // the other one may still hand over
			c.poll(w, 0)
		}
		return nil
	})
	for range 4 {
		for k := range 2 {
			c, w := of(k)
			c.poll(w, 0)
		}
	}
	return float64(spent[0]+spent[1]) / float64(sent()-before), err
}

// Print writes the report for people.
func (r *Handoff) Print(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(t, "bursts of %d, %d UDP links, %s mapping, 1 alias address\n\n", r.Burst, r.Links, r.Mapping)
	fmt.Fprintln(t, "\tmedian\tmin\tmax\tns per packet\t")
	for _, row := range []struct {
		name string
		s    Stat
	}{{"owner decision", r.Owner}, {"outbound", r.Outbound}, {"inbound", r.Inbound}, {"hand-off", r.Handoff}, {"xsync SPSC queue", r.Xsync}} {
		fmt.Fprintf(t, "%s\t%.1f\t%.1f\t%.1f\t\t\n", row.name, row.s.Median, row.s.Min, row.s.Max)
	}
	fmt.Fprintln(t, "\nworkers\twrong queue\thanded over\tmedian\tmin\tmax\tns of all workers per packet, one core\t")
	for _, p := range r.Scaling {
		fmt.Fprintf(t, "%d\t%d %%\t%.0f %%\t%.1f\t%.1f\t%.1f\t\t\n", p.Workers, p.Wrong, p.Handed, p.NS.Median, p.NS.Min, p.NS.Max)
	}
	if len(r.TwoCores) == 0 {
		fmt.Fprintln(t, "\nThere is one core: two workers on two cores were not measured.")
	} else {
		fmt.Fprintln(t, "\nwrong queue\ttwo workers\ttwo copies\tns of both cores\tscaling of copies\tmin\tmax\tnot sent\t")
		for _, p := range r.TwoCores {
			fmt.Fprintf(t, "%d %%\t%.1f\t%.1f\t\t%.2f\t%.2f\t%.2f\t%.2f %%\t\n", p.Wrong, p.Shared.Median, p.Copies.Median, p.Ratio.Median, p.Ratio.Min, p.Ratio.Max, p.Lost)
		}
	}
	fmt.Fprintln(t, "\nProcessor time. The owner decision is stage 3 of a parsed packet; the hand-off is the way of its descriptor from one thread")
	fmt.Fprintln(t, "to another, beside a queue that moves as many bytes. The table of workers is the whole way of an established packet, making")
	fmt.Fprintln(t, "packets taken off: what it grows by is what sharing costs. Two workers on two cores, making packets included, are compared")
	fmt.Fprintln(t, "with two gateways of one worker that run at the same time and know nothing of each other.")
	return t.Flush()
}
