package rings

import (
	"bytes"
	"encoding/binary"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"pollux/internal/packet"
)

// gateway is two veth pairs in one namespace, left0-left1 and right0-right1: sockets and programs on the 0 ends, one
// UMEM, and a raw socket on each 1 end.
type gateway struct {
	t      *testing.T
	umem   *UMEM
	pool   *Pool
	tables *Tables
	port   [2]*Socket
	prog   [2]*Program
	index  [2]int
	mac    [2]net.HardwareAddr
	wire   [2]wire
	frames int
}

func newGateway(t *testing.T, o SocketOptions) *gateway {
	t.Helper()
	ownNamespace(t)
	g := &gateway{t: t, frames: 2*SocketFrames(o.RingSize, Copy) + 64}
	g.umem, g.pool = testUMEM(t, g.frames)
	var err error
	if g.tables, err = NewTables(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { g.tables.Close() })
	for i, name := range []string{"left", "right"} {
		near, far := veth(t, name+"0", name+"1", 1)
		g.index[i], g.mac[i], g.wire[i] = near, macOf(t, near), newWire(t, far)
		o.Port = PortQueue{name + "0", near, 0}
		if g.port[i], err = OpenSocket(g.umem, o); err != nil {
			t.Fatal(err)
		}
		if g.prog[i], err = LoadProgram(ProgramOptions{Tables: g.tables, Number: i, MAC: g.mac[i]}); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { g.prog[i].Close(); g.port[i].Close(g.pool) })
		if err := g.prog[i].SetSocket(0, g.port[i].FD()); err != nil {
			t.Fatal(err)
		}
		g.port[i].Service(g.pool)
		if notice, err := g.prog[i].Attach(name+"0", near); err != nil || notice != "" {
			t.Fatalf("attach: %q, %v", notice, err)
		}
	}
	return g
}

// receive polls a port for up to a second.
func (g *gateway) receive(port int, b []Frame) []Frame {
	for end := time.Now().Add(time.Second); time.Now().Before(end); {
		if n := g.port[port].Receive(b); n > 0 {
			return b[:n]
		}
		time.Sleep(100 * time.Microsecond)
	}
	g.t.Fatalf("nothing was received on port %d", port)
	return nil
}

// account checks that every frame is somewhere; out is how many the test itself holds.
func (g *gateway) account(when string, out int) {
	g.t.Helper()
	sum := uint64(g.pool.Len() + out)
	for _, s := range g.port {
		f := s.Frames()
		sum += f.Fill + f.RX + f.TX
	}
	if sum != uint64(g.frames) || g.pool.Excess() != 0 {
		g.t.Errorf("%s: %d frames accounted for, %d given back twice, there are %d", when, sum, g.pool.Excess(), g.frames)
	}
}

func (g *gateway) datagram(in int, n uint16) []byte {
	f := ether(g.mac[in], 0x0800, ip(remote, host, 17, n, 0, l4(1000+n, 53)))
	return f
}

func TestSocketsCarryPacketsAcrossNetdevsOverOneUMEM(t *testing.T) {
	g := newGateway(t, SocketOptions{RingSize: 64})
	burst := make([]Frame, 32)
	const rounds = 20 // each ring wraps several times
	next := uint16(0)
	for round := range rounds {
		in, out := round%2, 1-round%2
		for range 32 {
			g.wire[in].send(t, g.datagram(in, next))
			next++
		}
		for got := 0; got < 32; {
			b := g.receive(in, burst)
			g.account("while a burst is held", len(b))
			for i := range b {
				f := g.umem.Data(b[i])
				want := g.datagram(in, next-32+uint16(got+i))
				if !bytes.Equal(f[:len(want)], want) {
					t.Fatalf("received % x, want % x", f, want)
				}
				copy(f, bcast)
			}
			if n := g.port[out].Transmit(b); n != len(b) {
				t.Fatalf("%d of %d taken", n, len(b))
			}
			g.account("after Transmit", 0)
			for i := range b {
				id := next - 32 + uint16(got+i)
				seen := g.wire[out].receive(func(p []byte) bool {
					return len(p) > 20 && p[23] == 17 && binary.BigEndian.Uint16(p[18:]) == id && bytes.Equal(p[:6], bcast)
				})
				if seen == nil {
					t.Fatalf("datagram %d did not leave", id)
				}
			}
			got += len(b)
			g.port[in].Service(g.pool)
			g.port[out].Service(g.pool)
		}
	}
	for i := range g.port {
		c := g.port[i].Counters()
		if c.Received != rounds*16 || c.Queued != rounds*16 || c.Completed != rounds*16 || c.KickErrors != 0 {
			t.Errorf("port %d: %+v, want %d each way", i, c, rounds*16)
		}
		st, err := g.port[i].Statistics()
		if err != nil || st.RXDropped+st.RXInvalid+st.TXInvalid+st.RXRingFull+st.FillRingEmpty != 0 {
			t.Errorf("port %d: %+v %v", i, st, err)
		}
		n, err := g.prog[i].Counters()
		if err != nil || n[CauseToWorker] != rounds*16 {
			t.Errorf("port %d: XDP counters %v %v", i, n, err)
		}
	}
	g.account("at the end", 0)
}

func TestSocketCloseReturnsEveryFrame(t *testing.T) {
	g := newGateway(t, SocketOptions{RingSize: 64})
	for n := range uint16(10) {
		g.wire[0].send(t, g.datagram(0, n))
	}
	held := g.receive(0, make([]Frame, 4)) // the others stay in the RX ring
	if n := g.port[1].Transmit(held[:2]); n != 2 {
		t.Fatalf("%d of 2 taken", n)
	}
	if f := g.port[0].Frames(); f.RX == 0 || f.Fill == 0 {
		t.Fatalf("%+v: the test wants frames in both rings", f)
	}
	for i := range g.port {
		if err := g.port[i].Close(g.pool); err != nil {
			t.Error(err)
		}
		if err := g.port[i].Close(g.pool); err != nil {
			t.Errorf("closed again: %v", err)
		}
	}
	if want := g.frames - (len(held) - 2); g.pool.Len() != want {
		t.Errorf("pool holds %d of %d after close, want %d", g.pool.Len(), g.frames, want)
	}
	seen := map[uint64]bool{}
	for {
		a, ok := g.pool.Get()
		if !ok {
			break
		}
		if seen[a] || a%4096 != 0 {
			t.Fatalf("frame %d came back twice", a)
		}
		seen[a] = true
	}
}

func TestTransmitTakesWhatFitsAndRefusesWhatCannotBeSent(t *testing.T) {
	g := newGateway(t, SocketOptions{RingSize: 64})
	l, err := netlink.LinkByIndex(g.index[1])
	if err != nil {
		t.Fatal(err)
	}
	if err := netlink.LinkSetDown(l); err != nil { // nothing leaves, so the ring fills up
		t.Fatal(err)
	}
	b := make([]Frame, 80)
	for i := range b {
		a, ok := g.pool.Get()
		if !ok {
			t.Fatal("no frame")
		}
		b[i] = Frame{Addr: a, Len: 60}
	}
	b[0].Len = 0
	b[1].Addr += 4000
	b[1].Len = 97
	if n := g.port[1].Transmit(b[:2]); n != 2 {
		t.Errorf("%d of 2 hopeless frames taken", n)
	}
	if n := g.port[1].Transmit(b[2:]); n != 64 {
		t.Errorf("%d of 78 frames fit a ring of 64", n)
	}
	g.account("with the ring full", 14)
	c := g.port[1].Counters()
	if c.Refused != 2 || c.Queued != 64 || c.KickErrors == 0 || c.LastError != unix.ENETDOWN {
		t.Errorf("%+v", c)
	}
	if g.port[1].Pending() {
		t.Error("a worker would spin for a link that is down")
	}
	g.port[1].Service(g.pool)
	if f := g.port[1].Frames(); f.TX != 64 {
		t.Errorf("%+v after Service, want the 64 queued ones in TX", f)
	}
	if err := netlink.LinkSetUp(l); err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(2 * time.Second); g.port[1].Frames().TX != 0 && time.Now().Before(end); {
		g.port[1].Service(g.pool)
		time.Sleep(time.Millisecond)
	}
	if c := g.port[1].Counters(); c.Completed != 64 {
		t.Errorf("after the link came up %+v, want 64 completed", c)
	}
	g.account("after the link came up", 14)
}

func TestBurstsAllocateNothing(t *testing.T) {
	g := newGateway(t, SocketOptions{RingSize: 64})
	f, err := NewForwarder(ForwarderOptions{UMEM: g.umem, Pool: g.pool, Ports: g.port,
		MAC: [2]net.HardwareAddr{g.mac[0], g.mac[1]}, NextHop: [2]net.HardwareAddr{bcast, bcast}})
	if err != nil {
		t.Fatal(err)
	}
	frame := g.datagram(0, 1)
	if n := testing.AllocsPerRun(50, func() {
		for range 8 {
			g.wire[0].send(t, frame)
		}
		for got := 0; got < 8; {
			got += f.Poll()
		}
		f.Poll()
	}); n != 0 {
		t.Errorf("%v allocations a burst", n)
	}
	if f.Dropped() != 0 {
		t.Errorf("%d dropped", f.Dropped())
	}
	g.account("after the bursts", 0)
}

func TestForwarderSleepsAndForwardsBothWays(t *testing.T) {
	g := newGateway(t, SocketOptions{RingSize: 64})
	f, err := NewForwarder(ForwarderOptions{UMEM: g.umem, Pool: g.pool, Ports: g.port,
		MAC: [2]net.HardwareAddr{g.mac[0], g.mac[1]}, NextHop: [2]net.HardwareAddr{bcast, theirs}})
	if err != nil {
		t.Fatal(err)
	}
	for _, sleep := range []bool{true, false} {
		done := make(chan error, 1)
		go func() { done <- f.Run(sleep) }()
		for in := range 2 {
			out := 1 - in
			for n := range uint16(100) {
				g.wire[in].send(t, g.datagram(in, n))
				got := g.wire[out].receive(func(p []byte) bool { return binary.BigEndian.Uint16(p[18:]) == n && p[23] == 17 })
				next := []net.HardwareAddr{bcast, theirs}[out]
				if got == nil || !bytes.Equal(got[:6], next) || !bytes.Equal(got[6:12], g.mac[out]) {
					t.Fatalf("sleep %v, datagram %d from port %d: got % x", sleep, n, in, got)
				}
			}
		}
		f.Stop()
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		f.stop.Store(false)
	}
	for range 3 {
		f.Poll()
	}
	g.account("at the end", 0)
}

func TestAttachFallsBackToGenericWithANotice(t *testing.T) {
	ownNamespace(t)
	l, err := netlink.LinkByName("lo") // its driver can't
	if err != nil {
		t.Fatal(err)
	}
	tables, err := NewTables()
	if err != nil {
		t.Fatal(err)
	}
	defer tables.Close()
	p, err := LoadProgram(ProgramOptions{Tables: tables, MAC: ours})
	if err != nil {
		t.Fatal(err)
	}
	defer p.Close()
	notice, err := p.Attach("lo", l.Attrs().Index)
	if err != nil || !strings.Contains(notice, "lo") || !strings.Contains(notice, "generic") || strings.Contains(notice, "\n") {
		t.Errorf("notice %q, error %v", notice, err)
	}
	if err := p.Detach(); err != nil {
		t.Error(err)
	}
	if _, err := p.Attach("lo", l.Attrs().Index); err != nil {
		t.Errorf("attached again: %v", err)
	}
}

func TestAttachNamesTheProgramInTheWay(t *testing.T) {
	g := newGateway(t, SocketOptions{RingSize: 64})
	other, err := LoadProgram(ProgramOptions{Tables: g.tables, Number: 5, MAC: ours})
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	_, err = other.Attach("left0", g.index[0])
	if err == nil || !strings.Contains(err.Error(), `"pollux"`) || !strings.Contains(err.Error(), "left0") || strings.Contains(err.Error(), "\n") {
		t.Errorf("attach on top of another program: %v", err)
	}
	_, err = other.Attach("nope", 99999)
	if err == nil || !strings.Contains(err.Error(), "ip link") {
		t.Errorf("attach to nothing: %v", err)
	}
	u, _ := testUMEM(t, 64)
	_, err = OpenSocket(u, SocketOptions{Port: PortQueue{"left0", g.index[0], 0}, RingSize: 64})
	if err == nil || !strings.Contains(err.Error(), `"pollux"`) {
		t.Errorf("a busy queue's error does not name the XDP program: %v", err)
	}
}

func TestPuntDeliversToTheKernel(t *testing.T) {
	g := newGateway(t, SocketOptions{RingSize: 64})
	l, err := netlink.LinkByIndex(g.index[0])
	if err != nil {
		t.Fatal(err)
	}
	addr := &netlink.Addr{IPNet: &net.IPNet{IP: host.Netip().AsSlice(), Mask: net.CIDRMask(24, 32)}}
	if err := netlink.AddrAdd(l, addr); err != nil {
		t.Fatal(err)
	}
	conn, err := net.ListenPacket("udp4", host.String()+":5353")
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	punt, err := NewPunt()
	if err != nil {
		t.Fatal(err)
	}
	defer punt.Close()
	near := packet.AddrFrom(netip.MustParseAddr("198.51.100.77"))
	for size := range []int{0, 1400} {
		udp := l4(4000, 5353)
		udp = append(udp[:8], bytes.Repeat([]byte{'x'}, 12+size)...)
		binary.BigEndian.PutUint16(udp[4:], uint16(len(udp)))
		frame := ether(g.mac[0], 0x0800, ip(near, host, 17, 1, 0, udp))
		if err := punt.Send(g.index[0], frame); err != nil {
			t.Fatal(err)
		}
		b := make([]byte, 2000)
		conn.SetReadDeadline(time.Now().Add(time.Second))
		n, from, err := conn.ReadFrom(b)
		if err != nil || n != len(udp)-8 || from.String() != "198.51.100.77:4000" {
			t.Fatalf("the socket got %d bytes from %v, %v", n, from, err)
		}
	}
	if err := punt.Send(99999, g.datagram(0, 1)); err == nil || !strings.Contains(err.Error(), "99999") {
		t.Errorf("punt to nowhere: %v", err)
	}
	if err := punt.Send(g.index[0], make([]byte, PuntBytesMax+1)); err == nil {
		t.Error("a frame of more than a page was accepted")
	}
	if err := punt.Send(g.index[0], append(g.datagram(0, 1), make([]byte, PuntBytesMax-60)...)[:PuntBytesMax]); err != nil {
		t.Errorf("a frame of %d bytes: %v", PuntBytesMax, err)
	}
}

// A veth whose far end has no NAPI swallows what XDP sends back, so there the worker answers.
func TestARPAnswerByTheWorkerArrivesOverVeth(t *testing.T) {
	g := newGateway(t, SocketOptions{RingSize: 64})
	if CanSendBack("left0") {
		t.Fatal("a veth can't be relied on to send back from XDP")
	}
	g.prog[0].Close()
	var err error
	g.prog[0], err = LoadProgram(ProgramOptions{Tables: g.tables, MAC: g.mac[0], ARPByWorker: true})
	if err != nil {
		t.Fatal(err)
	}
	if err := g.prog[0].SetSocket(0, g.port[0].FD()); err != nil {
		t.Fatal(err)
	}
	if _, err := g.prog[0].Attach("left0", g.index[0]); err != nil {
		t.Fatal(err)
	}
	if _, err := g.tables.SetAlias(pool, AliasOptions{ARPPorts: 1}); err != nil {
		t.Fatal(err)
	}
	g.wire[0].send(t, ether(bcast, 0x0806, arpRequest(remote, pool)))
	b := g.receive(0, make([]Frame, 1))
	mac := [6]byte(g.mac[0])
	if !AnswerARP(g.umem.Data(b[0]), &mac) {
		t.Fatalf("% x is no request", g.umem.Data(b[0]))
	}
	g.port[0].Transmit(b)
	got := g.wire[0].receive(func(p []byte) bool { return p[12] == 8 && p[13] == 6 && p[21] == 2 })
	if got == nil || !bytes.Equal(got[:6], theirs) || !bytes.Equal(got[22:28], g.mac[0]) {
		t.Errorf("the asker got % x", got)
	}
}

// TestMain lets the test binary be the process that is killed.
func TestMain(m *testing.M) {
	if os.Getenv("POLLUX_TEST_HOLD_PORT") != "" {
		holdPort()
	}
	os.Exit(m.Run())
}

// holdPort binds and attaches to a0 in the namespace it was started in, says so, and waits to be killed.
func holdPort() {
	runtime.LockOSThread()
	fail := func(err error) {
		if err != nil {
			println(err.Error())
			os.Exit(1)
		}
	}
	l, err := netlink.LinkByName("a0")
	fail(err)
	u, err := NewUMEM(UMEMOptions{Frames: 128})
	fail(err)
	s, err := OpenSocket(u, SocketOptions{Port: PortQueue{"a0", l.Attrs().Index, 0}, RingSize: 64})
	fail(err)
	tables, err := NewTables()
	fail(err)
	p, err := LoadProgram(ProgramOptions{Tables: tables, MAC: l.Attrs().HardwareAddr})
	fail(err)
	fail(p.SetSocket(0, s.FD()))
	_, err = p.Attach("a0", l.Attrs().Index)
	fail(err)
	os.Stdout.WriteString("ready\n")
	time.Sleep(time.Minute)
	os.Exit(1)
}

func TestKilledProcessLeavesNothingAttached(t *testing.T) {
	ownNamespace(t)
	a, _ := veth(t, "a0", "a1", 1)
	u, pool := testUMEM(t, 128)
	attached := func() bool {
		l, err := netlink.LinkByIndex(a)
		if err != nil {
			t.Fatal(err)
		}
		return l.Attrs().Xdp != nil && l.Attrs().Xdp.Attached
	}
	for round := range 5 {
		child := exec.Command("/proc/self/exe", "-test.run=^$") // it inherits the thread's namespace
		child.Env = append(os.Environ(), "POLLUX_TEST_HOLD_PORT=1")
		child.Stderr = os.Stderr
		out, err := child.StdoutPipe()
		if err != nil {
			t.Fatal(err)
		}
		if err := child.Start(); err != nil {
			t.Fatal(err)
		}
		if b := make([]byte, 6); true {
			if _, err := out.Read(b); err != nil || string(b) != "ready\n" {
				child.Process.Kill()
				t.Fatalf("the child said %q, %v", b, err)
			}
		}
		if !attached() {
			t.Error("the child's program is not attached")
		}
		child.Process.Kill()
		child.Wait()
		for end := time.Now().Add(time.Second); attached() && time.Now().Before(end); {
			time.Sleep(time.Millisecond)
		}
		if attached() {
			t.Fatalf("round %d: a killed process's program is still attached", round)
		}
		s, err := OpenSocket(u, SocketOptions{Port: PortQueue{"a0", a, 0}, RingSize: 64})
		if err != nil {
			t.Fatalf("round %d: the queue did not come free: %v", round, err)
		}
		if err := s.Close(pool); err != nil {
			t.Fatal(err)
		}
	}
}
