// Package lport is the alias-port space: which ports are free, per alias address and per peer; blocks per subscriber;
// the per-peer bitset caches of the third seed; and the owner table shared with the XDP program (DESIGN 4 and 6).
//
// Ports are in host order. A Space belongs to one worker; Owners is shared by all and changed only by atomic operations.
package lport

import (
	"errors"

	"pollux/internal/clock"
	"pollux/internal/packet"
)

// Row is one of the four port spaces an alias address has.
type Row uint8

const (
	RowTCP Row = iota
	RowUDP
	RowICMP  // echo and timestamp ids
	RowOther // other protocols, by hash16(remote, protocol)
	Rows
)

// Values of an owner byte. 1..253 is a worker: its index + 1.
const (
	ByteFree     = 0
	ByteKernel   = 254 // a listener or connection of the gateway's own; nobody may claim it
	ByteRedirect = 255 // published by a redirect; out of the dynamic space
)

// AliasBytes is the size of one alias address's rows in the owner table.
const AliasBytes = int(Rows) * 65536

// Why no port was given.
var (
	ErrNoPort    = errors.New("no alias port left")
	ErrHostLimit = errors.New("the host's port or block limit is reached")
)

// Peer is the remote side that a shared (endpoint-dependent) port must be free toward.
type Peer struct {
	Addr packet.Addr
	Port uint16
}

// Request asks for a port for one new link.
type Request struct {
	Alias packet.Addr
	Row   Row
	Host  packet.Addr // the inside host: blocks, deterministic ranges
	Want  uint16      // the local port; kept when rules and state allow (Options.SamePorts, Parity use it)
	Now   clock.Tick
}
