package rings

import (
	"errors"
	"fmt"
	"maps"
	"net"
	"sync"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Cause is a decision of the XDP program; each has a counter.
type Cause int

const (
	CauseToWorker Cause = iota
	CauseNoQueue
	CauseARPAnswered
	CausePassNotIP
	CausePassMAC
	CausePassARP
	CausePassIPv6
	CausePassLocal
	CausePassFree
	CausePassKernelPort
	CausePassSocket
	CausePassEcho
	CausePassFragment
	Causes // number of causes
)

var causeTable = [Causes]struct{ name, help string }{
	CauseToWorker:       {"to-worker", "handed to the worker of the queue"},
	CauseNoQueue:        {"no-queue", "the NAT's, on a queue that no worker polls: dropped"},
	CauseARPAnswered:    {"arp-answered", "ARP request for a pool address, answered"},
	CausePassNotIP:      {"pass-not-ip", "to the kernel: neither IP nor ARP, or VLAN-tagged"},
	CausePassMAC:        {"pass-mac", "to the kernel: to another station's MAC address, or multicast"},
	CausePassARP:        {"pass-arp", "to the kernel: ARP"},
	CausePassIPv6:       {"pass-ipv6", "to the kernel: IPv6"},
	CausePassLocal:      {"pass-local", "to the kernel: its own address, multicast, broadcast"},
	CausePassFree:       {"pass-free", "to the kernel: to an alias address that it has, at a port that nobody owns"},
	CausePassKernelPort: {"pass-kernel-port", "to the kernel: to an alias address, at a port reserved for the kernel"},
	CausePassSocket:     {"pass-socket", "to the kernel: one of its sockets takes the packet"},
	CausePassEcho:       {"pass-echo", "to the kernel: echo request to an address that it has"},
	CausePassFragment:   {"pass-fragment", "to the kernel: later fragment of a packet that went there"},
}

// String returns the stable kebab-case name.
func (c Cause) String() string {
	if c >= 0 && c < Causes {
		return causeTable[c].name
	}
	return "unknown"
}

// Help returns one line for people.
func (c Cause) Help() string {
	if c >= 0 && c < Causes {
		return causeTable[c].help
	}
	return ""
}

// Flags of a port, above its MAC address.
const (
	portForwardIPv6 = 1 << 48
	portARPByWorker = 1 << 49
)

// QueuesMax is how many queues of one netdev can have a socket.
const QueuesMax = 256

// ProgramOptions says what one port's instance of the XDP program needs to know.
type ProgramOptions struct {
	Tables *Tables
	Number int              // 0 to PortsMax-1, the port's bit in AliasOptions.ARPPorts
	MAC    net.HardwareAddr // the port's own; frames to any other are the kernel's

	ForwardIPv6 bool // IPv6 to other addresses than the kernel's goes to the worker; otherwise all IPv6 is the kernel's

	// ARPByWorker hands ARP requests for pool addresses to the worker, which answers them (AnswerARP): for drivers that
	// can't send a packet back from XDP. See CanSendBack.
	ARPByWorker bool
}

// Program is the XDP program of one port. Nothing is pinned: the kernel detaches it when the process ends, however it ends.
// Its methods may be called by any goroutine.
type Program struct {
	mu       sync.Mutex
	program  *ebpf.Program
	sockets  *ebpf.Map
	counters *ebpf.Map
	state    *ebpf.Variable
	bits     uint64 // what state holds
	link     link.Link
	cpus     []uint64 // scratch of Counters
}

// LoadProgram loads the program into the kernel. It is not attached yet.
func LoadProgram(o ProgramOptions) (*Program, error) { return loadProgram(o, nil) }

// loadProgram is LoadProgram with maps of a predecessor's in the place of its own.
func loadProgram(o ProgramOptions, inherited map[string]*ebpf.Map) (*Program, error) {
	if o.Number < 0 || o.Number >= PortsMax {
		return nil, fmt.Errorf("XDP program: port number %d: at most %d ports are possible", o.Number, PortsMax)
	}
	spec, err := loadSteer()
	if err != nil {
		return nil, err
	}
	if err := spec.Variables[steerVarPortNumber].Set(uint32(o.Number)); err != nil {
		return nil, err
	}
	var obj struct {
		Program  *ebpf.Program  `ebpf:"pollux"`
		Sockets  *ebpf.Map      `ebpf:"sockets"`
		Counters *ebpf.Map      `ebpf:"counters"`
		State    *ebpf.Variable `ebpf:"port_state"`
	}
	replace := maps.Clone(o.Tables.maps)
	maps.Copy(replace, inherited)
	err = spec.LoadAndAssign(&obj, &ebpf.CollectionOptions{MapReplacements: replace})
	if err != nil {
		return nil, explainBPF("XDP program", err)
	}
	p := &Program{program: obj.Program, sockets: obj.Sockets, counters: obj.Counters, state: obj.State}
	if o.ForwardIPv6 {
		p.bits |= portForwardIPv6
	}
	if o.ARPByWorker {
		p.bits |= portARPByWorker
	}
	if err := p.SetMAC(o.MAC); err != nil {
		p.Close()
		return nil, err
	}
	return p, nil
}

// SetMAC changes the port's MAC address, in one step.
func (p *Program) SetMAC(mac net.HardwareAddr) error {
	if len(mac) != 6 {
		return fmt.Errorf("XDP program: %q is not an Ethernet address", mac)
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	var word uint64
	for i, b := range mac {
		word |= uint64(b) << (8 * i)
	}
	p.bits = p.bits&^(1<<48-1) | word
	if err := p.state.Set(p.bits); err != nil {
		return explainBPF("XDP program: MAC address", err)
	}
	return nil
}

// SetARPByWorker changes that option: for another netdev, by another driver, in the port's place.
func (p *Program) SetARPByWorker(on bool) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.bits &^= portARPByWorker
	if on {
		p.bits |= portARPByWorker
	}
	if err := p.state.Set(p.bits); err != nil {
		return explainBPF("XDP program: ARP", err)
	}
	return nil
}

// SetSocket leads the packets of a queue that are the NAT's to the AF_XDP socket fd, which must be bound to that queue.
func (p *Program) SetSocket(queue, fd int) error {
	if queue < 0 || queue >= QueuesMax {
		return fmt.Errorf("XDP program: queue %d: at most %d are possible", queue, QueuesMax)
	}
	if err := p.sockets.Put(uint32(queue), uint32(fd)); err != nil {
		return explainBPF(fmt.Sprintf("XDP program: socket of queue %d", queue), err)
	}
	return nil
}

// ClearSocket drops the packets of a queue that are the NAT's from now on. Closing the socket does the same.
func (p *Program) ClearSocket(queue int) error {
	if err := p.sockets.Delete(uint32(queue)); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) && !errors.Is(err, unix.EINVAL) {
		return explainBPF(fmt.Sprintf("XDP program: socket of queue %d", queue), err)
	}
	return nil
}

// Attach hangs the program on a netdev of the calling thread's network namespace, in the driver (native) if it can. When it
// can't, the program runs in generic mode, which is slower than the kernel's own NAT, and notice says so.
func (p *Program) Attach(name string, ifindex int) (notice string, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.link != nil {
		return "", fmt.Errorf("%s: the XDP program is attached already", name)
	}
	p.link, err = link.AttachXDP(link.XDPOptions{Program: p.program, Interface: ifindex, Flags: link.XDPDriverMode})
	if err != nil && (errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.ENOTSUP)) {
		native := err
		p.link, err = link.AttachXDP(link.XDPOptions{Program: p.program, Interface: ifindex, Flags: link.XDPGenericMode})
		if err == nil {
			return fmt.Sprintf("%s: the driver can't run XDP programs (%v), generic mode is used: slower than the kernel's own NAT", name, unwrapAll(native)), nil
		}
	}
	if err != nil {
		p.link = nil
		return "", explainAttach(name, ifindex, err)
	}
	return "", nil
}

// Detach takes the program off its netdev, at once.
func (p *Program) Detach() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.link == nil {
		return nil
	}
	err := p.link.Close()
	p.link = nil
	return err
}

// Counters returns how often each decision was taken, all processors together.
func (p *Program) Counters() (n [Causes]uint64, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	for c := range Causes {
		if err := p.counters.Lookup(uint32(c), &p.cpus); err != nil {
			return n, explainBPF("XDP program: counters", err)
		}
		for _, v := range p.cpus {
			n[c] += v
		}
	}
	return n, nil
}

// ID returns the program's id, as bpftool prog shows it; 0 when the kernel doesn't tell.
func (p *Program) ID() int {
	info, err := p.program.Info()
	if err != nil {
		return 0
	}
	id, _ := info.ID()
	return int(id)
}

// Close detaches and unloads the program.
func (p *Program) Close() error {
	err := p.Detach()
	return errors.Join(err, p.program.Close(), p.sockets.Close(), p.counters.Close())
}

// explainAttach turns the answer to an attach into one line.
func explainAttach(name string, ifindex int, err error) error {
	why := unwrapAll(err)
	switch {
	case errors.Is(err, unix.EBUSY), errors.Is(err, unix.EEXIST):
		return fmt.Errorf("%s: another XDP program%s is attached: %w: stop its owner, or: ip link set %s xdp off", name, programOn(ifindex), why, name)
	case errors.Is(err, unix.ENODEV), errors.Is(err, unix.EINVAL) && !exists(ifindex):
		return fmt.Errorf("%s: there is no such interface in this network namespace: %w: see: ip link", name, why)
	case errors.Is(err, unix.ERANGE):
		return fmt.Errorf("%s: its MTU is too large for XDP: %w: ip link set %s mtu 1500", name, why, name)
	case errors.Is(err, unix.EPERM), errors.Is(err, unix.EACCES):
		return fmt.Errorf("%s: no permission to attach an XDP program: %w: run as root or with CAP_NET_ADMIN, CAP_BPF and CAP_PERFMON", name, why)
	}
	return fmt.Errorf("%s: attach the XDP program: %w", name, why)
}

// explainBPF turns a refusal of the bpf system call into one line.
func explainBPF(what string, err error) error {
	why := unwrapAll(err)
	switch {
	case errors.Is(err, unix.EPERM), errors.Is(err, unix.EACCES):
		var verifier *ebpf.VerifierError
		if errors.As(err, &verifier) && len(verifier.Log) > 0 {
			return fmt.Errorf("%s: the kernel's verifier refuses it: %w", what, err)
		}
		return fmt.Errorf("%s: no permission: %w: run as root or with CAP_BPF, CAP_PERFMON and CAP_NET_ADMIN", what, why)
	case errors.Is(err, unix.ENOMEM):
		return fmt.Errorf("%s: not enough memory: %w: use fewer alias addresses (%d KiB each)", what, why, AliasBytes>>10)
	case errors.Is(err, unix.E2BIG):
		return fmt.Errorf("%s: the table is full: %w", what, why)
	}
	return fmt.Errorf("%s: %w", what, err)
}

// unwrapAll returns the number at the bottom of an error, which tells more than the sentences on top of it.
func unwrapAll(err error) error {
	var errno unix.Errno
	if errors.As(err, &errno) {
		return errno
	}
	return err
}

func exists(ifindex int) bool {
	_, err := netlink.LinkByIndex(ifindex)
	return err == nil
}
