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
	"runtime"
	"slices"
	"syscall"
	"time"

	"github.com/urfave/cli/v2"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"pollux/internal/cpu"
	"pollux/perf"
	"pollux/rings"
)

func l2fwdCommand() *cli.Command {
	return &cli.Command{
		Name:  "l2fwd",
		Usage: "forward between two ports with new MAC addresses and nothing else",
		Description: "The same AF_XDP rings as `pollux run`, but no translation, routing or state: what the I/O alone costs.\n" +
			"Everything that is not for this machine itself goes from one port to the other. Neighbours are not\n" +
			"resolved: without --inside-next-hop and --outside-next-hop the one neighbour that the kernel knows on\n" +
			"each port is used. Prints a line that begins with `ready`, and counters when it ends.\n\n" +
			"   pollux perf l2fwd --inside eth1 --outside eth0 --core 2 --seconds 10",
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "inside", Usage: "one `PORT`"},
			&cli.StringFlag{Name: "outside", Usage: "the other `PORT`"},
			&cli.StringFlag{Name: "inside-next-hop", Usage: "`MAC` address to send to on the inside"},
			&cli.StringFlag{Name: "outside-next-hop", Usage: "`MAC` address to send to on the outside"},
			&cli.IntFlag{Name: "core", Value: -1, DefaultText: "the last allowed one", Usage: "core to poll on"},
			&cli.IntFlag{Name: "queue", Usage: "queue of both ports"},
			&cli.StringFlag{Name: "mode", Value: "auto", Usage: "auto, zerocopy or copy"},
			&cli.StringFlag{Name: "idle", Value: "spin", Usage: "spin, or adaptive to sleep without traffic"},
			&cli.IntFlag{Name: "rt-priority", Usage: "SCHED_FIFO priority of the polling thread, 0 for none"},
			&cli.IntFlag{Name: "rings-size", Value: rings.RingSizeDefault, Usage: "descriptors in each ring"},
			&cli.IntFlag{Name: "seconds", Usage: "end after so long, 0 for when told to"},
			&cli.BoolFlag{Name: "json", Usage: "the counters as JSON"},
		},
		Action: func(c *cli.Context) error {
			if err := noArgs(c); err != nil {
				return err
			}
			l, err := openL2fwd(c)
			if err != nil {
				return fail(statusUsage, err)
			}
			return fail(statusRuntime, errors.Join(l.run(c), l.close()))
		},
	}
}

// l2fwd is a bare forwarder and what it stands on.
type l2fwd struct {
	names    [2]string // inside, outside
	umem     *rings.UMEM
	pool     *rings.Pool
	tables   *rings.Tables
	programs [2]*rings.Program
	sockets  [2]*rings.Socket
	forward  *rings.Forwarder
	core     int
	mode     rings.Mode
}

// openL2fwd sets everything up; when it fails nothing stays attached.
func openL2fwd(c *cli.Context) (*l2fwd, error) {
	l := &l2fwd{names: [2]string{c.String("inside"), c.String("outside")}, core: c.Int("core")}
	mode, err := l2fwdMode(c)
	if err != nil {
		return nil, err
	}
	if l.core < 0 {
		allowed, err := cpu.Allowed()
		if err != nil {
			return nil, err
		}
		l.core = allowed[len(allowed)-1]
	}
	o := rings.ForwarderOptions{}
	queues := make([]rings.PortQueue, 2)
	for i, role := range []string{"inside", "outside"} {
		if l.names[i] == "" {
			return nil, fmt.Errorf("--%s: needed: the name of a network device", role)
		}
		dev, err := netlink.LinkByName(l.names[i])
		if err != nil {
			return nil, fmt.Errorf("--%s: no network device %q; `ip link` lists them", role, l.names[i])
		}
		queues[i] = rings.PortQueue{Name: l.names[i], Index: dev.Attrs().Index, Queue: c.Int("queue")}
		o.MAC[i] = dev.Attrs().HardwareAddr
		if o.NextHop[i], err = nextHop(dev, c.String(role+"-next-hop"), role); err != nil {
			return nil, err
		}
	}
	if l.mode, _, err = rings.ChooseMode(mode, queues); err != nil {
		return nil, err
	}
	if err := l.open(queues, o, c.Int("rings-size")); err != nil {
		_ = l.close()
		return nil, err
	}
	return l, nil
}

func l2fwdMode(c *cli.Context) (rings.Mode, error) {
	if idle := c.String("idle"); idle != "spin" && idle != "adaptive" {
		return 0, fmt.Errorf("--idle: is %q; allowed: spin or adaptive", idle)
	}
	if p := c.Int("rt-priority"); p < 0 || p > cpu.PriorityMax {
		return 0, fmt.Errorf("--rt-priority: is %d; allowed: a number from 0 to %d", p, cpu.PriorityMax)
	}
	if s := c.Int("seconds"); s < 0 {
		return 0, fmt.Errorf("--seconds: is %d; allowed: a number from 0", s)
	}
	for _, m := range []rings.Mode{rings.Auto, rings.Copy, rings.ZeroCopy} {
		if m.String() == c.String("mode") {
			return m, nil
		}
	}
	return 0, fmt.Errorf("--mode: is %q; allowed: auto, zerocopy or copy", c.String("mode"))
}

// nextHop is the address given, or that of the only neighbour.
func nextHop(dev netlink.Link, given, role string) (net.HardwareAddr, error) {
	if given != "" {
		mac, err := net.ParseMAC(given)
		if err != nil || len(mac) != 6 {
			return nil, fmt.Errorf("--%s-next-hop: is %q; allowed: an Ethernet address as 02:00:00:00:00:01", role, given)
		}
		return mac, nil
	}
	list, err := netlink.NeighList(dev.Attrs().Index, netlink.FAMILY_V4)
	if err != nil {
		return nil, fmt.Errorf("%s: its neighbours can't be read: %w", dev.Attrs().Name, err)
	}
	var found []net.HardwareAddr
	for _, n := range list {
		if len(n.HardwareAddr) == 6 && n.State&(netlink.NUD_FAILED|netlink.NUD_INCOMPLETE|netlink.NUD_NOARP) == 0 {
			found = append(found, n.HardwareAddr)
		}
	}
	if len(found) != 1 {
		return nil, fmt.Errorf("%s: the kernel knows %d neighbours; say which to send to with --%s-next-hop", dev.Attrs().Name, len(found), role)
	}
	return found[0], nil
}

func (l *l2fwd) open(queues []rings.PortQueue, o rings.ForwarderOptions, ringSize int) (err error) {
	frames := 2*rings.SocketFrames(ringSize, l.mode) + 1024
	if l.umem, err = rings.NewUMEM(rings.UMEMOptions{Frames: frames, HugePages: true}); err != nil {
		return err
	}
	if l.pool, err = l.umem.NewPool(frames); err != nil {
		return err
	}
	if l.tables, err = rings.NewTables(); err != nil {
		return err
	}
	local, err := localAddresses()
	if err != nil {
		return err
	}
	if err := l.tables.SetLocal(local); err != nil {
		return err
	}
	for i, q := range queues {
		if l.programs[i], err = rings.LoadProgram(rings.ProgramOptions{Tables: l.tables, Number: i, MAC: o.MAC[i]}); err != nil {
			return err
		}
		if l.sockets[i], err = rings.OpenSocket(l.umem, rings.SocketOptions{Port: q, Mode: l.mode, RingSize: ringSize}); err != nil {
			return err
		}
		l.sockets[i].Service(l.pool)
		if err := l.programs[i].SetSocket(q.Queue, l.sockets[i].FD()); err != nil {
			return err
		}
	}
	o.UMEM, o.Pool, o.Ports = l.umem, l.pool, l.sockets
	if l.forward, err = rings.NewForwarder(o); err != nil {
		return err
	}
	for i, q := range queues { // last: from now on packets come
		if _, err := l.programs[i].Attach(q.Name, q.Index); err != nil {
			return err
		}
	}
	return nil
}

// localAddresses are what the kernel takes for itself, broadcast addresses included.
func localAddresses() ([]netip.Addr, error) {
	routes, err := netlink.RouteListFiltered(netlink.FAMILY_ALL, &netlink.Route{Table: unix.RT_TABLE_LOCAL}, netlink.RT_FILTER_TABLE)
	if err != nil {
		return nil, fmt.Errorf("the kernel's local addresses can't be read: %w", err)
	}
	var out []netip.Addr
	for _, r := range routes {
		if r.Dst == nil || r.Type != unix.RTN_LOCAL && r.Type != unix.RTN_BROADCAST {
			continue
		}
		if a, ok := netip.AddrFromSlice(r.Dst.IP); ok {
			out = append(out, a.Unmap())
		}
	}
	return out, nil
}

// l2fwdReport is what one run forwarded.
type l2fwdReport struct {
	perf.Report
	PPS     perf.Stat `json:"pps"` // packets that both devices sent, second by second; a run of less than one: the mean
	Seconds float64   `json:"seconds"`
	Inside  uint64    `json:"inside_received"`
	Outside uint64    `json:"outside_received"`
	Sent    uint64    `json:"transmitted"`
	Dropped uint64    `json:"tx_full"`
}

func (l *l2fwd) run(c *cli.Context) error {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	defer signal.Stop(signals)
	runtime.GOMAXPROCS(max(runtime.GOMAXPROCS(0), 3))
	if err := l.keepAway(); err != nil {
		return err
	}
	placed, ended := make(chan error, 1), make(chan error, 1)
	go func() {
		runtime.LockOSThread() // for good: the thread is pinned, and ends with the goroutine
		err := cpu.Pin(l.core)
		if p := c.Int("rt-priority"); err == nil && p > 0 {
			err = cpu.SetFIFO(p)
		}
		placed <- err
		if err == nil {
			ended <- l.forward.Run(c.String("idle") == "adaptive")
		}
	}()
	if err := <-placed; err != nil {
		return err
	}
	start := time.Now()
	fmt.Fprintf(c.App.ErrWriter, "ready: %s and %s, %s mode, core %d\n", l.names[0], l.names[1], l.mode, l.core)
	var timeout <-chan time.Time
	if s := c.Int("seconds"); s > 0 {
		timeout = time.After(time.Duration(s) * time.Second)
	}
	var pps []float64
	last, at := l.transmitted(), start
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for running := true; running; {
		select {
		case <-signals:
			running = false
		case <-timeout:
			running = false
		case now := <-tick.C:
			n := l.transmitted()
			pps = append(pps, float64(n-last)/now.Sub(at).Seconds())
			last, at = n, now
		case err := <-ended:
			return err
		}
	}
	l.forward.Stop()
	if err := <-ended; err != nil {
		return err
	}
	in, out := l.sockets[0].Counters(), l.sockets[1].Counters()
	took, sent := time.Since(start).Seconds(), in.Completed+out.Completed
	if len(pps) == 0 {
		pps = []float64{float64(sent) / took}
	}
	return l2fwdReport{
		Report: perf.NewReport(), PPS: perf.NewStat(pps), Seconds: took, Inside: in.Received, Outside: out.Received,
		Sent: sent, Dropped: l.forward.Dropped(),
	}.print(c.App.Writer, c.Bool("json"))
}

// transmitted is what both devices have sent so far: the sockets' own counters are their thread's alone.
func (l *l2fwd) transmitted() (n uint64) {
	for _, name := range l.names {
		if dev, err := netlink.LinkByName(name); err == nil && dev.Attrs().Statistics != nil {
			n += dev.Attrs().Statistics.TxPackets
		}
	}
	return n
}

// keepAway keeps the process's other threads off the forwarder's core, as the gateway does for its worker.
func (l *l2fwd) keepAway() error {
	allowed, err := cpu.Allowed()
	if err != nil {
		return err
	}
	others := slices.DeleteFunc(allowed, func(core int) bool { return core == l.core })
	if len(others) == 0 {
		return nil
	}
	return cpu.ConfineProcess(others)
}

func (r l2fwdReport) print(w io.Writer, asJSON bool) error {
	if asJSON {
		return json.NewEncoder(w).Encode(r)
	}
	_, err := fmt.Fprintf(w, "%.1f s: received %d inside, %d outside; transmitted %d (%.0f/s); %d found the transmit ring full\n",
		r.Seconds, r.Inside, r.Outside, r.Sent, float64(r.Sent)/r.Seconds, r.Dropped)
	return err
}

// close takes everything down, in the order that loses no frame: program, socket, memory.
func (l *l2fwd) close() error {
	var errs []error
	for _, p := range l.programs {
		if p != nil {
			errs = append(errs, p.Close())
		}
	}
	for _, s := range l.sockets {
		if s != nil {
			errs = append(errs, s.Close(l.pool))
		}
	}
	if l.tables != nil {
		errs = append(errs, l.tables.Close())
	}
	if l.umem != nil {
		errs = append(errs, l.umem.Close())
	}
	return errors.Join(errs...)
}
