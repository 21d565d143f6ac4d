package nat

import (
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"pollux/internal/offheap"
	"pollux/internal/packet"
)

// handOver freezes a shard and goes on with one thawed from its image and its tables, mapped anew: what a successor process does.
func handOver(t testing.TB, s *Shard) *Shard {
	t.Helper()
	tables, ports, err := s.Regions()
	if err != nil {
		t.Fatal(err)
	}
	e := offheap.NewEncoder(tables)
	if err := s.Freeze(e); err != nil {
		t.Fatal(err)
	}
	var adopted []*offheap.Region
	for _, r := range tables {
		fd, err := unix.FcntlInt(uintptr(r.FD()), unix.F_DUPFD_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		a, err := offheap.Adopt(fd, r.Info())
		if err != nil {
			t.Fatal(err)
		}
		adopted = append(adopted, a)
	}
	d := offheap.NewDecoder(e.Bytes(), adopted)
	next := Heir()
	err = next.Thaw(Options{Rules: s.rules, Limits: s.limits, Worker: s.worker, Workers: s.portOpt.Workers, Owners: s.owners, Seed: s.portOpt.Seed,
		Steering: s.steering, Share: s.share, FlowSteered: s.spread, SideOf: s.sideOf, Reverse: s.reverse, Now: s.now}, adopted, ports, d)
	if err != nil {
		t.Fatal(err)
	}
	if d.Rest() != 0 {
		t.Fatalf("%d bytes of the image were not read", d.Rest())
	}
	for _, r := range tables { // a successor that still leads into its predecessor's mapping crashes
		_ = r.Free()
	}
	*s = Shard{}
	return next
}

// rebuild makes a shard anew and restores in it what the old one's snapshot holds: what a start after a crash does.
func rebuild(t testing.TB, s *Shard) *Shard {
	t.Helper()
	var list []Record
	s.Records(0, 1<<20, func(r Record) { list = append(list, r) })
	next, err := New(Options{Rules: s.rules, Limits: s.limits, Workers: 1, Shared: true, Seed: [32]byte{7}, Now: s.now})
	if err != nil {
		t.Fatal(err)
	}
	for i := range list {
		if !next.Restore(&list[i], s.now) {
			t.Fatalf("%+v can't be restored", list[i])
		}
		if next.Restore(&list[i], s.now) {
			t.Fatalf("%+v is restored twice", list[i])
		}
	}
	_ = s.Close()
	return next
}

// What does not fit the rules, has expired, or makes no sense is not restored, and leaves nothing behind.
func TestRestoreRefuses(t *testing.T) {
	rules := func(o *Options) {
		o.Rules.RedirectPort = []RedirectPort{{Proto: packet.ProtoUDP, Public: Alias{pub1, 80}, Local: []Local{{prv1, 8080}}}}
		o.Limits.LinksPerHost = 2
	}
	good := Record{Local: Local{prv1, 4000}, Alias: Alias{pub1, 4000}, Remote: Remote{ext1, 53}, Proto: packet.ProtoUDP, Flags: uint8(portExclusive)}
	rule := Record{Local: Local{prv1, 8080}, Alias: Alias{pub1, 80}, Remote: Remote{ext1, 53}, Proto: packet.ProtoUDP, Flags: uint8(portRule) | flagInbound}
	for name, change := range map[string]func(r *Record){
		"another alias address":     func(r *Record) { r.Alias.Addr = pub2 },
		"a port out of range":       func(r *Record) { r.Alias.Port = 80 },
		"expired":                   func(r *Record) { r.Idle = 300_001 },
		"no local address":          func(r *Record) { r.Local.Addr = 0 },
		"a state of another kind":   func(r *Record) { r.State = Established },
		"a state that is none":      func(r *Record) { r.State = 99 },
		"TCP without a state":       func(r *Record) { r.Proto = packet.ProtoTCP },
		"a redirect that is gone":   func(r *Record) { *r = rule; r.Alias.Port = 81 },
		"a redirect to elsewhere":   func(r *Record) { *r = rule; r.Local.Port = 81 },
		"a DMZ host that is none":   func(r *Record) { r.Flags = uint8(portPeer) | flagInbound | flagTarget },
		"a protocol without a port": func(r *Record) { r.Proto, r.Flags = 47, uint8(portRule) },
	} {
		w := newWorld(t, rules)
		r := good
		change(&r)
		if w.s.Restore(&r, w.now) {
			t.Errorf("%s: restored", name)
		}
		w.wantEmpty()
	}
	w := newWorld(t, rules)
	for i, want := range []bool{true, true, false} { // the host's limit
		r := good
		r.Remote.Port += uint16(i)
		if got := w.s.Restore(&r, w.now); got != want {
			t.Errorf("link %d: %v", i, got)
		}
	}
	other := good
	other.Local = Local{prv2, 4000} // the port is another host's
	if w.s.Restore(&other, w.now) {
		t.Error("two hosts have one port")
	}
	if !w.s.Restore(&rule, w.now) {
		t.Error("a redirect's link is not restored")
	}
	w.pass(time.Hour)
	w.wantEmpty()
}
