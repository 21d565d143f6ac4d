package integration

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"pollux/internal/lab"
)

// What route6_test.go does not have of the set of changes that IPv4 is put through.

// knowV6 makes the gateway's kernel and the inside host know the neighbours of all ways.
func (f *fork) knowV6(addresses ...string) {
	f.t.Helper()
	for _, a := range append([]string{"2001:db8:1::2"}, addresses...) {
		eventually(f.t, 60*time.Second, func() error {
			out, err := f.Gateway.Run(limited(f.t, 10*time.Second), "ping", "-6", "-n", "-c", "1", "-W", "1", a)
			if err != nil {
				return fmt.Errorf("%v: %s", err, out)
			}
			return nil
		})
	}
}

// advertisement is an unsolicited neighbour advertisement that overrides what is known (RFC 4861 4.4, 7.2.6).
func advertisement(mac [6]byte, addr netip.Addr) []byte {
	target, all := addr.As16(), netip.MustParseAddr("ff02::1").As16()
	icmp := append([]byte{136, 0, 0, 0, 0x20, 0, 0, 0}, target[:]...)
	icmp = append(append(icmp, 2, 1), mac[:]...)
	sum := uint32(58 + len(icmp))
	for _, b := range [][]byte{target[:], all[:], icmp} {
		for i := 0; i < len(b); i += 2 {
			sum += uint32(b[i])<<8 | uint32(b[i+1])
		}
	}
	for sum>>16 != 0 {
		sum = sum&0xffff + sum>>16
	}
	icmp[2], icmp[3] = byte(^sum>>8), byte(^sum)
	frame := append([]byte{0x33, 0x33, 0, 0, 0, 1}, mac[:]...)
	frame = append(frame, 0x86, 0xdd, 0x60, 0, 0, 0, 0, byte(len(icmp)), 58, 255)
	return append(append(append(frame, target[:]...), all[:]...), icmp...)
}

// A router's IPv6 address moves to another machine, which says so.
func TestIPv6NeighbourMoves(t *testing.T) {
	f, g := newForkV6(t)
	router := netip.MustParseAddr("2001:db8:2::50")
	own := func(host int, add string) error {
		h := f.Outside[host]
		return h.IP(fmt.Sprintf("-6 addr %s %v/64 dev %s nodad", add, router, h.Device))
	}
	if err := own(0, "add"); err != nil {
		t.Fatal(err)
	}
	f.ip("-6 route add 2001:db8:f::/48 via %v", router)
	f.knowV6(router.String())
	move := func(from, to int) func() time.Time {
		return func() time.Time {
			began := time.Now()
			h := f.Outside[to]
			if err := errors.Join(f.Outside[from].IP(fmt.Sprintf("-6 addr del %v/64 dev %s", router, f.Outside[from].Device)), own(to, "add"),
				h.Send(h.Device, advertisement(macOf(t, h), router))); err != nil {
				t.Fatal(err)
			}
			return began
		}
	}
	f.stepsOf(f.streamV6, g, 0, []change{
		{"IPv6 router moved, announced", 1, true, move(0, 1)},
		{"moved back, announced", 0, true, move(1, 0)},
	})
	if c := routing(g); c.RouteChanged > 0 {
		t.Errorf("a changed MAC address made flows look their route up again: %+v", c)
	}
}

// The inside host sends by its other cable.
func TestIPv6IngressChanges(t *testing.T) {
	for _, mode := range []string{"strict", "loose"} {
		t.Run(mode, func(t *testing.T) {
			f, g := newForkV6(t, "--routing-reverse-path", mode)
			in := f.Inside[0]
			f.ip("-6 addr add 2001:db8:4::1/64 dev %s nodad", secondInside)
			f.ip("-6 route add 2001:db8:f::/48 via 2001:db8:2::a")
			f.knowV6("2001:db8:2::a")
			if err := in.IP("-6 addr add 2001:db8:4::2/64 dev eth9 nodad"); err != nil {
				t.Fatal(err)
			}
			f.knowV6("2001:db8:4::2")
			s := f.streamV6()
			arrive(t, s, 0, 0, 300)
			first := s.Sent()
			if err := in.IP("-6 route replace default via 2001:db8:4::1 dev eth9"); err != nil {
				t.Fatal(err)
			}
			if mode == "strict" {
				eventually(t, 60*time.Second, func() error {
					if n := g.drops("reverse-path"); n < 300 {
						return fmt.Errorf("%d packets by the wrong port were refused", n)
					}
					return nil
				})
				f.ip("-6 route add 2001:db8:1::2/128 dev %s", secondInside)
			}
			second := s.Sent()
			arrive(t, s, 0, second, 300)
			c := routing(g)
			r := s.Stop()
			t.Logf("IPv6 ingress changed, reverse path %s: %v; %d refused; next hops %+v", mode, r, g.drops("reverse-path"), c)
			if uint64(r.Lost) != g.drops("reverse-path") || mode == "loose" && r.Lost > 0 || c.IngressChanged == 0 {
				t.Errorf("lost %v, %d refused; drops %v; %+v", r.Losses, g.drops("reverse-path"), dropsOf(g), c)
			}
			for _, run := range r.Losses {
				if run[0] < first {
					t.Errorf("lost before the ingress changed: %v", run)
				}
			}
		})
	}
}

// One of two equal IPv6 paths is taken out of its route, then put back; afterwards its device is deleted.
func TestIPv6MultipathMemberLost(t *testing.T) {
	f, g := newForkV6(t)
	f.knowV6("2001:db8:2::a", "2001:db8:3::b")
	f.ip("-6 route add 2001:db8:f::/48 nexthop via 2001:db8:2::a nexthop via 2001:db8:3::b")
	stream := func() *lab.Stream {
		s, err := lab.StartStream(f.Inside[0].Namespace, lab.StreamOptions{Src: insideV6.Addr(), Dst: serviceV6, Flows: 32}, f.Outside[0].Namespace, f.Outside[1].Namespace)
		if err != nil {
			t.Fatal(err)
		}
		arrive(t, s, 0, 0, 200)
		arrive(t, s, 1, 0, 200)
		return s
	}
	s := stream()
	f.ip("-6 route del 2001:db8:f::/48 via 2001:db8:3::b")
	time.Sleep(50 * time.Millisecond) // what was under way
	second := s.Sent()
	arrive(t, s, 0, second, 600)
	r := s.Stop()
	t.Logf("IPv6 multipath member taken out: %v", r)
	if r.Lost > 0 {
		t.Errorf("lost %v; drops %v", r.Losses, dropsOf(g))
	}
	f.ip("-6 route replace 2001:db8:f::/48 nexthop via 2001:db8:2::a nexthop via 2001:db8:3::b")
	s = stream()
	f.ip("link del %s", secondOutside)
	time.Sleep(50 * time.Millisecond)
	second = s.Sent()
	arrive(t, s, 0, second, 600)
	t.Logf("IPv6 multipath member's device deleted: %v", s.Stop())
}

// Many IPv6 route changes a second, some of them around the flows' own destination.
func TestIPv6RouteChurnBesideTraffic(t *testing.T) {
	f, g := newForkV6(t)
	f.knowV6("2001:db8:2::a", "2001:db8:2::b", "2001:db8:3::b")
	f.ip("-6 route add 2001:db8:f::/48 via 2001:db8:2::a")
	s := f.streamV6()
	arrive(t, s, 0, 0, 300)
	before := routing(g)
	var add, del strings.Builder
	for i := range 50 {
		fmt.Fprintf(&add, "route add 2001:db9:%x::/48 via 2001:db8:2::%x\n", i, 10+i%2)
		fmt.Fprintf(&del, "route del 2001:db9:%x::/48\n", i)
	}
	add.WriteString("route add 2001:db8:f:8000::/49 via 2001:db8:3::b\nroute add 2001:db8::/32 via 2001:db8:3::b\n")
	del.WriteString("route del 2001:db8:f:8000::/49\nroute del 2001:db8::/32\n")
	rate, changes := f.changes(add.String()+del.String(), 2*time.Second)
	arrive(t, s, 0, s.Sent(), 100)
	c := routing(g)
	r := s.Stop()
	t.Logf("%d IPv6 route changes, %.0f a second: %v; misses because a route changed %d, hits %d", changes, rate, r, c.RouteChanged-before.RouteChanged, c.Hits-before.Hits)
	if r.Lost > 0 || c.Hits == before.Hits {
		t.Errorf("lost %v; drops %v; %+v", r.Losses, dropsOf(g), c)
	}
}
