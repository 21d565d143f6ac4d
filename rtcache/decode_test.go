package rtcache

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"reflect"
	"testing"

	"golang.org/x/sys/unix"
)

// recorder is a sink that keeps what it gets.
type recorder struct {
	events   []any
	warnings map[string]string
}

func (r *recorder) link(e *linkEvent)   { r.events = append(r.events, *e) }
func (r *recorder) addr(e *addrEvent)   { r.events = append(r.events, *e) }
func (r *recorder) neigh(e *neighEvent) { r.events = append(r.events, *e) }
func (r *recorder) route(e *routeEvent) { r.events = append(r.events, *e) }
func (r *recorder) nexthop()            { r.events = append(r.events, "nexthop") }
func (r *recorder) warn(key, text string) {
	if r.warnings == nil {
		r.warnings = map[string]string{}
	}
	r.warnings[key] = text
}

// rta builds one attribute.
func rta(kind uint16, value ...byte) []byte {
	b := binary.NativeEndian.AppendUint16(nil, uint16(4+len(value)))
	b = binary.NativeEndian.AppendUint16(b, kind)
	b = append(b, value...)
	return append(b, make([]byte, -len(b)&3)...)
}

func num(n uint32) []byte { return binary.NativeEndian.AppendUint32(nil, n) }

func join(parts ...[]byte) []byte { return bytes.Join(parts, nil) }

func rtm(family, bits, tos, table, kind byte, attrs ...[]byte) []byte {
	return append([]byte{family, bits, 0, tos, table, 3, 0, kind, 0, 0, 0, 0}, join(attrs...)...)
}

func TestDecode(t *testing.T) {
	a := netip.MustParseAddr
	via := nextHop{index: 3, gateway: a("192.0.2.2"), weight: 1}
	dst := rta(unix.RTA_DST, 203, 0, 113, 0)
	oif, gw := rta(unix.RTA_OIF, num(3)...), rta(unix.RTA_GATEWAY, 192, 0, 2, 2)
	rtnh := func(weight byte, index uint32, attrs ...[]byte) []byte {
		body := join(attrs...)
		return join(binary.NativeEndian.AppendUint16(nil, uint16(8+len(body))), []byte{0, weight - 1}, num(index), body)
	}
	for _, c := range []struct {
		name    string
		kind    uint16
		flags   uint16
		message []byte
		want    any
		warning string
	}{
		{"route", unix.RTM_NEWROUTE, unix.NLM_F_CREATE | unix.NLM_F_EXCL, rtm(unix.AF_INET, 24, 0, 254, unix.RTN_UNICAST, dst, oif, gw, rta(unix.RTA_PRIORITY, num(7)...)),
			routeEvent{prefix: pfx("203.0.113.0/24"), prio: 7, kind: setOne, hops: []nextHop{via}, mode: routePrepend}, ""},
		{"replace with MTU", unix.RTM_NEWROUTE, unix.NLM_F_REPLACE, rtm(unix.AF_INET, 24, 0, 254, unix.RTN_UNICAST, dst, oif, gw, rta(unix.RTA_METRICS, rta(unix.RTAX_MTU, num(1300)...)...)),
			routeEvent{prefix: pfx("203.0.113.0/24"), kind: setOne, mtu: 1300, hops: []nextHop{via}, mode: routeReplace}, ""},
		{"multipath", unix.RTM_NEWROUTE, unix.NLM_F_APPEND, rtm(unix.AF_INET, 0, 0, 254, unix.RTN_UNICAST, rta(unix.RTA_MULTIPATH, join(rtnh(2, 3, gw), rtnh(1, 4))...)),
			routeEvent{prefix: pfx("0.0.0.0/0"), kind: setMulti, hops: []nextHop{{index: 3, gateway: a("192.0.2.2"), weight: 2}, {index: 4, weight: 1}}}, ""},
		{"by an IPv6 router", unix.RTM_DELROUTE, 0, rtm(unix.AF_INET, 24, 0, 254, unix.RTN_UNICAST, dst, oif, rta(unix.RTA_VIA, append([]byte{10, 0}, a("fe80::1").AsSlice()...)...)),
			routeEvent{prefix: pfx("203.0.113.0/24"), kind: setOne, hops: []nextHop{{index: 3, gateway: a("fe80::1"), weight: 1}}, mode: routePrepend, deleted: true}, ""},
		{"nexthop object", unix.RTM_NEWROUTE, unix.NLM_F_APPEND, rtm(unix.AF_INET, 24, 0, 254, unix.RTN_UNICAST, dst, oif, gw, rta(rtaNHID, num(1)...)),
			routeEvent{prefix: pfx("203.0.113.0/24"), kind: setOne, hops: []nextHop{via}, nexthop: true}, ""},
		{"local", unix.RTM_NEWROUTE, unix.NLM_F_APPEND, rtm(unix.AF_INET, 32, 0, 255, unix.RTN_LOCAL, rta(unix.RTA_DST, 192, 0, 2, 1), oif),
			routeEvent{local: true, prefix: pfx("192.0.2.1/32"), kind: setLocal, hops: []nextHop{{index: 3, weight: 1}}}, ""},
		{"blackhole", unix.RTM_NEWROUTE, unix.NLM_F_APPEND, rtm(unix.AF_INET, 24, 0, 254, unix.RTN_BLACKHOLE, dst),
			routeEvent{prefix: pfx("203.0.113.0/24"), kind: setBlackhole}, ""},
		{"large table number", unix.RTM_NEWROUTE, 0, rtm(unix.AF_INET, 24, 0, 252, unix.RTN_UNICAST, dst, oif, rta(unix.RTA_TABLE, num(1000)...)), nil, ""},
		{"table default", unix.RTM_NEWROUTE, 0, rtm(unix.AF_INET, 24, 0, 253, unix.RTN_UNICAST, dst, oif), nil, "table default"},
		{"type of service", unix.RTM_NEWROUTE, 0, rtm(unix.AF_INET, 24, 16, 254, unix.RTN_UNICAST, dst, oif), nil, "tos"},
		{"encapsulation", unix.RTM_NEWROUTE, 0, rtm(unix.AF_INET, 24, 0, 254, unix.RTN_UNICAST, dst, oif, rta(unix.RTA_ENCAP_TYPE, 1, 0)), nil, "encap"},
		{"cached", unix.RTM_NEWROUTE, 0, append(rtm(unix.AF_INET6, 0, 0, 254, unix.RTN_UNICAST)[:8], num(unix.RTM_F_CLONED)...), nil, ""},
		{"link", unix.RTM_NEWLINK, 0, join([]byte{0, 0, 1, 0}, num(3), num(unix.IFF_UP), num(0), rta(unix.IFLA_IFNAME, []byte("eth0\x00")...), rta(unix.IFLA_MTU, num(1500)...), rta(unix.IFLA_ADDRESS, 2, 0, 0, 0, 0, 9)),
			linkEvent{index: 3, name: "eth0", mac: [6]byte{2, 0, 0, 0, 0, 9}, mtu: 1500, up: true}, ""},
		{"link in a VRF", unix.RTM_NEWLINK, 0, join([]byte{0, 0, 1, 0}, num(3), num(0), num(0), rta(unix.IFLA_LINKINFO|unix.NLA_F_NESTED, rta(unix.IFLA_INFO_SLAVE_KIND, []byte("vrf\x00")...)...)),
			linkEvent{index: 3, vrf: true}, ""},
		{"bridge port", unix.RTM_DELLINK, 0, join([]byte{unix.AF_BRIDGE, 0, 1, 0}, num(3), num(0), num(0)), nil, ""},
		{"address", unix.RTM_NEWADDR, 0, join([]byte{unix.AF_INET, 24, unix.IFA_F_SECONDARY, 253}, num(3), rta(unix.IFA_ADDRESS, 192, 0, 2, 9), rta(unix.IFA_LOCAL, 192, 0, 2, 8)),
			addrEvent{index: 3, addr: pfx("192.0.2.8/24"), scope: 253, secondary: true}, ""},
		{"neighbour", unix.RTM_NEWNEIGH, 0, join([]byte{unix.AF_INET, 0, 0, 0}, num(3), []byte{unix.NUD_REACHABLE, 0, 0, 1}, rta(unix.NDA_DST, 192, 0, 2, 2), rta(unix.NDA_LLADDR, 2, 0, 0, 0, 0, 9)),
			neighEvent{index: 3, addr: a("192.0.2.2"), mac: [6]byte{2, 0, 0, 0, 0, 9}, state: neighValid}, ""},
		{"neighbour without MAC", unix.RTM_NEWNEIGH, 0, join([]byte{unix.AF_INET, 0, 0, 0}, num(3), []byte{unix.NUD_NOARP, 0, 0, 1}, rta(unix.NDA_DST, 192, 0, 2, 2)),
			neighEvent{index: 3, addr: a("192.0.2.2"), state: neighNone}, ""},
		{"neighbour failed", unix.RTM_NEWNEIGH, 0, join([]byte{unix.AF_INET, 0, 0, 0}, num(3), []byte{unix.NUD_FAILED, 0, 0, 1}, rta(unix.NDA_DST, 192, 0, 2, 2)),
			neighEvent{index: 3, addr: a("192.0.2.2"), state: neighFailed}, ""},
		{"proxy neighbour", unix.RTM_NEWNEIGH, 0, join([]byte{unix.AF_INET, 0, 0, 0}, num(3), []byte{unix.NUD_PERMANENT, 0, unix.NTF_PROXY, 1}, rta(unix.NDA_DST, 192, 0, 2, 2)), nil, ""},
		{"usual rule", unix.RTM_NEWRULE, 0, join([]byte{unix.AF_INET, 0, 0, 0, 254, 0, 0, 1}, num(0), rta(6, num(32766)...)), nil, "rule IPv4 32766 254"},
		{"policy rule", unix.RTM_NEWRULE, 0, join([]byte{unix.AF_INET6, 0, 0, 0, 0, 0, 0, 1}, num(0), rta(6, num(500)...), rta(15, num(1000)...)), nil, "rule IPv6 500 1000"},
		{"nexthop object changed", unix.RTM_DELNEXTHOP, 0, nil, "nexthop", ""},
	} {
		var r recorder
		decode(c.kind, c.flags, c.message, false, &r)
		switch {
		case c.want == nil && len(r.events) > 0, c.want != nil && (len(r.events) != 1 || !reflect.DeepEqual(r.events[0], c.want)):
			t.Errorf("%s:\ngot  %+v\nwant %+v", c.name, r.events, c.want)
		}
		if _, warned := r.warnings[c.warning]; c.warning != "" && !warned || c.warning == "" && len(r.warnings) > 0 {
			t.Errorf("%s: warnings %v, want %q", c.name, r.warnings, c.warning)
		}
		// Whatever is cut off: nothing worse than a missing event.
		for n := range c.message {
			decode(c.kind, c.flags, c.message[:n], false, &r)
		}
	}
}

func FuzzDecode(f *testing.F) {
	f.Add(uint16(unix.RTM_NEWROUTE), rtm(unix.AF_INET, 24, 0, 254, unix.RTN_UNICAST, rta(unix.RTA_DST, 203, 0, 113, 0), rta(unix.RTA_MULTIPATH, 8, 0, 0, 0, 1, 0, 0, 0)))
	f.Add(uint16(unix.RTM_NEWLINK), join([]byte{0, 0, 1, 0}, num(3), num(1), num(0)))
	f.Add(uint16(unix.RTM_NEWNEIGH), join([]byte{unix.AF_INET, 0, 0, 0}, num(3), []byte{2, 0, 0, 1}, rta(unix.NDA_DST, 192, 0, 2, 2)))
	f.Fuzz(func(t *testing.T, kind uint16, b []byte) {
		// Into the real control side: no message may upset its books.
		bed := newBed(t, false)
		bed.table.mu.Lock()
		decode(kind, 0, b, false, bed.table.c)
		bed.table.flush()
		bed.table.mu.Unlock()
		bed.whole(t)
	})
}
