package rtcache

import "sync/atomic"

// onLink finds the hop of a directly connected address: open addressing over single words, so that a reader sees an
// entry whole or not at all. The control goroutine alone writes; a table that fills up is replaced.
//
// Entry: tag (32 bits: the IPv4 address, or a hash of the IPv6 address) | egress (12) | hop index (20). 0: empty.
type onLink struct {
	words []atomic.Uint64
	used  int // entries and tombstones, control goroutine only
	live  int
}

const (
	hopBits    = 20
	egressBits = 12
	hopsMax    = 1 << hopBits
	egressMax  = 1 << egressBits
	tombstone  = 1 // tag 0, egress 0, hop 1: hop 1 is the first port's waiting hop, which is never filed here
)

func newOnLink(entries int) *onLink {
	n := 64
	for n < 2*entries {
		n *= 2
	}
	return &onLink{words: make([]atomic.Uint64, n)}
}

// tagV6 mixes an address to 32 bits (multiply and fold: only a filter, the hop holds the whole address).
func tagV6(hi, lo uint64) uint32 {
	x := (hi ^ lo*0x9e3779b97f4a7c15) * 0xd6e8feb86659fd93
	return uint32(x>>32) ^ uint32(x)
}

func (o *onLink) start(tag uint32, egress uint16) int {
	return int((uint64(tag)+uint64(egress)<<32)*0x9e3779b97f4a7c15>>32) & (len(o.words) - 1)
}

func onLinkKey(tag uint32, egress uint16) uint64 {
	return uint64(tag)<<32 | uint64(egress)<<hopBits
}

// findV4 returns the hop of an IPv4 address on an egress, 0: none.
func (o *onLink) findV4(addr uint32, egress uint16) uint32 {
	key := onLinkKey(addr, egress)
	for i := o.start(addr, egress); ; i = (i + 1) & (len(o.words) - 1) {
		w := o.words[i].Load()
		if w == 0 {
			return 0
		}
		if w&^(hopsMax-1) == key && w != tombstone {
			return uint32(w & (hopsMax - 1))
		}
	}
}

// findV6 is findV4 for IPv6; the hop's own address decides.
func (o *onLink) findV6(hi, lo uint64, egress uint16, hops []Hop) uint32 {
	tag := tagV6(hi, lo)
	key := onLinkKey(tag, egress)
	for i := o.start(tag, egress); ; i = (i + 1) & (len(o.words) - 1) {
		w := o.words[i].Load()
		if w == 0 {
			return 0
		}
		if w&^(hopsMax-1) == key && w != tombstone {
			if h := &hops[w&(hopsMax-1)]; h.hi.Load() == hi && h.lo.Load() == lo {
				return h.index
			}
		}
	}
}

// full says that one more entry would make probes long: replace the table first.
func (o *onLink) full() bool { return 2*(o.used+1) > len(o.words) }

func (o *onLink) add(tag uint32, egress uint16, hop uint32) {
	for i := o.start(tag, egress); ; i = (i + 1) & (len(o.words) - 1) {
		switch o.words[i].Load() {
		case 0:
			o.used++
		case tombstone:
		default:
			continue
		}
		o.words[i].Store(onLinkKey(tag, egress) | uint64(hop))
		o.live++
		return
	}
}

func (o *onLink) remove(tag uint32, egress uint16, hop uint32) {
	want := onLinkKey(tag, egress) | uint64(hop)
	for i := o.start(tag, egress); ; i = (i + 1) & (len(o.words) - 1) {
		switch o.words[i].Load() {
		case 0:
			return
		case want:
			o.words[i].Store(tombstone)
			o.live--
			return
		}
	}
}

// grown returns a copy without tombstones and with room.
func (o *onLink) grown() *onLink {
	n := newOnLink(2 * (o.live + 1))
	for i := range o.words {
		if w := o.words[i].Load(); w != 0 && w != tombstone {
			n.add(uint32(w>>32), uint16(w>>hopBits)&(egressMax-1), uint32(w&(hopsMax-1)))
		}
	}
	return n
}
