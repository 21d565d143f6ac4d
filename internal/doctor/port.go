package doctor

import (
	"errors"
	"fmt"
	"net"
	"slices"
	"strconv"
	"strings"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// mtuMax is the largest IP packet that fits one 4 KiB buffer next to the kernel's XDP head- and tailroom.
const mtuMax = 3498

// ours is how the names of pollux's own XDP programs begin.
const ours = "pollux"

func itoa(n int) string { return strconv.Itoa(n) }

// port checks one device. After a failure that makes the rest meaningless it stops.
func port(p Port, o Options, sys sysfs, cards map[string]card) []Result {
	link, err := netlink.LinkByName(p.Name)
	var absent netlink.LinkNotFoundError
	if errors.As(err, &absent) {
		return []Result{fail("device", "`ip -br link` lists those there are", "no network device %s", p.Name).on(p.Name)}
	}
	if err != nil {
		return []Result{fail("device", "", "can't look at it: %v", err).on(p.Name)}
	}
	if r := kind(link); r.Level == Fail {
		return []Result{r.on(p.Name)}
	}
	et, err := openEthtool()
	if err != nil {
		return []Result{fail("device", "", "no socket to ask its driver: %v", err).on(p.Name)}
	}
	defer et.close()
	results := []Result{
		driver(link, o, et),
		otherProgram(link),
		queues(link, o, et, cards[p.Name]),
		ringSizes(link, o, et),
		mtu(link),
		carrier(link),
		napiCore(link, o, sys),
		node(p.Name, o, sys),
	}
	results = append(results, spreading(p, o, cards)...)
	results = append(results, interrupts(p.Name, o, sys, func(queue int) int {
		n, _ := napiOf(link.Attrs().Index, queue)
		return n.irq
	})...)
	results = append(results, offloads(link, et)...)
	for i := range results {
		results[i] = results[i].on(p.Name)
	}
	return results
}

// wayOut says by kind of device why pollux refuses it and what to use instead.
var wayOut = map[string]string{
	"bond":      "use one of its member devices, unbonded, or let the switch balance over several pollux ports",
	"team":      "use one of its member devices, out of the team",
	"bridge":    "use the device behind it and give that one the address: ip link set DEV nomaster",
	"vlan":      "use its parent device and have the switch send that VLAN untagged",
	"ppp":       "let a modem or router in front dial in and hand pollux an Ethernet port",
	"wireguard": "let the kernel route (and, if need be, translate) the tunnel's traffic; give pollux the Ethernet device",
	"tun":       "let the kernel route the tunnel's traffic; give pollux the Ethernet device",
	"macvlan":   "use its parent device",
	"ipvlan":    "use its parent device",
	"vxlan":     "let the kernel or another machine end the tunnel and hand pollux an Ethernet device",
	"loopback":  "use an Ethernet device",
}

// kind refuses devices that have no XDP, or none that sees the packets pollux must see.
func kind(link netlink.Link) Result {
	a := link.Attrs()
	k := link.Type()
	switch {
	case k == "tuntap" || k == "tun":
		k = "tun"
	case a.EncapType == "ppp":
		k = "ppp"
	case a.Flags&net.FlagLoopback != 0:
		k = "loopback"
	case k == "macvtap":
		k = "macvlan"
	case k == "ipvtap":
		k = "ipvlan"
	}
	if mend, refused := wayOut[k]; refused {
		name := map[string]string{"vlan": "VLAN device", "ppp": "PPP device", "wireguard": "WireGuard device", "tun": "tun device"}[k]
		if name == "" {
			name = k + " device"
		}
		return fail("device", mend, "%s is a %s, which AF_XDP can't serve", a.Name, name)
	}
	if a.EncapType != "ether" && a.EncapType != "" {
		return fail("device", "use an Ethernet device", "%s is no Ethernet device but %s", a.Name, a.EncapType)
	}
	if a.MasterIndex != 0 {
		master, err := netlink.LinkByIndex(a.MasterIndex)
		if err == nil && slices.Contains([]string{"bridge", "bond", "team"}, master.Type()) {
			return fail("device", fmt.Sprintf("ip link set %s nomaster", a.Name), "%s is a port of %s %s: XDP would take its packets before that sees them", a.Name, master.Type(), master.Attrs().Name)
		}
	}
	return ok("device", "Ethernet")
}

func driver(link netlink.Link, o Options, et ethtool) Result {
	a := link.Attrs()
	name := et.driver(a.Name)
	if name == "" {
		name = link.Type()
	}
	features, known := xdpFeatures(a.Index)
	switch {
	case !known:
		return ok("driver", "%s (this kernel does not tell which XDP features it has)", name)
	case features&xdpBasic == 0 || features&xdpRedirect == 0:
		if o.ZeroCopy {
			return fail("driver", "mode: auto, or a NIC whose driver has it", "%s has no native XDP, so no zero-copy", name)
		}
		return warn("driver", "use a NIC with native XDP", "%s has no native XDP: the generic one is slower than the kernel's own NAT", name)
	case features&xdpZeroCopy == 0 && o.ZeroCopy:
		return fail("driver", "mode: auto, or a NIC whose driver has it", "%s has no zero-copy AF_XDP", name)
	case features&xdpZeroCopy == 0:
		return ok("driver", "%s: native XDP, packets are copied", name)
	}
	return ok("driver", "%s: native XDP, zero-copy", name)
}

func otherProgram(link netlink.Link) Result {
	x := link.Attrs().Xdp
	if x == nil || !x.Attached {
		return ok("XDP program", "none attached")
	}
	name := "unknown"
	if prog, err := ebpf.NewProgramFromID(ebpf.ProgramID(x.ProgId)); err == nil {
		if info, err := prog.Info(); err == nil {
			name = info.Name
		}
		prog.Close()
	}
	if strings.HasPrefix(name, ours) {
		return warn("XDP program", "stop that one first if this one is to start", "a pollux already runs on it (program %d)", x.ProgId)
	}
	return fail("XDP program", fmt.Sprintf("stop what uses it, or: ip link set %s xdp off", link.Attrs().Name),
		"another XDP program is attached (%s, id %d)", name, x.ProgId)
}

func queues(link netlink.Link, o Options, et ethtool, c card) Result {
	a := link.Attrs()
	now, most := et.rxQueues(a.Name)
	if now == 0 {
		now = max(a.NumRxQueues, 1)
		most = now
	}
	for _, q := range o.Queues {
		if q >= now {
			mend := "choose lower ones"
			if q < most {
				mend = fmt.Sprintf("ethtool -L %s combined %d", a.Name, q+1)
			}
			return fail("queues", mend, "queue %d is missing: it has %d (0 to %d)", q, now, now-1)
		}
	}
	var bare []int
	used := c.state.Shares()
	for q := range now {
		if !slices.Contains(o.Queues, q) && (c.err != nil || used[q] > 0) {
			bare = append(bare, q)
		}
	}
	if len(bare) > 0 {
		return warn("queues", fmt.Sprintf("ethtool -L %s combined %d", a.Name, len(o.Queues)),
			"queues %s have no worker: what the NIC puts there for the NAT is dropped (no-queue)", list(bare))
	}
	return ok("queues", "%d, all that receive have a worker", now)
}

func ringSizes(link netlink.Link, o Options, et ethtool) Result {
	name := link.Attrs().Name
	r, known := et.rings(name)
	if !known {
		return ok("ring sizes", "none to set")
	}
	want := uint32(o.RingSize)
	if r.rx < min(want, r.maxRX) || r.tx < min(want, r.maxTX) {
		return warn("ring sizes", fmt.Sprintf("ethtool -G %s rx %d tx %d", name, min(want, r.maxRX), min(want, r.maxTX)),
			"rx %d of %d, tx %d of %d: a worker that is away for 0.2 ms would lose packets", r.rx, r.maxRX, r.tx, r.maxTX)
	}
	return ok("ring sizes", "rx %d, tx %d", r.rx, r.tx)
}

func mtu(link netlink.Link) Result {
	a := link.Attrs()
	if a.MTU > mtuMax {
		return fail("MTU", fmt.Sprintf("ip link set %s mtu %d", a.Name, min(mtuMax, 1500)), "MTU %d is above the %d that fit one buffer", a.MTU, mtuMax)
	}
	return ok("MTU", "%d", a.MTU)
}

func carrier(link netlink.Link) Result {
	a := link.Attrs()
	if a.Flags&net.FlagUp == 0 {
		return fail("link", fmt.Sprintf("ip link set %s up", a.Name), "down")
	}
	if a.OperState == netlink.OperDown || a.OperState == netlink.OperLowerLayerDown {
		return warn("link", "plug the cable in, or bring the other end up", "no carrier: pollux starts and waits for it")
	}
	return ok("link", "up")
}

// offloads looks at those that change what XDP sees.
func offloads(link netlink.Link, et ethtool) []Result {
	name := link.Attrs().Name
	flags := et.flags(name)
	var results []Result
	if flags&flagLRO != 0 {
		results = append(results, warn("offloads", fmt.Sprintf("ethtool -K %s lro off", name), "LRO is on: many drivers refuse XDP then, and merged packets can't be forwarded"))
	}
	tagged := vlansOn(link.Attrs().Index)
	switch {
	case len(tagged) > 0 && flags&flagRXVLAN != 0:
		results = append(results, warn("VLAN", fmt.Sprintf("ethtool -K %s rxvlan off", name),
			"the NIC strips VLAN tags, so frames of %s look untagged to XDP and would be translated", strings.Join(tagged, ", ")))
	case len(tagged) > 0:
		results = append(results, ok("VLAN", "tagged frames (%s) go to the kernel untranslated", strings.Join(tagged, ", ")))
	default:
		results = append(results, ok("VLAN", "tagged frames go to the kernel untranslated; no VLAN device is on it"))
	}
	if len(results) == 1 {
		results = append(results, ok("offloads", "none in the way; half-made checksums of local hosts are completed"))
	}
	return results
}

func vlansOn(ifindex int) []string {
	links, err := netlink.LinkList()
	if err != nil && len(links) == 0 {
		return nil
	}
	var names []string
	for _, l := range links {
		if l.Type() == "vlan" && l.Attrs().ParentIndex == ifindex {
			names = append(names, l.Attrs().Name)
		}
	}
	return names
}

// napiCore says where packets are taken off a device that has no interrupts: in a thread, or wherever they are sent. A
// spinning worker must not share that core.
func napiCore(link netlink.Link, o Options, sys sysfs) Result {
	const check = "NAPI core"
	a := link.Attrs()
	threaded := sys.net(a.Name, "threaded")
	if link.Type() == "veth" && threaded != "1" && threaded != "2" {
		where := "a veth's NAPI runs on the core of whoever sends"
		if o.Adaptive {
			return ok(check, "%s; idle workers sleep, so that does no harm", where)
		}
		return warn(check, fmt.Sprintf("--idle adaptive, or: echo 1 > /sys/class/net/%s/threaded", a.Name), "%s: a spinning worker there starves it", where)
	}
	workers := workerCores(o)
	var found []string
	for i, q := range o.Queues {
		n, known := napiOf(a.Index, q)
		if !known || n.pid == 0 {
			continue
		}
		on := threadCores(n.pid)
		if len(on) == 0 {
			continue
		}
		found = append(found, fmt.Sprintf("queue %d: thread %d on %s", q, n.pid, list(on)))
		if i < len(workers) && !o.Adaptive && len(on) == 1 && on[0] == workers[i] {
			return warn(check, fmt.Sprintf("taskset -pc CORE %d", n.pid), "queue %d: thread %d on core %d, where its worker spins: they starve each other", q, n.pid, on[0])
		}
	}
	if len(found) == 0 {
		return ok(check, "no thread: where its interrupts are taken, if the driver tells")
	}
	return ok(check, "%s", strings.Join(found, "; "))
}

// threadCores returns the cores that a thread may run on.
func threadCores(pid int) (on []int) {
	var set unix.CPUSet
	if unix.SchedGetaffinity(pid, &set) != nil {
		return nil
	}
	for c := range len(set) * 64 {
		if set.IsSet(c) {
			on = append(on, c)
		}
	}
	return on
}
