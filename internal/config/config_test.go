package config

import (
	"encoding/json"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"pollux/internal/packet"
	"pollux/nat"
	"pollux/pmd"
	"pollux/rtcache"
)

// full gives every key a value other than its default, where one is built.
const full = `# a comment
ports:
  - {name: lan0, role: inside}
  - name: "lan1"
    role: inside
  - {name: wan0, role: outside}
workers: {cores: "7", queues: "3", idle: adaptive, steer: host, rt_priority: 50, oversubscribe: false}
mode: copy
rings: {size: 4096, frames: 32768}
limits: {links: 100, memory: use, links_per_host: 10, ports_per_host: 20, new_links_per_host: 5, fragments: 7}
nat:
  alias:
    - "203.0.113.1"
    - 203.0.113.8/30
    - port
  pooling: arbitrary
  port_range: "5000-5001"
  same_ports: false
  port_parity: true
  deny_incoming: false
  target: "10.9.9.9"
  unregistered_only: true
  unregistered_cgn: true
  reset_on_address_change: false
  mapping:   {udp: endpoint-dependent, tcp: address-dependent, icmp: endpoint-dependent}
  filtering: {udp: endpoint-independent, tcp: address-dependent, icmp: address-and-port-dependent}
  hairpin: false
  exempt: ["192.0.2.0/24", "198.51.100.7"]
  timeouts: {udp: 120s, tcp_opening: 30s, tcp_established: 2h4m, tcp_closing: 1m30s, icmp: 500ms, other: 24h, fragment: 1s}
  blocks: {size: 0, max_per_host: 2, idle_release: 1s, rest: 2s}
  deterministic: {inside: "", ports_per_host: 0}
  mss_clamp: 1400
  tcp_window_tracking: true
  icmp_no_resource_code: 9
  redirect_port:
    - {proto: tcp, public: "203.0.113.1:443", local: "10.0.0.2:8443"}
    - {proto: 17, public: "203.0.113.1:5000-5002", local: "10.0.0.3:6000-6002", remote: "198.51.100.7"}
    - {proto: udp, public: "203.0.113.1:5000", local: "10.0.0.3:1", remote: "198.51.100.8:53"}
    - {proto: udp, public: "203.0.113.1:5000", local: "10.0.0.3:2", remote: "*:53"}
    - {proto: tcp, public: "port:80", local: ["10.0.0.4:80", "10.0.0.5:8080"], pick: source-hash}
    - {proto: icmp, public: "203.0.113.1:0", local: "10.0.0.6:0"}
  redirect_addr:
    - {public: "203.0.113.9", local: "10.0.0.9", inbound: false}
    - {public: "203.0.113.99", local: ["10.0.0.10", "10.0.0.11"], pick: source-hash}
  redirect_proto:
    - {proto: 47, public: "203.0.113.1", local: "10.0.0.7"}
    - {proto: 47, public: "203.0.113.1", local: "10.0.0.8", remote: "198.51.100.7"}
routing: {rtcache: false, reverse_path: loose, ipv6: kernel}
control: {socket: /tmp/p.sock, mode: "0600", group: adm, metrics: "[::1]:9464"}
log: {syslog: "udp://192.0.2.1:514, tcp://[2001:db8::1]:601, unix:///dev/log", ipfix: "udp://collector.example:4739", level: session, format: json, severity: warn}
replay: {inside_mac: "02:00:00:00:00:0a", outside_mac: "02:00:00:00:01:0b", next_hop_mac: "02:00:00:00:00:0c", inside_address: "10.0.0.1", outside_address: "203.0.113.254",
         inside_networks: ["10.0.0.0/8"], inside_mtu: 9000, outside_mtu: 1492, any_mac: false}
`

func addr(s string) packet.Addr { return packet.AddrFrom(netip.MustParseAddr(s)) }

func mustParse(t *testing.T, text string, use Use, args ...Arg) *Config {
	t.Helper()
	c, err := Parse("f", []byte(text), args, use)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func diff(t *testing.T, got, want any) {
	t.Helper()
	if d := cmp.Diff(want, got, cmpopts.EquateComparable(netip.Prefix{}, netip.AddrPort{})); d != "" {
		t.Errorf("(-want +got)\n%s", d)
	}
}

// The defaults are those of the contract: of nat.DefaultRules, and these.
func TestDefaults(t *testing.T) {
	c := mustParse(t, base, Run)
	rules := nat.DefaultRules()
	rules.Alias = []packet.Addr{addr("203.0.113.1"), addr("203.0.113.8"), addr("203.0.113.9"), addr("203.0.113.10"), addr("203.0.113.11")}
	diff(t, c.Gateway(), pmd.Options{
		Ports:    []pmd.PortOptions{{Name: "eth1", Side: nat.Inside}, {Name: "eth0", Side: nat.Outside}},
		RingSize: 2048, Rules: rules, Limits: nat.Limits{Links: 1_000_000, Fragments: 4096}, Populate: true, RTCache: true,
	})
	diff(t, c.Messages(), Messages{Least: slog.LevelInfo})
	diff(t, c.Control(), Control{Socket: "/run/pollux.sock", Mode: 0o660})
	diff(t, c.Log(), Log{})
	diff(t, c.Replay(), Replay{
		InsideMAC: [6]byte{2, 0, 0, 0, 0, 1}, OutsideMAC: [6]byte{2, 0, 0, 0, 1, 1}, NextHopMAC: [6]byte{2, 0, 0, 0, 0, 0xfe},
		InsideAddress: addr("192.0.2.254"),
		InsideNetworks: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("172.16.0.0/12"),
			netip.MustParsePrefix("192.168.0.0/16"), netip.MustParsePrefix("100.64.0.0/10")},
		InsideMTU: 1500, OutsideMTU: 1500, AnyMAC: true,
	})
	if c.Workers() != 1 {
		t.Errorf("%d workers", c.Workers())
	}
}

func TestEveryKeyIsTaken(t *testing.T) {
	c := mustParse(t, full, Run)
	diff(t, c.Log(), Log{
		Syslog:   []Collector{{"udp", "192.0.2.1:514"}, {"tcp", "[2001:db8::1]:601"}, {"unixgram", "/dev/log"}},
		IPFIX:    []Collector{{"udp", "collector.example:4739"}},
		Sessions: true,
	})
	o := c.Gateway()
	rules := nat.Rules{
		Alias:     []packet.Addr{addr("203.0.113.1"), addr("203.0.113.8"), addr("203.0.113.10"), addr("203.0.113.11")},
		Arbitrary: true, PortRange: nat.PortRange{Low: 5000, High: 5001}, PortParity: true, Target: addr("10.9.9.9"),
		UnregisteredOnly: true, UnregisteredCGN: true,
		Mapping:   nat.PerProtocol{UDP: nat.AddressAndPortDependent, TCP: nat.AddressDependent, ICMP: nat.AddressAndPortDependent},
		Filtering: nat.PerProtocol{UDP: nat.EndpointIndependent, TCP: nat.AddressDependent, ICMP: nat.AddressAndPortDependent},
		Exempt:    []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24"), netip.MustParsePrefix("198.51.100.7/32")},
		Timeouts: nat.Timeouts{UDP: 2 * time.Minute, TCPOpening: 30 * time.Second, TCPEstablished: 124 * time.Minute,
			TCPClosing: 90 * time.Second, ICMP: 500 * time.Millisecond, Other: 24 * time.Hour, Fragment: time.Second},
		Blocks:   nat.Blocks{MaxPerHost: 2, IdleRelease: time.Second, Rest: 2 * time.Second},
		MSSClamp: 1400, TCPWindowTracking: true, NoResourceCode: 9,
		RedirectPort: []nat.RedirectPort{
			{Proto: 6, Public: nat.Alias{Addr: addr("203.0.113.1"), Port: 443}, Local: []nat.Local{{Addr: addr("10.0.0.2"), Port: 8443}}},
			{Proto: 17, Public: nat.Alias{Addr: addr("203.0.113.1"), Port: 5000}, Local: []nat.Local{{Addr: addr("10.0.0.3"), Port: 6000}}, Remote: nat.Remote{Addr: addr("198.51.100.7")}},
			{Proto: 17, Public: nat.Alias{Addr: addr("203.0.113.1"), Port: 5001}, Local: []nat.Local{{Addr: addr("10.0.0.3"), Port: 6001}}, Remote: nat.Remote{Addr: addr("198.51.100.7")}},
			{Proto: 17, Public: nat.Alias{Addr: addr("203.0.113.1"), Port: 5002}, Local: []nat.Local{{Addr: addr("10.0.0.3"), Port: 6002}}, Remote: nat.Remote{Addr: addr("198.51.100.7")}},
			{Proto: 17, Public: nat.Alias{Addr: addr("203.0.113.1"), Port: 5000}, Local: []nat.Local{{Addr: addr("10.0.0.3"), Port: 1}}, Remote: nat.Remote{Addr: addr("198.51.100.8"), Port: 53}},
			{Proto: 17, Public: nat.Alias{Addr: addr("203.0.113.1"), Port: 5000}, Local: []nat.Local{{Addr: addr("10.0.0.3"), Port: 2}}, Remote: nat.Remote{Port: 53}},
			{Proto: 6, Public: nat.Alias{Port: 80}, Local: []nat.Local{{Addr: addr("10.0.0.4"), Port: 80}, {Addr: addr("10.0.0.5"), Port: 8080}}, Pick: nat.SourceHash},
			{Proto: 1, Public: nat.Alias{Addr: addr("203.0.113.1")}, Local: []nat.Local{{Addr: addr("10.0.0.6")}}},
		},
		RedirectAddr: []nat.RedirectAddr{
			{Public: addr("203.0.113.9"), Local: []packet.Addr{addr("10.0.0.9")}},
			{Public: addr("203.0.113.99"), Local: []packet.Addr{addr("10.0.0.10"), addr("10.0.0.11")}, Inbound: true, Pick: nat.SourceHash},
		},
		RedirectProto: []nat.RedirectProto{
			{Proto: 47, Public: addr("203.0.113.1"), Local: addr("10.0.0.7")},
			{Proto: 47, Public: addr("203.0.113.1"), Local: addr("10.0.0.8"), Remote: addr("198.51.100.7")},
		},
	}
	diff(t, o, pmd.Options{
		Ports: []pmd.PortOptions{{Name: "lan0"}, {Name: "lan1"}, {Name: "wan0", Side: nat.Outside}},
		Cores: []int{7}, Queues: []int{3}, Idle: pmd.Adaptive, RTPriority: 50, Mode: pmd.ModeCopy, RingSize: 4096, Frames: 32768,
		Rules: rules, AliasPort: true,
		Limits:      nat.Limits{Links: 100, LinksPerHost: 10, PortsPerHost: 20, NewLinksPerHost: 5, Fragments: 7},
		ReversePath: rtcache.Loose,
	})
	diff(t, c.Messages(), Messages{JSON: true, Least: slog.LevelWarn})
	diff(t, c.Control(), Control{Socket: "/tmp/p.sock", Mode: 0o600, Group: "adm", Metrics: netip.MustParseAddrPort("[::1]:9464")})
	diff(t, c.Replay(), Replay{
		InsideMAC: [6]byte{2, 0, 0, 0, 0, 10}, OutsideMAC: [6]byte{2, 0, 0, 0, 1, 11}, NextHopMAC: [6]byte{2, 0, 0, 0, 0, 12},
		InsideAddress: addr("10.0.0.1"), OutsideAddress: addr("203.0.113.254"),
		InsideNetworks: []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")}, InsideMTU: 9000, OutsideMTU: 1492,
	})
}

// In a replay the outside port's own address comes from the file.
func TestReplayRules(t *testing.T) {
	r := mustParse(t, full, Replaying).ReplayRules()
	if own := addr("203.0.113.254"); r.Alias[0] != own || r.RedirectPort[6].Public.Addr != own {
		t.Errorf("alias %v, redirect %v", r.Alias, r.RedirectPort[6].Public)
	}
	for _, c := range []struct{ yaml, want string }{
		{"nat: {alias: [port]}\n", `f:1:15: nat.alias: "port" follows the outside port, which a replay doesn't have`},
		{"nat: {alias: [port, 192.0.2.1]}\nreplay: {outside_address: 192.0.2.1}\n", "f:2:27: replay.outside_address is 192.0.2.1, which"},
	} {
		_, err := Parse("f", []byte(c.yaml+"ports: [{name: a, role: inside}, {name: b, role: outside}]\n"), nil, Replaying)
		if err == nil || !strings.HasPrefix(err.Error(), c.want) {
			t.Errorf("got %v, want %s", err, c.want)
		}
	}
	// A port alias taken by redirect_addr leaves the pool.
	r = mustParse(t, "ports: [{name: a, role: inside}, {name: b, role: outside}]\nnat: {alias: [port], redirect_addr: [{public: port, local: 10.0.0.2}], redirect_proto: [{proto: 47, public: port, local: 10.0.0.3}]}\nreplay: {outside_address: 192.0.2.1}\n", Replaying).ReplayRules()
	if len(r.Alias) != 0 || r.RedirectAddr[0].Public != addr("192.0.2.1") || r.RedirectProto[0].Public != addr("192.0.2.1") {
		t.Errorf("%+v", r)
	}
}

func TestManyWorkers(t *testing.T) {
	c := mustParse(t, base+`workers: {cores: "0-3,9"}`+"\n", Use{Replay: true})
	if c.Workers() != 5 {
		t.Errorf("%d workers", c.Workers())
	}
	o := c.Gateway()
	if !slices.Equal(o.Cores, []int{0, 1, 2, 3, 9}) || !slices.Equal(o.Queues, []int{0, 1, 2, 3, 4}) {
		t.Errorf("cores %v queues %v", o.Cores, o.Queues)
	}
	_, err := Parse("f", []byte(base+`workers: {cores: "0-299"}`+"\n"), nil, Use{Replay: true})
	if err == nil || !strings.HasPrefix(err.Error(), "f:4:18: workers.cores names 300 cores") {
		t.Errorf("got %v", err)
	}
}

func TestDeterministicFits(t *testing.T) {
	// 16 hosts x 4032 ports = 64512 = the whole default range of one address.
	const text = "ports: [{name: a, role: inside}, {name: b, role: outside}]\nnat: {alias: [192.0.2.1], deterministic: {inside: 10.0.0.0/28, ports_per_host: %}}\n"
	c := mustParse(t, strings.ReplaceAll(text, "%", "4032"), Run)
	diff(t, c.Rules().Deterministic, nat.Deterministic{Inside: netip.MustParsePrefix("10.0.0.0/28"), PortsPerHost: 4032})
	if _, err := Parse("f", []byte(strings.ReplaceAll(text, "%", "4033")), nil, Run); err == nil || !strings.Contains(err.Error(), "1 x 15 = 15") {
		t.Errorf("got %v", err)
	}
}

// steer: flow is understood, with several workers as with one.
func TestSteerFlow(t *testing.T) {
	c := mustParse(t, base+"workers: {cores: \"0-3\", steer: flow}\n", Run)
	if !c.Gateway().SteerFlow {
		t.Error("not handed on")
	}
	if mustParse(t, base, Run).Gateway().SteerFlow {
		t.Error("on by default")
	}
}

// What is printed, parsed again, is the same configuration and prints the same.
func TestRoundTrip(t *testing.T) {
	for name, text := range map[string]string{"defaults": base, "full": full} {
		t.Run(name, func(t *testing.T) {
			one := mustParse(t, text, Run)
			two := mustParse(t, one.YAML(), Run)
			if one.YAML() != two.YAML() {
				t.Errorf("%s\n%s", one.YAML(), two.YAML())
			}
			diff(t, two.Gateway(), one.Gateway())
			diff(t, two.Replay(), one.Replay())
			diff(t, two.Control(), one.Control())
			var tree map[string]any
			if err := json.Unmarshal([]byte(one.JSON()), &tree); err != nil {
				t.Fatal(err)
			}
			for _, section := range children("") {
				if tree[section] == nil {
					t.Errorf("JSON lacks %s", section)
				}
			}
		})
	}
	var tree struct {
		Limits struct {
			Links        int    `json:"links"`
			LinksPerHost string `json:"links_per_host"`
		} `json:"limits"`
		NAT struct {
			Hairpin  bool `json:"hairpin"`
			Timeouts struct {
				UDP string `json:"udp"`
			} `json:"timeouts"`
		} `json:"nat"`
	}
	if err := json.Unmarshal([]byte(mustParse(t, base, Run).JSON()), &tree); err != nil {
		t.Fatal(err)
	}
	if tree.Limits.Links != 1_000_000 || tree.Limits.LinksPerHost != "none" || !tree.NAT.Hairpin || tree.NAT.Timeouts.UDP != "300s" {
		t.Errorf("%+v", tree)
	}
}

// What a method returns is the caller's own: writing to it does not change the Config.
func TestConfigDoesNotChange(t *testing.T) {
	c := mustParse(t, full, Run)
	before := c.Gateway()
	o, r := c.Gateway(), c.Replay()
	o.Cores[0], o.Queues[0], o.Rules.Alias[0], o.Rules.RedirectAddr[0].Local[0], o.Rules.RedirectPort[0].Local[0].Port = 1, 1, 1, 1, 1
	o.Rules.Exempt[0], r.InsideNetworks[0] = netip.Prefix{}, netip.Prefix{}
	diff(t, c.Gateway(), before)
	if !c.Replay().InsideNetworks[0].IsValid() {
		t.Error("the replay's networks changed")
	}
}

func TestFlags(t *testing.T) {
	args := func(pairs ...string) (out []Arg) {
		for i := 0; i < len(pairs); i += 2 {
			out = append(out, Arg{pairs[i], pairs[i+1]})
		}
		return out
	}
	t.Run("alone", func(t *testing.T) {
		c, err := Load("", args("inside", "lan", "inside", "lan2", "outside", "wan", "alias", "203.0.113.1", "alias", "port", "cores", "2", "queues", "1",
			"idle", "adaptive", "mode", "copy", "rt-priority", "10", "control", "/tmp/x", "nat-same-ports", "false", "limits-links", "77",
			"nat-timeouts-udp", "30s", "nat-exempt", "192.0.2.0/24", "nat-mapping-udp", "endpoint-dependent",
			"redirect-port", "tcp,203.0.113.1:80=10.0.0.1:8080", "redirect-port", "udp,port:53=10.0.0.1:53+10.0.0.2:53,pick=source-hash,remote=192.0.2.7",
			"nat-redirect-addr", "203.0.113.2=10.0.0.5,inbound=false", "nat-redirect-proto", "47,port=10.0.0.6,remote=192.0.2.8"), Run)
		if err != nil {
			t.Fatal(err)
		}
		rules := nat.DefaultRules()
		rules.Alias = []packet.Addr{addr("203.0.113.1")}
		rules.SamePorts = false
		rules.Timeouts.UDP = 30 * time.Second
		rules.Mapping.UDP = nat.AddressAndPortDependent
		rules.Exempt = []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24")}
		rules.RedirectPort = []nat.RedirectPort{
			{Proto: 6, Public: nat.Alias{Addr: addr("203.0.113.1"), Port: 80}, Local: []nat.Local{{Addr: addr("10.0.0.1"), Port: 8080}}},
			{Proto: 17, Public: nat.Alias{Port: 53}, Local: []nat.Local{{Addr: addr("10.0.0.1"), Port: 53}, {Addr: addr("10.0.0.2"), Port: 53}}, Remote: nat.Remote{Addr: addr("192.0.2.7")}, Pick: nat.SourceHash},
		}
		rules.RedirectAddr = []nat.RedirectAddr{{Public: addr("203.0.113.2"), Local: []packet.Addr{addr("10.0.0.5")}}}
		rules.RedirectProto = []nat.RedirectProto{{Proto: 47, Local: addr("10.0.0.6"), Remote: addr("192.0.2.8")}}
		diff(t, c.Gateway(), pmd.Options{
			Ports: []pmd.PortOptions{{Name: "lan"}, {Name: "lan2"}, {Name: "wan", Side: nat.Outside}},
			Cores: []int{2}, Queues: []int{1}, Idle: pmd.Adaptive, RTPriority: 10, Mode: pmd.ModeCopy, RingSize: 2048,
			Rules: rules, AliasPort: true, Limits: nat.Limits{Links: 77, Fragments: 4096}, Populate: true, RTCache: true,
		})
		if c.Control().Socket != "/tmp/x" {
			t.Errorf("control %+v", c.Control())
		}
	})
	t.Run("over a file", func(t *testing.T) {
		c := mustParse(t, full, Run, args("inside", "br0", "alias", "192.0.2.99", "nat-alias", "port", "limits-links", "5", "redirect-port", "tcp,192.0.2.99:1=10.0.0.1:1")...)
		o := c.Gateway()
		diff(t, o.Ports, []pmd.PortOptions{{Name: "wan0", Side: nat.Outside}, {Name: "br0"}})
		if !slices.Equal(o.Rules.Alias, []packet.Addr{addr("192.0.2.99")}) || o.Limits.Links != 5 || o.Limits.LinksPerHost != 10 || len(o.Rules.RedirectPort) != 1 {
			t.Errorf("%+v", o)
		}
	})
	t.Run("mends the file", func(t *testing.T) {
		mustParse(t, "ports: [{name: a, role: inside}]\nlimits: {links: 0}\n", Run, args("outside", "b", "alias", "192.0.2.1", "limits-links", "9")...)
	})
	for _, c := range []struct {
		args []Arg
		want string
	}{
		{args("limits-links", "0"), `--limits-links: limits.links is "0"; allowed: a number from 1`},
		{args("limits-links", "1", "limits-links", "2"), "--limits-links: limits.links is given twice"},
		{args("cores", "2", "workers-cores", "2"), "--workers-cores: workers.cores is given twice"},
		{args("alias", "192.0.2.1", "alias", "192.0.2.1"), "--alias: nat.alias: 192.0.2.1 overlaps what --alias gives"},
		{args("alias", "wan"), `--alias: nat.alias is "wan"`},
		{args("inside", "a/b"), "--inside: ports[1].name"},
		{args("inside", "eth0"), `--inside: ports: "eth0" is given at f:1:37 already`},
		{args("cores", "0-299"), "--cores: workers.cores names 300 cores"},
		{args("queues", "2-3"), "--queues: workers.queues has 2 queues for one core"},
		{args("nat-timeouts-udp", "30"), "--nat-timeouts-udp: nat.timeouts.udp"},
		{args("nat-hairpin", "yes"), "--nat-hairpin: nat.hairpin"},
		{args("workers-steer", "flow", "nat-mapping-tcp", "address-dependent"), "--workers-steer: workers.steer is flow, which needs a protocol"},
		{args("redirect-port", "tcp"), `--redirect-port: "tcp" is not understood; allowed: PROTO,PUBLIC=LOCAL`},
		{args("redirect-port", "tcp,203.0.113.1:80"), "--redirect-port: \"tcp,203.0.113.1:80\" is not understood"},
		{args("redirect-port", "tcp,203.0.113.1:80=10.0.0.1:80,color=red"), `--redirect-port: unknown key "color"`},
		{args("redirect-port", "tcp,203.0.113.1:80=10.0.0.1"), "--redirect-port: nat.redirect_port[0].local"},
		{args("redirect-port", "tcp,203.0.113.1:80=10.0.0.1:1", "redirect-port", "tcp,203.0.113.1:80=10.0.0.1:2"), "--redirect-port: nat.redirect_port: tcp 203.0.113.1:80"},
		{args("nat-redirect-addr", "203.0.113.1"), "--nat-redirect-addr: \"203.0.113.1\" is not understood"},
		{args("nat-redirect-addr", "203.0.113.1=10.0.0.1,inbound=no"), "--nat-redirect-addr: nat.redirect_addr[0].inbound"},
		{args("nonsense", "1"), "--nonsense: no such flag"},
	} {
		_, err := Parse("f", []byte(base), c.args, Run)
		if err == nil || !strings.HasPrefix(err.Error(), c.want) {
			t.Errorf("%v\ngot  %v\nwant %s", c.args, err, c.want)
		}
	}
	if _, err := Parse("f", []byte("limits: 5\n"), args("limits-links", "1"), Run); err == nil || !strings.HasPrefix(err.Error(), "f:1:9: limits is a single value") {
		t.Errorf("got %v", err)
	}
	if _, err := Load("", nil, Run); err == nil || !strings.HasPrefix(err.Error(), "flags: ports is missing") {
		t.Errorf("got %v", err)
	}
}

// Every key has a flag, and no two flags share a name.
func TestFlagNames(t *testing.T) {
	seen, covered := map[string]bool{}, map[string]bool{}
	for _, f := range Flags() {
		covered[f.Key] = true
		for _, name := range f.Names {
			if seen[name] {
				t.Errorf("--%s stands for two keys", name)
			}
			seen[name] = true
			if f.Key != "ports" && keyOfFlag(name).path != f.Key {
				t.Errorf("--%s leads to %s", name, keyOfFlag(name).path)
			}
		}
		if f.Usage == "" {
			t.Errorf("%v has no help", f.Names)
		}
	}
	for _, k := range keys {
		if !covered[k.path] {
			t.Errorf("%s has no flag", k.path)
		}
	}
	for _, short := range []string{"inside", "outside", "alias", "cores", "queues", "idle", "mode", "rt-priority", "redirect-port", "control"} {
		if !seen[short] {
			t.Errorf("--%s is missing", short)
		}
	}
}

func TestFiles(t *testing.T) {
	dir := t.TempDir()
	good := filepath.Join(dir, "good.yaml")
	if err := os.WriteFile(good, []byte(base), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := Load(good, nil, Run); err != nil {
		t.Error(err)
	}
	big := filepath.Join(dir, "big.yaml")
	if err := os.WriteFile(big, nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Truncate(big, fileBytesMax+1); err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{
		filepath.Join(dir, "none.yaml"): "none.yaml: can't be read: no such file or directory",
		dir:                             "is a directory",
		big:                             "at most",
		"/dev/zero":                     "/dev/zero: more than 4194304 bytes", // has no size, and no end
	} {
		if _, err := Load(name, nil, Run); err == nil || !strings.Contains(err.Error(), want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("got %v, want %s", err, want)
		}
	}
}

func TestSpans(t *testing.T) {
	s := newSpans()
	for _, c := range []struct {
		first, last packet.Addr
		clash       bool
	}{{10, 20, false}, {30, 40, false}, {21, 29, false}, {20, 20, true}, {5, 10, true}, {0, 9, false}, {41, 41, false}, {0, 100, true}} {
		if _, clash := s.add(span{c.first, c.last}, place{}); clash != c.clash {
			t.Errorf("%d-%d: clash %t", c.first, c.last, clash)
		}
	}
	if !slices.IsSortedFunc(s.list, func(a, b span) int { return int(a.first) - int(b.first) }) || len(s.list) != 5 {
		t.Errorf("%v", s.list)
	}
}

// FuzzParse: no input panics; an error is one line that begins with the place; what is accepted survives the round trip.
func FuzzParse(f *testing.F) {
	f.Add([]byte(base))
	f.Add([]byte(full))
	for _, c := range badInputs {
		f.Add([]byte(strings.Replace(c.yaml, "»", "", 1)))
	}
	f.Fuzz(func(t *testing.T, data []byte) {
		c, err := Parse("f", data, nil, Replaying)
		if err != nil {
			if text := err.Error(); !strings.HasPrefix(text, "f:") || strings.ContainsAny(text, "\n\r") {
				t.Fatalf("%q", text)
			}
			return
		}
		again, err := Parse("f", []byte(c.YAML()), nil, Replaying)
		if err != nil {
			t.Fatalf("%v in\n%s", err, c.YAML())
		}
		if again.YAML() != c.YAML() || !reflect.DeepEqual(again.Rules(), c.Rules()) {
			t.Fatalf("round trip\n%s\n%s", c.YAML(), again.YAML())
		}
		if !json.Valid([]byte(c.JSON())) {
			t.Fatal(c.JSON())
		}
	})
}
