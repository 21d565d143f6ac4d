package lport

import (
	"math/bits"

	"pollux/internal/offheap"
	"pollux/internal/packet"
)

// hold is one entry of the ledger: a host (alias, port and row 0), or a host's use of one alias port.
type hold struct {
	host, alias packet.Addr
	port        uint16
	row         Row
	kind        uint8  // kindFree, kindHost, kindPort
	n           uint32 // a host's different ports; a port's links of that host
	block       uint32 // a host's first block, see aliasBlocks
	blocks      uint32 // a host's blocks, without resting ones
}

const (
	kindFree = iota
	kindHost
	kindPort
)

// ledger counts what each host has: one open-addressed table, linear probing, no tombstones. It is used only with blocks
// or a port limit.
type ledger struct {
	slots []hold
	table *offheap.Table[hold]
	shift uint32
	used  int
}

func newLedger(entries int, shared bool) (ledger, error) {
	log := max(bits.Len(uint(entries)), 4) + 1
	t, err := alloc[hold](1<<log, shared)
	if err != nil {
		return ledger{}, err
	}
	return ledger{slots: t.Items, table: t, shift: 64 - uint32(log)}, nil
}

func (l *ledger) close() {
	l.table.Free()
	*l = ledger{}
}

func (l *ledger) home(host, alias packet.Addr, rw Row, port uint16) uint64 {
	h := (uint64(host)<<32 | uint64(alias)) * 0x9e3779b97f4a7c15
	return (h ^ h>>31 ^ uint64(port)<<8 ^ uint64(rw)) * 0xbf58476d1ce4e5b9 >> l.shift
}

func (l *ledger) slot(kind uint8, host, alias packet.Addr, rw Row, port uint16) *hold {
	mask := uint64(len(l.slots) - 1)
	for i := l.home(host, alias, rw, port); ; i++ {
		h := &l.slots[i&mask]
		if h.kind == kindFree || h.kind == kind && h.host == host && h.alias == alias && h.port == port && h.row == rw {
			return h
		}
	}
}

// host returns a host's entry, new if need be; nil when the ledger is full. Entries move only when one is removed.
func (l *ledger) host(host packet.Addr) *hold {
	h := l.slot(kindHost, host, 0, 0, 0)
	if h.kind == kindFree {
		if l.full() {
			return nil
		}
		*h = hold{kind: kindHost, host: host}
		l.used++
	}
	return h
}

// peek returns a host's entry or nil.
func (l *ledger) peek(host packet.Addr) *hold {
	if h := l.slot(kindHost, host, 0, 0, 0); h.kind != kindFree {
		return h
	}
	return nil
}

// find returns the entry of a host's use of a port, or nil.
func (l *ledger) find(host, alias packet.Addr, rw Row, port uint16) *hold {
	if h := l.slot(kindPort, host, alias, rw, port); h.kind != kindFree {
		return h
	}
	return nil
}

// full keeps the table from filling up so far that probes get long; the last quarter is for ports of hosts that are in.
func (l *ledger) full() bool { return l.used >= len(l.slots)/2 }

// use counts one more use of a port by a host.
func (l *ledger) use(of *hold, alias packet.Addr, rw Row, port uint16) {
	h := l.slot(kindPort, of.host, alias, rw, port)
	if h.kind == kindFree {
		if l.used >= len(l.slots)/4*3 {
			return // only when more links are made than Options.Links said: these ports go uncounted
		}
		*h = hold{kind: kindPort, host: of.host, alias: alias, row: rw, port: port}
		l.used++
		of.n++
	}
	h.n++
}

// release undoes use; a port that was not counted is no matter.
func (l *ledger) release(host, alias packet.Addr, rw Row, port uint16) {
	h := l.find(host, alias, rw, port)
	if h == nil {
		return
	}
	if h.n--; h.n != 0 {
		return
	}
	l.remove(h)
	if of := l.peek(host); of != nil {
		of.n--
		l.trim(of)
	}
}

// trim removes a host that has nothing any more. nil does nothing.
func (l *ledger) trim(of *hold) {
	if of != nil && of.n == 0 && of.block == 0 {
		l.remove(of)
	}
}

// remove takes an entry out and closes the gap, so that probes stay short for ever.
func (l *ledger) remove(h *hold) {
	mask := uint64(len(l.slots) - 1)
	gap := l.home(h.host, h.alias, h.row, h.port)
	for &l.slots[gap&mask] != h {
		gap++
	}
	for i := gap + 1; ; i++ {
		x := &l.slots[i&mask]
		if x.kind == kindFree {
			break
		}
		if (i-l.home(x.host, x.alias, x.row, x.port))&mask >= (i-gap)&mask {
			l.slots[gap&mask] = *x
			gap = i
		}
	}
	l.slots[gap&mask] = hold{}
	l.used--
}
