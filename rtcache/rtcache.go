// Package rtcache mirrors the kernel's FIB and neighbours and attaches next hops to flows, with validity stamps and the
// reverse-path check (DESIGN 7, fifth seed). It never invents a route.
package rtcache

import "pollux/internal/packet"

// Verdict is the outcome of routing one packet.
type Verdict uint8

const (
	OK          Verdict = iota // Hop is usable now
	Unresolved                 // Hop's neighbour is not known (yet): keep the packet, Want the hop, route again at the next epoch
	NoRoute                    // no route, or it leaves by a netdev that is no port of ours
	Unreachable                // route type unreachable
	Prohibit                   // route type prohibit
	Blackhole                  // route type blackhole: silent
	ReversePath                // strict or loose reverse-path check failed
	Local                      // the destination is the kernel's own address, broadcast or multicast
	Failed                     // the neighbour did not answer
)

// ReversePathMode is the config key routing.reverse_path.
type ReversePathMode uint8

const (
	Strict ReversePathMode = iota
	Loose
	Off
)

// Port is what rtcache knows of one netdev that a worker polls. Index is pollux's own number of it (order of config).
type Port struct {
	Index   uint16
	IfIndex int
	Name    string
	Inside  bool
	MAC     [6]byte
	MTU     int
	Up      bool        // administratively up
	Addr    packet.Addr // primary IPv4 address, 0: none: source of ICMP errors sent from here
}
