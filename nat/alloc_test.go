package nat

import (
	"testing"

	"pollux/internal/packet"
)

// TestNoAllocation holds the path to it: hits, new links in both directions, refusals, expiry.
func TestNoAllocation(t *testing.T) {
	w := newWorld(t, func(o *Options) {
		o.Limits.Links = 50_000
		o.Rules.Mapping.UDP = AddressAndPortDependent
		o.Rules.RedirectPort = []RedirectPort{redirect(Remote{}, Local{prv1, 7}, Local{prv2, 7})}
	})
	ports := uint16(1024)
	send := func(side Side, frame []byte) func() {
		b := make([]Packet, 1)
		data := append([]byte(nil), frame...)
		return func() {
			copy(data, frame)
			b[0] = Packet{Data: data, Side: side}
			packet.Parse(data, &b[0].H)
			b[0].H.SrcPort = ports // the frame's own port does not matter here
			w.s.Touch(b)
			w.s.Translate(b, w.now)
		}
	}
	for name, f := range map[string]func(){
		"hit":              send(Inside, udp(prv1, 1024, ext1, 53)),
		"miss-unsolicited": send(Outside, udp(ext1, 1, pub1, 9)),
	} {
		f()
		if n := testing.AllocsPerRun(100, f); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
	for name, f := range map[string]func(){
		"new-outbound":     send(Inside, udp(prv1, 1024, ext1, 54)),
		"new-outbound-tcp": send(Inside, tcp(syn, prv1, 1024, ext1, 54)),
		"new-inbound":      send(Outside, udp(ext1, 1024, pub1, 0xabcd)),
		"expiry":           func() { w.now += 10_000; w.s.Advance(w.now, 100) },
	} {
		before := w.s.counters.Created
		if n := testing.AllocsPerRun(100, func() { ports++; f() }); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
		if made := w.s.counters.Created - before; name != "expiry" && made != 101 {
			t.Errorf("%s: %d links made", name, made)
		}
	}
}

// TestBytesPerLink counts what one link takes in all indexes.
func TestBytesPerLink(t *testing.T) {
	const n = 100_000
	s := benchShard(t, n, nil)
	size := func(records, bytes int) float64 { return float64(records*bytes) / n }
	fixed := size(len(s.lines), 64) + size(len(s.cold), 16) + size(len(s.exact.slots), 8)
	small := fixed + size(len(s.groups.index.slots), 8) + size(len(s.local.slots), 8) // a group and a mapping of its own
	tr := newTraffic(true)
	tr.flags = packet.TCPSyn
	s.Close()
	s = benchShard(t, n, func(o *Options) {
		o.Rules.RedirectPort = []RedirectPort{{Proto: packet.ProtoTCP, Public: Alias{pub1, 443}, Local: []Local{{prv1, 443}}}}
	})
	var p [1]Packet
	for i := range uint32(n) {
		x := uint64(i+1) * 0x9e3779b97f4a7c15
		tr.put(&p[0], Outside, packet.Addr(x>>32)&0x1fffffff|0x40000000, uint16(x>>16), pub1, 443)
		pipeline(s, p[:], 1)
	}
	if s.live < n*99/100 {
		t.Fatalf("%d links", s.live)
	}
	big := fixed + float64(s.groups.trees.fresh)*200/float64(s.live)
	t.Logf("bytes per link: %.1f alone in its group, %.1f among many", small, big)
	if small > 200 || big > 200 {
		t.Errorf("bytes per link: %.1f alone in its group, %.1f among many; at most 200", small, big)
	}
}
