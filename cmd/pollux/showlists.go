package main

import (
	"context"
	"fmt"
	"io"
	"maps"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"pollux/internal/control"
	"pollux/pmd"
	"pollux/rtcache"
)

// listFlags are parameters of the API that flags give as they are.
func listFlags(names ...string) (flags []cli.Flag) {
	usage := map[string]string{
		"address": "only what concerns this `ADDRESS` or network",
		"worker":  "only of worker `N`",
		"limit":   "at most `N` entries",
		"within":  "only routes within this `PREFIX`",
		"to":      "the route that packets to this `ADDRESS` take",
	}
	for _, name := range names {
		flags = append(flags, &cli.StringFlag{Name: name, Usage: usage[name]})
	}
	return flags
}

func passFlags(names ...string) func(c *cli.Context) (url.Values, error) {
	return func(c *cli.Context) (url.Values, error) {
		q := url.Values{}
		for _, name := range names {
			if c.IsSet(name) {
				q.Set(name, c.String(name))
			}
		}
		return q, nil
	}
}

func showHosts() *cli.Command {
	names := []string{"address", "worker", "limit"}
	return listing{
		name: "hosts", usage: "inside hosts: links that they opened, ports, blocks, refusals", path: "/v1/hosts",
		help: "A host is known while it has links that it opened. Ports are counted for all hosts when\n" +
			"limits.ports_per_host is set, else for one that --address names. A host whose links belong to several\n" +
			"workers comes once for each.",
		flags: listFlags(names...), query: passFlags(names...),
		print: func(c *cli.Context, client *control.Client, q url.Values, w io.Writer) error {
			return rows(c, client, "/v1/hosts", q, w, "HOST\tALIAS\tLINKS\tPORTS\tBLOCKS\tREFUSED\tWORKER", func(h *control.Host) string {
				return fmt.Sprintf("%s\t%s\t%d\t%s\t%s\t%d\t%d", h.Address, dash(h.Alias), h.Links, some(h.Ports), some(h.Blocks), h.Refused, h.Worker)
			})
		},
	}.command()
}

func dash(s string) string {
	if s == "" {
		return "-"
	}
	return s
}

func showPeers() *cli.Command {
	names := []string{"address", "limit"}
	return listing{
		name: "peers", usage: "remote endpoints with a cache of the alias ports in use toward them", path: "/v1/peers",
		help:  "A cache is made at the first conflict toward a peer, and gone with the last port known to be in use.",
		flags: listFlags(names...), query: passFlags(names...),
		print: func(c *cli.Context, client *control.Client, q url.Values, w io.Writer) error {
			return rows(c, client, "/v1/peers", q, w, "PROTO\tALIAS\tPEER\tPORTS IN USE\tWORKER", func(p *control.Peer) string {
				return fmt.Sprintf("%s\t%s\t%s\t%d\t%d", p.Proto, p.Alias, p.Peer, p.Ports, p.Worker)
			})
		},
	}.command()
}

func showBlocks() *cli.Command {
	names := []string{"address", "limit"}
	return listing{
		name: "blocks", usage: "port blocks that hosts have, or had until a while ago", path: "/v1/blocks",
		help:  "used: links have ports of it; idle: none has, and the host loses it after idle_release; resting: given up, and for\nthe same host only until its rest is over.",
		flags: listFlags(names...), query: passFlags(names...),
		print: func(c *cli.Context, client *control.Client, q url.Values, w io.Writer) error {
			return rows(c, client, "/v1/blocks", q, w, "ALIAS\tPORTS\tHOST\tSTATE\tLINKS\tSINCE\tWORKER", func(b *control.Block) string {
				return fmt.Sprintf("%s\t%d-%d\t%s\t%s\t%d\t%ds\t%d", b.Alias, b.Low, b.High, b.Host, b.State, b.Links, b.Since, b.Worker)
			})
		},
	}.command()
}

func showPool() *cli.Command {
	return listing{
		name: "pool", usage: "alias addresses: whose their ports are", path: "/v1/pool",
		help: "Counts ports of the port range by protocol: nobody's (free), the gateway's own sockets' (kernel),\n" +
			"redirects', and each worker's: owned, which it uses or keeps in a block, and in parentheses used by links.",
		print: func(c *cli.Context, client *control.Client, _ url.Values, w io.Writer) error {
			var out struct{ Pool []pmd.PoolInfo }
			if err := client.Get(c.Context, "/v1/pool", nil, &out); err != nil {
				return err
			}
			fmt.Fprintln(w, "ALIAS\tPROTO\tPORTS\tFREE\tKERNEL\tREDIRECT\tWORKERS: OWNED (USED)\tPEER CACHES\tBLOCKS HELD\tRESTING")
			for _, p := range out.Pool {
				for _, r := range p.Rows {
					var owned []string
					caches := 0
					for k := range r.Owned {
						owned = append(owned, fmt.Sprintf("%d (%d)", r.Owned[k], r.Used[k]))
						caches += r.Caches[k]
					}
					fmt.Fprintf(w, "%s\t%s\t%d\t%d\t%d\t%d\t%s\t%d\t%d\t%d\n", p.Addr, r.Name, r.Ports, r.Free, r.Kernel, r.Publish,
						strings.Join(owned, ", "), caches, p.Held, p.Resting)
				}
			}
			return nil
		},
	}.command()
}

func showRedirects() *cli.Command {
	return listing{
		name: "redirects", usage: "published ports, addresses and protocols, and how many links each has made", path: "/v1/redirects",
		print: func(c *cli.Context, client *control.Client, q url.Values, w io.Writer) error {
			return rows(c, client, "/v1/redirects", q, w, "ID\tKIND\tPROTO\tPUBLIC\tLOCAL\tREMOTE\tPICK\tORIGIN\tHITS", func(r *control.Redirect) string {
				return fmt.Sprintf("%d\t%s\t%s\t%s\t%s\t%s\t%s\t%s\t%d", r.ID, r.Kind, dash(r.Proto), r.Public, strings.Join(r.Local, ", "), dash(r.Remote),
					dash(r.Pick), r.Origin, r.Hits)
			})
		},
	}.command()
}

func showRoutes() *cli.Command {
	names := []string{"within", "to", "limit"}
	return listing{
		name: "routes", usage: "the kernel's routes as the gateway follows them", path: "/v1/routes",
		help:  "Those of table main first, then table local. elsewhere: leaves by no port of the gateway.",
		flags: listFlags(names...), query: passFlags(names...),
		print: func(c *cli.Context, client *control.Client, q url.Values, w io.Writer) error {
			return rows(c, client, "/v1/routes", q, w, "PREFIX\tTYPE\tMETRIC\tPATHS", func(r *rtcache.RouteInfo) string {
				var paths []string
				for _, p := range r.Paths {
					s := p.Name
					if p.Gateway.IsValid() {
						s = fmt.Sprintf("via %v %s", p.Gateway, p.Name)
					}
					if p.HopInfo != nil {
						s += fmt.Sprintf(" (%s %s)", p.HopInfo.State, p.HopInfo.MAC)
					}
					if len(r.Paths) > 1 {
						s += fmt.Sprintf(" weight %d", p.Weight)
					}
					paths = append(paths, s)
				}
				return fmt.Sprintf("%v\t%s\t%d\t%s", r.Prefix, r.Type, r.Metric, strings.Join(paths, ", "))
			})
		},
	}.command()
}

func showHops() *cli.Command {
	return listing{
		name: "hops", usage: "neighbours that packets are sent to", path: "/v1/hops", flags: listFlags("limit"), query: passFlags("limit"),
		print: func(c *cli.Context, client *control.Client, q url.Values, w io.Writer) error {
			return rows(c, client, "/v1/hops", q, w, "ADDRESS\tPORT\tSTATE\tMAC\tMTU\tROUTES\tUSED\tSINCE", func(h *rtcache.HopInfo) string {
				return fmt.Sprintf("%v\t%s\t%s\t%s\t%d\t%d\t%t\t%v", h.Address, h.Name, h.State, dash(h.MAC), h.MTU, h.Routes, h.Used, h.Since.Round(time.Second))
			})
		},
	}.command()
}

func showPorts() *cli.Command {
	return listing{name: "ports", usage: "each port's state, mode and counters", path: "/v1/ports",
		print: func(c *cli.Context, client *control.Client, _ url.Values, w io.Writer) error {
			ports, err := client.Ports(c.Context)
			if err != nil {
				return err
			}
			fmt.Fprintln(w, "PORT\tROLE\tSTATE\tMODE\tXDP\tMAC\tMTU\tADDRESS\tQUEUES\tRX\tTX\tTO KERNEL\tRX DROPPED\tRX FULL\tFILL EMPTY\tTX INVALID")
			for _, p := range ports {
				state := "down"
				if p.Up {
					state = "up"
				}
				queues := strings.Trim(strings.ReplaceAll(fmt.Sprint(p.Queues), " ", ","), "[]")
				fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%d\t%s\t%s\t%d\t%d\t%d\t%d\t%d\t%d\t%d\n", p.Name, p.Role, state, p.Mode, p.XDP, p.MAC, p.MTU,
					p.Address, queues, p.RX, p.TX, p.Passed, p.RXDropped, p.RXFull, p.FillEmpty, p.TXInvalid)
			}
			for _, p := range ports {
				if p.RSS != "" {
					fmt.Fprintf(w, "\nRSS of %s: %s\n", p.Name, p.RSS)
				}
			}
			return nil
		},
	}.command()
}

func showDrops() *cli.Command {
	return listing{
		name: "drops", usage: "why packets were not sent on, by reason: count, rate, the last one", path: "/v1/drops",
		help: "The rate is taken over --interval. The last packet of a reason is as it was when it ended; what the XDP\n" +
			"program drops (no-queue) leaves none.",
		flags: []cli.Flag{
			&cli.BoolFlag{Name: "all", Usage: "reasons that never occurred too"},
			&cli.DurationFlag{Name: "interval", Value: 500 * time.Millisecond, Usage: "`TIME` between the two samples of a rate, 0: no rate"},
		},
		query: func(c *cli.Context) (url.Values, error) {
			q := url.Values{}
			if d := c.Duration("interval"); d != 0 {
				q.Set("interval", d.String())
			}
			return q, nil
		},
		print: func(c *cli.Context, client *control.Client, q url.Values, w io.Writer) error {
			var out struct{ Drops []control.Drop }
			if err := client.Get(c.Context, "/v1/drops", q, &out); err != nil {
				return err
			}
			fmt.Fprintln(w, "REASON\tCOUNT\tPER SECOND\tWHAT IT MEANS\tLAST ONE")
			for _, d := range out.Drops {
				if d.Count == 0 && !c.Bool("all") {
					continue
				}
				rate, last := "-", "-"
				if d.Rate != nil {
					rate = strconv.FormatFloat(*d.Rate, 'f', 1, 64)
				}
				if d.Last != nil {
					last = fmt.Sprintf("%s, %v ago", d.Last.Tuple, (time.Duration(d.Last.Age) * time.Millisecond).Round(100*time.Millisecond))
				}
				fmt.Fprintf(w, "%s\t%d\t%s\t%s\t%s\n", d.Name, d.Count, rate, d.Help, last)
			}
			return nil
		},
	}.command()
}

func showWorkers() *cli.Command {
	return listing{
		name: "workers", usage: "each worker's counters, how busy it is, its rings and packet buffers", path: "/v1/workers",
		help: "BUSY is the share of the time in rounds that found work, over --interval. POLL GAPS says how often a round\n" +
			"began so many microseconds after the one before.",
		flags: []cli.Flag{&cli.DurationFlag{Name: "interval", Value: 500 * time.Millisecond, Usage: "`TIME` between the two samples of a share, 0: since the start"}},
		query: func(c *cli.Context) (url.Values, error) {
			if d := c.Duration("interval"); d < 0 || d > 10*time.Second {
				return nil, fmt.Errorf("--interval: is %v; allowed: a duration up to 10s", d)
			}
			return nil, nil
		},
		print: func(c *cli.Context, client *control.Client, _ url.Values, w io.Writer) error {
			return printWorkers(c.Context, client, c.Duration("interval"), w)
		},
	}.command()
}

func printWorkers(ctx context.Context, client *control.Client, interval time.Duration, w io.Writer) error {
	var before []pmd.WorkerStats
	if interval > 0 {
		var err error
		if before, err = client.Workers(ctx); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(interval):
		}
	}
	workers, err := client.Workers(ctx)
	if err != nil {
		return err
	}
	fmt.Fprintln(w, "WORKER\tCORE\tQUEUE\tBUSY\tRECEIVED\tTRANSLATED\tFORWARDED\tTRANSMITTED\tDROPPED\tBURSTS\tLINKS\tSLEEPS\tHANDED OVER\tTAKEN\tWHY\tLEAKED")
	for i, s := range workers {
		var was pmd.WorkerStats
		if i < len(before) {
			was = before[i]
		}
		share := 0.0 // of what came in by this worker's queues
		if s.Received > 0 {
			share = 100 * float64(s.HandedOut) / float64(s.Received)
		}
		fmt.Fprintf(w, "%d\t%d\t%d\t%s\t%d\t%d\t%d\t%d\t%d\t%d\t%d\t%d\t%d (%.0f%%)\t%d\t%s\t%d\n", s.Worker, s.Core, s.Queue, busy(&was, &s), s.Received, s.Translated,
			s.Forwarded, s.Sent, s.Dropped, s.Bursts, s.Links, s.Sleeps, s.HandedOut, share, s.HandedIn, dash(pairs(s.HandedWhy)), s.Leaked)
	}
	fmt.Fprintln(w, "\nWORKER\tRING\tFILL\tRX\tTX\tSIZE")
	for _, s := range workers {
		for _, r := range s.Rings {
			fmt.Fprintf(w, "%d\t%s\t%d\t%d\t%d\t%d\n", s.Worker, r.Port, r.Fill, r.RX, r.TX, r.Size)
		}
		for _, h := range s.Handoff {
			fmt.Fprintf(w, "%d\tto worker %d\t-\t-\t%d\t%d\n", s.Worker, h.To, h.Used, h.Size)
		}
	}
	fmt.Fprintln(w, "\nWORKER\tNEAR PORTS\tFRAMES\tPOLL GAPS")
	for _, s := range workers {
		fmt.Fprintf(w, "%d\t%s\t%s\t%s\n", s.Worker, nearPorts(&s), pairs(s.Frames), dash(gaps(s.PollGapsUS)))
	}
	return nil
}

// busy is the share of its time that a worker spent in rounds that found work.
func busy(was, is *pmd.WorkerStats) string {
	run := float64(is.RunNS) - float64(was.RunNS)
	if run <= 0 {
		return "-"
	}
	return fmt.Sprintf("%.1f%%", 100*(float64(is.BusyNS)-float64(was.BusyNS))/run)
}

// nearPorts says how many of the alias ports that were chosen by the card's RSS settings bring answers in by the worker's own
// queue.
func nearPorts(s *pmd.WorkerStats) string {
	all := s.PortsNear + s.PortsFar
	if all == 0 {
		return "-"
	}
	return fmt.Sprintf("%d of %d (%.0f%%)", s.PortsNear, all, 100*float64(s.PortsNear)/float64(all))
}

func pairs(m map[string]uint64) string {
	var list []string
	for _, name := range slices.Sorted(maps.Keys(m)) {
		list = append(list, fmt.Sprintf("%s %d", name, m[name]))
	}
	return strings.Join(list, ", ")
}

// gaps writes the histogram of times between polls, as "8-15us 3".
func gaps(counts []uint64) string {
	var list []string
	for i, n := range counts {
		if n > 0 {
			list = append(list, fmt.Sprintf("%d-%dus %d", 1<<i, 2<<i-1, n))
		}
	}
	return strings.Join(list, ", ")
}
