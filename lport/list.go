package lport

import (
	"pollux/internal/clock"
	"pollux/internal/packet"
)

// CacheInfo describes the cache of one peer: ports known to be in use toward it.
type CacheInfo struct {
	Alias packet.Addr
	Row   Row
	Peer  Peer // Port 0: any port of that address
	Ports int
}

// Caches visits the per-peer caches among max records from cursor on (0: the start) and returns where to go on, 0 when all were
// seen.
func (s *Space) Caches(cursor uint32, max int, visit func(CacheInfo)) (next uint32) {
	for at := cursor; at < s.caches.fresh; at++ {
		if max--; max < 0 {
			return at
		}
		if c := &s.caches.all[at]; c.live {
			visit(CacheInfo{c.alias, c.row, Peer{c.addr, c.port}, int(c.n)})
		}
	}
	return 0
}

// BlockInfo describes a port block that a host holds, or held until a while ago.
type BlockInfo struct {
	Alias, Host packet.Addr
	Low, High   uint16 // inclusive
	Resting     bool   // given up; only this host may have it back until the rest is over
	Links       int    // uses of its ports
	Since       clock.Tick
}

// Blocks visits the blocks among max records from cursor on (0: the start) and returns where to go on, 0 when all were seen.
func (s *Space) Blocks(cursor uint32, max int, visit func(BlockInfo)) (next uint32) {
	at := cursor
	for i := int(at >> blockBits); i < len(s.aliases); i++ {
		if a := s.aliases[i]; a != nil {
			for j := at & (1<<blockBits - 1); j < uint32(len(a.blocks.all)); j++ {
				if max--; max < 0 {
					return uint32(i)<<blockBits | j
				}
				if b := &a.blocks.all[j]; b.state != blockFree {
					visit(s.blockInfo(a, b, j))
				}
			}
		}
		at = 0
	}
	return 0
}

func (s *Space) blockInfo(a *aliasSpace, b *block, i uint32) BlockInfo {
	lo, hi := s.blockPorts(i)
	return BlockInfo{Alias: a.addr, Host: b.host, Low: uint16(lo), High: uint16(hi), Resting: b.state == blockResting, Links: int(b.links), Since: b.since}
}

// BlockOf returns the block of this worker that a port lies in; false: it lies in none.
func (s *Space) BlockOf(alias packet.Addr, port uint16) (BlockInfo, bool) {
	a := s.known(alias)
	if a == nil || s.blocks.size == 0 || len(a.blocks.all) == 0 {
		return BlockInfo{}, false
	}
	i := s.blocks.of(port)
	if b := &a.blocks.all[i]; b.state != blockFree {
		return s.blockInfo(a, b, i), true
	}
	return BlockInfo{}, false
}

// String names a row as the API does.
func (r Row) String() string {
	return [...]string{"tcp", "udp", "icmp", "other"}[r&(Rows-1)]
}
