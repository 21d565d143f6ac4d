package pmd

import (
	"context"
	"maps"
	"net/netip"
	"runtime"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"pollux/internal/lab"
	"pollux/internal/packet"
	"pollux/internal/reason"
	"pollux/nat"
)

func labOptions() Options {
	rules := nat.DefaultRules()
	rules.Alias = []packet.Addr{packet.AddrFrom(lab.GatewayOutside)}
	return Options{
		Ports: []PortOptions{{lab.InsideDevice, nat.Inside}, {lab.OutsideDevice, nat.Outside}},
		Idle:  Adaptive, Mode: ModeAuto, RingSize: 1024, Rules: rules,
		Limits: nat.Limits{Links: 10000, Fragments: 256}, RTCache: true, Populate: true,
	}
}

// startIn starts a gateway in the lab's gateway namespace.
func startIn(t *testing.T, l *lab.Lab, o Options) (g *Gateway, err error) {
	t.Helper()
	err = l.Gateway.Do(func() error {
		g, err = Start(o)
		return err
	})
	if err == nil {
		t.Cleanup(func() { g.Stop() })
	}
	return g, err
}

func newLab(t *testing.T, o lab.Options) *lab.Lab {
	t.Helper()
	lab.Require(t)
	l, err := lab.New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.Close)
	return l
}

func attached(t *testing.T, l *lab.Lab) bool {
	t.Helper()
	for _, dev := range []string{lab.InsideDevice, lab.OutsideDevice} {
		link, err := l.Gateway.Netlink().LinkByName(dev)
		if err != nil {
			t.Fatal(err)
		}
		if x := link.Attrs().Xdp; x != nil && x.Attached {
			return true
		}
	}
	return false
}

// TestGateway drives real programs through a running gateway, with the gateway's own outside address as the alias.
func TestGateway(t *testing.T) {
	l := newLab(t, lab.Options{})
	in, out := l.Inside[0], l.Outside[0]
	o := labOptions()
	o.Rules.RedirectPort = []nat.RedirectPort{{Proto: packet.ProtoTCP, Public: nat.Alias{Addr: o.Rules.Alias[0], Port: 8080},
		Local: []nat.Local{{Addr: packet.AddrFrom(in.Addr), Port: 80}}}}
	g, err := startIn(t, l, o)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()

	pings, err := lab.Ping(ctx, in.Namespace, in.Addr, out.Addr, lab.PingOptions{Count: 5, Size: 56, Timeout: 2 * time.Second, Interval: 20 * time.Millisecond})
	if err != nil || len(pings.RTT) != 5 {
		t.Errorf("%d of 5 pings answered: %v, drops %v", len(pings.RTT), err, dropsOf(g))
	}
	if m := lab.Median(pings.RTT); m > 20*time.Millisecond {
		t.Errorf("a ping at idle takes %v", m)
	}
	big, err := lab.Ping(ctx, in.Namespace, in.Addr, out.Addr, lab.PingOptions{Count: 3, Size: 4000, Timeout: 2 * time.Second, Interval: 20 * time.Millisecond})
	if err != nil || len(big.RTT) != 3 {
		t.Errorf("%d of 3 pings of 4000 bytes answered: %v, drops %v", len(big.RTT), err, dropsOf(g))
	}

	echo, err := lab.ServeUDPEcho(out.Namespace, ":9000")
	if err != nil {
		t.Fatal(err)
	}
	defer echo.Close()
	flows, err := lab.UDPFlows(ctx, in.Namespace, netip.AddrPortFrom(out.Addr, 9000), lab.FlowOptions{Flows: 200, PerFlow: 5, Size: 64, Timeout: 2 * time.Second, At: 50})
	if err != nil || flows.Answered != flows.Sent || flows.Wrong != 0 {
		t.Errorf("%+v %v, drops %v", flows, err, dropsOf(g))
	}
	for from := range echo.Seen() {
		if from.Addr() != lab.GatewayOutside {
			t.Errorf("the outside saw %v", from)
		}
	}

	files, err := lab.ServeFiles(out.Namespace, ":80")
	if err != nil {
		t.Fatal(err)
	}
	defer files.Close()
	if tr, err := lab.Download(ctx, in.Namespace, out.Addr.String()+":80", 20<<20); err != nil {
		t.Errorf("download: %+v %v, drops %v", tr, err, dropsOf(g))
	}

	published, err := lab.ServeTCP(in.Namespace, ":80", lab.Tell("inside"))
	if err != nil {
		t.Fatal(err)
	}
	defer published.Close()
	if name, seen, err := lab.Ask(ctx, out.Namespace, lab.GatewayOutside.String()+":8080"); err != nil || name != "inside" {
		t.Errorf("published port: %q %v %v, drops %v", name, seen, err, dropsOf(g))
	}

	// The gateway's own service on the alias address, and its port, which nobody else may get.
	own, err := lab.ServeTCP(l.Gateway, ":2222", lab.Tell("gateway"))
	if err != nil {
		t.Fatal(err)
	}
	defer own.Close()
	for _, asker := range []*lab.Host{in, out} {
		if name, _, err := lab.Ask(ctx, asker.Namespace, lab.GatewayOutside.String()+":2222"); err != nil || name != "gateway" {
			t.Errorf("the gateway's own listener, asked by %s: %q %v, drops %v", asker.Name, name, err, dropsOf(g))
		}
	}

	// Idle means idle.
	before := processTime(t)
	time.Sleep(time.Second)
	if used := processTime(t) - before; used > 100*time.Millisecond {
		t.Errorf("an idle second took %v of processor time", used)
	}

	links := 0
	if err := g.Links(func(nat.LinkInfo) bool { links++; return true }); err != nil || links < 200 {
		t.Errorf("%d links, %v", links, err)
	}
	w := g.Workers()[0]
	if w.Leaked != 0 || w.Received == 0 || w.Forwarded == 0 || w.Links != uint64(links) {
		t.Errorf("worker %+v", w)
	}
	for _, p := range g.Ports() {
		if p.RX == 0 || p.TX == 0 || !p.Up || p.XDP != "native" || p.Mode != "copy" {
			t.Errorf("port %+v", p)
		}
	}
	if !attached(t, l) {
		t.Error("no XDP program is attached")
	}
	if err := g.Stop(); err != nil {
		t.Error(err)
	}
	if attached(t, l) {
		t.Error("an XDP program is still attached")
	}
	if w := g.Workers()[0]; w.Leaked != 0 {
		t.Errorf("after stop: %+v", w)
	}
}

// processTime is the processor time that this process has used.
func processTime(t *testing.T) time.Duration {
	t.Helper()
	var u unix.Rusage
	if err := unix.Getrusage(unix.RUSAGE_SELF, &u); err != nil {
		t.Fatal(err)
	}
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func dropsOf(g *Gateway) map[string]uint64 {
	m := map[string]uint64{}
	for _, d := range g.Drops() {
		if d.Count > 0 {
			m[d.Name] = d.Count
		}
	}
	return m
}

// TestPoolAddress: an alias address that the kernel lacks is answered for by ARP, and announced.
func TestPoolAddress(t *testing.T) {
	l := newLab(t, lab.Options{})
	in, out := l.Inside[0], l.Outside[0]
	pool := netip.MustParseAddr("203.0.113.33")
	o := labOptions()
	o.Rules.Alias = []packet.Addr{packet.AddrFrom(pool)}
	g, err := startIn(t, l, o)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	pings, err := lab.Ping(ctx, in.Namespace, in.Addr, out.Addr, lab.PingOptions{Count: 3, Size: 56, Timeout: 2 * time.Second})
	if err != nil || len(pings.RTT) != 3 {
		t.Errorf("%d of 3 pings answered: %v, drops %v", len(pings.RTT), err, dropsOf(g))
	}
}

// TestFollowsThePort: with alias port the outside address may change while the gateway runs, whatever the number of workers.
func TestFollowsThePort(t *testing.T) {
	for _, workers := range []int{1, 4} {
		t.Run(strconv.Itoa(workers), func(t *testing.T) { followsThePort(t, workers) })
	}
}

func followsThePort(t *testing.T, workers int) {
	l := newLab(t, lab.Options{InsideHosts: 3, Queues: workers})
	in, out := l.Inside[0], l.Outside[0]
	o := labOptions()
	o.Cores, o.Oversubscribe = rangeOf(workers), true
	o.Rules.Alias, o.AliasPort = nil, true
	g, err := startIn(t, l, o)
	if err != nil {
		t.Fatal(err)
	}
	echo, err := lab.ServeUDPEcho(out.Namespace, ":9000")
	if err != nil {
		t.Fatal(err)
	}
	defer echo.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
	defer cancel()
	try := func() lab.Flows {
		f, err := lab.UDPFlows(ctx, in.Namespace, netip.AddrPortFrom(out.Addr, 9000), lab.FlowOptions{Flows: 5, PerFlow: 1, Size: 64, Timeout: time.Second})
		if err != nil {
			t.Fatal(err)
		}
		return f
	}
	if f := try(); f.Answered != 5 {
		t.Errorf("%+v, drops %v", f, dropsOf(g))
	}
	next := netip.MustParsePrefix("203.0.113.44/24")
	if err := l.Gateway.DelAddress(lab.OutsideDevice, netip.PrefixFrom(lab.GatewayOutside, 24)); err != nil {
		t.Fatal(err)
	}
	if err := l.Gateway.AddAddress(lab.OutsideDevice, next); err != nil {
		t.Fatal(err)
	}
	// The first try may be quicker than the news of the change: then the old address is used once more.
	seen := map[netip.Addr]bool{}
	for start := time.Now(); ; {
		f := try()
		for from := range echo.Seen() {
			seen[from.Addr()] = true
		}
		if f.Answered == 5 && seen[next.Addr()] {
			break
		}
		if time.Since(start) > 10*time.Second {
			t.Fatalf("the new address is not used: drops %v", dropsOf(g))
		}
	}
	if len(seen) != 2 {
		t.Errorf("the outside saw %v", seen)
	}
	// Every worker uses the new address, those of the other hosts too.
	for _, host := range l.Inside {
		f, err := lab.UDPFlows(ctx, host.Namespace, netip.AddrPortFrom(out.Addr, 9000), lab.FlowOptions{Flows: 20, PerFlow: 1, Size: 64, Timeout: 5 * time.Second})
		if err != nil || f.Answered != 20 {
			t.Errorf("%s: %+v %v, drops %v", host.Name, f, err, dropsOf(g))
		}
	}
	at, want := map[int]bool{}, map[int]bool{}
	for _, host := range l.Inside {
		if workers == 1 {
			want[0] = true
		} else {
			want[g.steering.Outbound(packet.ProtoUDP, packet.AddrFrom(host.Addr), 1, packet.AddrFrom(out.Addr), 9000)] = true
		}
	}
	if err := g.Links(func(k nat.LinkInfo) bool {
		if k.Alias.Addr == packet.AddrFrom(next.Addr()) {
			at[k.Worker] = true
		}
		return true
	}); err != nil || !maps.Equal(at, want) {
		t.Errorf("links of the new address at workers %v, want %v, %v", at, want, err)
	}
}

// TestStartFailsClean: each wrong start is one line that names the thing, and leaves nothing behind.
func rangeOf(n int) (list []int) {
	for i := range n {
		list = append(list, i)
	}
	return list
}

func TestStartFailsClean(t *testing.T) {
	l := newLab(t, lab.Options{})
	before := runtime.NumGoroutine()
	for _, c := range []struct {
		name string
		edit func(*Options)
		want string
	}{
		{"no such port", func(o *Options) { o.Ports[0].Name = "eth7" }, "eth7"},
		{"loopback", func(o *Options) { o.Ports[0].Name = "lo" }, "lo: "},
		{"twice", func(o *Options) { o.Ports[0].Name = lab.OutsideDevice }, "named twice"},
		{"one role", func(o *Options) { o.Ports[0].Side = nat.Outside }, "inside"},
		{"queue", func(o *Options) { o.Queues = []int{5} }, "queue"},
		{"core", func(o *Options) { o.Cores = []int{500} }, "core 500"},
		{"a queue for each worker", func(o *Options) { o.Cores = []int{0, 1} }, "queue 1"},
		{"more workers than cores", func(o *Options) { o.Cores = rangeOf(1024) }, "1024 workers need 1024 cores"},
		{"a core twice", func(o *Options) { o.Cores = []int{0, 0} }, "core 0 is named for 2 workers"},
		{"lengths", func(o *Options) { o.Cores, o.Queues = []int{0}, []int{0, 1} }, "2 queues are named for 1 workers"},
		{"links", func(o *Options) { o.Limits.Links = 1 << 27 }, "links"},
		{"frames", func(o *Options) { o.Frames = 1 << 30 }, "MiB"},
		{"few frames", func(o *Options) { o.Frames = 100 }, "rings.frames"},
		{"zero-copy", func(o *Options) { o.Mode = ModeZeroCopy }, "zero"},
	} {
		t.Run(c.name, func(t *testing.T) {
			o := labOptions()
			c.edit(&o)
			_, err := startIn(t, l, o)
			if err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n") {
				t.Fatalf("started: %v", err)
			}
			t.Log(err)
			if attached(t, l) {
				t.Error("an XDP program is still attached")
			}
		})
	}
	t.Run("old kernel", func(t *testing.T) {
		real := kernelRelease
		kernelRelease = func() string { return "5.10.0-9-amd64" }
		defer func() { kernelRelease = real }()
		if _, err := startIn(t, l, labOptions()); err == nil || !strings.Contains(err.Error(), "6.1") {
			t.Errorf("started: %v", err)
		}
	})
	t.Run("down", func(t *testing.T) {
		link, err := l.Gateway.Netlink().LinkByName(lab.InsideDevice)
		if err != nil {
			t.Fatal(err)
		}
		if err := l.Gateway.Netlink().LinkSetDown(link); err != nil {
			t.Fatal(err)
		}
		defer l.Gateway.Netlink().LinkSetUp(link)
		if _, err := startIn(t, l, labOptions()); err == nil || !strings.Contains(err.Error(), "ip link set "+lab.InsideDevice+" up") {
			t.Errorf("started: %v", err)
		}
	})
	t.Run("busy queue", func(t *testing.T) {
		g, err := startIn(t, l, labOptions())
		if err != nil {
			t.Fatal(err)
		}
		if _, err := startIn(t, l, labOptions()); err == nil || !strings.Contains(err.Error(), "already bound") {
			t.Errorf("started: %v", err)
		}
		if err := g.Stop(); err != nil {
			t.Error(err)
		}
	})
	// And a right start still works, many times in a row.
	for range 5 {
		g, err := startIn(t, l, labOptions())
		if err != nil {
			t.Fatal(err)
		}
		if err := g.Stop(); err != nil {
			t.Fatal(err)
		}
	}
	for i := 0; runtime.NumGoroutine() > before; i++ {
		if i == 100 {
			t.Errorf("%d goroutines, %d before", runtime.NumGoroutine(), before)
			break
		}
		time.Sleep(10 * time.Millisecond)
	}
}

// TestPuntReachesTheKernel: what only the worker can recognise as the host's gets to the host's stack.
func TestPuntReachesTheKernel(t *testing.T) {
	l := newLab(t, lab.Options{})
	in := l.Inside[0]
	g, err := startIn(t, l, labOptions())
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	for range 10 {
		// The XDP programs pass the kernel's own addresses by themselves; taken from them, the worker must find them out. The
		// gateway gives them back when it hears any news of the kernel's, as it may once after the start.
		if err := g.tables.SetLocal(nil); err != nil {
			t.Fatal(err)
		}
		pings, err := lab.Ping(ctx, in.Namespace, in.Addr, lab.GatewayInside, lab.PingOptions{Timeout: 2 * time.Second})
		if err != nil || len(pings.RTT) != 1 {
			t.Errorf("%d of 1 pings of the gateway answered: %v, drops %v", len(pings.RTT), err, dropsOf(g))
		}
	}
	if n := dropsOf(g)[reason.Punted.String()]; n < 3 {
		t.Errorf("%d punted", n)
	}
}

// TestGatewayUnderGarbageCollection: collections every 10 ms, idle and during a transfer, over real sockets, with either
// idle policy.
func TestGatewayUnderGarbageCollection(t *testing.T) {
	l := newLab(t, lab.Options{})
	in, out := l.Inside[0], l.Outside[0]
	files, err := lab.ServeFiles(out.Namespace, ":80")
	if err != nil {
		t.Fatal(err)
	}
	defer files.Close()
	for name, idle := range map[string]Idle{"spin": Spin, "adaptive": Adaptive} {
		t.Run(name, func(t *testing.T) {
			o := labOptions()
			o.Idle = idle
			g, err := startIn(t, l, o)
			if err != nil {
				t.Fatal(err)
			}
			stop := make(chan struct{})
			defer close(stop)
			go func() {
				for {
					select {
					case <-stop:
						return
					case <-time.After(10 * time.Millisecond):
						runtime.GC()
					}
				}
			}()
			ctx, cancel := context.WithTimeout(context.Background(), 60*time.Second)
			defer cancel()
			time.Sleep(300 * time.Millisecond)
			if tr, err := lab.Download(ctx, in.Namespace, out.Addr.String()+":80", 10<<20); err != nil {
				t.Errorf("download: %+v %v, drops %v", tr, err, dropsOf(g))
			}
			if w := g.Workers()[0]; w.Leaked != 0 {
				t.Errorf("%d frames leaked", w.Leaked)
			}
			if err := g.Stop(); err != nil {
				t.Error(err)
			}
		})
	}
}
