package lab

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// netnsDir is where iproute2 looks for named namespaces, so that `ip netns exec NAME` works in a lab too.
const netnsDir = "/run/netns"

// Namespace is one network namespace with a name. All methods may be called from any goroutine.
type Namespace struct {
	Name string

	fd    netns.NsHandle
	nl    *netlink.Handle
	calls chan func() // run by the one thread that lives in the namespace as long as the Namespace does
	close sync.Once
}

// newNamespace makes a named namespace with its loopback up and IPv6 off: neighbour discovery would only blur counters.
func newNamespace(name string) (*Namespace, error) {
	type made struct {
		fd  netns.NsHandle
		err error
	}
	// netns.NewNamed moves the calling thread; a thread that is given up afterwards needs no way back.
	result := make(chan made, 1)
	go func() {
		runtime.LockOSThread()
		fd, err := netns.NewNamed(name)
		if err == nil {
			err = writeSysctl("net.ipv6.conf.all.disable_ipv6", "1")
			if errors.Is(err, os.ErrNotExist) { // a kernel without IPv6
				err = nil
			}
		}
		result <- made{fd, err}
	}()
	r := <-result
	if r.err != nil {
		return nil, fmt.Errorf("make network namespace %s: %w", name, r.err)
	}
	n := &Namespace{Name: name, fd: r.fd, calls: make(chan func())}
	ready := make(chan error)
	go n.reside(ready)
	err := <-ready
	if err == nil {
		n.nl, err = netlink.NewHandleAt(n.fd)
	}
	if err == nil {
		err = n.up("lo")
	}
	if err != nil {
		n.remove()
		return nil, fmt.Errorf("set up network namespace %s: %w", name, err)
	}
	return n, nil
}

// Here is the namespace that the process is in, for programs that the lab starts inside one. It has no name and is not
// to be removed.
func Here() (*Namespace, error) {
	fd, err := netns.Get()
	if err != nil {
		return nil, err
	}
	return &Namespace{fd: fd}, nil
}

// reside is the thread that starts the namespace's processes. The kernel sends their parent-death signal when the
// *thread* that started them ends, so it must live as long as they may.
func (n *Namespace) reside(ready chan<- error) {
	runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
	err := netns.Set(n.fd)
	ready <- err
	if err != nil {
		return
	}
	for f := range n.calls {
		f()
	}
}

// onResident runs a short f on the namespace's own long-lived thread.
func (n *Namespace) onResident(f func()) {
	done := make(chan struct{})
	n.calls <- func() {
		defer close(done)
		f()
	}
	<-done
}

// Do runs f on a thread that is inside the namespace. Sockets that f opens stay in the namespace; goroutines that f
// starts do not run there.
func (n *Namespace) Do(f func() error) error {
	result := make(chan error, 1)
	go func() {
		runtime.LockOSThread()
		home, err := netns.Get()
		if err != nil {
			result <- err
			return // still locked: the runtime ends the thread, wherever it is
		}
		defer home.Close()
		if err := netns.Set(n.fd); err != nil {
			result <- fmt.Errorf("enter namespace %s: %w", n.Name, err)
			return
		}
		defer func() {
			if netns.Set(home) == nil {
				runtime.UnlockOSThread()
			}
		}()
		result <- f()
	}()
	return <-result
}

// Listen is net.Listen inside the namespace. address must be numeric.
func (n *Namespace) Listen(network, address string) (l net.Listener, err error) {
	err = n.Do(func() error {
		l, err = net.Listen(network, address)
		return err
	})
	return l, err
}

// ListenPacket is net.ListenPacket inside the namespace. address must be numeric.
func (n *Namespace) ListenPacket(network, address string) (c net.PacketConn, err error) {
	err = n.Do(func() error {
		c, err = net.ListenPacket(network, address)
		return err
	})
	return c, err
}

// Dial connects from inside the namespace. address must be numeric.
func (n *Namespace) Dial(ctx context.Context, network, address string) (c net.Conn, err error) {
	return n.DialFrom(ctx, nil, network, address)
}

// DialFrom is Dial with a local address, nil for any.
func (n *Namespace) DialFrom(ctx context.Context, local net.Addr, network, address string) (c net.Conn, err error) {
	err = n.Do(func() error {
		d := net.Dialer{LocalAddr: local}
		c, err = d.DialContext(ctx, network, address)
		return err
	})
	return c, err
}

// Sysctl sets a network sysctl by its dotted name, for example net.ipv4.ip_forward. Devices' names must hold no dot.
func (n *Namespace) Sysctl(name, value string) error {
	return n.Do(func() error { return writeSysctl(name, value) })
}

func writeSysctl(name, value string) error {
	path := filepath.Join("/proc/sys", strings.ReplaceAll(name, ".", "/"))
	return os.WriteFile(path, []byte(value), 0)
}

// Netlink gives the rtnetlink handle of the namespace.
func (n *Namespace) Netlink() *netlink.Handle { return n.nl }

func (n *Namespace) up(device string) error {
	link, err := n.nl.LinkByName(device)
	if err != nil {
		return fmt.Errorf("device %s: %w", device, err)
	}
	return n.nl.LinkSetUp(link)
}

// remove ends the resident thread (and with it, by the parent-death signal, its processes) and unnames the namespace,
// which the kernel frees with its devices when the last process has left it.
func (n *Namespace) remove() {
	n.close.Do(func() {
		close(n.calls)
		if n.nl != nil {
			n.nl.Close()
		}
		killInside(n.fd)
		n.fd.Close()
		unname(n.Name)
	})
}

// unname removes a namespace's name; absent is fine.
func unname(name string) {
	path := filepath.Join(netnsDir, name)
	// A name can be mounted more than once when a make was interrupted half way.
	for range 4 {
		if unix.Unmount(path, unix.MNT_DETACH) != nil {
			break
		}
	}
	os.Remove(path)
}

// killInside ends every process whose network namespace is fd's. They are the lab's by construction; the calling
// process itself, whose threads may be in there too, is spared.
func killInside(fd netns.NsHandle) {
	want := fd.UniqueId()
	procs, _ := filepath.Glob("/proc/[0-9]*/ns/net")
	for _, path := range procs {
		var pid int
		if _, err := fmt.Sscanf(path, "/proc/%d/", &pid); err != nil || pid == os.Getpid() {
			continue
		}
		h, err := netns.GetFromPath(path)
		if err != nil {
			continue // gone, or a kernel thread
		}
		same := h.UniqueId() == want
		h.Close()
		if same {
			unix.Kill(pid, unix.SIGKILL)
		}
	}
}
