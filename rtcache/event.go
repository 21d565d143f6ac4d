package rtcache

import "net/netip"

// Events are what the kernel says, as values: the control state is built from them alone, whether they come from a
// netlink socket, a dump or a test.

type linkEvent struct {
	index   int
	name    string
	mac     [6]byte
	mtu     int
	up      bool // administratively up
	vrf     bool // enslaved to a VRF: its routes are in another table
	deleted bool
}

type addrEvent struct {
	index     int
	addr      netip.Prefix // the address itself, with the prefix length of its subnet
	scope     uint8        // 0 universe .. 254 host
	secondary bool
	deleted   bool
}

// neighState is what matters of the kernel's NUD states.
type neighState uint8

const (
	neighNone       neighState = iota // no entry, or one that nobody asked for
	neighIncomplete                   // being asked
	neighValid                        // reachable, delay, probe, permanent, noarp
	neighStale                        // usable, not confirmed lately
	neighFailed                       // did not answer
)

type neighEvent struct {
	index   int
	addr    netip.Addr
	mac     [6]byte
	state   neighState
	deleted bool
}

// nextHop is one path of a route as the kernel gives it.
type nextHop struct {
	index   int        // netdev
	gateway netip.Addr // invalid: on-link; may be IPv6 for an IPv4 route
	weight  uint16     // >= 1
}

// routeMode says how a new route relates to one of the same prefix and metric (the netlink header's flags).
type routeMode uint8

const (
	routeAdd     routeMode = iota // behind those that are there
	routePrepend                  // before them
	routeReplace                  // instead of the first
)

type routeEvent struct {
	local   bool // table local; else main
	prefix  netip.Prefix
	prio    uint32
	kind    setKind // setOne, setMulti: unicast by next hops; setElsewhere is not used here
	mtu     int     // of the route, 0: none
	hops    []nextHop
	mode    routeMode
	deleted bool
	nexthop bool // made with a nexthop object, whose removal the kernel does not announce per route
}

// sink takes events in the kernel's order. The events and what they point to are the sink's only during the call.
type sink interface {
	link(*linkEvent)
	addr(*addrEvent)
	neigh(*neighEvent)
	route(*routeEvent)
	// nexthop says that a nexthop object changed: routes that use it may have changed without a word.
	nexthop()
	// warn reports something of the kernel's routing that is not followed. key makes it unique.
	warn(key, text string)
}
