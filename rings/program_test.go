package rings

import (
	"encoding/binary"
	"net"
	"net/netip"
	"testing"

	"github.com/cilium/ebpf"

	"pollux/internal/packet"
)

// What crafted packets are made of. The gateway's port has the MAC ours; pool is an alias the kernel lacks, shared one
// that it has, host an address of the kernel's that is no alias.
var (
	ours   = net.HardwareAddr{2, 0, 0, 0, 1, 1}
	theirs = net.HardwareAddr{2, 0, 0, 0, 1, 2}
	bcast  = net.HardwareAddr{255, 255, 255, 255, 255, 255}
	pool   = packet.AddrFrom(netip.MustParseAddr("198.51.100.1"))
	shared = packet.AddrFrom(netip.MustParseAddr("198.51.100.2"))
	target = packet.AddrFrom(netip.MustParseAddr("198.51.100.3"))
	host   = packet.AddrFrom(netip.MustParseAddr("198.51.100.254"))
	remote = packet.AddrFrom(netip.MustParseAddr("203.0.113.7"))
)

func ether(dst net.HardwareAddr, kind uint16, payload []byte) []byte {
	b := append(append(append([]byte{}, dst...), theirs...), byte(kind>>8), byte(kind))
	return append(b, payload...)
}

// ip makes an IPv4 header; frag is the flags and offset word.
func ip(src, dst packet.Addr, proto uint8, id, frag uint16, payload []byte) []byte {
	b := make([]byte, 20, 20+len(payload))
	b[0], b[8], b[9] = 0x45, 64, proto
	binary.BigEndian.PutUint16(b[2:], uint16(20+len(payload)))
	binary.BigEndian.PutUint16(b[4:], id)
	binary.BigEndian.PutUint16(b[6:], frag)
	binary.BigEndian.PutUint32(b[12:], uint32(src))
	binary.BigEndian.PutUint32(b[16:], uint32(dst))
	var sum uint32
	for i := 0; i < 20; i += 2 {
		sum += uint32(binary.BigEndian.Uint16(b[i:]))
	}
	for sum>>16 != 0 {
		sum = sum&0xffff + sum>>16
	}
	binary.BigEndian.PutUint16(b[10:], ^uint16(sum))
	return append(b, payload...)
}

func l4(src, dst uint16) []byte {
	b := make([]byte, 20)
	binary.BigEndian.PutUint16(b[0:], src)
	binary.BigEndian.PutUint16(b[2:], dst)
	binary.BigEndian.PutUint16(b[4:], 20) // a length, were it UDP
	return b
}

func icmp(kind uint8, id uint16, payload ...byte) []byte {
	b := make([]byte, 8)
	b[0] = kind
	binary.BigEndian.PutUint16(b[4:], id)
	return append(b, payload...)
}

func withOptions(p []byte) []byte {
	q := append(append(append([]byte{}, p[:20]...), make([]byte, 40)...), p[20:]...)
	q[0] = 0x4f
	return q
}

func arpRequest(sender, wanted packet.Addr) []byte {
	b := make([]byte, 28)
	copy(b, []byte{0, 1, 8, 0, 6, 4, 0, 1})
	copy(b[8:], theirs)
	binary.BigEndian.PutUint32(b[14:], uint32(sender))
	binary.BigEndian.PutUint32(b[24:], uint32(wanted))
	return b
}

func toUs(p []byte) []byte { return ether(ours, 0x0800, p) }

// steering is a loaded program with its tables and a way to ask it.
type steering struct {
	t testing.TB
	*Tables
	*Program
	queue0 *Socket
	judge  *Judge
	rows   map[packet.Addr][]byte
}

// ask runs the program over a frame that came in on queue 0 and returns its verdict, the counter that moved, and the
// frame afterwards.
func (s *steering) ask(frame []byte) (uint32, Cause, []byte) {
	s.t.Helper()
	judged, judgedErr := s.judge.Decide(1, frame) // by the loopback device
	before, err := s.Counters()
	if err != nil {
		s.t.Fatal(err)
	}
	out := make([]byte, len(frame)+64)
	opts := &ebpf.RunOptions{Data: frame, DataOut: out}
	verdict, err := s.program.Run(opts)
	if err != nil {
		s.t.Fatal(err)
	}
	after, err := s.Counters()
	if err != nil {
		s.t.Fatal(err)
	}
	moved := Causes
	for c := range Causes {
		if after[c] != before[c] {
			if moved != Causes || after[c] != before[c]+1 {
				s.t.Fatalf("more than one counter moved: %v -> %v", before, after)
			}
			moved = c
		}
	}
	// The judge said the same before, by counters of its own; it knows nothing of fragments that the program has seen.
	if judgedErr != nil {
		s.t.Error(judgedErr)
	} else if judged != moved && s.bits == s.judge.program.bits && moved != CauseNoQueue && moved != CausePassFragment {
		s.t.Errorf("the judge said %v, the program %v", judged, moved)
	}
	return verdict, moved, opts.DataOut
}

const (
	xdpDrop     = 1
	xdpPass     = 2
	xdpTX       = 3
	xdpRedirect = 4
)

func verdictOf(c Cause) uint32 {
	switch c {
	case CauseToWorker:
		return xdpRedirect
	case CauseNoQueue:
		return xdpDrop
	case CauseARPAnswered:
		return xdpTX
	}
	return xdpPass
}

func (s *steering) want(name string, frame []byte, want Cause) []byte {
	s.t.Helper()
	verdict, got, out := s.ask(frame)
	if got != want || verdict != verdictOf(want) {
		s.t.Errorf("%s: %v (verdict %d), want %v (%d)", name, got, verdict, want, verdictOf(want))
	}
	return out
}

// newSteering loads a program in a namespace of its own, with a socket on queue 0 of a veth to redirect to, three aliases,
// and the kernel's addresses on the loopback device, which test runs come in on.
func newSteering(t testing.TB, o ProgramOptions) *steering {
	t.Helper()
	ownNamespace(t)
	a, _ := veth(t, "a0", "a1", 1)
	tables, err := NewTables()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := tables.Close(); err != nil {
			t.Error(err)
		}
	})
	o.Tables, o.MAC = tables, ours
	prog, err := LoadProgram(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := prog.Close(); err != nil {
			t.Error(err)
		}
	})
	u, p := testUMEM(t, 64)
	q, err := OpenSocket(u, SocketOptions{Port: PortQueue{"a0", a, 0}, RingSize: 64})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { q.Close(p) })
	if err := prog.SetSocket(0, q.FD()); err != nil {
		t.Fatal(err)
	}
	judge, err := NewJudge(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { judge.Close() })
	s := &steering{t: t, Tables: tables, Program: prog, queue0: q, judge: judge, rows: map[packet.Addr][]byte{}}
	for addr, o := range map[packet.Addr]AliasOptions{
		pool: {ARPPorts: 1 << 3}, shared: {ARPPorts: 1 << 3}, target: {ARPPorts: 1 << 2, Target: true},
	} {
		if s.rows[addr], err = tables.SetAlias(addr, o); err != nil {
			t.Fatal(err)
		}
		if len(s.rows[addr]) != AliasBytes {
			t.Fatalf("%d bytes of rows, want %d", len(s.rows[addr]), AliasBytes)
		}
	}
	s.kernelHas(shared, target, host)
	return s
}

func (s *steering) kernelHas(addrs ...packet.Addr) {
	s.t.Helper()
	local := []netip.Addr{netip.MustParseAddr("2001:db8::1")}
	for _, a := range addrs {
		local = append(local, a.Netip())
	}
	if err := s.SetLocal(local); err != nil {
		s.t.Fatal(err)
	}
}

func (s *steering) own(alias packet.Addr, row int, slot uint16, b byte) {
	s.rows[alias][row*AliasRowBytes+int(slot)] = b
}

func TestProgramPassesWhatIsNotForTheNAT(t *testing.T) {
	s := newSteering(t, ProgramOptions{Number: 3})
	udp := ip(remote, pool, 17, 1, 0, l4(53, 4000))
	s.want("VLAN", ether(ours, 0x8100, append([]byte{0, 5, 8, 0}, udp...)), CausePassNotIP)
	s.want("LLDP", ether(ours, 0x88cc, make([]byte, 46)), CausePassNotIP)
	s.want("foreign MAC", ether(net.HardwareAddr{2, 0, 0, 0, 1, 9}, 0x0800, udp), CausePassMAC)
	s.want("one bit in the last byte of the MAC", ether(net.HardwareAddr{2, 0, 0, 0, 1, 0}, 0x0800, udp), CausePassMAC)
	s.want("one bit in the first byte of the MAC", ether(net.HardwareAddr{0, 0, 0, 0, 1, 1}, 0x0800, udp), CausePassMAC)
	s.want("broadcast MAC", ether(bcast, 0x0800, udp), CausePassMAC)
	for _, dst := range []string{"224.0.0.1", "239.255.255.250", "255.255.255.255", "127.0.0.1", "0.0.0.0"} {
		s.want(dst, toUs(ip(remote, packet.AddrFrom(netip.MustParseAddr(dst)), 17, 1, 0, l4(1, 2))), CausePassLocal)
	}
	s.want("kernel address", toUs(ip(remote, host, 6, 1, 0, l4(1000, 22))), CausePassLocal)
	s.want("any other unicast", toUs(ip(host, remote, 6, 1, 0, l4(1000, 22))), CauseToWorker)
	s.want("truncated IPv4 header", toUs(udp[:12]), CauseToWorker)
	s.want("IPv6", ether(ours, 0x86dd, make([]byte, 60)), CausePassIPv6)

	s.kernelHas()
	s.want("address that the kernel gave up", toUs(ip(remote, host, 6, 1, 0, l4(1000, 22))), CauseToWorker)
	if err := s.SetMAC(net.HardwareAddr{2, 0, 0, 0, 1, 9}); err != nil {
		t.Fatal(err)
	}
	s.want("old MAC", toUs(udp), CausePassMAC)
	s.want("new MAC", ether(net.HardwareAddr{2, 0, 0, 0, 1, 9}, 0x0800, udp), CauseToWorker)
}

func TestProgramForwardsIPv6OnlyWhenAsked(t *testing.T) {
	s := newSteering(t, ProgramOptions{Number: 3, ForwardIPv6: true})
	to := func(dst string) []byte {
		b := make([]byte, 60)
		b[0], b[6] = 0x60, 17
		a := netip.MustParseAddr(dst).As16()
		copy(b[24:], a[:])
		return ether(ours, 0x86dd, b)
	}
	s.want("unicast", to("2001:db8::2"), CauseToWorker)
	s.want("the kernel's", to("2001:db8::1"), CausePassIPv6)
	s.want("multicast", to("ff02::1"), CausePassIPv6)
	s.want("link-local", to("fe80::1"), CausePassIPv6)
	s.want("fec0::/10 is not link-local", to("fec0::1"), CauseToWorker)
	s.want("truncated", to("2001:db8::2")[:50], CausePassIPv6)
}

func TestProgramAnswersARPForPoolAddressesTheKernelLacks(t *testing.T) {
	s := newSteering(t, ProgramOptions{Number: 3})
	asker := packet.AddrFrom(netip.MustParseAddr("198.51.100.77"))
	frame := ether(bcast, 0x0806, arpRequest(asker, pool))
	got := s.want("pool address", frame, CauseARPAnswered)
	want := ether(theirs, 0x0806, arpRequest(asker, pool))
	copy(want[6:], ours)
	copy(want[14+7:], []byte{2})
	copy(want[14+8:], ours)
	copy(want[14+18:], theirs)
	binary.BigEndian.PutUint32(want[14+14:], uint32(pool))
	binary.BigEndian.PutUint32(want[14+24:], uint32(asker))
	if string(got) != string(want) {
		t.Errorf("answer\n% x, want\n% x", got, want)
	}
	s.want("probe from 0.0.0.0", ether(bcast, 0x0806, arpRequest(0, pool)), CauseARPAnswered)
	s.want("announcement by another station", ether(bcast, 0x0806, arpRequest(pool, pool)), CausePassARP)
	s.want("alias that the kernel has", ether(bcast, 0x0806, arpRequest(asker, shared)), CausePassARP)
	s.want("kernel address", ether(bcast, 0x0806, arpRequest(asker, host)), CausePassARP)
	s.want("unknown address", ether(bcast, 0x0806, arpRequest(asker, asker+1)), CausePassARP)
	reply := arpRequest(asker, pool)
	reply[7] = 2
	s.want("reply", ether(ours, 0x0806, reply), CausePassARP)
	s.want("truncated", frame[:30], CausePassARP)
	s.kernelHas()
	s.want("alias that the kernel lost", ether(bcast, 0x0806, arpRequest(asker, shared)), CauseARPAnswered)
	s.want("alias that is answered on another port", ether(bcast, 0x0806, arpRequest(asker, target)), CausePassARP)
	if err := s.RemoveAlias(pool); err != nil {
		t.Fatal(err)
	}
	s.want("alias that was removed", frame, CausePassARP)
}

func TestProgramHandsARPUpWhereTheDriverCantAnswer(t *testing.T) {
	s := newSteering(t, ProgramOptions{Number: 3, ARPByWorker: true})
	frame := ether(bcast, 0x0806, arpRequest(remote, pool))
	if out := s.want("pool address", frame, CauseToWorker); string(out) != string(frame) {
		t.Error("the request was changed on its way to the worker")
	}
	s.want("kernel address", ether(bcast, 0x0806, arpRequest(remote, host)), CausePassARP)
}

func TestProgramFollowsTheOwnerByte(t *testing.T) {
	s := newSteering(t, ProgramOptions{Number: 3})
	const port = 4000
	for _, l := range []struct {
		name string
		row  int
		make func(dst packet.Addr) []byte
	}{
		{"TCP", 0, func(d packet.Addr) []byte { return ip(remote, d, 6, 1, 0, l4(53, port)) }},
		{"UDP", 1, func(d packet.Addr) []byte { return ip(remote, d, 17, 1, 0, l4(53, port)) }},
		{"TCP behind options", 0, func(d packet.Addr) []byte { return withOptions(ip(remote, d, 6, 1, 0, l4(53, port))) }},
		{"echo reply", 2, func(d packet.Addr) []byte { return ip(remote, d, 1, 1, 0, icmp(0, port)) }},
		{"timestamp reply", 2, func(d packet.Addr) []byte { return ip(remote, d, 1, 1, 0, icmp(14, port)) }},
		{"error about TCP", 0, func(d packet.Addr) []byte {
			return ip(0x0a0a0a0a, d, 1, 1, 0, icmp(3, 0, ip(d, remote, 6, 9, 0, l4(port, 53)[:8])...))
		}},
		{"error about UDP behind options", 1, func(d packet.Addr) []byte {
			return ip(0x0a0a0a0a, d, 1, 1, 0, icmp(11, 0, withOptions(ip(d, remote, 17, 9, 0, l4(port, 53)[:8]))...))
		}},
		{"error about echo", 2, func(d packet.Addr) []byte {
			return ip(0x0a0a0a0a, d, 1, 1, 0, icmp(12, 0, ip(d, remote, 1, 9, 0, icmp(8, port))...))
		}},
	} {
		for _, c := range []struct {
			byte  byte
			alias packet.Addr
			want  Cause
		}{
			{0, pool, CauseToWorker}, {0, shared, CausePassFree}, {0, target, CauseToWorker},
			{1, pool, CauseToWorker}, {1, shared, CauseToWorker}, {253, shared, CauseToWorker}, {1, target, CauseToWorker},
			{254, pool, CausePassKernelPort}, {254, shared, CausePassKernelPort}, {254, target, CausePassKernelPort},
			{255, pool, CauseToWorker}, {255, shared, CauseToWorker},
		} {
			s.own(c.alias, l.row, port, c.byte)
			s.want(l.name+" to "+c.alias.String(), toUs(l.make(c.alias)), c.want)
			s.own(c.alias, l.row, port, 0)
			for row := range 4 { // no other row counts
				if row != l.row {
					s.own(c.alias, row, port, 254)
				}
			}
			free := map[packet.Addr]Cause{pool: CauseToWorker, shared: CausePassFree, target: CauseToWorker}[c.alias]
			s.want(l.name+" with the number taken in other rows", toUs(l.make(c.alias)), free)
			clear(s.rows[c.alias])
		}
	}
}

func TestProgramDecidesOnProtocolsWithoutPortsByHash(t *testing.T) {
	s := newSteering(t, ProgramOptions{Number: 3})
	for _, proto := range []uint8{0, 2, 4, 47, 50, 132, 255} {
		for _, from := range []packet.Addr{remote, 1 << 24, 0xdfffffff, 0x01020304} {
			frame := toUs(ip(from, shared, proto, 1, 0, []byte{1}))
			slot := OtherSlot(from, proto)
			s.want("free", frame, CausePassFree)
			s.own(shared, 3, slot, 7)
			s.want("owned", frame, CauseToWorker)
			s.own(shared, 3, slot, 254)
			s.want("kernel's", frame, CausePassKernelPort)
			quoted := toUs(ip(0x0a0a0a0a, shared, 1, 1, 0, icmp(3, 0, ip(shared, from, proto, 9, 0, []byte{1})...)))
			s.want("error about it", quoted, CausePassKernelPort)
			s.own(shared, 3, slot, 0)
		}
	}
}

func TestProgramLeavesEchoRequestsToTheKernelUnlessRedirected(t *testing.T) {
	s := newSteering(t, ProgramOptions{Number: 3})
	for _, kind := range []uint8{8, 13} {
		to := func(d packet.Addr) []byte { return toUs(ip(remote, d, 1, 1, 0, icmp(kind, 77))) }
		s.want("pool", to(pool), CauseToWorker)
		s.want("shared", to(shared), CausePassEcho)
		s.own(shared, 2, 77, 5)
		s.want("an inside host's id", to(shared), CausePassEcho)
		s.own(shared, 2, 77, 255)
		s.want("redirect_addr", to(shared), CauseToWorker)
		s.own(shared, 2, 77, 0)
	}
}

func TestProgramTreatsUnreadableHeadersAsUnowned(t *testing.T) {
	s := newSteering(t, ProgramOptions{Number: 3})
	for i := range s.rows[shared] {
		s.rows[shared][i], s.rows[pool][i] = 254, 254
	}
	quote := ip(shared, remote, 6, 9, 0, l4(4000, 53))
	later := ip(shared, remote, 6, 9, 1, l4(4000, 53))
	foreign := ip(host, remote, 6, 9, 0, l4(4000, 53))
	for name, p := range map[string][]byte{
		"TCP without ports":              ip(remote, shared, 6, 1, 0, []byte{1, 2, 3}),
		"ICMP without id":                ip(remote, shared, 1, 1, 0, []byte{0, 0, 0, 0}),
		"ICMP redirect":                  ip(remote, shared, 1, 1, 0, icmp(5, 0, quote...)),
		"error without quote":            ip(remote, shared, 1, 1, 0, icmp(3, 0)),
		"error with half a quote":        ip(remote, shared, 1, 1, 0, icmp(3, 0, quote[:22]...)),
		"error about a later fragment":   ip(remote, shared, 1, 1, 0, icmp(3, 0, later...)),
		"error about somebody else":      ip(remote, shared, 1, 1, 0, icmp(3, 0, foreign...)),
		"error quoting a bare IP header": ip(remote, shared, 1, 1, 0, icmp(3, 0, quote[:20]...)),
	} {
		s.want(name, toUs(p), CausePassFree)
		binary.BigEndian.PutUint32(p[16:], uint32(pool))
		s.want(name+" to a pool address", toUs(p), CauseToWorker)
	}
}

func TestProgramSendsLaterFragmentsAfterTheFirst(t *testing.T) {
	s := newSteering(t, ProgramOptions{Number: 3})
	s.own(shared, 1, 4000, 9)
	s.own(shared, 1, 5000, 254)
	later := func(id uint16) []byte { return toUs(ip(remote, shared, 17, id, 0x2000|185, make([]byte, 64))) }
	last := func(id uint16) []byte { return toUs(ip(remote, shared, 17, id, 185, make([]byte, 64))) }
	s.want("later fragment of nothing", later(1), CauseToWorker)
	s.want("first, owned by a worker", toUs(ip(remote, shared, 17, 1, 0x2000, l4(53, 4000))), CauseToWorker)
	s.want("its tail", last(1), CauseToWorker)
	s.want("first, the kernel's", toUs(ip(remote, shared, 17, 2, 0x2000, l4(53, 5000))), CausePassKernelPort)
	s.want("its middle", later(2), CausePassFragment)
	s.want("its tail", last(2), CausePassFragment)
	s.want("first with the same id, owned by a worker", toUs(ip(remote, shared, 17, 2, 0x2000, l4(53, 4000))), CauseToWorker)
	s.want("its tail", last(2), CauseToWorker)
	s.want("first with that id again the kernel's", toUs(ip(remote, shared, 17, 2, 0x2000, l4(53, 5000))), CausePassKernelPort)
	s.want("another id", last(3), CauseToWorker)
	s.want("another protocol", toUs(ip(remote, shared, 6, 2, 185, make([]byte, 64))), CauseToWorker)
	s.want("another sender", toUs(ip(remote+1, shared, 17, 2, 185, make([]byte, 64))), CauseToWorker)
	s.want("whole packet, the kernel's", toUs(ip(remote, shared, 17, 4, 0, l4(53, 5000))), CausePassKernelPort)
	s.want("fragment with a whole packet's id", last(4), CauseToWorker)
	s.want("fragment to a kernel address", toUs(ip(remote, host, 17, 5, 185, make([]byte, 64))), CausePassLocal)
}

func TestProgramLetsALiveKernelSocketWin(t *testing.T) {
	s := newSteering(t, ProgramOptions{Number: 3})
	addLoopback(t, shared, pool)
	listener, err := net.Listen("tcp4", shared.String()+":0")
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	udp, err := net.ListenPacket("udp4", shared.String()+":0")
	if err != nil {
		t.Fatal(err)
	}
	defer udp.Close()
	tcpPort := uint16(listener.Addr().(*net.TCPAddr).Port)
	udpPort := uint16(udp.LocalAddr().(*net.UDPAddr).Port)
	for _, owner := range []byte{1, 255} {
		s.own(shared, 0, tcpPort, owner)
		s.own(shared, 0, tcpPort+1, owner)
		s.own(shared, 1, udpPort, owner)
		s.own(shared, 1, tcpPort, owner)
		s.want("TCP listener", toUs(ip(remote, shared, 6, 1, 0, l4(999, tcpPort))), CausePassSocket)
		s.want("TCP beside it", toUs(ip(remote, shared, 6, 1, 0, l4(999, tcpPort+1))), CauseToWorker)
		s.want("UDP socket", toUs(ip(remote, shared, 17, 1, 0, l4(999, udpPort))), CausePassSocket)
		s.want("error about the UDP socket's packet", toUs(ip(remote, shared, 1, 1, 0,
			icmp(3, 0, ip(shared, remote, 17, 1, 0, l4(udpPort, 999))...))), CausePassSocket)
		if tcpPort != udpPort {
			s.want("UDP on the TCP listener's port", toUs(ip(remote, shared, 17, 1, 0, l4(999, tcpPort))), CauseToWorker)
		}
	}
	first := toUs(ip(remote, shared, 17, 8, 0x2000, l4(999, udpPort)))
	s.want("first fragment to the socket", first, CausePassSocket)
	s.want("its tail", toUs(ip(remote, shared, 17, 8, 185, make([]byte, 64))), CausePassFragment)

	// An established connection counts only for its own remote end.
	dialed := make(chan net.Conn, 1)
	go func() {
		c, _ := listener.Accept()
		dialed <- c
	}()
	client, err := net.DialTCP("tcp4", &net.TCPAddr{IP: net.ParseIP(shared.String())}, listener.Addr().(*net.TCPAddr))
	if err != nil {
		t.Fatal(err)
	}
	defer client.Close()
	defer (<-dialed).Close()
	own := uint16(client.LocalAddr().(*net.TCPAddr).Port)
	s.own(shared, 0, own, 1)
	s.want("connected: its remote", toUs(ip(shared, shared, 6, 1, 0, l4(tcpPort, own))), CausePassSocket)
	s.want("connected: another remote", toUs(ip(remote, shared, 6, 1, 0, l4(tcpPort, own))), CauseToWorker)

	// Where the kernel is said not to have the address no socket is looked for.
	s.kernelHas(target, host)
	s.want("listener on an address that the kernel lost", toUs(ip(remote, shared, 6, 1, 0, l4(999, tcpPort))), CauseToWorker)
}

func TestProgramDropsAndCountsWithoutASocketOnTheQueue(t *testing.T) {
	s := newSteering(t, ProgramOptions{Number: 3})
	if err := s.ClearSocket(0); err != nil {
		t.Fatal(err)
	}
	if err := s.ClearSocket(0); err != nil {
		t.Errorf("clearing an empty place: %v", err)
	}
	s.want("outbound", toUs(ip(host, remote, 17, 1, 0, l4(1, 2))), CauseNoQueue)
	s.want("inbound", toUs(ip(remote, pool, 17, 1, 0, l4(1, 2))), CauseNoQueue)
	s.want("the kernel's all the same", toUs(ip(remote, host, 17, 1, 0, l4(1, 2))), CausePassLocal)
}

// Addresses whose hashes meet in the filter must not hide one another when one of them goes.
func TestTablesFilterSurvivesCollisions(t *testing.T) {
	s := newSteering(t, ProgramOptions{Number: 3})
	twin := packet.Addr(0)
	for a := packet.Addr(0x0a000001); twin == 0; a++ {
		if filterHash(a) == filterHash(pool) {
			twin = a
		}
	}
	toTwin, toPool := toUs(ip(remote, twin, 17, 1, 0, l4(1, 2))), toUs(ip(remote, pool, 17, 1, 0, l4(1, 4000)))
	s.own(pool, 1, 4000, 254)
	s.want("unknown twin", toTwin, CauseToWorker)
	s.kernelHas(twin)
	s.want("known twin", toTwin, CausePassLocal)
	s.kernelHas()
	s.want("forgotten twin", toTwin, CauseToWorker)
	s.want("pool address", toPool, CausePassKernelPort)
	s.kernelHas(twin)
	if err := s.RemoveAlias(pool); err != nil {
		t.Fatal(err)
	}
	s.want("removed alias", toPool, CauseToWorker)
	s.want("twin left alone", toTwin, CausePassLocal)
}

func TestTablesKeepRowsUntilFreed(t *testing.T) {
	s := newSteering(t, ProgramOptions{Number: 3})
	frame := toUs(ip(remote, pool, 17, 1, 0, l4(53, 4000)))
	s.own(pool, 1, 4000, 254)
	s.want("before", frame, CausePassKernelPort)
	if err := s.RemoveAlias(pool); err != nil {
		t.Fatal(err)
	}
	s.want("removed", frame, CauseToWorker)
	again, err := s.SetAlias(pool, AliasOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if &again[0] != &s.rows[pool][0] {
		t.Error("the same alias has other rows")
	}
	s.want("there again", frame, CausePassKernelPort)
	if err := s.FreeAlias(pool); err == nil {
		t.Error("the rows of a live alias were freed")
	}
	s.RemoveAlias(pool)
	if err := s.FreeAlias(pool); err != nil {
		t.Fatal(err)
	}
	fresh, err := s.SetAlias(pool, AliasOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if fresh[AliasRowBytes+4000] != 0 {
		t.Error("new rows are not free")
	}
	s.want("fresh", frame, CauseToWorker)
	if n := len(s.Aliases()); n != 3 {
		t.Errorf("%d aliases, want 3", n)
	}
}
