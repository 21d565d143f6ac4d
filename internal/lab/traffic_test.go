package lab

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"
)

// masquerade lets the gateway's kernel do the NAT, so that lab and traffic programs are proven without pollux.
func masquerade(t *testing.T, l *Lab) {
	t.Helper()
	if err := l.Gateway.Sysctl("net.ipv4.ip_forward", "1"); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	rules := fmt.Sprintf(`table ip nat {
 chain post { type nat hook postrouting priority 100; oifname %q masquerade; }
 chain pre { type nat hook prerouting priority -100; iifname %q tcp dport 8080 dnat to %s:80; }
}`, OutsideDevice, OutsideDevice, l.Inside[0].Addr)
	if out, err := l.Gateway.Run(ctx, "nft", rules); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
}

func TestTrafficThroughKernelNAT(t *testing.T) {
	l := newLab(t, Options{InsideHosts: 2, OutsideHosts: 2, Routers: 2, Queues: 2})
	masquerade(t, l)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	in, out := l.Inside[0], l.Outside[0]
	sniffer, err := Sniff(l.Routers[0].Namespace, l.Routers[0].Device, GatewayOutside)
	if err != nil {
		t.Fatal(err)
	}
	defer sniffer.Stop()

	for _, dst := range []netip.Addr{out.Addr, out.Alt, l.Outside[1].Addr} {
		p, err := Ping(ctx, l.Inside[1].Namespace, l.Inside[1].Addr, dst, PingOptions{Count: 2, Size: 4000})
		if err != nil || len(p.RTT) != 2 {
			t.Errorf("ping -s 4000 %s: %v answers, %v", dst, len(p.RTT), err)
		}
	}
	for _, icmp := range []bool{false, true} {
		hops, err := Trace(ctx, in.Namespace, in.Addr, out.Addr, TraceOptions{ICMP: icmp})
		var path []string
		for _, h := range hops {
			path = append(path, h.Addr.String())
		}
		want := "10.0.0.1 203.0.113.254 192.0.2.6 198.51.100.100"
		if err != nil || strings.Join(path, " ") != want || !hops[len(hops)-1].Reached {
			t.Errorf("traceroute (ICMP %v): %v, %v, want %s", icmp, hops, err, want)
		}
	}

	web, err := ServeFiles(out.Namespace, out.Addr.String()+":80")
	if err != nil {
		t.Fatal(err)
	}
	defer web.Close()
	if _, err := Download(ctx, in.Namespace, web.Addr.String(), 5_000_000); err != nil {
		t.Error(err)
	}
	if _, err := Upload(ctx, in.Namespace, web.Addr.String(), 5_000_000); err != nil {
		t.Error(err)
	}

	echo, err := ServeUDPEcho(out.Namespace, out.Addr.String()+":7")
	if err != nil {
		t.Fatal(err)
	}
	defer echo.Close()
	f, err := UDPFlows(ctx, in.Namespace, netip.AddrPortFrom(out.Addr, 7), FlowOptions{Flows: 200, PerFlow: 3, Size: 600})
	if err != nil || f.Answered != 600 || f.Wrong != 0 || f.Median() <= 0 {
		t.Errorf("UDP flows: %d of %d answered, %d wrong, median %v, %v", f.Answered, f.Sent, f.Wrong, f.Median(), err)
	}
	if n := len(echo.Seen()); n != 200 {
		t.Errorf("the echo server saw %d sources, want 200", n)
	}
	for from := range echo.Seen() {
		if from.Addr() != GatewayOutside {
			t.Errorf("the echo server saw %s", from)
		}
	}

	tell, err := ServeTCP(in.Namespace, in.Addr.String()+":80", Tell("published"))
	if err != nil {
		t.Fatal(err)
	}
	defer tell.Close()
	name, seen, err := Ask(ctx, out.Namespace, GatewayOutside.String()+":8080")
	if err != nil || name != "published" || seen.Addr() != out.Addr {
		t.Errorf("published port: %q sees %s, %v", name, seen, err)
	}

	shell, err := ServeTCP(out.Namespace, out.Addr.String()+":22", Echo)
	if err != nil {
		t.Fatal(err)
	}
	defer shell.Close()
	s, err := OpenSession(ctx, in.Namespace, shell.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	if _, err := s.Type("ls\n", time.Second); err != nil {
		t.Error(err)
	}
	if got := sniffer.Stop(); got.Foreign != 0 || got.Expected < 800 {
		t.Errorf("the outside saw %+v", got)
	}
}

// Without a NAT the sniffer must tell; otherwise its silence elsewhere proves nothing.
func TestSnifferSeesWhatLeaks(t *testing.T) {
	l := newLab(t, Options{})
	if err := l.Gateway.Sysctl("net.ipv4.ip_forward", "1"); err != nil {
		t.Fatal(err)
	}
	in, out := l.Inside[0], l.Outside[0]
	sniffer, err := Sniff(out.Namespace, out.Device, GatewayOutside)
	if err != nil {
		t.Fatal(err)
	}
	p, err := Ping(t.Context(), in.Namespace, in.Addr, out.Addr, PingOptions{Count: 3, Timeout: 50 * time.Millisecond})
	if err != nil || len(p.RTT) != 0 {
		t.Errorf("an untranslated ping was answered: %v, %v", p, err)
	}
	for deadline := time.Now().Add(10 * time.Second); sniffer.Seen().Foreign < 3 && time.Now().Before(deadline); {
		time.Sleep(20 * time.Millisecond) // the gateway may still be resolving its neighbour
	}
	got := sniffer.Stop()
	if got.Foreign != 3 || got.Sources[in.Addr] != 3 {
		t.Errorf("the sniffer saw %+v, want 3 packets from %s", got, in.Addr)
	}
}
