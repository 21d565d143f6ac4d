package perf

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"runtime"
	"text/tabwriter"
	"time"
	"unsafe"

	"pollux/internal/packet"
	"pollux/nat"
	"pollux/rtcache"
)

// RoutesOptions asks what the next hop attached to a flow is worth.
type RoutesOptions struct {
	Routes  int // in the table, besides the default route
	Links   int
	Packets int // in one repetition
	Repeat  int
}

// Routes is the experiment of the fifth seed: packets of established flows without translation, with translation and a look-up
// for each, and with the next hop that the flow remembers.
type Routes struct {
	Report
	Routes  int        `json:"routes"`
	Links   int        `json:"links"`
	Rows    []RouteRow `json:"rows"`
	Aliases int        `json:"alias_addresses"`
	Mapping string     `json:"mapping"`
	Memory  RouteCost  `json:"memory"`
	Churn   RouteChurn `json:"churn"`
}

// RouteCost is what routes and remembered next hops take.
type RouteCost struct {
	SlotBytes   int     `json:"bytes_per_direction"` // of a link: its next hop, ingress port and stamp
	LinkBytes   int     `json:"bytes_per_link"`      // both directions
	RouteBytes  float64 `json:"bytes_per_route"`     // growth of the heap by the table, divided by the routes
	LoadSeconds float64 `json:"load_s"`              // to put all routes into the table, without the kernel's part
}

// RouteRow is one way of finding the next hop: plain, lookup or cache.
type RouteRow struct {
	Name string `json:"name"`
	NS   Stat   `json:"ns_per_packet"`
}

// MeasureRoutes runs the scenario.
func MeasureRoutes(o RoutesOptions) (*Routes, error) {
	if err := errors.Join(between("routes", o.Routes, 1, 2_000_000), between("links", o.Links, 2, min(1<<24, 128*o.Routes))); err != nil {
		return nil, err
	}
	r := &Routes{Report: NewReport(), Routes: o.Routes, Links: o.Links, Aliases: 1, Mapping: "endpoint-dependent"}
	return r, onThread(func() error { return r.measure(o) })
}

func (r *Routes) measure(o RoutesOptions) error {
	prefixes := RandomPrefixes(o.Routes)
	list := make([]rtcache.StaticRoute, len(prefixes))
	for i, p := range prefixes {
		list[i] = rtcache.StaticRoute{Prefix: p, Port: outPort}
	}
	if err := r.Memory.measure(list); err != nil {
		return err
	}
	remotes := destinations(prefixes, o.Links)
	w, err := newWorld(worldOptions{limits: nat.Limits{Links: o.Links}, routes: list, flows: flows{remotes: remotes}})
	if err != nil {
		return err
	}
	defer w.close()
	if err := w.open(o.Links); err != nil {
		return err
	}
	w.roam(o.Links)
	bare := func() { w.bare(o.Packets) }
	view, lost := w.table.View(), 0
	plain := func() {
		w.each(o.Packets, func(b []nat.Packet) {
			parse(b)
			for i := range b {
				h := &b[i].H
				dst := h.Dst
				if b[i].Side == nat.Outside {
					dst = firstHost + dst&0xff // the alias address is nobody's route: any inside host's will do
				}
				hop, v := view.Route(nil, b[i].Ingress, h.Src, dst, 0)
				if v != rtcache.OK {
					lost++
					continue
				}
				packet.DecrementTTL(b[i].Data, h)
				hop.WriteMACs(b[i].Data)
			}
		})
	}
	r.Rows = append(r.Rows, RouteRow{"plain", netOf(o.Repeat, o.Packets, bare, plain)})
	if lost != 0 {
		return fmt.Errorf("perf: %d packets found no route", lost)
	}
	for _, row := range []struct {
		name string
		on   bool
	}{{"lookup", false}, {"cache", true}} {
		w.table.SetCache(row.on)
		before, runs := w.sent(), 0
		ns := netOf(o.Repeat, o.Packets, bare, func() { w.run(o.Packets); runs++ })
		if got := w.sent() - before; got != uint64(runs*o.Packets) {
			return fmt.Errorf("perf: %d of %d packets were forwarded", got, runs*o.Packets)
		}
		r.Rows = append(r.Rows, RouteRow{row.name, ns})
	}
	return r.measureChurn(w, o, remotes)
}

// measure loads a table that nobody uses.
func (c *RouteCost) measure(routes []rtcache.StaticRoute) error {
	c.SlotBytes = int(unsafe.Sizeof(*nat.Packet{}.Hop))
	c.LinkBytes = 2 * c.SlotBytes
	before := heap()
	begun := time.Now()
	t, err := rtcache.NewStatic(rtcache.StaticOptions{
		Ports:  []rtcache.Port{{Name: "in", Inside: true, MAC: portMAC}, {Name: "out", MAC: portMAC}},
		Routes: routes,
	})
	c.LoadSeconds = time.Since(begun).Seconds()
	c.RouteBytes = float64(heap()-before) / float64(len(routes))
	runtime.KeepAlive(t)
	return err
}

// heap is what the heap holds in bytes, garbage not counted.
func heap() int64 {
	var m runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&m)
	return int64(m.HeapAlloc)
}

// RandomPrefixes gives n different prefixes with the lengths that are common in the Internet's table; more than half are /24.
func RandomPrefixes(n int) []netip.Prefix {
	lengths := [...]int{24, 24, 24, 24, 24, 24, 24, 24, 23, 22, 22, 21, 20, 19, 18, 16}
	r := newRandom()
	seen := make(map[netip.Prefix]bool, n)
	all := make([]netip.Prefix, 0, n)
	for len(all) < n {
		length := lengths[r.below(uint32(len(lengths)))]
		if len(all) >= n/2 && n > 1<<18 {
			length = 24 // the short ones are used up
		}
		var a [4]byte
		binary.BigEndian.PutUint32(a[:], 0x0b000000+r.below(0x7f000000-0x0b000000)) // 11.0.0.0 to 126.255.255.255
		if p := netip.PrefixFrom(netip.AddrFrom4(a), length).Masked(); !seen[p] {
			seen[p] = true
			all = append(all, p)
		}
	}
	return all
}

// destinations gives n different addresses, spread over the prefixes.
func destinations(prefixes []netip.Prefix, n int) []packet.Addr {
	r := newRandom()
	seen := make(map[packet.Addr]bool, n)
	all := make([]packet.Addr, 0, n)
	for len(all) < n {
		p := prefixes[r.below(uint32(len(prefixes)))]
		a := packet.AddrFrom(p.Addr()) + packet.Addr(r.below(1<<(32-p.Bits())))
		if !seen[a] {
			seen[a] = true
			all = append(all, a)
		}
	}
	return all
}

// Print writes the report for people.
func (r *Routes) Print(w io.Writer) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(t, "%d routes, %d established UDP links, %s mapping, %d alias address\n\n", r.Routes, r.Links, r.Mapping, r.Aliases)
	fmt.Fprintln(t, "\tmedian\tmin\tmax\tns per packet\t")
	names := map[string]string{
		"plain":  "forwarding without NAT, look-up and reverse path for each packet",
		"lookup": "NAT, look-up and reverse path for each packet",
		"cache":  "NAT, next hop remembered by the flow",
	}
	for _, row := range r.Rows {
		fmt.Fprintf(t, "%s\t%.1f\t%.1f\t%.1f\t\t\n", names[row.Name], row.NS.Median, row.NS.Min, row.NS.Max)
	}
	fmt.Fprintln(t, "\nProcessor time of one core, bursts of 64, random flows in both directions, making the packets taken off. NAT is the whole")
	fmt.Fprintln(t, "worker. Without NAT: parse with header checksum, route, TTL, MAC addresses.")
	fmt.Fprintf(t, "\nA link remembers %d bytes for each direction. A route takes %.0f bytes; %d routes were in the table after %.2f s.\n",
		r.Memory.SlotBytes, r.Memory.RouteBytes, r.Routes, r.Memory.LoadSeconds)
	r.Churn.print(t)
	return t.Flush()
}
