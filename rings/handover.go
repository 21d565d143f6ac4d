package rings

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/link"
	"golang.org/x/sys/unix"

	"pollux/internal/offheap"
	"pollux/internal/packet"
)

// Handing packet memory, sockets, tables and programs to a successor process. What is called Info describes a thing; its
// descriptors go along by SCM_RIGHTS, in the order of FDs. The successor makes its own of both by Adopt, while the predecessor
// still works: sockets stay bound, programs attached, the memory is the same. Then, while nobody works, the little that
// only the process knew goes by an image (Freeze, Thaw).

// UMEMInfo describes a UMEM.
type UMEMInfo struct {
	Frames, ChunkSize, Mapped int
	Huge                      bool
}

// Info describes the packet memory; its one descriptor is FD.
func (u *UMEM) Info() UMEMInfo { return UMEMInfo{u.frames, u.ChunkSize(), len(u.mapping), u.huge} }

// AdoptUMEM maps a predecessor's packet memory. The descriptor is the UMEM's own from then on.
func AdoptUMEM(fd int, i UMEMInfo) (*UMEM, error) {
	if i.Frames < 1 || i.ChunkSize < 2048 || i.ChunkSize&(i.ChunkSize-1) != 0 || i.Mapped < i.Frames*i.ChunkSize {
		return nil, fmt.Errorf("umem: %d frames of %d bytes in %d are none", i.Frames, i.ChunkSize, i.Mapped)
	}
	pages := offheap.Transparent // aligned, whatever they are, where there is room for a huge one
	if i.Huge {
		pages = offheap.Huge
	}
	m, err := offheap.MapShared(fd, i.Mapped, pages)
	if err != nil {
		return nil, fmt.Errorf("umem: map the predecessor's %d MiB: %w", i.Mapped>>20, err)
	}
	_ = unix.Madvise(m, unix.MADV_POPULATE_WRITE) // page tables only: the pages are there
	return &UMEM{frames: i.Frames, chunkMask: uint64(i.ChunkSize) - 1, fd: fd, mapping: m, data: m[: i.Frames*i.ChunkSize : i.Frames*i.ChunkSize], huge: i.Huge}, nil
}

// poolImage is what a Pool knows.
type poolImage struct {
	Free, Away []uint64
	Excess     uint64
}

// Freeze writes the pool's image.
func (p *Pool) Freeze(e *offheap.Encoder) error {
	return e.Write(&poolImage{p.free, p.away, p.excess})
}

// Thaw makes p, a pool of the same place in the same memory, what the image says.
func (p *Pool) Thaw(d *offheap.Decoder) error {
	var i poolImage
	if err := d.Read(&i); err != nil {
		return fmt.Errorf("rings: a predecessor's pool: %w", err)
	}
	if len(i.Free) > p.own || len(i.Away) > cap(p.away) {
		return errors.New("rings: a predecessor's pool holds more frames than there are")
	}
	p.free, p.away, p.in = p.free[:0], p.away[:0], nil
	for _, addr := range slices.Concat(i.Free, i.Away) {
		p.Put(addr)
	}
	p.excess += i.Excess
	return nil
}

// SocketInfo describes a socket.
type SocketInfo struct {
	Port           PortQueue
	RingSize, Fill int // slots
	ZeroCopy       bool
	BusyPoll       bool
	Budget         int
}

// Info describes the socket; its one descriptor is FD.
func (s *Socket) Info() SocketInfo {
	return SocketInfo{s.port, int(s.txMax), int(s.fillMax), s.zeroCopy, s.busyPoll, s.budget}
}

// AdoptSocket maps the rings of a predecessor's socket. The descriptor is the Socket's own from then on. It must be thawed
// before it is used.
func AdoptSocket(u *UMEM, fd int, i SocketInfo) (*Socket, error) {
	s := &Socket{
		umem: u, port: i.Port, fd: uintptr(fd), chunkMask: u.chunkMask, zeroCopy: i.ZeroCopy, busyPoll: i.BusyPoll, budget: i.Budget,
		held: newChunkSet(u.frames, u.ChunkSize()), refused: make([]uint64, 0, refusedMax), fillMax: uint32(i.Fill), txMax: uint32(i.RingSize),
	}
	if err := s.mapRings(i.RingSize, i.Fill); err != nil {
		return nil, fmt.Errorf("%s: the predecessor's socket: %w", i.Port, err)
	}
	u.mu.Lock()
	defer u.mu.Unlock()
	u.sockets = append(u.sockets, s)
	return s, nil
}

// socketImage is what a Socket knows beside what stands in its rings.
type socketImage struct {
	Filled, Sending uint32
	Behind, Down    bool
	Refused         []uint64
	Held            []uint8
	Count           Counters
}

// Freeze writes the socket's image. Nobody may touch the rings from then on but who thaws it.
func (s *Socket) Freeze(e *offheap.Encoder) error {
	return e.Write(&socketImage{s.filled, s.sending, s.behind, s.down, s.refused, s.held.in, s.count})
}

// Thaw makes an adopted socket what the image says.
func (s *Socket) Thaw(d *offheap.Decoder) error {
	var i socketImage
	if err := d.Read(&i); err != nil {
		return fmt.Errorf("%s: a predecessor's socket: %w", s.port, err)
	}
	if len(i.Held) != len(s.held.in) || len(i.Refused) > cap(s.refused) || i.Filled > s.fillMax || i.Sending > s.txMax {
		return fmt.Errorf("%s: a predecessor's socket holds more frames than there are", s.port)
	}
	s.filled, s.sending, s.behind, s.down, s.count = i.Filled, i.Sending, i.Behind, i.Down, i.Count
	s.refused = append(s.refused[:0], i.Refused...)
	copy(s.held.in, i.Held)
	s.rx.tail, s.cq.tail = s.rx.index.Load(), s.cq.index.Load()
	s.rx.seen, s.cq.seen = s.rx.tail, s.cq.tail
	s.tx.head, s.fill.head = s.tx.index.Load(), s.fill.index.Load()
	return nil
}

// TablesInfo describes Tables. Of the maps and the aliases, in this order, each has one descriptor.
type TablesInfo struct {
	Maps    []string
	Aliases []AliasInfo
	Local   []netip.Addr
	Known   []packet.Addr
}

// AliasInfo describes an alias address's entry.
type AliasInfo struct {
	Addr       packet.Addr
	Flags, ARP uint16
	Active     bool
}

// Info describes the tables. The descriptors stay theirs.
func (t *Tables) Info() (i TablesInfo, fds []int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	for name, m := range t.maps {
		i.Maps = append(i.Maps, name)
		fds = append(fds, m.FD())
	}
	for addr, a := range t.aliases {
		i.Aliases = append(i.Aliases, AliasInfo{addr, a.flags, a.arp, a.active})
		fds = append(fds, a.array.FD())
	}
	for a := range t.local {
		i.Local = append(i.Local, a.Netip())
	}
	for a := range t.local6 {
		i.Local = append(i.Local, a)
	}
	for a := range t.known {
		i.Known = append(i.Known, a)
	}
	return i, fds
}

// AdoptTables takes a predecessor's tables over, with all that stands in them. The descriptors are the tables' own from then on.
func AdoptTables(i TablesInfo, fds []int) (*Tables, error) {
	if len(fds) != len(i.Maps)+len(i.Aliases) {
		return nil, errors.New("rings: a predecessor's tables are incomplete")
	}
	spec, err := loadSteer()
	if err != nil {
		return nil, err
	}
	t := &Tables{maps: map[string]*ebpf.Map{}, rows: spec.Maps[steerMapOwners].InnerMap, aliases: map[packet.Addr]*aliasEntry{},
		local: map[packet.Addr]struct{}{}, local6: map[netip.Addr]struct{}{},
		known: map[packet.Addr]struct{}{}, hashes: map[uint16]int{}}
	for n, name := range i.Maps {
		m, err := ebpf.NewMapFromFD(fds[n])
		if err != nil {
			return nil, explainBPF("a predecessor's table "+name, err)
		}
		t.maps[name] = m
	}
	for _, name := range []string{steerMapAddresses, steerMapAddresses6, steerMapFilter, steerMapOwners, steerMapFragments} {
		if t.maps[name] == nil {
			return nil, fmt.Errorf("rings: a predecessor has no table %s", name)
		}
	}
	for n, a := range i.Aliases {
		array, err := ebpf.NewMapFromFD(fds[len(i.Maps)+n])
		if err != nil {
			return nil, explainBPF("owner table of "+a.Addr.String(), err)
		}
		rows, err := unix.Mmap(array.FD(), 0, AliasBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
		if err != nil {
			return nil, explainBPF("owner table of "+a.Addr.String(), err)
		}
		t.aliases[a.Addr] = &aliasEntry{rows: rows, array: array, flags: a.Flags, arp: a.ARP, active: a.Active}
	}
	for _, a := range i.Local {
		if v4 := packet.AddrFrom(a); v4 != 0 {
			t.local[v4] = struct{}{}
		} else {
			t.local6[a] = struct{}{}
		}
	}
	for _, a := range i.Known {
		t.known[a] = struct{}{}
		t.hashes[filterHash(a)]++
	}
	t.filter, err = unix.Mmap(t.maps[steerMapFilter].FD(), 0, filterBytes, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		return nil, explainBPF("table "+steerMapFilter, err)
	}
	return t, nil
}

// FDs returns the descriptors of an attached program: its socket map, its counters, its link. They stay the program's.
func (p *Program) FDs() ([]int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	l, ok := p.link.(interface{ FD() int })
	if !ok {
		return nil, errors.New("XDP program: not attached")
	}
	return []int{p.sockets.FD(), p.counters.FD(), l.FD()}, nil
}

// AdoptProgram loads this build's program over the tables, sockets and counters of a predecessor's. It hangs where that one
// hangs once TakePlace is called. The descriptors are the program's own from then on.
func AdoptProgram(o ProgramOptions, fds []int) (*Program, error) {
	if len(fds) != 3 {
		return nil, errors.New("XDP program: a predecessor's is incomplete")
	}
	var maps [2]*ebpf.Map
	for i := range maps {
		m, err := ebpf.NewMapFromFD(fds[i])
		if err != nil {
			return nil, explainBPF("a predecessor's XDP program", err)
		}
		maps[i] = m
	}
	l, err := link.NewFromFD(fds[2])
	if err != nil {
		return nil, fmt.Errorf("a predecessor's XDP program: %w", err)
	}
	p, err := loadProgram(o, map[string]*ebpf.Map{"sockets": maps[0], "counters": maps[1]})
	if err != nil {
		return nil, err
	}
	p.link = l
	return p, nil
}

// TakePlace puts an adopted program in the place of its predecessor, in one step.
func (p *Program) TakePlace() error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if err := p.link.Update(p.program); err != nil {
		return explainBPF("XDP program: take its predecessor's place", err)
	}
	return nil
}
