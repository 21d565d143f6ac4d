package integration

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"pollux/internal/control"
	"pollux/internal/lab"
)

// ask runs pollux as a client of the gateway.
func (g *gateway) ask(args ...string) (out string, err error) {
	cmd := exec.CommandContext(g.t.Context(), pollux(g.t), append(args, "--control", g.l.Socket())...)
	var stdout, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &stdout, &stderr
	if err = cmd.Run(); err != nil {
		err = fmt.Errorf("%v: %w: %s", args, err, stderr.String())
	}
	return stdout.String(), err
}

func (g *gateway) mustAsk(args ...string) string {
	g.t.Helper()
	out, err := g.ask(args...)
	if err != nil {
		g.t.Error(err)
	}
	return out
}

// Whatever is shown, explained and deleted beside it, a stream loses nothing that the gateway is to blame for.
func TestLookingCostsNoPacket(t *testing.T) {
	l := newLab(t, lab.Options{InsideHosts: 2, Queues: 2})
	g := run(t, l, "--cores", "0-1", "--redirect-port", fmt.Sprintf("tcp,%s=%s", at(lab.GatewayOutside, 8080), at(l.Inside[0].Addr, 80)))
	in, other, out := l.Inside[0], l.Inside[1], l.Outside[0]
	ctx := limited(t, 2*time.Minute)

	// Links to look at and to delete: of the other host.
	fill := func() {
		f, err := lab.UDPFlows(ctx, other.Namespace, netip.AddrPortFrom(out.Addr, 9000), lab.FlowOptions{Flows: 400, PerFlow: 1, Size: 64, Timeout: 10 * time.Second, At: 50})
		if err != nil || f.Answered != f.Sent {
			t.Errorf("filling: %+v %v", f, err)
		}
	}
	echo, err := lab.ServeUDPEcho(out.Namespace, ":9000")
	if err != nil {
		t.Fatal(err)
	}
	defer echo.Close()
	fill()
	stream, err := lab.StartStream(in.Namespace, lab.StreamOptions{Dst: netip.AddrPortFrom(out.Addr, 9001), Flows: 4}, out.Namespace)
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, 20*time.Second, func() error {
		if n, _ := stream.Arrived(0); n < 100 {
			return fmt.Errorf("%d arrived", n)
		}
		return nil
	})
	before := fmt.Sprint(mustDrops(g))
	for _, args := range [][]string{
		{"show", "links"}, {"show", "links", "--sort", "packets,desc", "--limit", "3"}, {"show", "hosts"}, {"show", "hosts", "--address", in.Addr.String()},
		{"show", "peers"}, {"show", "blocks"}, {"show", "pool"}, {"show", "redirects"}, {"show", "routes"}, {"show", "hops"}, {"show", "workers", "--interval", "10ms"},
		{"show", "ports"}, {"show", "drops", "--all", "--interval", "10ms"}, {"show", "config"}, {"show", "links", "--watch", "100ms", "--times", "3"},
		{"who-had", at(lab.GatewayOutside, 8080)}, {"explain", "udp " + at(in.Addr, 4000) + " -> " + at(out.Addr, 53)},
	} {
		var first any // --watch prints one after the other
		if err := json.NewDecoder(strings.NewReader(g.mustAsk(append(args, "--json")...))).Decode(&first); err != nil {
			t.Errorf("%v --json: %v", args, err)
		}
	}
	dumped := make(chan int) // the table is dumped all the time while links are deleted
	stop, done := context.WithCancel(ctx)
	go func() {
		n := 0
		for stop.Err() == nil {
			if _, err := g.Links(stop, control.Filter{}, func(*control.Link) error { n++; return nil }); err != nil && stop.Err() == nil {
				t.Error(err)
			}
		}
		dumped <- n
	}()
	for round := range 3 {
		all := len(g.links(control.Filter{Local: other.Addr.String()}))
		n, err := g.DeleteLinks(ctx, control.Filter{Local: other.Addr.String()}, false)
		if err != nil || n < 400 || n > all {
			t.Errorf("round %d: %d of %d links deleted, %v", round, n, all, err)
		}
		if left := g.links(control.Filter{Local: other.Addr.String(), Remote: out.Addr.String()}); len(left) != 0 {
			t.Errorf("round %d: %d links left", round, len(left))
		}
		fill() // ports went back: the same flows again
	}
	done()
	if n := <-dumped; n < 400 {
		t.Errorf("%d links dumped meanwhile", n)
	}
	r := stream.Stop()
	t.Log(r)
	if r.Lost != 0 || r.Doubled != 0 {
		t.Errorf("the stream: %v, drops before %v, after %v", r, before, mustDrops(g))
	}
	if n := len(g.links(control.Filter{Local: in.Addr.String(), Port: "9001"})); n != 4 {
		t.Errorf("%d links of the stream, want its 4 first ones", n)
	}
	if r := show[struct{ Redirects []control.Redirect }](g, "redirects"); len(r.Redirects) != 1 || r.Redirects[0].Hits != 0 || r.Redirects[0].Origin != "config" {
		t.Errorf("%+v", r)
	}
	if p := show[struct {
		Pool []struct {
			Alias string
			Rows  []struct {
				Proto string
				Owned []int
			}
		}
	}](g, "pool"); len(p.Pool) != 1 || p.Pool[0].Alias != lab.GatewayOutside.String() || len(p.Pool[0].Rows) != 4 || p.Pool[0].Rows[1].Owned[0]+p.Pool[0].Rows[1].Owned[1] < 404 {
		t.Errorf("%+v", p)
	}
}

func show[T any](g *gateway, what string) (out T) {
	g.t.Helper()
	if err := json.Unmarshal([]byte(g.mustAsk("show", what, "--json")), &out); err != nil {
		g.t.Errorf("show %s: %v", what, err)
	}
	return out
}

func mustDrops(g *gateway) map[string]uint64 {
	m := map[string]uint64{}
	list, err := g.Drops(context.Background())
	if err != nil {
		g.t.Error(err)
	}
	for _, d := range list {
		if d.Count > 0 {
			m[d.Name] = d.Count
		}
	}
	return m
}

// What explain says of packets to a gateway in the lab, and what then happens to them.
func TestExplainInTheLab(t *testing.T) {
	l := newLab(t, lab.Options{})
	in, out := l.Inside[0], l.Outside[0]
	g := run(t, l, "--redirect-port", fmt.Sprintf("udp,%s=%s", at(lab.GatewayOutside, 5000), at(in.Addr, 7)))
	ctx := limited(t, time.Minute)
	listener, err := lab.ServeTCP(l.Gateway, ":2222", lab.Tell("gateway"))
	if err != nil {
		t.Fatal(err)
	}
	defer listener.Close()
	eventually(t, 20*time.Second, func() error { // the kernel's listener is known
		if w, err := g.WhoHad(ctx, at(lab.GatewayOutside, 2222), "tcp"); err != nil || w.Now[0].Owner != "kernel" {
			return fmt.Errorf("%+v %v", w, err)
		}
		return nil
	})
	say := func(packet, want string) {
		t.Helper()
		x, err := g.Explain(ctx, packet, "")
		got := fmt.Sprintf("%s %s %s %s", x.Outcome, x.Reason, x.Egress, x.Dst)
		if err != nil || strings.TrimSpace(got) != want {
			t.Errorf("%s: %q, want %q: %v %v", packet, got, want, x.Stages, err)
		}
	}
	endless := func(a netip.Addr, port int) string { return at(a, uint16(port)) }
	// A first ping resolves the neighbours.
	if p, err := lab.Ping(ctx, in.Namespace, in.Addr, out.Addr, lab.PingOptions{Count: 3}); err != nil || len(p.RTT) != 3 {
		t.Fatalf("%v %v", p, err)
	}
	say("udp "+endless(in.Addr, 4000)+" -> "+endless(out.Addr, 53), "forward none eth0 "+endless(out.Addr, 53))
	say("udp "+endless(out.Addr, 4000)+" -> "+endless(lab.GatewayOutside, 5000), "forward none eth1 "+endless(in.Addr, 7))
	say("udp "+endless(out.Addr, 4000)+" -> "+endless(lab.GatewayOutside, 5001), "kernel none")
	say("tcp "+endless(out.Addr, 4000)+" -> "+endless(lab.GatewayOutside, 2222), "kernel none")
	say("icmp "+out.Addr.String()+" -> "+lab.GatewayOutside.String(), "kernel none")
	say("udp "+endless(in.Addr, 4000)+" -> "+endless(out.Addr, 53)+" ttl 1", "drop ttl-expired")
	say("udp "+endless(in.Addr, 4000)+" -> "+endless(out.Addr, 53)+" df len 1501", "drop mtu-exceeded")
	say("udp 10.77.0.1:5 -> "+endless(out.Addr, 53), "drop no-mapping") // no way leads back: taken as from outside
	if n := len(g.links(control.Filter{Proto: "udp"})); n != 0 {
		t.Errorf("asking made %d links", n)
	}
	if d := mustDrops(g); d["ttl-expired"]+d["mtu-exceeded"] != 0 {
		t.Errorf("asking counted drops: %v", d)
	}

	// And so it comes.
	echo, err := lab.ServeUDPEcho(in.Namespace, ":7")
	if err != nil {
		t.Fatal(err)
	}
	defer echo.Close()
	if f, err := lab.UDPFlows(ctx, out.Namespace, netip.AddrPortFrom(lab.GatewayOutside, 5000), lab.FlowOptions{Flows: 2, PerFlow: 2, Size: 64}); err != nil || f.Answered != 4 {
		t.Errorf("published: %+v %v", f, err)
	}
	if name, _, err := lab.Ask(ctx, out.Namespace, at(lab.GatewayOutside, 2222)); err != nil || name != "gateway" {
		t.Errorf("the gateway's own listener: %q %v", name, err)
	}
	w, err := g.WhoHad(ctx, at(lab.GatewayOutside, 5000), "udp")
	if err != nil || w.Now[0].Owner != "redirect" || len(w.Now[0].Links) != 2 || w.Now[0].Hosts[0] != at(in.Addr, 7) || w.Now[0].Redirects[0].Hits != 2 {
		t.Errorf("%+v %v", w, err)
	}
	if _, err := g.Explain(ctx, "udp 10.0.0.2:1 -> 10.0.0.3:2", "eth7"); err == nil || !strings.Contains(err.Error(), `there is no port "eth7"; allowed`) {
		t.Errorf("%v", err)
	}
	if _, err := g.ask("who-had", at(lab.GatewayOutside, 5000), "--at", "2020-01-01T00:00:00Z"); err == nil || !strings.Contains(err.Error(), "--log") {
		t.Errorf("%v", err)
	}
	log := filepath.Join(t.TempDir(), "log")
	line := fmt.Sprintf("<134>1 2020-01-01T00:00:00Z gw pollux 1 block-alloc [pollux@32473 worker=\"0\" host=\"10.0.0.9\" alias=\"%v\" ports=\"4992-5055\"]\n", lab.GatewayOutside)
	if err := os.WriteFile(log, []byte(line), 0o600); err != nil {
		t.Fatal(err)
	}
	if text := g.mustAsk("who-had", at(lab.GatewayOutside, 5000), "--at", "2020-01-01T00:01:00Z", "--log", log); !strings.Contains(text, "10.0.0.9: from 2020-01-01 00:00:00.000Z on") {
		t.Errorf("%s", text)
	}
}

// With deterministic ports the past can be computed.
func TestWhoHadByArithmetic(t *testing.T) {
	l := newLab(t, lab.Options{})
	g := run(t, l, "--nat-deterministic-inside", "10.0.0.0/24", "--nat-deterministic-ports-per-host", "200")
	in, out := l.Inside[0], l.Outside[0]
	ctx := limited(t, time.Minute)
	echo, err := lab.ServeUDPEcho(out.Namespace, ":9000")
	if err != nil {
		t.Fatal(err)
	}
	defer echo.Close()
	if f, err := lab.UDPFlows(ctx, in.Namespace, netip.AddrPortFrom(out.Addr, 9000), lab.FlowOptions{Flows: 1, PerFlow: 1, Size: 64}); err != nil || f.Answered != 1 {
		t.Fatalf("%+v %v", f, err)
	}
	for from := range echo.Seen() {
		text := g.mustAsk("who-had", from.String(), "--at", "2024-05-06T07:08:09Z")
		if !strings.HasPrefix(text, from.String()+": "+in.Addr.String()+", by nat.deterministic, if") {
			t.Errorf("%s", text)
		}
		now := g.mustAsk("who-had", from.String()+"/udp")
		if !strings.Contains(now, in.Addr.String()+":") || !strings.Contains(now, "worker 0's") {
			t.Errorf("%s", now)
		}
	}
}
