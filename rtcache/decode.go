package rtcache

import (
	"encoding/binary"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"
)

// decode turns one rtnetlink message (linux/rtnetlink.h, linux/if_link.h, linux/neighbour.h, linux/fib_rules.h; host byte
// order, addresses in network order) into an event. Anything malformed, of another family or of a table that is not
// followed is passed over. dumped: the message answers a dump, its flags say nothing.
func decode(kind, flags uint16, b []byte, dumped bool, s sink) {
	switch kind {
	case unix.RTM_NEWLINK, unix.RTM_DELLINK:
		decodeLink(b, kind == unix.RTM_DELLINK, s)
	case unix.RTM_NEWADDR, unix.RTM_DELADDR:
		decodeAddr(b, kind == unix.RTM_DELADDR, s)
	case unix.RTM_NEWNEIGH, unix.RTM_DELNEIGH:
		decodeNeigh(b, kind == unix.RTM_DELNEIGH, s)
	case unix.RTM_NEWROUTE, unix.RTM_DELROUTE:
		decodeRoute(b, flags, dumped, kind == unix.RTM_DELROUTE, s)
	case unix.RTM_NEWRULE, unix.RTM_DELRULE:
		decodeRule(b, kind == unix.RTM_DELRULE, s)
	case unix.RTM_NEWNEXTHOP, unix.RTM_DELNEXTHOP:
		s.nexthop()
	}
}

var native = binary.NativeEndian

// rtaNHID is RTA_NH_ID of linux/rtnetlink.h.
const rtaNHID = 30

// attr takes the next attribute off b; ok is false at the end or at the first malformed one.
func attr(b []byte) (kind uint16, value, rest []byte, ok bool) {
	if len(b) < unix.SizeofRtAttr {
		return 0, nil, nil, false
	}
	n := int(native.Uint16(b))
	if n < unix.SizeofRtAttr || n > len(b) {
		return 0, nil, nil, false
	}
	kind = native.Uint16(b[2:]) &^ (unix.NLA_F_NESTED | unix.NLA_F_NET_BYTEORDER)
	return kind, b[unix.SizeofRtAttr:n], b[min((n+3)&^3, len(b)):], true
}

func u32(b []byte) uint32 {
	if len(b) < 4 {
		return 0
	}
	return native.Uint32(b)
}

func decodeLink(b []byte, deleted bool, s sink) {
	if len(b) < unix.SizeofIfInfomsg || b[0] != unix.AF_UNSPEC { // AF_BRIDGE: about a bridge's port, not the link
		return
	}
	e := linkEvent{index: int(int32(native.Uint32(b[4:]))), up: native.Uint32(b[8:])&unix.IFF_UP != 0, deleted: deleted}
	for kind, v, rest, ok := attr(b[unix.SizeofIfInfomsg:]); ok; kind, v, rest, ok = attr(rest) {
		switch kind {
		case unix.IFLA_ADDRESS:
			copy(e.mac[:], v)
		case unix.IFLA_IFNAME:
			e.name = text(v)
		case unix.IFLA_MTU:
			e.mtu = int(u32(v))
		case unix.IFLA_LINKINFO:
			for kind, v, rest, ok := attr(v); ok; kind, v, rest, ok = attr(rest) {
				e.vrf = e.vrf || kind == unix.IFLA_INFO_SLAVE_KIND && text(v) == "vrf"
			}
		}
	}
	s.link(&e)
}

func text(b []byte) string {
	for i, c := range b {
		if c == 0 {
			return string(b[:i])
		}
	}
	return string(b)
}

func decodeAddr(b []byte, deleted bool, s sink) {
	if len(b) < unix.SizeofIfAddrmsg {
		return
	}
	e := addrEvent{index: int(native.Uint32(b[4:])), scope: b[3], secondary: b[2]&unix.IFA_F_SECONDARY != 0, deleted: deleted}
	var own, local netip.Addr
	for kind, v, rest, ok := attr(b[unix.SizeofIfAddrmsg:]); ok; kind, v, rest, ok = attr(rest) {
		switch kind {
		case unix.IFA_ADDRESS: // of the peer, on a point-to-point link
			own, _ = netip.AddrFromSlice(v)
		case unix.IFA_LOCAL:
			local, _ = netip.AddrFromSlice(v)
		}
	}
	if local.IsValid() {
		own = local
	}
	if e.addr = netip.PrefixFrom(own, int(b[1])); e.addr.IsValid() {
		s.addr(&e)
	}
}

func decodeNeigh(b []byte, deleted bool, s sink) {
	if len(b) < unix.SizeofNdMsg || b[0] != unix.AF_INET && b[0] != unix.AF_INET6 || b[10]&unix.NTF_PROXY != 0 {
		return
	}
	e := neighEvent{index: int(int32(native.Uint32(b[4:]))), deleted: deleted}
	mac := false
	for kind, v, rest, ok := attr(b[unix.SizeofNdMsg:]); ok; kind, v, rest, ok = attr(rest) {
		switch kind {
		case unix.NDA_DST:
			e.addr, _ = netip.AddrFromSlice(v)
		case unix.NDA_LLADDR:
			mac = len(v) == len(e.mac)
			copy(e.mac[:], v)
		}
	}
	switch state := native.Uint16(b[8:]); {
	case state&unix.NUD_FAILED != 0:
		e.state = neighFailed
	case state&unix.NUD_INCOMPLETE != 0:
		e.state = neighIncomplete
	case !mac: // nothing to send to
	case state&unix.NUD_STALE != 0:
		e.state = neighStale
	case state&(unix.NUD_REACHABLE|unix.NUD_DELAY|unix.NUD_PROBE|unix.NUD_NOARP|unix.NUD_PERMANENT) != 0:
		e.state = neighValid
	}
	if e.addr.IsValid() {
		s.neigh(&e)
	}
}

// routeKinds says what each route type means here.
var routeKinds = map[byte]setKind{
	unix.RTN_UNICAST: setOne, unix.RTN_LOCAL: setLocal, unix.RTN_BROADCAST: setBroadcast, unix.RTN_ANYCAST: setLocal,
	unix.RTN_MULTICAST: setBroadcast, unix.RTN_BLACKHOLE: setBlackhole, unix.RTN_UNREACHABLE: setUnreachable,
	unix.RTN_PROHIBIT: setProhibit, unix.RTN_THROW: setThrow,
}

func decodeRoute(b []byte, flags uint16, dumped, deleted bool, s sink) {
	if len(b) < unix.SizeofRtMsg {
		return
	}
	family, bits, sourceBits, tos, table := b[0], int(b[1]), b[2], b[3], uint32(b[4])
	var ok bool
	e := routeEvent{deleted: deleted}
	if e.kind, ok = routeKinds[b[7]]; !ok || native.Uint32(b[8:])&unix.RTM_F_CLONED != 0 {
		return
	}
	dst := netip.IPv4Unspecified()
	if family == unix.AF_INET6 {
		dst = netip.IPv6Unspecified()
	} else if family != unix.AF_INET {
		return
	}
	single := nextHop{weight: 1}
	encap := false
	for kind, v, rest, ok := attr(b[unix.SizeofRtMsg:]); ok; kind, v, rest, ok = attr(rest) {
		switch kind {
		case unix.RTA_DST:
			dst, _ = netip.AddrFromSlice(v)
		case unix.RTA_PRIORITY:
			e.prio = u32(v)
		case unix.RTA_TABLE:
			table = u32(v)
		case unix.RTA_METRICS:
			for kind, v, rest, ok := attr(v); ok; kind, v, rest, ok = attr(rest) {
				if kind == unix.RTAX_MTU {
					e.mtu = int(u32(v))
				}
			}
		case unix.RTA_MULTIPATH:
			e.hops = decodePaths(v, &encap)
		case rtaNHID:
			e.nexthop = true
		default:
			single.decode(kind, v, &encap)
		}
	}
	if e.prefix = netip.PrefixFrom(dst, bits); !e.prefix.IsValid() {
		return
	}
	key, why := "", ""
	switch {
	case table == unix.RT_TABLE_LOCAL:
		e.local = true
	case table == unix.RT_TABLE_DEFAULT:
		key, why = "table default", "routing table 'default' (253) holds routes, which are not followed: move them to table main"
	case table != unix.RT_TABLE_MAIN:
		return
	case tos != 0:
		key, why = "tos", fmt.Sprintf("routes for a type of service are not followed, for example %v tos %#x", e.prefix, tos)
	case sourceBits != 0:
		key, why = "source", fmt.Sprintf("source-specific routes are not followed, for example %v", e.prefix)
	case encap:
		key, why = "encap", fmt.Sprintf("routes with an encapsulation are not followed, for example %v", e.prefix)
	}
	if key != "" { // left out, and said
		if !deleted {
			s.warn(key, why)
		}
		return
	}
	if e.hops == nil && single.index != 0 {
		e.hops = []nextHop{single}
	}
	if len(e.hops) > 1 {
		e.kind = setMulti
	}
	switch {
	case dumped:
	case flags&unix.NLM_F_REPLACE != 0:
		e.mode = routeReplace
	case family == unix.AF_INET && flags&unix.NLM_F_APPEND == 0:
		e.mode = routePrepend // a second route that is neither appended nor replacing can only have been prepended
	}
	s.route(&e)
}

// decode takes what describes one next hop.
func (h *nextHop) decode(kind uint16, v []byte, encap *bool) {
	switch kind {
	case unix.RTA_OIF:
		h.index = int(u32(v))
	case unix.RTA_GATEWAY:
		h.gateway, _ = netip.AddrFromSlice(v)
	case unix.RTA_VIA: // a gateway of the other family: family (16 bits), address
		if len(v) > 2 {
			h.gateway, _ = netip.AddrFromSlice(v[2:])
		}
	case unix.RTA_ENCAP_TYPE:
		*encap = len(v) >= 2 && native.Uint16(v) != 0
	}
	if h.gateway.IsUnspecified() {
		h.gateway = netip.Addr{}
	}
}

func decodePaths(b []byte, encap *bool) (all []nextHop) {
	for len(b) >= unix.SizeofRtNexthop {
		n := int(native.Uint16(b))
		if n < unix.SizeofRtNexthop || n > len(b) {
			break
		}
		h := nextHop{index: int(int32(native.Uint32(b[4:]))), weight: uint16(b[3]) + 1}
		for kind, v, rest, ok := attr(b[unix.SizeofRtNexthop:n]); ok; kind, v, rest, ok = attr(rest) {
			h.decode(kind, v, encap)
		}
		all = append(all, h)
		b = b[min((n+3)&^3, len(b)):]
	}
	return all
}

// decodeRule reports policy rules other than the three that every Linux has.
func decodeRule(b []byte, deleted bool, s sink) {
	const header, priority, tableAttr = 12, 6, 15 // struct fib_rule_hdr, FRA_PRIORITY, FRA_TABLE
	if len(b) < header || b[0] != unix.AF_INET && b[0] != unix.AF_INET6 {
		return
	}
	prio, table := uint32(0), uint32(b[4])
	for kind, v, rest, ok := attr(b[header:]); ok; kind, v, rest, ok = attr(rest) {
		switch kind {
		case priority:
			prio = u32(v)
		case tableAttr:
			table = u32(v)
		}
	}
	family, command := "IPv4", "ip rule"
	if b[0] == unix.AF_INET6 {
		family, command = "IPv6", "ip -6 rule"
	}
	usual := prio == 0 && table == unix.RT_TABLE_LOCAL || prio == 32766 && table == unix.RT_TABLE_MAIN ||
		prio == 32767 && table == unix.RT_TABLE_DEFAULT
	key := fmt.Sprintf("rule %s %d %d", family, prio, table)
	switch {
	case usual && deleted:
		s.warn(key, fmt.Sprintf("the usual %s policy rule %d was removed; its table is followed all the same (%s add pref %d lookup %d)",
			family, prio, command, prio, table))
	case usual || deleted:
		s.warn(key, "")
	default:
		s.warn(key, fmt.Sprintf("%s policy rule %d (table %d) is not followed: tables local and main decide (%s del pref %d)",
			family, prio, table, command, prio))
	}
}
