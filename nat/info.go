package nat

// State is a link's life stage as the configuration contract names it.
type State uint8

const (
	Active      State = iota // everything but TCP
	Opening                  // TCP before the handshake's last ACK
	Established              // TCP, one FIN included
	Closing                  // TCP after FIN both ways or RST
)

// String returns the contract's word.
func (s State) String() string {
	return [...]string{"active", "opening", "established", "closing"}[s&3]
}

// LinkInfo describes one link for people and programs outside the path.
type LinkInfo struct {
	ID        uint32
	Proto     uint8
	Local     Local
	Alias     Alias
	Remote    Remote
	State     State
	ExpiresIn uint32 // ticks until the link dies if it stays idle
	Worker    int
	Inbound   bool // opened from outside (a redirect, a target, an endpoint-independent filter)
	Packets   uint64
	Bytes     uint64
	Age       uint32 // ticks since it was made; wraps after 49 days
	Idle      uint32 // ticks since its last packet
}
