package nat

import (
	"net/netip"
	"time"

	"pollux/internal/packet"
)

// Behaviour is how far a mapping or a filter looks at the remote endpoint (RFC 4787 sections 4 and 5).
type Behaviour uint8

const (
	EndpointIndependent     Behaviour = iota // any remote
	AddressDependent                         // the remote's address
	AddressAndPortDependent                  // the remote's address and port; "endpoint-dependent" for mappings
)

// PerProtocol holds one Behaviour for each protocol that has ports or ids.
type PerProtocol struct{ UDP, TCP, ICMP Behaviour }

// PortRange is inclusive.
type PortRange struct{ Low, High uint16 }

// Timeouts are idle times; a link dies when it was idle for strictly more than this.
type Timeouts struct {
	UDP, TCPOpening, TCPEstablished, TCPClosing, ICMP, Other, Fragment time.Duration
}

// Limits bound the state. 0 means none for the per-host limits; Links and Fragments are never 0.
type Limits struct {
	Links           int // records this shard may hold
	LinksPerHost    int // per inside host, links that it opened
	PortsPerHost    int
	NewLinksPerHost int // per second, bucket of the same size
	Fragments       int // datagrams with fragment state, and held fragments
}

// Blocks configures port blocks per subscriber; Size 0 is off.
type Blocks struct {
	Size, MaxPerHost  int
	IdleRelease, Rest time.Duration
}

// Deterministic configures RFC 7422 mapping; an invalid prefix is off.
type Deterministic struct {
	Inside       netip.Prefix
	PortsPerHost int
}

// Pick says how a pool chooses among its servers.
type Pick uint8

const (
	Rotate     Pick = iota // in list order, one step per new flow
	SourceHash             // by hash of the remote address
)

// RedirectPort publishes Public as one of Local. Remote fields that are 0 mean any. Ranges are expanded by the caller:
// one RedirectPort per port. A Public.Addr of 0 follows the default (first) alias address.
type RedirectPort struct {
	Proto  uint8 // packet.ProtoTCP, ProtoUDP or ProtoICMP
	Public Alias
	Local  []Local // one, or a pool
	Remote Remote
	Pick   Pick
	Added  bool // at run time, beside what is configured: so it is listed
}

// RedirectAddr maps a whole public address to a local one, ports kept. Several with the same Public and a common Pool
// are not a pool: newest wins; a pool has more than one Local. A Public of 0 follows the default alias address.
type RedirectAddr struct {
	Public  packet.Addr
	Local   []packet.Addr
	Inbound bool // lets new inbound flows in whatever DenyIncoming says
	Pick    Pick
	Added   bool // as RedirectPort's
}

// RedirectProto maps one IP protocol without ports.
type RedirectProto struct {
	Proto  uint8
	Public packet.Addr
	Local  packet.Addr
	Remote packet.Addr // 0: any
	Added  bool        // as RedirectPort's
}

// Rules is what may change while links live: SetRules replaces it whole.
type Rules struct {
	Alias     []packet.Addr // the dynamic pool in order; the first is the default alias address; may be empty
	Kernel    []packet.Addr // those of all alias and redirect addresses that the gateway's kernel has itself
	Arbitrary bool          // pooling: arbitrary instead of paired

	PortRange            PortRange
	SamePorts            bool
	PortParity           bool
	DenyIncoming         bool
	Target               packet.Addr // DMZ host, 0: none
	UnregisteredOnly     bool
	UnregisteredCGN      bool
	ResetOnAddressChange bool
	Mapping, Filtering   PerProtocol
	Hairpin              bool
	Exempt               []netip.Prefix
	Timeouts             Timeouts
	Blocks               Blocks
	Deterministic        Deterministic
	MSSClamp             int // 0: off; otherwise the highest MSS let through in a SYN (pmd resolves "auto")
	TCPWindowTracking    bool
	NoResourceCode       uint8 // ICMP type 3 code sent to an inside host that gets no link

	RedirectPort  []RedirectPort
	RedirectAddr  []RedirectAddr
	RedirectProto []RedirectProto
}

// DefaultRules returns SPEC part C's defaults.
func DefaultRules() Rules {
	return Rules{
		PortRange:            PortRange{1024, 65535},
		SamePorts:            true,
		DenyIncoming:         true,
		ResetOnAddressChange: true,
		Mapping:              PerProtocol{UDP: EndpointIndependent, TCP: AddressAndPortDependent, ICMP: EndpointIndependent},
		Filtering:            PerProtocol{UDP: AddressAndPortDependent, TCP: AddressAndPortDependent, ICMP: AddressDependent},
		Hairpin:              true,
		Timeouts: Timeouts{UDP: 300 * time.Second, TCPOpening: 240 * time.Second, TCPEstablished: 7440 * time.Second,
			TCPClosing: 240 * time.Second, ICMP: 60 * time.Second, Other: 60 * time.Second, Fragment: 10 * time.Second},
		Blocks:         Blocks{MaxPerHost: 8, IdleRelease: 120 * time.Second, Rest: 120 * time.Second},
		NoResourceCode: 13,
	}
}
