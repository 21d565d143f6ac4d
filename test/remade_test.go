package integration

import (
	"errors"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"pollux/internal/control"
	"pollux/internal/lab"
	"pollux/pmd"
)

// lay makes a device of the gateway again, with its cable, as a VPN or a container that restarts does; first under the name as.
func (f *fork) lay(device, as string) {
	f.t.Helper()
	var err error
	switch prefix := netip.MustParsePrefix; device {
	case secondOutside:
		err = errors.Join(lab.Cable(f.Gateway, as, prefix("203.0.114.1/24"), f.Outside[1].Namespace, "eth5", netip.MustParseAddr("203.0.114.100")),
			f.Outside[1].Sysctl("net.ipv4.conf.eth5.rp_filter", "0"))
	case secondInside:
		err = lab.Cable(f.Gateway, as, prefix("10.0.1.1/24"), f.Inside[0].Namespace, "eth9", netip.MustParseAddr("10.0.1.2"))
	}
	if err != nil {
		f.t.Fatal(err)
	}
}

// inUse waits until show ports says that a device is up with another number than before.
func (f *fork) inUse(g *gateway, device string, was int) (now int) {
	f.t.Helper()
	eventually(f.t, 60*time.Second, func() error {
		ports, err := g.Ports(f.t.Context())
		for _, p := range ports {
			if p.Name == device && p.Up && p.IfIndex != 0 && p.IfIndex != was {
				now = p.IfIndex
				return nil
			}
		}
		return fmt.Errorf("%v %+v", err, ports)
	})
	return now
}

// An outside device is deleted and made again, twice over, the second time under another name first; the flows by the other
// device lose nothing by it, and come back to this one when its route does.
func TestDeviceMadeAgain(t *testing.T) {
	f := newFork(t)
	f.warm()
	f.ip("route add 198.51.100.0/24 via 203.0.113.100 metric 20")
	f.ip("route add 198.51.100.0/24 via 203.0.114.100 metric 10")
	g := f.run()
	index := f.inUse(g, secondOutside, 0)
	s := f.stream()
	arrive(t, s, 1, 0, 300)
	s.Stop()
	before, sent := len(g.links(control.Filter{})), f.port(g, secondOutside).TX
	for round := range 2 {
		f.steps(g, 1, []change{
			{"device deleted", 0, false, func() time.Time { return f.ip("link del %s", secondOutside) }},
			{"made again, with its route", 1, true, func() time.Time {
				began := time.Now()
				if round == 1 { // as container tools do: made under another name, then renamed
					f.lay(secondOutside, "tmp0")
					f.ip("link set tmp0 down")
					f.ip("link set tmp0 name %s", secondOutside)
					f.ip("link set %s up", secondOutside)
				} else {
					f.lay(secondOutside, secondOutside)
				}
				index = f.inUse(g, secondOutside, index)
				f.warm() // the kernel's own sending by a device that has just got its carrier
				f.ip("route add 198.51.100.0/24 via 203.0.114.100 metric 10")
				return began
			}},
		})
	}
	if after := len(g.links(control.Filter{})); after < before {
		t.Errorf("%d links before, %d after", before, after)
	}
	if p := f.port(g, secondOutside); p.TX < sent+600 || p.XDP != "native" {
		t.Errorf("the port does not count on: %d packets sent before, now %+v", sent, p)
	}
}

// port is what show ports says of one.
func (f *fork) port(g *gateway, name string) (s pmd.PortStats) {
	f.t.Helper()
	ports, err := g.Ports(f.t.Context())
	if err != nil {
		f.t.Fatal(err)
	}
	for _, p := range ports {
		if p.Name == name {
			s = p
		}
	}
	return s
}

// The device is the only way. What is sent while there is none is lost; what is sent once it is in use again is not.
func TestOnlyDeviceMadeAgain(t *testing.T) {
	f := newFork(t)
	f.warm()
	f.ip("route add 198.51.100.0/24 via 203.0.114.100")
	g := f.run()
	index := f.inUse(g, secondOutside, 0)
	s := f.stream()
	arrive(t, s, 1, 0, 300)
	first := s.Sent()
	f.ip("link del %s", secondOutside)
	f.lay(secondOutside, secondOutside)
	f.ip("route add 198.51.100.0/24 via 203.0.114.100")
	routed := s.Sent()
	f.inUse(g, secondOutside, index)
	f.warm() // for up to a second the kernel sends nothing by a device that has just got its carrier: no ARP request either
	second := s.Sent()
	arrive(t, s, 1, second, 300)
	r := s.Stop()
	t.Logf("%v; lost %v: deleted after %d, routed again after %d, neighbours known after %d", r, r.Losses, first, routed, second)
	for _, run := range r.Losses {
		if run[0] < first || run[1] >= second {
			t.Errorf("lost %v; drops %v", run, dropsOf(g))
		}
	}
}

// An inside device is deleted and made again: the flows of the host behind it go on, translated as before.
func TestInsideDeviceMadeAgain(t *testing.T) {
	f := newFork(t)
	f.warm()
	f.ip("route add 198.51.100.0/24 via 203.0.113.100")
	g := f.run("--routing-reverse-path", "off")
	index := f.inUse(g, secondInside, 0)
	src := netip.MustParseAddr("10.0.1.2")
	stream := func() *lab.Stream {
		s, err := lab.StartStream(f.Inside[0].Namespace, lab.StreamOptions{Src: src, Dst: service, Flows: 8}, f.Outside[0].Namespace)
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	leave := func() {
		if err := f.Inside[0].IP("route replace 198.51.100.0/24 via 10.0.1.1 dev eth9"); err != nil {
			t.Fatal(err)
		}
	}
	leave()
	s := stream()
	arrive(t, s, 0, 0, 100)
	s.Stop()
	links := len(g.links(control.Filter{}))
	f.ip("link del %s", secondInside)
	f.lay(secondInside, secondInside)
	f.inUse(g, secondInside, index)
	leave()
	s = stream()
	arrive(t, s, 0, 0, 300)
	if r := s.Stop(); r.Lost > 0 {
		t.Errorf("lost %v; drops %v", r.Losses, dropsOf(g))
	}
	if now := len(g.links(control.Filter{})); now < links {
		t.Errorf("%d links before, %d after", links, now)
	}
}

// A device that can't be used is refused with the reason, and taken into use once it can.
func TestDeviceMadeAgainUnfit(t *testing.T) {
	f := newFork(t)
	f.ip("route add 198.51.100.0/24 via 203.0.113.100")
	g := f.run()
	index := f.inUse(g, secondOutside, 0)
	f.ip("link del %s", secondOutside)
	f.ip("link add name %s mtu 9000 type veth peer name far0 mtu 9000", secondOutside)
	f.ip("link set %s up", secondOutside)
	if err := g.WaitFor("an MTU of 9000 is too large", 30*time.Second); err != nil {
		t.Error(err)
	}
	f.ip("link set far0 mtu 1500 up")
	f.ip("link set %s mtu 1500", secondOutside)
	f.inUse(g, secondOutside, index)
}
