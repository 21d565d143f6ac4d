// Package rss knows how a network card spreads what it receives over its queues: it reads hash key, indirection table and
// hashed fields from the kernel, and computes the queue of a packet that is still to come. It changes nothing.
//
// Addresses and ports are in host order. What is computed here is proven with the published test vectors of the Toeplitz
// hash and with tables in the shapes that drivers report; it is unproven on a NIC.
package rss

import (
	"errors"
	"fmt"
	"strings"
)

// Fields are the parts of a packet that a card hashes.
type Fields uint8

const (
	SrcAddr Fields = 1 << iota
	DstAddr
	SrcPort
	DstPort
	Other // anything else: VLAN id, protocol number, MAC address

	TwoTuple  = SrcAddr | DstAddr
	FourTuple = TwoTuple | SrcPort | DstPort
)

// String writes fields as `ethtool -N rx-flow-hash` takes them: s, d, f (source port), n (destination port).
func (f Fields) String() string {
	if f == 0 {
		return "none"
	}
	var b strings.Builder
	for i, c := range "sdfn?" {
		if f>>i&1 != 0 {
			b.WriteRune(c)
		}
	}
	return b.String()
}

// HashFunc is a set of hash functions, in practice one (ETH_RSS_HASH_* of linux/ethtool.h).
type HashFunc uint32

const (
	HashToeplitz HashFunc = 1 << iota
	HashXOR
	HashCRC32
)

func (h HashFunc) String() string {
	switch h {
	case 0:
		return "unknown"
	case HashToeplitz:
		return "toeplitz"
	case HashXOR:
		return "xor"
	case HashCRC32:
		return "crc32"
	}
	return fmt.Sprintf("%#x", uint32(h))
}

// Transform is what happens to the fields before they are hashed (RXH_XFRM_* of linux/ethtool.h).
type Transform uint32

const (
	SymmetricXOR   Transform = 1 << iota // source and destination are each replaced by their exclusive or
	SymmetricORXOR                       // one by their exclusive or, the other by their or
)

func (t Transform) String() string {
	switch t {
	case 0:
		return "none"
	case SymmetricXOR:
		return "symmetric-xor"
	case SymmetricORXOR:
		return "symmetric-or-xor"
	}
	return fmt.Sprintf("%#x", uint32(t))
}

// State is how a card spreads what it receives, as its driver tells.
type State struct {
	HashFunc  HashFunc
	Transform Transform
	Key       []byte
	Table     []uint32 // the queue of each value of the hash's low bits

	TCP4, UDP4 Fields // hashed of IPv4 packets with ports
	FieldsErr  error  // why TCP4 and UDP4 are not known
}

// TableMax is the largest indirection table that is taken: drivers have at most 4096 entries.
const TableMax = 4096

// What makes a card's choice impossible to predict.
var (
	ErrNotTold   = errors.New("the driver does not tell its RSS settings")
	ErrFunction  = errors.New("the hash function is not Toeplitz")
	ErrTransform = errors.New("the fields are combined by OR before they are hashed, which can't be turned round")
	ErrKey       = errors.New("the driver does not tell its hash key")
	ErrTable     = errors.New("the indirection table has no size that is a power of two, up to 4096")
	ErrFields    = errors.New("the hashed fields are neither addresses (sd) nor addresses and ports (sdfn)")
)

// Shares returns how many entries of the table lead to each queue.
func (s *State) Shares() map[int]int {
	n := map[int]int{}
	for _, q := range s.Table {
		n[int(q)]++
	}
	return n
}

// Linear returns the hash of packets of which the card hashes the given fields, or why it can't be predicted: ErrFunction,
// ErrTransform, ErrKey, ErrTable or ErrFields, wrapped.
func (s *State) Linear(f Fields) (Linear, error) {
	switch {
	case s.HashFunc != HashToeplitz:
		return Linear{}, fmt.Errorf("%w but %s", ErrFunction, s.HashFunc)
	case s.Transform&^SymmetricXOR != 0:
		return Linear{}, fmt.Errorf("%w (%s)", ErrTransform, s.Transform)
	case f != TwoTuple && f != FourTuple:
		return Linear{}, fmt.Errorf("%w but %s", ErrFields, f)
	case len(s.Table) == 0 || len(s.Table) > TableMax || len(s.Table)&(len(s.Table)-1) != 0:
		return Linear{}, fmt.Errorf("%w: it has %d entries", ErrTable, len(s.Table))
	}
	return linear(s.Key, f, s.Transform)
}

// Queue returns the queue of a hash; the table is one that Linear took.
func (s *State) Queue(hash uint32) int { return int(s.Table[hash&uint32(len(s.Table)-1)]) }

// Equal reports whether two states spread packets alike.
func (s *State) Equal(t *State) bool {
	if s == nil || t == nil {
		return s == t
	}
	return s.HashFunc == t.HashFunc && s.Transform == t.Transform && string(s.Key) == string(t.Key) &&
		s.TCP4 == t.TCP4 && s.UDP4 == t.UDP4 && (s.FieldsErr == nil) == (t.FieldsErr == nil) && equal(s.Table, t.Table)
}

func equal(a, b []uint32) bool {
	if len(a) != len(b) {
		return false
	}
	for i := range a {
		if a[i] != b[i] {
			return false
		}
	}
	return true
}
