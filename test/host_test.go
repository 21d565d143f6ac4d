package integration

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"pollux/internal/lab"
)

// session opens a TCP connection and types over it; the gateway's own listener must answer.
func session(ctx context.Context, from *lab.Namespace, to string) error {
	s, err := lab.OpenSession(ctx, from, to)
	if err != nil {
		return err
	}
	defer s.Close()
	for i := range 3 {
		if _, err := s.Type(fmt.Sprintf("line %d\n", i), 2*time.Second); err != nil {
			return err
		}
	}
	return nil
}

// A listener of the gateway's kernel on the alias address itself: reachable from both sides before, while and after the
// NAT runs, with the table full, and its port is never handed out.
func TestKernelListenerOnTheAliasAddress(t *testing.T) {
	l := newLab(t, lab.Options{Routers: 1})
	in, out := l.Inside[0], l.Outside[0]
	const port = 4022
	shell, err := lab.ServeTCP(l.Gateway, at(lab.GatewayOutside, port), lab.Echo)
	if err != nil {
		t.Fatal(err)
	}
	defer shell.Close()
	resolver, err := lab.ServeUDPEcho(l.Gateway, at(lab.GatewayOutside, port))
	if err != nil {
		t.Fatal(err)
	}
	defer resolver.Close()
	ctx := limited(t, time.Minute)
	reachable := func(when string) {
		t.Helper()
		for _, h := range []*lab.Host{in, out} {
			if err := session(ctx, h.Namespace, at(lab.GatewayOutside, port)); err != nil {
				t.Errorf("%s, TCP from %s: %v", when, h.Name, err)
			}
			f, err := lab.UDPFlows(ctx, h.Namespace, netip.AddrPortFrom(lab.GatewayOutside, port), lab.FlowOptions{Flows: 3, PerFlow: 2})
			if err != nil || f.Answered != 6 {
				t.Errorf("%s, UDP from %s: %d of 6 answered, %v", when, h.Name, f.Answered, err)
			}
			if p, err := lab.Ping(ctx, h.Namespace, h.Addr, lab.GatewayOutside, lab.PingOptions{Count: 2}); err != nil || len(p.RTT) != 2 {
				t.Errorf("%s, ping from %s: %d of 2 answered, %v", when, h.Name, len(p.RTT), err)
			}
		}
	}
	reachable("before")
	open, err := lab.OpenSession(ctx, out.Namespace, at(lab.GatewayOutside, port))
	if err != nil {
		t.Fatal(err)
	}
	defer open.Close()
	still := func(when string) {
		t.Helper()
		if _, err := open.Type(when, 2*time.Second); err != nil {
			t.Errorf("a session opened before: %s: %v", when, err)
		}
	}

	g := run(t, l, "--limits-links", "100")
	reachable("while the NAT runs")
	still("while the NAT runs")

	// An inside host that uses the listener's port toward the outside must not take it over.
	echo, err := lab.ServeUDPEcho(out.Namespace, at(out.Addr, 7))
	if err != nil {
		t.Fatal(err)
	}
	defer echo.Close()
	c, err := in.DialFrom(ctx, &net.UDPAddr{IP: in.Addr.AsSlice(), Port: port}, "udp4", at(out.Addr, 7))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	exchange(t, c.(*net.UDPConn), "from the listener's port")
	if echo.Seen()[netip.AddrPortFrom(lab.GatewayOutside, port)] > 0 {
		t.Errorf("the port of a kernel listener was handed out: %v", echo.Seen())
	}

	f, err := lab.UDPFlows(ctx, in.Namespace, netip.AddrPortFrom(out.Addr, 7), lab.FlowOptions{Flows: 200, Timeout: 500 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	if f.Answered > 100 || f.Answered < 90 || g.drops("table-full") == 0 {
		t.Errorf("a table of 100 links let %d of 200 flows through, %d table-full", f.Answered, g.drops("table-full"))
	}
	reachable("with the table full")
	still("with the table full")

	if err := g.Stop(syscall.SIGTERM, 5*time.Second); err != nil {
		t.Error(err)
	}
	reachable("after")
	still("after")
}

// SSH to the gateway answers while the NAT is busy.
func TestSessionToTheGatewayUnderLoad(t *testing.T) {
	l := newLab(t, lab.Options{})
	in, out := l.Inside[0], l.Outside[0]
	run(t, l)
	shell, err := lab.ServeTCP(l.Gateway, at(lab.GatewayInside, 22), lab.Echo)
	if err != nil {
		t.Fatal(err)
	}
	defer shell.Close()
	outer, err := lab.ServeTCP(l.Gateway, at(lab.GatewayOutside, 22), lab.Echo)
	if err != nil {
		t.Fatal(err)
	}
	defer outer.Close()
	web, err := lab.ServeFiles(out.Namespace, at(out.Addr, 80))
	if err != nil {
		t.Fatal(err)
	}
	defer web.Close()
	ctx := limited(t, 2*time.Minute)
	load, stop := context.WithCancel(ctx)
	var busy sync.WaitGroup
	for range 4 {
		busy.Go(func() {
			for load.Err() == nil {
				if _, err := lab.Download(load, in.Namespace, web.Addr.String(), 50<<20); err != nil && load.Err() == nil {
					t.Errorf("the load itself: %v", err)
					return
				}
			}
		})
	}
	var rtt []time.Duration
	for _, from := range []struct {
		host *lab.Host
		to   netip.Addr
	}{{in, lab.GatewayInside}, {out, lab.GatewayOutside}} {
		s, err := lab.OpenSession(ctx, from.host.Namespace, at(from.to, 22))
		if err != nil {
			t.Errorf("from %s: %v", from.host.Name, err)
			continue
		}
		for i := range 20 {
			took, err := s.Type(fmt.Sprintf("key %d", i), 5*time.Second)
			if err != nil {
				t.Errorf("from %s: %v", from.host.Name, err)
				break
			}
			rtt = append(rtt, took)
			time.Sleep(50 * time.Millisecond)
		}
		s.Close()
	}
	stop()
	busy.Wait()
	t.Logf("median echo under load: %v", lab.Median(rtt))
}

// xdpAttached reports whether an XDP program hangs on a device.
func xdpAttached(t *testing.T, n *lab.Namespace, device string) bool {
	t.Helper()
	link, err := n.Netlink().LinkByName(device)
	if err != nil {
		t.Fatal(err)
	}
	x := link.Attrs().Xdp
	return x != nil && x.Attached
}

// However pollux dies, the kernel takes its program off, and the gateway's own traffic works at once.
func TestKilledGatewayLeavesTheHostWorking(t *testing.T) {
	l := newLab(t, lab.Options{})
	in, out := l.Inside[0], l.Outside[0]
	g := run(t, l)
	ctx := limited(t, 30*time.Second)
	if p, err := lab.Ping(ctx, in.Namespace, in.Addr, out.Addr, lab.PingOptions{}); err != nil || len(p.RTT) != 1 {
		t.Fatalf("ping through it: %v, %v", p, err)
	}
	for _, dev := range []string{lab.InsideDevice, lab.OutsideDevice} {
		if !xdpAttached(t, l.Gateway, dev) {
			t.Errorf("no XDP program on %s while it runs: what was tested then?", dev)
		}
	}
	g.Stop(syscall.SIGKILL, 0)
	for _, dev := range []string{lab.InsideDevice, lab.OutsideDevice} {
		if xdpAttached(t, l.Gateway, dev) {
			t.Errorf("the XDP program is still on %s after SIGKILL", dev)
		}
	}
	for _, to := range []netip.Addr{in.Addr, out.Addr} {
		p, err := lab.Ping(ctx, l.Gateway, netip.IPv4Unspecified(), to, lab.PingOptions{Count: 3, Timeout: 300 * time.Millisecond})
		if err != nil || len(p.RTT) != 3 {
			t.Errorf("the gateway's own ping to %s after SIGKILL: %d of 3, %v", to, len(p.RTT), err)
		}
	}
	run(t, l) // and it starts again
	if p, err := lab.Ping(ctx, in.Namespace, in.Addr, out.Addr, lab.PingOptions{Count: 3}); err != nil || len(p.RTT) != 3 {
		t.Errorf("ping after a restart: %v, %v", p, err)
	}
}

func TestStartStopCycles(t *testing.T) {
	l := newLab(t, lab.Options{})
	in, out := l.Inside[0], l.Outside[0]
	cycles := 100
	if testing.Short() {
		cycles = 10
	}
	var up []time.Duration
	for i := range cycles {
		start := time.Now()
		p, err := l.StartGateway(pollux(t), "--idle", "adaptive")
		if err != nil {
			t.Fatalf("cycle %d: %v", i, err)
		}
		up = append(up, time.Since(start))
		if i%10 == 0 {
			if got, err := lab.Ping(limited(t, 5*time.Second), in.Namespace, in.Addr, out.Addr, lab.PingOptions{}); err != nil || len(got.RTT) != 1 {
				t.Fatalf("cycle %d: ping through it: %v, %v", i, got, err)
			}
		}
		if err := p.Stop(syscall.SIGTERM, 5*time.Second); err != nil {
			t.Fatalf("cycle %d: %v", i, err)
		}
	}
	if xdpAttached(t, l.Gateway, lab.InsideDevice) || xdpAttached(t, l.Gateway, lab.OutsideDevice) {
		t.Error("an XDP program is left")
	}
	t.Logf("%d cycles, median start to ready %v", cycles, lab.Median(up).Round(time.Millisecond))
}

// With the guard rule that the doctor prints, no private source leaves: not while it starts, runs, stops, or is dead.
func TestNoPrivateSourceEverLeaves(t *testing.T) {
	l := newLab(t, lab.Options{Routers: 1})
	in, out := l.Inside[0], l.Outside[0]
	if err := l.Gateway.Sysctl("net.ipv4.ip_forward", "1"); err != nil {
		t.Fatal(err)
	}
	ctx := limited(t, time.Minute)
	report, _ := l.Gateway.Run(ctx, pollux(t), "doctor", "--inside", lab.InsideDevice, "--outside", lab.OutsideDevice)
	_, rule, found := strings.Cut(report, "nft '")
	rule, _, closed := strings.Cut(rule, "'\n")
	if !found || !closed {
		t.Fatalf("the doctor prints no guard rule:\n%s", report)
	}
	mustRun(t, ctx, l.Gateway, "nft", rule)
	seen := sniff(t, l)

	// Traffic that never pauses, through starts, stops and kills.
	load, stop := context.WithCancel(ctx)
	var sending sync.WaitGroup
	echo, err := lab.ServeUDPEcho(out.Namespace, at(out.Addr, 7))
	if err != nil {
		t.Fatal(err)
	}
	defer echo.Close()
	sending.Go(func() {
		for load.Err() == nil {
			lab.UDPFlows(load, in.Namespace, netip.AddrPortFrom(out.Addr, 7), lab.FlowOptions{Flows: 20, Timeout: 20 * time.Millisecond})
		}
	})
	sending.Go(func() {
		for load.Err() == nil {
			lab.Ping(load, in.Namespace, in.Addr, out.Addr, lab.PingOptions{Timeout: 20 * time.Millisecond})
		}
	})
	for i := range 6 {
		p, err := l.StartGateway(pollux(t), "--idle", "adaptive")
		if err != nil {
			t.Fatal(err)
		}
		time.Sleep(150 * time.Millisecond)
		end := syscall.SIGTERM
		if i%2 == 1 {
			end = syscall.SIGKILL
		}
		if err := p.Stop(end, 5*time.Second); err != nil {
			t.Error(err)
		}
		time.Sleep(100 * time.Millisecond)
	}
	stop()
	sending.Wait()
	if n := seen.Seen().Expected; n < 100 {
		t.Errorf("only %d packets went out translated: the traffic was too thin to prove anything", n)
	}
}

// The outside port's own address as alias, changed while it runs.
func TestAliasFollowsThePort(t *testing.T) {
	l := newLab(t, lab.Options{})
	in, out := l.Inside[0], l.Outside[0]
	next := netip.MustParseAddr("203.0.113.77")
	run(t, l, "--alias", "port")
	sniff(t, l, lab.GatewayOutside, next)
	tell, err := lab.ServeTCP(out.Namespace, at(out.Addr, 80), lab.Tell("server"))
	if err != nil {
		t.Fatal(err)
	}
	defer tell.Close()
	ctx := limited(t, 30*time.Second)
	ask := func(want netip.Addr) error {
		ctx, cancel := context.WithTimeout(ctx, 300*time.Millisecond)
		defer cancel()
		_, seen, err := lab.Ask(ctx, in.Namespace, at(out.Addr, 80))
		if err == nil && seen.Addr() != want {
			err = fmt.Errorf("the server saw %s, want %s", seen.Addr(), want)
		}
		return err
	}
	if err := ask(lab.GatewayOutside); err != nil {
		t.Fatal(err)
	}
	// As a DHCP client does it, with the sysctl that lets a secondary address outlive the first, as most systems set it.
	if err := l.Gateway.Sysctl("net.ipv4.conf.eth0.promote_secondaries", "1"); err != nil {
		t.Fatal(err)
	}
	if err := l.Gateway.AddAddress(lab.OutsideDevice, netip.PrefixFrom(next, 24)); err != nil {
		t.Fatal(err)
	}
	if err := l.Gateway.DelAddress(lab.OutsideDevice, netip.PrefixFrom(lab.GatewayOutside, 24)); err != nil {
		t.Fatal(err)
	}
	start := time.Now()
	eventually(t, time.Second, func() error { return ask(next) })
	t.Logf("followed after %v", time.Since(start).Round(time.Millisecond))
}
