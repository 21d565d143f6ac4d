package rings

import (
	"net"
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"pollux/internal/packet"
)

// ownNamespace moves the test's goroutine into a network namespace of its own, without a name: it goes when the test
// ends, however it ends. Without privileges the test is skipped, or fails when POLLUX_REQUIRE_LAB=1.
func ownNamespace(t testing.TB) {
	t.Helper()
	missing := func(why string) {
		t.Helper()
		if os.Getenv("POLLUX_REQUIRE_LAB") == "1" {
			t.Fatal(why)
		}
		t.Skip(why)
	}
	if os.Geteuid() != 0 {
		missing("needs root: it makes a network namespace and AF_XDP sockets")
	}
	runtime.LockOSThread()
	home, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		t.Fatal(err)
	}
	if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
		home.Close()
		runtime.UnlockOSThread()
		missing("needs a network namespace: " + err.Error())
	}
	t.Cleanup(func() {
		if err := unix.Setns(int(home.Fd()), unix.CLONE_NEWNET); err != nil {
			t.Fatalf("back to the first namespace: %v", err) // the thread stays locked, so it ends with the test
		}
		home.Close()
		runtime.UnlockOSThread()
	})
	fd, err := unix.Socket(unix.AF_XDP, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		missing("needs AF_XDP: " + err.Error())
	}
	unix.Close(fd)
}

// veth makes a pair with the given number of queues, both ends up, and returns the indexes.
func veth(t testing.TB, a, b string, queues int) (int, int) {
	t.Helper()
	pair := &netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: a, NumRxQueues: queues, NumTxQueues: queues}, PeerName: b,
		PeerNumRxQueues: uint32(queues), PeerNumTxQueues: uint32(queues)}
	if err := netlink.LinkAdd(pair); err != nil {
		t.Fatalf("veth %s: %v", a, err)
	}
	index := func(name string) int {
		l, err := netlink.LinkByName(name)
		if err != nil {
			t.Fatal(err)
		}
		if err := netlink.LinkSetUp(l); err != nil {
			t.Fatal(err)
		}
		return l.Attrs().Index
	}
	return index(a), index(b)
}

func macOf(t testing.TB, index int) net.HardwareAddr {
	t.Helper()
	l, err := netlink.LinkByIndex(index)
	if err != nil {
		t.Fatal(err)
	}
	return l.Attrs().HardwareAddr
}

// wire is a raw socket on a netdev: it sends frames and sees those that arrive.
type wire int

func newWire(t testing.TB, index int) wire {
	t.Helper()
	const all = unix.ETH_P_ALL<<8 | unix.ETH_P_ALL>>8
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, all)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	if err := unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: all, Ifindex: index}); err != nil {
		t.Fatal(err)
	}
	unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 100000})
	return wire(fd)
}

func (w wire) send(t testing.TB, frame []byte) {
	t.Helper()
	if _, err := unix.Write(int(w), frame); err != nil {
		t.Fatal(err)
	}
}

// receive returns the next arriving (not outgoing) frame that want accepts, or nil after a second.
func (w wire) receive(want func([]byte) bool) []byte {
	b := make([]byte, 2048)
	for end := time.Now().Add(time.Second); time.Now().Before(end); {
		n, from, err := unix.Recvfrom(int(w), b, 0)
		if err != nil {
			continue
		}
		if ll, ok := from.(*unix.SockaddrLinklayer); ok && ll.Pkttype != unix.PACKET_OUTGOING && want(b[:n]) {
			return b[:n]
		}
	}
	return nil
}

// addLoopback gives the namespace's loopback device addresses and brings it up.
func addLoopback(t testing.TB, addrs ...packet.Addr) {
	t.Helper()
	lo, err := netlink.LinkByName("lo")
	if err != nil {
		t.Fatal(err)
	}
	if err := netlink.LinkSetUp(lo); err != nil {
		t.Fatal(err)
	}
	for _, a := range addrs {
		ip := net.IP(a.Netip().AsSlice())
		if err := netlink.AddrAdd(lo, &netlink.Addr{IPNet: &net.IPNet{IP: ip, Mask: net.CIDRMask(32, 32)}}); err != nil {
			t.Fatal(err)
		}
	}
}
