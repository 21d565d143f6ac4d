package doctor_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"pollux/internal/cpu"
	"pollux/internal/doctor"
	"pollux/internal/lab"
)

var both = []doctor.Port{{Name: lab.InsideDevice, Inside: true}, {Name: lab.OutsideDevice}}

func newLab(t *testing.T, o lab.Options) *lab.Lab {
	t.Helper()
	lab.Require(t)
	l, err := lab.New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.Close)
	return l
}

// examine runs the doctor in the gateway's namespace.
func examine(t *testing.T, l *lab.Lab, o doctor.Options) (results []doctor.Result) {
	t.Helper()
	if err := l.Gateway.Do(func() error { results = doctor.Examine(o); return nil }); err != nil {
		t.Fatal(err)
	}
	return results
}

// expect finds the one result of a check on an object and compares level and words.
func expect(t *testing.T, results []doctor.Result, check, object string, level doctor.Level, words ...string) {
	t.Helper()
	for _, r := range results {
		if r.Check != check || r.Object != object {
			continue
		}
		if r.Level != level {
			t.Errorf("%s %s: %s (%s), want %s", check, object, r.Level, r, level)
		}
		for _, w := range words {
			if !strings.Contains(r.String(), w) {
				t.Errorf("%s %s says %q, which lacks %q", check, object, r, w)
			}
		}
		if strings.Contains(r.String(), "\n") {
			t.Errorf("%s %s: more than one line: %q", check, object, r)
		}
		return
	}
	t.Errorf("no result of check %q on %q in %v", check, object, results)
}

func TestHealthyLab(t *testing.T) {
	l := newLab(t, lab.Options{Queues: 2})
	results := examine(t, l, doctor.Options{Ports: both, Queues: []int{0, 1}, Cores: []int{0, 1}, Adaptive: true, PortLow: 1024, PortHigh: 65535})
	if doctor.Worst(results) == doctor.Fail {
		t.Errorf("a healthy lab fails: %v", results)
	}
	for _, dev := range []string{"eth0", "eth1"} {
		expect(t, results, "queues", dev, doctor.OK, "2")
		expect(t, results, "MTU", dev, doctor.OK, "1500")
		expect(t, results, "link", dev, doctor.OK)
		expect(t, results, "XDP program", dev, doctor.OK)
		expect(t, results, "driver", dev, doctor.OK, "veth: native XDP, packets are copied")
		expect(t, results, "NAPI core", dev, doctor.OK, "sends")
	}
	expect(t, results, "ip_forward", "", doctor.OK)
	expect(t, results, "ephemeral ports", "", doctor.OK)
	expect(t, results, "kernel", "", doctor.OK)
	expect(t, results, "privileges", "", doctor.OK)
}

func TestKernelTooOld(t *testing.T) {
	for release, level := range map[string]doctor.Level{
		"5.10.0-28-amd64": doctor.Fail, "6.0.19": doctor.Fail, "6.1.0-13-amd64": doctor.OK, "6.18.44": doctor.OK, "7.0.0": doctor.OK, "next": doctor.Warn,
	} {
		words := []string{release}
		if level == doctor.Fail {
			words = append(words, "too old", "6.1")
		}
		expect(t, doctor.Examine(doctor.Options{Release: release}), "kernel", "", level, words...)
	}
	if err := doctor.Check(doctor.Options{Release: "5.10.0"}); err == nil || !strings.Contains(err.Error(), "kernel 5.10.0 is too old") {
		t.Errorf("Check on an old kernel: %v", err)
	}
}

// Not every kernel can make these devices, so the refusal itself is tested on descriptions of them, and on real ones below.
func TestDevicesRefusedByName(t *testing.T) {
	attrs := func(name string) netlink.LinkAttrs {
		return netlink.LinkAttrs{Name: name, TxQLen: -1, EncapType: "ether"}
	}
	point := func(name, encap string) netlink.LinkAttrs { return netlink.LinkAttrs{Name: name, EncapType: encap} }
	for _, dev := range []struct {
		link  netlink.Link
		words []string
	}{
		{netlink.NewLinkBond(attrs("bond7")), []string{"bond7", "bond device", "member"}},
		{&netlink.Bridge{LinkAttrs: attrs("br7")}, []string{"br7", "bridge device", "nomaster"}},
		{&netlink.Vlan{LinkAttrs: attrs("eth1.5"), VlanId: 5}, []string{"eth1.5", "VLAN device", "parent"}},
		{&netlink.GenericLink{LinkAttrs: point("ppp0", "ppp"), LinkType: "ppp"}, []string{"ppp0", "PPP device", "modem"}},
		{&netlink.Wireguard{LinkAttrs: point("wg7", "none")}, []string{"wg7", "WireGuard device", "kernel"}},
		{&netlink.Tuntap{LinkAttrs: point("tun7", "none")}, []string{"tun7", "tun device", "kernel"}},
		{&netlink.Macvlan{LinkAttrs: attrs("mac7")}, []string{"mac7", "macvlan device", "parent"}},
		{&netlink.GenericLink{LinkAttrs: point("ib7", "infiniband"), LinkType: "ipoib"}, []string{"ib7", "no Ethernet device", "infiniband"}},
	} {
		r := doctor.Kind(dev.link)
		if r.Level != doctor.Fail {
			t.Errorf("%s passes", dev.link.Attrs().Name)
		}
		for _, w := range dev.words {
			if !strings.Contains(r.String(), w) {
				t.Errorf("%q lacks %q", r, w)
			}
		}
	}
}

func TestRealDevicesRefused(t *testing.T) {
	l := newLab(t, lab.Options{})
	br := &netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "br7"}}
	member := netlink.NewVeth(netlink.LinkAttrs{Name: "member"})
	member.PeerName = "peer"
	tun := &netlink.Tuntap{LinkAttrs: netlink.LinkAttrs{Name: "tun7"}, Mode: netlink.TUNTAP_MODE_TUN}
	err := l.Gateway.Do(func() error {
		err := errors.Join(netlink.LinkAdd(br), netlink.LinkAdd(member), netlink.LinkSetMaster(member, br))
		if netlink.LinkAdd(tun) == nil {
			t.Cleanup(func() { l.Gateway.Do(func() error { return netlink.LinkDel(tun) }) })
		} else {
			tun = nil // a kernel without tun, or no /dev/net/tun
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	one := func(name string) []doctor.Result {
		return examine(t, l, doctor.Options{Ports: []doctor.Port{{Name: name}}})
	}
	expect(t, one("br7"), "device", "br7", doctor.Fail, "bridge device")
	expect(t, one("member"), "device", "member", doctor.Fail, "port of bridge br7", "ip link set member nomaster")
	expect(t, one("lo"), "device", "lo", doctor.Fail, "loopback")
	expect(t, one("eth9"), "device", "eth9", doctor.Fail, "no network device eth9")
	if tun != nil {
		expect(t, one("tun7"), "device", "tun7", doctor.Fail, "tun device")
	}
}

func TestPortTrouble(t *testing.T) {
	l := newLab(t, lab.Options{Queues: 2, MTU: 9000})
	results := examine(t, l, doctor.Options{Ports: both, Queues: []int{2}})
	expect(t, results, "queues", "eth1", doctor.Fail, "queue 2 is missing", "0 to 1")
	expect(t, results, "MTU", "eth1", doctor.Fail, "9000", "ip link set eth1 mtu")
	expect(t, results, "NAPI core", "eth1", doctor.Warn, "adaptive")
	expect(t, examine(t, l, doctor.Options{Ports: both}), "queues", "eth1", doctor.Warn, "queues 1 have no worker", "ethtool -L eth1 combined 1")
	expect(t, examine(t, l, doctor.Options{Ports: both, ZeroCopy: true}), "driver", "eth1", doctor.Fail, "zero-copy")

	eth0, err := l.Outside[0].Netlink().LinkByName("eth0")
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Outside[0].Netlink().LinkSetDown(eth0); err != nil {
		t.Fatal(err)
	}
	eth1, err := l.Gateway.Netlink().LinkByName("eth1")
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Gateway.Netlink().LinkSetDown(eth1); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(3 * time.Second); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		if link, err := l.Gateway.Netlink().LinkByName("eth0"); err == nil && link.Attrs().OperState != netlink.OperUp {
			break // the kernel spreads the loss of carrier a moment later
		}
	}
	results = examine(t, l, doctor.Options{Ports: both})
	expect(t, results, "link", "eth0", doctor.Warn, "no carrier")
	expect(t, results, "link", "eth1", doctor.Fail, "ip link set eth1 up")
}

func TestForeignProgramIsNamed(t *testing.T) {
	l := newLab(t, lab.Options{})
	prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{Name: "somebody_else", Type: ebpf.XDP, License: "GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 2), asm.Return()}})
	if err != nil {
		t.Fatal(err)
	}
	defer prog.Close()
	eth0, err := l.Gateway.Netlink().LinkByName("eth0")
	if err != nil {
		t.Fatal(err)
	}
	err = l.Gateway.Do(func() error {
		held, err := link.AttachXDP(link.XDPOptions{Program: prog, Interface: eth0.Attrs().Index})
		if err == nil {
			t.Cleanup(func() { held.Close() })
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	expect(t, examine(t, l, doctor.Options{Ports: both}), "XDP program", "eth0", doctor.Fail, "somebody_else", "ip link set eth0 xdp off")
}

func TestForwardingAndItsGuard(t *testing.T) {
	l := newLab(t, lab.Options{})
	if err := l.Gateway.Sysctl("net.ipv4.ip_forward", "1"); err != nil {
		t.Fatal(err)
	}
	results := examine(t, l, doctor.Options{Ports: both})
	expect(t, results, "ip_forward", "", doctor.Warn, "untranslated", "nft ", `"eth1"`, `"eth0"`)
	var mend string
	for _, r := range results {
		if r.Check == "ip_forward" {
			mend = r.Mend
		}
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()

	// The printed command is run as it stands, and must keep a private source in.
	in, out := l.Inside[0], l.Outside[0]
	leaked := func(wait time.Duration) uint64 {
		s, err := lab.Sniff(out.Namespace, out.Device, lab.GatewayOutside)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := lab.Ping(ctx, in.Namespace, in.Addr, out.Addr, lab.PingOptions{Count: 2, Timeout: 30 * time.Millisecond}); err != nil {
			t.Fatal(err)
		}
		for deadline := time.Now().Add(wait); s.Seen().Foreign < 2 && time.Now().Before(deadline); {
			time.Sleep(20 * time.Millisecond) // the gateway may still be resolving its neighbour
		}
		return s.Stop().Foreign
	}
	if leaked(10*time.Second) != 2 {
		t.Error("without the guard nothing leaks: this test proves nothing")
	}
	if out, err := l.Gateway.Run(ctx, "sh", "-c", mend); err != nil {
		t.Fatalf("%s: %v %s", mend, err, out)
	}
	if n := leaked(300 * time.Millisecond); n != 0 {
		t.Errorf("%d packets leaked past the guard", n)
	}
	expect(t, examine(t, l, doctor.Options{Ports: both}), "ip_forward", "", doctor.OK, "pollux_guard")
}

func TestEphemeralPortsOverlap(t *testing.T) {
	l := newLab(t, lab.Options{})
	o := doctor.Options{Ports: both, Alias: []netip.Addr{lab.GatewayOutside}, PortLow: 1024, PortHigh: 65535}
	expect(t, examine(t, l, o), "ephemeral ports", "", doctor.Warn, "ip_local_port_range", "1024-59999")
	if err := l.Gateway.Sysctl("net.ipv4.ip_local_port_range", "60000 65535"); err != nil {
		t.Fatal(err)
	}
	o.PortHigh = 59999
	expect(t, examine(t, l, o), "ephemeral ports", "", doctor.OK, "60000-65535")
	o.PortHigh, o.Alias = 65535, []netip.Addr{netip.MustParseAddr("203.0.113.8")}
	expect(t, examine(t, l, o), "ephemeral ports", "", doctor.OK, "no alias address")
}

func TestMemory(t *testing.T) {
	results := doctor.Examine(doctor.Options{UMEMBytes: 1 << 30, TableBytes: 1 << 50})
	expect(t, results, "memory", "", doctor.Fail, "1024 MiB", "available", "limits.links")
}

func TestCoresOutsideTheMask(t *testing.T) {
	expect(t, doctor.Examine(doctor.Options{Cores: []int{1000}}), "cores", "", doctor.Fail, "core 1000")
	expect(t, doctor.Examine(doctor.Options{Cores: []int{0}, RTPriority: 10}), "cores", "", doctor.OK)
}

// More workers than cores: refused with the arithmetic, unless they may share.
func TestMoreWorkersThanCores(t *testing.T) {
	allowed, err := cpu.Allowed()
	if err != nil {
		t.Fatal(err)
	}
	n := len(allowed)
	var o doctor.Options
	for c := range n + 2 {
		o.Cores = append(o.Cores, allowed[n-1]+c)
	}
	sum := fmt.Sprintf("%d workers need %d cores and one for everything else, %d in all, but this process may use %d", n+2, n+2, n+3, n)
	expect(t, doctor.Examine(o), "cores", "", doctor.Fail, sum, "--oversubscribe")
	if err := doctor.Check(o); err == nil || !strings.Contains(err.Error(), sum) {
		t.Errorf("Check: %v", err)
	}
	o.Oversubscribe = true
	expect(t, doctor.Examine(o), "cores", "", doctor.Warn, fmt.Sprintf("%d workers share %d cores", n+2, n), "for tests only")
}

// Without --queues the i-th worker polls the i-th queue, so that many must be there.
func TestQueuesOfManyWorkers(t *testing.T) {
	l := newLab(t, lab.Options{Queues: 2})
	results := examine(t, l, doctor.Options{Ports: both, Cores: []int{0, 1}})
	expect(t, results, "queues", "eth0", doctor.OK, "2")
	results = examine(t, l, doctor.Options{Ports: both, Cores: []int{0, 1, 2}, Oversubscribe: true})
	expect(t, results, "queues", "eth0", doctor.Fail, "queue 2 is missing")
}

// TestCapabilitiesDropped drops them on one thread, which is then given up.
func TestCapabilitiesDropped(t *testing.T) {
	if os.Geteuid() != 0 {
		t.Skip("not root: there is nothing to drop")
	}
	const umem = 1 << 40 // above any RLIMIT_MEMLOCK but unlimited
	results := make(chan []doctor.Result)
	go func() {
		runtime.LockOSThread()
		hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
		var none [2]unix.CapUserData
		if err := unix.Capset(&hdr, &none[0]); err != nil {
			t.Errorf("capset: %v", err)
		}
		results <- doctor.Examine(doctor.Options{UMEMBytes: umem, RTPriority: 5})
	}()
	got := <-results
	expect(t, got, "privileges", "", doctor.Fail, "CAP_NET_ADMIN", "CAP_NET_RAW", "CAP_BPF", "CAP_PERFMON", "CAP_SYS_NICE", "setcap")
	var lim unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_MEMLOCK, &lim); err != nil {
		t.Fatal(err)
	}
	if lim.Cur != unix.RLIM_INFINITY {
		expect(t, got, "locked memory", "", doctor.Fail, "RLIMIT_MEMLOCK", "CAP_IPC_LOCK", "ulimit -l")
	}
	expect(t, doctor.Examine(doctor.Options{UMEMBytes: umem}), "locked memory", "", doctor.OK, "CAP_IPC_LOCK")
}
