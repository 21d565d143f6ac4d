package nat

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"pollux/internal/packet"
)

func network(a, mask packet.Addr) Network { return Network{a & mask, mask, true} }

// manyLinks opens 20 UDP flows and a TCP one, a tick apart.
func manyLinks(t *testing.T) *world {
	w := newWorld(t, nil)
	for i := range 20 {
		b := packet.Build{Src: prv1 + packet.Addr(i%2), SrcPort: uint16(4000 + i), Dst: ext1 + packet.Addr(i%4), DstPort: 53}
		if p := w.send(Inside, b.UDP(nil)); p.Verdict != Forward {
			t.Fatal(p.Verdict, p.Reason)
		}
		w.now += 1000
	}
	b := packet.Build{Src: prv1, SrcPort: 80, Dst: ext1, DstPort: 443, Flags: packet.TCPSyn}
	w.send(Inside, b.TCP(nil))
	w.now += 1000
	w.s.Advance(w.now, 0)
	return w
}

func TestSelectAndDelete(t *testing.T) {
	host := packet.Addr(0xffffffff)
	for name, c := range map[string]struct {
		f LinkFilter
		n int
	}{
		"all":           {LinkFilter{}, 21},
		"any, a host":   {LinkFilter{Any: network(prv1, host)}, 11},
		"any, a remote": {LinkFilter{Any: network(ext1+1, host)}, 5},
		"any, alias":    {LinkFilter{Any: network(pub1, host)}, 21},
		"any, network":  {LinkFilter{Any: network(prv1, 0xffffff00)}, 21},
		"local":         {LinkFilter{Local: network(prv2, host)}, 10},
		"local, remote": {LinkFilter{Local: network(prv1, host), Remote: network(ext1, host)}, 6},
		"alias, none":   {LinkFilter{Alias: network(pub2, host)}, 0},
		"port":          {LinkFilter{ByPort: true, Port: 4003}, 1},
		"remote port":   {LinkFilter{ByPort: true, Port: 53}, 20},
		"protocol":      {LinkFilter{ByProto: true, Proto: packet.ProtoTCP}, 1},
		"state":         {LinkFilter{ByState: true, State: Opening}, 1},
		"inbound":       {LinkFilter{Inbound: true}, 0},
		"outbound":      {LinkFilter{Outbound: true}, 21},
		"older":         {LinkFilter{Older: 11_000}, 11},
		"younger":       {LinkFilter{Younger: 11_000}, 11},
		"idle":          {LinkFilter{Idle: 20_500}, 1},
	} {
		t.Run(name, func(t *testing.T) {
			w := manyLinks(t)
			// In slices of any size the answer is the same, and no slice looks at more records than it may.
			var ids []uint32
			for max := 1; max <= 7; max += 3 {
				var now []uint32
				for cursor, first := uint32(0), true; first || cursor != 0; first = false {
					cursor = w.s.Select(cursor, max, &c.f, func(l LinkInfo) bool { now = append(now, l.ID); return true })
				}
				if ids = now; len(ids) != c.n {
					t.Fatalf("%d links, want %d", len(ids), c.n)
				}
			}
			before := w.s.Counters().Links
			deleted := 0
			for cursor, first := uint32(0), true; first || cursor != 0; first = false {
				var n int
				if n, cursor = w.s.DeleteSome(cursor, 5, 2, &c.f, w.now); n > 2 {
					t.Fatalf("%d deleted in a slice of 2", n)
				}
				deleted += n
			}
			if deleted != c.n || w.s.Counters().Links != before-uint64(c.n) {
				t.Fatalf("%d deleted, %d of %d left", deleted, w.s.Counters().Links, before)
			}
			var left []uint32
			w.s.Links(0, 1000, func(l LinkInfo) bool { left = append(left, l.ID); return true })
			for _, id := range ids {
				if slices.Contains(left, id) {
					t.Errorf("link %d is still there", id)
				}
			}
		})
	}
}

// A deleted link is gone in both directions, its port is free, and links beside it live on.
func TestDeleteGivesBack(t *testing.T) {
	w := manyLinks(t)
	used := func() (n int) {
		for _, r := range w.s.Ports().Stats().Rows {
			n += r.Used
		}
		return n
	}
	before := used()
	f := LinkFilter{ByPort: true, Port: 4004}
	if n, _ := w.s.DeleteSome(0, 1000, 1000, &f, w.now); n != 1 {
		t.Fatal(n)
	}
	if used() != before-1 {
		t.Errorf("%d ports in use before, %d after", before, used())
	}
	back := func(port uint16, remote packet.Addr) *Packet {
		b := packet.Build{Src: remote, SrcPort: 53, Dst: pub1, DstPort: port}
		return w.send(Outside, b.UDP(nil))
	}
	if p := back(4004, ext1); p.Verdict == Forward {
		t.Error("an answer of the deleted link came through")
	}
	if p := back(4005, ext1+1); p.Verdict != Forward {
		t.Errorf("an answer of another link: %v %v", p.Verdict, p.Reason)
	}
	b := packet.Build{Src: prv1, SrcPort: 4004, Dst: ext1, DstPort: 53}
	if p := w.send(Inside, b.UDP(nil)); p.Verdict != Forward {
		t.Errorf("the flow again: %v %v", p.Verdict, p.Reason)
	}
	if created := w.s.Counters().Created; created != 22 {
		t.Errorf("%d links made, want 22: the flow came back as a new one", created)
	}
}

// Hosts tells links and refusals of each.
func TestHostsListed(t *testing.T) {
	w := newWorld(t, func(o *Options) { o.Limits.LinksPerHost = 3; o.Limits.PortsPerHost = 100 })
	for i := range 5 {
		for h := range packet.Addr(4) {
			if int(h) <= i {
				w.send(Inside, packet.Build{Src: prv1 + h, SrcPort: uint16(4000 + i), Dst: ext1, DstPort: 53}.UDP(nil))
			}
		}
	}
	got := map[string]string{}
	for cursor, first := uint32(0), true; first || cursor != 0; first = false {
		cursor = w.s.Hosts(cursor, 2, &Network{}, func(h HostInfo) bool {
			got[h.Addr.String()] = fmt.Sprint(h.Links, h.Refused, h.Ports, h.Blocks, h.Alias)
			return true
		})
	}
	want := map[string]string{
		"10.0.0.2": "3 2 3 -1 203.0.113.1", "10.0.0.3": "3 1 3 -1 203.0.113.1",
		"10.0.0.4": "3 0 3 -1 203.0.113.1", "10.0.0.5": "2 0 2 -1 203.0.113.1",
	}
	if fmt.Sprint(got) != fmt.Sprint(want) {
		t.Errorf("got  %v\nwant %v", got, want)
	}
	one := network(prv1+1, 0xffffffff)
	n := 0
	w.s.Hosts(0, 1000, &one, func(HostInfo) bool { n++; return true })
	if n != 1 {
		t.Errorf("%d hosts at one address", n)
	}
	if h, ok := w.s.Host(prv1); !ok || h.Refused != 2 {
		t.Errorf("%+v %t", h, ok)
	}
	if _, ok := w.s.Host(ext1); ok {
		t.Error("a host that never was")
	}
}

// Hits count links made by a redirect, and survive a change of other rules.
func TestRedirectHits(t *testing.T) {
	w := newWorld(t, func(o *Options) {
		o.Rules.RedirectPort = []RedirectPort{
			{Proto: packet.ProtoTCP, Public: Alias{pub1, 443}, Local: []Local{{prv1, 443}}},
			{Proto: packet.ProtoUDP, Public: Alias{pub1, 53}, Local: []Local{{prv2, 53}}},
		}
		o.Rules.RedirectAddr = []RedirectAddr{{Public: pub2, Local: []packet.Addr{prv1 + 7}}}
	})
	for i := range 3 {
		w.send(Outside, packet.Build{Src: ext1, SrcPort: uint16(1000 + i), Dst: pub1, DstPort: 443, Flags: packet.TCPSyn}.TCP(nil))
		w.send(Outside, packet.Build{Src: ext1, SrcPort: uint16(1000 + i), Dst: pub1, DstPort: 443, Flags: packet.TCPAck}.TCP(nil)) // no new link
	}
	w.send(Inside, packet.Build{Src: prv2, SrcPort: 53, Dst: ext1, DstPort: 99}.UDP(nil))     // out by the redirect
	w.send(Inside, packet.Build{Src: prv1 + 7, SrcPort: 53, Dst: ext1, DstPort: 99}.UDP(nil)) // out by the address
	w.send(Inside, packet.Build{Src: prv1, SrcPort: 5353, Dst: ext1, DstPort: 99}.UDP(nil))   // by none
	hits := func() string {
		s := ""
		for cursor, first := uint32(0), true; first || cursor != 0; first = false {
			cursor = w.s.Redirects(cursor, 1, func(r RedirectInfo) { s += fmt.Sprintf("%s %v %d; ", r.Kind, r.Public.Port, r.Hits) })
		}
		return s
	}
	const want = "address 0 1; port 443 3; port 53 1; "
	if got := hits(); got != want {
		t.Errorf("got %q, want %q", got, want)
	}
	rules := w.s.rules
	rules.Timeouts.UDP = 99 * time.Second
	if err := w.s.SetRules(rules, w.now); err != nil {
		t.Fatal(err)
	}
	if got := hits(); got != want {
		t.Errorf("after a change of rules: %q, want %q", got, want)
	}
}
