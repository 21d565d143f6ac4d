package config

import (
	"log/slog"
	"net/netip"
	"path/filepath"
	"strings"
	"time"

	"pollux/internal/cpu"
	"pollux/internal/packet"
	"pollux/nat"
	"pollux/pmd"
	"pollux/rtcache"
)

// key is one row of the configuration contract.
type key struct {
	path  string // section.key as in the file
	help  string // for a network engineer; one line
	flag  string // short flag beside --section-key, without dashes; "" for none
	codec codec
	multi bool // a list: its flag may be repeated
}

const (
	linksMax   = 1 << 28
	perHostMax = 1 << 30
	workersMax = 253 // an owner byte names the worker
)

// keys is the whole contract, in the order in which it is printed and documented.
var keys = []key{
	{path: "ports", help: "network devices and their roles", codec: portList{}, multi: true},

	{path: "workers.cores", flag: "cores", help: "cores that poll, as 2-5,7; empty: one worker on the last allowed core",
		codec: ints{at: func(s *settings) *[]int { return &s.cores }, max: 1023, of: "cores"}},
	{path: "workers.queues", flag: "queues", help: "the i-th core polls the i-th queue of every port; empty: from 0 up",
		codec: ints{at: func(s *settings) *[]int { return &s.queues }, max: 4095, of: "queues"}},
	{path: "workers.idle", flag: "idle", help: "what a worker does without traffic: spin for dedicated cores, adaptive for shared ones",
		codec: words[pmd.Idle]{at: func(s *settings) *pmd.Idle { return &s.idle }, names: []string{"spin", "adaptive"}, value: []pmd.Idle{pmd.Spin, pmd.Adaptive}}},
	{path: "workers.steer", help: "what picks a new flow's worker: its host, or with endpoint-dependent mapping the flow; then each worker counts limits per host for itself",
		codec: words[bool]{at: func(s *settings) *bool { return &s.steerFlow }, names: []string{"host", "flow"}, value: []bool{false, true}}},
	{path: "workers.rt_priority", flag: "rt-priority", help: "SCHED_FIFO priority of the worker threads, 0 for none",
		codec: number[int]{at: func(s *settings) *int { return &s.rtPriority }, min: 0, max: cpu.PriorityMax}},
	{path: "workers.oversubscribe", flag: "oversubscribe", help: "let workers share cores: for tests, it is slow", codec: boolean{func(s *settings) *bool { return &s.oversubscribe }}},

	{path: "mode", flag: "mode", help: "how AF_XDP sockets are bound: auto takes zerocopy where every port has it",
		codec: words[pmd.Mode]{at: func(s *settings) *pmd.Mode { return &s.mode }, names: []string{"auto", "zerocopy", "copy"}, value: []pmd.Mode{pmd.ModeAuto, pmd.ModeZeroCopy, pmd.ModeCopy}}},

	{path: "rings.size", help: "descriptors in each AF_XDP ring", codec: number[int]{at: func(s *settings) *int { return &s.ringSize }, min: 64, max: 32768, pow2: true}},
	{path: "rings.frames", help: "packet buffers shared by all sockets, 0 for computed",
		codec: number[int]{at: func(s *settings) *int { return &s.frames }, min: 256, max: 1 << 24, zero: "computed"}},

	{path: "limits.links", help: "links in all", codec: number[int]{at: func(s *settings) *int { return &s.limits.Links }, min: 1, max: linksMax}},
	{path: "limits.memory", help: "when the memory for links is taken: all of it at start, or page by page in use",
		codec: words[bool]{at: func(s *settings) *bool { return &s.populate }, names: []string{"start", "use"}, value: []bool{true, false}}},
	{path: "limits.links_per_host", help: "links that one inside host may open", codec: perHost(func(s *settings) *int { return &s.limits.LinksPerHost })},
	{path: "limits.ports_per_host", help: "alias ports that one inside host may hold", codec: perHost(func(s *settings) *int { return &s.limits.PortsPerHost })},
	{path: "limits.new_links_per_host", help: "new links per second of one inside host", codec: perHost(func(s *settings) *int { return &s.limits.NewLinksPerHost })},
	{path: "limits.fragments", help: "fragmented datagrams tracked at a time", codec: number[int]{at: func(s *settings) *int { return &s.limits.Fragments }, min: 1, max: 1 << 20}},

	{path: "nat.alias", flag: "alias", help: "public addresses: ADDRESS, NETWORK/LEN, or port for the outside port's own", codec: aliasList{}, multi: true},
	{path: "nat.pooling", help: "paired keeps a host on one alias address",
		codec: words[bool]{at: func(s *settings) *bool { return &s.rules.Arbitrary }, names: []string{"paired", "arbitrary"}, value: []bool{false, true}}},
	{path: "nat.port_range", help: "alias ports and ICMP ids for new links", codec: portRange{}},
	{path: "nat.same_ports", help: "keep the local port when it is free", codec: boolean{func(s *settings) *bool { return &s.rules.SamePorts }}},
	{path: "nat.port_parity", help: "even local ports get even alias ports, odd get odd", codec: boolean{func(s *settings) *bool { return &s.rules.PortParity }}},
	{path: "nat.deny_incoming", help: "never open a link for unmatched inbound traffic", codec: boolean{func(s *settings) *bool { return &s.rules.DenyIncoming }}},
	{path: "nat.target", help: "inside host that gets unmatched inbound traffic when deny_incoming is false", codec: address{at: func(s *settings) *packet.Addr { return &s.rules.Target }, empty: "none"}},
	{path: "nat.unregistered_only", help: "translate only 10/8, 172.16/12 and 192.168/16", codec: boolean{func(s *settings) *bool { return &s.rules.UnregisteredOnly }}},
	{path: "nat.unregistered_cgn", help: "the same and 100.64/10", codec: boolean{func(s *settings) *bool { return &s.rules.UnregisteredCGN }}},
	{path: "nat.reset_on_address_change", help: "end dynamic links when the alias address changes", codec: boolean{func(s *settings) *bool { return &s.rules.ResetOnAddressChange }}},
	{path: "nat.mapping.udp", help: "how far a UDP mapping looks at the remote", codec: mappingWords(func(s *settings) *nat.Behaviour { return &s.rules.Mapping.UDP })},
	{path: "nat.mapping.tcp", help: "how far a TCP mapping looks at the remote", codec: mappingWords(func(s *settings) *nat.Behaviour { return &s.rules.Mapping.TCP })},
	{path: "nat.mapping.icmp", help: "how far an echo mapping looks at the remote", codec: mappingWords(func(s *settings) *nat.Behaviour { return &s.rules.Mapping.ICMP })},
	{path: "nat.filtering.udp", help: "which remotes a UDP mapping admits", codec: filteringWords(func(s *settings) *nat.Behaviour { return &s.rules.Filtering.UDP })},
	{path: "nat.filtering.tcp", help: "which remotes a TCP mapping admits", codec: filteringWords(func(s *settings) *nat.Behaviour { return &s.rules.Filtering.TCP })},
	{path: "nat.filtering.icmp", help: "which remotes an echo mapping admits", codec: filteringWords(func(s *settings) *nat.Behaviour { return &s.rules.Filtering.ICMP })},
	{path: "nat.hairpin", help: "inside hosts reach each other by alias addresses", codec: boolean{func(s *settings) *bool { return &s.rules.Hairpin }}},
	{path: "nat.exempt", help: "destinations that are not translated", codec: prefixes{func(s *settings) *[]netip.Prefix { return &s.rules.Exempt }}, multi: true},
	{path: "nat.timeouts.udp", help: "idle time of UDP links", codec: duration{func(s *settings) *time.Duration { return &s.rules.Timeouts.UDP }}},
	{path: "nat.timeouts.tcp_opening", help: "idle time before a TCP handshake ends", codec: duration{func(s *settings) *time.Duration { return &s.rules.Timeouts.TCPOpening }}},
	{path: "nat.timeouts.tcp_established", help: "idle time of open TCP links", codec: duration{func(s *settings) *time.Duration { return &s.rules.Timeouts.TCPEstablished }}},
	{path: "nat.timeouts.tcp_closing", help: "idle time after FIN both ways or RST", codec: duration{func(s *settings) *time.Duration { return &s.rules.Timeouts.TCPClosing }}},
	{path: "nat.timeouts.icmp", help: "idle time of echo links", codec: duration{func(s *settings) *time.Duration { return &s.rules.Timeouts.ICMP }}},
	{path: "nat.timeouts.other", help: "idle time of links of other protocols", codec: duration{func(s *settings) *time.Duration { return &s.rules.Timeouts.Other }}},
	{path: "nat.timeouts.fragment", help: "how long a datagram's fragments are waited for", codec: duration{func(s *settings) *time.Duration { return &s.rules.Timeouts.Fragment }}},
	{path: "nat.blocks.size", help: "ports in a subscriber's block, 0 for no blocks", codec: number[int]{at: func(s *settings) *int { return &s.rules.Blocks.Size }, min: 1, max: 32768, zero: "off"}},
	{path: "nat.blocks.max_per_host", help: "blocks that one inside host may hold", codec: number[int]{at: func(s *settings) *int { return &s.rules.Blocks.MaxPerHost }, min: 1, max: 16384}},
	{path: "nat.blocks.idle_release", help: "a block goes back this long after its last link", codec: duration{func(s *settings) *time.Duration { return &s.rules.Blocks.IdleRelease }}},
	{path: "nat.blocks.rest", help: "and to another host no sooner than this after", codec: duration{func(s *settings) *time.Duration { return &s.rules.Blocks.Rest }}},
	{path: "nat.deterministic.inside", help: "inside network with computed ports (RFC 7422)", codec: insideNetwork{}},
	{path: "nat.deterministic.ports_per_host", help: "ports that each of its hosts has, 0 for off", codec: number[int]{at: func(s *settings) *int { return &s.rules.Deterministic.PortsPerHost }, min: 1, max: 65535, zero: "off"}},
	{path: "nat.mss_clamp", help: "highest TCP MSS let through: auto or a number", codec: mssClamp{}},
	{path: "nat.tcp_window_tracking", help: "ignore RST outside the window", codec: boolean{func(s *settings) *bool { return &s.rules.TCPWindowTracking }}},
	{path: "nat.icmp_no_resource_code", help: "ICMP type 3 code told to a host that gets no link", codec: number[uint8]{at: func(s *settings) *uint8 { return &s.rules.NoResourceCode }, min: 0, max: 15}},
	{path: "nat.redirect_port", flag: "redirect-port", help: "publish a port: PROTO,PUBLIC=LOCAL[+LOCAL...][,remote=REMOTE][,pick=PICK]", codec: redirectPorts{}, multi: true},
	{path: "nat.redirect_addr", help: "publish an address: PUBLIC=LOCAL[+LOCAL...][,inbound=false][,pick=PICK]", codec: redirectAddrs{}, multi: true},
	{path: "nat.redirect_proto", help: "publish an IP protocol: PROTO,PUBLIC=LOCAL[,remote=REMOTE]", codec: redirectProtos{}, multi: true},

	{path: "routing.rtcache", help: "keep next hops attached to links", codec: boolean{func(s *settings) *bool { return &s.rtcache }}},
	{path: "routing.reverse_path", help: "check that the way back to a source leaves by the port it came in",
		codec: words[rtcache.ReversePathMode]{at: func(s *settings) *rtcache.ReversePathMode { return &s.reversePath }, names: []string{"strict", "loose", "off"}, value: []rtcache.ReversePathMode{rtcache.Strict, rtcache.Loose, rtcache.Off}}},
	{path: "routing.ipv6", help: "IPv6 goes to the kernel, or is forwarded here",
		codec: words[bool]{at: func(s *settings) *bool { return &s.ipv6Forward }, names: []string{"kernel", "forward"}, value: []bool{false, true}}},

	{path: "control.socket", flag: "control", help: "path of the control socket", codec: text{at: func(s *settings) *string { return &s.control.Socket }, what: "a path of 1 to 99 bytes", check: func(v string) bool { return v != "" && len(v) <= 99 }}},
	{path: "control.mode", help: "permission bits of the control socket", codec: fileMode{}},
	{path: "control.group", help: "group of the control socket", codec: text{at: func(s *settings) *string { return &s.control.Group }, what: `a group's name or number, or ""`, check: func(v string) bool { return len(v) <= 32 && !strings.ContainsAny(v, " :/") }}},
	{path: "control.metrics", help: "address that serves metrics, as 127.0.0.1:9464; empty: the control socket alone", codec: listenAddress{func(s *settings) *netip.AddrPort { return &s.control.Metrics }}},

	{path: "log.syslog", help: "where translation events go by syslog", codec: collectors(func(s *settings) *string { return &s.syslog }, syslogNetworks, syslogAllowed)},
	{path: "log.ipfix", help: "where translation events go by IPFIX", codec: collectors(func(s *settings) *string { return &s.ipfix }, ipfixNetworks, ipfixAllowed)},
	{path: "log.level", help: "what is logged: port blocks, or every session",
		codec: words[bool]{at: func(s *settings) *bool { return &s.logSessions }, names: []string{"block", "session"}, value: []bool{false, true}}},
	{path: "log.format", help: "how pollux's own messages, on standard error, are written",
		codec: words[bool]{at: func(s *settings) *bool { return &s.messages.JSON }, names: []string{"text", "json"}, value: []bool{false, true}}},
	{path: "log.severity", help: "and from which severity on",
		codec: words[slog.Level]{at: func(s *settings) *slog.Level { return &s.messages.Least }, names: []string{"info", "warn", "error"}, value: []slog.Level{slog.LevelInfo, slog.LevelWarn, slog.LevelError}}},

	{path: "snapshot.file", help: "file that keeps the links for a start after a crash; empty for none",
		codec: text{at: func(s *settings) *string { return &s.snapshotFile }, what: `an absolute path or ""`, check: func(v string) bool { return v == "" || filepath.IsAbs(v) && len(v) < 4000 }}},
	{path: "snapshot.interval", help: "how often it is written", codec: duration{func(s *settings) *time.Duration { return &s.snapshotEvery }}},

	{path: "replay.inside_mac", help: "replay: the gateway's MAC inside", codec: mac{func(s *settings) *[6]byte { return &s.replay.InsideMAC }}},
	{path: "replay.outside_mac", help: "replay: the gateway's MAC outside", codec: mac{func(s *settings) *[6]byte { return &s.replay.OutsideMAC }}},
	{path: "replay.next_hop_mac", help: "replay: the MAC of every neighbour", codec: mac{func(s *settings) *[6]byte { return &s.replay.NextHopMAC }}},
	{path: "replay.inside_address", help: "replay: source of ICMP errors to the inside", codec: address{at: func(s *settings) *packet.Addr { return &s.replay.InsideAddress }}},
	{path: "replay.outside_address", help: "replay: the outside port's address", codec: address{at: func(s *settings) *packet.Addr { return &s.replay.OutsideAddress }, empty: "the first alias address"}},
	{path: "replay.inside_networks", help: "replay: what is routed to the inside", codec: prefixes{func(s *settings) *[]netip.Prefix { return &s.replay.InsideNetworks }}, multi: true},
	{path: "replay.inside_mtu", help: "replay: MTU of the inside port", codec: number[int]{at: func(s *settings) *int { return &s.replay.InsideMTU }, min: 68, max: 65535}},
	{path: "replay.outside_mtu", help: "replay: MTU of the outside port", codec: number[int]{at: func(s *settings) *int { return &s.replay.OutsideMTU }, min: 68, max: 65535}},
	{path: "replay.any_mac", help: "replay: take frames to any unicast MAC", codec: boolean{func(s *settings) *bool { return &s.replay.AnyMAC }}},
}

func perHost(at func(*settings) *int) codec {
	return number[int]{at: at, min: 1, max: perHostMax, none: true}
}

var behaviours = []nat.Behaviour{nat.EndpointIndependent, nat.AddressDependent, nat.AddressAndPortDependent}

func mappingWords(at func(*settings) *nat.Behaviour) codec {
	return words[nat.Behaviour]{at: at, names: []string{"endpoint-independent", "address-dependent", "endpoint-dependent"}, value: behaviours}
}

func filteringWords(at func(*settings) *nat.Behaviour) codec {
	return words[nat.Behaviour]{at: at, names: []string{"endpoint-independent", "address-dependent", "address-and-port-dependent"}, value: behaviours}
}

func keyOf(path string) *key {
	for i := range keys {
		if keys[i].path == path {
			return &keys[i]
		}
	}
	return nil
}

// children lists what may stand in a section, "" being the file itself.
func children(section string) []string {
	var out []string
	for _, k := range keys {
		rest, ok := strings.CutPrefix(k.path, section+".")
		if section == "" {
			rest, ok = k.path, true
		}
		if !ok {
			continue
		}
		if name, _, _ := strings.Cut(rest, "."); !contains(out, name) {
			out = append(out, name)
		}
	}
	return out
}
