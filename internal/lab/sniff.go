package lab

import (
	"encoding/binary"
	"fmt"
	"maps"
	"net/netip"
	"sync"

	"golang.org/x/net/bpf"
	"golang.org/x/sys/unix"
)

// Sniffer watches the IPv4 packets that reach a device from the wire and tells those whose source is one of the expected
// addresses from all others. Both are counted by the kernel, so none is missed under load.
type Sniffer struct {
	expected, foreign int // packet sockets
	done              sync.WaitGroup

	mu      sync.Mutex
	sources map[netip.Addr]int
	tally   Seen
}

// Seen is what a Sniffer saw.
type Seen struct {
	Expected uint64             // packets from an expected source
	Foreign  uint64             // packets from any other
	Sources  map[netip.Addr]int // the foreign ones by source, as far as they could be read in time
}

// Sniff starts watching a device of the namespace.
func Sniff(n *Namespace, device string, expected ...netip.Addr) (*Sniffer, error) {
	link, err := n.nl.LinkByName(device)
	if err != nil {
		return nil, fmt.Errorf("device %s in %s: %w", device, n.Name, err)
	}
	s := &Sniffer{sources: map[netip.Addr]int{}}
	err = n.Do(func() error {
		if s.expected, err = packetSocket(link.Attrs().Index, bySource(expected, true)); err != nil {
			return err
		}
		if s.foreign, err = packetSocket(link.Attrs().Index, bySource(expected, false)); err != nil {
			unix.Close(s.expected)
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("packet socket on %s in %s: %w", device, n.Name, err)
	}
	s.done.Add(1)
	go s.read()
	return s, nil
}

// read notes the sources of foreign packets until Stop shuts the socket's timeout loop down.
func (s *Sniffer) read() {
	defer s.done.Done()
	b := make([]byte, 64)
	for {
		n, _, err := unix.Recvfrom(s.foreign, b, 0)
		if err == unix.EINTR || err == unix.EAGAIN {
			s.mu.Lock()
			stopped := s.expected < 0
			s.mu.Unlock()
			if stopped {
				return
			}
			continue
		}
		if err != nil {
			return
		}
		if n >= 30 {
			s.mu.Lock()
			s.sources[netip.AddrFrom4([4]byte(b[26:30]))]++
			s.mu.Unlock()
		}
	}
}

// Seen returns what was seen so far.
func (s *Sniffer) Seen() Seen {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.collect()
	t := s.tally
	t.Sources = maps.Clone(s.sources)
	return t
}

// collect adds what the kernel counted since the last call; reading its counters clears them. Packets that found the
// socket's buffer full count too.
func (s *Sniffer) collect() {
	if s.expected < 0 {
		return
	}
	if st, err := unix.GetsockoptTpacketStats(s.expected, unix.SOL_PACKET, unix.PACKET_STATISTICS); err == nil {
		s.tally.Expected += uint64(st.Packets)
	}
	if st, err := unix.GetsockoptTpacketStats(s.foreign, unix.SOL_PACKET, unix.PACKET_STATISTICS); err == nil {
		s.tally.Foreign += uint64(st.Packets)
	}
}

// Stop ends the watch and returns what was seen.
func (s *Sniffer) Stop() Seen {
	s.mu.Lock()
	s.collect()
	if s.expected >= 0 {
		unix.Close(s.expected)
		s.expected = -1
	}
	s.mu.Unlock()
	s.done.Wait()
	if s.foreign >= 0 {
		unix.Close(s.foreign)
		s.foreign = -1
	}
	return s.Seen()
}

// packetSocket opens a packet socket on a device behind a filter. The filter is set before the bind, so that nothing
// slips in ahead of it.
func packetSocket(ifindex int, filter []bpf.Instruction) (int, error) {
	raw, err := bpf.Assemble(filter)
	if err != nil {
		return -1, err
	}
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return -1, err
	}
	prog := make([]unix.SockFilter, len(raw))
	for i, r := range raw {
		prog[i] = unix.SockFilter{Code: r.Op, Jt: r.Jt, Jf: r.Jf, K: r.K}
	}
	err = unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &unix.SockFprog{Len: uint16(len(prog)), Filter: &prog[0]})
	if err == nil {
		err = unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 50_000})
	}
	if err == nil {
		err = unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: bigEndian(unix.ETH_P_IP), Ifindex: ifindex})
	}
	if err != nil {
		unix.Close(fd)
		return -1, err
	}
	return fd, nil
}

func bigEndian(v uint16) uint16 {
	var b [2]byte
	binary.BigEndian.PutUint16(b[:], v)
	return binary.NativeEndian.Uint16(b[:])
}

// bySource accepts incoming packets whose IPv4 source is (in true) or is not (in false) one of addrs. The packet starts
// at its Ethernet header.
func bySource(addrs []netip.Addr, in bool) []bpf.Instruction {
	const sourceOffset, snap = 14 + 12, 64
	f := []bpf.Instruction{
		bpf.LoadExtension{Num: bpf.ExtType},
		bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: unix.PACKET_OUTGOING, SkipTrue: 1},
		bpf.RetConstant{Val: 0},
		bpf.LoadAbsolute{Off: sourceOffset, Size: 4},
	}
	hit, miss := uint32(0), uint32(snap)
	if in {
		hit, miss = miss, hit
	}
	for _, a := range addrs {
		b := a.As4()
		f = append(f,
			bpf.JumpIf{Cond: bpf.JumpNotEqual, Val: binary.BigEndian.Uint32(b[:]), SkipTrue: 1},
			bpf.RetConstant{Val: hit})
	}
	return append(f, bpf.RetConstant{Val: miss})
}
