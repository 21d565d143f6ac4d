package nat

import (
	"math/bits"
	"sync/atomic"
	"unsafe"

	"pollux/internal/clock"
	"pollux/internal/offheap"
	"pollux/internal/packet"
	"pollux/internal/reason"
)

// EventKind says what an Event tells.
type EventKind uint8

const (
	EventSessionCreate EventKind = iota + 1 // a link was made
	EventSessionDelete                      // and ended: Packets and Bytes are valid
	EventMappingCreate                      // an endpoint-independent mapping was made: Remote is not set
	EventMappingDelete
	EventBlockTaken // a host got a block of ports: Local.Addr, Alias.Addr, and the span Alias.Port to Remote.Port
	EventBlockGiven // and gave it up
	EventRefused    // a new flow was refused: Reason, Limit, Untold; Alias is an address at most
)

// Event is one entry of the translation log, as the shard saw it: addresses, ports and ICMP ids in host order.
type Event struct {
	Kind    EventKind
	Proto   uint8
	Reason  reason.Reason // of EventRefused
	Inbound bool          // the link was opened from outside
	At      clock.Tick
	Local   Local
	Alias   Alias
	Remote  Remote    // ICMP: the port is 0
	Packets [2]uint64 // from and to the inside host
	Bytes   [2]uint64 // IP lengths
}

// Untold returns how many refusals there were since the last one that was told. Of EventRefused only.
func (e *Event) Untold() uint64 { return e.Packets[0] }

// Limit returns the limit that a refused host had reached, 0 if it is not a host's. Of EventRefused only.
func (e *Event) Limit() uint64 { return e.Bytes[0] }

// An event is one cache line.
const _ = -(unsafe.Sizeof(Event{}) ^ 64)

// EventsMax is the length that an EventRing has at most.
const EventsMax = 1 << 24

// EventRing carries events from one shard to one reader, and loses what it has no room for rather than wait.
//
//	word  writer  reader  order          pairs with
//	put   shard   reader  store-release  the reader's load: events below it are written
//	get   reader  shard   store-release  the shard's load: slots below it were read
//	lost  shard   anyone
//
// The words of each side lie on cache lines of their own. The memory is off the Go heap.
type EventRing struct {
	table    *offheap.Table[Event]
	ring     []Event
	sessions bool

	_    [128]byte
	put  atomic.Uint32
	head uint32 // the shard's copy of put
	room uint32 // get, as the shard last read it
	lost atomic.Uint64
	_    [128]byte
	get  atomic.Uint32
	_    [128]byte
}

// NewEventRing makes a ring for at least n events, of sessions and mappings too or of blocks and refusals only. Whoever made
// it closes it when neither side uses it any more.
func NewEventRing(n int, sessions bool) (*EventRing, error) {
	n = 1 << bits.Len(uint(min(max(n, 2), EventsMax)-1))
	t, err := offheap.Alloc[Event](n)
	if err != nil {
		return nil, err
	}
	return &EventRing{table: t, ring: t.Items, sessions: sessions}, nil
}

// Close gives the memory back.
func (r *EventRing) Close() {
	_ = r.table.Free() // munmap of a mapping that is there does not fail
	r.ring = nil
}

// Cap returns how many events there is room for.
func (r *EventRing) Cap() int { return len(r.ring) }

// Lost returns how many events found no room.
func (r *EventRing) Lost() uint64 { return r.lost.Load() }

// Read copies the oldest events that are there into buf and returns how many. One goroutine at a time may call it.
func (r *EventRing) Read(buf []Event) int {
	get := r.get.Load()
	n := min(r.put.Load()-get, uint32(len(buf)))
	mask := uint32(len(r.ring) - 1)
	for i := range n {
		buf[i] = r.ring[(get+i)&mask]
	}
	r.get.Store(get + n)
	return int(n)
}

// Write appends an event; false: there was no room, and it is counted as lost. Only the shard's goroutine may call it.
func (r *EventRing) Write(e Event) bool {
	size := uint32(len(r.ring))
	if r.head-r.room >= size {
		if r.room = r.get.Load(); r.head-r.room >= size {
			r.lose(1)
			return false
		}
	}
	r.ring[r.head&(size-1)] = e
	r.head++
	r.put.Store(r.head)
	return true
}

// lose counts; the shard alone writes.
func (r *EventRing) lose(n uint64) { r.lost.Store(r.lost.Load() + n) }

// eventLog is a shard's side of the translation log. All of it is idle while ring is nil.
type eventLog struct {
	ring       *EventRing
	sessions   bool
	blocksLost uint64 // of lport's own ring, as last seen
	second     clock.Tick
	told       int    // refusals in that second
	untold     uint64 // refusals since the last one told
}

// refusalsTold is how many refusals a shard tells in a second.
const refusalsTold = 10

func (l *eventLog) init(r *EventRing) {
	if l.ring = r; r != nil {
		l.sessions = r.sessions
	}
}

// logCreated tells that a link was made, after the block and the mapping that it brought with it.
func (s *Shard) logCreated(id uint32, now clock.Tick) {
	s.logBlocks()
	if !s.log.sessions {
		return
	}
	if s.has(id, flagMapping) && s.portKind(id) == portExclusive {
		s.logLink(EventMappingCreate, id, now)
	}
	s.logLink(EventSessionCreate, id, now)
}

// logEnded tells that a link ends, and whether its mapping ends with it. The record is still whole.
func (s *Shard) logEnded(id, heir uint32, now clock.Tick) {
	if !s.log.sessions {
		return
	}
	s.logLink(EventSessionDelete, id, now)
	if heir == 0 && s.has(id, flagMapping) && s.portKind(id) == portExclusive {
		s.logLink(EventMappingDelete, id, now)
	}
}

func (s *Shard) logLink(kind EventKind, id uint32, now clock.Tick) {
	lo, li := &s.lines[2*id], &s.lines[2*id+1]
	e := Event{Kind: kind, Proto: s.protoOf(id), Inbound: s.has(id, flagInbound), At: now, Local: s.localOf(id), Alias: s.aliasOf(id)}
	switch kind {
	case EventSessionDelete:
		e.Packets, e.Bytes = [2]uint64{lo.packets, li.packets}, [2]uint64{lo.bytes, li.bytes}
		fallthrough
	case EventSessionCreate:
		e.Remote = s.remoteOf(id)
	}
	s.log.ring.Write(e)
}

// logBlocks passes on what the port space has to tell, and returns how much that was.
func (s *Shard) logBlocks() (n int) {
	for {
		b, ok := s.ports.NextBlockEvent()
		if !ok {
			break
		}
		n++
		e := Event{Kind: EventBlockGiven, At: b.At, Local: Local{Addr: b.Host}, Alias: Alias{b.Alias, b.Low}, Remote: Remote{Port: b.High}}
		if b.Taken {
			e.Kind = EventBlockTaken
		}
		s.log.ring.Write(e)
	}
	if lost := s.ports.EventsLost(); lost != s.log.blocksLost {
		s.log.ring.lose(lost - s.log.blocksLost)
		s.log.blocksLost = lost
	}
	return n
}

// logRefused tells that a new flow was refused for want of ports, quota or room, unless too many were told in this second.
func (s *Shard) logRefused(n *newLink, why reason.Reason, now clock.Tick) {
	l := &s.log
	if l.ring == nil || why == reason.ProtoConflict {
		return
	}
	if now.Since(l.second) >= clock.PerSecond {
		l.second, l.told = now, 0
	}
	if l.told == refusalsTold {
		l.untold++
		return
	}
	l.told++
	e := Event{
		Kind: EventRefused, Proto: n.proto, Reason: why, Inbound: n.flags&flagInbound != 0, At: now,
		Local: n.local, Alias: Alias{Addr: n.alias.Addr}, Remote: n.remote,
	}
	e.Packets[0], e.Bytes[0] = l.untold, uint64(s.limitMet(n.local.Addr, why))
	if l.ring.Write(e) {
		l.untold = 0
	}
}

// limitMet returns the limit that a refused host had reached.
func (s *Shard) limitMet(host packet.Addr, why reason.Reason) int {
	switch {
	case why == reason.HostRate:
		return s.limits.NewLinksPerHost
	case why != reason.HostLimit:
		return 0
	}
	id := s.hosts.find(host)
	if most := s.limits.LinksPerHost; most > 0 && id != 0 && int(s.hosts.list[id].links) >= most {
		return most
	}
	blocks := s.rules.Blocks.Size * s.rules.Blocks.MaxPerHost
	if ports := s.limits.PortsPerHost; ports > 0 && (blocks == 0 || ports < blocks) {
		return ports
	}
	return blocks
}
