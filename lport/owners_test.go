package lport

import (
	"sync"
	"sync/atomic"
	"testing"
	"unsafe"

	"pollux/internal/packet"
)

// heapOwners has its bytes in Go memory, where the race detector sees them.
func heapOwners(t testing.TB) *Owners {
	o := NewOwners(func(packet.Addr) ([]byte, error) {
		w := make([]uint64, AliasBytes/8)
		return unsafe.Slice((*byte)(unsafe.Pointer(&w[0])), AliasBytes), nil
	})
	if err := o.Add(alias1); err != nil {
		t.Fatal(err)
	}
	return o
}

// The XDP program reads byte[row*65536+port]: the layout is a contract.
func TestOwnersLayout(t *testing.T) {
	var mem []byte
	o := NewOwners(func(packet.Addr) ([]byte, error) { mem = make([]byte, AliasBytes); return mem, nil })
	if err := o.Add(alias1); err != nil {
		t.Fatal(err)
	}
	for i, c := range []struct {
		row  Row
		port uint16
	}{{RowTCP, 0}, {RowTCP, 1}, {RowUDP, 2}, {RowICMP, 3}, {RowOther, 65535}, {RowTCP, 4097}} {
		if !o.Claim(alias1, c.row, c.port, i+6) {
			t.Fatalf("claim of row %d port %d failed", c.row, c.port)
		}
		if got := mem[int(c.row)*65536+int(c.port)]; got != byte(i+7) || o.Byte(alias1, c.row, c.port) != got {
			t.Errorf("row %d port %d: byte %d, Byte %d, want %d", c.row, c.port, got, o.Byte(alias1, c.row, c.port), i+7)
		}
	}
	o.Release(alias1, RowTCP, 1, 7)
	if mem[0] != 7 || mem[1] != 0 {
		t.Errorf("after the release of port 1: bytes % d, want 7 0", mem[:2])
	}
}

func TestOwnersMemoryIsChecked(t *testing.T) {
	o := NewOwners(func(packet.Addr) ([]byte, error) { return make([]byte, 4096), nil })
	if err := o.Add(alias1); err == nil {
		t.Error("too small memory was accepted")
	}
	if err := NewOwners(nil).Add(0); err == nil {
		t.Error("address 0 was accepted")
	}
}

func TestOwnersAliasesComeAndGo(t *testing.T) {
	o := NewOwners(nil)
	defer o.Close()
	for i := range packet.Addr(300) {
		if err := o.Add(alias1 + i*7); err != nil {
			t.Fatal(err)
		}
		if !o.Claim(alias1+i*7, RowUDP, uint16(i), 0) {
			t.Fatalf("claim on alias %d failed", i)
		}
	}
	for i := range packet.Addr(300) {
		if i%2 == 0 {
			o.Remove(alias1 + i*7)
		}
	}
	for i := range packet.Addr(300) {
		want := uint8(i % 2)
		if got := o.Byte(alias1+i*7, RowUDP, uint16(i)); got != want {
			t.Fatalf("alias %d reads %d, want %d", i, got, want)
		}
	}
	if o.Claim(alias1, RowUDP, 9, 0) {
		t.Error("a claim on a removed alias succeeded")
	}
	if err := o.Add(alias1); err != nil || o.Byte(alias1, RowUDP, 0) != 0 {
		t.Errorf("an alias that came back is not empty (error %v)", err)
	}
	if n := len(o.Aliases()); n != 151 {
		t.Errorf("%d aliases, want 151", n)
	}
}

func TestKernelAndRedirect(t *testing.T) {
	o := heapOwners(t)
	is := func(port uint16, want uint8, when string) {
		t.Helper()
		if got := o.Byte(alias1, RowTCP, port); got != want {
			t.Errorf("%s: byte of port %d is %d, want %d", when, port, got, want)
		}
	}
	if !o.SetKernel(alias1, RowTCP, 22) {
		t.Error("SetKernel on a free port did not take")
	}
	if o.Claim(alias1, RowTCP, 22, 3) {
		t.Error("a worker claimed the kernel's port")
	}
	o.ClearKernel(alias1, RowTCP, 22)
	is(22, ByteFree, "kernel gone")

	o.Claim(alias1, RowTCP, 80, 3)
	if o.SetKernel(alias1, RowTCP, 80) || o.SetRedirect(alias1, RowTCP, 80) {
		t.Error("a byte was taken from the worker that holds it")
	}
	is(80, 4, "worker holds on")
	o.Release(alias1, RowTCP, 80, 3)
	is(80, ByteRedirect, "worker let go, redirect and kernel wait")
	o.ClearRedirect(alias1, RowTCP, 80)
	is(80, ByteKernel, "redirect gone, the listener is there still")
	o.ClearKernel(alias1, RowTCP, 80)
	is(80, ByteFree, "both gone")

	o.SetKernel(alias1, RowTCP, 443)
	o.Release(alias1, RowTCP, 443, 3)
	is(443, ByteKernel, "a worker releases what is not its own")

	if !o.SetRedirectAll(alias1) {
		t.Error("SetRedirectAll left something out")
	}
	is(443, ByteRedirect, "all redirected")
	is(65535, ByteRedirect, "all redirected")
	o.ClearRedirectAll(alias1)
	is(443, ByteKernel, "redirects gone")
	is(65535, ByteFree, "redirects gone")
}

// Workers claim and release neighbouring bytes of the same words: every byte has one owner, no claim gets lost.
func TestConcurrentClaims(t *testing.T) {
	o := heapOwners(t)
	const workers, ports, rounds = 4, 64, 300
	var holders [ports]atomic.Int32
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			for i := range rounds * ports {
				port := uint16(i*(2*w+1)) % ports
				if !o.Claim(alias1, RowUDP, port, w) {
					continue
				}
				if n := holders[port].Add(1); n != 1 {
					t.Errorf("%d workers hold port %d", n, port)
				}
				if b := o.Byte(alias1, RowUDP, port); b != uint8(w+1) {
					t.Errorf("worker %d holds port %d but the byte says %d", w, port, b)
				}
				holders[port].Add(-1)
				o.Release(alias1, RowUDP, port, w)
			}
		})
	}
	wg.Go(func() { // the control side meddles
		for i := range rounds {
			port := uint16(i) % ports
			o.SetKernel(alias1, RowUDP, port)
			o.SetRedirect(alias1, RowUDP, port)
			o.ClearRedirect(alias1, RowUDP, port)
			o.ClearKernel(alias1, RowUDP, port)
		}
	})
	wg.Wait()
	for port := range uint16(ports) {
		if b := o.Byte(alias1, RowUDP, port); b != 0 {
			t.Errorf("port %d is left with byte %d", port, b)
		}
	}
}

// Workers fill the table at once without releasing: each port ends with exactly the worker whose claim succeeded.
func TestConcurrentClaimsAreNotLost(t *testing.T) {
	o := heapOwners(t)
	const workers = 4
	got := make([][]uint16, workers)
	var wg sync.WaitGroup
	for w := range workers {
		wg.Go(func() {
			for port := range uint16(8192) {
				if o.Claim(alias1, RowTCP, port, w) {
					got[w] = append(got[w], port)
				}
			}
		})
	}
	wg.Wait()
	sum := 0
	for w := range got {
		sum += len(got[w])
		for _, port := range got[w] {
			if b := o.Byte(alias1, RowTCP, port); b != uint8(w+1) {
				t.Fatalf("worker %d claimed port %d, the byte says %d", w, port, b)
			}
		}
	}
	if sum != 8192 {
		t.Errorf("%d claims succeeded on 8192 ports", sum)
	}
}

func BenchmarkOwnersByte(b *testing.B) {
	for _, n := range []packet.Addr{1, 9, 256} {
		o := NewOwners(nil)
		for i := range n {
			if err := o.Add(alias1 + i); err != nil {
				b.Fatal(err)
			}
		}
		b.Run(map[packet.Addr]string{1: "1-alias", 9: "9-aliases", 256: "256-aliases"}[n], func(b *testing.B) {
			var sum uint8
			for i := 0; b.Loop(); i++ {
				sum += o.Byte(alias1+packet.Addr(i)%n, RowTCP, uint16(i))
			}
			sink = sum
		})
		o.Close()
	}
}

func BenchmarkOwnersClaimRelease(b *testing.B) {
	o := NewOwners(nil)
	defer o.Close()
	if err := o.Add(alias1); err != nil {
		b.Fatal(err)
	}
	for i := 0; b.Loop(); i++ {
		o.Claim(alias1, RowTCP, uint16(i), 0)
		o.Release(alias1, RowTCP, uint16(i), 0)
	}
}

var sink uint8
