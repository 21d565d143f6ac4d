package integration

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"pollux/internal/control"
	"pollux/internal/lab"
)

// Fragments in both directions: ping -s 4000 and 8 kB of UDP, from inside, and from outside to published ones.
func TestLargePacketsBothWays(t *testing.T) {
	l := newLab(t, lab.Options{Routers: 1, InsideHosts: 2})
	second := l.Inside[1]
	public := netip.MustParseAddr("203.0.113.9") // of the pool, not the kernel's: ARP is answered by pollux
	run(t, l, "--nat-redirect-addr", fmt.Sprintf("%s=%s", public, second.Addr),
		"--redirect-port", fmt.Sprintf("udp,%s=%s", at(lab.GatewayOutside, 5000), at(l.Inside[0].Addr, 7)))
	sniff(t, l, lab.GatewayOutside, public)
	in, out := l.Inside[0], l.Outside[0]
	ctx := limited(t, time.Minute)

	ping := func(what string, from *lab.Host, to netip.Addr) {
		p, err := lab.Ping(ctx, from.Namespace, from.Addr, to, lab.PingOptions{Count: 5, Size: 4000})
		if err != nil || len(p.RTT) != 5 {
			t.Errorf("ping -s 4000 %s: %d of 5 answered, %v", what, len(p.RTT), err)
		}
	}
	ping("from inside", in, out.Addr)
	ping("to a published address", out, public)

	flows := func(what string, server, client *lab.Host, listen, to netip.AddrPort) {
		echo, err := lab.ServeUDPEcho(server.Namespace, listen.String())
		if err != nil {
			t.Fatal(err)
		}
		defer echo.Close()
		f, err := lab.UDPFlows(ctx, client.Namespace, to, lab.FlowOptions{Flows: 10, PerFlow: 5, Size: 8000})
		if err != nil || f.Answered != 50 {
			t.Errorf("8 kB UDP %s: %d of 50 answered, %d wrong, %v", what, f.Answered, f.Wrong, err)
		}
	}
	there := netip.AddrPortFrom(out.Addr, 7)
	flows("from inside", out, in, there, there)
	flows("to a published port", in, out, netip.AddrPortFrom(in.Addr, 7), netip.AddrPortFrom(lab.GatewayOutside, 5000))
}

func TestTracerouteShowsEveryHop(t *testing.T) {
	l := newLab(t, lab.Options{Routers: 3})
	run(t, l)
	sniff(t, l)
	in, out := l.Inside[0], l.Outside[0]
	want := "10.0.0.1 203.0.113.254 192.0.2.6 192.0.2.10 198.51.100.100"
	for _, icmp := range []bool{false, true} {
		hops, err := lab.Trace(limited(t, 20*time.Second), in.Namespace, in.Addr, out.Addr, lab.TraceOptions{ICMP: icmp})
		var path []string
		for _, h := range hops {
			path = append(path, h.Addr.String())
		}
		if got := strings.Join(path, " "); err != nil || got != want || !hops[len(hops)-1].Reached {
			t.Errorf("traceroute with ICMP %v: %s, %v, want %s", icmp, got, err, want)
		}
	}
}

// A resolver that asks a thousand questions at once gets a thousand answers.
func TestThousandQueriesAtOnce(t *testing.T) {
	l := newLab(t, lab.Options{Routers: 1})
	run(t, l)
	sniff(t, l)
	in, out := l.Inside[0], l.Outside[0]
	server := netip.AddrPortFrom(out.Addr, 53)
	echo, err := lab.ServeUDPEcho(out.Namespace, server.String())
	if err != nil {
		t.Fatal(err)
	}
	defer echo.Close()
	for round := range 3 {
		f, err := lab.UDPFlows(limited(t, 20*time.Second), in.Namespace, server, lab.FlowOptions{Flows: 1000, Size: 60})
		if err != nil || f.Answered != 1000 {
			t.Errorf("round %d: %d of 1000 answered, %d wrong, %v", round, f.Answered, f.Wrong, err)
		}
	}
}

// Two hosts that use one local port toward one server get two alias ports, and each its own answers.
func TestTwoHostsWithOneLocalPort(t *testing.T) {
	l := newLab(t, lab.Options{InsideHosts: 2})
	g := run(t, l)
	sniff(t, l)
	out := l.Outside[0]
	echo, err := lab.ServeUDPEcho(out.Namespace, at(out.Addr, 7))
	if err != nil {
		t.Fatal(err)
	}
	defer echo.Close()
	var conns []*net.UDPConn
	for _, h := range l.Inside {
		c, err := h.DialFrom(limited(t, 5*time.Second), &net.UDPAddr{IP: h.Addr.AsSlice(), Port: 5353}, "udp4", at(out.Addr, 7))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		conns = append(conns, c.(*net.UDPConn))
	}
	for i, c := range conns {
		exchange(t, c, fmt.Sprintf("host %d", i))
	}
	for i, c := range conns { // again, now that both mappings exist
		exchange(t, c, fmt.Sprintf("host %d again", i))
	}
	if seen := echo.Seen(); len(seen) != 2 || seen[netip.AddrPortFrom(lab.GatewayOutside, 5353)] != 2 {
		t.Errorf("the server saw %v, want %s and one other port, two datagrams each", seen, at(lab.GatewayOutside, 5353))
	}
	shown := g.links(control.Filter{Proto: "udp", Port: "7"})
	if len(shown) != 2 {
		t.Fatalf("show links lists %+v, want two", shown)
	}
	for _, link := range shown {
		alias, err := netip.ParseAddrPort(link.Alias)
		if err != nil || echo.Seen()[alias] != 2 || !strings.HasSuffix(link.Local, ":5353") || link.Remote != at(out.Addr, 7) || link.Packets != 4 {
			t.Errorf("show links lists %+v, which is not what the server saw", link)
		}
	}
}

// exchange sends one datagram to an echo server and wants it back.
func exchange(t *testing.T, c *net.UDPConn, text string) {
	t.Helper()
	if err := tryExchange(c, text, 2*time.Second); err != nil {
		t.Error(err)
	}
}

func tryExchange(c *net.UDPConn, text string, limit time.Duration) error {
	if _, err := c.Write([]byte(text)); err != nil {
		return fmt.Errorf("send %q: %w", text, err)
	}
	c.SetReadDeadline(time.Now().Add(limit))
	b := make([]byte, 2048)
	n, err := c.Read(b)
	if err != nil {
		return fmt.Errorf("answer to %q: %w", text, err)
	}
	if string(b[:n]) != text {
		return fmt.Errorf("sent %q, got %q", text, b[:n])
	}
	return nil
}

// With ten ports, ten flows live and the eleventh is told that it can't: refused at once, and the ten go on.
func TestPoolRunsDry(t *testing.T) {
	l := newLab(t, lab.Options{})
	g := run(t, l, "--nat-port-range", "40000-40009", "--nat-mapping-udp", "endpoint-dependent", "--nat-timeouts-udp", "2s")
	sniff(t, l)
	in, out := l.Inside[0], l.Outside[0]
	echo, err := lab.ServeUDPEcho(out.Namespace, at(out.Addr, 7))
	if err != nil {
		t.Fatal(err)
	}
	defer echo.Close()
	ctx := limited(t, time.Minute)
	dial := func() *net.UDPConn {
		c, err := in.Dial(ctx, "udp4", at(out.Addr, 7))
		if err != nil {
			t.Fatal(err)
		}
		return c.(*net.UDPConn)
	}
	for round := range 3 { // it fills to the same capacity again when the old flows have expired
		refused := g.drops("no-port")
		var flows []*net.UDPConn
		for i := range 10 {
			c := dial()
			flows = append(flows, c)
			exchange(t, c, fmt.Sprintf("round %d flow %d", round, i))
		}
		late := dial()
		start := time.Now()
		err := tryExchange(late, "one too many", 2*time.Second)
		if err == nil {
			t.Errorf("round %d: an eleventh flow got through ten ports", round)
		} else if took := time.Since(start); took > time.Second {
			t.Errorf("round %d: the eleventh flow was not refused by ICMP but timed out after %v (%v)", round, took, err)
		}
		late.Close()
		eventually(t, time.Second, func() error { // counters are published once a burst
			if g.drops("no-port") == refused {
				return errors.New("the refusal is not counted as no-port")
			}
			return nil
		})
		for i, c := range flows {
			exchange(t, c, fmt.Sprintf("round %d flow %d goes on", round, i))
			c.Close()
		}
		if round == 2 {
			break
		}
		eventually(t, 10*time.Second, func() error {
			n := uint64(0)
			for _, w := range g.workers() {
				n += w.Links
			}
			if n > 0 { // the table itself; a dump leaves out what has expired but was not swept yet
				return fmt.Errorf("%d links still take a port", n)
			}
			return nil
		})
	}
	for from := range echo.Seen() {
		if from.Port() < 40000 || from.Port() > 40009 {
			t.Errorf("a flow left from %s, outside port_range", from)
		}
	}
}
