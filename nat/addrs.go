package nat

import (
	"math/bits"
	"net/netip"
	"slices"

	"pollux/internal/packet"
)

// Flags of an address of ours.
const (
	addrPool      = 1 << iota // in Rules.Alias
	addrDynamic               // in Shard.pool: gives ports to hosts
	addrPublished             // the public address of a redirect
	addrKernel                // the gateway's kernel has it
)

// ours is what the shard knows about one of its public addresses.
type ours struct {
	addr  packet.Addr
	flags uint8
	born  uint32 // epoch in which it came, or last left the pool: older links on it are dead if an address change resets
}

// addrTable finds addresses of ours. It is built whole by SetRules and read on the miss path.
type addrTable struct {
	slots []ours // a power of two, load at most a half
	shift uint8
}

func (t *addrTable) find(a packet.Addr) *ours {
	mask := uint32(len(t.slots) - 1)
	for i := uint32(a) * 0x9e3779b1 >> t.shift; ; i++ {
		switch o := &t.slots[i&mask]; o.addr {
		case a:
			if a == 0 {
				return nil
			}
			return o
		case 0:
			return nil
		}
	}
}

func newAddrTable(list []ours) addrTable {
	log := max(bits.Len(uint(len(list))), 1) + 1
	t := addrTable{slots: make([]ours, 1<<log), shift: uint8(32 - log)}
	mask := uint32(len(t.slots) - 1)
	for _, o := range list {
		i := uint32(o.addr) * 0x9e3779b1 >> t.shift
		for t.slots[i&mask].addr != 0 {
			i++
		}
		t.slots[i&mask] = o
	}
	return t
}

// span is an inclusive range of addresses.
type span struct{ lo, hi packet.Addr }

// spans holds prefixes as disjoint ranges in ascending order.
type spans []span

func newSpans(prefixes []netip.Prefix) spans {
	var all spans
	for _, p := range prefixes {
		lo := packet.AddrFrom(p.Masked().Addr())
		all = append(all, span{lo, lo | packet.Addr(uint64(1)<<(32-p.Bits())-1)})
	}
	slices.SortFunc(all, func(a, b span) int {
		if a.lo < b.lo {
			return -1
		}
		return 1
	})
	var out spans
	for _, s := range all {
		if n := len(out); n > 0 && s.lo <= out[n-1].hi {
			out[n-1].hi = max(out[n-1].hi, s.hi)
			continue
		}
		out = append(out, s)
	}
	return out
}

// has reports whether a lies in one of the ranges.
func (s spans) has(a packet.Addr) bool {
	lo, hi := 0, len(s)
	for lo < hi {
		if mid := (lo + hi) / 2; s[mid].hi < a {
			lo = mid + 1
		} else {
			hi = mid
		}
	}
	return lo < len(s) && s[lo].lo <= a
}

// registered reports whether a is an address that unregistered_only (and with cgn also unregistered_cgn) leaves alone:
// not in 10/8, 172.16/12, 192.168/16 (RFC 1918), nor with cgn in 100.64/10 (RFC 6598).
func registered(a packet.Addr, cgn bool) bool {
	switch {
	case a>>24 == 10, a>>20 == 0xac1, a>>16 == 0xc0a8:
		return false
	case a>>22 == 0x6440>>6:
		return !cgn
	}
	return true
}
