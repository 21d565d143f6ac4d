package pmd

import (
	"fmt"
	"math/rand/v2"
	"os"
	"runtime"
	"slices"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"pollux/internal/lab"
	"pollux/internal/packet"
	"pollux/internal/reason"
	"pollux/nat"
	"pollux/rings"
)

// sprayer is a host that sends by the transmit queue of its choice: on a veth that is the queue by which the gateway receives.
// It also sees what comes to the host, and answers nothing.
type sprayer struct {
	t       *testing.T
	host    *lab.Host
	umem    *rings.UMEM
	pool    *rings.Pool
	sockets []*rings.Socket // by queue
	wire    int             // raw socket
	from    [6]byte
	to      [6]byte
}

// deadline is generous: nothing here is judged by time.
const deadline = 20 * time.Second

func newSprayer(t *testing.T, l *lab.Lab, host *lab.Host, device string, queues int) *sprayer {
	t.Helper()
	s := &sprayer{t: t, host: host}
	check := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	near, err := host.Netlink().LinkByName(host.Device)
	check(err)
	far, err := l.Gateway.Netlink().LinkByName(device)
	check(err)
	s.from, s.to = [6]byte(near.Attrs().HardwareAddr), [6]byte(far.Attrs().HardwareAddr)
	s.umem, err = rings.NewUMEM(rings.UMEMOptions{Frames: 1024 * queues, ChunkSize: 2048})
	check(err)
	t.Cleanup(func() { s.umem.Close() })
	s.pool, err = s.umem.NewPool(1024 * queues)
	check(err)
	check(host.Do(func() error {
		for q := range queues {
			socket, err := rings.OpenSocket(s.umem, rings.SocketOptions{Port: rings.PortQueue{Name: host.Device, Index: near.Attrs().Index, Queue: q}, Mode: rings.Copy, RingSize: 256})
			if err != nil {
				return err
			}
			s.sockets = append(s.sockets, socket)
			t.Cleanup(func() { socket.Close(s.pool) })
		}
		const all = unix.ETH_P_ALL<<8 | unix.ETH_P_ALL>>8
		s.wire, err = unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, all)
		if err != nil {
			return err
		}
		t.Cleanup(func() { unix.Close(s.wire) })
		_ = unix.SetsockoptInt(s.wire, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 32<<20)
		_ = unix.SetsockoptTimeval(s.wire, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Usec: 100000})
		return unix.Bind(s.wire, &unix.SockaddrLinklayer{Protocol: all, Ifindex: near.Attrs().Index})
	}))
	return s
}

// send sends a frame by one queue, with the MAC addresses that belong there.
func (s *sprayer) send(queue int, frame []byte) {
	s.t.Helper()
	copy(frame[0:], s.to[:])
	copy(frame[6:], s.from[:])
	socket := s.sockets[queue]
	for end := time.Now().Add(deadline); ; {
		socket.Service(s.pool)
		if addr, ok := s.pool.Get(); ok {
			f := rings.Frame{Addr: addr, Len: uint32(len(frame))}
			copy(s.umem.Data(f), frame)
			if socket.Transmit([]rings.Frame{f}) == 1 {
				return
			}
			s.pool.Put(addr)
		}
		if time.Now().After(end) {
			s.t.Fatalf("queue %d takes no more frames", queue)
		}
		runtime.Gosched()
	}
}

// flush sees to it that everything was sent.
func (s *sprayer) flush() {
	s.t.Helper()
	for end := time.Now().Add(deadline); ; {
		waiting := uint64(0)
		for _, socket := range s.sockets {
			socket.Service(s.pool)
			waiting += socket.Frames().TX
		}
		if waiting == 0 {
			return
		}
		if time.Now().After(end) {
			s.t.Fatalf("%d frames do not leave the host", waiting)
		}
	}
}

// see calls visit for each UDP packet that comes in, until it says that that was the last one.
func (s *sprayer) see(what string, visit func(h *packet.Headers) (done bool)) {
	s.t.Helper()
	b := make([]byte, 2048)
	for end := time.Now().Add(deadline); time.Now().Before(end); {
		n, from, err := unix.Recvfrom(s.wire, b, 0)
		if err != nil {
			continue
		}
		var h packet.Headers
		if ll, ok := from.(*unix.SockaddrLinklayer); !ok || ll.Pkttype == unix.PACKET_OUTGOING {
			continue
		}
		if packet.Parse(b[:n], &h); h.Kind != packet.KindUDP {
			continue
		}
		if err := packet.Verify(b[:n]); err != nil {
			s.t.Fatal(err)
		}
		if visit(&h) {
			return
		}
	}
	s.t.Fatalf("%s did not all arrive", what)
}

// sentBy is how many frames a host has sent by all queues, as its kernel counts.
func (s *sprayer) sentBy() uint64 {
	s.t.Helper()
	link, err := s.host.Netlink().LinkByName(s.host.Device)
	if err != nil {
		s.t.Fatal(err)
	}
	return link.Attrs().Statistics.TxPackets
}

// sprayLab is a lab of n queues behind both of whose hosts there are nets, so that no kernel answers for them.
func sprayLab(t *testing.T, n int) *lab.Lab {
	t.Helper()
	l := newLab(t, lab.Options{Queues: n})
	for _, c := range []string{
		"route add 10.1.0.0/16 via " + l.Inside[0].Addr.String() + " dev " + lab.InsideDevice,
		"route add 198.18.0.0/15 via " + l.Outside[0].Addr.String() + " dev " + lab.OutsideDevice,
	} {
		if err := l.Gateway.IP(c); err != nil {
			t.Fatal(err)
		}
	}
	return l
}

// TestEveryPacketByTheWrongQueue: both directions of every flow come in by the queue of another worker than the one that owns it,
// with 2, 4 and 8 workers; every packet is handed over, for the reason that its kind has, and none is lost.
func TestEveryPacketByTheWrongQueue(t *testing.T) {
	for _, c := range []struct {
		workers int
		flow    bool
	}{{1, false}, {2, false}, {4, false}, {4, true}, {8, false}} {
		t.Run(fmt.Sprintf("%d workers, flow %v", c.workers, c.flow), func(t *testing.T) {
			n := c.workers
			l := sprayLab(t, n)
			o := labOptions()
			o.Cores, o.Oversubscribe, o.SteerFlow = rangeOf(n), true, c.flow
			o.Rules.Mapping.UDP = nat.AddressAndPortDependent
			g, err := startIn(t, l, o)
			if err != nil {
				t.Fatal(err)
			}
			in, out := newSprayer(t, l, l.Inside[0], lab.InsideDevice, n), newSprayer(t, l, l.Outside[0], lab.OutsideDevice, n)
			wrong := func(owner int) int { return (owner + 1) % n }
			const flows = 200
			local := func(i int) (packet.Addr, uint16) { return addr("10.1.0.0") + packet.Addr(i/2), uint16(3000 + i) }
			remote := func(i int) (packet.Addr, uint16) { return addr("198.18.0.0") + packet.Addr(i), 53 }
			owners := make([]int, flows)
			for i := range flows {
				var b packet.Build
				b.Src, b.SrcPort = local(i)
				b.Dst, b.DstPort = remote(i)
				if n > 1 {
					owners[i] = g.steering.Outbound(packet.ProtoUDP, b.Src, b.SrcPort, b.Dst, b.DstPort)
				}
				in.send(wrong(owners[i]), b.UDP([]byte("out")))
			}
			in.flush()
			alias := make([]nat.Alias, flows)
			left := flows
			out.see("packets from inside", func(h *packet.Headers) bool {
				if i := int(h.Dst) - int(addr("198.18.0.0")); i >= 0 && i < flows && alias[i].Port == 0 {
					alias[i] = nat.Alias{Addr: h.Src, Port: h.SrcPort}
					left--
				}
				return left == 0
			})
			for i, a := range alias {
				b := packet.Build{Dst: a.Addr, DstPort: a.Port}
				b.Src, b.SrcPort = remote(i)
				if n > 1 {
					if to := g.steering.Inbound(packet.ProtoUDP, b.Src, b.SrcPort, b.Dst, b.DstPort); to != owners[i] {
						t.Fatalf("flow %d: worker %d owns it one way, %d the other", i, owners[i], to)
					}
				}
				out.send(wrong(owners[i]), b.UDP([]byte("back")))
			}
			out.flush()
			answered := make([]bool, flows)
			left = flows
			in.see("answers", func(h *packet.Headers) bool {
				for i := range answered {
					src, sport := local(i)
					if h.Dst == src && h.DstPort == sport && !answered[i] {
						answered[i] = true
						left--
					}
				}
				return left == 0
			})
			var byWorker [8]int
			if err := g.Links(func(k nat.LinkInfo) bool { byWorker[k.Worker]++; return true }); err != nil {
				t.Fatal(err)
			}
			for k := range n {
				if want := len(slices.DeleteFunc(slices.Clone(owners), func(o int) bool { return o != k })); byWorker[k] != want || want == 0 {
					t.Errorf("worker %d has %d links, owns %d", k, byWorker[k], want)
				}
			}
			outbound := steerWhyNames[byHost]
			if c.flow {
				outbound = steerWhyNames[byFlow]
			}
			handed := map[string]uint64{}
			for _, w := range g.Workers() {
				for why, k := range w.HandedWhy {
					handed[why] += k
				}
				if w.Leaked != 0 {
					t.Errorf("worker %d: %d frames leaked", w.Worker, w.Leaked)
				}
			}
			if n > 1 && (handed[outbound] < flows || handed["alias-port"] < flows) {
				t.Errorf("handed over: %v, want %d for %s and for alias-port", handed, flows, outbound)
			}
			if n == 1 && len(handed) > 0 {
				t.Errorf("one worker handed over: %v", handed)
			}
			account(t, g, in, out)
		})
	}
}

// account stops a gateway and checks that everything that its hosts ever sent has exactly one end.
func account(t *testing.T, g *Gateway, hosts ...*sprayer) {
	t.Helper()
	var arrived, decided, toWorker uint64
	var causes [rings.Causes]uint64
	for _, s := range hosts {
		s.flush()
	}
	// The kernel's own traffic goes on: the counts are taken again until they stand still while they are read.
	for end := time.Now().Add(deadline); ; {
		arrived, decided = 0, 0
		for _, s := range hosts {
			arrived += s.sentBy()
		}
		causes = [rings.Causes]uint64{}
		for i := range g.ports {
			n, err := g.ports[i].program.Counters()
			if err != nil {
				t.Fatal(err)
			}
			for c := range n {
				causes[c] += n[c]
				decided += n[c]
			}
		}
		toWorker = causes[rings.CauseToWorker]
		received := uint64(0)
		for _, p := range g.Ports() {
			received += p.RX + p.RXDropped + p.RXFull
		}
		if received == toWorker && toWorker > 0 {
			break
		}
		if time.Now().After(end) {
			t.Fatalf("the XDP programs gave %d packets to workers, which have %d", toWorker, received)
		}
		time.Sleep(10 * time.Millisecond)
	}
	if decided > arrived { // before the programs were attached packets came that nobody counted
		t.Errorf("%d packets arrived, the XDP programs decided about %d: %v", arrived, decided, causes)
	}
	if err := g.Stop(); err != nil {
		t.Error(err)
	}
	var received, forwarded, arps, ended, out, in, held uint64
	for _, w := range g.Workers() {
		received, forwarded, arps, out, in = received+w.Received, forwarded+w.Forwarded, arps+w.ARP, out+w.HandedOut, in+w.HandedIn
		if w.Leaked != 0 {
			t.Errorf("worker %d: %d frames leaked", w.Worker, w.Leaked)
		}
	}
	for _, d := range g.Drops() {
		switch d.Reason {
		case reason.NoQueue:
		case reason.Held:
			held = d.Count
		default:
			ended += d.Count
		}
	}
	if out != in {
		t.Errorf("%d packets handed over, %d taken", out, in)
	}
	if received != forwarded+ended+arps+held {
		t.Errorf("received %d, forwarded %d, ended %d, ARP %d, held %d: %v", received, forwarded, ended, arps, held, dropsOf(g))
	}
	t.Logf("received %d, forwarded %d, handed over %d, held %d, ended %v", received, forwarded, out, held, dropsOf(g))
}

// TestHostileSprayOverQueues: random packets from both sides by every queue, many of them broken, end one by one: what was received
// is what was forwarded, dropped by reason, answered or is held, exactly. In a build with the tag framecheck every shard and every
// frame is held to its owner on the way. POLLUX_SPRAY (a duration) makes it longer.
func TestHostileSprayOverQueues(t *testing.T) {
	for _, n := range []int{2, 4, 8} {
		t.Run(fmt.Sprint(n), func(t *testing.T) {
			l := sprayLab(t, n)
			o := labOptions()
			o.Cores, o.Oversubscribe = rangeOf(n), true
			o.Limits.Links = 1000
			hostileRules(&o.Rules)
			g, err := startIn(t, l, o)
			if err != nil {
				t.Fatal(err)
			}
			hosts := [2]*sprayer{newSprayer(t, l, l.Inside[0], lab.InsideDevice, n), newSprayer(t, l, l.Outside[0], lab.OutsideDevice, n)}
			random := rand.New(rand.NewPCG(uint64(n), 3))
			long, _ := time.ParseDuration(os.Getenv("POLLUX_SPRAY"))
			for i, end := 0, time.Now().Add(long); i < 15000 || time.Now().Before(end); i++ {
				port, f := hostile(random)
				if random.IntN(4) > 0 { // between the nets behind the hosts, where next hops are known
					if port == inPort {
						f[26], f[27] = 10, 1
						if f[30] == 198 {
							f[30], f[31] = 198, 18
						}
					} else {
						f[26], f[27] = 198, 18
					}
					fixChecksum(f)
				}
				if len(f) > 1514 {
					f = f[:1514]
				}
				hosts[port].send(random.IntN(n), f)
			}
			var handed, forwarded uint64
			for _, w := range g.Workers() {
				handed, forwarded = handed+w.HandedOut, forwarded+w.Forwarded
			}
			reasons := 0
			for _, d := range g.Drops() {
				if d.Count > 0 {
					reasons++
				}
			}
			if reasons < 8 || forwarded < 300 || handed < 3000 {
				t.Errorf("forwarded %d, handed over %d, ended %v: this test has lost its grip", forwarded, handed, dropsOf(g))
			}
			account(t, g, hosts[0], hosts[1])
		})
	}
}

// fixChecksum makes an IPv4 header's checksum right after a change.
func fixChecksum(f []byte) {
	f[24], f[25] = 0, 0
	sum := uint32(0)
	for i := 14; i < 34; i += 2 {
		sum += uint32(f[i])<<8 | uint32(f[i+1])
	}
	sum = sum>>16 + sum&0xffff
	sum = ^(sum>>16 + sum)
	f[24], f[25] = byte(sum>>8), byte(sum)
}

// TestOneWayLoad: packets come in by one queue only, all of them other workers', and nothing ever comes back: every frame has to go
// home by itself. The frames of each worker and of all stay as many as they were. POLLUX_ONEWAY (a duration) makes it longer.
func TestOneWayLoad(t *testing.T) {
	const n = 4
	l := sprayLab(t, n)
	o := labOptions()
	o.Cores, o.Oversubscribe = rangeOf(n), true
	o.Rules.Mapping.UDP = nat.AddressAndPortDependent
	g, err := startIn(t, l, o)
	if err != nil {
		t.Fatal(err)
	}
	in, out := newSprayer(t, l, l.Inside[0], lab.InsideDevice, n), newSprayer(t, l, l.Outside[0], lab.OutsideDevice, n)
	unix.Close(out.wire) // nobody reads it
	out.wire = -1
	// What lies in queues would be on its way when the totals are taken, so the load pauses then.
	total := func() (all int, each []int, moving uint64) {
		for _, w := range g.Workers() {
			sum := 0
			for _, k := range w.Frames {
				sum += int(k)
			}
			all, each = all+sum, append(each, sum-int(w.Frames["handed-over"]))
			moving += w.Frames["handed-over"] + w.Frames["going-home"] + w.Frames["tx"] + w.Frames["rx"] + uint64(max(w.Leaked, -w.Leaked))
		}
		return all, each, moving
	}
	still := func() (int, []int) {
		t.Helper()
		for end := time.Now().Add(deadline); ; time.Sleep(5 * time.Millisecond) {
			all, each, moving := total()
			if moving == 0 && all == g.frames {
				return all, each
			}
			if time.Now().After(end) {
				t.Fatalf("%d of %d frames, by worker %v, %d of them on their way for ever", all, g.frames, each, moving)
			}
		}
	}
	_, before := still()
	long, _ := time.ParseDuration(os.Getenv("POLLUX_ONEWAY"))
	sent := 0
	for i, end := 0, time.Now().Add(long); i < 20 || time.Now().Before(end); i++ {
		for k := 0; k < 2000; sent++ {
			b := packet.Build{Src: addr("10.1.0.0") + packet.Addr(sent%3000), SrcPort: 4000, Dst: addr("198.18.0.1"), DstPort: 53}
			if g.steering.Outbound(packet.ProtoUDP, b.Src, b.SrcPort, b.Dst, b.DstPort) != 0 {
				in.send(0, b.UDP(nil))
				k++
			}
		}
		in.flush()
		if _, each := still(); !slices.Equal(each, before) {
			t.Fatalf("after %d packets the workers have %v frames, before %v", sent, each, before)
		}
	}
	w := g.Workers()
	if w[0].HandedOut < 20*2000*9/10 || w[0].HandedOut != w[1].HandedIn+w[2].HandedIn+w[3].HandedIn {
		t.Errorf("worker 0 handed over %d packets; the others took %d, %d and %d", w[0].HandedOut, w[1].HandedIn, w[2].HandedIn, w[3].HandedIn)
	}
	account(t, g, in, out)
}
