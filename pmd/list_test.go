package pmd

import (
	"fmt"
	"strings"
	"testing"

	"pollux/internal/clock"
	"pollux/internal/packet"
	"pollux/internal/reason"
	"pollux/nat"
)

// listed is a gateway of one worker, which runs, with n UDP links.
func listed(t *testing.T, n int, o rigOptions) (*Gateway, *rig) {
	t.Helper()
	o.links = n + 512
	now := monotonicTick() // the loop's
	o.options = func(no *nat.Options) { no.Now = now }
	r := newRig(t, o)
	r.now = now
	for i := range n {
		r.push(inPort, fromInside(host1+packet.Addr(i%100), uint16(2000+i/100)).UDP(nil))
		if i%64 == 63 {
			r.poll()
			r.takeSent(outPort)
		}
	}
	r.poll()
	g := &Gateway{}
	w := &gatewayWorker{shard: r.w.nat, worker: r.w}
	w.loop = startRig(t, r, LoopOptions{Core: -1, Idle: Adaptive})
	g.workers = []*gatewayWorker{w}
	return g, r
}

// Lists come whole, in slices that are bounded whatever their length, and end when the reader has enough.
func TestListsInSlices(t *testing.T) {
	const n = 3000
	g, _ := listed(t, n, rigOptions{})
	w := g.workers[0]
	seen, most, rounds := map[uint32]bool{}, 0, 0
	more, err := walk(w, func(cursor uint32, out []nat.LinkInfo) (uint32, []nat.LinkInfo) {
		rounds++
		before := len(out)
		next := w.shard.Select(cursor, listSlice, &nat.LinkFilter{}, func(l nat.LinkInfo) bool { out = append(out, l); return true })
		most = max(most, len(out)-before)
		if cap(out) != listRows+listSlice {
			t.Errorf("the copy grew to %d", cap(out))
		}
		return next, out
	}, func(l *nat.LinkInfo) bool {
		seen[l.ID] = true
		return true
	})
	if err != nil || !more || len(seen) != n || most > listSlice || rounds < n/listSlice {
		t.Errorf("%d links in %d rounds of up to %d, more %t, %v", len(seen), rounds, most, more, err)
	}
	visited := 0
	if err := g.Links(func(nat.LinkInfo) bool { visited++; return visited < 5 }); err != nil || visited != 5 {
		t.Errorf("%d visits, %v", visited, err)
	}
	hosts := uint32(0)
	count := 0
	if err := g.Hosts(-1, &nat.Network{}, func(h *nat.HostInfo) bool { hosts += h.Links; count++; return true }); err != nil || count != 100 || hosts != n {
		t.Errorf("%d hosts with %d links, %v", count, hosts, err)
	}
	if g.CheckWorker(1) == nil || g.CheckWorker(0) != nil || g.CheckWorker(-1) != nil {
		t.Error("workers are counted wrong")
	}
	f := nat.LinkFilter{Local: nat.Network{Base: host1, Mask: 0xffffffff, Valid: true}}
	if d, err := g.DeleteLinks(0, &f); err != nil || d != n/100 {
		t.Errorf("%d deleted, %v", d, err)
	}
	if d, err := g.DeleteLinks(-1, &nat.LinkFilter{}); err != nil || d != n-n/100 {
		t.Errorf("%d deleted, %v", d, err)
	}
}

// Caches and blocks are listed with what they hold.
func TestPeersAndBlocksListed(t *testing.T) {
	g, r := listed(t, 0, rigOptions{rules: func(r *nat.Rules) {
		dep := nat.AddressAndPortDependent
		r.Mapping, r.SamePorts = nat.PerProtocol{UDP: dep, TCP: dep, ICMP: dep}, true
		r.Blocks.Size, r.Blocks.MaxPerHost = 64, 4
	}})
	if err := g.workers[0].loop.Stop(); err != nil {
		t.Fatal(err)
	}
	for i := range 70 { // more than a block has, so the search meets ports in use
		r.push(inPort, fromInside(host1, uint16(3000+i)).UDP(nil))
		r.push(inPort, fromInside(host2, uint16(3000+i)).UDP(nil))
	}
	r.poll()
	g.workers[0].loop = startRig(t, r, LoopOptions{Core: -1, Idle: Adaptive})
	links, hosts := map[packet.Addr]int{}, map[packet.Addr]int{}
	if err := g.Blocks(func(b *BlockInfo) bool {
		links[b.Host] += b.Links
		hosts[b.Host]++
		if int(b.High)-int(b.Low) != 63 || b.Alias != alias1 || b.Resting {
			t.Errorf("%+v", b)
		}
		return true
	}); err != nil || links[host1] != 70 || links[host2] != 70 || hosts[host1] < 2 {
		t.Errorf("%v %v %v", links, hosts, err)
	}
	ports := 0
	if err := g.Peers(func(p *PeerInfo) bool {
		ports += p.Ports
		if p.Peer.Addr != server || p.Peer.Port != 53 || p.Row.String() != "udp" {
			t.Errorf("%+v", p)
		}
		return true
	}); err != nil || ports == 0 {
		t.Errorf("%d ports in caches, %v", ports, err)
	}
}

// The last packet of each reason is kept, and named.
func TestExamples(t *testing.T) {
	g, r := listed(t, 1, rigOptions{})
	if err := g.workers[0].loop.Stop(); err != nil {
		t.Fatal(err)
	}
	late := fromInside(host1, 5000)
	late.TTL = 1
	r.push(inPort, late.UDP(nil))
	r.push(outPort, fromOutside(alias1, 80).TCP(nil), fromOutside(alias1, 81).TCP(nil))
	r.push(outPort, fromOutside(alias1, 9).IP(47, nil))
	r.poll()
	g.workers[0].loop = startRig(t, r, LoopOptions{Core: -1, Idle: Adaptive})
	list, err := g.Examples()
	if err != nil || len(list) != int(reason.Count) {
		t.Fatalf("%v %v", list, err)
	}
	for r, want := range map[reason.Reason]string{
		reason.TTLExpired: "udp 10.0.0.2:5000 -> 198.51.100.7:53",
		reason.NoMapping:  "47 198.51.100.7 -> 203.0.113.1", // the last
	} {
		if list[r] == nil || list[r].Tuple != want {
			t.Errorf("%v: %+v, want %s", r, list[r], want)
		}
	}
	if list[reason.NoPort] != nil {
		t.Errorf("%+v", list[reason.NoPort])
	}
}

func TestDescribe(t *testing.T) {
	b := fromInside(host1, 5000)
	frag := b
	frag.FragOff = 1480
	opts := b
	opts.Options = []byte{1, 1, 1, 0}
	six := append(make([]byte, 12), 0x86, 0xdd, 0x60, 0, 0, 0, 0, 8, 17, 64)
	six = append(six, make([]byte, 15)...)
	six = append(six, 1)
	six = append(six, make([]byte, 15)...)
	six = append(six, 2, 0, 7, 0, 9, 0, 8, 0, 0)
	for want, f := range map[string][]byte{
		"udp 10.0.0.2:5000 -> 198.51.100.7:53":                b.UDP(nil),
		"tcp 10.0.0.2:5000 -> 198.51.100.7:53":                opts.TCP(nil),
		"icmp 10.0.0.2 -> 198.51.100.7 type 8 code 0 id 5000": b.Echo(false, 1, nil),
		"50 10.0.0.2 -> 198.51.100.7":                         b.IP(50, nil),
		"17 10.0.0.2 -> 198.51.100.7 fragment at 1480":        frag.IP(17, nil),
		"udp [::1]:7 -> [::2]:9":                              six,
		"ethertype 0x0806":                                    append(make([]byte, 12), 8, 6, 0),
		"3 bytes":                                             {1, 2, 3},
	} {
		if got := describe(f); got != want && strings.Replace(got, "udp ", "17 ", 1) != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}

// What a worker keeps of a dropped packet costs no memory.
func TestExamplesDoNotAllocate(t *testing.T) {
	x := new(examples)
	f := fromInside(host1, 5000).UDP(make([]byte, 1000))
	if n := testing.AllocsPerRun(100, func() { x.keep(reason.NoPort, f, clock.Tick(5)) }); n != 0 {
		t.Errorf("%v allocations", n)
	}
	if x[reason.NoPort].length != exampleBytes {
		t.Error(fmt.Sprint(x[reason.NoPort]))
	}
}

// BenchmarkExample is what keeping the head of a dropped packet adds to its end.
func BenchmarkExample(b *testing.B) {
	x := new(examples)
	f := fromInside(host1, 5000).UDP(make([]byte, 100))
	for b.Loop() {
		x.keep(reason.NoPort, f, 5)
	}
}
