package lport

import (
	"fmt"
	"math/bits"

	"pollux/internal/packet"
)

// ClassesMax is how many classes an Affinity may tell apart.
const ClassesMax = 4096

// Mix says how whatever spreads packets over workers mixes the endpoints of a packet that comes back: [i] is what the bit of
// weight 2^i contributes by exclusive or. The low bits of the whole are its class.
type Mix struct {
	PeerAddr, AliasAddr [32]uint32
	PeerPort, AliasPort [16]uint32
}

// Class returns the class of a packet from a peer to an alias endpoint, before it is cut to the low bits.
func (m *Mix) Class(alias packet.Addr, port uint16, p Peer) uint32 {
	return mix(m.AliasAddr[:], uint32(alias)) ^ mix(m.AliasPort[:], uint32(port)) ^
		mix(m.PeerAddr[:], uint32(p.Addr)) ^ mix(m.PeerPort[:], uint32(p.Port))
}

func mix(part []uint32, v uint32) (x uint32) {
	for ; v != 0; v &= v - 1 {
		x ^= part[bits.TrailingZeros32(v)]
	}
	return x
}

// Affinity says of any peer by which alias ports its packets come to one worker by themselves. It is a prepared value without
// pointers, about 40 KiB, never changed. Since a class is an exclusive or, the class of 64 neighbouring ports is that of
// the first combined with the same 64 differences: one mask for each class says which ports of a word will do.
type Affinity struct {
	mask     uint32
	peerPort bool               // the peer's port matters, so links toward a whole address have no class
	first    [1024]uint16       // class of a word's first port
	mine     [ClassesMax]uint64 // by the class of a word's first port: the ports of the word that come to the worker
	part     [10][256]uint16    // class of each byte of peer address, alias address, peer port
}

// NewAffinity prepares the value. mine says of each class whether it is the worker's; its length is a power of two up to
// ClassesMax. nil without an error: all ports are alike, so there is nothing to prefer.
func NewAffinity(m *Mix, mine []bool) (*Affinity, error) {
	n := len(mine)
	if n == 0 || n > ClassesMax || n&(n-1) != 0 {
		return nil, fmt.Errorf("lport: %d classes of ports: must be a power of two up to %d", n, ClassesMax)
	}
	for n > 1 && alike(mine[:n/2], mine[n/2:n]) { // the highest bit decides nothing: fewer classes, less memory to touch
		n /= 2
	}
	a := &Affinity{mask: uint32(n - 1)}
	differ := false
	for _, x := range m.AliasPort {
		differ = differ || x&a.mask != 0
	}
	if !differ {
		return nil, nil
	}
	for _, x := range m.PeerPort {
		a.peerPort = a.peerPort || x&a.mask != 0
	}
	for w := range a.first {
		a.first[w] = uint16(mix(m.AliasPort[:], uint32(w)<<6) & a.mask)
	}
	for class := range n {
		for port := range uint32(64) {
			if mine[(uint32(class)^mix(m.AliasPort[:], port))&a.mask] {
				a.mine[class] |= 1 << port
			}
		}
	}
	for b := range uint32(256) {
		for i := range uint32(4) {
			a.part[i][b] = uint16(mix(m.PeerAddr[:], b<<(8*i)) & a.mask)
			a.part[4+i][b] = uint16(mix(m.AliasAddr[:], b<<(8*i)) & a.mask)
		}
		for i := range uint32(2) {
			a.part[8+i][b] = uint16(mix(m.PeerPort[:], b<<(8*i)) & a.mask)
		}
	}
	return a, nil
}

func alike(a, b []bool) bool {
	for i := range a {
		if a[i] != b[i] {
			return false
		}
	}
	return true
}

// class is what a peer and an alias address contribute.
func (a *Affinity) class(alias packet.Addr, p Peer) uint32 {
	t := &a.part
	return uint32(t[0][uint8(p.Addr)] ^ t[1][uint8(p.Addr>>8)] ^ t[2][uint8(p.Addr>>16)] ^ t[3][uint8(p.Addr>>24)] ^
		t[4][uint8(alias)] ^ t[5][uint8(alias>>8)] ^ t[6][uint8(alias>>16)] ^ t[7][uint8(alias>>24)] ^
		t[8][uint8(p.Port)] ^ t[9][uint8(p.Port>>8)])
}

// near returns the ports of a word that come to the worker.
func (a *Affinity) near(class, w uint32) uint64 {
	return a.mine[(class^uint32(a.first[w&1023]))&a.mask&(ClassesMax-1)]
}

// SetAffinity lets Toward prefer, among the ports of a row that are free toward a peer, those that a says: while one of them is
// left in the range (with blocks: in the block that is looked at), another is taken only because the host keeps its own
// number (Options.SamePorts), or because this worker has its share of ports already and none of those it owns will do. nil: no
// preference. The value is copied; the error is that there is no memory for it, and nothing is preferred then.
func (s *Space) SetAffinity(rw Row, a *Affinity) error {
	if rw >= Rows {
		return fmt.Errorf("lport: there is no row %d", rw)
	}
	for _, x := range s.aliases {
		if x != nil && x.rows[rw] != nil {
			x.rows[rw].gain++ // what caches remember of the old preference is worthless
		}
	}
	if a == nil {
		s.affinity[rw] = nil
		return nil
	}
	if s.affinityMem[rw] == nil {
		mem, err := mapped[Affinity](1)
		if err != nil {
			s.affinity[rw] = nil
			return err
		}
		s.affinityMem[rw] = mem
	}
	s.affinity[rw] = &s.affinityMem[rw][0]
	*s.affinity[rw] = *a
	return nil
}
