package lab

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os/exec"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/vishvananda/netlink"

	netlab "pollux/internal/lab"
)

// FIFO priorities on the gateway's core. The generator has none unless asked: threads that a worker waits for now and then
// (the Go runtime's) live on its core.
const (
	napiPriority   = 10
	workerPriority = 11
)

const (
	readyWithin = 20 * time.Second
	stopWithin  = 10 * time.Second
	commandTime = 10 * time.Second
)

// sources is where generated packets come from: not on a link, so that one neighbour answers for them all.
var sources = netip.MustParsePrefix("10.0.0.0/8")

// PeerNames lists what can be compared, in the order of the report.
func PeerNames() []string { return []string{"pollux", "l2fwd", "kernel", "nft", "iptables"} }

// describe says what a peer is.
func describe(name string) string {
	switch name {
	case "pollux":
		return "pollux run, one worker"
	case "l2fwd":
		return "pollux perf l2fwd: AF_XDP forwarding without NAT"
	case "kernel":
		return "kernel forwarding without NAT"
	case "nft":
		return "kernel forwarding, nftables masquerade"
	case "iptables":
		return "kernel forwarding, iptables MASQUERADE"
	}
	return ""
}

// translates reports whether a peer is a NAT.
func translates(name string) bool { return name == "pollux" || name == "nft" || name == "iptables" }

// afxdp reports whether a peer is a process of ours.
func afxdp(name string) bool { return name == "pollux" || name == "l2fwd" }

// peer is one gateway with its namespaces.
type peer struct {
	name     string
	net      *netlab.Lab
	args     []string // more of pollux's
	process  *netlab.Process
	threads  []int // NAPI's
	dst      net.HardwareAddr
	priority int           // of the generator
	quiet    time.Duration // how long nothing may arrive before a run is over, if longer than drain
	offset   uint32        // of the next unused source address, for flows that must be new
}

// newPeer builds a peer's namespaces and starts it.
func newPeer(name string, o *Options) (*peer, error) {
	n, err := netlab.New(netlab.Options{})
	if err != nil {
		return nil, err
	}
	p := &peer{name: name, net: n, priority: o.GeneratorPriority}
	if err := p.setUp(o); err != nil {
		p.close()
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	return p, nil
}

func (p *peer) setUp(o *Options) error {
	inside, outside, gw := p.net.Inside[0], p.net.Outside[0], p.net.Gateway
	for _, h := range []*netlab.Host{inside, outside} {
		if err := errors.Join(setOffload(h.Namespace, h.Device, offloadTX, false), setOffload(h.Namespace, h.Device, offloadGRO, false)); err != nil {
			return err
		}
	}
	if err := p.neighbours(); err != nil {
		return err
	}
	if err := addRoute(gw, sources, inside.Addr); err != nil {
		return err
	}
	if !translates(p.name) { // answers must find their way to addresses that nobody translated
		if err := addRoute(outside.Namespace, sources, netlab.GatewayOutside); err != nil {
			return err
		}
	}
	for _, dev := range []string{netlab.InsideDevice, netlab.OutsideDevice} {
		if err := errors.Join(gw.Sysctl("net.ipv4.conf."+dev+".rp_filter", "0"), setOffload(gw, dev, offloadGRO, true)); err != nil {
			return err
		}
		threads, err := napiThreads(gw, dev)
		if err != nil {
			return err
		}
		p.threads = append(p.threads, threads...)
	}
	for _, t := range p.threads {
		if err := place(t, o.GatewayCore, napiPriority); err != nil {
			return err
		}
	}
	return p.start(o)
}

// neighbours makes everybody know everybody for good: what is measured is forwarding.
func (p *peer) neighbours() error {
	inside, outside, gw := p.net.Inside[0], p.net.Outside[0], p.net.Gateway
	insideMAC, err := macOf(inside.Namespace, inside.Device)
	if err != nil {
		return err
	}
	outsideMAC, err := macOf(outside.Namespace, outside.Device)
	if err != nil {
		return err
	}
	if p.dst, err = macOf(gw, netlab.InsideDevice); err != nil {
		return err
	}
	gwOutside, err := macOf(gw, netlab.OutsideDevice)
	if err != nil {
		return err
	}
	return errors.Join(
		setNeighbour(gw, netlab.InsideDevice, inside.Addr, insideMAC),
		setNeighbour(gw, netlab.OutsideDevice, outside.Addr, outsideMAC),
		setNeighbour(inside.Namespace, inside.Device, netlab.GatewayInside, p.dst),
		setNeighbour(outside.Namespace, outside.Device, netlab.GatewayOutside, gwOutside),
	)
}

func macOf(n *netlab.Namespace, device string) (net.HardwareAddr, error) {
	link, err := n.Netlink().LinkByName(device)
	if err != nil {
		return nil, fmt.Errorf("device %s in %s: %w", device, n.Name, err)
	}
	return link.Attrs().HardwareAddr, nil
}

func setNeighbour(n *netlab.Namespace, device string, addr netip.Addr, mac net.HardwareAddr) error {
	link, err := n.Netlink().LinkByName(device)
	if err != nil {
		return fmt.Errorf("device %s in %s: %w", device, n.Name, err)
	}
	return n.Netlink().NeighSet(&netlink.Neigh{LinkIndex: link.Attrs().Index, State: netlink.NUD_PERMANENT, IP: addr.AsSlice(), HardwareAddr: mac})
}

func addRoute(n *netlab.Namespace, to netip.Prefix, by netip.Addr) error {
	r := &netlink.Route{Gw: by.AsSlice(), Dst: &net.IPNet{IP: to.Addr().AsSlice(), Mask: net.CIDRMask(to.Bits(), to.Addr().BitLen())}}
	if err := n.Netlink().RouteAdd(r); err != nil {
		return fmt.Errorf("route %v via %v in %s: %w", to, by, n.Name, err)
	}
	return nil
}

// start makes the gateway forward, in its own way.
func (p *peer) start(o *Options) error {
	gw := p.net.Gateway
	core := strconv.Itoa(o.GatewayCore)
	common := []string{"--idle", "adaptive", "--rt-priority", strconv.Itoa(workerPriority), "--inside", netlab.InsideDevice, "--outside", netlab.OutsideDevice}
	var args []string
	switch p.name {
	case "pollux":
		args = append([]string{"run", "--control", p.net.Socket(), "--alias", netlab.GatewayOutside.String(), "--cores", core, "--queues", "0",
			"--nat-mapping-udp", "endpoint-dependent", "--limits-links", strconv.Itoa(o.Links), "--limits-memory", "start"}, append(common, p.args...)...)
	case "l2fwd":
		insideMAC, err := macOf(p.net.Inside[0].Namespace, p.net.Inside[0].Device)
		if err != nil {
			return err
		}
		outsideMAC, err := macOf(p.net.Outside[0].Namespace, p.net.Outside[0].Device)
		if err != nil {
			return err
		}
		args = append([]string{"perf", "l2fwd", "--core", core, "--inside-next-hop", insideMAC.String(), "--outside-next-hop", outsideMAC.String()}, common...)
	default:
		return p.startKernel()
	}
	// The process may use the generator's core too: only its worker is confined to the gateway's.
	cores := fmt.Sprintf("%d,%d", o.GeneratorCore, o.GatewayCore)
	var err error
	p.process, err = gw.Start("taskset", append([]string{"-c", cores, o.Binary}, args...)...)
	if err != nil {
		return err
	}
	return p.process.WaitFor("ready", readyWithin)
}

func (p *peer) startKernel() error {
	gw := p.net.Gateway
	if err := gw.Sysctl("net.ipv4.ip_forward", "1"); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), commandTime)
	defer cancel()
	var err error
	switch p.name {
	case "nft":
		_, err = gw.Run(ctx, "nft", "table ip nat { chain post { type nat hook postrouting priority srcnat; oifname "+netlab.OutsideDevice+" masquerade; }; }")
	case "iptables":
		_, err = gw.Run(ctx, iptables(), "-t", "nat", "-A", "POSTROUTING", "-o", netlab.OutsideDevice, "-j", "MASQUERADE")
	}
	return err
}

// iptables is the command over the kernel's own iptables, not the one that writes nftables rules.
func iptables() string {
	if _, err := exec.LookPath("iptables-legacy"); err == nil {
		return "iptables-legacy"
	}
	return "iptables"
}

// alive fails when the peer's process has ended: figures of a dead gateway are none.
func (p *peer) alive() error {
	if p.process == nil {
		return nil
	}
	select {
	case <-p.process.Done():
		return fmt.Errorf("%s ended in the middle: %s", p.name, strings.TrimSpace(p.process.Output()))
	default:
		return nil
	}
}

// forget makes a kernel peer forget its flows.
func (p *peer) forget() error {
	if afxdp(p.name) || !translates(p.name) {
		return nil
	}
	return p.net.Gateway.Netlink().ConntrackTableFlush(netlink.ConntrackTable)
}

// busy is the processor time that the gateway has used so far.
func (p *peer) busy() time.Duration {
	var processes []int
	if p.process != nil {
		processes = []int{p.process.PID()}
	}
	return cpuTime(p.threads, processes)
}

// sessionBytes is what pollux's process holds resident, all of it, divided by the links that it has made room for.
func (p *peer) sessionBytes(o *Options) float64 {
	if p.name != "pollux" {
		return 0
	}
	n, err := resident(p.process.PID())
	if err != nil {
		return 0
	}
	return float64(n) / float64(o.Links)
}

func (p *peer) close() error {
	var err error
	if p.process != nil {
		select {
		case <-p.process.Done():
		default:
			err = p.process.Stop(syscall.SIGTERM, stopWithin)
		}
	}
	p.net.Close()
	return err
}
