package main

import (
	"errors"
	"fmt"

	"github.com/urfave/cli/v2"

	"pollux/perf"
	"pollux/perf/lab"
)

// routesCommand is one scenario in memory and, with --lab, over devices beside the kernel.
func routesCommand() *cli.Command {
	memory := []cli.Flag{linksFlag(1 << 16), packetsFlag(1 << 20), repeatFlag()}
	overDevices := []cli.Flag{
		&cli.IntFlag{Name: "rounds", Value: 5, Usage: "turns through all rows"},
		&cli.Float64Flag{Name: "slot", Value: 0.7, Usage: "seconds of each measurement"},
		&cli.Float64Flag{Name: "warm-up", Value: 0.2, Usage: "seconds before it"},
		&cli.IntFlag{Name: "flows", Value: 16384, Usage: "flows, each to a destination of its own"},
	}
	for _, f := range labFlags() {
		switch f.Names()[0] {
		case "json": // memoryScenario's
		case "links":
		default:
			overDevices = append(overDevices, f)
		}
	}
	flags := append([]cli.Flag{
		&cli.IntFlag{Name: "routes", Value: 1000, Usage: "`N` routes"},
		&cli.BoolFlag{Name: "lab", Usage: "over AF_XDP in network namespaces, beside the kernel in the same rounds (root, two cores)"},
	}, append(memory, overDevices...)...)
	c := memoryScenario("rtcache", "what the next hop that a flow remembers is worth",
		"Established UDP flows to destinations all over a table of routes: forwarding without NAT, NAT with a look-up and a\n"+
			"reverse-path check for every packet, NAT with the remembered next hop. In memory also what a link and a route\n"+
			"take, and what 1000 route changes a second cost flows that they do not concern. With --lab the same rows over\n"+
			"devices, and the kernel's: ip_forward; nft masquerade with rp_filter; the same with a flowtable, if it has one.\n\n"+
			"   pollux perf rtcache --routes 1000000\n"+
			"   pollux perf rtcache --lab --routes 1000000",
		func(c *cli.Context) (report, error) {
			if !c.Bool("lab") {
				return perf.MeasureRoutes(perf.RoutesOptions{Routes: c.Int("routes"), Links: c.Int("links"), Packets: c.Int("packets"), Repeat: c.Int("repeat")})
			}
			o, err := labOptions(c)
			if err != nil {
				return nil, err
			}
			o.Links = 0 // as many as the flows need
			o.Rounds, o.WarmUp, o.Flows = c.Int("rounds"), seconds(c.Float64("warm-up")), c.Int("flows")
			ctx, stop := untilSignal()
			defer stop()
			return lab.Routes(ctx, lab.RoutesOptions{Options: o, Routes: c.Int("routes")})
		}, flags...)
	c.Before = func(c *cli.Context) error {
		for _, group := range []struct {
			flags []cli.Flag
			lab   bool
			why   string
		}{{memory, false, "is for the measurement in memory; with --lab use --flows, --rounds, --slot"}, {overDevices, true, "is for --lab"}} {
			for _, f := range group.flags {
				if name := f.Names()[0]; c.IsSet(name) && group.lab != c.Bool("lab") {
					return fmt.Errorf("--%s: %s", name, group.why)
				}
			}
		}
		if c.Bool("lab") && (c.Int("flows") < 1 || c.Int("flows") > 1<<20) {
			return errors.New("--flows: must be from 1 to 1048576")
		}
		return nil
	}
	return c
}
