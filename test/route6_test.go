package integration

import (
	"fmt"
	"net/netip"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"

	"pollux/internal/lab"
)

var (
	insideV6  = netip.MustParsePrefix("2001:db8:1::2/64")
	serviceV6 = netip.MustParseAddrPort("[2001:db8:f::7]:9000")
)

// newForkV6 is the fork with IPv6 on all its cables, and pollux forwarding it. Nothing of it is translated.
func newForkV6(t *testing.T, args ...string) (*fork, *gateway) {
	f := newFork(t)
	in, a, b := f.Inside[0], f.Outside[0], f.Outside[1]
	for _, n := range []*lab.Namespace{f.Gateway, in.Namespace, a.Namespace, b.Namespace} {
		for _, set := range []string{"all.disable_ipv6=0", "default.disable_ipv6=0", "all.accept_dad=0", "default.accept_dad=0", "all.accept_ra=0"} {
			name, value, _ := strings.Cut(set, "=")
			if err := n.Sysctl("net.ipv6.conf."+name, value); err != nil {
				if os.Getenv("POLLUX_REQUIRE_LAB") == "1" {
					t.Fatalf("no IPv6 here, and POLLUX_REQUIRE_LAB=1: %v", err)
				}
				t.Skipf("no IPv6 here: %v", err)
			}
		}
	}
	address := func(n *lab.Namespace, device, prefix string) {
		t.Helper()
		if err := n.IP(fmt.Sprintf("-6 addr add %s dev %s nodad", prefix, device)); err != nil {
			t.Fatal(err)
		}
	}
	address(f.Gateway, lab.InsideDevice, "2001:db8:1::1/64")
	address(f.Gateway, lab.OutsideDevice, "2001:db8:2::1/64")
	address(f.Gateway, secondOutside, "2001:db8:3::1/64")
	address(in.Namespace, in.Device, insideV6.String())
	address(a.Namespace, a.Device, "2001:db8:2::a/64")
	address(b.Namespace, b.Device, "2001:db8:2::b/64")
	address(b.Namespace, "eth5", "2001:db8:3::b/64")
	for _, h := range f.Outside {
		address(h.Namespace, "lo", serviceV6.Addr().String()+"/128")
	}
	for _, c := range []struct {
		n       *lab.Namespace
		command string
	}{
		{in.Namespace, "-6 route add default via 2001:db8:1::1"},
		{a.Namespace, "-6 route add 2001:db8:1::/64 via 2001:db8:2::1"},
		{b.Namespace, "-6 route add 2001:db8:1::/64 via 2001:db8:2::1"},
	} {
		if err := c.n.IP(c.command); err != nil {
			t.Fatal(err)
		}
	}
	g := f.run(append([]string{"--routing-ipv6", "forward"}, args...)...)
	return f, g
}

func (f *fork) streamV6() *lab.Stream {
	f.t.Helper()
	s, err := lab.StartStream(f.Inside[0].Namespace, lab.StreamOptions{Src: insideV6.Addr(), Dst: serviceV6, Flows: 8}, f.Outside[0].Namespace, f.Outside[1].Namespace)
	if err != nil {
		f.t.Fatal(err)
	}
	return s
}

// ping6 runs ping -6 from the inside host.
func (f *fork) ping6(args ...string) string {
	n := f.Inside[0].Namespace
	out, _ := n.Run(limited(f.t, 60*time.Second), "ping", append([]string{"-6", "-n"}, args...)...)
	return out
}

// IPv6 is forwarded with whole checksums: ping, TCP both ways, hop limit, MTU, no route; the gateway's own addresses are its
// kernel's.
func TestIPv6Forwarded(t *testing.T) {
	f, g := newForkV6(t)
	in, out := f.Inside[0], f.Outside[0]
	if s := f.ping6("-c", "3", "-i", "0.2", "-W", "10", "2001:db8:2::a"); !strings.Contains(s, "3 received") || !strings.Contains(s, "ttl=63") {
		t.Errorf("ping of an outside host: %s; drops %v", s, dropsOf(g))
	}
	if s := f.ping6("-c", "3", "-i", "0.2", "-W", "10", "2001:db8:1::1"); !strings.Contains(s, "3 received") || !strings.Contains(s, "ttl=64") {
		t.Errorf("ping of the gateway: %s; drops %v", s, dropsOf(g))
	}
	web, err := lab.ServeFiles(out.Namespace, "[2001:db8:2::a]:80")
	if err != nil {
		t.Fatal(err)
	}
	defer web.Close()
	ctx := limited(t, 3*time.Minute)
	const size = 20 << 20
	down, err := lab.Download(ctx, in.Namespace, web.Addr.String(), size)
	if err != nil {
		t.Errorf("download: %v; drops %v", err, dropsOf(g))
	}
	up, err := lab.Upload(ctx, in.Namespace, web.Addr.String(), size)
	if err != nil {
		t.Errorf("upload: %v; drops %v", err, dropsOf(g))
	}
	t.Logf("TCP over IPv6: %.0f Mbit/s down, %.0f up", down.Mbps(), up.Mbps())
	if s := f.ping6("-c", "1", "-W", "10", "-t", "1", "2001:db8:2::a"); !strings.Contains(s, "2001:db8:1::1") || !strings.Contains(s, "Time exceeded") {
		t.Errorf("hop limit 1: %s", s)
	}
	if s := f.ping6("-c", "1", "-W", "10", "2001:db8:77::1"); !strings.Contains(s, "No route") {
		t.Errorf("no route: %s", s)
	}
	if s := f.ping6("-c", "1", "-W", "20", "2001:db8:2::dead"); !strings.Contains(s, "Address unreachable") {
		t.Errorf("a host that is not there: %s; drops %v", s, dropsOf(g))
	}
	f.ip("-6 route add 2001:db8:2::a/128 dev %s mtu 1300", lab.OutsideDevice)
	eventually(t, 60*time.Second, func() error {
		if s := f.ping6("-c", "1", "-W", "2", "-M", "do", "-s", "1400", "2001:db8:2::a"); !strings.Contains(s, "mtu = 1300") && !strings.Contains(s, "mtu: 1300") && !strings.Contains(s, "mtu=1300") {
			return fmt.Errorf("too long for the route: %s", s)
		}
		return nil
	})
	for _, name := range []string{"ttl-expired", "no-route", "no-neighbour", "mtu-exceeded"} {
		if g.drops(name) == 0 {
			t.Errorf("nothing was counted as %s: %v", name, dropsOf(g))
		}
	}
}

// The changes of IPv4 in a smaller form.
func TestIPv6RouteChanges(t *testing.T) {
	f, g := newForkV6(t)
	warm := func() {
		t.Helper()
		eventually(t, 60*time.Second, func() error { // the inside host's own neighbour discovery
			if s := f.ping6("-c", "1", "-W", "1", "2001:db8:1::1"); !strings.Contains(s, "1 received") {
				return fmt.Errorf("%s", s)
			}
			return nil
		})
		for _, a := range []string{"2001:db8:2::a", "2001:db8:2::b", "2001:db8:3::b"} {
			eventually(t, 60*time.Second, func() error {
				out, err := f.Gateway.Run(limited(t, 10*time.Second), "ping", "-6", "-n", "-c", "1", "-W", "1", a)
				if err != nil {
					return fmt.Errorf("%v: %s", err, out)
				}
				return nil
			})
		}
	}
	warm()
	f.ip("-6 route add 2001:db8:f::/48 via 2001:db8:2::a metric 100")
	ip := func(format string, args ...any) func() time.Time {
		return func() time.Time { return f.ip(format, args...) }
	}
	f.stepsOf(f.streamV6, g, 0, []change{
		{"IPv6 route replaced by another next hop of the port", 1, true, ip("-6 route replace 2001:db8:f::/48 via 2001:db8:2::b metric 100")},
		{"and back", 0, true, ip("-6 route replace 2001:db8:f::/48 via 2001:db8:2::a metric 100")},
		{"more specific route by the other port", 1, true, ip("-6 route add 2001:db8:f::7/128 via 2001:db8:3::b")},
		{"withdrawn", 0, true, ip("-6 route del 2001:db8:f::7/128 via 2001:db8:3::b")},
		{"route of a better metric by the other port", 1, true, ip("-6 route add 2001:db8:f::/48 via 2001:db8:3::b metric 50")},
		{"device down", 0, false, ip("link set %s down", secondOutside)},
		{"device up, its address and route added again", 1, true, func() time.Time {
			began := f.ip("link set %s up", secondOutside)
			f.Gateway.IP("-6 addr add 2001:db8:3::1/64 dev " + secondOutside + " nodad") // gone with the link, unless kept
			warm()
			f.ip("-6 route add 2001:db8:f::/48 via 2001:db8:3::b metric 50")
			return began
		}},
		{"device deleted", 0, false, ip("link del %s", secondOutside)},
	})
	if c := routing(g); c.Hits == 0 || c.RouteChanged == 0 {
		t.Errorf("IPv6 flows do not keep their next hops: %+v", c)
	}
	if err := g.Signal(syscall.Signal(0)); err != nil {
		t.Error(err)
	}
}
