package pktgen

import (
	"encoding/binary"
	"fmt"
	"math"
	"math/bits"
	"net/netip"
	"strconv"
	"strings"
)

// Range is a number of consecutive addresses.
type Range struct {
	First netip.Addr
	Count uint32 // at least 1
}

// ParseRange reads "10.0.0.1", "10.0.0.0/24" (every address of it) or "10.0.0.1-10.0.3.7".
func ParseRange(s string) (Range, error) {
	bad := fmt.Errorf("%q is no address range: write ADDRESS, NETWORK/LEN or FIRST-LAST", s)
	if p, err := netip.ParsePrefix(s); err == nil {
		host := p.Addr().BitLen() - p.Bits()
		if p.Masked() != p || host > 31 {
			return Range{}, fmt.Errorf("%q: the network must be written as such and hold at most 2^31 addresses", s)
		}
		return Range{p.Addr(), 1 << host}, nil
	}
	a, b, two := strings.Cut(s, "-")
	first, err := netip.ParseAddr(a)
	if err != nil || first.Zone() != "" {
		return Range{}, bad
	}
	if !two {
		return Range{first, 1}, nil
	}
	last, err := netip.ParseAddr(b)
	if err != nil || last.BitLen() != first.BitLen() {
		return Range{}, bad
	}
	x, y := first.As16(), last.As16()
	low, high := binary.BigEndian.Uint32(x[12:]), binary.BigEndian.Uint32(y[12:])
	if [12]byte(x[:12]) != [12]byte(y[:12]) || high < low || high-low == math.MaxUint32 {
		return Range{}, bad
	}
	return Range{first, high - low + 1}, nil
}

// low32 is the last 32 bits of the first address.
func (r Range) low32() uint32 {
	b := r.First.As16()
	return binary.BigEndian.Uint32(b[12:])
}

// PortRange is a number of consecutive ports; for ICMP, of identifiers.
type PortRange struct {
	First uint16
	Count uint32 // 1 to 65536
}

// ParsePorts reads "9" or "1024-65535".
func ParsePorts(s string) (PortRange, error) {
	a, b, two := strings.Cut(s, "-")
	if !two {
		b = a
	}
	first, err := strconv.ParseUint(a, 10, 16)
	last, err2 := strconv.ParseUint(b, 10, 16)
	if err != nil || err2 != nil || last < first {
		return PortRange{}, fmt.Errorf("%q is no port range: write PORT or FIRST-LAST", s)
	}
	return PortRange{uint16(first), uint32(last-first) + 1}, nil
}

// Flows says which flows there are and in which order they are sent.
//
// Flow f has its local endpoint from f modulo the number of local endpoints, ports of one address first; its remote port
// and then its remote address move with f and with every turn through the local endpoints. So no two flows of the space are
// equal, and flows that follow one another go to different remote ports where there are several.
type Flows struct {
	Src, Dst           Range
	SrcPorts, DstPorts PortRange
	DstStep            uint32 // from one destination address to the next; 0: 1, they are consecutive

	Count    uint64  // flows in use at a time; 0: the whole space, so that every packet begins a new flow
	Random   bool    // any of them next; else in turn
	NewPerS  float64 // so many flows a second are left for new ones
	localPer uint64  // local endpoints
	space    uint64
}

// check fills in what follows from the ranges.
func (f *Flows) check() error {
	for _, r := range []*Range{&f.Src, &f.Dst} {
		if !r.First.IsValid() || r.Count == 0 {
			return fmt.Errorf("flows: source and destination addresses are needed")
		}
	}
	if f.Src.First.Is4() != f.Dst.First.Is4() {
		return fmt.Errorf("flows: %v and %v are of different families", f.Src.First, f.Dst.First)
	}
	if uint64(f.Dst.low32())+uint64(f.Dst.Count-1)*uint64(f.step()) > math.MaxUint32 {
		return fmt.Errorf("flows: %d destinations from %v, %d apart, are not possible", f.Dst.Count, f.Dst.First, f.step())
	}
	for _, p := range []*PortRange{&f.SrcPorts, &f.DstPorts} {
		if p.Count == 0 || uint32(p.First)+p.Count > 1<<16 {
			return fmt.Errorf("flows: ports from %d, %d of them, are not possible", p.First, p.Count)
		}
	}
	f.localPer = uint64(f.Src.Count) * uint64(f.SrcPorts.Count)
	high, low := bits.Mul64(f.localPer, uint64(f.DstPorts.Count)*uint64(f.Dst.Count))
	f.space = low
	if high != 0 || low > 1<<62 {
		f.space = 1 << 62
	}
	if f.Count == 0 {
		f.Count = f.space
	}
	if f.Count > f.space {
		return fmt.Errorf("flows: %d flows are asked for, but the ranges hold %d (%d addresses x %d ports to %d addresses x %d ports)", f.Count,
			f.space, f.Src.Count, f.SrcPorts.Count, f.Dst.Count, f.DstPorts.Count)
	}
	if f.NewPerS < 0 || f.NewPerS > 1e9 {
		return fmt.Errorf("flows: %g new flows a second are not possible", f.NewPerS)
	}
	return nil
}

// step is DstStep as it holds.
func (f *Flows) step() uint32 { return max(f.DstStep, 1) }

// tuple returns what tells flow n of the space: last 32 bits of both addresses, and both ports.
func (f *Flows) tuple(n uint64) (src, dst uint32, sport, dport uint16) {
	cell, turn := n%f.localPer, n/f.localPer
	ports, remotes := uint64(f.SrcPorts.Count), uint64(f.DstPorts.Count)
	return f.Src.low32() + uint32(cell/ports), f.Dst.low32() + uint32(turn/remotes%uint64(f.Dst.Count))*f.step(),
		f.SrcPorts.First + uint16(cell%ports), f.DstPorts.First + uint16((cell+turn)%remotes)
}
