// Package rtcache mirrors the kernel's FIB and neighbours and attaches next hops to flows, with validity stamps and the
// reverse-path check (DESIGN 7, fifth seed). It never invents a route.
//
// A Table is written by one control goroutine and read by workers without locks, each through a View of its own:
//
//	netlink -> decode -> events -> control -> snapshot (tables, path sets, ports), swapped as a whole
//	                                       -> hops: next hops, edited in place word by word
//	                                       -> stamps: one per bucket of destinations, bumped after the swap
//	View.Route: slot still valid? its hop : local table, main table (longest prefix), path, hop, reverse path
//
// What a change costs the flows: another MAC of a neighbour, MAC or MTU of a port: nothing. A route: one lookup for each
// flow in the 1/65,536 of the destinations that it shares a stamp with, and none when the paths of its prefix stay the same. A port that
// goes down: one lookup for each flow that used it.
//
// Followed: tables local and main of both families, metrics, multipath (per-flow hash, weights), on-link and gateway
// routes, IPv6 gateways of IPv4 routes, route MTU, route types. Not followed and said so by Warnings: policy rules beyond the
// usual three, other tables, VRFs (refused by New), routes by source or type of service, encapsulations.
package rtcache

import (
	"net/netip"

	"pollux/internal/packet"
)

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
	Up      bool // administratively up
	Gone    bool // the netdev was deleted
	// Waiting: another netdev of the port's name took a deleted one's place. IfIndex is its number, but nothing is sent by it
	// before Table.Attach says that the port's sockets are bound to it.
	Waiting bool
	Addr    packet.Addr // primary IPv4 address, 0: none: source of ICMP errors sent from here
	AddrV6  netip.Addr  // static tables only: the port's IPv6 address
}
