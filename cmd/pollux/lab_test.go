package main

import (
	"bytes"
	"context"
	"encoding/json"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"pollux/internal/control"
	"pollux/internal/lab"
)

func newLab(t *testing.T) *lab.Lab {
	t.Helper()
	lab.Require(t)
	l, err := lab.New(lab.Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.Close)
	return l
}

// ping sends a few echo requests from the inside host to the outside host and returns how many were answered.
func ping(t *testing.T, l *lab.Lab) int {
	t.Helper()
	in, out := l.Inside[0], l.Outside[0]
	p, err := lab.Ping(context.Background(), in.Namespace, in.Addr, out.Addr, lab.PingOptions{Count: 5, Interval: 20 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	return len(p.RTT)
}

// run: tells the service manager, shows what it did, follows its file and flags, and ends by SIGTERM with status 0 and
// nothing left behind.
func TestRun(t *testing.T) {
	l := newLab(t)
	manager := filepath.Join(l.Dir, "notify")
	ln, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: manager, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	t.Setenv("NOTIFY_SOCKET", manager)
	conf := file(t, "p.yaml", `ports: [{name: eth1, role: inside}, {name: eth0, role: outside}]
nat: {alias: [port]}
workers: {idle: adaptive}
limits: {links: 5000}
control: {mode: "0640"}
log: {format: json}
`)
	p, err := l.StartGateway(binary, "-c", conf, "--limits-fragments", "99")
	if err != nil {
		t.Fatal(err)
	}
	if got := read(t, ln); got != "READY=1" {
		t.Errorf("the service manager was told %q", got)
	}
	if info, err := os.Stat(l.Socket()); err != nil || info.Mode().Perm() != 0o640 {
		t.Errorf("control socket: %v %v", info, err)
	}
	if n := ping(t, l); n != 5 {
		t.Errorf("%d of 5 pings answered\n%s", n, p.Output())
	}
	var links struct{ Links []control.Link }
	r := pollux(t, "show", "links", "--json", "--control", l.Socket(), "--proto", "icmp")
	if err := json.Unmarshal([]byte(r.out), &links); err != nil || len(links.Links) != 1 {
		t.Fatalf("%v in %+v", err, r)
	}
	if got := links.Links[0]; !strings.HasPrefix(got.Local, l.Inside[0].Addr.String()+":") || !strings.HasPrefix(got.Alias, lab.GatewayOutside.String()+":") ||
		!strings.HasPrefix(got.Remote, l.Outside[0].Addr.String()+":") || got.State != "active" || got.ExpiresIn == 0 || got.ExpiresIn > 60 {
		t.Errorf("%+v", got)
	}
	if r := pollux(t, "show", "workers", "--control", l.Socket()); r.status != 0 || !strings.Contains(r.out, "free") {
		t.Errorf("%+v", r)
	}
	if r := pollux(t, "show", "ports", "--control", l.Socket()); !strings.Contains(r.out, "eth1") || !strings.Contains(r.out, "native") {
		t.Errorf("%+v", r)
	}
	if r := pollux(t, "show", "config", "--control", l.Socket()); !strings.Contains(r.out, "links: 5000") || !strings.Contains(r.out, "fragments: 99") {
		t.Errorf("%+v", r)
	}
	if r := pollux(t, "rtcache", "off", "--control", l.Socket()); r.out != "off\n" {
		t.Errorf("%+v", r)
	}
	if n := ping(t, l); n != 5 {
		t.Errorf("%d of 5 pings answered without the cache", n)
	}
	if err := p.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if status, err := p.Wait(10 * time.Second); err != nil || status != 0 {
		t.Errorf("status %d, %v\n%s", status, err, p.Output())
	}
	if got := read(t, ln); got != "STOPPING=1" {
		t.Errorf("the service manager was told %q", got)
	}
	if _, err := os.Stat(l.Socket()); err == nil {
		t.Error("the control socket is still there")
	}
	for line := range strings.Lines(p.Output()) {
		var m struct{ Level, Msg string }
		if err := json.Unmarshal([]byte(line), &m); !strings.HasPrefix(line, "ready") && (err != nil || m.Level == "" || m.Msg == "") {
			t.Errorf("no JSON message: %s", line)
		}
	}
	if !strings.Contains(p.Output(), `"msg":"stopping","signal":"terminated"`) {
		t.Errorf("the end is not told in JSON:\n%s", p.Output())
	}
	if strings.Count(p.Output(), "ready") != 1 {
		t.Errorf("not one ready line:\n%s", p.Output())
	}
	noProgram(t, l)
}

func read(t *testing.T, ln *net.UnixConn) string {
	t.Helper()
	buf := make([]byte, 64)
	if err := ln.SetReadDeadline(time.Now().Add(10 * time.Second)); err != nil {
		t.Fatal(err)
	}
	n, err := ln.Read(buf)
	if err != nil {
		t.Fatal(err)
	}
	return string(buf[:n])
}

// noProgram fails the test when XDP is still attached in the gateway.
func noProgram(t *testing.T, l *lab.Lab) {
	t.Helper()
	for _, name := range []string{lab.InsideDevice, lab.OutsideDevice} {
		dev, err := l.Gateway.Netlink().LinkByName(name)
		if err != nil {
			t.Fatal(err)
		}
		if x := dev.Attrs().Xdp; x != nil && x.Attached {
			t.Errorf("%s: an XDP program is still attached", name)
		}
	}
}

// The bare forwarder takes packets across without translating them.
func TestL2fwd(t *testing.T) {
	l := newLab(t)
	in, out := l.Inside[0], l.Outside[0]
	// What leaves untranslated is answered only if the outside host knows the way back.
	if err := out.Do(func() error {
		dev, err := netlink.LinkByName(out.Device)
		if err != nil {
			return err
		}
		_, dst, err := net.ParseCIDR("10.0.0.0/24")
		if err != nil {
			return err
		}
		return netlink.RouteAdd(&netlink.Route{LinkIndex: dev.Attrs().Index, Dst: dst, Gw: net.IP(lab.GatewayOutside.AsSlice())})
	}); err != nil {
		t.Fatal(err)
	}
	if err := l.Gateway.Sysctl("net.ipv4.ip_forward", "0"); err != nil {
		t.Fatal(err)
	}
	p, err := l.Gateway.Start(binary, "perf", "l2fwd", "--inside", lab.InsideDevice, "--outside", lab.OutsideDevice, "--idle", "adaptive", "--json",
		"--inside-next-hop", mac(t, in), "--outside-next-hop", mac(t, out))
	if err != nil {
		t.Fatal(err)
	}
	if err := p.WaitFor("ready", 15*time.Second); err != nil {
		t.Fatal(err)
	}
	if n := ping(t, l); n != 5 {
		t.Errorf("%d of 5 pings answered\n%s", n, p.Output())
	}
	if err := p.Signal(syscall.SIGINT); err != nil {
		t.Fatal(err)
	}
	if status, err := p.Wait(10 * time.Second); err != nil || status != 0 {
		t.Fatalf("status %d, %v\n%s", status, err, p.Output())
	}
	var r l2fwdReport
	text := p.Output()
	var raw json.RawMessage
	if err := json.NewDecoder(bytes.NewBufferString(text[strings.Index(text, "{"):])).Decode(&raw); err != nil {
		t.Fatalf("%v in %s", err, text)
	}
	contract(t, raw, stats("pps"))
	if err := json.Unmarshal(raw, &r); err != nil {
		t.Fatal(err)
	}
	if r.Inside < 5 || r.Outside < 5 || r.Sent < 10 || r.Dropped != 0 {
		t.Errorf("%+v", r)
	}
	noProgram(t, l)
}

func mac(t *testing.T, h *lab.Host) string {
	t.Helper()
	dev, err := h.Netlink().LinkByName(h.Device)
	if err != nil {
		t.Fatal(err)
	}
	return dev.Attrs().HardwareAddr.String()
}
