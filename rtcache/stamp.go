package rtcache

import (
	"net/netip"
	"sync/atomic"
)

// stamps says how old the routing of each bucket of destinations is. A slot remembers its bucket's stamp; a route change
// bumps only the buckets that its prefix covers, so all other flows keep their next hops.
//
// IPv4: the bucket is the top 16 bits. IPv6: the top 32 bits folded into 16, so that a prefix of /32 or longer concerns
// one bucket. Writer: control goroutine, always after the new tables are published. Readers: workers, who load the stamp
// before they load the tables: a lookup in old tables can then never be stored under a new stamp. A stamp wraps after
// 2^32 changes in its bucket: years, at a thousand a second in one bucket 50 days, in which the flow must not send a packet.
type stamps struct {
	v4 [1 << 16]atomic.Uint32
	v6 [1 << 16]atomic.Uint32
}

const foldV6 = 0x9e37

// bucketV6 folds the top 32 bits of an address.
func bucketV6(hi uint64) uint16 {
	return uint16(hi>>48)*foldV6 ^ uint16(hi>>32)
}

// touch bumps every bucket that p covers and returns how many.
func (s *stamps) touch(p netip.Prefix) int {
	b := p.Addr().As16()
	if p.Addr().Is4() {
		first := int(b[12])<<8 | int(b[13])
		n := 1
		if p.Bits() < 16 {
			n = 1 << (16 - p.Bits())
			first &^= n - 1
		}
		for i := first; i < first+n; i++ {
			s.v4[i].Add(1)
		}
		return n
	}
	top, low := uint16(b[0])<<8|uint16(b[1]), int(b[2])<<8|int(b[3])
	if p.Bits() < 16 { // many tops share a bucket: all buckets
		for i := range s.v6 {
			s.v6[i].Add(1)
		}
		return len(s.v6)
	}
	n := 1
	if p.Bits() < 32 {
		n = 1 << (32 - p.Bits())
		low &^= n - 1
	}
	for i := low; i < low+n; i++ {
		s.v6[top*foldV6^uint16(i)].Add(1)
	}
	return n
}
