package pmd

import (
	"errors"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"

	"golang.org/x/sys/unix"

	"pollux/internal/clock"
	"pollux/internal/lab"
)

// couriers are the two ends of a conversation.
func couriers(t *testing.T) (old, new *Courier) {
	t.Helper()
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	var ends [2]*Courier
	for i, fd := range pair {
		f := os.NewFile(uintptr(fd), "courier")
		conn, err := net.FileConn(f)
		f.Close()
		if err != nil {
			t.Fatal(err)
		}
		ends[i] = NewCourier(conn.(*net.UnixConn))
		t.Cleanup(func() { ends[i].Close() })
	}
	return ends[0], ends[1]
}

// Whatever a successor does before it commits, the gateway goes on: nothing is lost, nothing has changed.
func TestHandOverThatFails(t *testing.T) {
	l := newLab(t, lab.Options{})
	in, out := l.Inside[0], l.Outside[0]
	g, err := startIn(t, l, labOptions())
	if err != nil {
		t.Fatal(err)
	}
	dst := netip.AddrPortFrom(out.Addr, 9000)
	s, err := lab.StartStream(in.Namespace, lab.StreamOptions{Src: in.Addr, Dst: dst, Flows: 8}, out.Namespace)
	if err != nil {
		t.Fatal(err)
	}
	offered := func(c *Courier) *Inheritance {
		h, err := Inherit(c)
		if err != nil {
			t.Error(err)
		}
		return h
	}
	image := func(c *Courier) {
		if err := c.send(answer{}); err != nil {
			t.Error(err)
		}
		n := 0
		if err := c.receive(&n); err != nil || n == 0 {
			t.Error(n, err)
		}
	}
	for _, way := range []struct {
		name string
		want string
		act  func(c *Courier)
	}{
		{"it is gone at once", "did not get ready", func(c *Courier) {}},
		{"it refuses", "can't take over: another layout", func(c *Courier) { offered(c).Refuse(errors.New("another layout")) }},
		{"it dies before it is ready", "did not get ready", func(c *Courier) { offered(c) }},
		{"it dies with the state in hand", "the old one goes on", func(c *Courier) { offered(c); image(c) }},
		{"it can't take the state up", "out of room", func(c *Courier) { h := offered(c); image(c); h.Refuse(errors.New("out of room")) }},
		{"it answers nonsense", "the old one goes on", func(c *Courier) { offered(c); image(c); _ = c.sendBytes([]byte("yes")) }},
		{"it has other ports", "other workers or ports", func(c *Courier) {
			o := labOptions()
			o.Ports = append(o.Ports, PortOptions{Name: "lo"})
			err := l.Gateway.Do(func() error {
				h := offered(c)
				g := &Gateway{o: o}
				g.workers = []*gatewayWorker{{}}
				err := h.fits(g)
				h.Refuse(err)
				return err
			})
			if err == nil {
				t.Error("it fits")
			}
		}},
	} {
		old, new := couriers(t)
		dead := make(chan struct{})
		go func() {
			defer close(dead)
			way.act(new)
			new.Close()
		}()
		before, _ := s.Arrived(0)
		aborted := false
		_, err := g.HandOver(old, []byte("will"), nil, func() { <-dead; aborted = true })
		if err == nil || !strings.Contains(err.Error(), way.want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v, want %q", way.name, err, way.want)
		}
		if !aborted {
			t.Errorf("%s: the successor was not ended", way.name)
		}
		for arrived := before; arrived < before+50; arrived, _ = s.Arrived(0) {
			if err := g.workers[0].loop.Do(func(clock.Tick) bool { return true }); err != nil {
				t.Fatal(err)
			}
		}
	}
	if r := s.Stop(); r.Lost > 0 {
		t.Errorf("%v", r)
	}
	if err := g.Stop(); err != nil { // it counts the frames
		t.Error(err)
	}
}

// An image that is cut off or garbled is refused, never followed into the dark.
func TestThawRefusesGarbage(t *testing.T) {
	l := newLab(t, lab.Options{})
	g, err := startIn(t, l, labOptions())
	if err != nil {
		t.Fatal(err)
	}
	var image []byte
	if err := g.workers[0].loop.Do(func(clock.Tick) bool { image, err = g.freeze(nil); return true }); err != nil || len(image) == 0 {
		t.Fatal(err)
	}
	for _, n := range []int{0, 7, 100, 5000, len(image) / 2, len(image) - 1} {
		old, new := couriers(t)
		m, fds, err := g.describe()
		if err != nil {
			t.Fatal(err)
		}
		room, err := g.imageRoom()
		if err != nil {
			t.Fatal(err)
		}
		defer room.Free()
		copy(room.Bytes(), image)
		m.Image, fds = room.Info(), append(fds, room.FD())
		m.Descriptors = len(fds)
		go func() {
			_ = old.send(m)
			_ = old.sendFDs(fds)
			var a answer
			if err := old.expect(&a, readyWithin); err != nil || a.Error != "" {
				t.Errorf("not ready: %v, %s", err, a.Error)
			}
			_ = old.send(n)
		}()
		err = l.Gateway.Do(func() error {
			h, err := Inherit(new)
			if err != nil {
				return err
			}
			next := &Gateway{o: labOptions(), quit: make(chan struct{}), done: make(chan struct{}), space: namespace{-1}}
			err = h.take(next) // as far as it gets
			if next.table != nil {
				next.table.Close()
			}
			return err
		})
		if err == nil {
			t.Fatalf("%d of %d bytes were enough", n, len(image))
		}
		t.Log(err)
	}
	if err := g.Stop(); err != nil {
		t.Error(err)
	}
}
