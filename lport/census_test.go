package lport

import (
	"math/rand/v2"
	"testing"

	"pollux/internal/packet"
)

// The census by words says what asking byte by byte says, for ranges that begin and end anywhere in a word.
func TestCensus(t *testing.T) {
	const alias = packet.Addr(0xc6336401)
	o := NewOwners(nil)
	defer o.Close()
	if err := o.Add(alias); err != nil {
		t.Fatal(err)
	}
	rng := rand.New(rand.NewPCG(1, 2))
	for range 5000 {
		port := uint16(rng.Uint32())
		switch rng.IntN(3) {
		case 0:
			o.Claim(alias, RowUDP, port, rng.IntN(WorkersMax))
		case 1:
			o.SetKernel(alias, RowUDP, port)
		case 2:
			o.SetRedirect(alias, RowUDP, port)
		}
	}
	for _, r := range [][2]uint16{{0, 65535}, {1024, 65535}, {1, 2}, {3, 3}, {4, 7}, {5, 9}, {65535, 65535}, {1023, 40001}} {
		var want Census
		for port := int(r[0]); port <= int(r[1]); port++ {
			switch b := o.Byte(alias, RowUDP, uint16(port)); b {
			case ByteFree:
				want.Free++
			case ByteKernel:
				want.Kernel++
			case ByteRedirect:
				want.Redirect++
			default:
				want.Owned++
			}
		}
		if got := o.Census(alias, RowUDP, r[0], r[1]); got != want || got.Free+got.Owned+got.Kernel+got.Redirect != int(r[1])-int(r[0])+1 {
			t.Errorf("%v: %+v, want %+v", r, got, want)
		}
	}
	if got := o.Census(alias+1, RowUDP, 0, 65535); got != (Census{}) {
		t.Errorf("an unknown address: %+v", got)
	}
	if got := o.Census(alias, RowTCP, 0, 65535); got.Free != 65536 {
		t.Errorf("another row: %+v", got)
	}
}

// Rows in slices are the rows of Stats.
func TestRowsInSlices(t *testing.T) {
	o := NewOwners(nil)
	defer o.Close()
	s, err := New(Options{Workers: 1, Owners: o, Low: 1024, High: 65535})
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for i := range packet.Addr(5) {
		alias := 0xc6336401 + i
		if err := o.Add(alias); err != nil {
			t.Fatal(err)
		}
		for row := RowTCP; row <= RowICMP; row++ {
			for range i {
				if _, err := s.Exclusive(&Request{Alias: alias, Row: row, Host: 0x0a000001}); err != nil {
					t.Fatal(err)
				}
			}
		}
	}
	want := s.Stats()
	if len(want.Rows) != 12 || want.Rows[11].Used != 4 || want.StepsSum == 0 {
		t.Fatalf("%+v", want)
	}
	for _, max := range []int{1, 3, 7, 100} {
		var got []RowStats
		for next, calls := 0, 0; ; calls++ {
			if next = s.Rows(next, max, func(r RowStats) { got = append(got, r) }); next == 0 {
				break
			}
			if calls > 20 {
				t.Fatal("no end")
			}
		}
		for i := range want.Rows {
			if len(got) != len(want.Rows) || got[i] != want.Rows[i] {
				t.Fatalf("slices of %d: %+v, want %+v", max, got, want.Rows)
			}
		}
	}
}
