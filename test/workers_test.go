package integration

import (
	"fmt"
	"net"
	"net/netip"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"pollux/internal/lab"
)

// setQueues is `ethtool -L DEVICE rx N tx N` (ETHTOOL_SCHANNELS).
func setQueues(t *testing.T, n *lab.Namespace, device string, queues uint32) {
	t.Helper()
	channels := struct{ cmd, maxRX, maxTX, maxOther, maxCombined, rx, tx, other, combined uint32 }{cmd: 0x3d, rx: queues, tx: queues}
	request := struct {
		name [unix.IFNAMSIZ]byte
		data unsafe.Pointer
		_    [16]byte
	}{data: unsafe.Pointer(&channels)}
	copy(request.name[:], device)
	err := n.Do(func() error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		if _, _, no := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&request))); no != 0 {
			return no
		}
		return nil
	})
	if err != nil {
		t.Fatalf("%s: %d queues: %v", device, queues, err)
	}
}

// TestWorkersChangeByRestart: two workers carry a load, are killed, and four on as many queues take it up, then one does. The flows
// that were there go on by new links; nothing is left of the workers before, and no packet finds a queue that nobody polls.
func TestWorkersChangeByRestart(t *testing.T) {
	l := newLab(t, lab.Options{Queues: 4})
	in, out := l.Inside[0], l.Outside[0]
	server := netip.AddrPortFrom(out.Addr, 9000)
	echo, err := lab.ServeUDPEcho(out.Namespace, server.String())
	if err != nil {
		t.Fatal(err)
	}
	defer echo.Close()
	ctx := limited(t, 2*time.Minute)
	session, err := in.DialFrom(ctx, nil, "udp4", server.String()) // lives longer than any gateway
	if err != nil {
		t.Fatal(err)
	}
	defer session.Close()
	for step, n := range []int{2, 4, 1} {
		for _, end := range []struct {
			n      *lab.Namespace
			device string
		}{{l.Gateway, lab.InsideDevice}, {l.Gateway, lab.OutsideDevice}, {in.Namespace, in.Device}, {out.Namespace, out.Device}} {
			setQueues(t, end.n, end.device, uint32(n))
		}
		g := run(t, l, "--cores", fmt.Sprintf("0-%d", n-1), "--oversubscribe")
		if w := g.workers(); len(w) != n {
			t.Fatalf("%d workers, want %d", len(w), n)
		}
		stream, err := lab.StartStream(in.Namespace, lab.StreamOptions{Dst: netip.AddrPortFrom(out.Addr, 9001), Flows: 16, Rate: 2000}, out.Namespace)
		if err != nil {
			t.Fatal(err)
		}
		flows, err := lab.UDPFlows(ctx, in.Namespace, server, lab.FlowOptions{Flows: 200, PerFlow: 3, Size: 64, Timeout: 10 * time.Second, At: 50})
		if err != nil || flows.Answered != flows.Sent || flows.Wrong != 0 {
			t.Errorf("%d workers: %d of %d answered, %d wrong, %v", n, flows.Answered, flows.Sent, flows.Wrong, err)
		}
		if got := tryExchange(session.(*net.UDPConn), fmt.Sprintf("step %d", step), 10*time.Second); got != nil {
			t.Errorf("%d workers: a flow from before does not go on: %v", n, got)
		}
		eventually(t, 10*time.Second, func() error {
			links := uint64(0)
			for _, w := range g.workers() {
				links += w.Links
			}
			if links < 200 {
				return fmt.Errorf("%d links, want 200 and more", links)
			}
			return nil
		})
		if k := g.drops("no-queue"); k != 0 {
			t.Errorf("%d workers: %d packets came in by a queue that nobody polls", n, k)
		}
		g.Stop(syscall.SIGKILL, 0) // under load
		r := stream.Stop()
		if r.Sent == r.Lost {
			t.Errorf("%d workers: %v", n, r)
		}
		for _, device := range []string{lab.InsideDevice, lab.OutsideDevice} {
			if xdpAttached(t, l.Gateway, device) {
				t.Errorf("the XDP program of %d workers is still on %s", n, device)
			}
		}
	}
}
