package lab

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"runtime"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/vishvananda/netlink"

	"pollux/internal/control"
	netlab "pollux/internal/lab"
	"pollux/perf"
	"pollux/perf/pktgen"
	"pollux/rtcache"
)

// RoutesOptions says how to measure what a next hop remembered by the flow is worth, over real devices.
type RoutesOptions struct {
	Options                 // rounds, slots, placement, Flows, Progress
	ChurnTime time.Duration // of the paced traffic with route changes beside it, and of that without
	Routes    int           // in the kernel's table, besides those of the devices and a default route
}

// RoutesRow is one way of forwarding.
type RoutesRow struct {
	Name string `json:"name"`
	What string `json:"what"`
	// NS is processor time of everything of the gateway for a packet that arrived, in nanoseconds.
	NS      perf.Stat  `json:"ns_per_packet"`
	PPS     perf.Stat  `json:"pps"`
	Busy    perf.Stat  `json:"gateway_busy"`    // part of its core
	ToPlain perf.Stat  `json:"ratio_to_plain"`  // PPS to that of the same side's plain row, round by round
	ToOther *perf.Stat `json:"ratio_to_kernel"` // of pollux: PPS to that of the kernel forwarding alone, or with NAT and look-ups
}

// RoutesResult is the experiment of the cover letter: three rows of pollux, and three of the kernel.
type RoutesResult struct {
	perf.Report
	Setup  []string          `json:"setup"`
	Absent []string          `json:"absent,omitempty"`
	Doubts []string          `json:"doubts,omitempty"`
	Routes int               `json:"routes"`
	Flows  int               `json:"flows"`
	Load   perf.RouteLoading `json:"loading"`
	Rows   []RoutesRow       `json:"rows"`

	Cache rtcache.Counters `json:"rtcache"` // of the pollux with NAT, over all rounds: hits, and misses by cause
	Links uint64           `json:"links"`   // that it had at the end
	Churn ChurnBeside      `json:"churn"`
}

// routesRow is a row while it is measured.
type routesRow struct {
	name, what string
	peer       *peer
	prepare    func() error
	pps        []float64
	ns, busy   []float64
}

const (
	pollux = "pollux "
	kernel = "kernel "
)

// The kernel's rows as nft has them. A flowtable keeps the route with the flow and forwards at ingress: of what is in Linux today the
// nearest thing to the letter's route cache, which never got in.
const (
	masquerade = "table ip nat { chain post { type nat hook postrouting priority srcnat; oifname " + netlab.OutsideDevice + " masquerade; }; }"
	flowtable  = "table ip fast { flowtable ft { hook ingress priority 0; devices = { " + netlab.InsideDevice + ", " + netlab.OutsideDevice +
		" }; }; chain fw { type filter hook forward priority 0; ip protocol { tcp, udp } flow add @ft; }; }"
)

// Routes measures. It confines the process as Run does.
func Routes(ctx context.Context, o RoutesOptions) (*RoutesResult, error) {
	setDefault(&o.Flows, 16384)
	setDefault(&o.Links, 4*o.Flows)
	setDefault(&o.ChurnTime, 3*time.Second)
	if err := o.Defaults(); err != nil {
		return nil, err
	}
	if o.Routes < 1 || o.Routes > 2_000_000 {
		return nil, &perf.OptionError{Name: "routes", Is: fmt.Sprint(o.Routes), Allowed: "1 to 2000000"}
	}
	if why := missing("nft"); why != "" {
		return nil, errors.New(why)
	}
	if err := confineSelf(o.GeneratorCore); err != nil {
		return nil, err
	}
	runtime.GOMAXPROCS(max(runtime.GOMAXPROCS(0), 4))
	r := &RoutesResult{Report: perf.NewReport(), Routes: o.Routes, Flows: o.Flows}
	r.Setup = append(o.setup()[:2], fmt.Sprintf("%d rounds, rows in turn, a different one first each time; %v of warm-up and %v of measurement each", o.Rounds, o.WarmUp, o.Slot),
		fmt.Sprintf("UDP, 64 bytes, generator in the kernel, as fast as it can; %d flows, each to a destination of its own, in turn, spread over %d routes of the Internet's usual lengths by one router, all of them in the kernel's table of every gateway", o.Flows, o.Routes),
		throttle())
	b := routesBench{o: &o, r: r, prefixes: perf.RandomPrefixes(o.Routes)}
	defer b.close()
	if err := b.setUp(); err != nil {
		return nil, err
	}
	for i := range o.Rounds {
		for k := range b.rows {
			row := b.rows[(i+k)%len(b.rows)]
			if err := errors.Join(ctx.Err(), row.peer.alive()); err != nil {
				return nil, err
			}
			if err := b.measure(row); err != nil {
				return nil, fmt.Errorf("%s, round %d: %w", row.name, i+1, err)
			}
			n := len(row.pps) - 1
			fmt.Fprintf(o.Progress, "round %d of %d: %-16s %7.1f ns a packet, %.3f Mpps, %3.0f %% busy\n", i+1, o.Rounds, row.name, row.ns[n], row.pps[n]/1e6, 100*row.busy[n])
		}
	}
	b.summarise()
	nat := b.rows[2] // pollux cache
	if err := nat.prepare(); err != nil {
		return nil, err
	}
	var err error
	if r.Churn, err = b.churn(ctx, nat.peer); err != nil {
		return nil, fmt.Errorf("route changes: %w", err)
	}
	w, err := control.NewClient(nat.peer.net.Socket()).Workers(ctx)
	if err != nil || len(w) != 1 {
		return nil, fmt.Errorf("ask pollux what its cache did: %d workers, %w", len(w), err)
	}
	r.Cache, r.Links = w[0].Routing, w[0].Links
	return r, nil
}

// routesBench is the experiment under way.
type routesBench struct {
	o        *RoutesOptions
	r        *RoutesResult
	prefixes []netip.Prefix
	peers    []*peer
	rows     []*routesRow
}

func (b *routesBench) close() {
	for _, p := range b.peers {
		_ = p.close()
	}
}

func (b *routesBench) setUp() error {
	plain, err := b.peer("pollux", "--nat-exempt", "0.0.0.0/0", "--routing-rtcache=false", "--routing-reverse-path", "off")
	if err != nil {
		return err
	}
	nat, err := b.peer("pollux", "--routing-reverse-path", "strict")
	if err != nil {
		return err
	}
	linux, err := b.peer("kernel")
	if err != nil {
		return err
	}
	cache := func(on bool) func() error {
		return func() error { return control.NewClient(nat.net.Socket()).SetRTCache(context.Background(), on) }
	}
	rules := func(check string, nft ...string) func() error {
		return func() error { return linux.rules(check, nft...) }
	}
	b.rows = []*routesRow{
		{name: pollux + "plain", what: "no NAT (nat.exempt), one look-up a packet", peer: plain, prepare: func() error { return nil }},
		{name: pollux + "lookup", what: "NAT, look-up and strict reverse-path check for each packet (rtcache off)", peer: nat, prepare: cache(false)},
		{name: pollux + "cache", what: "NAT, next hop remembered by the flow, strict reverse-path check", peer: nat, prepare: cache(true)},
		{name: kernel + "plain", what: "ip_forward alone: no conntrack, rp_filter 0", peer: linux, prepare: rules("0")},
		{name: kernel + "lookup", what: "nft masquerade, rp_filter 1: look-up and reverse-path check for each packet", peer: linux, prepare: rules("1", masquerade)},
	}
	fast := &routesRow{name: kernel + "cache", what: "nft masquerade and a flowtable, which keeps the route with the flow (the letter's route cache is in no kernel)",
		peer: linux, prepare: rules("1", masquerade, flowtable)}
	if err := fast.prepare(); err != nil {
		b.r.Absent = append(b.r.Absent, "kernel cache: this kernel has no nftables flowtable (CONFIG_NF_FLOW_TABLE_INET), and the letter's route cache is in none")
		fmt.Fprintln(b.o.Progress, b.r.Absent[0])
	} else {
		b.rows = append(b.rows, fast)
	}
	return nil
}

// peer builds a gateway with all routes in its kernel.
func (b *routesBench) peer(name string, args ...string) (*peer, error) {
	fmt.Fprintf(b.o.Progress, "setting up %s %s with %d routes\n", name, strings.Join(args, " "), b.o.Routes)
	n, err := netlab.New(netlab.Options{})
	if err != nil {
		return nil, err
	}
	p := &peer{name: name, net: n, priority: b.o.GeneratorPriority, args: args}
	b.peers = append(b.peers, p)
	router := n.Outside[0].Addr
	begun := time.Now()
	if err := errors.Join(fill(n.Gateway, netlab.OutsideDevice, b.prefixes, router), addRoute(n.Gateway, netip.MustParsePrefix("0.0.0.0/0"), router)); err != nil {
		return nil, err
	}
	filled := time.Since(begun)
	begun = time.Now()
	if err := p.setUp(&b.o.Options); err != nil {
		return nil, fmt.Errorf("%s: %w", name, err)
	}
	if name == "pollux" {
		b.r.Load.KernelSeconds, b.r.Load.StartSeconds = filled.Seconds(), time.Since(begun).Seconds()
	}
	return p, nil
}

// rules gives a kernel gateway another ruleset. Conntrack hangs in the packets' way only while one needs it.
func (p *peer) rules(check string, nft ...string) error {
	ctx, cancel := context.WithTimeout(context.Background(), commandTime)
	defer cancel()
	gw := p.net.Gateway
	for _, dev := range []string{"all", netlab.InsideDevice, netlab.OutsideDevice} {
		if err := gw.Sysctl("net.ipv4.conf."+dev+".rp_filter", check); err != nil {
			return err
		}
	}
	for _, command := range append([]string{"flush ruleset"}, nft...) {
		if _, err := gw.Run(ctx, "nft", command); err != nil {
			return err
		}
	}
	if len(nft) == 0 {
		return nil
	}
	return p.net.Gateway.Netlink().ConntrackTableFlush(netlink.ConntrackTable)
}

// measure gives a row its turn.
func (b *routesBench) measure(row *routesRow) error {
	if err := row.prepare(); err != nil {
		return err
	}
	f := spreadFlows(b.o.Flows)
	if _, err := row.peer.run(f, pktgen.Sizes{64}, 0, b.o.WarmUp, 0); err != nil {
		return err
	}
	m, err := row.peer.run(f, pktgen.Sizes{64}, 0, b.o.Slot, 0)
	if err == nil && m.arrived == 0 {
		err = errors.New("nothing arrived at the outside host")
	}
	if err != nil {
		return err
	}
	row.pps, row.ns, row.busy = append(row.pps, m.pps), append(row.ns, 1e3*m.cpu), append(row.busy, m.busy)
	return nil
}

// spreadFlows are n flows of one host to n destinations, even over 11.0.0.0 to 126.255.255.255, where the routes are.
func spreadFlows(n int) pktgen.Flows {
	const first, last = 11 << 24, 127 << 24
	return pktgen.Flows{
		Src: pktgen.Range{First: netip.MustParseAddr("10.64.0.1"), Count: 1}, SrcPorts: pktgen.PortRange{First: firstPort, Count: 1},
		Dst: pktgen.Range{First: netip.MustParseAddr("11.0.0.1"), Count: uint32(n)}, DstStep: uint32((last - first - 1) / n),
		DstPorts: pktgen.PortRange{First: 9, Count: 1}, Count: uint64(n),
	}
}

func (b *routesBench) summarise() {
	r := b.r
	find := func(name string) *routesRow {
		for _, row := range b.rows {
			if row.name == name {
				return row
			}
		}
		return nil
	}
	for _, row := range b.rows {
		side, other := row.name[:len(pollux)], kernel+"lookup"
		if row.name == pollux+"plain" {
			other = kernel + "plain"
		}
		s := RoutesRow{Name: row.name, What: row.what, NS: perf.NewStat(row.ns), PPS: perf.NewStat(row.pps), Busy: perf.NewStat(row.busy)}
		s.ToPlain = perf.NewStat(ratios(row.pps, find(side+"plain").pps))
		if side == pollux {
			q := perf.NewStat(ratios(row.pps, find(other).pps))
			s.ToOther = &q
		}
		if s.Busy.Median < busyMin {
			r.Doubts = append(r.Doubts, fmt.Sprintf("%s: the gateway's threads used %.0f %% of their core: take its packet rate and ratios as lower bounds", row.name, 100*s.Busy.Median))
		}
		r.Rows = append(r.Rows, s)
	}
}

// ratios are those of two rows, round by round.
func ratios(a, b []float64) []float64 {
	all := make([]float64, len(a))
	for i := range a {
		all[i] = a[i] / b[i]
	}
	return all
}

// Print writes the result for people.
func (r *RoutesResult) Print(w io.Writer) error {
	var b strings.Builder
	(&Result{Report: r.Report, Setup: r.Setup, Absent: r.Absent, Doubts: r.Doubts}).head(&b, "")
	fmt.Fprintf(&b, "%d routes: the kernel took them in %.1f s, pollux was ready %.1f s after its start\n\n", r.Routes, r.Load.KernelSeconds, r.Load.StartSeconds)
	t := tabwriter.NewWriter(&b, 0, 8, 2, ' ', 0)
	fmt.Fprintln(t, "\tns a packet\tmin\tmax\tMpps\tmin\tmax\tto plain\tto kernel\t")
	for _, row := range r.Rows {
		other := ""
		if row.ToOther != nil {
			other = fmt.Sprintf("%.2f", row.ToOther.Median)
		}
		fmt.Fprintf(t, "%s\t%.0f\t%.0f\t%.0f\t%.3f\t%.3f\t%.3f\t%.2f\t%s\t%s\n", row.Name, row.NS.Median, row.NS.Min, row.NS.Max,
			row.PPS.Median/1e6, row.PPS.Min/1e6, row.PPS.Max/1e6, row.ToPlain.Median, other, row.What)
	}
	t.Flush()
	c := &r.Churn
	fmt.Fprintf(&b, "\nUp to %.0f packets/s pollux loses no more than %g %%. At half of that, %.0f/s: %d of %d lost; beside %d route changes, %.0f a second: %d of %d lost,\n"+
		"%d out of order, %d packets looked their route up again because one with the same stamp changed.\n", c.LossFree, c.Allowed, c.Rate, c.Quiet.Lost, c.Quiet.Sent,
		c.Changes, c.PerSecond, c.Churn.Lost, c.Churn.Sent, c.Churn.Reordered, c.Looked)
	_, err := io.WriteString(w, b.String())
	return err
}
