package rings

import (
	"errors"
	"fmt"
	"net"
	"os"
	"strconv"
	"strings"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// KernelMin is the oldest kernel that the XDP program and the sockets are made for.
const (
	KernelMinMajor = 6
	KernelMinMinor = 1
)

// Feature is one thing that was looked for before a start.
type Feature struct {
	Name     string `json:"name"`
	OK       bool   `json:"ok"`
	Required bool   `json:"required"` // without it pollux does not start
	Found    string `json:"found"`    // what there is
	Remedy   string `json:"remedy,omitempty"`
}

// ProbeKernel looks for what the sockets and programs need from the kernel and this process's privileges. It changes
// nothing. release is the kernel's version; empty means this one's.
func ProbeKernel(release string) []Feature {
	if release == "" {
		var u unix.Utsname
		if unix.Uname(&u) == nil {
			release = unix.ByteSliceToString(u.Release[:])
		}
	}
	return []Feature{probeRelease(release), probeSocket(), probeBPF(), probeBudget(), probeHugePages()}
}

func probeRelease(release string) Feature {
	f := Feature{Name: "kernel", Required: true, Found: "Linux " + release}
	major, minor, ok := parseRelease(release)
	f.OK = ok && (major > KernelMinMajor || major == KernelMinMajor && minor >= KernelMinMinor)
	if !f.OK {
		f.Remedy = fmt.Sprintf("Linux %d.%d or later is needed", KernelMinMajor, KernelMinMinor)
	}
	return f
}

// parseRelease reads the first two numbers of a kernel version like 6.1.0-13-amd64.
func parseRelease(s string) (major, minor int, ok bool) {
	a, rest, found := strings.Cut(s, ".")
	b := rest[:len(rest)-len(strings.TrimLeft(rest, "0123456789"))]
	major, err1 := strconv.Atoi(a)
	minor, err2 := strconv.Atoi(b)
	return major, minor, found && err1 == nil && err2 == nil
}

func probeSocket() Feature {
	f := Feature{Name: "af_xdp", Required: true, Found: "AF_XDP sockets can be made", OK: true}
	fd, err := unix.Socket(unix.AF_XDP, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if err == nil {
		unix.Close(fd)
		return f
	}
	f.OK, f.Found, f.Remedy = false, err.Error(), "run as root or with CAP_NET_RAW and CAP_NET_ADMIN"
	if errors.Is(err, unix.EAFNOSUPPORT) {
		f.Remedy = "a kernel with CONFIG_XDP_SOCKETS is needed"
	}
	return f
}

func probeBPF() Feature {
	f := Feature{Name: "bpf", Required: true, Found: "the XDP program can be loaded", OK: true}
	t, err := NewTables()
	if err == nil {
		var p *Program
		if p, err = LoadProgram(ProgramOptions{Tables: t, MAC: make(net.HardwareAddr, 6)}); err == nil {
			p.Close()
		}
		t.Close()
	}
	if err != nil {
		f.OK, f.Found, f.Remedy = false, err.Error(), "run as root or with CAP_BPF, CAP_PERFMON and CAP_NET_ADMIN"
	}
	return f
}

// probeBudget needs a TX ring, but no netdev.
func probeBudget() Feature {
	f := Feature{Name: "tx_budget", Found: fmt.Sprintf("%d packets per system call in copy mode", txBudgetKernel), Remedy: "XDP_MAX_TX_SKB_BUDGET is in Linux 6.18"}
	fd, err := unix.Socket(unix.AF_XDP, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return f
	}
	defer unix.Close(fd)
	if unix.SetsockoptInt(fd, unix.SOL_XDP, unix.XDP_TX_RING, RingSizeDefault) == nil &&
		unix.SetsockoptInt(fd, unix.SOL_XDP, unix.XDP_MAX_TX_SKB_BUDGET, RingSizeDefault) == nil {
		f.OK, f.Found, f.Remedy = true, "as many packets per system call as the TX ring holds", ""
	}
	return f
}

func probeHugePages() Feature {
	n := 0
	if b, err := os.ReadFile("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages"); err == nil {
		n, _ = strconv.Atoi(strings.TrimSpace(string(b)))
	}
	f := Feature{Name: "huge_pages", OK: n > 0, Found: fmt.Sprintf("%d free reserved pages of 2 MiB", n)}
	if !f.OK {
		f.Remedy = "transparent ones are tried; to reserve: sysctl vm.nr_hugepages=N"
	}
	return f
}

// XDPFeatures are what a driver says it can do (netdev netlink family, Linux 6.3).
type XDPFeatures uint64

const (
	XDPBasic      XDPFeatures = 1 << iota // PASS, DROP, ABORTED, TX: native mode
	XDPRedirect                           // to a socket
	XDPSend                               // ndo_xdp_xmit
	XDPZeroCopy                           // AF_XDP zero-copy
	XDPOffload                            // into the NIC
	XDPMultiFrame                         // frames in several buffers
)

// Device is what matters of a netdev.
type Device struct {
	Name     string
	Index    int
	Driver   string // empty when it doesn't tell
	Kind     string // netlink's kind: veth, bond, vlan, ...; "device" for hardware
	MTU      int
	MAC      net.HardwareAddr
	Up       bool
	Carrier  bool
	Queues   int // receive queues in use
	Features XDPFeatures
	Told     bool   // Features are known; before Linux 6.3 no driver tells
	Program  string // XDP program attached to it, empty when none
}

// Native reports whether the driver runs XDP programs itself. Unknown counts as yes: Attach finds out.
func (d *Device) Native() bool {
	return !d.Told || d.Features&(XDPBasic|XDPRedirect) == XDPBasic|XDPRedirect
}

// ZeroCopy reports whether the driver says it can. Unknown counts as no; ChooseMode tries it.
func (d *Device) ZeroCopy() bool { return d.Features&XDPZeroCopy != 0 }

// ProbeDevice asks the kernel about a netdev of the calling thread's network namespace. It changes nothing.
func ProbeDevice(name string) (*Device, error) {
	link, err := netlink.LinkByName(name)
	if err != nil {
		return nil, fmt.Errorf("%s: there is no such interface in this network namespace: see: ip link", name)
	}
	a := link.Attrs()
	d := &Device{Name: name, Index: a.Index, Driver: driverName(name), Kind: link.Type(), MTU: a.MTU, MAC: a.HardwareAddr,
		Up: a.Flags&net.FlagUp != 0, Carrier: a.RawFlags&unix.IFF_LOWER_UP != 0}
	d.Queues, _ = queueCount(PortQueue{Name: name, Index: a.Index})
	d.Features, d.Told = xdpFeatures(a.Index)
	d.Program = strings.TrimSpace(programOn(a.Index))
	return d, nil
}

// xdpFeatures asks the netdev family of generic netlink.
func xdpFeatures(ifindex int) (XDPFeatures, bool) {
	const (
		cmdDevGet    = 1
		attrIfIndex  = 1
		attrFeatures = 3
	)
	family, err := netlink.GenlFamilyGet("netdev")
	if err != nil {
		return 0, false
	}
	req := nl.NewNetlinkRequest(int(family.ID), 0)
	req.AddData(&nl.Genlmsg{Command: cmdDevGet, Version: uint8(family.Version)})
	req.AddData(nl.NewRtAttr(attrIfIndex, nl.Uint32Attr(uint32(ifindex))))
	msgs, err := req.Execute(unix.NETLINK_GENERIC, 0)
	if err != nil || len(msgs) == 0 || len(msgs[0]) < nl.SizeofGenlmsg {
		return 0, false
	}
	attrs, err := nl.ParseRouteAttr(msgs[0][nl.SizeofGenlmsg:])
	if err != nil {
		return 0, false
	}
	for _, at := range attrs {
		if at.Attr.Type == attrFeatures && len(at.Value) >= 8 {
			return XDPFeatures(nl.NativeEndian().Uint64(at.Value)), true
		}
	}
	return 0, false
}
