package rtcache

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"

	"pollux/internal/packet"
)

// world is a gateway between hosts and routers, made of network namespaces without names: they vanish with the test.
//
//	left 10.0.0.2 --in-- 10.0.0.1 gateway 192.0.2.1 --outa-- 192.0.2.2 right
//	                                   198.51.100.1 --outb-- 198.51.100.2 right
type world struct {
	t                    *testing.T
	left, gateway, right space
	table                *Table
	view                 *View
}

const portIn, portA, portB = 0, 1, 2

// space is one network namespace.
type space struct {
	t  *testing.T
	fd netns.NsHandle
	nl *netlink.Handle
}

// needRoot skips a test that needs namespaces, or fails where they must be there.
func needRoot(t *testing.T) {
	t.Helper()
	if os.Geteuid() == 0 {
		return
	}
	if os.Getenv("POLLUX_REQUIRE_LAB") == "1" {
		t.Fatal("the lab is required (POLLUX_REQUIRE_LAB=1): run as root")
	}
	t.Skip("needs root for network namespaces: run it with sudo")
}

func newSpace(t *testing.T) space {
	t.Helper()
	s := space{t: t}
	err := aside(func() (err error) {
		s.fd, err = netns.New()
		return err
	})
	if err == nil {
		s.nl, err = netlink.NewHandleAt(s.fd)
	}
	if err != nil {
		t.Fatalf("make a network namespace: %v", err)
	}
	t.Cleanup(func() {
		s.nl.Close()
		s.fd.Close()
	})
	return s
}

// aside runs f on a thread that is thrown away, whatever namespace f leaves it in.
func aside(f func() error) error {
	done := make(chan error)
	go func() {
		runtime.LockOSThread()
		done <- f()
	}()
	return <-done
}

func (s space) do(f func() error) {
	s.t.Helper()
	err := aside(func() error {
		if err := netns.Set(s.fd); err != nil {
			return err
		}
		return f()
	})
	if err != nil {
		s.t.Fatal(err)
	}
}

func (s space) sysctl(name, value string) {
	s.t.Helper()
	s.do(func() error { return os.WriteFile("/proc/sys/"+name, []byte(value), 0) })
}

func (s space) must(err error) {
	s.t.Helper()
	if err != nil {
		s.t.Fatal(err)
	}
}

func (s space) link(name string) netlink.Link {
	s.t.Helper()
	l, err := s.nl.LinkByName(name)
	s.must(err)
	return l
}

// address gives a device an address and brings it up.
func (s space) address(device, prefix string) {
	s.t.Helper()
	a, err := netlink.ParseAddr(prefix)
	s.must(err)
	a.Flags = unix.IFA_F_NODAD
	s.must(s.nl.AddrAdd(s.link(device), a))
	s.must(s.nl.LinkSetUp(s.link(device)))
}

func (s space) veth(device string, peer space, name string) {
	s.t.Helper()
	v := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: device}, PeerName: name, PeerNamespace: netlink.NsFd(peer.fd)}
	s.must(s.nl.LinkAdd(v))
}

// net parses a prefix as the netlink package wants it.
func ipNet(p string) *net.IPNet {
	_, n, err := net.ParseCIDR(p)
	if err != nil {
		panic(err)
	}
	return n
}

func (s space) route(prefix, via string, prio int) *netlink.Route {
	return &netlink.Route{Dst: ipNet(prefix), Gw: net.ParseIP(via), Priority: prio}
}

func newWorld(t *testing.T) *world {
	t.Helper()
	needRoot(t)
	w := &world{t: t, left: newSpace(t), gateway: newSpace(t), right: newSpace(t)}
	g := w.gateway
	g.veth("in", w.left, "eth0")
	g.veth("outa", w.right, "eth0")
	g.veth("outb", w.right, "eth1")
	for _, a := range []struct {
		s              space
		device, prefix string
	}{
		{g, "in", "10.0.0.1/24"}, {g, "outa", "192.0.2.1/24"}, {g, "outb", "198.51.100.1/24"},
		{w.left, "eth0", "10.0.0.2/24"}, {w.right, "eth0", "192.0.2.2/24"}, {w.right, "eth1", "198.51.100.2/24"},
		{g, "in", "2001:db8:a::1/64"}, {g, "outa", "2001:db8:b::1/64"}, {w.right, "eth0", "2001:db8:b::2/64"},
		{w.left, "eth0", "2001:db8:a::2/64"},
	} {
		a.s.address(a.device, a.prefix)
	}
	g.must(g.nl.LinkSetUp(g.link("lo")))
	return w
}

// start opens the table in the gateway.
func (w *world) start(o Options) {
	w.t.Helper()
	if o.Ports == nil {
		o.Ports = []Port{{Name: "in", Inside: true}, {Name: "outa"}, {Name: "outb"}}
	}
	w.gateway.do(func() (err error) {
		w.table, err = New(o)
		return err
	})
	w.t.Cleanup(func() { w.table.Close() })
	w.view = w.table.View()
}

// eventually polls until f holds and returns how long it took.
func (w *world) eventually(what string, f func() bool) time.Duration {
	w.t.Helper()
	begun := time.Now()
	for !f() {
		if time.Since(begun) > 10*time.Second {
			w.t.Fatalf("%s: not within 10 s; warnings %q, stats %+v", what, w.table.Warnings(), w.table.Stats())
		}
		if time.Since(begun) < 5*time.Millisecond {
			runtime.Gosched() // a sleep takes a millisecond: too coarse for what is measured here
		} else {
			time.Sleep(time.Millisecond)
		}
	}
	d := time.Since(begun)
	w.t.Logf("%s: %v", what, d.Round(10*time.Microsecond))
	return d
}

// route asks as a worker does, resolving what is unresolved.
func (w *world) route(slot *[2]uint64, dst string) (*Hop, Verdict) {
	h, v := w.view.Route(slot, portIn, addr4("10.0.0.2"), addr4(dst), 7)
	if v == Unresolved {
		w.view.Want(h)
	}
	return h, v
}

func (w *world) leaves(slot *[2]uint64, dst string, port uint16) func() bool {
	return func() bool {
		h, v := w.route(slot, dst)
		return v == OK && h.Port() == port
	}
}

func (w *world) verdict(dst string, want Verdict) func() bool {
	return func() bool {
		_, v := w.route(nil, dst)
		return v == want
	}
}

func TestKernelRoutes(t *testing.T) {
	w := newWorld(t)
	g := w.gateway
	g.must(g.nl.RouteAdd(g.route("0.0.0.0/0", "192.0.2.2", 100)))
	g.must(g.nl.RouteAdd(g.route("0.0.0.0/0", "198.51.100.2", 200)))
	w.start(Options{})
	var slot [2]uint64
	const dst = "203.0.113.9"
	w.eventually("default route resolved", w.leaves(&slot, dst, portA))
	w.leaves(&slot, dst, portA)()
	w.view.C = Counters{}
	if w.leaves(&slot, dst, portA)(); w.view.C.Hits != 1 {
		t.Fatalf("counters %+v, want a hit", w.view.C)
	}

	better := g.route("0.0.0.0/0", "198.51.100.2", 50)
	g.must(g.nl.RouteAdd(better))
	w.eventually("a route with a lower metric", w.leaves(&slot, dst, portB))
	g.must(g.nl.RouteDel(better))
	w.eventually("withdrawn: back to the other", w.leaves(&slot, dst, portA))
	g.must(g.nl.RouteReplace(g.route("0.0.0.0/0", "198.51.100.2", 100)))
	w.eventually("replaced", w.leaves(&slot, dst, portB))
	g.must(g.nl.RouteReplace(g.route("0.0.0.0/0", "192.0.2.2", 100)))
	w.eventually("replaced back", w.leaves(&slot, dst, portA))

	g.must(g.nl.RouteAdd(g.route("203.0.113.0/24", "198.51.100.2", 0)))
	w.eventually("more specific", w.leaves(&slot, dst, portB))
	g.must(g.nl.RouteDel(g.route("203.0.113.0/24", "198.51.100.2", 0)))
	w.eventually("more specific withdrawn", w.leaves(&slot, dst, portA))

	for _, c := range []struct {
		kind    int
		verdict Verdict
	}{{unix.RTN_BLACKHOLE, Blackhole}, {unix.RTN_UNREACHABLE, Unreachable}, {unix.RTN_PROHIBIT, Prohibit}, {unix.RTN_THROW, NoRoute}} {
		r := &netlink.Route{Dst: ipNet("203.0.113.9/32"), Type: c.kind}
		g.must(g.nl.RouteAdd(r))
		w.eventually(fmt.Sprintf("type %d", c.kind), w.verdict(dst, c.verdict))
		g.must(g.nl.RouteDel(r))
		w.eventually("gone", w.verdict(dst, OK))
	}
	for _, own := range []string{"10.0.0.1", "192.0.2.1", "10.0.0.255", "127.0.0.1"} {
		if !w.table.Local(addr4(own)) || !w.verdict(own, Local)() {
			t.Errorf("%s is not the kernel's own", own)
		}
	}
	if w.table.Local(addr4("10.0.0.2")) {
		t.Error("a neighbour passes for local")
	}
	if inside, ok := w.table.SideOf(addr4("10.0.0.77")); !inside || !ok {
		t.Error("10.0.0.77 is not inside")
	}
	if inside, ok := w.table.SideOf(addr4(dst)); inside || !ok {
		t.Error(dst, "is not outside")
	}
	if p, ok := w.table.OnLinkPort(addr4("192.0.2.77")); !ok || p != portA {
		t.Errorf("pool address on port %d %v, want %d", p, ok, portA)
	}
	if _, ok := w.table.OnLinkPort(addr4("192.0.2.1")); ok {
		t.Error("the kernel's own address is not ours to announce")
	}
	if _, ok := w.table.OnLinkPort(addr4(dst)); ok {
		t.Error("a routed address is not on-link")
	}
	if got := w.table.Warnings(); len(got) != 0 {
		t.Errorf("warnings %q without anything special", got)
	}
}

func TestKernelOnLinkHost(t *testing.T) {
	w := newWorld(t)
	w.start(Options{})
	var slot [2]uint64
	epoch := w.table.ResolvedEpoch()
	h, v := w.route(&slot, "192.0.2.2")
	if v != Unresolved || h == nil {
		t.Fatalf("first packet to a new host: verdict %d", v)
	}
	took := w.eventually("unresolved -> resolved", w.leaves(&slot, "192.0.2.2", portA))
	if took > time.Second {
		t.Errorf("took %v", took)
	}
	if w.table.ResolvedEpoch() == epoch {
		t.Error("no word of it")
	}
	want := w.right.link("eth0").Attrs().HardwareAddr
	h, _ = w.route(&slot, "192.0.2.2")
	if mac := h.MAC(); string(mac[:]) != string(want) {
		t.Errorf("MAC %x, want %x", mac, want)
	}
	// The neighbour's MAC changes, as in the failover of a router: the hop is edited in place.
	mac := net.HardwareAddr{2, 1, 2, 3, 4, 5}
	w.right.sysctl("net/ipv4/conf/eth0/arp_notify", "1")
	w.right.must(w.right.nl.LinkSetHardwareAddr(w.right.link("eth0"), mac))
	w.eventually("announced MAC change", func() bool {
		h, v := w.route(&slot, "192.0.2.2")
		got := [6]byte{}
		if v == OK {
			got = h.MAC()
		}
		return string(got[:]) == string(mac)
	})
	if w.view.C.RouteChanged != 0 {
		t.Errorf("the flow looked up its route again: %+v", w.view.C)
	}

	if _, v := w.route(nil, "192.0.2.99"); v != Unresolved {
		t.Fatalf("nobody home: verdict %d at first", v)
	}
	begun := time.Now()
	w.eventually("nobody home: failed", w.verdict("192.0.2.99", Failed))
	if d := time.Since(begun); d < 2*time.Second {
		t.Errorf("failed after %v, want about 3 s", d)
	}
	// Somebody comes home: it is asked again while there is demand.
	w.right.address("eth0", "192.0.2.99/24")
	w.eventually("somebody came home", w.leaves(nil, "192.0.2.99", portA))
}

// A router changes its MAC without a word: the kernel's probes fail, everybody is asked, traffic goes on.
func TestKernelSilentMACChange(t *testing.T) {
	w := newWorld(t)
	g := w.gateway
	for name, value := range map[string]string{
		"base_reachable_time_ms": "1000", "delay_first_probe_time": "1", "retrans_time_ms": "200", "ucast_solicit": "1", "gc_stale_time": "2",
	} {
		g.sysctl("net/ipv4/neigh/outa/"+name, value)
	}
	g.must(g.nl.RouteAdd(g.route("0.0.0.0/0", "192.0.2.2", 0)))
	w.start(Options{})
	var slot [2]uint64
	w.eventually("resolved", w.leaves(&slot, "203.0.113.9", portA))
	mac := net.HardwareAddr{2, 1, 2, 3, 4, 6}
	w.right.must(w.right.nl.LinkSetHardwareAddr(w.right.link("eth0"), mac))
	w.eventually("silent MAC change", func() bool {
		h, v := w.route(&slot, "203.0.113.9")
		if v == Failed {
			t.Fatal("the hop failed although the router is there")
		}
		if v != OK {
			return false
		}
		got := h.MAC()
		return string(got[:]) == string(mac)
	})
}

func TestKernelDeviceDown(t *testing.T) {
	w := newWorld(t)
	g := w.gateway
	g.must(g.nl.RouteAdd(g.route("0.0.0.0/0", "192.0.2.2", 100)))
	g.must(g.nl.RouteAdd(g.route("0.0.0.0/0", "198.51.100.2", 200)))
	w.start(Options{})
	var slot [2]uint64
	const dst = "203.0.113.9"
	w.eventually("resolved", w.leaves(&slot, dst, portA))
	hop, _ := w.route(&slot, dst)

	g.must(g.nl.LinkSetDown(g.link("outa")))
	w.eventually("down: the other router takes over", w.leaves(&slot, dst, portB))
	if s := hop.state.Load() & stateLow; s != hopDead {
		t.Errorf("the hop by the port that is down is in state %d", s)
	}
	w.eventually("its own subnet is gone: by the default route", w.leaves(nil, "192.0.2.2", portB))
	if w.table.Ports()[portA].Up {
		t.Error("the port passes for up")
	}
	g.must(g.nl.LinkSetUp(g.link("outa")))
	w.eventually("up: its subnet is back", w.leaves(nil, "192.0.2.2", portA))
	if own := packet.AddrFrom(netip.MustParseAddr("192.0.2.1")); !w.table.Local(own) { // kept while down, and not announced again
		t.Error("the port's own address is not known as the kernel's any more")
	}
	g.must(g.nl.RouteAdd(g.route("0.0.0.0/0", "192.0.2.2", 100)))
	w.eventually("and its default route", w.leaves(&slot, dst, portA))

	g.must(g.nl.LinkDel(g.link("outa")))
	w.eventually("deleted: the other router takes over", w.leaves(&slot, dst, portB))
	g.must(g.nl.LinkDel(g.link("outb")))
	w.eventually("nothing left", w.verdict(dst, NoRoute))
}

func TestKernelMultipath(t *testing.T) {
	w := newWorld(t)
	g := w.gateway
	r := &netlink.Route{Dst: ipNet("0.0.0.0/0"), MultiPath: []*netlink.NexthopInfo{
		{LinkIndex: g.link("outa").Attrs().Index, Gw: net.ParseIP("192.0.2.2"), Hops: 2},
		{LinkIndex: g.link("outb").Attrs().Index, Gw: net.ParseIP("198.51.100.2"), Hops: 0},
	}}
	g.must(g.nl.RouteAdd(r))
	w.start(Options{})
	share := func(want uint16) int {
		n := 0
		for i := range 4000 {
			if h, v := w.view.Route(nil, portIn, addr4("10.0.0.2"), addr4("203.0.113.9"), uint32(i)*0x9e3779b9); v == OK && h.Port() == want {
				n++
			}
		}
		return n
	}
	w.eventually("both members resolved", func() bool { return share(portA)+share(portB) == 4000 })
	if a := share(portA); a < 2800 || a > 3200 {
		t.Errorf("%d of 4000 flows by the member of weight 3 of 4", a)
	}
	// A member is lost: its flows move, those of the other stay.
	var moved, stays [2]uint64
	var hashMoved, hashStays uint32
	for i := uint32(0); hashMoved == 0 || hashStays == 0; i++ {
		hash := (i + 1) * 0x9e3779b9
		h, _ := w.view.Route(nil, portIn, addr4("10.0.0.2"), addr4("203.0.113.9"), hash)
		if h.Port() == portA {
			hashMoved = hash
		} else {
			hashStays = hash
		}
	}
	route := func(slot *[2]uint64, hash uint32) uint16 {
		h, v := w.view.Route(slot, portIn, addr4("10.0.0.2"), addr4("203.0.113.9"), hash)
		if v != OK {
			return portNone
		}
		return h.Port()
	}
	route(&moved, hashMoved)
	route(&stays, hashStays)
	g.must(g.nl.LinkSetDown(g.link("outa")))
	w.eventually("member lost", func() bool { return route(&moved, hashMoved) == portB })
	if p := route(&stays, hashStays); p != portB {
		t.Errorf("the other member's flow goes by %d", p)
	}
	if n := share(portB); n != 4000 {
		t.Errorf("%d of 4000 by the member that is left", n)
	}
	g.must(g.nl.LinkSetUp(g.link("outa")))
	w.eventually("member back", func() bool { return share(portA) > 2800 })
}

func TestKernelPortFollowed(t *testing.T) {
	w := newWorld(t)
	g := w.gateway
	ports := make(chan Port, 100)
	addresses := make(chan Addresses, 100)
	w.start(Options{OnPort: func(p Port) { ports <- p }, OnAddresses: func(a Addresses) { addresses <- a }})
	first := <-addresses
	if !contains(first.Local, "192.0.2.1") || !contains(first.Broadcast, "192.0.2.255") {
		t.Errorf("first addresses %+v", first)
	}
	v6 := contains(first.Local, "2001:db8:b::1")
	w.eventually("an IPv6 address, which the kernel takes its time for", func() bool {
		select {
		case a := <-addresses:
			v6 = v6 || contains(a.Local, "2001:db8:b::1")
		default:
		}
		return v6
	})
	if p := w.table.Ports()[portA]; p.Addr != addr4("192.0.2.1") || p.MTU != 1500 || !p.Up || p.Name != "outa" {
		t.Errorf("port %+v", p)
	}
	var slot [2]uint64
	w.eventually("resolved", w.leaves(&slot, "192.0.2.2", portA))
	h, _ := w.route(&slot, "192.0.2.2")

	g.must(g.nl.LinkSetMTU(g.link("outa"), 1280))
	w.eventually("MTU", func() bool { return h.MTU() == 1280 && w.table.Ports()[portA].MTU == 1280 })
	mac := net.HardwareAddr{2, 7, 7, 7, 7, 7}
	g.must(g.nl.LinkSetHardwareAddr(g.link("outa"), mac))
	w.eventually("own MAC", func() bool {
		frame := make([]byte, 12)
		h.WriteMACs(frame)
		return string(frame[6:]) == string(mac)
	})
	old, _ := netlink.ParseAddr("192.0.2.1/24")
	g.must(g.nl.AddrDel(g.link("outa"), old))
	g.address("outa", "192.0.2.33/24")
	w.eventually("address", func() bool { return w.table.Source(portA) == addr4("192.0.2.33") && w.table.Local(addr4("192.0.2.33")) })
	if w.table.Local(addr4("192.0.2.1")) {
		t.Error("the old address is still local")
	}
	w.eventually("told", func() bool {
		for {
			select {
			case a := <-addresses:
				if contains(a.Local, "192.0.2.33") && !contains(a.Local, "192.0.2.1") {
					return true
				}
			default:
				return false
			}
		}
	})
	w.eventually("told of the port", func() bool {
		for {
			select {
			case p := <-ports:
				if p.Addr == addr4("192.0.2.33") {
					return true
				}
			default:
				return false
			}
		}
	})
}

func contains(all []netip.Addr, a string) bool {
	for _, x := range all {
		if x == netip.MustParseAddr(a) {
			return true
		}
	}
	return false
}

func TestKernelRouteMTU(t *testing.T) {
	w := newWorld(t)
	g := w.gateway
	r := g.route("203.0.113.0/24", "192.0.2.2", 0)
	r.MTU = 1300
	g.must(g.nl.RouteAdd(r))
	g.must(g.nl.RouteAdd(g.route("0.0.0.0/0", "192.0.2.2", 0)))
	w.start(Options{})
	w.eventually("resolved", w.leaves(nil, "203.0.113.9", portA))
	w.eventually("resolved", w.leaves(nil, "203.0.114.9", portA))
	narrow, _ := w.route(nil, "203.0.113.9")
	wide, _ := w.route(nil, "203.0.114.9")
	if narrow.MTU() != 1300 || wide.MTU() != 1500 || narrow.MAC() != wide.MAC() {
		t.Errorf("MTU %d and %d, want 1300 and 1500 by the same router", narrow.MTU(), wide.MTU())
	}
}

func TestKernelV6(t *testing.T) {
	w := newWorld(t)
	g := w.gateway
	g.must(g.nl.RouteAdd(g.route("2001:db8:ffff::/48", "2001:db8:b::2", 0)))
	// An IPv4 route by an IPv6 router (RFC 5549).
	g.must(g.nl.RouteAdd(&netlink.Route{Dst: ipNet("203.0.113.0/24"), LinkIndex: g.link("outa").Attrs().Index,
		Via: &netlink.Via{AddrFamily: unix.AF_INET6, Addr: net.ParseIP("2001:db8:b::2")}}))
	w.start(Options{})
	src := netip.MustParseAddr("2001:db8:a::2").As16()
	var slot [2]uint64
	leaves := func(dst string, port uint16) func() bool {
		d := netip.MustParseAddr(dst).As16()
		return func() bool {
			h, v := w.view.RouteV6(&slot, portIn, &src, &d, 7)
			if v == Unresolved {
				w.view.Want(h)
			}
			return v == OK && h.Port() == port
		}
	}
	w.eventually("routed", leaves("2001:db8:ffff::1", portA))
	w.eventually("on-link", leaves("2001:db8:b::2", portA))
	w.eventually("inside", leaves("2001:db8:a::2", portIn))
	w.eventually("IPv4 by an IPv6 router", w.leaves(nil, "203.0.113.9", portA))
	for dst, want := range map[string]Verdict{"2001:db8:b::1": Local, "ff02::1": Local, "fe80::1": Local, "2001:db8:dead::1": NoRoute} {
		d := netip.MustParseAddr(dst).As16()
		if _, v := w.view.RouteV6(nil, portIn, &src, &d, 7); v != want {
			t.Errorf("%s: verdict %d, want %d", dst, v, want)
		}
	}
	spoofed := netip.MustParseAddr("2001:db8:b::77").As16()
	d := netip.MustParseAddr("2001:db8:ffff::1").As16()
	if _, v := w.view.RouteV6(nil, portIn, &spoofed, &d, 7); v != ReversePath {
		t.Errorf("outside source from inside: verdict %d", v)
	}
	g.must(g.nl.LinkSetDown(g.link("outa")))
	w.eventually("down", func() bool {
		_, v := w.view.RouteV6(&slot, portIn, &src, &d, 7)
		return v == NoRoute
	})
}

func TestKernelWarnings(t *testing.T) {
	w := newWorld(t)
	g := w.gateway
	g.must(g.nl.RouteAdd(&netlink.Route{Dst: ipNet("203.0.113.0/24"), Gw: net.ParseIP("192.0.2.2"), Tos: 16}))
	w.start(Options{})
	expect := func(text string, want bool) {
		w.eventually(text, func() bool { return strings.Contains(strings.Join(w.table.Warnings(), "\n"), text) == want })
	}
	expect("type of service", true)
	rule := netlink.NewRule()
	rule.Priority, rule.Table, rule.Src = 500, 77, ipNet("10.0.0.0/24")
	g.must(g.nl.RuleAdd(rule))
	expect("rule 500 (table 77)", true)
	g.must(g.nl.RuleDel(rule))
	expect("rule 500 (table 77)", false)
}

func TestKernelVRF(t *testing.T) {
	w := newWorld(t)
	g := w.gateway
	w.start(Options{})
	vrf := &netlink.Vrf{LinkAttrs: netlink.LinkAttrs{Name: "red"}, Table: 10}
	if err := g.nl.LinkAdd(vrf); err != nil {
		t.Logf("no VRF in this kernel, so only TestVRFRefused and TestVRFWhileRunning say what becomes of one: %v", err)
		return
	}
	g.must(g.nl.LinkSetUp(vrf))
	g.must(g.nl.LinkSetMasterByIndex(g.link("outb"), vrf.Attrs().Index))
	w.eventually("said", func() bool {
		return strings.Contains(strings.Join(w.table.Warnings(), "\n"), "port outb is enslaved to a VRF")
	})
	g.do(func() error {
		_, err := New(Options{Ports: []Port{{Name: "outb"}}})
		if err == nil || !strings.Contains(err.Error(), "VRF") {
			return fmt.Errorf("a port in a VRF was taken: %v", err)
		}
		return nil
	})
}

// 1000 route changes a second, as from a router with a full table, beside flows that they do not concern: those never look
// anything up again.
func TestKernelChurn(t *testing.T) {
	w := newWorld(t)
	g := w.gateway
	g.must(g.nl.RouteAdd(g.route("0.0.0.0/0", "192.0.2.2", 0)))
	w.start(Options{})
	const flows = 256
	var slots [flows][2]uint64
	dst := func(i int) packet.Addr { return packet.Addr(203<<24 | i<<16 | 9) }
	w.eventually("resolved", w.leaves(nil, "203.0.113.9", portA))
	for range 2 {
		for i := range slots {
			w.view.Route(&slots[i], portIn, addr4("10.0.0.2"), dst(i), 1)
		}
	}
	w.view.C = Counters{}
	done := make(chan error)
	const changes = 1000
	var took time.Duration
	go func() {
		var err error
		begun := time.Now()
		for i := range changes {
			r := g.route(fmt.Sprintf("100.%d.%d.0/24", i%200, i%7), "198.51.100.2", 0)
			if err == nil && i/200%2 == 0 {
				err = g.nl.RouteReplace(r)
			} else if err == nil {
				r.Dst = ipNet(fmt.Sprintf("100.%d.%d.0/24", (i-200)%200, (i-200)%7))
				err = g.nl.RouteDel(r)
			}
			time.Sleep(time.Until(begun.Add(time.Duration(i) * time.Millisecond)))
		}
		took = time.Since(begun)
		done <- err
	}()
	packets, other := uint64(0), 0
	for running := true; running; {
		select {
		case err := <-done:
			g.must(err)
			running = false
		default:
			for i := range slots {
				if h, v := w.view.Route(&slots[i], portIn, addr4("10.0.0.2"), dst(i), 1); v != OK || h.Port() != portA {
					other++
				}
			}
			packets += flows
			runtime.Gosched()
		}
	}
	s := w.table.Stats()
	t.Logf("%d packets beside %d changes in %v; %+v, %+v", packets, changes, took.Round(time.Millisecond), w.view.C, s)
	// The sweep clears usedBit once in 30 s: at most one lookup each.
	if other != 0 || w.view.C.Hits < packets-flows || w.view.C.RouteChanged != 0 {
		t.Errorf("%d packets went another way, counters %+v for %d packets", other, w.view.C, packets)
	}
	if s.Published < changes/50 { // several changes may share one
		t.Errorf("%d publications: the changes did not arrive", s.Published)
	}
}

// The netlink socket overruns under a flood of changes; flows whose route stands throughout never miss a packet, and the
// mirror ends up right.
func TestKernelOverrun(t *testing.T) {
	w := newWorld(t)
	g := w.gateway
	g.must(g.nl.RouteAdd(g.route("0.0.0.0/0", "192.0.2.2", 0)))
	w.start(Options{ReceiveBuffer: 4096})
	var slot [2]uint64
	const dst = "203.0.113.9"
	w.eventually("resolved", w.leaves(&slot, dst, portA))
	done := make(chan error)
	var err error
	const n = 3000
	go func() {
		w.table.mu.Lock() // the control goroutine is kept from reading, as by a busy machine
		for i := range n {
			if i == n/2 {
				w.table.mu.Unlock()
			}
			r := &netlink.Route{Dst: &net.IPNet{IP: net.IPv4(100, 64, byte(i>>8), byte(i)), Mask: net.CIDRMask(32, 32)}, Gw: net.ParseIP("198.51.100.2")}
			if err == nil {
				err = g.nl.RouteAdd(r)
			}
		}
		done <- err
	}()
	packets, gaps := 0, 0
	for running := true; running; {
		select {
		case err := <-done:
			g.must(err)
			running = false
		default:
			packets++
			if !w.leaves(&slot, dst, portA)() || !w.leaves(nil, dst, portA)() {
				gaps++
			}
			runtime.Gosched()
		}
	}
	w.eventually("all routes are there", func() bool {
		for i := range n {
			a := packet.Addr(100<<24 | 64<<16 | i)
			if h, v := w.view.Route(nil, portIn, addr4("10.0.0.2"), a, 1); v != OK || h.Port() != portB {
				return false
			}
		}
		return true
	})
	s := w.table.Stats()
	t.Logf("%d packets, %d gaps, %+v", packets, gaps, s)
	if gaps != 0 {
		t.Errorf("%d of %d packets found no next hop", gaps, packets)
	}
	if s.Overruns == 0 {
		t.Error("there was no overrun: the test did not test")
	}
}
