package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/urfave/cli/v2"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"pollux/internal/cpu"
	"pollux/perf"
	"pollux/perf/pktgen"
)

// drainTime is how long a sink waits for the last packets after the generator has ended.
const drainTime = 300 * time.Millisecond

func pktgenCommand() *cli.Command {
	return &cli.Command{
		Name:  "pktgen",
		Usage: "send test traffic, and judge what arrives",
		Description: "Every packet bears a stream, a sequence number and the time. With --sink the same process listens on\n" +
			"another port; `pollux pktgen sink` listens elsewhere (latency needs one machine: one clock).\n\n" +
			"   pollux pktgen --dev eth2 --to-mac 02:00:00:00:00:01 --src 10.0.1.0/24 --dst 198.51.100.2 \\\n" +
			"       --sport 1024-65535 --flows 50000 --rate 1000000 --seconds 10 --sink eth3\n" +
			"   pollux pktgen sink --dev eth3 --seconds 12 --json\n\n" +
			"Sizes include the frame's checksum. --backend kernel writes and counts packets inside the kernel, which is\n" +
			"much cheaper where AF_XDP has to copy; what the device did not take is then counted as sent.",
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "dev", Usage: "`PORT` to send from"},
			&cli.StringFlag{Name: "to-mac", DefaultText: "the next hop's, as the kernel knows it", Usage: "`MAC` address to send to"},
			&cli.StringFlag{Name: "src", Usage: "source addresses: `RANGE` as 10.0.0.1, 10.0.0.0/24 or 10.0.0.1-10.0.0.9"},
			&cli.StringFlag{Name: "dst", Usage: "destination addresses: `RANGE`"},
			&cli.StringFlag{Name: "sport", Value: "10000-10063", Usage: "source ports, or ICMP identifiers: PORT or FIRST-LAST"},
			&cli.StringFlag{Name: "dport", Value: "9", Usage: "destination ports"},
			&cli.StringFlag{Name: "proto", Value: "udp", Usage: "udp, tcp-syn or icmp"},
			&cli.StringFlag{Name: "size", Value: "64", Usage: "bytes of each frame, or imix"},
			&cli.Uint64Flag{Name: "flows", Value: 1, Usage: "flows in use at a time, 0 for all there can be: each packet a new one"},
			&cli.StringFlag{Name: "order", Value: "sequential", Usage: "sequential or random: which flow comes next"},
			&cli.Float64Flag{Name: "new-flows", Usage: "flows per second that give way to new ones"},
			&cli.Float64Flag{Name: "rate", Usage: "packets per second, 0 for as many as can be"},
			&cli.Float64Flag{Name: "seconds", Usage: "end after so long"},
			&cli.Uint64Flag{Name: "count", Usage: "end after so many packets"},
			&cli.UintFlag{Name: "run", DefaultText: "from the process id", Usage: "`NUMBER` from 0 to 255 by which a sink that outlives the run tells it from others"},
			&cli.StringFlag{Name: "backend", Value: "afxdp", Usage: "afxdp or kernel"},
			&cli.StringFlag{Name: "queues", Value: "0", Usage: "queues to send on, a thread for each: `LIST` as 0-3"},
			&cli.StringFlag{Name: "cores", Usage: "core of each thread: `LIST`"},
			&cli.IntFlag{Name: "rt-priority", Usage: "SCHED_FIFO priority of the threads, 0 for none"},
			&cli.StringFlag{Name: "sink", Usage: "`PORT` to count arrivals on"},
			&cli.StringFlag{Name: "sink-backend", Value: "afxdp", Usage: "afxdp or kernel"},
			&cli.BoolFlag{Name: "json", Usage: "the result as JSON"},
		},
		Subcommands: []*cli.Command{pktgenSinkCommand()},
		Action: func(c *cli.Context) error {
			if err := noArgs(c); err != nil {
				return err
			}
			o, err := pktgenOptions(c)
			if err != nil {
				return fail(statusUsage, err)
			}
			return runPktgen(c, o)
		},
	}
}

func pktgenSinkCommand() *cli.Command {
	return &cli.Command{
		Name:  "sink",
		Usage: "count the test packets that arrive on a port: loss, reordering, duplicates, latency",
		Description: "Other packets are left to the kernel. Ends after --seconds, after --count packets, or when told to.\n\n" +
			"   pollux pktgen sink --dev eth3 --seconds 12",
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "dev", Usage: "`PORT` to listen on"},
			&cli.StringFlag{Name: "backend", Value: "afxdp", Usage: "afxdp or kernel"},
			&cli.StringFlag{Name: "queues", Value: "0", Usage: "queues to listen on, a thread for each: `LIST` as 0-3"},
			&cli.StringFlag{Name: "cores", Usage: "core of each thread: `LIST`"},
			&cli.IntFlag{Name: "rt-priority", Usage: "SCHED_FIFO priority of the threads, 0 for none"},
			&cli.Float64Flag{Name: "seconds", Usage: "end after so long"},
			&cli.Uint64Flag{Name: "count", Usage: "end after so many packets"},
			&cli.BoolFlag{Name: "json", Usage: "the result as JSON"},
		},
		Action: func(c *cli.Context) error {
			if err := noArgs(c); err != nil {
				return err
			}
			o, err := sinkOptions(c, "dev", "backend")
			if err == nil && c.Float64("seconds") <= 0 && c.Uint64("count") == 0 {
				err = errors.New("pktgen sink: give --seconds or --count: it does not listen without end")
			}
			if err != nil {
				return fail(statusUsage, err)
			}
			return runSink(c, o)
		},
	}
}

func pktgenOptions(c *cli.Context) (o pktgen.Options, err error) {
	o = pktgen.Options{
		Device: c.String("dev"), Rate: c.Float64("rate"), Count: c.Uint64("count"), RTPriority: c.Int("rt-priority"),
		Duration: time.Duration(c.Float64("seconds") * float64(time.Second)),
		Flows:    pktgen.Flows{Count: c.Uint64("flows"), NewPerS: c.Float64("new-flows")},
		Run:      uint8(os.Getpid()),
	}
	if c.IsSet("run") {
		if n := c.Uint("run"); n > 255 {
			return o, fmt.Errorf("--run: is %d; allowed: a number from 0 to 255", n)
		}
		o.Run = uint8(c.Uint("run"))
	}
	if o.Device == "" {
		return o, errors.New("--dev: needed: the name of a network device")
	}
	for _, f := range []struct {
		name string
		read func(string) error
	}{
		{"src", func(s string) (err error) { o.Flows.Src, err = pktgen.ParseRange(s); return err }},
		{"dst", func(s string) (err error) { o.Flows.Dst, err = pktgen.ParseRange(s); return err }},
		{"sport", func(s string) (err error) { o.Flows.SrcPorts, err = pktgen.ParsePorts(s); return err }},
		{"dport", func(s string) (err error) { o.Flows.DstPorts, err = pktgen.ParsePorts(s); return err }},
		{"proto", func(s string) (err error) { o.Protocol, err = pktgen.ParseProtocol(s); return err }},
		{"size", func(s string) (err error) { o.Sizes, err = pktgen.ParseSizes(s); return err }},
		{"backend", func(s string) (err error) { o.Backend, err = pktgen.ParseBackend(s); return err }},
		{"queues", func(s string) (err error) { o.Queues, err = cpu.ParseList(s); return err }},
		{"cores", func(s string) (err error) { o.Cores, err = cpu.ParseList(s); return err }},
		{"order", func(s string) error {
			o.Flows.Random = s == "random"
			if s != "random" && s != "sequential" {
				return fmt.Errorf("is %q; allowed: sequential or random", s)
			}
			return nil
		}},
		{"to-mac", func(s string) (err error) {
			if s != "" {
				o.DstMAC, err = net.ParseMAC(s)
			} else {
				o.DstMAC, err = routeMAC(o.Device, o.Flows.Dst)
			}
			return err
		}},
	} {
		if err := f.read(c.String(f.name)); err != nil {
			return o, fmt.Errorf("--%s: %w", f.name, err)
		}
	}
	return o, nil
}

// routeMAC is the address of the next hop towards a destination by a device, as far as the kernel knows it.
func routeMAC(device string, r pktgen.Range) (net.HardwareAddr, error) {
	if !r.First.IsValid() {
		return nil, errors.New("--dst is needed")
	}
	dev, err := netlink.LinkByName(device)
	if err != nil {
		return nil, fmt.Errorf("no network device %q; `ip link` lists them", device)
	}
	hop := r.First
	routes, err := netlink.RouteGetWithOptions(r.First.AsSlice(), &netlink.RouteGetOptions{Oif: device})
	if err == nil && len(routes) > 0 {
		if a, ok := netip.AddrFromSlice(routes[0].Gw); ok {
			hop = a.Unmap()
		}
	}
	list, err := netlink.NeighList(dev.Attrs().Index, netlink.FAMILY_ALL)
	if err != nil {
		return nil, fmt.Errorf("%s: its neighbours can't be read: %w", device, err)
	}
	for _, n := range list {
		if a, ok := netip.AddrFromSlice(n.IP); ok && a.Unmap() == hop && len(n.HardwareAddr) == 6 {
			return n.HardwareAddr, nil
		}
	}
	return nil, fmt.Errorf("the kernel does not know the neighbour %v on %s: ping it once, or give the MAC address", hop, device)
}

func sinkOptions(c *cli.Context, device, backend string) (o pktgen.SinkOptions, err error) {
	o = pktgen.SinkOptions{Device: c.String(device), RTPriority: c.Int("rt-priority")}
	if o.Device == "" {
		return o, fmt.Errorf("--%s: needed: the name of a network device", device)
	}
	if o.Backend, err = pktgen.ParseBackend(c.String(backend)); err != nil {
		return o, fmt.Errorf("--%s: %w", backend, err)
	}
	if o.Queues, err = cpu.ParseList(c.String("queues")); err != nil {
		return o, fmt.Errorf("--queues: %w", err)
	}
	if o.Cores, err = cpu.ParseList(c.String("cores")); err != nil {
		return o, fmt.Errorf("--cores: %w", err)
	}
	return o, nil
}

// pktgenResult is what `pollux pktgen` prints.
type pktgenResult struct {
	perf.Report
	Sent     *pktgen.Report   `json:"sent,omitempty"`
	Arrived  *pktgen.Arrivals `json:"arrived,omitempty"`
	Missing  *uint64          `json:"missing,omitempty"` // sent less arrived, duplicates apart
	Duration float64          `json:"seconds"`
}

func runPktgen(c *cli.Context, o pktgen.Options) error {
	var sink pktgen.Sink
	if name := c.String("sink"); name != "" {
		backend, err := pktgen.ParseBackend(c.String("sink-backend"))
		if err != nil {
			return fail(statusUsage, fmt.Errorf("--sink-backend: %w", err))
		}
		if sink, err = pktgen.OpenSink(pktgen.SinkOptions{Device: name, Backend: backend}); err != nil {
			return fail(statusUsage, err)
		}
		defer sink.Close()
	}
	g, err := pktgen.NewGenerator(o)
	if err != nil {
		return fail(statusUsage, err)
	}
	if n := g.Notice(); n != "" {
		fmt.Fprintln(c.App.ErrWriter, n)
	}
	stop := onSignal(g.Stop)
	p := startProgress(c.App.ErrWriter, g.Sent, received(sink))
	start := time.Now()
	r, err := g.Run()
	stop()
	res := pktgenResult{Report: perf.NewReport(), Sent: &r, Duration: r.Seconds}
	if err == nil && sink != nil {
		for end := time.Now().Add(drainTime); sink.Received() < r.Sent && time.Now().Before(end); {
			time.Sleep(time.Millisecond)
		}
		var a pktgen.Arrivals
		if a, err = sink.Arrivals(); err == nil {
			missing := r.Sent - min(r.Sent, a.Packets-a.Duplicates)
			res.Arrived, res.Missing = &a, &missing
		}
		res.Duration = time.Since(start).Seconds()
	}
	p.end()
	if err = errors.Join(err, g.Close()); err != nil {
		return fail(statusRuntime, err)
	}
	return fail(statusRuntime, res.print(c.App.Writer, c.Bool("json")))
}

func received(s pktgen.Sink) func() uint64 {
	if s == nil {
		return nil
	}
	return s.Received
}

func runSink(c *cli.Context, o pktgen.SinkOptions) error {
	sink, err := pktgen.OpenSink(o)
	if err != nil {
		return fail(statusUsage, err)
	}
	defer sink.Close()
	done := make(chan struct{})
	stop := onSignal(func() { close(done) })
	defer stop()
	fmt.Fprintf(c.App.ErrWriter, "ready: %s, %v\n", o.Device, o.Backend)
	p := startProgress(c.App.ErrWriter, nil, sink.Received)
	start := time.Now()
	var timeout <-chan time.Time
	if s := c.Float64("seconds"); s > 0 {
		timeout = time.After(time.Duration(s * float64(time.Second)))
	}
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for waiting := true; waiting; {
		select {
		case <-done:
			waiting = false
		case <-timeout:
			waiting = false
		case <-tick.C:
			waiting = c.Uint64("count") == 0 || sink.Received() < c.Uint64("count")
		}
	}
	p.end()
	a, err := sink.Arrivals()
	if err != nil {
		return fail(statusRuntime, err)
	}
	res := pktgenResult{Report: perf.NewReport(), Arrived: &a, Duration: time.Since(start).Seconds()}
	return fail(statusRuntime, res.print(c.App.Writer, c.Bool("json")))
}

// onSignal calls f once at SIGINT or SIGTERM; the function returned ends that.
func onSignal(f func()) (stop func()) {
	signals, ended := make(chan os.Signal, 1), make(chan struct{})
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	go func() {
		select {
		case <-signals:
			f()
		case <-ended:
		}
	}()
	return func() {
		signal.Stop(signals)
		close(ended)
	}
}

func (r pktgenResult) print(w io.Writer, asJSON bool) error {
	if asJSON {
		return json.NewEncoder(w).Encode(r)
	}
	var b strings.Builder
	if s := r.Sent; s != nil {
		fmt.Fprintf(&b, "sent     %d packets in %.2f s: %.0f packets/s, %.3f Gbit/s\n", s.Sent, s.Seconds, s.PPS, float64(s.Bytes)*8/s.Seconds/1e9)
	}
	if a := r.Arrived; a != nil {
		fmt.Fprintf(&b, "arrived  %d packets in %d streams: lost %d, reordered %d, duplicates %d, bad checksums %d of %d verified\n",
			a.Packets, a.Streams, a.Lost, a.Reordered, a.Duplicates, a.BadSum, a.Looked)
		if l := a.Latency; l.Count > 0 {
			fmt.Fprintf(&b, "latency  p50 %v, p90 %v, p99 %v, p99.9 %v, max %v\n", ns(l.P50), ns(l.P90), ns(l.P99), ns(l.P999), ns(l.Max))
		}
	}
	if r.Missing != nil {
		fmt.Fprintf(&b, "missing  %d (%.4f %%)\n", *r.Missing, 100*float64(*r.Missing)/float64(max(r.Sent.Sent, 1)))
	}
	_, err := io.WriteString(w, b.String())
	return err
}

func ns(v int64) time.Duration { return time.Duration(v).Round(100 * time.Nanosecond) }

// progress is the live line on a terminal, once a second.
type progress struct{ quit, ended chan struct{} }

func startProgress(w io.Writer, sent, arrived func() uint64) *progress {
	p := &progress{make(chan struct{}), make(chan struct{})}
	if !isTerminal(w) {
		close(p.ended)
		return p
	}
	go func() {
		defer close(p.ended)
		tick := time.NewTicker(time.Second)
		defer tick.Stop()
		var last [2]uint64
		for {
			select {
			case <-p.quit:
				fmt.Fprint(w, "\r\x1b[K")
				return
			case <-tick.C:
			}
			fmt.Fprint(w, "\r\x1b[K")
			for i, f := range []func() uint64{sent, arrived} {
				if f != nil {
					n := f()
					fmt.Fprintf(w, "%s %d (%d/s)  ", [...]string{"sent", "arrived"}[i], n, n-last[i])
					last[i] = n
				}
			}
		}
	}()
	return p
}

func (p *progress) end() {
	close(p.quit)
	<-p.ended
}

func isTerminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil
}
