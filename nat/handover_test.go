package nat

import (
	"testing"

	"golang.org/x/sys/unix"

	"pollux/internal/offheap"
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
