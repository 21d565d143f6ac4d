package nat

import (
	"math/bits"
	"unsafe"

	"pollux/internal/clock"
	"pollux/internal/offheap"
	"pollux/internal/packet"
)

// line is all that an established packet of one direction needs: 64 bytes, one cache line. Lines 2*id and 2*id+1 are the
// outbound and the inbound direction of link id; line numbers are what the exact index holds.
type line struct {
	key     tuple      // the packet as it comes; all zero: no link
	addr    wireAddr   // outbound: new source address; inbound: new destination address
	port    wirePort   // likewise the port or ICMP id
	watch   uint8      // TCP flags that need the slow path; watchAlways for every packet
	epoch   uint8      // Shard.epoch when it was last known to stand under the rules
	ip      uint16     // delta of the IPv4 header checksum, TTL-1 included, for a field that is read as little-endian
	l4      uint16     // likewise of the L4 checksum
	last    clock.Tick // last packet of this direction
	hop     HopSlot    // rtcache's
	packets uint64
	bytes   uint64 // IP total lengths
}

// wireAddr and wirePort are an address and a port as they stand in a packet, read as little-endian numbers: rewriting is a
// copy. The sum of RFC 1071 does not care in which order the bytes of a word are read, as long as all are read in the same:
// the deltas of a line are in this order, too.
type (
	wireAddr uint32
	wirePort uint16
)

func toWireAddr(a packet.Addr) wireAddr { return wireAddr(bits.ReverseBytes32(uint32(a))) }
func toWirePort(p uint16) wirePort      { return wirePort(bits.ReverseBytes16(p)) }

func (a wireAddr) host() packet.Addr { return packet.Addr(bits.ReverseBytes32(uint32(a))) }
func (p wirePort) host() uint16      { return bits.ReverseBytes16(uint16(p)) }

// A line is one cache line, a cold part a quarter of one.
const (
	_ = -(unsafe.Sizeof(line{}) ^ 64)
	_ = -(unsafe.Sizeof(cold{}) ^ 16)
)

// watchAlways in line.watch sends every packet down the slow path: it meets the bit that hit adds to the TCP flags.
const watchAlways = 0xff

// cold is the part of a link that established packets do not read.
type cold struct {
	next          uint32 // list group: the next older link; tree group: the next older one with the same remote
	timer, timer2 uint32 // wheel: next, previous (see wheel)
	state         State
	tcp           uint8 // tcpSynOut...
	flags         uint8 // flagInbound..., and the port kind
	count         uint8 // at the head of a list group: its length
}

// Flags of a link. The two low bits are its portKind.
const (
	portKindMask = 3
	flagInbound  = 1 << 2 // opened from outside: does not count for the host's limits
	flagMapping  = 1 << 3 // stands in the local index for its mapping
	flagHairpin  = 1 << 4 // its remote is an alias address: outbound packets go round again
	flagOneShot  = 1 << 5 // made by a rule that is gone by design
	flagTarget   = 1 << 6 // made by Rules.Target
	flagOutTwin  = 1 << 7 // its outbound key hid an older link's
)

// portKind says how a link holds its alias port, and so how the port goes back.
type portKind uint8

const (
	portRule      portKind = iota // a redirect's, or none at all: nothing to give back
	portExclusive                 // the group has it for itself: endpoint-independent mapping, target
	portAddress                   // shared; taken toward a remote address
	portPeer                      // shared; taken toward a remote endpoint
)

const (
	out = 0 // direction of packets from inside
	in  = 1
)

// links is the record store: lines, cold parts, and the list of free ids. Id 0 is none.
type links struct {
	lines []line // 2*id+direction
	cold  []cold
	born  []clock.Tick // when a link was made; only people ask
	free  uint32       // head of the list of ids that were used before, through cold.next
	fresh uint32       // ids from here on were never used
	live  int

	share   *LinkShare // nil: all of cold may be used
	granted int64      // links taken from share
}

func (l *links) init(m *memory, n int) (err error) {
	if l.lines, err = table[line](m, 2*(n+1)); err != nil {
		return err
	}
	if l.cold, err = table[cold](m, n+1); err != nil {
		return err
	}
	l.born, err = table[clock.Tick](m, n+1)
	l.fresh = 1
	return err
}

// full reports whether no id is free, or the share of all workers is used up.
func (l *links) full() bool {
	return l.free == 0 && int(l.fresh) == len(l.cold) || l.share != nil && !l.more()
}

// get takes an id with all fields zero. The caller has asked full.
func (l *links) get() uint32 {
	id := l.free
	if id != 0 {
		l.free = l.cold[id].next
		l.cold[id].next = 0
		l.prefetch(l.free)
	} else {
		id = l.fresh
		l.fresh++
	}
	l.live++
	return id
}

// prefetch brings a record near that is needed soon.
func (l *links) prefetch(id uint32) {
	at := [...]uintptr{uintptr(unsafe.Pointer(&l.lines[2*id])), uintptr(unsafe.Pointer(&l.lines[2*id+1])), uintptr(unsafe.Pointer(&l.cold[id])), uintptr(unsafe.Pointer(&l.born[id]))}
	offheap.Prefetch(at[:])
}

// put clears a record and frees its id.
func (l *links) put(id uint32) {
	l.lines[2*id], l.lines[2*id+1] = line{}, line{}
	l.cold[id] = cold{next: l.free}
	l.free = id
	l.live--
	if l.share != nil {
		l.less()
	}
}

// used reports whether id names a link.
func (l *links) used(id uint32) bool {
	return id != 0 && id < l.fresh && l.lines[2*id+in].key != (tuple{})
}

func (l *links) localOf(id uint32) Local {
	k := &l.lines[2*id].key
	return Local{k.src(), k.sport()}
}

func (l *links) aliasOf(id uint32) Alias {
	k := &l.lines[2*id+in].key
	return Alias{k.dst(), k.dport()}
}

// remoteOf returns the remote endpoint; ICMP has no remote port.
func (l *links) remoteOf(id uint32) Remote {
	k := &l.lines[2*id].key
	if k.proto() == packet.ProtoICMP {
		return Remote{k.dst(), 0}
	}
	return Remote{k.dst(), k.dport()}
}

func (l *links) protoOf(id uint32) uint8 { return l.lines[2*id].key.proto() }

func (l *links) portKind(id uint32) portKind { return portKind(l.cold[id].flags & portKindMask) }

func (l *links) has(id uint32, flag uint8) bool { return l.cold[id].flags&flag != 0 }

// last returns when the link saw its last packet in either direction.
func (l *links) last(id uint32) clock.Tick {
	a, b := l.lines[2*id].last, l.lines[2*id+1].last
	if a.Before(b) {
		return b
	}
	return a
}
