package config

import (
	"net/netip"
	"strconv"
	"strings"
)

// Log says where the translation log goes and what is in it.
type Log struct {
	Syslog, IPFIX []Collector
	Sessions      bool // every session and mapping, not port blocks and refusals only
}

// On reports whether anything is logged.
func (l *Log) On() bool { return len(l.Syslog)+len(l.IPFIX) > 0 }

// Collector is where log records are sent.
type Collector struct {
	Network string // udp | tcp | unixgram
	Address string // HOST:PORT, or a path
}

// Log returns the translation log's settings.
func (c *Config) Log() Log {
	syslog, _ := parseCollectors(c.s.syslog, syslogNetworks) // checked when it was read
	ipfix, _ := parseCollectors(c.s.ipfix, ipfixNetworks)
	return Log{Syslog: syslog, IPFIX: ipfix, Sessions: c.s.logSessions}
}

var (
	syslogNetworks = []string{"udp", "tcp", "unix"}
	ipfixNetworks  = []string{"udp"}
)

const (
	syslogAllowed = `"" or, with commas between them, udp://HOST:PORT, tcp://HOST:PORT, unix:///PATH`
	ipfixAllowed  = `"" or, with commas between them, udp://HOST:PORT`
	collectorsMax = 8
	socketPathMax = 107 // of a unix socket, by the kernel
)

// collectors is the codec of a list of collectors in one text.
func collectors(at func(*settings) *string, networks []string, allowed string) codec {
	return text{at: at, what: allowed, check: func(v string) bool {
		_, ok := parseCollectors(v, networks)
		return ok
	}}
}

// parseCollectors reads a list of collectors; each may be named once.
func parseCollectors(v string, networks []string) (list []Collector, ok bool) {
	if v == "" {
		return nil, true
	}
	seen := map[Collector]bool{}
	for part := range strings.SplitSeq(v, ",") {
		c, ok := parseCollector(strings.TrimSpace(part), networks)
		if !ok || seen[c] || len(list) == collectorsMax {
			return nil, false
		}
		seen[c] = true
		list = append(list, c)
	}
	return list, true
}

func parseCollector(v string, networks []string) (c Collector, ok bool) {
	network, address, found := strings.Cut(v, "://")
	if !found || !contains(networks, network) {
		return c, false
	}
	if network == "unix" {
		return Collector{"unixgram", address}, strings.HasPrefix(address, "/") && len(address) <= socketPathMax
	}
	return Collector{network, address}, isHostPort(address)
}

// isHostPort reports whether v is an address or a name, and a port that can be sent to.
func isHostPort(v string) bool {
	i := strings.LastIndexByte(v, ':')
	if i < 0 {
		return false
	}
	host, port := v[:i], v[i+1:]
	if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
		return false
	}
	if inner, ok := strings.CutPrefix(host, "["); ok {
		inner, ok = strings.CutSuffix(inner, "]")
		a, err := netip.ParseAddr(inner)
		return ok && err == nil && a.Is6()
	}
	if a, err := netip.ParseAddr(host); err == nil {
		return a.Is4()
	}
	return isHostName(host)
}

func isHostName(v string) bool {
	if v == "" || len(v) > 253 {
		return false
	}
	digits := true
	for label := range strings.SplitSeq(v, ".") {
		if label == "" || len(label) > 63 || label[0] == '-' || label[len(label)-1] == '-' {
			return false
		}
		for _, r := range label {
			switch {
			case r >= '0' && r <= '9':
			case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r == '-', r == '_':
				digits = false
			default:
				return false
			}
		}
	}
	return !digits // four numbers that are no address
}

// checkLog refuses a log in which nothing would ever stand.
func (s *settings) checkLog() error {
	to := "log.syslog"
	if s.syslog == "" {
		to = "log.ipfix"
	}
	switch on := s.syslog != "" || s.ipfix != ""; {
	case !on && s.logSessions:
		return errorAt(s.where["log.level"], "log.level is session, but no collector is named; needed: log.syslog or log.ipfix")
	case on && !s.logSessions && s.rules.Blocks.Size == 0 && s.rules.Deterministic.PortsPerHost == 0:
		return errorAt(s.where[to], "%s is set and log.level is block, but there are no blocks: nothing would be logged; needed: nat.blocks.size, nat.deterministic, or log.level: session", to)
	}
	return nil
}
