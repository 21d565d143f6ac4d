package nat

import (
	"testing"

	"pollux/internal/packet"
)

// Links of big groups, small ones and alone that are due at the same time all go, with their indexes, whatever was touched
// for them before.
func TestManyDue(t *testing.T) {
	w := newWorld(t, func(o *Options) {
		o.Rules.Mapping.UDP = AddressAndPortDependent
		o.Rules.RedirectPort = []RedirectPort{redirect(Remote{}, Local{prv1, 7}, Local{prv2, 7})}
	})
	empty := w.s.exact.used
	for i := range uint16(300) {
		w.send(Inside, udp(prv1, 2000+i, ext1, 53))                // alone
		w.send(Inside, udp(prv1+packet.Addr(i%5), 1024, ext1, 53)) // few
		w.send(Outside, udp(ext1, 1024+i, pub1, 7))                // many of one group
		w.send(Inside, udp(prv1, 1999, ext1, 10000+i))             // a tree
	}
	before := w.s.live
	if before < 600 {
		t.Fatalf("%d links", before)
	}
	w.now += 400_000
	steps := 0
	for w.s.live > 0 {
		if w.s.Advance(w.now, 7) == 0 {
			t.Fatalf("%d of %d links are left", w.s.live, before)
		}
		steps++
	}
	if steps < before/7 {
		t.Errorf("%d links in %d slices of 7", before, steps)
	}
	if w.s.exact.used != empty || w.s.groups.index.used != 0 {
		t.Errorf("left in the indexes: %d exact, %d groups", w.s.exact.used-empty, w.s.groups.index.used)
	}
}
