package rings

import (
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"sync"

	"github.com/cilium/ebpf"
	"golang.org/x/sys/unix"

	"pollux/internal/packet"
)

// AliasRowBytes is the size of one row of an alias address in the owner table; AliasBytes that of its rows: TCP, UDP,
// ICMP id, other protocols by OtherSlot.
const (
	AliasRowBytes = 65536
	AliasBytes    = 4 * AliasRowBytes
)

const filterBytes = 65536 / 8

// PortsMax is how many ports (netdevs) the tables tell apart.
const PortsMax = 16

// Flags of an address in the XDP program.
const (
	addrKernel = 1 << iota
	addrAlias
	addrTarget
)

// Tables are what the XDP programs of all ports share: which addresses are the kernel's, which are aliases, and who owns
// each alias port. The control plane changes them while the programs run; every method may be called by any goroutine.
type Tables struct {
	mu      sync.Mutex
	maps    map[string]*ebpf.Map // by the program's names: what MapReplacements wants
	rows    *ebpf.MapSpec        // of one alias address
	aliases map[packet.Addr]*aliasEntry
	local   map[packet.Addr]struct{}
	local6  map[netip.Addr]struct{}

	filter []byte                   // mapping of the filter map: bit h is set while an address with hash h is known
	known  map[packet.Addr]struct{} // addresses in the table
	hashes map[uint16]int           // how many of them have a hash
}

type aliasEntry struct {
	rows   []byte // mapping of array
	array  *ebpf.Map
	flags  uint16
	arp    uint16
	active bool // false: removed, kept for whoever may still look at its rows
}

// AliasOptions says what the XDP program shall do with packets to an alias address. Whether the kernel has the address
// is not said here: it follows from SetLocal.
type AliasOptions struct {
	ARPPorts uint16 // bit i: Program number i answers ARP requests for it, as long as the kernel lacks the address
	Target   bool   // inbound packets that nobody owns go to the worker although the kernel has the address
}

// NewTables makes empty tables.
func NewTables() (*Tables, error) {
	spec, err := loadSteer()
	if err != nil {
		return nil, err
	}
	t := &Tables{maps: map[string]*ebpf.Map{}, rows: spec.Maps[steerMapOwners].InnerMap, aliases: map[packet.Addr]*aliasEntry{},
		local: map[packet.Addr]struct{}{}, local6: map[netip.Addr]struct{}{},
		known: map[packet.Addr]struct{}{}, hashes: map[uint16]int{}}
	for _, name := range []string{steerMapAddresses, steerMapAddresses6, steerMapFilter, steerMapOwners, steerMapFragments} {
		m, err := ebpf.NewMap(spec.Maps[name])
		if err != nil {
			t.Close()
			return nil, explainBPF("table "+name, err)
		}
		t.maps[name] = m
	}
	t.filter, err = unix.Mmap(t.maps[steerMapFilter].FD(), 0, filterBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		t.Close()
		return nil, explainBPF("table "+steerMapFilter, err)
	}
	return t, nil
}

// SetAlias makes addr an alias address, or changes how it is treated, and returns its owner bytes: AliasBytes of them,
// shared with the XDP program, zero at first. A byte is 0 free, 1-253 a worker, 254 the kernel's, 255 a redirect. The
// rows stay the same, and mapped, until FreeAlias.
func (t *Tables) SetAlias(addr packet.Addr, o AliasOptions) ([]byte, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	a := t.aliases[addr]
	if a == nil {
		var err error
		if a, err = t.newAlias(); err != nil {
			return nil, explainBPF("owner table of "+addr.String(), err)
		}
		t.aliases[addr] = a
	}
	a.flags, a.arp = addrAlias, o.ARPPorts
	if o.Target {
		a.flags |= addrTarget
	}
	if !a.active {
		if err := t.maps[steerMapOwners].Put(addrKey(addr), a.array); err != nil {
			return nil, explainBPF("owner table of "+addr.String(), err)
		}
		a.active = true
	}
	return a.rows, t.publish(addr)
}

func (t *Tables) newAlias() (*aliasEntry, error) {
	array, err := ebpf.NewMap(t.rows)
	if err != nil {
		return nil, err
	}
	rows, err := unix.Mmap(array.FD(), 0, AliasBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		array.Close()
		return nil, err
	}
	return &aliasEntry{array: array, rows: rows}, nil
}

// RemoveAlias makes addr an ordinary address again. Its rows stay mapped for workers that have not yet heard of it;
// FreeAlias gives them back when all have.
func (t *Tables) RemoveAlias(addr packet.Addr) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	a := t.aliases[addr]
	if a == nil || !a.active {
		return nil
	}
	a.active, a.flags, a.arp = false, 0, 0
	err := t.publish(addr)
	if e := t.maps[steerMapOwners].Delete(addrKey(addr)); e != nil && !errors.Is(e, ebpf.ErrKeyNotExist) {
		err = errors.Join(err, explainBPF("owner table of "+addr.String(), e))
	}
	return err
}

// FreeAlias unmaps the rows of a removed alias address. Nobody may hold them any more.
func (t *Tables) FreeAlias(addr packet.Addr) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	a := t.aliases[addr]
	if a == nil {
		return nil
	}
	if a.active {
		return fmt.Errorf("%s is still an alias address", addr)
	}
	delete(t.aliases, addr)
	return errors.Join(unix.Munmap(a.rows), a.array.Close())
}

// SetLocal says which addresses the kernel has now: every one in its local table, broadcast addresses of its networks
// included (multicast, 255.255.255.255, 0/8 and 127/8 are known without). It replaces the former set; addresses in both
// are not touched for a moment.
func (t *Tables) SetLocal(addrs []netip.Addr) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	now, now6 := map[packet.Addr]struct{}{}, map[netip.Addr]struct{}{}
	for _, a := range addrs {
		if v4 := packet.AddrFrom(a); v4 != 0 {
			now[v4] = struct{}{}
		} else if a.Is6() && !a.Is4In6() {
			now6[a.WithZone("")] = struct{}{}
		}
	}
	was, was6 := t.local, t.local6
	t.local, t.local6 = now, now6
	for a := range was {
		if _, ok := now[a]; !ok {
			if err := t.publish(a); err != nil {
				return err
			}
		}
	}
	for a := range now {
		if _, ok := was[a]; !ok {
			if err := t.publish(a); err != nil {
				return err
			}
		}
	}
	return t.publish6(was6, now6)
}

func (t *Tables) publish6(was, now map[netip.Addr]struct{}) error {
	m := t.maps[steerMapAddresses6]
	for a := range was {
		if _, ok := now[a]; !ok {
			if err := m.Delete(a.As16()); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
				return explainBPF("table of IPv6 addresses", err)
			}
		}
	}
	for a := range now {
		if _, ok := was[a]; !ok {
			if err := m.Put(a.As16(), uint8(1)); err != nil {
				return explainBPF("table of IPv6 addresses", err)
			}
		}
	}
	return nil
}

// publish writes what is known of addr for the XDP programs, in one step.
func (t *Tables) publish(addr packet.Addr) error {
	var v steerAddress
	if _, ok := t.local[addr]; ok {
		v.Flags |= addrKernel
	}
	if a := t.aliases[addr]; a != nil && a.active {
		v.Flags |= a.flags
		v.ArpPorts = a.arp
	}
	m := t.maps[steerMapAddresses]
	if v.Flags == 0 {
		if err := m.Delete(addrKey(addr)); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
			return explainBPF("table of addresses", err)
		}
		t.unmark(addr)
		return nil
	}
	t.mark(addr)
	if err := m.Put(addrKey(addr), v); err != nil {
		return explainBPF("table of addresses", err)
	}
	return nil
}

// mark sets an address's bit in the filter before it enters the table; unmark clears it, after it left, if no other
// address has the same.
func (t *Tables) mark(addr packet.Addr) {
	if _, ok := t.known[addr]; ok {
		return
	}
	h := filterHash(addr)
	t.known[addr] = struct{}{}
	t.hashes[h]++
	t.filter[h>>3] |= 1 << (h & 7)
}

func (t *Tables) unmark(addr packet.Addr) {
	if _, ok := t.known[addr]; !ok {
		return
	}
	h := filterHash(addr)
	delete(t.known, addr)
	if t.hashes[h]--; t.hashes[h] == 0 {
		delete(t.hashes, h)
		t.filter[h>>3] &^= 1 << (h & 7)
	}
}

// filterHash works on the address as the XDP program loads it from the packet.
func filterHash(addr packet.Addr) uint16 {
	k := addrKey(addr)
	return uint16(binary.LittleEndian.Uint32(k[:]) * 0x9e3779b1 >> 16)
}

// Aliases returns the addresses that are aliases now, in no order.
func (t *Tables) Aliases() []packet.Addr {
	t.mu.Lock()
	defer t.mu.Unlock()
	var out []packet.Addr
	for addr, a := range t.aliases {
		if a.active {
			out = append(out, addr)
		}
	}
	return out
}

// Close unmaps all rows and gives the tables up. Programs that still run keep their own hold on the kernel's side.
func (t *Tables) Close() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	var err error
	for a := range maps.Values(t.aliases) {
		err = errors.Join(err, unix.Munmap(a.rows), a.array.Close())
	}
	if t.filter != nil {
		err = errors.Join(err, unix.Munmap(t.filter))
		t.filter = nil
	}
	for _, m := range t.maps {
		err = errors.Join(err, m.Close())
	}
	clear(t.aliases)
	clear(t.maps)
	return err
}

// OtherSlot is the place in an alias address's fourth row of a protocol without ports, by its remote address. The XDP
// program computes the same.
func OtherSlot(remote packet.Addr, proto uint8) uint16 {
	return uint16((uint32(remote) ^ uint32(proto)<<24) * 0x9e3779b1 >> 16)
}

// addrKey is addr in network order.
func addrKey(addr packet.Addr) [4]byte {
	var k [4]byte
	binary.BigEndian.PutUint32(k[:], uint32(addr))
	return k
}
