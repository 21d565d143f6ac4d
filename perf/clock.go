package perf

import (
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"golang.org/x/sys/unix"

	"pollux/internal/clock"
	"pollux/nat"
)

// ClockOptions asks what the time costs.
type ClockOptions struct {
	Links   int
	Packets int // in one repetition
	Repeat  int
}

// Clock is the question of the fourth seed: what if every packet asked what time it is, instead of every burst?
type Clock struct {
	Report
	Links   int        `json:"links"`
	Rows    []ClockRow `json:"rows"`
	Aliases int        `json:"alias_addresses"`
	Mapping string     `json:"mapping"`
}

// ClockRow is one way of telling the time: burst, packet or syscall.
type ClockRow struct {
	Name string `json:"name"`
	NS   Stat   `json:"ns_per_packet"`
}

// MeasureClock runs the scenario.
func MeasureClock(o ClockOptions) (*Clock, error) {
	if err := between("links", o.Links, 2, 1<<24); err != nil {
		return nil, err
	}
	r := &Clock{Report: NewReport(), Links: o.Links, Aliases: 1, Mapping: "endpoint-dependent"}
	return r, onThread(func() error { return r.measure(o) })
}

func (r *Clock) measure(o ClockOptions) error {
	w, err := newWorld(worldOptions{limits: nat.Limits{Links: o.Links}})
	if err != nil {
		return err
	}
	defer w.close()
	if err := w.open(o.Links); err != nil {
		return err
	}
	w.roam(o.Links)
	begin, base := time.Now(), w.now
	soft := func() clock.Tick { return base + clock.Tick(time.Since(begin).Milliseconds()) }
	kernel := func() (ms int64) { // a system call, as where the kernel offers no clock to user space
		var t unix.Timespec
		_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &t)
		return t.Nano() / 1e6
	}
	first := kernel()
	hard := func() clock.Tick { return base + clock.Tick(kernel()-first) }
	bare := func() { w.bare(o.Packets) }
	for _, row := range []struct {
		name   string
		packet func() clock.Tick
	}{{"burst", nil}, {"packet", soft}, {"syscall", hard}} {
		ns := netOf(o.Repeat, o.Packets, bare, func() {
			w.each(o.Packets, func(b []nat.Packet) {
				now := soft()
				if row.packet != nil {
					for range b[1:] {
						now = row.packet()
					}
				}
				parse(b)
				w.shard.Touch(b)
				w.shard.Translate(b, now)
			})
		})
		r.Rows = append(r.Rows, ClockRow{row.name, ns})
	}
	return nil
}

// Print writes the report for people.
func (r *Clock) Print(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(t, "%d established UDP links, %s mapping, %d alias address\n\n", r.Links, r.Mapping, r.Aliases)
	fmt.Fprintln(t, "the time is read\tmedian\tmin\tmax\tns per packet\t")
	names := map[string]string{"burst": "once per burst of 64", "packet": "for every packet", "syscall": "for every packet, by a system call"}
	for _, row := range r.Rows {
		fmt.Fprintf(t, "%s\t%.1f\t%.1f\t%.1f\t\t\n", names[row.Name], row.NS.Median, row.NS.Min, row.NS.Max)
	}
	fmt.Fprintln(t, "\nProcessor time of one core: parse with header checksum, translation, reading the clock. Making the packets is taken off.")
	return t.Flush()
}
