package integration

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	"pollux/internal/lab"
	"pollux/internal/packet"
	"pollux/rtcache"
)

// fork is a lab with two ways to one service: both outside hosts have its address, so that whichever next hop the gateway
// chooses, the packet arrives and is counted there. The second one is also reached by a device of its own, and the inside
// host by a second cable.
//
//	                 eth1 ┌─────────┐ eth0 203.0.113.1/24
//	10.0.0.2 eth0 ────────┤         ├──────────(bridge)──┬── host 0 203.0.113.100  ┐
//	10.0.1.2 eth9 ────────┤ gateway │                    └── host 1 203.0.113.101  ├ 198.51.100.7
//	                 eth3 │         ├── eth2 203.0.114.1/24 ── host 1 203.0.114.100 ┘
//	                      └─────────┘
type fork struct {
	*lab.Lab
	t *testing.T
}

const secondOutside, secondInside = "eth2", "eth3"

var service = netip.MustParseAddrPort("198.51.100.7:9000")

func newFork(t *testing.T) *fork {
	l := newLab(t, lab.Options{OutsideHosts: 2})
	f := &fork{l, t}
	prefix := netip.MustParsePrefix
	must := func(errs ...error) {
		t.Helper()
		if err := errors.Join(errs...); err != nil {
			t.Fatal(err)
		}
	}
	must(lab.Cable(l.Gateway, secondOutside, prefix("203.0.114.1/24"), l.Outside[1].Namespace, "eth5", netip.MustParseAddr("203.0.114.100")),
		lab.Cable(l.Gateway, secondInside, prefix("10.0.1.1/24"), l.Inside[0].Namespace, "eth9", netip.MustParseAddr("10.0.1.2")))
	for _, h := range l.Outside {
		must(h.AddAddress("lo", netip.PrefixFrom(service.Addr(), 32)))
		for _, dev := range []string{"all", "default", "eth0"} {
			must(h.Sysctl("net.ipv4.conf."+dev+".rp_filter", "0"))
		}
	}
	must(l.Outside[1].Sysctl("net.ipv4.conf.eth5.rp_filter", "0"))
	return f
}

// run starts pollux on all four ports.
func (f *fork) run(args ...string) *gateway {
	f.t.Helper()
	g := run(f.t, f.Lab, append([]string{"--inside", secondInside, "--outside", secondOutside}, args...)...)
	f.t.Cleanup(func() { // before run's own, which stops it
		select {
		case <-g.Done():
			f.t.Errorf("the gateway ended by itself:\n%s", g.Output())
		default:
		}
	})
	return g
}

// ip runs an `ip` command in the gateway and returns when it began.
func (f *fork) ip(format string, args ...any) time.Time {
	f.t.Helper()
	start := time.Now()
	if err := f.Gateway.IP(fmt.Sprintf(format, args...)); err != nil {
		f.t.Fatalf("ip "+format+": %v", append(args, err)...)
	}
	return start
}

// stream starts numbered datagrams from the inside host to the service, in eight flows.
func (f *fork) stream() *lab.Stream {
	f.t.Helper()
	in := f.Inside[0]
	s, err := lab.StartStream(in.Namespace, lab.StreamOptions{Src: in.Addr, Dst: service, Flows: 8}, f.Outside[0].Namespace, f.Outside[1].Namespace)
	if err != nil {
		f.t.Fatal(err)
	}
	return s
}

// arrive waits until n of the datagrams from number first on have arrived at a receiver.
func arrive(t *testing.T, s *lab.Stream, receiver, first, n int) {
	t.Helper()
	eventually(t, 60*time.Second, func() error {
		if got := s.ArrivedSince(receiver, first); got < n {
			return fmt.Errorf("%d of %d datagrams arrived at receiver %d since number %d", got, n, receiver, first)
		}
		return nil
	})
}

// change is one event beside a stream: before it everything arrives at one receiver, after it at the other.
type change struct {
	name     string
	to       int              // receiver afterwards
	lossless bool             // a valid path existed throughout: nothing may be lost
	do       func() time.Time // makes it happen and tells when it began
}

// steps runs changes one after the other, each beside a stream of its own, and reports what each cost.
func (f *fork) steps(g *gateway, from int, changes []change) {
	f.t.Helper()
	f.stepsOf(f.stream, g, from, changes)
}

func (f *fork) stepsOf(stream func() *lab.Stream, g *gateway, from int, changes []change) {
	f.t.Helper()
	for _, c := range changes {
		s := stream()
		arrive(f.t, s, from, 0, 300)
		before := dropsOf(g)
		first := s.Sent()
		began := c.do()
		arrive(f.t, s, c.to, first, 300)
		moved := s.Sent()
		_, last := s.Arrived(from)
		tail := s.ArrivedSince(from, moved)
		arrive(f.t, s, c.to, moved, 300)
		r := s.Stop()
		if c.to != from {
			f.t.Logf("%s: %v; the last by the old way came %v after the command began", c.name, r, last.Sub(began).Round(100*time.Microsecond))
		} else {
			f.t.Logf("%s: %v", c.name, r)
		}
		if r.Lost > 0 {
			f.t.Logf("%s: lost %v; drops %v", c.name, r.Losses, dropsOf(g).since(before))
		}
		if c.lossless && r.Lost > 0 {
			f.t.Errorf("%s: %d datagrams lost (%v) though there was a way all the time; drops %v", c.name, r.Lost, r.Losses, dropsOf(g).since(before))
		}
		for _, run := range r.Losses {
			if run[1] < first || run[0] >= moved {
				f.t.Errorf("%s: datagrams %v were lost away from the change, which began at %d and was followed at %d; drops %v", c.name, run, first, moved, dropsOf(g).since(before))
			}
		}
		if r.Doubled > 0 {
			f.t.Errorf("%s: %d datagrams came twice", c.name, r.Doubled)
		}
		if c.to != from && tail > 0 {
			f.t.Errorf("%s: %d datagrams took the old way after the new one was in use", c.name, tail)
		}
		from = c.to
	}
}

// reasons are the drop counters that are not zero.
type reasons map[string]uint64

func dropsOf(g *gateway) reasons {
	list, err := g.Drops(g.t.Context())
	if err != nil {
		g.t.Errorf("show drops: %v", err)
	}
	m := reasons{}
	for _, d := range list {
		if d.Count > 0 {
			m[d.Name] = d.Count
		}
	}
	return m
}

func (r reasons) since(before reasons) reasons {
	m := reasons{}
	for name, n := range r {
		if n > before[name] {
			m[name] = n - before[name]
		}
	}
	return m
}

// routing returns the worker's counters of attached next hops.
func routing(g *gateway) rtcache.Counters {
	g.t.Helper()
	w := g.workers()
	if len(w) == 0 {
		return rtcache.Counters{}
	}
	return w[0].Routing
}

// warm makes the gateway's kernel know the neighbours of both ways, so that a change is measured and not an ARP exchange.
func (f *fork) warm() {
	f.t.Helper()
	for _, a := range []string{"203.0.113.100", "203.0.113.101", "203.0.114.100"} {
		eventually(f.t, 60*time.Second, func() error {
			p, err := lab.Ping(limited(f.t, 10*time.Second), f.Gateway, netip.IPv4Unspecified(), netip.MustParseAddr(a), lab.PingOptions{Timeout: 500 * time.Millisecond})
			if err == nil && len(p.RTT) != 1 {
				err = fmt.Errorf("the gateway does not reach %s", a)
			}
			return err
		})
	}
}

func TestRouteChanges(t *testing.T) {
	f := newFork(t)
	f.warm()
	f.ip("route add 198.51.100.0/24 via 203.0.113.100")
	g := f.run()
	ip := func(format string, args ...any) func() time.Time {
		return func() time.Time { return f.ip(format, args...) }
	}
	f.steps(g, 0, []change{
		{"route replaced by another next hop of the port", 1, true, ip("route replace 198.51.100.0/24 via 203.0.113.101")},
		{"route replaced by one by another port", 1, true, ip("route replace 198.51.100.0/24 via 203.0.114.100")},
		{"and back", 0, true, ip("route replace 198.51.100.0/24 via 203.0.113.100")},
		{"more specific route", 1, true, ip("route add 198.51.100.7/32 via 203.0.114.100")},
		{"more specific route withdrawn", 0, true, ip("route del 198.51.100.7/32")},
	})
	c := routing(g)
	if c.RouteChanged == 0 || c.Hits < 10*c.RouteChanged {
		t.Errorf("routes changed under %d packets of a few flows: %+v", c.Hits, c)
	}
}

// A port goes down, comes up again, and is deleted, while a worse route stands by the other port. The kernel stops a device
// before it takes its routes out and tells anybody, and on a busy machine much can lie between: what it is given meanwhile
// is lost to its own forwarding too.
func TestDeviceDownUpAndDeleted(t *testing.T) {
	f := newFork(t)
	f.warm()
	f.ip("route add 198.51.100.0/24 via 203.0.113.100 metric 20")
	f.ip("route add 198.51.100.0/24 via 203.0.114.100 metric 10")
	g := f.run()
	f.steps(g, 1, []change{
		{"device down", 0, false, func() time.Time { return f.ip("link set %s down", secondOutside) }},
		{"device up again", 0, true, func() time.Time {
			began := f.ip("link set %s up", secondOutside)
			f.warm() // for up to a second the kernel sends nothing by a device that has just got its carrier
			return began
		}},
		{"its route added again", 1, true, func() time.Time { return f.ip("route add 198.51.100.0/24 via 203.0.114.100 metric 10") }},
		{"device deleted", 0, false, func() time.Time { return f.ip("link del %s", secondOutside) }},
		{"afterwards", 0, true, time.Now},
	})
	if err := g.WaitFor("the interface was deleted", 5*time.Second); err != nil {
		t.Error(err)
	}
	ports, err := g.Ports(t.Context())
	if err != nil || len(ports) != 4 {
		t.Fatalf("show ports: %v, %+v", err, ports)
	}
	for _, p := range ports {
		if p.Up != (p.Name != secondOutside) {
			t.Errorf("show ports says of %s that up is %v", p.Name, p.Up)
		}
	}
	// A gateway that has nothing to do sleeps, the dead socket notwithstanding.
	idle := g.workers()[0]
	eventually(t, 30*time.Second, func() error {
		if w := g.workers()[0]; w.Sleeps < idle.Sleeps+10 {
			return fmt.Errorf("%d sleeps, %d polls since", w.Sleeps-idle.Sleeps, w.Polls-idle.Polls)
		}
		return nil
	})
}

// A router's address moves to another machine, which says so.
func TestNeighbourMovesWithAnnouncement(t *testing.T) {
	f := newFork(t)
	router := netip.MustParsePrefix("203.0.113.50/24")
	if err := f.Outside[0].AddAddress("eth0", router); err != nil {
		t.Fatal(err)
	}
	f.ip("route add 198.51.100.0/24 via 203.0.113.50")
	g := f.run()
	s := f.stream() // until the kernel has resolved it
	arrive(t, s, 0, 0, 10)
	s.Stop()
	move := func(from, to int) func() time.Time {
		return func() time.Time {
			began := time.Now()
			mac := macOf(t, f.Outside[to])
			frame := make([]byte, rtcache.AnnouncementLen)
			rtcache.Announcement(frame, mac, packet.AddrFrom(router.Addr()))
			if err := errors.Join(f.Outside[from].DelAddress("eth0", router), f.Outside[to].AddAddress("eth0", router),
				f.Outside[to].Send("eth0", frame)); err != nil {
				t.Fatal(err)
			}
			return began
		}
	}
	f.steps(g, 0, []change{
		{"router moved, announced", 1, true, move(0, 1)},
		{"moved back, announced", 0, true, move(1, 0)},
	})
	if c := routing(g); c.RouteChanged > 0 {
		t.Errorf("a changed MAC address made flows look their route up again: %+v", c)
	}
}

// A router dies and another machine takes its address without a word: the kernel, which keeps next hops fresh for pollux,
// has to find out.
func TestNeighbourMovesSilently(t *testing.T) {
	f := newFork(t)
	router := netip.MustParsePrefix("203.0.113.50/24")
	if err := f.Outside[0].AddAddress("eth0", router); err != nil {
		t.Fatal(err)
	}
	for name, value := range map[string]string{"interval_probe_time_ms": "500", "retrans_time_ms": "100", "base_reachable_time_ms": "1000", "delay_first_probe_time": "1"} {
		if err := f.Gateway.Sysctl("net.ipv4.neigh.eth0."+name, value); err != nil {
			t.Logf("%s: %v", name, err)
		}
	}
	f.ip("route add 198.51.100.0/24 via 203.0.113.50")
	g := f.run()
	f.steps(g, 0, []change{{"router died, another took its address silently", 1, false, func() time.Time {
		began := time.Now()
		// The dead one still has the service's address, so what goes to its MAC must not arrive: its device goes down.
		if err := errors.Join(f.Outside[0].IP("link set eth0 down"), f.Outside[1].AddAddress("eth0", router)); err != nil {
			t.Fatal(err)
		}
		return began
	}}})
}

func macOf(t *testing.T, h *lab.Host) (mac [6]byte) {
	t.Helper()
	link, err := h.Netlink().LinkByName(h.Device)
	if err != nil {
		t.Fatal(err)
	}
	copy(mac[:], link.Attrs().HardwareAddr)
	return mac
}

// The inside host moves to its other cable, with the address it had: an asymmetric path until the gateway's own route to it
// moves too.
func TestIngressChanges(t *testing.T) {
	for _, mode := range []string{"strict", "loose", "off"} {
		t.Run(mode, func(t *testing.T) {
			f := newFork(t)
			f.warm()
			f.ip("route add 198.51.100.0/24 via 203.0.113.100")
			g := f.run("--routing-reverse-path", mode)
			s := f.stream()
			arrive(t, s, 0, 0, 300)
			first := s.Sent()
			if err := f.Inside[0].IP("route replace default via 10.0.1.1 dev eth9"); err != nil {
				t.Fatal(err)
			}
			if mode == "strict" {
				eventually(t, 60*time.Second, func() error {
					if n := g.drops("reverse-path"); n < 300 {
						return fmt.Errorf("%d packets by the wrong port were refused", n)
					}
					return nil
				})
				f.ip("route add 10.0.0.2/32 dev %s", secondInside)
			}
			second := s.Sent()
			arrive(t, s, 0, second, 300)
			refused := g.drops("reverse-path")
			c := routing(g)
			r := s.Stop()
			t.Logf("ingress changed, reverse path %s: %v; %d refused; next hops %+v", mode, r, refused, c)
			switch {
			case mode != "strict" && (r.Lost > 0 || refused > 0):
				t.Errorf("%d lost %v, %d refused; drops %v", r.Lost, r.Losses, refused, dropsOf(g))
			case mode == "strict" && uint64(r.Lost) != g.drops("reverse-path"):
				t.Errorf("%d lost %v, but %d refused; drops %v", r.Lost, r.Losses, g.drops("reverse-path"), dropsOf(g))
			}
			for _, run := range r.Losses {
				if run[0] < first {
					t.Errorf("lost before the ingress changed: %v", run)
				}
			}
			if c.IngressChanged == 0 {
				t.Errorf("no packet came by another port than the one before: %+v", c)
			}
		})
	}
}

// One of two equal paths is lost: its flows move, the others stay where they are.
func TestMultipathMemberLost(t *testing.T) {
	for _, c := range []struct {
		name     string
		lossless bool
		lose     string
	}{
		{"taken out of the route", true, "route replace 198.51.100.0/24 via 203.0.113.100"},
		{"its device goes down", false, "link set " + secondOutside + " down"},
	} {
		t.Run(c.name, func(t *testing.T) {
			f := newFork(t)
			f.warm()
			f.ip("route add 198.51.100.0/24 nexthop via 203.0.113.100 nexthop via 203.0.114.100")
			g := f.run()
			in := f.Inside[0]
			s, err := lab.StartStream(in.Namespace, lab.StreamOptions{Src: in.Addr, Dst: service, Flows: 32}, f.Outside[0].Namespace, f.Outside[1].Namespace)
			if err != nil {
				t.Fatal(err)
			}
			arrive(t, s, 0, 0, 200)
			arrive(t, s, 1, 0, 200)
			first := s.Sent()
			f.ip("%s", c.lose)
			time.Sleep(50 * time.Millisecond) // what was under way
			second := s.Sent()
			arrive(t, s, 0, second, 600)
			took := s.Receivers(0)
			r := s.Stop()
			t.Logf("%s: %v", c.name, r)
			if c.lossless && r.Lost > 0 {
				t.Errorf("lost %v; drops %v", r.Losses, dropsOf(g))
			}
			home := map[int]int8{} // where each flow went before
			for seq, by := range took {
				flow := seq % 32
				switch was, known := home[flow]; {
				case by < 0:
				case seq < first && !known:
					home[flow] = by
				case seq < first && by != was:
					t.Fatalf("datagram %d of flow %d took another way than those before", seq, flow)
				case was == 0 && by != 0:
					t.Fatalf("datagram %d of flow %d, whose path was not lost, went elsewhere", seq, flow)
				}
			}
			for _, run := range r.Losses {
				for seq := run[0]; seq <= run[1]; seq++ {
					if home[seq%32] == 0 {
						t.Errorf("datagram %d of flow %d, whose path was not lost, is lost", seq, seq%32)
					}
				}
			}
		})
	}
}

// The kernel takes an IPv4 route out as a whole, and without a word, when the device of one of its paths is deleted: a less
// specific route takes over.
func TestMultipathDeviceDeleted(t *testing.T) {
	f := newFork(t)
	f.warm()
	f.ip("route add 198.51.0.0/16 via 203.0.113.100")
	f.ip("route add 198.51.100.0/24 nexthop via 203.0.113.101 nexthop via 203.0.114.100")
	g := f.run()
	f.steps(g, 1, []change{
		{"device of a multipath member deleted", 0, false, func() time.Time { return f.ip("link del %s", secondOutside) }},
		{"afterwards", 0, true, time.Now},
	})
}

// Many route changes a second, some of them around the flows' own destination, beside a stream.
func TestRouteChurnBesideTraffic(t *testing.T) {
	f := newFork(t)
	f.warm()
	f.ip("route add 198.51.100.0/24 via 203.0.113.100")
	g := f.run()
	s := f.stream()
	arrive(t, s, 0, 0, 300)
	before := routing(g)
	rate, changes := f.churn(3 * time.Second)
	arrive(t, s, 0, s.Sent(), 100)
	c := routing(g)
	r := s.Stop()
	t.Logf("%d route changes, %.0f a second: %v; misses because a route changed %d, hits %d", changes, rate, r, c.RouteChanged-before.RouteChanged, c.Hits-before.Hits)
	if r.Lost > 0 {
		t.Errorf("lost %v; drops %v", r.Losses, dropsOf(g))
	}
	if c.Hits == before.Hits {
		t.Error("no packet found its next hop attached")
	}
}

// churn adds and withdraws routes for a time, 1000 a second if the machine can, and tells how many a second it could.
func (f *fork) churn(d time.Duration) (rate float64, changes int) {
	f.t.Helper()
	var add, del strings.Builder
	for i := range 50 {
		fmt.Fprintf(&add, "route replace 100.64.%d.0/24 via 203.0.113.%d\n", i, 100+i%2)
		fmt.Fprintf(&del, "route del 100.64.%d.0/24\n", i)
	}
	// Around the service: its /24 never changes, what lies beside and above it does.
	add.WriteString("route replace 198.51.100.128/25 via 203.0.114.100\nroute replace 198.51.0.0/16 via 203.0.114.100\n")
	del.WriteString("route del 198.51.100.128/25\nroute del 198.51.0.0/16\n")
	return f.changes(add.String()+del.String(), d)
}

// changes has `ip` make the changes of a batch again and again for a time, 1000 a second if the machine can.
func (f *fork) changes(batch string, d time.Duration) (rate float64, changes int) {
	f.t.Helper()
	per := strings.Count(batch, "\n")
	start := time.Now()
	for time.Since(start) < d {
		if err := f.Gateway.IPBatch(batch); err != nil {
			f.t.Fatal(err)
		}
		changes += per
		time.Sleep(time.Until(start.Add(time.Duration(changes) * time.Millisecond)))
	}
	return float64(changes) / time.Since(start).Seconds(), changes
}

// The cache is switched off and on under traffic.
func TestCacheSwitchedUnderTraffic(t *testing.T) {
	f := newFork(t)
	f.warm()
	f.ip("route add 198.51.100.0/24 via 203.0.113.100")
	g := f.run()
	s := f.stream()
	arrive(t, s, 0, 0, 300)
	for round := range 4 {
		word := []string{"off", "on"}[round%2]
		if out := mustRun(t, limited(t, 30*time.Second), f.Gateway, pollux(t), "rtcache", word, "--control", f.Socket()); out != word {
			t.Errorf("pollux rtcache %s says %q", word, out)
		}
		first := s.Sent()
		before := routing(g)
		arrive(t, s, 0, first, 300)
		after := routing(g)
		hits, off := after.Hits-before.Hits, after.CacheOff-before.CacheOff
		t.Logf("rtcache %s: %d hits, %d lookups because it is off, %d reverse path checks", word, hits, off, after.ReverseChecked-before.ReverseChecked)
		if word == "off" && (hits > 0 || off < 250) || word == "on" && (hits < 250 || off > 0) {
			t.Errorf("rtcache %s, yet: %+v then %+v", word, before, after)
		}
	}
	if r := s.Stop(); r.Lost > 0 {
		t.Errorf("switching lost %v; drops %v", r.Losses, dropsOf(g))
	} else {
		t.Log(r)
	}
}

// The first packets of many flows to a neighbour that nobody has talked to all arrive, and a host that is not there is
// reported as unreachable.
func TestUnresolvedNeighbour(t *testing.T) {
	f := newFork(t)
	g := f.run()
	in, out := f.Inside[0], f.Outside[0]
	echo, err := lab.ServeUDPEcho(out.Namespace, at(out.Addr, 7))
	if err != nil {
		t.Fatal(err)
	}
	defer echo.Close()
	for round := range 3 {
		f.Gateway.IP("neigh flush dev " + lab.OutsideDevice) // fails when there is none
		flows, err := lab.UDPFlows(limited(t, 30*time.Second), in.Namespace, netip.AddrPortFrom(out.Addr, 7), lab.FlowOptions{Flows: 100, Timeout: 10 * time.Second})
		if err != nil || flows.Answered != 100 {
			t.Errorf("round %d: %d of 100 first packets were answered: %v; drops %v", round, flows.Answered, err, dropsOf(g))
		}
		t.Logf("round %d: %d of 100 first packets to an unresolved neighbour answered, median %v", round, flows.Answered, flows.Median())
	}
	nobody := netip.MustParseAddr("203.0.113.99")
	start := time.Now()
	c, err := in.Dial(limited(t, 60*time.Second), "tcp4", at(nobody, 80))
	if err == nil {
		c.Close()
	}
	if !errors.Is(err, syscall.EHOSTUNREACH) {
		t.Errorf("a host that is not there: %v, want host unreachable; drops %v", err, dropsOf(g))
	}
	t.Logf("host unreachable after %v", time.Since(start).Round(10*time.Millisecond))
	if g.drops("no-neighbour") == 0 {
		t.Error("not counted as no-neighbour")
	}
}
