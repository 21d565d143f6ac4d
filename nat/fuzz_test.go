package nat

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"pollux/internal/clock"
	"pollux/internal/packet"
)

// script is a fuzzer's bytes read as a story: rules, then steps. What the bytes don't say is zero.
type script struct {
	b    []byte
	told strings.Builder
}

func (r *script) byte() byte {
	if len(r.b) == 0 {
		return 0
	}
	c := r.b[0]
	r.b = r.b[1:]
	return c
}

func (r *script) bit(c byte, n int) bool { return c>>n&1 != 0 }

func (r *script) tell(format string, args ...any) {
	fmt.Fprintf(&r.told, format+"\n", args...)
}

// The world of the stories is small, so that things meet.
var (
	fuzzHosts   = []packet.Addr{prv1, prv2, addr("172.16.0.9"), addr("100.64.1.1"), addr("192.88.99.1")} // the last one is registered
	fuzzRemotes = []packet.Addr{ext1, ext2, addr("192.0.2.7"), addr("198.51.100.255")}
	fuzzAliases = []packet.Addr{pub1, pub2, pub9}
	fuzzPorts   = []uint16{53, 80, 2000, 2001, 2002, 2003, 40000, 1}
	fuzzInside  = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("172.16.0.0/12"),
		netip.MustParsePrefix("100.64.0.0/10"), netip.MustParsePrefix("192.88.99.0/24")}
)

func within(list []netip.Prefix) func(packet.Addr) bool {
	return func(a packet.Addr) bool {
		for _, p := range list {
			if p.Contains(a.Netip()) {
				return true
			}
		}
		return false
	}
}

func pick[T any](list []T, c byte) T { return list[int(c)%len(list)] }

// rules reads rules.
func (r *script) rules() Rules {
	x := DefaultRules()
	a, b, c, d, e := r.byte(), r.byte(), r.byte(), r.byte(), r.byte()
	for i, f := range fuzzAliases {
		if !r.bit(a, i) {
			x.Alias = append(x.Alias, f)
		}
	}
	if r.bit(a, 3) {
		x.Kernel = fuzzAliases[:1]
	}
	x.Arbitrary, x.SamePorts, x.PortParity, x.DenyIncoming = r.bit(a, 4), !r.bit(a, 5), r.bit(a, 6), !r.bit(a, 7)
	x.Mapping = PerProtocol{Behaviour(b % 3), Behaviour(b / 3 % 3), Behaviour(b / 9 % 3)}
	x.Filtering = PerProtocol{Behaviour(c % 3), Behaviour(c / 3 % 3), Behaviour(c / 9 % 3)}
	x.UnregisteredOnly, x.UnregisteredCGN, x.ResetOnAddressChange, x.Hairpin = r.bit(d, 0), r.bit(d, 1), !r.bit(d, 2), !r.bit(d, 3)
	x.TCPWindowTracking = r.bit(d, 4)
	if r.bit(d, 5) {
		x.Target = fuzzHosts[1]
	}
	if r.bit(d, 6) {
		x.MSSClamp = 1000
	}
	if r.bit(d, 7) {
		x.Exempt = []netip.Prefix{netip.MustParsePrefix("192.0.2.0/25")}
	}
	switch e % 4 {
	case 0:
		x.PortRange = PortRange{2000, 2003}
	case 1:
		x.PortRange = PortRange{2000, 2063}
	case 2:
		x.PortRange, x.Blocks = PortRange{2048, 2111}, Blocks{Size: 8, MaxPerHost: 2, IdleRelease: 2 * time.Second, Rest: 3 * time.Second}
	}
	if r.bit(e, 2) {
		x.RedirectPort = append(x.RedirectPort,
			RedirectPort{Proto: packet.ProtoTCP, Public: Alias{pub1, 80}, Local: []Local{{prv1, 80}, {prv2, 2000}}, Pick: Pick(e >> 7)},
			RedirectPort{Proto: packet.ProtoUDP, Public: Alias{pub1, 53}, Local: []Local{{prv1, 53}}, Remote: Remote{ext1, 0}})
	}
	if r.bit(e, 3) {
		x.RedirectAddr = append(x.RedirectAddr, RedirectAddr{Public: pub9, Local: []packet.Addr{prv2}, Inbound: r.bit(e, 6)})
	}
	if r.bit(e, 4) {
		x.RedirectProto = append(x.RedirectProto, RedirectProto{Proto: 47, Public: pub1, Local: prv1})
	}
	if r.bit(e, 5) {
		x.Timeouts.UDP, x.Timeouts.TCPOpening = time.Second, 2*time.Second
	}
	return x
}

// endpoints reads who sends to whom, and the side that the packet comes in by.
func (r *script) endpoints(b *packet.Build) Side {
	who, ports := r.byte(), r.byte()
	host, remote, alias := pick(fuzzHosts, who&7), pick(fuzzRemotes, who>>3&3), pick(fuzzAliases, who>>5&1)
	b.SrcPort, b.DstPort = pick(fuzzPorts, ports), pick(fuzzPorts, ports>>3)
	switch ports >> 6 {
	case 0: // out
		b.Src, b.Dst = host, remote
	case 1: // in
		b.Src, b.Dst = remote, alias
		return Outside
	case 2: // hairpin
		b.Src, b.Dst = host, alias
	default: // whatever
		b.Src, b.Dst = remote, host
		return Side(who >> 7)
	}
	return Inside
}

// packet reads a structured packet.
func (r *script) packet() (Side, []byte) {
	var b packet.Build
	side := r.endpoints(&b)
	kind, more := r.byte(), r.byte()
	b.TTL, b.ID, b.DF = 64, uint16(kind>>6), r.bit(more, 0)
	payload := make([]byte, 8*int(more>>1&7))
	for i := range payload {
		payload[i] = byte(i * 7)
	}
	if r.bit(more, 4) {
		b.TTL = more >> 5 & 3
	} else if r.bit(more, 5) {
		b.Options = []byte{7, 7, 4, 0, 0, 0, 0, 0}
	}
	if r.bit(more, 6) {
		b.Pad = 70
	}
	if r.bit(more, 7) { // a fragment
		f := r.byte()
		b.MF, b.FragOff = r.bit(f, 0), uint16(f>>1&15)*8
		b.ID = uint16(f >> 5)
	}
	if b.FragOff > 0 {
		return side, b.IP(pick([]uint8{17, 6, 1, 47}, kind), payload)
	}
	switch kind & 7 {
	case 0, 1:
		b.NoChecksum, b.HalfMade = r.bit(kind, 3), r.bit(kind, 4)
		return side, b.UDP(payload)
	case 2, 3, 4:
		b.Flags, b.HalfMade = pick([]uint8{syn, ack, syn | ack, fin | ack, rst, rst | ack, syn | rst, 0xff}, kind>>3), r.bit(kind, 6)
		b.Seq, b.Ack = uint32(kind)<<20, uint32(more)<<22
		if b.Flags&syn != 0 {
			b.TCPOptions = []byte{2, 4, 5, 0xb4, 1}
		}
		return side, b.TCP(payload)
	case 5:
		return side, b.Echo(r.bit(kind, 3), uint16(more), payload)
	case 6:
		return side, b.ICMP(pick([]uint8{13, 14, 3, 11, 12, 4, 5, 8}, kind>>3), kind>>6, uint32(b.SrcPort)<<16, payload)
	}
	return side, b.IP(pick([]uint8{47, 50, 254, 1, 6, 17}, kind>>3), payload)
}

// raw reads a frame byte by byte. Unless the story wants it wrong, it is IPv4 with a right header checksum.
func (r *script) raw() []byte {
	n := int(r.byte())
	frame := make([]byte, n)
	for i := range frame {
		frame[i] = r.byte()
	}
	return patch(frame)
}

// patch makes a frame one that Parse looks into.
func patch(frame []byte) []byte {
	if len(frame) < 34 || frame[0] == 0xff {
		return frame
	}
	frame[12], frame[13] = 8, 0
	frame[14] = 0x40 | frame[14]&15
	if frame[1]&1 == 0 {
		binary.BigEndian.PutUint16(frame[16:], uint16(len(frame)-14))
	}
	if n := int(frame[14]&15) * 4; n >= 20 && 14+n <= len(frame) {
		frame[24], frame[25] = 0, 0
		binary.BigEndian.PutUint16(frame[24:], ^sum16(frame[14:14+n], 0))
	}
	return frame
}

// about builds the answer to a packet that was sent on: its reverse, or an error about it from its receiver or a router.
func about(frame []byte, how byte) []byte {
	var h packet.Headers
	packet.Parse(frame, &h)
	if h.Kind == packet.KindNone || h.Kind > packet.KindLaterFragment {
		return nil
	}
	b := packet.Build{Src: h.Dst, SrcPort: h.DstPort, Dst: h.Src, DstPort: h.SrcPort, ID: h.FragID}
	if how&3 == 3 || h.Kind >= packet.KindICMPError {
		if how&4 != 0 {
			b.Src = addr("192.0.2.1")
		}
		quote := frame[h.L3 : int(h.L3)+int(h.Len)]
		if how&8 != 0 {
			quote = quote[:min(len(quote), int(h.L4-h.L3)+8)]
		}
		return b.ICMP(pick([]uint8{3, 11, 12, 4}, how>>4), how>>6, uint32(how)<<4, quote)
	}
	switch h.Kind {
	case packet.KindTCP:
		b.Flags = pick([]uint8{ack, syn | ack, fin | ack, rst | ack, syn, rst}, how>>2)
		b.Ack = uint32(how) << 20
		return b.TCP(make([]byte, how>>5))
	case packet.KindUDP:
		return b.UDP(make([]byte, how>>5))
	}
	return b.Echo(how&4 == 0, 1, nil)
}

// play plays a story.
func (r *script) play(t *testing.T) {
	first := r.rules()
	size := r.byte()
	o := Options{
		Rules: first, Now: clock.Tick(0xffffff00), Seed: [32]byte{size},
		Limits: Limits{Links: 4 + int(size&15), LinksPerHost: int(size >> 4 & 3 * 3), NewLinksPerHost: int(size >> 6 & 1 * 5), Fragments: 1 + int(size>>5)},
	}
	inside := within(fuzzInside)
	o.SideOf = func(a packet.Addr) (Side, bool) {
		if inside(a) {
			return Inside, true
		}
		return Outside, a&0xff != 255
	}
	s, err := New(o)
	if err != nil {
		r.tell("%v", err)
		return
	}
	defer s.Close()
	r.tell("rules %+v limits %+v", first, o.Limits)
	w := newPlane(t, s, o.Now, inside)
	w.story = r.told.String
	last := udp(prv1, 2000, ext1, 53)
	w.done = func(p *Packet) {
		if p.Verdict == Forward {
			last = append([]byte(nil), p.Data...)
		}
	}
	var ids []uint32
	for steps := 0; len(r.b) > 0 && steps < 200; steps++ {
		switch op := r.byte(); op & 15 {
		case 0, 1, 2, 3, 4, 5:
			side, frame := r.packet()
			r.tell("%v % x", side, frame)
			w.add(side, frame)
			if op&0x80 == 0 {
				w.flush()
			}
		case 6, 7, 8:
			side := Side(op >> 7)
			if frame := about(last, r.byte()); frame != nil {
				r.tell("%v % x", side, frame)
				w.add(side, frame)
				w.flush()
			}
		case 9:
			frame := r.raw()
			r.tell("%v % x", Side(op>>7), frame)
			w.add(Side(op>>7), frame)
			w.flush()
		case 10: // the last packet that was sent on once more, with a byte changed
			frame := append([]byte(nil), last...)
			if at := int(r.byte()); at < len(frame) {
				frame[at] ^= r.byte()
			}
			frame = patch(frame)
			r.tell("%v % x", Side(op>>7), frame)
			w.add(Side(op>>7), frame)
			w.flush()
		case 11:
			d := pick([]uint32{1, 100, 1000, 5999, 6001, 11000, 61000, 300001}, op>>4)
			r.tell("advance %d", d)
			w.flush()
			w.advance(d, max(d/8, 1), 1+int(op>>4))
		case 12:
			x := r.rules()
			r.tell("rules %+v", x)
			w.flush()
			if err := s.SetRules(x, w.now); err != nil {
				r.tell("%v", err)
			}
		case 13:
			w.flush()
			ids = r.redirect(s, w.now, op, ids)
		case 14:
			w.flush()
			s.Delete(uint32(r.byte()&31), w.now)
		case 15:
			w.flush()
			p := Packet{Data: last, Side: Side(op >> 7)}
			packet.Parse(p.Data, &p.H)
			s.Lookup(&p)
			w.advance(0, 1, 1)
		}
		w.limits(o.Limits)
	}
	w.flush()
	w.end()
}

// redirect changes redirects at run time.
func (r *script) redirect(s *Shard, now clock.Tick, op byte, ids []uint32) []uint32 {
	a, b := r.byte(), r.byte()
	d := RedirectPort{Proto: pick([]uint8{packet.ProtoTCP, packet.ProtoUDP, packet.ProtoICMP}, a), Public: Alias{pick(fuzzAliases, a>>2&1), pick(fuzzPorts, b)},
		Local: []Local{{pick(fuzzHosts, a>>3), pick(fuzzPorts, b>>3)}}}
	if a&0x40 != 0 {
		d.Remote.Addr = pick(fuzzRemotes, b>>6)
	}
	if a&0x80 != 0 {
		d.Remote.Port = pick(fuzzPorts, b>>5)
	}
	var id uint32
	var err error
	switch op >> 4 & 7 {
	case 0, 1:
		id, err = s.AddRedirect(d, now)
	case 2:
		id, err = s.Expect(d, now)
	case 3:
		id, err = s.AddRedirectAddr(RedirectAddr{Public: pick(fuzzAliases, a), Local: []packet.Addr{d.Local[0].Addr}, Inbound: b&1 != 0}, now)
	case 4:
		id, err = s.AddRedirectProto(RedirectProto{Proto: 47, Public: d.Public.Addr, Local: d.Local[0].Addr, Remote: d.Remote.Addr}, now)
	case 5:
		if len(ids) > 0 {
			err = s.MakeDynamic(pick(ids, a), now)
		}
	default:
		if len(ids) > 0 {
			s.DelRedirect(pick(ids, a), now)
		}
	}
	r.tell("redirect %d: %+v: %d, %v", op>>4&7, d, id, err)
	if err == nil && id != 0 {
		ids = append(ids, id)
	}
	return ids
}

// limits checks that the state is within its limits and that links are what rules may make.
func (w *plane) limits(l Limits) {
	n := int(w.s.Counters().Links)
	if n > l.Links {
		w.fail("%d links, the limit is %d", n, l.Links)
	}
	own := map[packet.Addr]int{}
	seen := 0
	w.s.Links(0, 1<<20, func(i LinkInfo) bool {
		if seen++; !i.Inbound {
			own[i.Local.Addr]++
		}
		if i.Alias.Addr == 0 || i.Local.Addr == 0 {
			w.fail("a link without an end: %+v", i)
		}
		return true
	})
	if seen > n {
		w.fail("%d links shown, %d counted", seen, n)
	}
	for host, n := range own {
		if l.LinksPerHost > 0 && n > l.LinksPerHost {
			w.fail("%v has %d links, the limit is %d", host, n, l.LinksPerHost)
		}
	}
	if len(w.held) > l.Fragments+holdsMax {
		w.fail("%d frames are held", len(w.held))
	}
}

// end lets everything expire and checks that all of it came back.
func (w *plane) end() {
	w.advance(8*3600*1000, 600*1000, 1<<20)
	w.advance(10*60*1000, 600*1000, 1<<20)
	s := w.s
	left := map[string]int{
		"frames": len(w.held), "links": s.live, "index slots": s.exact.used, "groups": s.groups.index.used, "mappings": s.local.used,
		"hosts": s.hosts.live, "timers": s.main.count + s.closing.count, "holds": int(s.holds.tail - s.holds.head),
		"pieces": s.frag.held, "datagrams": s.frag.index.used,
	}
	for _, r := range s.ports.Stats().Rows {
		left["ports"] += r.Used
	}
	left["blocks"] = s.ports.Stats().BlocksHeld + s.ports.Stats().BlocksResting
	for what, n := range left {
		if n != 0 {
			w.fail("%d %s left at the end", n, what)
		}
	}
}

// FuzzTranslate tells a shard stories and judges every packet (see plane).
func FuzzTranslate(f *testing.F) {
	for _, s := range seedStories {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) > 4096 {
			t.Skip()
		}
		(&script{b: b}).play(t)
	})
}

// seedStories are where the fuzzer begins; testdata holds what it found worth keeping.
var seedStories = [][]byte{
	// UDP out, its answer, an error about it, time.
	{0, 0, 0, 0, 1, 15, 0, 0, 0, 0, 2, 0x86, 0, 0x86, 3, 0x4b, 0x7b},
	// TCP: SYN, SYN-ACK, ACK, FIN both ways, reopened.
	{0, 0, 0, 0x40, 1, 15, 0, 0, 8, 2, 0, 0x86, 5, 0, 0, 8, 10, 0, 0x86, 9, 0, 0, 8, 26, 0, 0x86, 9, 0, 0, 8, 2, 0},
	// A flow whose next packet has a TTL of 1.
	{0, 0, 0, 0, 1, 15, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0x30},
	// Fragments, the tail first.
	{0, 0, 0, 0, 1, 15, 0, 0, 0, 0, 0x8e, 0x04, 0, 0, 0, 0, 0x82, 0x01, 0x7b},
	// Hairpin to a published port, rules change, redirects at run time.
	{0, 0, 0, 0, 0x5d, 15, 0, 0, 0x88, 2, 0, 0x86, 5, 0x0c, 1, 1, 1, 0xff, 0x1e, 13, 9, 8, 0x6d, 0, 0, 0, 0x21, 0x40, 0, 2},
	// GRE from two hosts, a raw frame, the last packet with a byte changed.
	{0, 0, 0, 0, 1, 15, 0, 0, 0, 7, 2, 0, 1, 0, 7, 2, 9, 40, 1, 2, 3, 10, 23, 0xff, 0x8a, 14, 5},
}
