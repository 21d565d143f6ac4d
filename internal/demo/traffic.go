package demo

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"time"

	"pollux/internal/control"
	"pollux/internal/lab"
)

// driver sends the traffic and fills the report.
type driver struct {
	lab               *lab.Lab
	report            *Report
	step              func(Check)
	public, published netip.AddrPort // the published port, and where it leads
}

// check notes one result: it held when err is nil.
func (d *driver) check(name string, err error, format string, args ...any) {
	c := Check{Name: name, Held: err == nil, Detail: fmt.Sprintf(format, args...)}
	if err != nil {
		c.Detail = strings.Join(strings.Fields(err.Error()), " ")
		d.report.Held = false
	}
	d.report.Checks = append(d.report.Checks, c)
	if d.step != nil {
		d.step(c)
	}
}

// traffic sends it all while two packet sockets watch: one where the gateway's packets arrive first, one at the outside
// host. The error is the context's, or the lab's own.
func (d *driver) traffic(ctx context.Context) error {
	router, outside := d.lab.Routers[0], d.lab.Outside[0]
	wire, err := lab.Sniff(router.Namespace, router.Device, lab.GatewayOutside)
	if err != nil {
		return err
	}
	defer wire.Stop()
	host, err := lab.Sniff(outside.Namespace, outside.Device, lab.GatewayOutside)
	if err != nil {
		return err
	}
	defer host.Stop()
	for _, send := range []func(context.Context) error{d.ping, d.traceroute, d.download, d.udp, d.publishedPort} {
		if err := send(ctx); err != nil {
			return err
		}
		if err := ctx.Err(); err != nil {
			return err
		}
	}
	seen, passed := host.Stop(), wire.Stop()
	d.report.Outside = Sources{FromAlias: seen.Expected, Foreign: seen.Foreign, Addresses: seen.Sources, Alias: lab.GatewayOutside}
	switch {
	case seen.Foreign > 0 || passed.Foreign > 0:
		who := slices.Collect(maps.Keys(seen.Sources))
		who = slices.AppendSeq(who, maps.Keys(passed.Sources))
		err = fmt.Errorf("%d packets with other sources than %s at the outside host, %d on the wire before it: %v", seen.Foreign, lab.GatewayOutside, passed.Foreign, who)
	case seen.Expected == 0:
		err = errors.New("the outside host saw no packet at all")
	}
	d.check("addresses", err, "the outside host saw %d packets, every one from %s", seen.Expected, lab.GatewayOutside)
	return nil
}

func (d *driver) ping(ctx context.Context) error {
	in, out := d.lab.Inside[0], d.lab.Outside[0]
	p, err := lab.Ping(ctx, in.Namespace, in.Addr, out.Addr, lab.PingOptions{Count: pings, Interval: 100 * time.Millisecond, Timeout: 5 * time.Second})
	if err == nil && len(p.RTT) < pings {
		err = fmt.Errorf("%d of %d pings to %s answered", len(p.RTT), pings, out.Addr)
	}
	d.check("ping", err, "%s -> %s: %d of %d answered, median %v", in.Addr, out.Addr, len(p.RTT), pings, lab.Median(p.RTT).Round(time.Microsecond))
	return nil
}

func (d *driver) traceroute(ctx context.Context) error {
	in, out := d.lab.Inside[0], d.lab.Outside[0]
	want := []string{lab.GatewayInside.String(), d.lab.Routers[0].Addr.String(), out.Addr.String()}
	hops, err := lab.Trace(ctx, in.Namespace, in.Addr, out.Addr, lab.TraceOptions{})
	var path []string
	for _, h := range hops {
		path = append(path, h.Addr.String())
	}
	if err == nil && !slices.Equal(path, want) {
		err = fmt.Errorf("traceroute went by %v instead of %v", path, want)
	}
	d.check("traceroute", err, "%s", strings.Join(path, " -> "))
	return nil
}

func (d *driver) download(ctx context.Context) error {
	in, out := d.lab.Inside[0], d.lab.Outside[0]
	web, err := lab.ServeFiles(out.Namespace, netip.AddrPortFrom(out.Addr, 80).String())
	if err != nil {
		return err
	}
	defer web.Close()
	t, err := lab.Download(ctx, in.Namespace, web.Addr.String(), downloadBytes)
	d.check("http download", err, "%d MB in %.2f s (%.0f Mbit/s), SHA-256 equal at both ends: %.16s...", t.Bytes/1e6, t.Took.Seconds(), t.Mbps(), t.Sum)
	return nil
}

func (d *driver) udp(ctx context.Context) error {
	in, out := d.lab.Inside[0], d.lab.Outside[0]
	server := netip.AddrPortFrom(out.Addr, 7)
	echo, err := lab.ServeUDPEcho(out.Namespace, server.String())
	if err != nil {
		return err
	}
	defer echo.Close()
	f, err := lab.UDPFlows(ctx, in.Namespace, server, lab.FlowOptions{Flows: udpFlows, PerFlow: udpPerFlow, Size: 200})
	if err == nil && (f.Answered != udpFlows*udpPerFlow || len(echo.Seen()) != udpFlows) {
		err = fmt.Errorf("%d of %d datagrams echoed, %d wrong; the server saw %d flows instead of %d", f.Answered, udpFlows*udpPerFlow, f.Wrong, len(echo.Seen()), udpFlows)
	}
	d.check("udp echo", err, "%d of %d answered over %d flows, median %v", f.Answered, f.Sent, udpFlows, f.Median().Round(time.Microsecond))
	return nil
}

func (d *driver) publishedPort(ctx context.Context) error {
	in, out := d.lab.Inside[0], d.lab.Outside[0]
	const name = "inside-server"
	server, err := lab.ServeTCP(in.Namespace, d.published.String(), lab.Tell(name))
	if err != nil {
		return err
	}
	defer server.Close()
	ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
	defer cancel()
	answer, seen, err := lab.Ask(ctx, out.Namespace, d.public.String())
	if err == nil && (answer != name || seen.Addr() != out.Addr) {
		err = fmt.Errorf("%s was answered by %q, which saw %s instead of %s", d.public, answer, seen, out.Addr)
	}
	d.check("published port", err, "%s from outside reaches %s, which sees the caller as %s", d.public, d.published, seen.Addr())
	return nil
}

// look asks the gateway over its control socket what it did.
func (d *driver) look(ctx context.Context, c *control.Client) error {
	r := d.report
	var err error
	if r.Workers, err = c.Workers(ctx); err != nil {
		return err
	}
	if r.Ports, err = c.Ports(ctx); err != nil {
		return err
	}
	if r.Drops, err = c.Drops(ctx); err != nil {
		return err
	}
	r.Links.ByProto = map[string]int{}
	_, err = c.Links(ctx, control.Filter{}, func(l *control.Link) error {
		r.Links.Count++
		// One of each protocol at least, so that the excerpt shows them all.
		if r.Links.ByProto[l.Proto]++; len(r.Links.First) < linksShown && r.Links.ByProto[l.Proto] <= linksShown/2 {
			r.Links.First = append(r.Links.First, *l)
		}
		return nil
	})
	if err != nil {
		return err
	}
	var translated uint64
	var leaked int64
	for _, w := range r.Workers {
		translated += w.Translated
		leaked += w.Leaked
	}
	err = nil
	switch {
	case leaked != 0:
		err = fmt.Errorf("%d frames leaked", leaked)
	case translated < r.Outside.FromAlias:
		err = fmt.Errorf("the workers translated %d packets, but the outside saw %d", translated, r.Outside.FromAlias)
	case r.Links.Count < udpFlows:
		err = fmt.Errorf("the table holds %d links after %d flows", r.Links.Count, udpFlows)
	}
	d.check("accounting", err, "%d packets translated over AF_XDP, %d links, no frame leaked", translated, r.Links.Count)
	return nil
}

// readyLine picks the line that begins with "ready" out of a gateway's output.
func readyLine(output string) string {
	for line := range strings.Lines(output) {
		if strings.HasPrefix(line, "ready") {
			return strings.TrimSpace(line)
		}
	}
	return ""
}
