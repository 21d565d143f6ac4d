package pmd

import (
	"encoding/binary"
	"testing"

	"pollux/internal/packet"
	"pollux/nat"
	"pollux/rings"
	"pollux/rtcache"
)

// A run of packets ends before the first one that does not leave exactly as the run's first does, whatever is different about it.
func TestRunOfOneNextHop(t *testing.T) {
	r := newRig(t, rigOptions{})
	for _, c := range []struct {
		name   string
		change func(p *nat.Packet, q *port)
		taken  int
	}{
		{"all alike", func(*nat.Packet, *port) {}, 5},
		{"no next hop", func(p *nat.Packet, _ *port) { p.Hop = nil }, 3},
		{"another next hop", func(p *nat.Packet, _ *port) { p.Hop[0]++ }, 3},
		{"another port of entry", func(p *nat.Packet, _ *port) { p.Ingress++ }, 3},
		{"a changed route", func(p *nat.Packet, _ *port) { p.Hop[1]++ }, 3},
		{"another destination", func(p *nat.Packet, _ *port) { p.Data[33]++ }, 3},
		{"too long", func(p *nat.Packet, _ *port) { p.H.Len = 1501 }, 3},
		{"as long as possible", func(p *nat.Packet, _ *port) { p.H.Len = 1500 }, 5},
		{"a short frame", func(p *nat.Packet, _ *port) { p.Data = p.Data[:33] }, 3},
		{"a full line", func(_ *nat.Packet, q *port) { q.n = BurstFrames - 2 }, 2},
	} {
		var slots [5]nat.HopSlot
		b := make([]nat.Packet, len(slots))
		for i := range b {
			b[i] = nat.Packet{Data: packet.Build{Src: host1, SrcPort: 1, Dst: server, DstPort: 2}.UDP(nil), Frame: uint64(i) << 12, Hop: &slots[i]}
			packet.Parse(b[i].Data, &b[i].H)
			if _, v := r.w.routes.Route((*[2]uint64)(b[i].Hop), inPort, host1, server, 0); v != rtcache.OK {
				t.Fatal(v)
			}
		}
		flows := r.w.routes.Attached()
		hop := flows.At((*[2]uint64)(b[0].Hop))
		q := r.w.ports[hop.Port()]
		c.change(&b[3], &q)
		before := q.n
		if n := q.lineRun(b, flows.Stamps, b[0].Hop[0], hop.Dress()); n != c.taken || q.n != before+n {
			t.Errorf("%s: %d packets taken and %d in line, want %d", c.name, n, q.n-before, c.taken)
			continue
		}
		for i := range b {
			dressed := [6]byte(b[i].Data) == hop.MAC() && [6]byte(b[i].Data[6:]) == outMAC
			if dressed != (i < c.taken) || binary.BigEndian.Uint16(b[i].Data[12:]) != 0x0800 {
				t.Errorf("%s: packet %d has the Ethernet header % x", c.name, i, b[i].Data[:14])
			}
			if want := (rings.Frame{Addr: b[i].Frame, Len: uint32(len(b[i].Data))}); i < c.taken && q.out[before+i] != want {
				t.Errorf("%s: packet %d in line is %+v, want %+v", c.name, i, q.out[before+i], want)
			}
		}
	}
}
