package rss

import "fmt"

// Toeplitz is the hash as it is defined: for each bit of data that is set, from the first byte's highest on, the 32 bits of
// the key that begin at that bit's place, all combined by exclusive or. The key must be at least 4 bytes longer than data.
func Toeplitz(key, data []byte) uint32 {
	var hash uint32
	for i, b := range data {
		for bit := range 8 {
			if b<<bit&0x80 != 0 {
				hash ^= window(key, i*8+bit)
			}
		}
	}
	return hash
}

// window returns the 32 bits of key from a bit on.
func window(key []byte, bit int) uint32 {
	k := key[bit/8:]
	v := uint64(k[0])<<32 | uint64(k[1])<<24 | uint64(k[2])<<16 | uint64(k[3])<<8
	if len(k) > 4 {
		v |= uint64(k[4])
	}
	return uint32(v >> (8 - bit%8))
}

// Linear is a Toeplitz hash of IPv4 packets by what each bit of their fields contributes by exclusive or, [i] being the
// bit of weight 2^i. So the hash of two packets that differ in one field differs by something that depends on that field
// alone: which ports lead to a queue can be told without a trial of each.
type Linear struct {
	SrcAddr, DstAddr [32]uint32
	SrcPort, DstPort [16]uint32
}

// linear lays the fields out as cards do: source address, destination address, source port, destination port.
func linear(key []byte, f Fields, t Transform) (l Linear, err error) {
	need := 12
	if f == FourTuple {
		need = 16
	}
	if len(key) < need {
		return l, fmt.Errorf("%w: %d bytes of it, %d are needed", ErrKey, len(key), need)
	}
	if allZero(key) {
		return l, fmt.Errorf("%w: what it tells is all zeros", ErrKey)
	}
	for i := range 32 {
		l.SrcAddr[i], l.DstAddr[i] = window(key, 31-i), window(key, 63-i)
	}
	if f == FourTuple {
		for i := range 16 {
			l.SrcPort[i], l.DstPort[i] = window(key, 79-i), window(key, 95-i)
		}
	}
	if t == SymmetricXOR { // both places hold source ^ destination: a bit of either shows up in both
		for i := range 32 {
			both := l.SrcAddr[i] ^ l.DstAddr[i]
			l.SrcAddr[i], l.DstAddr[i] = both, both
		}
		for i := range 16 {
			both := l.SrcPort[i] ^ l.DstPort[i]
			l.SrcPort[i], l.DstPort[i] = both, both
		}
	}
	return l, nil
}

func allZero(b []byte) bool {
	for _, x := range b {
		if x != 0 {
			return false
		}
	}
	return true
}

// Hash returns the hash of a packet.
func (l *Linear) Hash(src, dst uint32, sport, dport uint16) uint32 {
	return xor(l.SrcAddr[:], src) ^ xor(l.DstAddr[:], dst) ^ xor(l.SrcPort[:], uint32(sport)) ^ xor(l.DstPort[:], uint32(dport))
}

// xor combines what the bits of v that are set contribute.
func xor(bits []uint32, v uint32) (hash uint32) {
	for i, b := range bits {
		if v>>i&1 != 0 {
			hash ^= b
		}
	}
	return hash
}

// Symmetric reports whether a packet and its answer always hash alike: by a transform, or by a key that repeats every 16 bits.
func (l *Linear) Symmetric() bool { return l.SrcAddr == l.DstAddr && l.SrcPort == l.DstPort }
