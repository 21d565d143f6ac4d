package integration

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/gopacket/gopacket"
	wire "github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"
	"github.com/leodido/go-syslog/v4/rfc5424"

	"pollux/internal/lab"
	"pollux/internal/natlog"
)

// collector keeps the datagrams that come to an address.
type collector struct {
	conn net.PacketConn
	mu   sync.Mutex
	got  [][]byte
}

func collect(t *testing.T, n *lab.Namespace, address string) *collector {
	t.Helper()
	conn, err := n.ListenPacket("udp", address)
	if err != nil {
		t.Fatal(err)
	}
	conn.(*net.UDPConn).SetReadBuffer(8 << 20)
	c := &collector{conn: conn}
	t.Cleanup(func() { conn.Close() })
	go func() {
		buf := make([]byte, 64<<10)
		for {
			k, _, err := conn.ReadFrom(buf)
			if err != nil {
				return
			}
			c.mu.Lock()
			c.got = append(c.got, bytes.Clone(buf[:k]))
			c.mu.Unlock()
		}
	}()
	return c
}

func (c *collector) datagrams() [][]byte {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.got[:len(c.got):len(c.got)]
}

// line is a syslog message read back by a parser that is not ours.
type line struct {
	id   string
	at   time.Time
	args map[string]string
}

func (c *collector) lines(t *testing.T) (list []line) {
	t.Helper()
	for _, d := range c.datagrams() {
		m, err := rfc5424.NewParser().Parse(d)
		if err != nil {
			t.Fatalf("%v: %q", err, d)
		}
		s := m.(*rfc5424.SyslogMessage)
		list = append(list, line{*s.MsgID, *s.Timestamp, (*s.StructuredData)[natlog.SDID]})
	}
	return list
}

func count(list []line, id string) (n int) {
	for _, l := range list {
		if l.id == id {
			n++
		}
	}
	return n
}

// logStats asks what became of the log.
func (g *gateway) logStats() (s natlog.Stats) {
	g.t.Helper()
	body, err := g.Raw(g.t.Context(), "/v1/log", nil)
	if err != nil {
		g.t.Fatal(err)
	}
	defer body.Close()
	if err := json.NewDecoder(body).Decode(&s); err != nil {
		g.t.Fatal(err)
	}
	return s
}

// nfRecord is what nfdump says of one record.
type nfRecord struct {
	Event     string `json:"nat_event"`
	Proto     int    `json:"proto"`
	SrcAddr   string `json:"src4_addr"`
	SrcPort   int    `json:"src_port"`
	XlateAddr string `json:"src_xlt_port_addr"`
	XlateIP   string `json:"src4_xlt_ip"`
	XlatePort string `json:"src_xlt_port"`
	DstAddr   string `json:"dst4_addr"`
	DstPort   int    `json:"dst_port"`
	When      string `json:"t_event"`
}

// Every flow is told when it begins and when it ends, with the endpoints that the server saw, by syslog and by IPFIX as
// nfcapd reads it; tshark finds nothing wrong with the messages.
func TestSessionsAreLogged(t *testing.T) {
	const flows = 60
	l := newLab(t, lab.Options{Queues: 2})
	if _, err := exec.LookPath("nfcapd"); err != nil {
		t.Fatalf("nfcapd is needed to read IPFIX back: apt install nfdump (make deps): %v", err)
	}
	in, out := l.Inside[0], l.Outside[0]
	dir := t.TempDir()
	nfcapd, err := out.Start("nfcapd", "-b", out.Addr.String(), "-p", "4739", "-w", dir, "-t", "3600")
	if err != nil {
		t.Fatal(err)
	}
	defer nfcapd.Stop(syscall.SIGTERM, 10*time.Second)
	if err := nfcapd.WaitFor("Startup nfcapd", 10*time.Second); err != nil {
		t.Fatal(err)
	}
	messages := collect(t, out.Namespace, at(out.Addr, 514))
	ipfix := collect(t, out.Namespace, at(out.Addr, 4740))
	g := run(t, l, "--cores", "0-1", "--nat-timeouts-udp", "1s", "--log-level", "session", "--log-syslog", "udp://"+at(out.Addr, 514),
		"--log-ipfix", fmt.Sprintf("udp://%s, udp://%s", at(out.Addr, 4739), at(out.Addr, 4740)))
	start := time.Now().Add(-time.Second)

	server := netip.AddrPortFrom(out.Addr, 7)
	echo, err := lab.ServeUDPEcho(out.Namespace, server.String())
	if err != nil {
		t.Fatal(err)
	}
	defer echo.Close()
	if f, err := lab.UDPFlows(limited(t, 20*time.Second), in.Namespace, server, lab.FlowOptions{Flows: flows, PerFlow: 2, Size: 100}); err != nil || f.Answered != 2*flows {
		t.Fatalf("%d of %d answered, %v", f.Answered, 2*flows, err)
	}
	seen := echo.Seen() // by alias endpoint
	eventually(t, 30*time.Second, func() error {
		if n := count(messages.lines(t), "mapping-delete"); n < flows {
			return fmt.Errorf("%d of %d mappings ended by the log", n, flows)
		}
		return nil
	})
	if err := g.Stop(syscall.SIGTERM, 10*time.Second); err != nil {
		t.Error(err)
	}

	lines := messages.lines(t)
	if lines[0].id != "start" || lines[0].args["level"] != "session" || lines[len(lines)-1].id != "stop" {
		t.Errorf("the log begins with %v and ends with %v", lines[0], lines[len(lines)-1])
	}
	created, deleted := map[string]string{}, 0 // local by alias
	for _, m := range lines {
		if m.at.Before(start) || m.at.After(time.Now()) {
			t.Errorf("%v says %v", m.id, m.at)
		}
		switch m.id {
		case "session-create":
			if m.args["proto"] != "udp" || m.args["remote"] != server.String() || m.args["opened"] != "out" {
				t.Errorf("%v", m)
			}
			if alias := netip.MustParseAddrPort(m.args["alias"]); seen[alias] == 0 {
				t.Errorf("the server never saw %v", alias)
			}
			created[m.args["alias"]] = m.args["local"]
		case "session-delete":
			// 100 bytes of payload make 128 of IP.
			if created[m.args["alias"]] != m.args["local"] || m.args["packets_out"] != "2" || m.args["packets_in"] != "2" || m.args["bytes_out"] != "256" || m.args["bytes_in"] != "256" {
				t.Errorf("%v", m)
			}
			deleted++
		}
	}
	if len(created) != flows || deleted != flows || count(lines, "mapping-create") != flows || count(lines, "session-create") != flows {
		t.Errorf("%d sessions and %d mappings made, %d ended, of %d", len(created), count(lines, "mapping-create"), deleted, flows)
	}

	whoHad(t, l, messages.datagrams(), lines)

	// nfcapd's word against syslog's.
	if err := nfcapd.Stop(syscall.SIGTERM, 10*time.Second); err != nil {
		t.Fatal(err)
	}
	var records []nfRecord
	text, err := exec.Command("nfdump", "-R", dir, "-o", "json").Output()
	if err == nil {
		err = json.Unmarshal(text, &records)
	}
	if err != nil {
		t.Fatalf("nfdump: %v: %s", err, text)
	}
	events := map[string]int{}
	for _, r := range records {
		events[r.Event]++
		alias := r.XlateIP + ":" + r.XlatePort
		if local := fmt.Sprintf("%s:%d", r.SrcAddr, r.SrcPort); r.Proto != 17 || created[alias] != local {
			t.Errorf("nfdump says %+v", r)
		}
		if strings.Contains(r.Event, "session") && (r.DstAddr != out.Addr.String() || r.DstPort != 7) {
			t.Errorf("nfdump says %+v", r)
		}
	}
	want := map[string]int{"NAT44 session create": flows, "NAT44 session delete": flows, "NAT44 BIB create": flows, "NAT44 BIB delete": flows}
	if fmt.Sprint(events) != fmt.Sprint(want) {
		t.Errorf("nfdump has %v", events)
	}
	readByTshark(t, ipfix.datagrams(), want)
}

// whoHad asks the log, as a file with a message a line, who had an alias port in the middle of its session.
func whoHad(t *testing.T, l *lab.Lab, messages [][]byte, lines []line) {
	t.Helper()
	file := filepath.Join(t.TempDir(), "log")
	if err := os.WriteFile(file, append(bytes.Join(messages, []byte("\n")), '\n'), 0o600); err != nil {
		t.Fatal(err)
	}
	var made, ended line
	for _, m := range lines {
		switch {
		case m.id == "session-create" && made.id == "":
			made = m
		case m.id == "session-delete" && m.args["alias"] == made.args["alias"]:
			ended = m
		}
	}
	middle := made.at.Add(ended.at.Sub(made.at) / 2).UTC().Format(time.RFC3339Nano)
	text, err := l.Gateway.Run(limited(t, 20*time.Second), pollux(t), "who-had", made.args["alias"]+"/udp", "--at", middle, "--log", file)
	if err != nil || !strings.Contains(text, made.args["local"]) {
		t.Errorf("who-had %s at %s: %v: %s; it was %s", made.args["alias"], middle, err, text, made.args["local"])
	}
}

// readByTshark has tshark, where it is installed, decode messages: what it finds malformed fails the test.
func readByTshark(t *testing.T, messages [][]byte, want map[string]int) {
	if _, err := exec.LookPath("tshark"); err != nil {
		t.Log("tshark is not installed: nfdump alone has read the messages")
		return
	}
	file := filepath.Join(t.TempDir(), "ipfix.pcap")
	f, err := os.Create(file)
	if err != nil {
		t.Fatal(err)
	}
	w := pcapgo.NewWriter(f)
	if err := w.WriteFileHeader(65535, wire.LinkTypeEthernet); err != nil {
		t.Fatal(err)
	}
	for _, m := range messages {
		b := gopacket.NewSerializeBuffer()
		ip := &wire.IPv4{Version: 4, TTL: 64, Protocol: wire.IPProtocolUDP, SrcIP: net.IPv4(192, 0, 2, 1), DstIP: net.IPv4(192, 0, 2, 2)}
		udp := &wire.UDP{SrcPort: 4739, DstPort: 4739}
		udp.SetNetworkLayerForChecksum(ip)
		eth := &wire.Ethernet{SrcMAC: make([]byte, 6), DstMAC: make([]byte, 6), EthernetType: wire.EthernetTypeIPv4}
		if err := gopacket.SerializeLayers(b, gopacket.SerializeOptions{FixLengths: true, ComputeChecksums: true}, eth, ip, udp, gopacket.Payload(m)); err != nil {
			t.Fatal(err)
		}
		info := gopacket.CaptureInfo{Timestamp: time.Now(), CaptureLength: len(b.Bytes()), Length: len(b.Bytes())}
		if err := w.WritePacket(info, b.Bytes()); err != nil {
			t.Fatal(err)
		}
	}
	f.Close()
	out, err := exec.Command("tshark", "-r", file, "-d", "udp.port==4739,cflow", "-V").Output()
	if err != nil {
		t.Fatalf("tshark: %v", err)
	}
	if text := string(out); strings.Contains(text, "Malformed") || strings.Contains(text, "Expert Info") {
		t.Errorf("tshark finds fault: %s", text[:min(len(text), 4000)])
	}
	for event, n := range want {
		if got := strings.Count(string(out), "Nat Event: "+event); got != n {
			t.Errorf("tshark finds %d of %d %s", got, n, event)
		}
	}
}

// With blocks a subscriber is one record when the block is taken and one when it goes back, whatever the flows.
func TestBlocksAreLogged(t *testing.T) {
	l := newLab(t, lab.Options{InsideHosts: 2})
	out := l.Outside[0]
	messages := collect(t, out.Namespace, at(out.Addr, 514))
	ipfix := collect(t, out.Namespace, at(out.Addr, 4739))
	run(t, l, "--nat-timeouts-udp", "1s", "--nat-blocks-size", "64", "--nat-blocks-idle-release", "1s", "--nat-blocks-max-per-host", "1",
		"--log-syslog", "udp://"+at(out.Addr, 514), "--log-ipfix", "udp://"+at(out.Addr, 4739))
	server := netip.AddrPortFrom(out.Addr, 7)
	echo, err := lab.ServeUDPEcho(out.Namespace, server.String())
	if err != nil {
		t.Fatal(err)
	}
	defer echo.Close()
	for _, h := range l.Inside {
		if f, err := lab.UDPFlows(limited(t, 20*time.Second), h.Namespace, server, lab.FlowOptions{Flows: 30, PerFlow: 1, Size: 100}); err != nil || f.Answered != 30 {
			t.Fatalf("%d of 30 answered, %v", f.Answered, err)
		}
	}
	seen := echo.Seen()
	eventually(t, 30*time.Second, func() error {
		if n := count(messages.lines(t), "block-release"); n < 2 {
			return fmt.Errorf("%d of 2 blocks given up by the log", n)
		}
		return nil
	})
	lines := messages.lines(t)
	held := map[string]string{}
	for _, m := range lines {
		if m.id == "block-alloc" {
			held[m.args["host"]] = m.args["ports"]
		} else if m.id == "block-release" && held[m.args["host"]] != m.args["ports"] {
			t.Errorf("%v was given up, %v taken", m, held)
		}
	}
	if len(lines) != 5 || len(held) != 2 { // start, two taken, two given up
		t.Errorf("%d messages: %v", len(lines), lines)
	}
	for alias := range seen {
		within := 0
		for _, ports := range held {
			var low, high uint16
			fmt.Sscanf(ports, "%d-%d", &low, &high)
			if low <= alias.Port() && alias.Port() <= high && high-low == 63 {
				within++
			}
		}
		if within != 1 {
			t.Errorf("port %d lies in %d of the blocks %v", alias.Port(), within, held)
		}
	}
	// More flows than the block has ports: refused, and that is told.
	f, err := lab.UDPFlows(limited(t, 20*time.Second), l.Inside[0].Namespace, server, lab.FlowOptions{Flows: 70, PerFlow: 1, Size: 100, Timeout: 500 * time.Millisecond})
	if err != nil || f.Answered > 64 {
		t.Errorf("%d answered, %v", f.Answered, err)
	}
	eventually(t, 10*time.Second, func() error {
		for _, m := range messages.lines(t) {
			if m.id == "refused" && m.args["reason"] == "host-limit" && strings.HasPrefix(m.args["local"], l.Inside[0].Addr.String()) {
				return nil
			}
		}
		return fmt.Errorf("no refusal is told")
	})
	readByTshark(t, ipfix.datagrams(), map[string]int{"Port block allocation": 3, "Port block de-allocation": 2})
}

// Collectors that are not there, or read nothing, cost no packet: the numbered stream arrives whole, while the log loses
// records and counts them.
func TestLogNeverHoldsUpPackets(t *testing.T) {
	l := newLab(t, lab.Options{})
	in, out := l.Inside[0], l.Outside[0]
	silent, err := out.Listen("tcp", at(out.Addr, 601)) // accepts by the kernel, reads nothing
	if err != nil {
		t.Fatal(err)
	}
	defer silent.Close()
	g := run(t, l, "--limits-links", "4000", "--nat-timeouts-udp", "100ms", "--nat-mapping-udp", "endpoint-dependent", "--log-level", "session",
		"--log-syslog", fmt.Sprintf("tcp://%s, tcp://%s, unix:///nowhere/log", at(out.Addr, 601), at(out.Addr, 602)), "--log-ipfix", "udp://"+at(out.Addr, 4739))
	stream, err := lab.StartStream(in.Namespace, lab.StreamOptions{Dst: netip.AddrPortFrom(out.Addr, 9000), Flows: 4, Rate: 2000}, out.Namespace)
	if err != nil {
		t.Fatal(err)
	}
	// A flood of new flows beside it: datagrams from one socket to ever other ports.
	flood, err := in.ListenPacket("udp", ":0")
	if err != nil {
		t.Fatal(err)
	}
	defer flood.Close()
	sent := 0
	eventually(t, time.Minute, func() error {
		for range 400 {
			sent++
			_, _ = flood.WriteTo([]byte("new"), net.UDPAddrFromAddrPort(netip.AddrPortFrom(out.Addr, uint16(10000+sent%50000))))
		}
		s := g.logStats()
		for _, c := range s.Collectors {
			if c.Lost == 0 {
				return fmt.Errorf("%s has lost nothing after %d flows: %+v", c.Collector, sent, c)
			}
		}
		return nil
	})
	if r := stream.Stop(); r.Lost != 0 || r.Doubled != 0 {
		t.Errorf("%v", r)
	}
	var text string
	if text, err = g.l.Gateway.Run(limited(t, 10*time.Second), pollux(t), "show", "log", "--control", l.Socket()); err != nil || !strings.Contains(text, "tcp://"+at(out.Addr, 602)) {
		t.Errorf("show log: %v: %s", err, text)
	}
}
