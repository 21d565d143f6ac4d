package rings

import (
	"strings"
	"testing"
)

func TestUMEMChunksAndData(t *testing.T) {
	u, err := NewUMEM(UMEMOptions{Frames: 10, ChunkSize: 2048})
	if err != nil {
		t.Fatal(err)
	}
	defer u.Close()
	if u.Frames() != 10 || u.ChunkSize() != 2048 {
		t.Fatalf("%d frames of %d bytes", u.Frames(), u.ChunkSize())
	}
	f := Frame{Addr: 9*2048 + RXHeadroomBytes, Len: 60}
	b := u.Data(f)
	if len(b) != 60 || cap(b) != 2048-RXHeadroomBytes {
		t.Errorf("data of the last chunk: len %d cap %d", len(b), cap(b))
	}
	if got := u.Chunk(f.Addr + 59); got != 9*2048 {
		t.Errorf("chunk of %d = %d", f.Addr+59, got)
	}
	b[0] = 0xaa
	if got := u.Data(Frame{Addr: 9 * 2048, Len: 2048})[RXHeadroomBytes]; got != 0xaa {
		t.Errorf("two views of one chunk differ: %#x", got)
	}
	if n := testing.AllocsPerRun(100, func() { b = u.Data(f) }); n != 0 {
		t.Errorf("Data allocates %v times", n)
	}
}

func TestUMEMPoolsShareOutEveryFrameOnce(t *testing.T) {
	u, err := NewUMEM(UMEMOptions{Frames: 8})
	if err != nil {
		t.Fatal(err)
	}
	defer u.Close()
	a, err := u.NewPool(5)
	if err != nil {
		t.Fatal(err)
	}
	b, err := u.NewPool(3)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := u.NewPool(1); err == nil {
		t.Error("a ninth frame was given out")
	}
	seen := map[uint64]bool{}
	for _, p := range []*Pool{a, b} {
		for {
			addr, ok := p.Get()
			if !ok {
				break
			}
			if seen[addr] || addr%4096 != 0 || addr >= 8*4096 {
				t.Errorf("address %d given twice or out of range", addr)
			}
			seen[addr] = true
		}
	}
	if len(seen) != 8 {
		t.Errorf("%d frames given out, want 8", len(seen))
	}
	for addr := range seen { // frames migrate: one pool takes them all, and keeps the other's apart
		a.Put(addr)
	}
	if a.Len() != 5 || len(a.Away()) != 3 || a.Excess() != 0 {
		t.Errorf("pool holds %d, and %d of the other, excess %d", a.Len(), len(a.Away()), a.Excess())
	}
	a.Put(0)
	if a.Len() != 5 || a.Excess() != 1 {
		t.Errorf("a frame given back twice: pool holds %d, excess %d", a.Len(), a.Excess())
	}
}

func TestUMEMHugePagesFallBackWithANotice(t *testing.T) {
	u, err := NewUMEM(UMEMOptions{Frames: 3, HugePages: true})
	if err != nil {
		t.Fatal(err)
	}
	defer u.Close()
	if u.HugePages() == (u.Notice() != "") {
		t.Errorf("huge %v, notice %q: exactly one must hold", u.HugePages(), u.Notice())
	}
	u.Data(Frame{Addr: 2 * 4096, Len: 4096})[4095] = 1
}

func TestUMEMRefusals(t *testing.T) {
	for _, c := range []struct {
		o    UMEMOptions
		want string
	}{
		{UMEMOptions{Frames: 0}, "at least 1"},
		{UMEMOptions{Frames: 1, ChunkSize: 3000}, "2048 or 4096"},
		{UMEMOptions{Frames: 1 << 34}, "rings.frames"},
	} {
		u, err := NewUMEM(c.o)
		if err == nil {
			u.Close()
			t.Errorf("%+v was accepted", c.o)
		} else if !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%+v: %q does not say %q", c.o, err, c.want)
		}
	}
}
