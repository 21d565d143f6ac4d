package config

import (
	"errors"
	"fmt"
	"strings"
	"testing"
)

// base is a good configuration but for what a test adds.
const base = `ports: [{name: eth1, role: inside}, {name: eth0, role: outside}]
nat:
  alias: ["203.0.113.1", "203.0.113.8/30"]
`

// badInput has a mark » where the error must be placed, and part of what it must say.
var badInputs = []struct{ name, yaml, want string }{
	// The file as such.
	{"empty file", "»", "ports is missing"},
	{"comment only", "»# nothing\n", "ports is missing"},
	{"a list", "»- a\n- b\n", "the configuration is a list"},
	{"a word", "»hello\n", "the configuration is a single value"},
	{"bracket left open", "ports: »[{name: a, role: inside}\n", "not YAML"},
	{"tab as indentation", "nat:\n»\talias: []\n", "not YAML"},
	{"second document", base + "---\n»mode: copy\n", "a second YAML document"},
	{"anchor", base + "mode: »&x auto\n", "anchors"},
	{"alias", base + "mode: »*x\n", "anchors"},
	{"merge key", base + "»<<: {mode: auto}\n", "anchors"},
	{"tag", base + "mode: »!!str auto\n", "tags"},
	{"complex key", base + "»? mode\n: auto\n", "? keys"},
	{"not UTF-8", "mode: a»\xff\n", "UTF-8"},
	{"control character", "mode: a»\x07\n", "control character U+0007"},
	{"nested too deep", "a: [[[[[[[[»[[[[[]]]]]]]]]]]]]\n", "nested too deep"},

	// Keys.
	{"unknown key", base + "»wrokers: {}\n", `unknown key "wrokers"; allowed: ports, workers, mode, rings, limits, nat, routing, control, log, snapshot, replay`},
	{"unknown key in a section", base + "limits: {»link: 5}\n", `unknown key "link" in limits; allowed: links, memory, links_per_host`},
	{"unknown key two deep", base + "  timeouts: {udp: 30s, »tcp: 30s}\n", `unknown key "tcp" in nat.timeouts`},
	{"unknown key in ports", "ports: [{name: a, »side: inside}]\n", `unknown key "side" in ports[0]; allowed: name, role`},
	{"unknown key in a redirect", base + "  redirect_port: [{proto: tcp, public: '203.0.113.1:1', local: '10.0.0.1:1', »from: x}]\n", `unknown key "from" in nat.redirect_port[0]`},
	{"dotted key", base + "»limits.links: 5\n", `unknown key "limits.links"`},
	{"duplicate key", base + "mode: auto\n»mode: copy\n", "mode is given at f:4:1 already"},
	{"duplicate section", base + "»nat: {}\n", "nat is given at f:2:1 already"},
	{"duplicate key in a flow mapping", base + "limits: {links: 5, »links: 6}\n", "limits.links is given at f:4:10 already"},
	{"duplicate key in ports", "ports: [{name: a, »name: b, role: inside}]\n", "ports[0].name is given twice"},
	{"key without value", base + "»mode:\n", "mode has no value"},
	{"null", base + "mode: \"auto\"\nlimits: {»links: ~}\n", "limits.links has no value"},
	{"empty section", base + "»limits:\n", "limits has no value"},
	{"section is a list", base + "limits: »[1]\n", "limits is a list; allowed: a mapping with the keys links"},
	{"section is a word", base + "limits: »many\n", "limits is a single value"},

	// Ports.
	{"ports missing", "»limits: {links: 5}\n", "ports is missing"},
	{"ports is a mapping", "ports: »{name: a, role: inside}\n", "ports is a mapping; allowed: a list"},
	{"ports empty", "ports: »[]\n", "none has the role inside"},
	{"no outside port", "ports: »[{name: a, role: inside}]\n", "none has the role outside"},
	{"no inside port", "ports:\n  »- {name: a, role: outside}\n", "none has the role inside"},
	{"role unknown", "ports:\n  - {name: a, role: »wan}\n", "inside | outside"},
	{"role missing", "ports:\n  - »{name: a}\n", "ports[0] lacks role"},
	{"port twice", "ports:\n  - {name: a, role: inside}\n  - »{name: a, role: outside}\n", `"a" is given at f:2:5 already`},
	{"port name too long", "ports: [{name: »abcdefghijklmnop, role: inside}]\n", "1 to 15 characters"},
	{"port name with slash", "ports: [{name: »a/b, role: inside}]\n", "1 to 15 characters"},
	{"port is a word", "ports: [»eth0]\n", "ports[0] is a single value; allowed: a mapping with the keys name, role"},

	// Workers, mode, rings.
	{"cores is a word", base + "workers: {cores: »all}\n", "workers.cores is \"all\""},
	{"cores upside down", base + "workers: {cores: »\"5-2\"}\n", "workers.cores"},
	{"core twice", base + "workers: {cores: »\"2,2\"}\n", "once"},
	{"cores ends in a comma", base + "workers: {cores: »\"2,\"}\n", "workers.cores"},
	{"core too high", base + "workers: {cores: »\"2-5000\"}\n", "0 to 1023"},
	{"cores is a list", base + "workers: {cores: »[2, 3]}\n", "workers.cores is a list"},
	{"more queues than cores", base + "workers: {cores: \"2\", queues: »\"0-1\"}\n", "2 queues for 1 core"},
	{"queues without cores", base + "workers: {queues: »\"0-1\"}\n", "2 queues for one core"},
	{"more workers than an owner byte tells apart", base + "workers: {cores: »\"0-299\"}\n", "names 300 cores"},
	{"idle unknown", base + "workers: {idle: »sleep}\n", "spin | adaptive"},
	{"steer with blocks", base + "  blocks: {size: 64}\nworkers: {steer: »flow}\n", "which nat.blocks and nat.deterministic exclude; allowed: host"},
	{"steer with nothing to steer", base + "  mapping: {tcp: endpoint-independent}\nworkers: {steer: »flow}\n", "which needs a protocol whose nat.mapping is endpoint-dependent"},
	{"steer with an open filter", base + "  filtering: {tcp: address-dependent}\nworkers: {steer: »flow}\n", "whose nat.filtering is address-and-port-dependent; allowed: host"},
	{"steer unknown", base + "workers: {steer: »port}\n", "host | flow"},
	{"rt_priority too high", base + "workers: {rt_priority: »99}\n", "0 to 98"},
	{"mode unknown", base + "mode: »native\n", "auto | zerocopy | copy"},
	{"ring size no power of two", base + "rings: {size: »1000}\n", "a power of two from 64 to 32768"},
	{"ring size zero", base + "rings: {size: »0}\n", "rings.size"},
	{"too few frames", base + "rings: {frames: »8}\n", "or 0 for computed"},

	// Limits.
	{"links zero", base + "limits: {links: »0}\n", `limits.links is "0"; allowed: a number from 1`},
	{"links negative", base + "limits: {links: »-5}\n", "limits.links"},
	{"links none", base + "limits: {links: »none}\n", "limits.links"},
	{"links quoted", base + "limits: {links: »\"100\"}\n", "limits.links"},
	{"links hexadecimal", base + "limits: {links: »0x10}\n", "limits.links"},
	{"links underscored", base + "limits: {links: »1_000}\n", "limits.links"},
	{"links with a leading zero", base + "limits: {links: »0100}\n", "limits.links"},
	{"links a fraction", base + "limits: {links: »1.5}\n", "limits.links"},
	{"links too many", base + "limits: {links: »99999999999999}\n", "limits.links"},
	{"links_per_host zero", base + "limits: {links_per_host: »0}\n", "or none"},
	{"new_links_per_host a word", base + "limits: {new_links_per_host: »some}\n", "or none"},
	{"fragments zero", base + "limits: {fragments: »0}\n", "limits.fragments"},

	// Alias addresses.
	{"alias missing", "ports: [{name: a, role: inside}, {name: b, role: outside}]\n»nat: {hairpin: true}\n", "nat.alias is missing"},
	{"nat missing", "»ports: [{name: a, role: inside}, {name: b, role: outside}]\n", "nat.alias is missing"},
	{"alias empty", "nat: {alias: »[]}\n", "nat.alias is empty"},
	{"alias is a word", "nat: {alias: »\"203.0.113.1\"}\n", "nat.alias is a single value; allowed: a list"},
	{"alias no address", "nat: {alias: [\"203.0.113.1\", »\"eth0\"]}\n", `nat.alias is "eth0"`},
	{"alias with host bits", "nat: {alias: [»\"203.0.113.9/30\"]}\n", "without host bits"},
	{"alias is IPv6", "nat: {alias: [»\"2001:db8::1\"]}\n", "IPv4"},
	{"alias is multicast", "nat: {alias: [»\"224.0.0.1\"]}\n", "unicast"},
	{"alias is loopback", "nat: {alias: [»\"127.0.0.1\"]}\n", "unicast"},
	{"alias is everything", "nat: {alias: [»\"0.0.0.0/0\"]}\n", "nat.alias"},
	{"alias twice", "nat: {alias: [\"203.0.113.1\", »\"203.0.113.1\"]}\n", "overlaps what f:1:15 gives"},
	{"alias inside a prefix", "nat: {alias: [\"203.0.113.0/29\", »\"203.0.113.5\"]}\n", "overlaps what f:1:15 gives"},
	{"prefix over an alias", "nat: {alias: [\"203.0.113.5\", »\"203.0.113.0/29\"]}\n", "overlaps what f:1:15 gives"},
	{"port alias twice", "nat: {alias: [port, »port]}\n", `"port" is given at f:1:15 already`},
	{"too many aliases", "nat: {alias: [»\"203.0.0.0/19\"]}\n", "256 KiB"},

	// NAT rules.
	{"pooling unknown", base + "  pooling: »random\n", "paired | arbitrary"},
	{"port range upside down", base + "  port_range: »\"65535-1024\"\n", "upside down"},
	{"port range from 0", base + "  port_range: »\"0-1024\"\n", "from 1 to 65535"},
	{"port range too high", base + "  port_range: »\"1024-65536\"\n", "from 1 to 65535"},
	{"port range a number", base + "  port_range: »1024\n", "LOW-HIGH"},
	{"boolean quoted", base + "  same_ports: »\"true\"\n", "true or false"},
	{"boolean yes", base + "  same_ports: »yes\n", "true or false"},
	{"boolean a number", base + "  hairpin: »1\n", "true or false"},
	{"target no host", base + "  target: »\"0.0.0.0\"\n", "or \"\" for none"},
	{"target a list", base + "  target: »[\"10.0.0.1\"]\n", "nat.target is a list"},
	{"mapping word of filtering", base + "  mapping: {udp: »address-and-port-dependent}\n", "endpoint-independent | address-dependent | endpoint-dependent"},
	{"filtering word of mapping", base + "  filtering: {udp: »endpoint-dependent}\n", "address-and-port-dependent"},
	{"exempt with host bits", base + "  exempt: [»\"192.0.2.1/24\"]\n", "without host bits"},
	{"exempt overlaps", base + "  exempt: [\"10.0.0.0/8\", »\"10.1.0.0/16\"]\n", "overlaps what f:4:12 gives"},
	{"timeout without unit", base + "  timeouts: {udp: »300}\n", "a time with its unit"},
	{"timeout zero", base + "  timeouts: {udp: »0s}\n", "from 1ms"},
	{"timeout negative", base + "  timeouts: {udp: »-5s}\n", "from 1ms"},
	{"target an alias", base + "  target: »203.0.113.9\n", "203.0.113.9 is an alias address"},
	{"timeout beyond the clock", base + "  timeouts: {udp: »481h}\n", "480h"},
	{"timeout in days", base + "  timeouts: {udp: »1d}\n", "nat.timeouts.udp"},
	{"timeouts is a value", base + "  timeouts: »300s\n", "nat.timeouts is a single value"},
	{"block too large", base + "  blocks: {size: »32769}\n", "a number from 1 to 32768, or 0 for off"},
	{"block larger than the range", base + "  port_range: \"1030-2050\"\n  blocks: {size: »1024}\n", "the first would be 1030-2053"},
	{"no blocks per host", base + "  blocks: {max_per_host: »0}\n", "nat.blocks.max_per_host"},
	{"deterministic without ports", base + "  deterministic: {inside: »\"10.0.0.0/24\"}\n", "both or neither"},
	{"deterministic without inside", base + "  deterministic: {ports_per_host: »64}\n", "both or neither"},
	{"deterministic with blocks", base + "  blocks: {size: 64}\n  deterministic: {inside: »\"10.0.0.0/24\", ports_per_host: 64}\n", "excludes nat.blocks"},
	{"deterministic too many hosts", base + "  deterministic: {inside: »\"10.0.0.0/16\", ports_per_host: 64}\n", "5 x 1008 = 5040"},
	{"mss_clamp too low", base + "  mss_clamp: »20\n", "a number from 64"},
	{"mss_clamp zero", base + "  mss_clamp: »0\n", "\"\" for off"},
	{"no resource code", base + "  icmp_no_resource_code: »16\n", "0 to 15"},

	// redirect_port.
	{"redirect is a mapping", base + "  redirect_port: »{proto: tcp}\n", "nat.redirect_port is a mapping"},
	{"redirect lacks local", base + "  redirect_port: [»{proto: tcp, public: '203.0.113.1:80'}]\n", "lacks local"},
	{"redirect proto unknown", base + "  redirect_port: [{proto: »sctp, public: '203.0.113.1:80', local: '10.0.0.1:80'}]\n", "tcp | udp | icmp"},
	{"redirect proto without ports", base + "  redirect_port: [{proto: »47, public: '203.0.113.1:80', local: '10.0.0.1:80'}]\n", "redirect_proto"},
	{"redirect public without port", base + "  redirect_port: [{proto: tcp, public: »'203.0.113.1', local: '10.0.0.1:80'}]\n", "ADDRESS:PORT"},
	{"redirect port 0", base + "  redirect_port: [{proto: tcp, public: »'203.0.113.1:0', local: '10.0.0.1:80'}]\n", "from 1 to 65535"},
	{"redirect port too high", base + "  redirect_port: [{proto: tcp, public: '203.0.113.1:80', local: »'10.0.0.1:65536'}]\n", "from 1 to 65535"},
	{"redirect range upside down", base + "  redirect_port: [{proto: tcp, public: »'203.0.113.1:90-80', local: '10.0.0.1:80-90'}]\n", "upside down"},
	{"redirect ranges unequal", base + "  redirect_port: [{proto: tcp, public: '203.0.113.1:80-90', local: »'10.0.0.1:80-89'}]\n", "has 10 ports, public has 11"},
	{"redirect range to one port", base + "  redirect_port: [{proto: tcp, public: '203.0.113.1:80-90', local: »'10.0.0.1:80'}]\n", "has 1 ports, public has 11"},
	{"redirect pool for a range", base + "  redirect_port: [{proto: tcp, public: '203.0.113.1:80-81', local: »['10.0.0.1:80', '10.0.0.2:80']}]\n", "single public port"},
	{"redirect pool with a range", base + "  redirect_port: [{proto: tcp, public: '203.0.113.1:80', local: [»'10.0.0.1:80-81']}]\n", "ADDRESS:PORT"},
	{"redirect pool empty", base + "  redirect_port: [{proto: tcp, public: '203.0.113.1:80', local: »[]}]\n", "an empty list"},
	{"redirect server twice", base + "  redirect_port: [{proto: tcp, public: '203.0.113.1:80', local: ['10.0.0.1:80', »'10.0.0.1:80']}]\n", "twice"},
	{"redirect pick without pool", base + "  redirect_port: [{proto: tcp, public: '203.0.113.1:80', local: '10.0.0.1:80', pick: »rotate}]\n", "needed: a list in local"},
	{"redirect pick unknown", base + "  redirect_port: [{proto: tcp, public: '203.0.113.1:80', local: ['10.0.0.1:80'], pick: »random}]\n", "rotate | source-hash"},
	{"redirect remote a star", base + "  redirect_port: [{proto: tcp, public: '203.0.113.1:80', local: '10.0.0.1:80', remote: »'*'}]\n", "*:PORT"},
	{"redirect remote a range", base + "  redirect_port: [{proto: tcp, public: '203.0.113.1:80', local: '10.0.0.1:80', remote: »'192.0.2.1:5-6'}]\n", "*:PORT"},
	{"redirect remote port of icmp", base + "  redirect_port: [{proto: icmp, public: '203.0.113.1:80', local: '10.0.0.1:80', remote: »'192.0.2.1:5'}]\n", "ICMP has none"},
	{"redirect twice", base + "  redirect_port:\n  - {proto: tcp, public: '203.0.113.1:80', local: '10.0.0.1:80'}\n  - »{proto: tcp, public: '203.0.113.1:80', local: '10.0.0.2:80'}\n", "tcp 203.0.113.1:80 for the same remote is published at f:5:5 already"},
	{"redirect into a range", base + "  redirect_port:\n  - {proto: udp, public: '203.0.113.1:80-90', local: '10.0.0.1:80-90'}\n  - »{proto: udp, public: '203.0.113.1:90', local: '10.0.0.2:80'}\n", "udp 203.0.113.1:90"},
	{"redirect twice for a remote", base + "  redirect_port:\n  - {proto: tcp, public: '203.0.113.1:80', local: '10.0.0.1:80', remote: '*:9'}\n  - »{proto: 6, public: '203.0.113.1:80', local: '10.0.0.2:80', remote: '*:9'}\n", "same remote"},
	{"redirect to an alias", base + "  redirect_port: [»{proto: tcp, public: '203.0.113.1:80', local: '203.0.113.10:80'}]\n", "is an alias address"},
	{"redirect of port without it", base + "  redirect_port: [»{proto: tcp, public: 'port:80', local: '10.0.0.1:80'}]\n", "nat.alias doesn't hold"},

	// redirect_addr and redirect_proto.
	{"redirect_addr with a port", base + "  redirect_addr: [{public: »'203.0.113.9:80', local: '10.0.0.9'}]\n", "an IPv4 host address"},
	{"redirect_addr inbound a word", base + "  redirect_addr: [{public: '203.0.113.9', local: '10.0.0.9', inbound: »maybe}]\n", "true or false"},
	{"redirect_addr twice", base + "  redirect_addr:\n  - {public: '203.0.113.9', local: '10.0.0.9'}\n  - »{public: '203.0.113.9', local: '10.0.0.8'}\n", "published at f:5:5 already"},
	{"redirect_proto of tcp", base + "  redirect_proto: [{proto: »tcp, public: '203.0.113.1', local: '10.0.0.7'}]\n", "redirect_port is for them"},
	{"redirect_proto 0", base + "  redirect_proto: [{proto: »0, public: '203.0.113.1', local: '10.0.0.7'}]\n", "1 to 255"},
	{"redirect_proto 256", base + "  redirect_proto: [{proto: »256, public: '203.0.113.1', local: '10.0.0.7'}]\n", "1 to 255"},
	{"redirect_proto twice", base + "  redirect_proto:\n  - {proto: 47, public: '203.0.113.1', local: '10.0.0.7'}\n  - »{proto: 47, public: '203.0.113.1', local: '10.0.0.8'}\n", "protocol 47"},

	// Routing, control, log, replay.
	{"rtcache a word", base + "routing: {rtcache: »on}\n", "true or false"},
	{"reverse_path unknown", base + "routing: {reverse_path: »feasible}\n", "strict | loose | off"},
	{"ipv6 unknown", base + "routing: {ipv6: »translate}\n", "kernel"},
	{"socket empty", base + "control: {socket: »\"\"}\n", "a path"},
	{"socket too long", base + "control: {socket: »/" + strings.Repeat("x", 120) + "}\n", "..."},
	{"socket mode", base + "control: {mode: »\"0999\"}\n", "octal"},
	{"metrics without an address", base + "control: {metrics: »\":9464\"}\n", "ADDRESS:PORT"},
	{"metrics by name", base + "control: {metrics: »\"localhost:9464\"}\n", "ADDRESS:PORT"},
	{"metrics without a port", base + "control: {metrics: »\"127.0.0.1\"}\n", "ADDRESS:PORT"},
	{"metrics at any port", base + "control: {metrics: »\"127.0.0.1:0\"}\n", "ADDRESS:PORT"},
	{"metrics at a zone", base + "control: {metrics: »\"[fe80::1%eth0]:9464\"}\n", "ADDRESS:PORT"},
	{"metrics a list", base + "control: {metrics: »[\"127.0.0.1:9464\"]}\n", "ADDRESS:PORT"},
	{"format unknown", base + "log: {format: »xml}\n", "text | json"},
	{"severity unknown", base + "log: {severity: »debug}\n", "info | warn | error"},
	{"syslog scheme", base + "log: {level: session, syslog: »\"http://127.0.0.1:514\"}\n", "tcp://HOST:PORT, unix:///PATH"},
	{"syslog port", base + "log: {level: session, syslog: »\"udp://127.0.0.1:0\"}\n", "udp://HOST:PORT"},
	{"syslog no address", base + "log: {level: session, syslog: »\"udp://1.2.3:514\"}\n", "udp://HOST:PORT"},
	{"syslog twice", base + "log: {level: session, syslog: »\"udp://127.0.0.1:514, udp://127.0.0.1:514\"}\n", "udp://HOST:PORT"},
	{"syslog path", base + "log: {level: session, syslog: »\"unix://dev/log\"}\n", "unix:///PATH"},
	{"ipfix by TCP", base + "log: {level: session, ipfix: »\"tcp://127.0.0.1:4739\"}\n", "with commas between them, udp://HOST:PORT"},
	{"sessions to nobody", base + "log: {level: »session}\n", "no collector is named; needed: log.syslog or log.ipfix"},
	{"blocks that are not", base + "log: {ipfix: »\"udp://127.0.0.1:4739\"}\n", "log.ipfix is set and log.level is block, but there are no blocks"},
	{"multicast MAC", base + "replay: {inside_mac: »\"01:00:00:00:00:01\"}\n", "unicast"},
	{"short MAC", base + "replay: {inside_mac: »\"02:00:00:00:01\"}\n", "unicast"},
	{"replay address empty", base + "replay: {inside_address: »\"\"}\n", "an IPv4 host address"},
	{"replay networks overlap", base + "replay: {inside_networks: [\"10.0.0.0/8\", »\"10.0.0.0/8\"]}\n", "overlaps"},
	{"replay mtu", base + "replay: {inside_mtu: »60}\n", "from 68"},
	{"after an umlaut", base + "log: {\"syslog\": \"\"} # ä\nreplay: {\"inside_mac\": \"02:00:00:00:00:01\", »\"ö\": 1}\n", `unknown key "ö"`},
	{"windows line ends", "ports: [{name: a, role: inside}, {name: b, role: outside}]\r\nnat:\r\n  alias: [\"203.0.113.1\"]\r\n  hairpin: »maybe\r\n", "true or false"},
}

func TestBadInput(t *testing.T) {
	for _, c := range badInputs {
		t.Run(c.name, func(t *testing.T) {
			before, after, marked := strings.Cut(c.yaml, "»")
			if !marked {
				t.Fatal("the case has no mark")
			}
			text := before + after
			if !strings.Contains(text, "ports:") && strings.Contains(text, "alias") {
				text += "ports: [{name: eth1, role: inside}, {name: eth0, role: outside}]\n"
			}
			line := strings.Count(before, "\n") + 1
			col := len([]rune(before[strings.LastIndex(before, "\n")+1:])) + 1
			_, err := Parse("f", []byte(text), nil, Run)
			if err == nil {
				t.Fatalf("accepted:\n%s", text)
			}
			var e *Error
			if !errors.As(err, &e) {
				t.Errorf("%v is no *Error", err)
			}
			got := err.Error()
			if at := fmt.Sprintf("f:%d:%d: ", line, col); !strings.HasPrefix(got, at) {
				t.Errorf("got  %s\nwant %s", got, at)
			}
			if !strings.Contains(got, c.want) {
				t.Errorf("got  %s\nwant %s", got, c.want)
			}
			if strings.ContainsAny(got, "\n\r") || len(got) > 500 {
				t.Errorf("not one line for people: %q", got)
			}
		})
	}
	if len(badInputs) < 60 {
		t.Errorf("only %d bad inputs", len(badInputs))
	}
}
