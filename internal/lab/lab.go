// Package lab builds small networks out of network namespaces and drives real traffic through them. Demo and integration
// tests use it; it needs root and nothing but the kernel.
//
//	 inside host 0           gateway                      router 1 .. R            outside host 0
//	┌─────────────┐      ┌──────────────────┐           ┌──────────────┐          ┌────────────────┐
//	│ eth0        │ veth │ eth1        eth0 │   veth    │ eth1    eth0 │   veth   │ eth0           │
//	│ 10.0.0.2/24 ├──────┤ 10.0.0.1/24      ├───────────┤              ├──────────┤ 198.51.100.100 │
//	└─────────────┘      │     203.0.113.1/24           │ 203.0.113.254│          │ 198.51.100.150 │
//	                     └──────────────────┘           └──────────────┘          └────────────────┘
//
// Without routers the outside hosts are 203.0.113.100+i (second address .150+i) on the gateway's own outside net. Where a
// side has more than one host, they hang on a bridge in a namespace of its own ("lan", "wan"). Outside hosts and routers
// have no route to 10.0.0.0/8: what leaves the gateway untranslated gets no answer, and a Sniffer sees it.
//
// Offloads are left as the kernel sets them, so hosts send half-made checksums and large segments as containers do.
package lab

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"

	"github.com/vishvananda/netlink"
)

// Addresses and device names of every lab.
var (
	GatewayInside  = netip.MustParseAddr("10.0.0.1")
	GatewayOutside = netip.MustParseAddr("203.0.113.1") // also the usual alias address
	FirstRouter    = netip.MustParseAddr("203.0.113.254")
)

const (
	InsideDevice  = "eth1" // the gateway's inside device
	OutsideDevice = "eth0" // the gateway's outside device
	hostsMax      = 40     // per side: keeps host addresses inside their nets
	routersMax    = 8
	prefix        = "pollux-"
	keptPrefix    = prefix + "kept-"
	keptDir       = "/run/pollux-kept"
	dirPrefix     = "pollux-lab-"
)

// Options says what to build. Zero values mean: one host a side, no router, one queue, MTU 1500.
type Options struct {
	InsideHosts  int
	OutsideHosts int
	Routers      int
	Queues       int  // per gateway device
	MTU          int  // of every link
	Keep         bool // the lab outlives its maker: Close leaves it, RemoveKept takes it down
}

// Host is a machine of the lab.
type Host struct {
	*Namespace
	Device string     // the device towards the gateway
	Addr   netip.Addr // its address there
	Alt    netip.Addr // outside hosts: a second address
}

// Lab is a built network. Close it.
type Lab struct {
	Gateway *Namespace
	Inside  []*Host
	Outside []*Host
	Routers []*Host // in the order a packet from inside meets them
	Dir     string  // a directory of the lab's own, for sockets and files

	stem string
	keep bool
	all  []*Namespace
	once sync.Once
}

var labs atomic.Int32 // made by this process, for unique names

// New builds a lab. Namespaces of labs whose makers died are swept first.
func New(o Options) (*Lab, error) {
	o.InsideHosts, o.OutsideHosts = max(o.InsideHosts, 1), max(o.OutsideHosts, 1)
	o.Queues = max(o.Queues, 1)
	if o.MTU == 0 {
		o.MTU = 1500
	}
	if o.InsideHosts > hostsMax || o.OutsideHosts > hostsMax || o.Routers > routersMax {
		return nil, fmt.Errorf("lab: at most %d hosts a side and %d routers", hostsMax, routersMax)
	}
	Sweep()
	l := &Lab{keep: o.Keep, stem: fmt.Sprintf("%s%d-%d-", prefix, os.Getpid(), labs.Add(1))}
	if o.Keep {
		RemoveKept()
		l.stem = keptPrefix
	}
	if err := l.build(o); err != nil {
		l.destroy()
		return nil, err
	}
	watchSignals()
	alive.Store(l, nil)
	return l, nil
}

func (l *Lab) build(o Options) error {
	var err error
	if l.Dir, err = makeDir(o.Keep); err != nil {
		return err
	}
	if l.Gateway, err = l.namespace("gateway"); err != nil {
		return err
	}
	// Inside.
	last := cable{l.Gateway, InsideDevice}
	insideNet := netip.PrefixFrom(GatewayInside, 24)
	l.Inside, err = l.hosts("inside", "lan", o, o.InsideHosts, last, insideNet, 2)
	if err != nil {
		return err
	}
	for _, h := range l.Inside {
		if err := h.route("", GatewayInside); err != nil {
			return err
		}
	}
	// Outside: routers first, then the hosts behind the last of them.
	last = cable{l.Gateway, OutsideDevice}
	near := netip.PrefixFrom(GatewayOutside, 24)
	for i := range o.Routers {
		r := &Host{Device: "eth1", Addr: FirstRouter}
		if r.Namespace, err = l.namespace(fmt.Sprintf("router%d", i+1)); err != nil {
			return err
		}
		l.Routers = append(l.Routers, r)
		if i > 0 { // 192.0.2.4i/30 between router i and router i+1
			near = netip.PrefixFrom(netip.AddrFrom4([4]byte{192, 0, 2, byte(4*i + 1)}), 30)
			r.Addr = near.Addr().Next()
		}
		if err := join(last, cable{r.Namespace, r.Device}, near, r.Addr, o); err != nil {
			return err
		}
		if i == 0 {
			err = addRoute(l.Gateway, "", r.Addr)
		} else {
			err = errors.Join(l.Routers[i-1].route("", r.Addr), r.route("203.0.113.0/24", near.Addr()))
		}
		if err != nil {
			return err
		}
		if err := r.Sysctl("net.ipv4.ip_forward", "1"); err != nil {
			return err
		}
		// A traceroute probe must be answered by the address it would be expected from, each one of them.
		if err := r.Sysctl("net.ipv4.icmp_ratelimit", "0"); err != nil {
			return err
		}
		last = cable{r.Namespace, "eth0"}
		near = netip.MustParsePrefix("198.51.100.254/24")
	}
	if l.Outside, err = l.hosts("outside", "wan", o, o.OutsideHosts, last, near, 100); err != nil {
		return err
	}
	for _, h := range l.Outside {
		b := h.Addr.As4()
		b[3] += 50
		h.Alt = netip.AddrFrom4(b)
		if err := h.AddAddress(h.Device, netip.PrefixFrom(h.Alt, 24)); err != nil {
			return err
		}
		if err := h.Sysctl("net.ipv4.icmp_ratelimit", "0"); err != nil {
			return err
		}
		if o.Routers > 0 {
			if err := h.route("203.0.113.0/24", near.Addr()); err != nil {
				return err
			}
		}
	}
	return nil
}

// hosts makes n hosts on one net whose gateway-side device is near; host i has the address net+first+i.
func (l *Lab) hosts(role, bridge string, o Options, n int, near cable, net netip.Prefix, first int) ([]*Host, error) {
	var sw *Namespace
	if n > 1 {
		var err error
		if sw, err = l.namespace(bridge); err != nil {
			return nil, err
		}
		br := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "br0", MTU: o.MTU}}
		if err := sw.nl.LinkAdd(br); err != nil {
			return nil, fmt.Errorf("add bridge in %s: %w", sw.Name, err)
		}
		if err := sw.up("br0"); err != nil {
			return nil, err
		}
		if err := join(near, cable{sw, "up0"}, net, netip.Addr{}, o); err != nil {
			return nil, err
		}
		if err := sw.enslave("up0"); err != nil {
			return nil, err
		}
	}
	var list []*Host
	for i := range n {
		b := net.Addr().As4()
		b[3] = byte(first + i)
		h := &Host{Device: "eth0", Addr: netip.AddrFrom4(b)}
		name := role
		if i > 0 {
			name += strconv.Itoa(i)
		}
		var err error
		if h.Namespace, err = l.namespace(name); err != nil {
			return nil, err
		}
		list = append(list, h)
		if sw == nil {
			err = join(near, cable{h.Namespace, h.Device}, net, h.Addr, o)
		} else {
			port := fmt.Sprintf("port%d", i)
			if err = join(cable{sw, port}, cable{h.Namespace, h.Device}, netip.Prefix{}, netip.Addr{}, o); err == nil {
				err = errors.Join(sw.enslave(port), h.AddAddress(h.Device, netip.PrefixFrom(h.Addr, net.Bits())))
			}
		}
		if err != nil {
			return nil, err
		}
	}
	return list, nil
}

func (l *Lab) namespace(role string) (*Namespace, error) {
	n, err := newNamespace(l.stem + role)
	if err != nil {
		return nil, err
	}
	l.all = append(l.all, n)
	return n, nil
}

// cable is one end of a veth pair.
type cable struct {
	ns     *Namespace
	device string
}

// join makes a veth pair between two ends, gives the near one net's address and the far one addr, and brings both up.
func join(near, far cable, net netip.Prefix, addr netip.Addr, o Options) error {
	pair := netlink.NewVeth(netlink.LinkAttrs{
		Name: near.device, MTU: o.MTU, TxQLen: 1000,
		NumTxQueues: o.Queues, NumRxQueues: o.Queues,
		Namespace: netlink.NsFd(near.ns.fd),
	})
	pair.PeerName = far.device
	pair.PeerNamespace = netlink.NsFd(far.ns.fd)
	pair.PeerNumTxQueues, pair.PeerNumRxQueues = uint32(o.Queues), uint32(o.Queues)
	pair.PeerMTU = uint32(o.MTU)
	if err := near.ns.nl.LinkAdd(pair); err != nil {
		return fmt.Errorf("add veth %s (%s) - %s (%s): %w", near.device, near.ns.Name, far.device, far.ns.Name, err)
	}
	if net.IsValid() {
		if err := near.ns.AddAddress(near.device, net); err != nil {
			return err
		}
	}
	if addr.IsValid() {
		if err := far.ns.AddAddress(far.device, netip.PrefixFrom(addr, net.Bits())); err != nil {
			return err
		}
	}
	return errors.Join(near.ns.up(near.device), far.ns.up(far.device))
}

func (n *Namespace) enslave(device string) error {
	link, err := n.nl.LinkByName(device)
	if err != nil {
		return fmt.Errorf("device %s: %w", device, err)
	}
	bridge, err := n.nl.LinkByName("br0")
	if err != nil {
		return err
	}
	return n.nl.LinkSetMaster(link, bridge)
}

// AddAddress gives a device an address.
func (n *Namespace) AddAddress(device string, p netip.Prefix) error {
	link, err := n.nl.LinkByName(device)
	if err != nil {
		return fmt.Errorf("device %s in %s: %w", device, n.Name, err)
	}
	if err := n.nl.AddrAdd(link, &netlink.Addr{IPNet: ipNet(p)}); err != nil {
		return fmt.Errorf("add %s to %s in %s: %w", p, device, n.Name, err)
	}
	return nil
}

// DelAddress takes an address from a device.
func (n *Namespace) DelAddress(device string, p netip.Prefix) error {
	link, err := n.nl.LinkByName(device)
	if err != nil {
		return fmt.Errorf("device %s in %s: %w", device, n.Name, err)
	}
	return n.nl.AddrDel(link, &netlink.Addr{IPNet: ipNet(p)})
}

// route adds a route by a gateway; destination "" is the default route.
func (n *Namespace) route(destination string, by netip.Addr) error {
	return addRoute(n, destination, by)
}

func addRoute(n *Namespace, destination string, by netip.Addr) error {
	r := &netlink.Route{Gw: by.AsSlice()}
	if destination != "" {
		r.Dst = ipNet(netip.MustParsePrefix(destination))
	}
	if err := n.nl.RouteAdd(r); err != nil {
		return fmt.Errorf("add route %s via %s in %s: %w", destination, by, n.Name, err)
	}
	return nil
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

// Close takes the lab down: processes, namespaces, files. A kept lab is left up.
func (l *Lab) Close() {
	alive.Delete(l)
	if !l.keep {
		l.destroy()
	}
}

// Destroy takes the lab down even when it was to be kept.
func (l *Lab) Destroy() {
	alive.Delete(l)
	l.destroy()
}

func (l *Lab) destroy() {
	l.once.Do(func() {
		for _, n := range l.all {
			n.remove()
		}
		if l.Dir != "" {
			os.RemoveAll(l.Dir)
		}
	})
}

// Sweep removes what labs of dead processes left behind: a maker killed by SIGKILL can't clean up.
func Sweep() {
	for _, name := range named() {
		if orphaned(strings.TrimPrefix(name, prefix)) {
			discard(name)
		}
	}
	dirs, _ := filepath.Glob(filepath.Join(os.TempDir(), dirPrefix+"*"))
	for _, dir := range dirs {
		if orphaned(strings.TrimPrefix(filepath.Base(dir), dirPrefix)) {
			os.RemoveAll(dir)
		}
	}
}

// orphaned reports whether rest, "PID-...", names a process that is gone. What names none is not the lab's, or was kept.
func orphaned(rest string) bool {
	pid, err := strconv.Atoi(rest[:max(strings.IndexByte(rest, '-'), 0)])
	if err != nil {
		return false
	}
	_, err = os.Stat(fmt.Sprintf("/proc/%d", pid))
	return errors.Is(err, os.ErrNotExist)
}

// makeDir makes the lab's directory: in the temporary directory with the owner's pid, or at a fixed place under /run.
func makeDir(keep bool) (string, error) {
	if !keep {
		return os.MkdirTemp("", fmt.Sprintf("%s%d-", dirPrefix, os.Getpid()))
	}
	if err := os.RemoveAll(keptDir); err != nil {
		return "", err
	}
	return keptDir, os.Mkdir(keptDir, 0o700)
}

// RemoveKept takes down a lab that was kept and reports whether there was one.
func RemoveKept() bool {
	found := false
	for _, name := range named() {
		if strings.HasPrefix(name, keptPrefix) {
			discard(name)
			found = true
		}
	}
	os.RemoveAll(keptDir)
	return found
}

// named lists the lab namespaces on this machine.
func named() []string {
	paths, _ := filepath.Glob(filepath.Join(netnsDir, prefix+"*"))
	for i := range paths {
		paths[i] = filepath.Base(paths[i])
	}
	return paths
}
