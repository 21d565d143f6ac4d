package pmd

import (
	"fmt"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"pollux/internal/clock"
	"pollux/internal/packet"
	"pollux/lport"
	"pollux/nat"
)

// reload puts rules in force as Gateway.enforce does, without the kernel.
func (m *meshRig) reload(w *world, r *nat.Rules) error {
	for _, k := range m.w {
		for k.nat.Sweeping() {
			k.nat.Advance(m.now, 1)
		}
		if err := k.nat.Prepare(*r); err != nil {
			return err
		}
	}
	want := wanted(r)
	for _, a := range Aliases(r) {
		if err := m.owners.Add(a); err != nil {
			return err
		}
	}
	w.markNew(m.owners, want)
	*m.steering = *NewSteering(len(m.w), m.owners, r, false, m.steering.seed)
	for _, k := range m.w {
		if err := k.nat.SetRules(*r, m.now); err != nil {
			return err
		}
		k.o.Aliases = Aliases(r)
	}
	w.markGone(m.owners, want)
	return nil
}

// reloadFlow is a flow of the naive model.
type reloadFlow struct {
	local  nat.Local
	alias  nat.Alias
	remote nat.Remote
	rule   int  // the redirect that made it, -1: none
	beside bool // its host's endpoint was published, but by a port that a worker had not let go yet
}

func (f *reloadFlow) String() string { return fmt.Sprint(f.local, f.alias, f.remote) }

// reloadModel is the naive twin: a list of flows, and what rules say of each.
type reloadModel struct {
	rt    *rapid.T
	m     *meshRig
	world world
	rules nat.Rules
	on    []int // redirects in force
	flows []*reloadFlow
}

var reloadRedirects = []nat.RedirectPort{
	{Proto: packet.ProtoUDP, Public: nat.Alias{Addr: alias1, Port: 2000}, Local: []nat.Local{{Addr: host1, Port: 2000}}},
	{Proto: packet.ProtoUDP, Public: nat.Alias{Addr: alias1, Port: 2001}, Local: []nat.Local{{Addr: host1 + 1, Port: 2003}}},
	{Proto: packet.ProtoUDP, Public: nat.Alias{Addr: alias1 + 1, Port: 2002}, Local: []nat.Local{{Addr: host1 + 1, Port: 2002}}},
	{Proto: packet.ProtoUDP, Public: nat.Alias{Addr: alias1, Port: 2000}, Remote: nat.Remote{Addr: server}, Local: []nat.Local{{Addr: host1 + 2, Port: 2001}}},
}

func (x *reloadModel) draw() {
	x.rules.Alias, x.rules.RedirectPort, x.on = nil, nil, nil
	for _, a := range []packet.Addr{alias1, alias1 + 1} {
		if rapid.IntRange(0, 4).Draw(x.rt, "alias") > 0 {
			x.rules.Alias = append(x.rules.Alias, a)
		}
	}
	for i, d := range reloadRedirects {
		if rapid.Bool().Draw(x.rt, "redirect") {
			x.rules.RedirectPort = append(x.rules.RedirectPort, d)
			x.on = append(x.on, i)
		}
	}
	x.rules.MSSClamp = rapid.IntRange(0, 2).Draw(x.rt, "other")
}

// fate says what a change of rules means for a flow: it must stand, must end, or may do either (but not by halves).
func (x *reloadModel) fate(f *reloadFlow) (stands, ends bool) {
	pooled := slices.Contains(x.rules.Alias, f.alias.Addr)
	if f.rule >= 0 {
		on := slices.Contains(x.on, f.rule)
		return on && pooled, !on
	}
	moved := f.beside // or a redirect has its port or its host's endpoint: it may have to move to another worker
	for _, i := range x.on {
		moved = moved || reloadRedirects[i].Public == f.alias || reloadRedirects[i].Local[0] == f.local
	}
	return pooled && !moved, !pooled
}

// links returns what all shards hold, and fails when two hold the same endpoints.
func (x *reloadModel) links() map[string]bool {
	out, in, all := map[string]int{}, map[string]int{}, map[string]bool{}
	for k, w := range x.m.w {
		w.nat.Links(0, 1<<20, func(l nat.LinkInfo) bool {
			for _, c := range []struct {
				seen map[string]int
				key  string
			}{{out, fmt.Sprint(l.Proto, l.Local, l.Remote)}, {in, fmt.Sprint(l.Proto, l.Alias, l.Remote)}} {
				if other, twice := c.seen[c.key]; twice && other != k { // at one worker the newest hides older ones
					x.rt.Fatalf("%s is at worker %d and %d", c.key, other, k)
				}
				c.seen[c.key] = k
			}
			all[fmt.Sprint(l.Local, l.Alias, l.Remote)] = true
			return true
		})
	}
	return all
}

func (x *reloadModel) queue() int { return rapid.IntRange(0, len(x.m.w)-1).Draw(x.rt, "queue") }

// out sends from inside and returns the source that it left with; ok false: it did not leave.
func (x *reloadModel) out(l nat.Local, r nat.Remote) (a nat.Alias, ok bool) {
	x.m.push(x.queue(), inPort, packet.Build{SrcMAC: peerMAC, DstMAC: inMAC, Src: l.Addr, SrcPort: l.Port, Dst: r.Addr, DstPort: r.Port}.UDP(nil))
	x.m.settle()
	x.m.take(inPort) // an ICMP error, if it was refused
	sent := x.m.take(outPort)
	if len(sent) == 0 {
		return a, false
	}
	var h packet.Headers
	packet.Parse(sent[0].data, &h)
	return nat.Alias{Addr: h.Src, Port: h.SrcPort}, true
}

// in sends from outside and returns the destination that it arrived at.
func (x *reloadModel) in(r nat.Remote, a nat.Alias) (l nat.Local, ok bool) {
	x.m.push(x.queue(), outPort, packet.Build{SrcMAC: peerMAC, DstMAC: outMAC, Src: r.Addr, SrcPort: r.Port, Dst: a.Addr, DstPort: a.Port}.UDP(nil))
	x.m.settle()
	x.m.take(outPort)
	sent := x.m.take(inPort)
	if len(sent) == 0 {
		return l, false
	}
	var h packet.Headers
	packet.Parse(sent[0].data, &h)
	return nat.Local{Addr: h.Dst, Port: h.DstPort}, true
}

// whole checks that a flow goes through both ways as the model has it.
func (x *reloadModel) whole(f *reloadFlow) {
	if a, ok := x.out(f.local, f.remote); !ok || a != f.alias {
		x.rt.Fatalf("%v left as %v %v, rules %v", f, a, ok, x.on)
	}
	if l, ok := x.in(f.remote, f.alias); !ok || l != f.local {
		x.rt.Fatalf("%v answered to %v %v, rules %v", f, l, ok, x.on)
	}
}

// ruleOf returns the redirect in force that a link of these endpoints is of, -1: none.
func (x *reloadModel) ruleOf(f *reloadFlow) int {
	best := -1
	for _, i := range x.on {
		d := &reloadRedirects[i]
		if d.Public == f.alias && d.Local[0] == f.local && (d.Remote.Addr == 0 || d.Remote.Addr == f.remote.Addr) && (best < 0 || d.Remote.Addr != 0) {
			best = i
		}
	}
	return best
}

// learn takes up what a packet showed to be there now.
func (x *reloadModel) learn(f *reloadFlow) {
	f.rule = x.ruleOf(f)
	for _, i := range x.on {
		f.beside = f.beside || f.rule < 0 && reloadRedirects[i].Local[0] == f.local
	}
	x.flows = slices.DeleteFunc(x.flows, func(o *reloadFlow) bool { return o.local == f.local && o.remote == f.remote })
	x.flows = append(x.flows, f)
}

// scoped is a test within a test: its cleanups run when it ends.
type scoped struct {
	testing.TB
	todo []func()
}

func (s *scoped) Cleanup(f func()) { s.todo = append(s.todo, f) }

func (s *scoped) end() {
	for _, f := range slices.Backward(s.todo) {
		f()
	}
}

func (x *reloadModel) change() {
	x.draw()
	if err := x.m.reload(&x.world, &x.rules); err != nil {
		x.rt.Fatal(err)
	}
	there := x.links()
	var unsure []*reloadFlow
	x.flows = slices.DeleteFunc(x.flows, func(f *reloadFlow) bool {
		stands, ends := x.fate(f)
		switch found := there[f.String()]; {
		case stands && !found:
			x.rt.Fatalf("%v was closed, though its rule (%d) stands; in force %v, pool %v", f, f.rule, x.on, x.rules.Alias)
		case ends && found:
			x.rt.Fatalf("%v goes on, though its rule (%d) is gone; in force %v, pool %v", f, f.rule, x.on, x.rules.Alias)
		case stands:
			return false
		case found:
			unsure = append(unsure, f)
		}
		return true
	})
	for _, f := range x.flows {
		x.whole(f)
	}
	for _, f := range unsure { // it is there: then wholly
		x.whole(f)
		x.flows = append(x.flows, f)
	}
}

// TestReloadAgainstModel changes rules at random under live flows of several workers: links whose rule stands go on at the
// worker that has them, with nothing lost in either direction; all others are gone at once, at every worker; no two workers ever
// hold the same endpoints; and in the end every port comes back.
func TestReloadAgainstModel(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		x := &reloadModel{rt: rt, rules: nat.DefaultRules()}
		x.rules.PortRange = nat.PortRange{Low: 2000, High: 2031}
		x.draw()
		scope := &scoped{TB: t}
		defer scope.end()
		x.m = newMeshRig(scope, meshOptions{workers: rapid.IntRange(2, 3).Draw(rt, "workers"), frames: 256, links: 600, rules: func(r *nat.Rules) { *r = x.rules }})
		x.world.marks = wanted(&x.rules)
		for range rapid.IntRange(1, 40).Draw(rt, "steps") {
			local := nat.Local{Addr: host1 + packet.Addr(rapid.IntRange(0, 3).Draw(rt, "host")), Port: uint16(rapid.IntRange(2000, 2004).Draw(rt, "port"))}
			remote := nat.Remote{Addr: server + packet.Addr(rapid.IntRange(0, 1).Draw(rt, "remote")), Port: uint16(rapid.IntRange(1, 3).Draw(rt, "rport"))}
			switch rapid.IntRange(0, 5).Draw(rt, "what") {
			case 0:
				x.change()
			case 1:
				for _, w := range x.m.w {
					w.nat.Advance(x.m.now, rapid.IntRange(1, 20).Draw(rt, "budget"))
				}
			case 2, 3:
				if a, ok := x.out(local, remote); ok {
					f := &reloadFlow{local: local, alias: a, remote: remote}
					x.learn(f)
					x.whole(f)
				}
			case 4:
				a := reloadRedirects[rapid.IntRange(0, len(reloadRedirects)-1).Draw(rt, "public")].Public
				if l, ok := x.in(remote, a); ok {
					f := &reloadFlow{local: l, alias: a, remote: remote}
					x.learn(f)
					x.whole(f)
				}
			case 5:
				for _, f := range x.flows {
					x.whole(f)
				}
			}
			x.links()
		}
		for range 4 {
			x.m.now += 3600 * clock.PerSecond / 2
			x.m.settle()
		}
		if n := x.m.links(); n != 0 {
			rt.Fatalf("%d links left", n)
		}
		for _, a := range x.m.owners.Aliases() {
			for row := range lport.Rows {
				for port := range 1 << 16 {
					b := x.m.owners.Byte(a, row, uint16(port))
					published := row == lport.RowUDP && slices.ContainsFunc(x.on, func(i int) bool { return reloadRedirects[i].Public == nat.Alias{Addr: a, Port: uint16(port)} })
					if published != (b == lport.ByteRedirect) || !published && b != lport.ByteFree {
						rt.Fatalf("%v row %d port %d: byte %d, published %v", a, row, port, b, published)
					}
				}
			}
		}
	})
}
