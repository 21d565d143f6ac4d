package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"

	"pollux/internal/control"
	"pollux/internal/packet"
	"pollux/internal/reason"
	"pollux/lport"
	"pollux/nat"
	"pollux/pmd"
	"pollux/rtcache"
)

// binary is the program under test, built once.
var binary string

func TestMain(m *testing.M) {
	dir, err := os.MkdirTemp("", "pollux-cli-")
	if err != nil {
		panic(err)
	}
	binary = filepath.Join(dir, "pollux")
	if out, err := exec.Command("go", "build", "-o", binary, ".").CombinedOutput(); err != nil {
		fmt.Fprintf(os.Stderr, "go build: %v\n%s", err, out)
		os.Exit(1)
	}
	status := m.Run()
	os.RemoveAll(dir)
	os.Exit(status)
}

// result is what a run of the program left.
type result struct {
	status      int
	out, errOut string
}

func pollux(t *testing.T, args ...string) result {
	t.Helper()
	cmd := exec.Command(binary, args...)
	var out, errOut bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errOut
	err := cmd.Run()
	var exit *exec.ExitError
	if err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return result{cmd.ProcessState.ExitCode(), out.String(), errOut.String()}
}

// file writes a file into a directory of the test's own.
func file(t *testing.T, name, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), name)
	if err := os.WriteFile(path, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return path
}

const good = `ports: [{name: eth1, role: inside}, {name: eth0, role: outside}]
nat: {alias: ["203.0.113.1"], redirect_port: [{proto: udp, public: "203.0.113.1:53", local: "10.0.0.3:5353"}]}
`

// Every refusal is one line on stderr, nothing on stdout, and the right status.
func TestRefusals(t *testing.T) {
	bad := file(t, "bad.yaml", good+"limits: {links: 0}\n")
	ok := file(t, "ok.yaml", good)
	dir := t.TempDir()
	plain := file(t, "plain", "not a socket")
	none := filepath.Join(dir, "none.sock")
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	minimal := []string{"--inside", "nosuch1", "--outside", "nosuch0", "--alias", "192.0.2.1", "--control", none}
	for _, c := range []struct {
		args   []string
		status int
		want   string // how the line begins
	}{
		{[]string{"frobnicate"}, 2, `pollux: no such command "frobnicate"; allowed: run, check, `},
		{[]string{"--frobnicate"}, 2, "--frobnicate: no such flag"},
		{[]string{"check", "-c", bad}, 2, bad + `:3:17: limits.links is "0"; allowed: a number from 1 to`},
		{[]string{"check", "-c", filepath.Join(dir, "none.yaml")}, 2, filepath.Join(dir, "none.yaml") + ": can't be read: no such file"},
		{[]string{"check"}, 2, "flags: ports is missing"},
		{[]string{"check", "-c", ok, "stray"}, 2, `pollux check: unexpected argument "stray"`},
		{[]string{"check", "-c", ok, "--limits-links", "x"}, 2, `--limits-links: limits.links is "x"`},
		{[]string{"check", "-c", ok, "--no-such"}, 2, "--no-such: no such flag; `pollux check --help` lists the flags"},
		{[]string{"check", "-c"}, 2, "-c: needs a value"},
		{[]string{"check", "-c", ok, "--alias"}, 2, "--alias: needs a value"},
		{[]string{"check", "-c", ok, "--json"}, 2, "--json: needs --print"},
		{[]string{"run", "-c", bad}, 2, bad + ":3:17: "},
		{append([]string{"run"}, minimal...), 2, ""},
		{append([]string{"run", "--control-metrics", taken.Addr().String()}, minimal...), 2, "control.metrics " + taken.Addr().String() + ": address already in use: another program listens there"},
		{[]string{"run", "-c", ok, "--control", plain}, 2, "control.socket " + plain + " exists and is no socket"},
		{[]string{"run", "-c", ok, "--cores", "0-1", "--queues", "0"}, 2, "--queues: workers.queues has 1 queue for 2 cores"},
		{[]string{"replay", "-c", bad}, 2, bad + ":3:17: "},
		{[]string{"replay", "-c", ok, "--inside", filepath.Join(dir, "none.pcap")}, 1, ""},
		{[]string{"replay", "-c", ok, "--outside", ok}, 1, ok + " is no capture"},
		{[]string{"replay", "-c", ok, "--write-inside", filepath.Join(dir, "none", "x.pcap")}, 1, ""},
		{[]string{"replay", "-c", ok, "--seed", "x"}, 2, ""},
		{[]string{"show", "links", "--control", none}, 1, "no gateway answers on " + none},
		{[]string{"show", "links", "--limit", "-1"}, 2, "--limit: must not be negative"},
		{[]string{"show", "links", "--control", none, "-c", ok}, 2, "--control: is given besides -c"},
		{[]string{"show", "drops", "-c", bad}, 2, bad + ":3:17: "},
		{[]string{"show", "flows"}, 2, `pollux show: no such command "flows"; allowed: links, hosts`},
		{[]string{"show", "links", "--sort", "size"}, 2, `--sort: is "size"; allowed: FIELD or FIELD,desc, with FIELD one of age, alias, bytes`},
		{[]string{"show", "links", "--sort", "age", "--limit", "100001"}, 2, "--limit: is 100001; allowed with --sort: up to 100000"},
		{[]string{"show", "links", "--older", "soon"}, 2, `--older is "soon"; allowed: a duration`},
		{[]string{"show", "links", "--watch", "1ms"}, 2, "--watch: is 1ms; allowed"},
		{[]string{"show", "pool", "--times", "2"}, 2, "--times: is given without --watch"},
		{[]string{"show", "hosts", "--address", "x", "--control", none}, 1, "no gateway answers"},
		{[]string{"who-had"}, 2, "who-had: which endpoint?"},
		{[]string{"who-had", "203.0.113.1"}, 2, `who-had: "203.0.113.1" is no alias endpoint; allowed: ADDR:PORT`},
		{[]string{"who-had", "203.0.113.1:5", "--at", "2999-01-01T00:00:00Z"}, 2, "--at: 2999-01-01T00:00:00Z is in the future"},
		{[]string{"who-had", "203.0.113.1:5", "--log", "/nonexistent"}, 2, "--log: open /nonexistent"},
		{[]string{"who-had", "203.0.113.1:5", "--log", ok}, 1, "--log " + ok + ": no line is a translation log message"},
		{[]string{"explain"}, 2, "explain: which packet?"},
		{[]string{"explain", "udp", "10.0.0.1"}, 2, "explain: packet is"},
		{[]string{"delete", "links"}, 2, "delete links: nothing says which; allowed: a filter as --local 10.0.0.7, or --all"},
		{[]string{"delete", "links", "--all", "--port", "5"}, 2, "--all: is given besides a filter"},
		{[]string{"delete", "links", "--port", "x"}, 2, `--port is "x"; allowed`},
		{[]string{"redirect", "add", "port", "tcp,203.0.113.1:443=10.0.0.2:443", "--control", none}, 1, "no gateway answers on " + none},
		{[]string{"redirect", "del", "addr", "203.0.113.9", "--control", none, "more"}, 2, "pollux redirect del addr: needs one redirect"},
		{[]string{"reload", "-c", "/dev/zero", "--control", none}, 2, "/dev/zero: more than 4194304 bytes"},
		{[]string{"rtcache", "maybe"}, 2, `pollux rtcache: no such command "maybe"; allowed: on, off`},
		{[]string{"rtcache", "--control", none, "off"}, 1, "no gateway answers on " + none},
		{[]string{"perf", "l2fwd"}, 2, "--inside: needed"},
		{[]string{"perf", "l2fwd", "--inside", "nosuch1", "--outside", "nosuch0"}, 2, `--inside: no network device "nosuch1"`},
		{[]string{"perf", "l2fwd", "--mode", "x"}, 2, `--mode: is "x"; allowed: auto, zerocopy or copy`},
		{[]string{"perf", "l2fwd", "--idle", "x"}, 2, `--idle: is "x"`},
		{[]string{"version", "now"}, 2, "pollux version: unexpected argument"},
	} {
		r := pollux(t, c.args...)
		if r.status != c.status || r.out != "" || strings.Count(r.errOut, "\n") != 1 || !strings.HasSuffix(r.errOut, "\n") || !strings.HasPrefix(r.errOut, c.want) {
			t.Errorf("pollux %s\nstatus %d, stdout %q, stderr %q\nwant   %d, %q", strings.Join(c.args, " "), r.status, r.out, r.errOut, c.status, c.want)
		}
	}
	if left, _ := filepath.Glob(filepath.Join(dir, "*")); len(left) != 0 {
		t.Errorf("left behind: %v", left)
	}
}

func TestCheck(t *testing.T) {
	ok := file(t, "ok.yaml", good)
	if r := pollux(t, "check", "-c", ok); r != (result{0, "ok\n", ""}) {
		t.Errorf("%+v", r)
	}
	if r := pollux(t, "check", "--inside", "a", "--outside", "b", "--alias", "port", "--nat-hairpin=false", "--nat-same-ports"); r != (result{0, "ok\n", ""}) {
		t.Errorf("%+v", r)
	}
	printed := pollux(t, "check", "-c", ok, "--limits-links", "77", "--print")
	if printed.status != 0 || !strings.Contains(printed.out, "links: 77\n") || !strings.Contains(printed.out, "10.0.0.3:5353") {
		t.Errorf("%+v", printed)
	}
	again := pollux(t, "check", "-c", file(t, "again.yaml", printed.out), "--print")
	if again != printed {
		t.Errorf("what is printed is another configuration:\n%s\n%s", printed.out, again.out)
	}
	var tree struct {
		Limits struct {
			Links int `json:"links"`
		} `json:"limits"`
	}
	r := pollux(t, "check", "-c", ok, "--limits-links", "77", "--print", "--json")
	if err := json.Unmarshal([]byte(r.out), &tree); err != nil || tree.Limits.Links != 77 {
		t.Errorf("%v %+v", err, r)
	}
}

func TestVersionAndHelp(t *testing.T) {
	if r := pollux(t, "version"); r.status != 0 || !strings.HasPrefix(r.out, "pollux ") || strings.Count(r.out, "\n") != 1 {
		t.Errorf("%+v", r)
	}
	var v version
	if r := pollux(t, "version", "--json"); json.Unmarshal([]byte(r.out), &v) != nil || v.Go == "" || v.Version == "" {
		t.Errorf("%+v", r)
	}
	for _, args := range [][]string{{}, {"--help"}, {"help"}, {"run", "--help"}, {"show"}, {"show", "links", "-h"}, {"replay", "-h"}, {"perf"}} {
		if r := pollux(t, args...); r.status != 0 || !strings.Contains(r.out, "USAGE:") || r.errOut != "" {
			t.Errorf("%v: %+v", args, r)
		}
	}
}

// Every key of the file has its flag in the help of check; run has those that it reads.
func TestHelpNamesFlags(t *testing.T) {
	help := pollux(t, "check", "--help").out
	if run := pollux(t, "run", "--help").out; strings.Contains(run, "--replay-") || !strings.Contains(run, "--nat-hairpin") {
		t.Errorf("run takes flags of a replay, or lacks its own:\n%s", run)
	}
	for _, flag := range []string{"--inside", "--outside", "--alias", "--cores", "--queues", "--idle", "--mode", "--rt-priority", "--redirect-port", "--control ",
		"-c FILE", "--limits-links ", "--nat-same-ports", "--nat-timeouts-udp", "--nat-mapping-tcp", "--nat-redirect-proto", "--routing-rtcache", "--replay-any-mac"} {
		if !strings.Contains(help, flag) {
			t.Errorf("%s is missing in\n%s", flag, help)
		}
	}
}

func capture(t *testing.T, frames ...[]byte) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "in.pcap")
	f, err := os.Create(path)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	w := pcapgo.NewWriter(f)
	if err := w.WriteFileHeader(65535, layers.LinkTypeEthernet); err != nil {
		t.Fatal(err)
	}
	for i, frame := range frames {
		info := gopacket.CaptureInfo{Timestamp: time.Unix(1700000000, int64(i)*1e6), CaptureLength: len(frame), Length: len(frame)}
		if err := w.WritePacket(info, frame); err != nil {
			t.Fatal(err)
		}
	}
	return path
}

func address(s string) packet.Addr { return packet.AddrFrom(netip.MustParseAddr(s)) }

// A UDP packet from inside comes out with the alias address; an unsolicited one from outside is listed as dropped.
func TestReplay(t *testing.T) {
	dir := t.TempDir()
	inside := capture(t, packet.Build{Src: address("10.0.0.5"), Dst: address("198.51.100.1"), SrcPort: 4000, DstPort: 53}.UDP([]byte("hello")))
	outside := capture(t, packet.Build{Src: address("198.51.100.9"), Dst: address("203.0.113.2"), SrcPort: 9, DstPort: 9}.UDP([]byte("x")))
	conf := file(t, "p.yaml", strings.Replace(good, `["203.0.113.1"]`, `["203.0.113.1", "203.0.113.2"]`, 1))
	drops, wo := filepath.Join(dir, "d.json"), filepath.Join(dir, "wo.pcap")
	r := pollux(t, "replay", "-c", conf, "--inside", inside, "--outside", outside, "--write-outside", wo, "--drops", drops, "--show-links", "--nat-pooling", "arbitrary")
	if r.status != 0 || r.errOut != "" {
		t.Fatalf("%+v", r)
	}
	var list struct{ Links []control.Link }
	if err := json.Unmarshal([]byte(r.out), &list); err != nil || len(list.Links) != 1 {
		t.Fatalf("%v in %s", err, r.out)
	}
	if l := list.Links[0]; l.Proto != "udp" || l.Local != "10.0.0.5:4000" || l.Remote != "198.51.100.1:53" || l.State != "active" || l.ExpiresIn == 0 || !strings.HasSuffix(l.Alias, ":4000") {
		t.Errorf("%+v", l)
	}
	text, err := os.ReadFile(drops)
	if err != nil {
		t.Fatal(err)
	}
	var dropped []struct {
		Index        int
		Side, Reason string
		Answered     bool
	}
	if err := json.Unmarshal(text, &dropped); err != nil || len(dropped) != 1 || dropped[0].Side != "outside" || dropped[0].Reason != "no-mapping" {
		t.Errorf("%v in %s", err, text)
	}
	f, err := os.Open(wo)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	rd, err := pcapgo.NewReader(f)
	if err != nil {
		t.Fatal(err)
	}
	data, info, err := rd.ReadPacketData()
	if err != nil {
		t.Fatal(err)
	}
	var h packet.Headers
	packet.Parse(data, &h)
	if h.Reason != reason.None || h.Dst != address("198.51.100.1") || h.Src&^3 != address("203.0.113.0") || h.TTL != 63 || !info.Timestamp.Equal(time.Unix(1700000000, 0)) {
		t.Errorf("%+v at %v", h, info.Timestamp)
	}
}

// showGateway is a gateway with something to show.
type showGateway struct {
	control.Gateway // what no test shows
	rtcache         bool
	deleted         *nat.LinkFilter
}

func (*showGateway) Workers() []pmd.WorkerStats {
	return []pmd.WorkerStats{{Worker: 0, Core: 3, Received: 12345, Frames: map[string]uint64{"free": 7, "fill": 9}}}
}
func (*showGateway) Ports() []pmd.PortStats {
	return []pmd.PortStats{{Name: "eth1", Role: "inside", Mode: "copy", XDP: "native", Up: true, MTU: 1500, Queues: []int{0, 1}, Passed: 42}}
}
func (*showGateway) Drops() []pmd.DropStats {
	return []pmd.DropStats{{Name: "no-port", Count: 3, Help: "no port"}, {Name: "held", Help: "still held"}}
}
func (*showGateway) CheckWorker(int) error { return nil }
func (*showGateway) SelectLinks(_ int, f *nat.LinkFilter, visit func(*nat.LinkInfo) bool) error {
	for i := range 3 {
		l := nat.LinkInfo{ID: uint32(i), Proto: packet.ProtoTCP, Local: nat.Local{Addr: address("10.0.0.1"), Port: uint16(1000 + i)},
			Alias: nat.Alias{Addr: address("203.0.113.1"), Port: 5}, Remote: nat.Remote{Addr: address("198.51.100.1"), Port: 443}, State: nat.Opening, ExpiresIn: 60_000,
			Packets: uint64(10 - i*i%3)}
		if f.Picks(&l) && !visit(&l) {
			return nil
		}
	}
	return nil
}
func (g *showGateway) DeleteLinks(_ int, f *nat.LinkFilter) (int, error) {
	g.deleted = f
	return 3, nil
}
func (*showGateway) Hosts(_ int, within *nat.Network, visit func(*nat.HostInfo) bool) error {
	visit(&nat.HostInfo{Addr: address("10.0.0.1"), Alias: address("203.0.113.1"), Links: 3, Refused: 77, Ports: -1, Blocks: 2})
	return nil
}
func (*showGateway) Peers(visit func(*pmd.PeerInfo) bool) error {
	visit(&pmd.PeerInfo{CacheInfo: lport.CacheInfo{Alias: address("203.0.113.1"), Row: lport.RowUDP, Peer: lport.Peer{Addr: address("198.51.100.1"), Port: 53}, Ports: 88}})
	return nil
}
func (*showGateway) Blocks(visit func(*pmd.BlockInfo) bool) error {
	visit(&pmd.BlockInfo{BlockInfo: lport.BlockInfo{Alias: address("203.0.113.1"), Host: address("10.0.0.1"), Low: 1024, High: 1087, Resting: true}, Ticks: 5000})
	return nil
}
func (*showGateway) Redirects() ([]pmd.RedirectInfo, error) {
	return []pmd.RedirectInfo{{RedirectInfo: nat.RedirectInfo{ID: 9, Kind: "port", Proto: packet.ProtoTCP, Public: nat.Alias{Port: 443},
		Local: []nat.Local{{Addr: address("10.0.0.1"), Port: 80}}, Config: true, Hits: 66}, Turns: []uint64{66}}}, nil
}
func (*showGateway) Pool() ([]pmd.PoolInfo, error) {
	return []pmd.PoolInfo{{Addr: "203.0.113.1", Rows: []pmd.PoolRow{{Name: "tcp", Ports: 64512, Free: 64500, Kernel: 2, Publish: 3, Owned: []int{7, 0}, Used: []int{5, 0}, Caches: []int{1, 1}}}}}, nil
}
func (*showGateway) WhoHas(a nat.Alias, protos []uint8) ([]pmd.Holder, bool, error) {
	if a.Addr != address("203.0.113.1") {
		return nil, false, nil
	}
	return []pmd.Holder{{Proto: protos[0], Byte: 2, Links: []nat.LinkInfo{{Proto: packet.ProtoUDP, Local: nat.Local{Addr: address("10.0.0.1"), Port: 7}, Alias: a,
		Remote: nat.Remote{Addr: address("198.51.100.1"), Port: 53}, Age: 9000}}}}, true, nil
}
func (*showGateway) Computed(a nat.Alias) (packet.Addr, bool, error) {
	return address("10.0.0.33"), a.Port == 1111, nil
}
func (*showGateway) Explain(frame []byte, in string) (pmd.Explanation, error) {
	return pmd.Explanation{Packet: "a packet", Stages: []pmd.Stage{{Stage: "nat", Decision: "drop", Why: "because of " + in}}, Outcome: "drop", Reason: "no-port", ICMP: "3/13"}, nil
}
func (*showGateway) Table() *rtcache.Table {
	t, err := rtcache.NewStatic(rtcache.StaticOptions{Ports: []rtcache.Port{{Name: "eth1", Inside: true, MTU: 1500}, {Name: "eth0", MTU: 1500}},
		NextHops: [][6]byte{{2}, {2}}, Routes: []rtcache.StaticRoute{{Prefix: netip.MustParsePrefix("10.0.0.0/8"), Port: 0}}})
	if err != nil {
		panic(err)
	}
	return t
}
func (g *showGateway) SetRTCache(on bool) { g.rtcache = on }
func (g *showGateway) RTCache() bool      { return g.rtcache }

func TestShow(t *testing.T) {
	socket := filepath.Join(t.TempDir(), "p.sock")
	l, err := control.Listen(control.Options{Path: socket, Mode: 0o600})
	if err != nil {
		t.Fatal(err)
	}
	gateway := &showGateway{rtcache: true}
	s := control.Serve(l, gateway, control.About{Version: buildVersion(), Config: func() (string, string) { return `{"mode":"auto"}`, "mode: auto\n" }})
	defer s.Close()
	for _, c := range []struct {
		args string
		want []string
		not  string
	}{
		{"show links", []string{"PROTO", "tcp    10.0.0.1:1000", "opening", "60s", "10.0.0.1:1002"}, "there are more"},
		{"show links --limit 2", []string{"10.0.0.1:1001", "2 links shown, there are more"}, "10.0.0.1:1002"},
		{"show links --port 1002", []string{"10.0.0.1:1002"}, "10.0.0.1:1001"},
		{"show links --proto udp", []string{"PROTO"}, "tcp"},
		{"show links --json --limit 1", []string{`"local":"10.0.0.1:1000"`, `"more":true`}, "10.0.0.1:1001"},
		{"show links --sort packets", []string{"10.0.0.1:1002"}, ""},
		{"show links --sort local,desc --limit 1", []string{"10.0.0.1:1002", "1 links shown, there are more"}, "10.0.0.1:1001"},
		{"show links --sort local,desc --limit 1 --json", []string{`"local":"10.0.0.1:1002"`, `"more":true`}, "10.0.0.1:1001"},
		{"show links --watch 100ms --times 3 --json --limit 1", []string{"}\n{", `"more":true`}, ""},
		{"show pool --times 2 --watch", []string{"203.0.113.1"}, ""},
		{"show workers --watch --times 1 --json", []string{`"received":12345`}, ""},
		{"show links --younger 5m --local 10.0.0.0/24 --opened out", []string{"10.0.0.1:1001"}, ""},
		{"show links --older 5m", []string{"PROTO"}, "tcp"},
		{"show hosts", []string{"10.0.0.1", "77", "203.0.113.1"}, ""},
		{"show hosts --address 10.0.0.1 --json", []string{`"ports":1`, `"blocks":2`}, ""}, // one alias port of three links
		{"show hosts --json", []string{`"ports":null`}, ""},
		{"show peers", []string{"udp", "198.51.100.1:53", "88"}, ""},
		{"show peers --address 198.51.100.2", []string{"PEER"}, "88"},
		{"show blocks", []string{"1024-1087", "resting", "5s"}, ""},
		{"show redirects", []string{"tcp", "default:443", "10.0.0.1:80", "config", "66"}, ""},
		{"show pool", []string{"203.0.113.1", "64500", "7 (5), 0 (0)"}, ""},
		{"show pool --json", []string{`"free":64500`, `"owned":[7,0]`}, ""},
		{"show routes", []string{"10.0.0.0/8", "eth1", "unicast"}, ""},
		{"show routes --within 10.0.0.0/8 --json", []string{`"prefix":"10.0.0.0/8"`}, "0.0.0.0/0\""},
		{"show routes --to 10.1.2.3", []string{"10.0.0.0/8"}, "0.0.0.0/0 "},
		{"show hops", []string{"ADDRESS"}, ""},
		{"delete links --local 10.0.0.1", []string{"3 links deleted"}, ""},
		{"who-had 203.0.113.1:5000/udp", []string{"udp: worker 1's", "10.0.0.1:7 to 198.51.100.1:53, active, made 9 s ago"}, "deterministic"},
		{"who-had 203.0.113.1:5000 --json", []string{`"owner":"worker","worker":1`, `"computed":null`}, ""},
		{"who-had 203.0.113.1:1111 --at 2020-01-02T03:04:05Z", []string{"203.0.113.1:1111: 10.0.0.33, by nat.deterministic, if"}, ""},
		{"explain udp 10.0.0.1:1 198.51.100.1:2 --in eth1", []string{"nat    drop       because of eth1", "drop: no-port, the sender gets ICMP 3/13"}, ""},
		{"explain --json udp 10.0.0.1:1 -> 198.51.100.1:2", []string{`"outcome":"drop"`, `"stage":"nat"`}, ""},
		{"delete links --all --json", []string{`{"deleted":3}`}, ""},
		{"show workers", []string{"12345", "fill 9, free 7"}, ""},
		{"show workers --json", []string{`"received":12345`}, "RECEIVED"},
		{"show ports", []string{"eth1", "up", "native", "0,1", "42"}, ""},
		{"show ports --json", []string{`"passed_to_kernel":42`}, "ROLE"},
		{"show drops", []string{"no-port", "3"}, "held"},
		{"show drops --all", []string{"no-port", "held"}, ""},
		{"show drops --json", []string{`"reason":"held"`}, "MEANS"},
		{"show config", []string{"mode: auto"}, "{"},
		{"show config --json", []string{`{"mode":"auto"}`}, ""},
		{"rtcache", []string{"on"}, ""},
		{"rtcache off", []string{"off"}, ""},
		{"rtcache --json", []string{`{"rtcache":false}`}, ""},
		{"rtcache on", []string{"on"}, ""},
	} {
		r := pollux(t, append(strings.Fields(c.args), "--control", socket)...)
		if r.status != 0 || r.errOut != "" {
			t.Errorf("%s: %+v", c.args, r)
		}
		for _, want := range c.want {
			if !strings.Contains(r.out, want) {
				t.Errorf("%s: no %q in\n%s", c.args, want, r.out)
			}
		}
		if c.not != "" && strings.Contains(r.out, c.not) {
			t.Errorf("%s: %q in\n%s", c.args, c.not, r.out)
		}
	}
	if !gateway.rtcache {
		t.Error("rtcache on did not reach the gateway")
	}
	// The socket may come from the gateway's own file.
	if r := pollux(t, "show", "drops", "-c", file(t, "c.yaml", good+"control: {socket: "+socket+"}\n")); r.status != 0 || !strings.Contains(r.out, "no-port") {
		t.Errorf("%+v", r)
	}
	// A bad filter is one line, and nothing is asked.
	if r := pollux(t, "show", "links", "--state", "dead", "--control", socket); r.status != 2 || r.out != "" || !strings.Contains(r.errOut, `state is "dead"; allowed: opening`) {
		t.Errorf("%+v", r)
	}
	// A busy socket stops a second gateway before it touches anything, and names the first.
	r := pollux(t, "run", "-c", file(t, "d.yaml", good), "--control", socket)
	if want := fmt.Sprintf("control.socket %s is in use by process %d ", socket, os.Getpid()); r.status != 2 || !strings.HasPrefix(r.errOut, want) || strings.Count(r.errOut, "\n") != 1 {
		t.Errorf("%+v", r)
	}
}

// TestWhoHadByTheFile: what nat.deterministic says needs no gateway, only its configuration.
func TestWhoHadByTheFile(t *testing.T) {
	file := filepath.Join(t.TempDir(), "c.yaml")
	write := func(nat string) {
		text := "ports: [{name: i, role: inside}, {name: o, role: outside}]\nnat: {alias: [\"203.0.113.1\"]" + nat + "}\n"
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(", deterministic: {inside: \"10.0.0.0/24\", ports_per_host: 200}")
	for endpoint, want := range map[string]string{ // the range begins at 1024
		"203.0.113.1:1024": "10.0.0.0", "203.0.113.1:1223": "10.0.0.0", "203.0.113.1:1224/tcp": "10.0.0.1", "203.0.113.1:65535": "nobody",
		"203.0.113.2:1024": "nobody",
	} {
		r := pollux(t, "who-had", endpoint, "--at", "2020-01-02T03:04:05Z", "-c", file)
		if !strings.Contains(r.out, ": "+want+", by nat.deterministic, if") || !strings.Contains(r.out, file) || r.status != 0 {
			t.Errorf("%s: status %d, %q %q; want %s", endpoint, r.status, r.out, r.errOut, want)
		}
	}
	write("")
	if r := pollux(t, "who-had", "203.0.113.1:1024", "--at", "2020-01-02T03:04:05Z", "-c", file); r.status != 1 || r.out != "" {
		t.Errorf("without nat.deterministic: status %d, %q %q", r.status, r.out, r.errOut)
	}
}
