package integration

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"pollux/internal/lab"
)

// option sets or gets an integer option of a socket.
func option(t *testing.T, c syscall.Conn, f func(fd int) error) {
	t.Helper()
	raw, err := c.SyscallConn()
	if err == nil {
		var inner error
		err = errors.Join(raw.Control(func(fd uintptr) { inner = f(int(fd)) }), inner)
	}
	if err != nil {
		t.Fatal(err)
	}
}

// reassembled reads how many datagrams a host has put together from fragments.
func reassembled(t *testing.T, h *lab.Host) (n int) {
	t.Helper()
	out := mustRun(t, limited(t, 10*time.Second), h.Namespace, "cat", "/proc/net/snmp")
	var names []string
	for line := range strings.Lines(out) {
		f := strings.Fields(line)
		if f[0] != "Ip:" {
			continue
		}
		if names == nil {
			names = f
			continue
		}
		for i, name := range names {
			if name == "ReasmOKs" {
				fmt.Sscan(f[i], &n)
			}
		}
	}
	return n
}

// A route with a smaller MTU than the links: what may be split is, and what may not is answered with that MTU.
func TestRouteMTU(t *testing.T) {
	f := newFork(t)
	f.warm()
	in, out := f.Inside[0], f.Outside[0]
	f.ip("route add 198.51.100.0/24 via 203.0.113.100 mtu 1300")
	g := f.run()
	echo, err := lab.ServeUDPEcho(out.Namespace, service.String())
	if err != nil {
		t.Fatal(err)
	}
	defer echo.Close()
	dial := func(discover int) *net.UDPConn {
		t.Helper()
		c, err := in.Dial(limited(t, 10*time.Second), "udp4", service.String())
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		u := c.(*net.UDPConn)
		option(t, u, func(fd int) error { return unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, discover) })
		return u
	}
	text := strings.Repeat("0123456789", 140) // 1428 bytes of IP
	before := reassembled(t, out)
	if err := tryExchange(dial(unix.IP_PMTUDISC_DONT), text, 20*time.Second); err != nil {
		t.Errorf("without DF: %v; drops %v", err, dropsOf(g))
	}
	if n := reassembled(t, out); n != before+1 || g.drops("mtu-exceeded") != 0 {
		t.Errorf("without DF: %d datagrams were split, %d answered, want one split", n-before, g.drops("mtu-exceeded"))
	}
	c := dial(unix.IP_PMTUDISC_DO)
	eventually(t, 30*time.Second, func() error {
		_, err := c.Write([]byte(text))
		if !errors.Is(err, syscall.EMSGSIZE) {
			return fmt.Errorf("with DF: %v, want message too long; %d answered", err, g.drops("mtu-exceeded"))
		}
		return nil
	})
	option(t, c, func(fd int) error {
		mtu, err := unix.GetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_MTU)
		if mtu != 1300 {
			t.Errorf("the inside host learned a path MTU of %d, want 1300", mtu)
		}
		return err
	})
	if err := tryExchange(dial(unix.IP_PMTUDISC_DO), text[:1300-28], 20*time.Second); err != nil {
		t.Errorf("what just fits: %v; drops %v", err, dropsOf(g))
	}
}

// mss_clamp reaches both ends of a connection.
func TestMSSClamp(t *testing.T) {
	f := newFork(t)
	in, out := f.Inside[0], f.Outside[0]
	f.run("--nat-mss-clamp", "1200")
	got := make(chan int, 1)
	mss := func(c net.Conn) (n int) {
		option(t, c.(*net.TCPConn), func(fd int) (err error) {
			n, err = unix.GetsockoptInt(fd, unix.IPPROTO_TCP, unix.TCP_MAXSEG)
			return err
		})
		return n
	}
	server, err := lab.ServeTCP(out.Namespace, at(out.Addr, 80), func(c net.Conn) { got <- mss(c) })
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	c, err := in.Dial(limited(t, 30*time.Second), "tcp4", at(out.Addr, 80))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	// What the kernel tells is the clamped size, or that less the 12 bytes of timestamps.
	for who, n := range map[string]int{"client": mss(c), "server": <-got} {
		if n != 1200 && n != 1188 {
			t.Errorf("the %s sends segments of up to %d, want 1200", who, n)
		}
	}
}

// Time exceeded comes from the gateway's address on the port that the packet came in by, and to the outside from the
// public address that was written to.
func TestTimeExceededSources(t *testing.T) {
	public := netip.MustParseAddr("203.0.113.9")
	f := newFork(t)
	in, out := f.Inside[0], f.Outside[0]
	f.run("--nat-redirect-addr", fmt.Sprintf("%s=%s", public, in.Addr))
	first := func(h *lab.Host, src, dst netip.Addr) netip.Addr {
		t.Helper()
		hops, err := lab.Trace(limited(t, 60*time.Second), h.Namespace, src, dst, lab.TraceOptions{HopsMax: 1, Timeout: 10 * time.Second})
		if err != nil || len(hops) == 0 {
			t.Fatalf("trace from %s to %s: %v", src, dst, err)
		}
		return hops[0].Addr
	}
	if got := first(in, in.Addr, out.Addr); got != lab.GatewayInside {
		t.Errorf("to the inside: from %s, want %s", got, lab.GatewayInside)
	}
	if got := first(out, out.Addr, public); got != public {
		t.Errorf("to the outside: from %s, want %s", got, public)
	}
	if err := in.IP("route replace default via 10.0.1.1 dev eth9"); err != nil {
		t.Fatal(err)
	}
	if got, want := first(in, netip.MustParseAddr("10.0.1.2"), out.Addr), netip.MustParseAddr("10.0.1.1"); got != want {
		t.Errorf("by the second inside port: from %s, want %s", got, want)
	}
}
