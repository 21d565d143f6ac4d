// Package reason is the one list of why pollux did not simply send a packet on.
//
// Every packet that is not forwarded carries exactly one Reason. The list gives the counter name, the help text of the
// metric and the line of the documentation; names are kebab-case and stable.
package reason

// Reason says why a packet was not sent on. The zero value None means that it was.
type Reason uint8

const (
	None Reason = iota
	NoMapping
	ToHost
	Filtered
	NoPort
	HostLimit
	HostRate
	TableFull
	TTLExpired
	MTUExceeded
	NoRoute
	NoNeighbour
	ReversePath
	BadHeader
	BadChecksum
	BadSource
	FragmentBad
	FragmentTimeout
	FragmentLimit
	HairpinOff
	ProtoConflict
	Unsupported
	NotForUs
	HandoffFull
	TXFull
	NoQueue
	Punted
	Held
	NoFrame
	Draining
	Count // number of reasons; not a reason
)

var table = [Count]struct{ name, help string }{
	None:            {"none", "sent on"},
	NoMapping:       {"no-mapping", "inbound to an alias address, no link, no redirect, no target"},
	ToHost:          {"to-host", "belongs to the gateway's own stack"},
	Filtered:        {"filtered", "a mapping exists but its filter does not admit this remote"},
	NoPort:          {"no-port", "no alias port left for this host and remote"},
	HostLimit:       {"host-limit", "links_per_host or ports_per_host reached"},
	HostRate:        {"host-rate", "new_links_per_host exceeded"},
	TableFull:       {"table-full", "limits.links reached"},
	TTLExpired:      {"ttl-expired", "TTL ran out here"},
	MTUExceeded:     {"mtu-exceeded", "larger than the egress MTU and not to be fragmented"},
	NoRoute:         {"no-route", "no usable route to the destination"},
	NoNeighbour:     {"no-neighbour", "the next hop did not answer, or too many packets wait for it"},
	ReversePath:     {"reverse-path", "the route back to the source leaves by another port"},
	BadHeader:       {"bad-header", "malformed or truncated header"},
	BadChecksum:     {"bad-checksum", "wrong IPv4 header checksum"},
	BadSource:       {"bad-source", "a source address that cannot be there"},
	FragmentBad:     {"fragment-bad", "overlapping or inconsistent fragments"},
	FragmentTimeout: {"fragment-timeout", "the first fragment did not come in time"},
	FragmentLimit:   {"fragment-limit", "too many fragments are held"},
	HairpinOff:      {"hairpin-off", "inside to an alias address while hairpin is off"},
	ProtoConflict:   {"proto-conflict", "another inside host already talks this protocol to this remote"},
	Unsupported:     {"unsupported", "a kind of packet that is not translated"},
	NotForUs:        {"not-for-us", "a destination MAC that is not the port's"},
	HandoffFull:     {"handoff-full", "the ring to the owning worker is full"},
	TXFull:          {"tx-full", "the transmit ring stayed full"},
	NoQueue:         {"no-queue", "arrived on a queue that no worker polls"},
	Punted:          {"punted", "handed to the gateway's own stack by a worker"},
	Held:            {"held", "still held: a fragment, an unresolved neighbour, an unsolicited SYN"},
	NoFrame:         {"no-frame", "no free frame to build or copy a packet in"},
	Draining:        {"draining", "a new flow while `pollux drain` lets the old ones run out"},
}

// String returns the stable kebab-case name.
func (r Reason) String() string {
	if r < Count {
		return table[r].name
	}
	return "unknown"
}

// Help returns one line for people: metrics and documentation.
func (r Reason) Help() string {
	if r < Count {
		return table[r].help
	}
	return ""
}
