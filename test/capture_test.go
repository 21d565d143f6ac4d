package integration

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/gopacket/gopacket"
	wire "github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"

	"pollux/internal/lab"
)

// captured is a packet of a capture file.
type captured struct {
	device    string
	direction pcapgo.NgEpbFlag
	id        uint64
	comment   string
	at        time.Time
	packet    gopacket.Packet
}

// readCapture reads a file back to its end by a reader that is not ours.
func readCapture(t *testing.T, file string) (list []captured) {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	r, err := pcapgo.NewNgReader(bytes.NewReader(b), pcapgo.DefaultNgReaderOptions)
	if err != nil {
		t.Fatal(err)
	}
	for {
		data, info, o, err := r.ReadPacketDataWithOptions()
		if errors.Is(err, io.EOF) {
			return list
		}
		if err != nil {
			t.Fatal(err)
		}
		i, err := r.Interface(info.InterfaceIndex)
		if err != nil {
			t.Fatal(err)
		}
		p := captured{device: i.Name, at: info.Timestamp, packet: gopacket.NewPacket(data, wire.LayerTypeEthernet, gopacket.Default)}
		if i.TimestampResolution != 9 || o.Flags == nil {
			t.Fatalf("interface %+v, flags %v", i, o.Flags)
		}
		p.direction = o.Flags.Direction
		if o.PacketID != nil {
			p.id = *o.PacketID
		}
		p.comment = strings.Join(o.Comments, "|")
		list = append(list, p)
	}
}

func (p *captured) udp() (src, dst string) {
	ip, _ := p.packet.NetworkLayer().(*wire.IPv4)
	u, _ := p.packet.TransportLayer().(*wire.UDP)
	if ip == nil || u == nil {
		return "", ""
	}
	return fmt.Sprintf("%v:%d", ip.SrcIP, u.SrcPort), fmt.Sprintf("%v:%d", ip.DstIP, u.DstPort)
}

// device returns the name of the i-th port.
func (g *gateway) device(i int) string {
	g.t.Helper()
	ports, err := g.Ports(g.t.Context())
	if err != nil || len(ports) <= i {
		g.t.Fatalf("show ports: %v", err)
	}
	return ports[i].Name
}

// A capture under load: every packet of the flows is there as received and as sent, under one id; a refused one with its
// reason; Ctrl-C ends it with a file that is whole for tshark and capinfos; and the stream beside it loses nothing.
func TestCapture(t *testing.T) {
	l := newLab(t, lab.Options{Queues: 2})
	in, out := l.Inside[0], l.Outside[0]
	g := run(t, l, "--cores", "0-1")
	stream, err := lab.StartStream(in.Namespace, lab.StreamOptions{Dst: netip.AddrPortFrom(out.Addr, 9000), Flows: 4, Rate: 2000}, out.Namespace)
	if err != nil {
		t.Fatal(err)
	}
	server := netip.AddrPortFrom(out.Addr, 7)
	echo, err := lab.ServeUDPEcho(out.Namespace, server.String())
	if err != nil {
		t.Fatal(err)
	}
	defer echo.Close()
	file := filepath.Join(t.TempDir(), "all.pcapng")
	begin := time.Now()
	p, err := l.Gateway.Start(pollux(t), "capture", "--control", l.Socket(), "-w", file, "--port", "7")
	if err != nil {
		t.Fatal(err)
	}
	if err := p.WaitFor("capturing", 20*time.Second); err != nil {
		t.Fatal(err)
	}
	if text, err := l.Gateway.Run(limited(t, 10*time.Second), pollux(t), "capture", "--control", l.Socket(), "-w", os.DevNull); err == nil || !strings.Contains(text, "another capture is running") {
		t.Errorf("a second capture: %v: %s", err, text)
	}
	if f, err := lab.UDPFlows(limited(t, 20*time.Second), in.Namespace, server, lab.FlowOptions{Flows: 20, PerFlow: 5, Size: 200}); err != nil || f.Answered != 100 {
		t.Fatalf("%d of 100 answered, %v", f.Answered, err)
	}
	drops := g.drops("ttl-expired")
	if _, err := in.Run(limited(t, 10*time.Second), "traceroute", "-n", "-q", "1", "-m", "1", "-p", "7", out.Addr.String()); err != nil {
		t.Fatal(err)
	}
	if g.drops("ttl-expired") == drops {
		t.Error("traceroute's first packet did not end here")
	}
	if err := p.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	if status, err := p.Wait(20 * time.Second); err != nil || status != 0 {
		t.Fatalf("status %d, %v: %s", status, err, p.Output())
	}
	if r := stream.Stop(); r.Lost != 0 {
		t.Errorf("beside the capture: %v", r)
	}
	if !strings.Contains(p.Output(), " 0 were too fast for the buffer") {
		t.Errorf("%s", p.Output())
	}

	inside, outside := g.device(0), g.device(1)
	counts, byID := map[string]int{}, map[uint64][]*captured{}
	list := readCapture(t, file)
	for i := range list {
		c := &list[i]
		if c.at.Before(begin.Add(-time.Second)) || c.at.After(time.Now()) {
			t.Errorf("a packet of %v", c.at)
		}
		if c.comment != "" {
			if !strings.HasPrefix(c.comment, "dropped: ttl-expired: ") || !strings.HasSuffix(c.comment, "answered by an ICMP error") || c.device != inside {
				t.Errorf("%s at %s", c.comment, c.device)
			}
			counts["dropped"]++
			continue
		}
		counts[fmt.Sprint(c.device, c.direction)]++
		byID[c.id] = append(byID[c.id], c)
	}
	want := map[string]int{
		inside + fmt.Sprint(pcapgo.NgEpbFlagDirectionInbound): 101, outside + fmt.Sprint(pcapgo.NgEpbFlagDirectionOutbound): 100,
		outside + fmt.Sprint(pcapgo.NgEpbFlagDirectionInbound): 100, inside + fmt.Sprint(pcapgo.NgEpbFlagDirectionOutbound): 100, "dropped": 1,
	}
	if fmt.Sprint(counts) != fmt.Sprint(want) {
		t.Errorf("captured %v, want %v", counts, want)
	}
	pairs := 0
	for id, pair := range byID {
		if id == 0 || len(pair) != 2 {
			continue
		}
		pairs++
		s0, d0 := pair[0].udp()
		s1, d1 := pair[1].udp()
		switch {
		case pair[0].device == inside && (!strings.HasPrefix(s0, in.Addr.String()) || !strings.HasPrefix(s1, lab.GatewayOutside.String()) || d0 != d1),
			pair[0].device == outside && (!strings.HasPrefix(d0, lab.GatewayOutside.String()) || !strings.HasPrefix(d1, in.Addr.String()) || s0 != s1):
			t.Errorf("%s -> %s became %s -> %s", s0, d0, s1, d1)
		}
	}
	if pairs != 200 {
		t.Errorf("%d of 200 packets have one id as received and as sent", pairs)
	}
	checkByTshark(t, file, len(list))
}

// checkByTshark has tshark and capinfos read the file, where they are installed.
func checkByTshark(t *testing.T, file string, packets int) {
	if _, err := exec.LookPath("tshark"); err != nil {
		t.Log("tshark is not installed: gopacket alone has read the file")
		return
	}
	text, err := exec.Command("tshark", "-r", file, "-T", "fields", "-e", "frame.interface_name", "-e", "frame.comment", "-e", "_ws.malformed").Output()
	if err != nil {
		t.Fatalf("tshark: %v", err)
	}
	if n := strings.Count(string(text), "\n"); n != packets || strings.Count(string(text), "dropped: ttl-expired: TTL ran out here") != 1 || strings.Contains(string(text), "Malformed") {
		t.Errorf("tshark reads %d of %d packets: %s", n, packets, text[:min(len(text), 2000)])
	}
	if text, err := exec.Command("capinfos", "-c", "-M", file).Output(); err != nil || !strings.Contains(string(text), fmt.Sprint(packets)) {
		t.Errorf("capinfos: %v: %s", err, text)
	}
	if out, err := exec.Command("capinfos", file).Output(); err != nil || !strings.Contains(string(out), "Time resolution = 0x09") {
		t.Errorf("capinfos: %v: %s", err, out)
	}
}

// Bounds of number and time, standard output, reasons, and requests that make no sense.
func TestCaptureBounds(t *testing.T) {
	l := newLab(t, lab.Options{})
	in, out := l.Inside[0], l.Outside[0]
	g := run(t, l)
	stream, err := lab.StartStream(in.Namespace, lab.StreamOptions{Dst: netip.AddrPortFrom(out.Addr, 9000), Rate: 1000}, out.Namespace)
	if err != nil {
		t.Fatal(err)
	}
	file := filepath.Join(t.TempDir(), "some.pcapng")
	do := func(args ...string) (string, error) {
		return l.Gateway.Run(limited(t, 30*time.Second), pollux(t), append([]string{"capture", "--control", l.Socket(), "-w", file}, args...)...)
	}
	if text, err := do("--count", "50", "--stage", "nat", "--snaplen", "64", "--device", g.device(1)); err != nil || !strings.Contains(text, "50 packets captured") {
		t.Errorf("%v: %s", err, text)
	}
	for _, c := range readCapture(t, file) {
		if len(c.packet.Data()) != 64 || c.direction != pcapgo.NgEpbFlagDirectionOutbound || c.device != g.device(1) {
			t.Errorf("%+v", c)
		}
	}
	if text, err := do("--time", "1s", "--reason", "no-port"); err != nil || !strings.Contains(text, "\n0 packets captured") {
		t.Errorf("%v: %s", err, text)
	}
	if list := readCapture(t, file); len(list) != 0 {
		t.Errorf("%d packets dropped for no-port", len(list))
	}
	for _, bad := range []struct{ flag, value, why string }{{"--stage", "tx", "allowed: rx"}, {"--time", "1ms", "whole seconds"}, {"--address", "here", "an IPv4 address"}, {"--device", "eth9", "allowed: "}} {
		if text, err := do(bad.flag, bad.value); err == nil || !strings.Contains(text, bad.why) {
			t.Errorf("%s %s: %v: %s", bad.flag, bad.value, err, text)
		}
	}
	// A pipe whose reader has seen enough, and one that ends with the capture.
	text, err := l.Gateway.Run(limited(t, 30*time.Second), "sh", "-c", fmt.Sprintf("%s capture --control %s -w - 2>/dev/null | head -c 2000 | wc -c", pollux(t), l.Socket()))
	if err != nil || strings.TrimSpace(text) != "2000" {
		t.Errorf("%v: %s", err, text)
	}
	// A client that asks and reads nothing: what it does not take is lost to it alone, and its end makes room for the next.
	deaf, err := net.Dial("unix", l.Socket())
	if err != nil {
		t.Fatal(err)
	}
	defer deaf.Close()
	eventually(t, 10*time.Second, func() error { // the reader that went away is found out by the next packet written
		if text, err := do("--count", "1"); err != nil {
			return fmt.Errorf("%w: %s", err, text)
		}
		return nil
	})
	if _, err := io.WriteString(deaf, "GET /v1/capture?buffer=1 HTTP/1.1\r\nHost: pollux\r\n\r\n"); err != nil {
		t.Fatal(err)
	}
	eventually(t, 10*time.Second, func() error {
		if _, err := do("--count", "1"); err == nil {
			return errors.New("a second capture was let in")
		}
		return nil
	})
	first := stream.Sent()
	eventually(t, 20*time.Second, func() error { // more than socket buffers and ring hold together
		if n := stream.ArrivedSince(0, first); n < 2500 {
			return fmt.Errorf("%d arrived", n)
		}
		return nil
	})
	deaf.Close()
	eventually(t, 20*time.Second, func() error {
		_, err := do("--count", "1")
		return err
	})
	if r := stream.Stop(); r.Lost != 0 {
		t.Errorf("beside the captures: %v", r)
	}
	// The gateway ends while a capture runs: the file is whole as far as it goes, and the program says what happened.
	eventually(t, 10*time.Second, func() error {
		p, err := l.Gateway.Start(pollux(t), "capture", "--control", l.Socket(), "-w", file)
		if err != nil {
			return err
		}
		if err := p.WaitFor("capturing", 5*time.Second); err != nil {
			_, _ = p.Wait(5 * time.Second)
			return err
		}
		if err := g.Stop(syscall.SIGTERM, 10*time.Second); err != nil {
			t.Error(err)
		}
		if status, err := p.Wait(10 * time.Second); err != nil || status == 0 {
			t.Errorf("status %d, %v: %s", status, err, p.Output())
		}
		return nil
	})
	readCapture(t, file)
}
