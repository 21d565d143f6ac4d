package control

import (
	"fmt"
	"net/netip"
	"net/url"
	"strconv"

	"pollux/internal/packet"
	"pollux/nat"
)

// Query writes a filter as the API's parameters.
func (f Filter) Query() url.Values {
	q := url.Values{}
	for name, value := range map[string]string{"address": f.Address, "port": f.Port, "proto": f.Proto, "state": f.State} {
		if value != "" {
			q.Set(name, value)
		}
	}
	if f.Limit > 0 {
		q.Set("limit", strconv.Itoa(f.Limit))
	}
	return q
}

// parseFilter reads the parameters; unknown or repeated ones are refused.
func parseFilter(q url.Values) (m matcher, limit int, err error) {
	for name, values := range q {
		if len(values) != 1 {
			return m, 0, fmt.Errorf("%s is given %d times; allowed: once", name, len(values))
		}
		switch value := values[0]; name {
		case "address":
			m.net, err = parseNet(value)
		case "port":
			m.port, err = parsePort(value)
			m.byPort = true
		case "proto":
			m.proto, err = parseProto(value)
			m.byProto = true
		case "state":
			m.state, err = parseState(value)
			m.byState = true
		case "limit":
			if limit, err = strconv.Atoi(value); err != nil || limit < 1 {
				err = fmt.Errorf("limit is %q; allowed: a number from 1", value)
			}
		default:
			err = fmt.Errorf("unknown parameter %q; allowed: address, port, proto, state, limit", name)
		}
		if err != nil {
			return m, 0, err
		}
	}
	return m, limit, nil
}

func parseNet(value string) (netip.Prefix, error) {
	if a, err := netip.ParseAddr(value); err == nil && a.Is4() {
		return netip.PrefixFrom(a, 32), nil
	}
	p, err := netip.ParsePrefix(value)
	if err != nil || !p.Addr().Is4() {
		return p, fmt.Errorf("address is %q; allowed: an IPv4 address or a network as 192.0.2.0/24", value)
	}
	return p, nil
}

func parsePort(value string) (uint16, error) {
	v, err := strconv.ParseUint(value, 10, 16)
	if err != nil {
		return 0, fmt.Errorf("port is %q; allowed: a number from 0 to 65535", value)
	}
	return uint16(v), nil
}

func parseProto(value string) (uint8, error) {
	switch value {
	case "tcp":
		return packet.ProtoTCP, nil
	case "udp":
		return packet.ProtoUDP, nil
	case "icmp":
		return packet.ProtoICMP, nil
	}
	v, err := strconv.ParseUint(value, 10, 8)
	if err != nil {
		return 0, fmt.Errorf("proto is %q; allowed: tcp, udp, icmp or a number from 0 to 255", value)
	}
	return uint8(v), nil
}

func parseState(value string) (nat.State, error) {
	for _, s := range []nat.State{nat.Active, nat.Opening, nat.Established, nat.Closing} {
		if s.String() == value {
			return s, nil
		}
	}
	return 0, fmt.Errorf("state is %q; allowed: opening, established, closing or active", value)
}
