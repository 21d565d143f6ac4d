//go:build framecheck

package rings

import "testing"

func TestFrameCheckStopsAtTheFirstDoubleOwner(t *testing.T) {
	mustPanic := func(what string, f func()) {
		t.Helper()
		defer func() {
			if recover() == nil {
				t.Errorf("%s went unnoticed", what)
			}
		}()
		f()
	}
	u, p := testUMEM(t, 64)
	mustPanic("a frame given back twice", func() { a, _ := p.Get(); p.Get(); p.Put(a); p.Put(a) })
	f := newFakePort(u, 8)
	mustPanic("a frame sent twice", func() { f.Transmit([]Frame{{Addr: 4096, Len: 60}, {Addr: 4096, Len: 60}}) })
	mustPanic("a frame received that the kernel was not given", func() {
		*f.rx.slot(0) = Frame{Addr: 8192, Len: 60}
		f.rx.publish(1)
		f.Receive(make([]Frame, 1))
	})
}
