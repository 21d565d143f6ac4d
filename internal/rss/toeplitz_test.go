package rss

import (
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"net/netip"
	"testing"
)

// published is the key of the verification suite that Microsoft publishes with the definition of RSS.
var published = []byte{
	0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67, 0x25, 0x3d, 0x43, 0xa3, 0x8f, 0xb0, 0xd0, 0xca, 0x2b, 0xcb,
	0xae, 0x7b, 0x30, 0xb4, 0x77, 0xcb, 0x2d, 0xa3, 0x80, 0x30, 0xf2, 0x0c, 0x6a, 0x42, 0xb7, 0x3b, 0xbe, 0xac, 0x01, 0xfa,
}

// The IPv4 part of the suite: addresses alone, and with TCP (and, the same, UDP) ports.
var vectors = []struct {
	src, dst       string
	sport, dport   uint16
	address, ports uint32
}{
	{"66.9.149.187", "161.142.100.80", 2794, 1766, 0x323e8fc2, 0x51ccc178},
	{"199.92.111.2", "65.69.140.83", 14230, 4739, 0xd718262a, 0xc626b0ea},
	{"24.19.198.95", "12.22.207.184", 12898, 38024, 0xd2d0a5de, 0x5c2b394a},
	{"38.27.205.30", "209.142.163.6", 48228, 2217, 0x82989176, 0xafc7327f},
	{"153.39.163.191", "202.188.127.2", 44251, 1303, 0x5d1809c5, 0x10e828a2},
}

func addr(s string) uint32 {
	a := netip.MustParseAddr(s).As4()
	return binary.BigEndian.Uint32(a[:])
}

// input lays a packet out as it is hashed.
func input(src, dst uint32, sport, dport uint16) []byte {
	b := binary.BigEndian.AppendUint32(nil, src)
	b = binary.BigEndian.AppendUint32(b, dst)
	b = binary.BigEndian.AppendUint16(b, sport)
	return binary.BigEndian.AppendUint16(b, dport)
}

func stateOf(key []byte, t Transform) State {
	return State{HashFunc: HashToeplitz, Transform: t, Key: key, Table: make([]uint32, 128)}
}

func TestPublishedVectors(t *testing.T) {
	s := stateOf(published, 0)
	two, err := s.Linear(TwoTuple)
	if err != nil {
		t.Fatal(err)
	}
	four, err := s.Linear(FourTuple)
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range vectors {
		src, dst := addr(v.src), addr(v.dst)
		in := input(src, dst, v.sport, v.dport)
		if h := Toeplitz(published, in[:8]); h != v.address {
			t.Errorf("%s -> %s: %#x, published %#x", v.src, v.dst, h, v.address)
		}
		if h := Toeplitz(published, in); h != v.ports {
			t.Errorf("%s:%d -> %s:%d: %#x, published %#x", v.src, v.sport, v.dst, v.dport, h, v.ports)
		}
		if h := two.Hash(src, dst, v.sport, v.dport); h != v.address {
			t.Errorf("linear, %s -> %s: %#x, published %#x", v.src, v.dst, h, v.address)
		}
		if h := four.Hash(src, dst, v.sport, v.dport); h != v.ports {
			t.Errorf("linear, %s:%d -> %s:%d: %#x, published %#x", v.src, v.sport, v.dst, v.dport, h, v.ports)
		}
	}
}

// The linear form says what the definition says, for any key, fields and transform.
func TestLinearIsToeplitz(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 2000 {
		key := make([]byte, 16+r.IntN(40))
		for i := range key {
			key[i] = byte(r.Uint32())
		}
		src, dst, sport, dport := r.Uint32(), r.Uint32(), uint16(r.Uint32()), uint16(r.Uint32())
		for _, x := range []Transform{0, SymmetricXOR} {
			s := stateOf(key, x)
			a, b, c, d := src, dst, sport, dport
			if x == SymmetricXOR {
				a, b, c, d = a^b, a^b, c^d, c^d
			}
			for f, n := range map[Fields]int{TwoTuple: 8, FourTuple: 12} {
				l, err := s.Linear(f)
				if err != nil {
					t.Fatal(err)
				}
				if got, want := l.Hash(src, dst, sport, dport), Toeplitz(key, input(a, b, c, d)[:n]); got != want {
					t.Fatalf("key %x, %s, %s: %#x, want %#x", key, f, x, got, want)
				}
				if x == SymmetricXOR && l.Hash(src, dst, sport, dport) != l.Hash(dst, src, dport, sport) {
					t.Fatalf("%s is not symmetric", x)
				}
				if l.Symmetric() != (x == SymmetricXOR) {
					t.Fatalf("key %x, %s: Symmetric() = %v", key, x, l.Symmetric())
				}
			}
		}
	}
}

// A key of one 16-bit word again and again is symmetric without a transform.
func TestSymmetricKey(t *testing.T) {
	key := make([]byte, 40)
	for i := range key {
		key[i] = []byte{0x6d, 0x5a}[i&1]
	}
	s := stateOf(key, 0)
	for _, f := range []Fields{TwoTuple, FourTuple} {
		l, err := s.Linear(f)
		if err != nil || !l.Symmetric() {
			t.Errorf("%s: symmetric %v, %v", f, l.Symmetric(), err)
		}
	}
}

func TestWhatCantBePredicted(t *testing.T) {
	good := stateOf(published, 0)
	for _, c := range []struct {
		change func(*State)
		fields Fields
		want   error
	}{
		{func(*State) {}, FourTuple, nil},
		{func(s *State) { s.HashFunc = HashXOR }, FourTuple, ErrFunction},
		{func(s *State) { s.HashFunc = HashCRC32 }, FourTuple, ErrFunction},
		{func(s *State) { s.HashFunc = 0 }, FourTuple, ErrFunction},
		{func(s *State) { s.HashFunc = HashToeplitz | HashXOR }, FourTuple, ErrFunction},
		{func(s *State) { s.Transform = SymmetricORXOR }, FourTuple, ErrTransform},
		{func(s *State) { s.Transform = 1 << 5 }, FourTuple, ErrTransform},
		{func(s *State) { s.Key = nil }, FourTuple, ErrKey},
		{func(s *State) { s.Key = make([]byte, 40) }, FourTuple, ErrKey},
		{func(s *State) { s.Key = published[:15] }, FourTuple, ErrKey},
		{func(s *State) { s.Key = published[:15] }, TwoTuple, nil},
		{func(s *State) { s.Key = published[:11] }, TwoTuple, ErrKey},
		{func(s *State) { s.Table = nil }, FourTuple, ErrTable},
		{func(s *State) { s.Table = make([]uint32, 192) }, FourTuple, ErrTable},
		{func(s *State) { s.Table = make([]uint32, 8192) }, FourTuple, ErrTable},
		{func(s *State) { s.Table = make([]uint32, 4096) }, FourTuple, nil},
		{func(*State) {}, 0, ErrFields},
		{func(*State) {}, SrcAddr, ErrFields},
		{func(*State) {}, SrcPort | DstPort, ErrFields},
		{func(*State) {}, FourTuple | Other, ErrFields},
	} {
		s := good
		c.change(&s)
		if _, err := s.Linear(c.fields); !errors.Is(err, c.want) {
			t.Errorf("%s, %s, %s, key of %d, table of %d: %v, want %v", s.HashFunc, s.Transform, c.fields, len(s.Key), len(s.Table), err, c.want)
		}
	}
}
