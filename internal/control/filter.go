package control

import (
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"pollux/internal/clock"
	"pollux/internal/packet"
	"pollux/nat"
)

// Filter picks links, as people and the API's parameters write it; its zero value picks all.
type Filter struct {
	Address string // an address or network: of either end, or the alias address
	Local   string // of the inside host
	Alias   string
	Remote  string
	Port    string // any of the three, or an ICMP id
	Proto   string
	State   string
	Opened  string // out | in
	Worker  string
	Older   string // a duration: made at least so long ago
	Younger string // made at most so long ago
	Idle    string // no packet for at least so long
	Limit   int    // 0: no limit
}

// FilterNames are the parameters that pick links.
var FilterNames = []string{"address", "local", "alias", "remote", "port", "proto", "state", "opened", "worker", "older", "younger", "idle"}

// field is the filter's part that a parameter fills.
func (f *Filter) field(name string) *string {
	return map[string]*string{"address": &f.Address, "local": &f.Local, "alias": &f.Alias, "remote": &f.Remote, "port": &f.Port, "proto": &f.Proto,
		"state": &f.State, "opened": &f.Opened, "worker": &f.Worker, "older": &f.Older, "younger": &f.Younger, "idle": &f.Idle}[name]
}

// Set fills in the part that a parameter names.
func (f *Filter) Set(name, value string) { *f.field(name) = value }

// Query writes a filter as the API's parameters.
func (f Filter) Query() url.Values {
	q := url.Values{}
	for _, name := range FilterNames {
		if value := *f.field(name); value != "" {
			q.Set(name, value)
		}
	}
	if f.Limit > 0 {
		q.Set("limit", strconv.Itoa(f.Limit))
	}
	return q
}

// Check says what is wrong with a filter, as the gateway would.
func (f Filter) Check() error {
	_, err := parsePick(f.Query(), true)
	return err
}

// pick is a filter made ready.
type pick struct {
	links  nat.LinkFilter
	worker int // -1: all
	limit  int
	all    bool
}

// parameters checks that every parameter is allowed and given once.
func parameters(q url.Values, allowed ...string) error {
	for name, values := range q {
		switch {
		case !slices.Contains(allowed, name) && len(allowed) == 0:
			return fmt.Errorf("unknown parameter %q; allowed: none", name)
		case !slices.Contains(allowed, name):
			return fmt.Errorf("unknown parameter %q; allowed: %s", name, strings.Join(allowed, ", "))
		case len(values) != 1:
			return fmt.Errorf("%s is given %d times; allowed: once", name, len(values))
		}
	}
	return nil
}

// parsePick reads a filter; list tells a dump, which has a limit, from a deletion, which takes all=true.
func parsePick(q url.Values, list bool) (p pick, err error) {
	more := "limit"
	if !list {
		more = "all"
	}
	if err := parameters(q, append(slices.Clone(FilterNames), more)...); err != nil {
		return p, err
	}
	p.worker = -1
	f := &p.links
	for _, name := range append(slices.Clone(FilterNames), more) {
		if !q.Has(name) {
			continue
		}
		switch value := q.Get(name); name {
		case "address":
			f.Any, err = parseNet(name, value)
		case "local":
			f.Local, err = parseNet(name, value)
		case "alias":
			f.Alias, err = parseNet(name, value)
		case "remote":
			f.Remote, err = parseNet(name, value)
		case "port":
			f.Port, err = parsePort(value)
			f.ByPort = true
		case "proto":
			f.Proto, err = parseProto(value)
			f.ByProto = true
		case "state":
			f.State, err = parseState(value)
			f.ByState = true
		case "opened":
			f.Inbound, f.Outbound = value == "in", value == "out"
			if !f.Inbound && !f.Outbound {
				err = fmt.Errorf("opened is %q; allowed: out (by the inside host) or in (from outside)", value)
			}
		case "worker":
			p.worker, err = parseWorker(value)
		case "older":
			f.Older, err = parseAge(name, value)
		case "younger":
			f.Younger, err = parseAge(name, value)
		case "idle":
			f.Idle, err = parseAge(name, value)
		case "limit":
			p.limit, err = parseLimit(value)
		case "all":
			if p.all = value == "true"; !p.all {
				err = fmt.Errorf("all is %q; allowed: true", value)
			}
		}
		if err != nil {
			return p, err
		}
	}
	if f.Older != 0 && f.Younger != 0 && f.Older > f.Younger {
		return p, errors.New("older is longer than younger: no link is both; allowed: older up to younger")
	}
	return p, nil
}

func parseNet(name, value string) (n nat.Network, err error) {
	p, err := netip.ParsePrefix(value)
	if a, e := netip.ParseAddr(value); e == nil {
		p, err = netip.PrefixFrom(a, a.BitLen()), nil
	}
	if err != nil || !p.Addr().Is4() {
		return n, fmt.Errorf("%s is %q; allowed: an IPv4 address or a network as 192.0.2.0/24", name, value)
	}
	n.Mask = packet.Addr(uint64(0xffffffff) << (32 - p.Bits()))
	n.Base, n.Valid = packet.AddrFrom(p.Addr())&n.Mask, true
	return n, nil
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

func parseWorker(value string) (int, error) {
	v, err := strconv.ParseUint(value, 10, 8)
	if err != nil {
		return 0, fmt.Errorf("worker is %q; allowed: a worker's number, from 0", value)
	}
	return int(v), nil
}

func parseLimit(value string) (int, error) {
	v, err := strconv.Atoi(value)
	if err != nil || v < 1 {
		return 0, fmt.Errorf("limit is %q; allowed: a number from 1", value)
	}
	return v, nil
}

// ageMax is half of what a tick can tell.
const ageMax = 24 * 24 * time.Hour

func parseAge(name, value string) (uint32, error) {
	d, err := time.ParseDuration(value)
	if err != nil || d < time.Millisecond || d > ageMax {
		return 0, fmt.Errorf("%s is %q; allowed: a duration as 90s, 5m or 2h30m, from 1ms to %dh", name, value, int(ageMax.Hours()))
	}
	return clock.Ticks(d), nil
}
