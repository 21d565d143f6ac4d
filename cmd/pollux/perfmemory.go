package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"

	"github.com/urfave/cli/v2"

	"pollux/perf"
	"pollux/perf/chart"
)

// The scenarios of perf that need neither devices nor root.

func libaliasCommand() *cli.Command {
	d := perf.LibaliasDefaults()
	return memoryScenario("libalias", "the performance test of libalias: new flows, random packets, an attack, use",
		"Each round opens batch_size random UDP flows (newNAT), lets random_size random packets in (RANDOM), repeats one of\n"+
			"them attack_size times (ATTACK) and uses the flows (useNAT). Flows pile up until max_seconds are over. One alias\n"+
			"address, endpoint-dependent mapping, redir_size port redirects. Parameters, table and totals are libalias's.",
		func(c *cli.Context) (report, error) {
			return perf.MeasureLibalias(perf.LibaliasOptions{MaxSeconds: c.Float64("max-seconds"), BatchSize: c.Int("batch-size"),
				RandomSize: c.Int("random-size"), AttackSize: c.Int("attack-size"), RedirSize: c.Int("redir-size")})
		},
		&cli.Float64Flag{Name: "max-seconds", Value: d.MaxSeconds, Usage: "end after so long"},
		&cli.IntFlag{Name: "batch-size", Value: d.BatchSize, Usage: "valid connections in each round"},
		&cli.IntFlag{Name: "random-size", Value: d.RandomSize, Usage: "random incoming packets in each round"},
		&cli.IntFlag{Name: "attack-size", Value: d.AttackSize, Usage: "repetitions of one random incoming packet in each round"},
		&cli.IntFlag{Name: "redir-size", Value: d.RedirSize, Usage: "open port forwardings"})
}

func oneGroupCommand() *cli.Command {
	return memoryScenario("onegroup", "all links on one published port: an existing packet, a new SYN",
		"A port redirect in front of one busy server: every client's link has the same public address and port. Packets are\n"+
			"timed one at a time and in bursts. With --plot or --curve fewer links are measured as well.",
		func(c *cli.Context) (report, error) {
			return perf.MeasureOneGroup(perf.OneGroupOptions{Links: c.Int("links"), Order: c.String("order"), Packets: c.Int("packets"),
				Repeat: c.Int("repeat"), Curve: c.IsSet("plot") || c.Bool("curve")})
		},
		linksFlag(100_000), packetsFlag(1<<15), repeatFlag(), plotFlag(), curveFlag(),
		&cli.StringFlag{Name: "order", Value: "scattered", Usage: "scattered or consecutive remote addresses"})
}

func establishedCommand() *cli.Command {
	return memoryScenario("established", "a packet of a link that exists, through the whole worker",
		"UDP packets of random flows in both directions, one alias address, endpoint-dependent mapping. Stage by stage, and\n"+
			"memory per link. With --plot or --curve fewer links are measured as well.",
		func(c *cli.Context) (report, error) {
			return perf.MeasureEstablished(perf.EstablishedOptions{Links: c.Int("links"), Packets: c.Int("packets"), Repeat: c.Int("repeat"),
				Curve: c.IsSet("plot") || c.Bool("curve")})
		},
		linksFlag(1<<20), packetsFlag(1<<20), repeatFlag(), plotFlag(), curveFlag())
}

func newFlowsCommand() *cli.Command {
	return memoryScenario("new-flows", "links made per second, up to the limit and beyond",
		"UDP flows from inside fill an empty table through the whole worker; more are offered than fit. Also what a flow costs\n"+
			"that is turned away, and a link's end.",
		func(c *cli.Context) (report, error) {
			mapping := c.String("mapping")
			if mapping != "endpoint-dependent" && mapping != "endpoint-independent" {
				return nil, &perf.OptionError{Name: "mapping", Is: mapping, Allowed: "endpoint-dependent or endpoint-independent"}
			}
			return perf.MeasureNewFlows(perf.NewFlowsOptions{Links: c.Int("links"), Independent: mapping == "endpoint-independent", Repeat: c.Int("repeat")})
		},
		linksFlag(1<<20), repeatFlag(),
		&cli.StringFlag{Name: "mapping", Value: "endpoint-dependent", Usage: "endpoint-dependent (one alias address) or endpoint-independent (as many as needed)"})
}

func exhaustionCommand() *cli.Command {
	d := perf.ExhaustionDefaults()
	return memoryScenario("port-exhaustion", "the search for a free port while those toward one peer run out",
		"TCP connections from many hosts to one peer take every port of one alias address. With the peer's cache of ports in\n"+
			"use and without; steps of the searches, caches alive.",
		func(c *cli.Context) (report, error) {
			o := d
			o.Searches, o.Repeat = c.Int("packets"), c.Int("repeat")
			return perf.MeasureExhaustion(o)
		},
		packetsFlag(d.Searches), repeatFlag(), plotFlag())
}

func clockCommand() *cli.Command {
	return memoryScenario("clock", "what it would cost to read the time for every packet",
		"Established UDP flows, with the time read once per burst, for every packet, and for every packet by a system call.",
		func(c *cli.Context) (report, error) {
			return perf.MeasureClock(perf.ClockOptions{Links: c.Int("links"), Packets: c.Int("packets"), Repeat: c.Int("repeat")})
		},
		linksFlag(1<<10), packetsFlag(1<<18), repeatFlag())
}

func handoffCommand() *cli.Command {
	return memoryScenario("handoff", "what several workers cost each other",
		"The decision whose a packet is, its way from one thread to another beside another queue, the work of a packet with 1 to\n"+
			"8 workers when none, half or all of the packets come in by the wrong queue, and two workers on two cores beside two\n"+
			"gateways that share nothing.",
		func(c *cli.Context) (report, error) {
			return perf.MeasureHandoff(perf.HandoffOptions{Links: c.Int("links"), Packets: c.Int("packets"), Repeat: c.Int("repeat")})
		},
		linksFlag(1<<14), packetsFlag(1<<18), repeatFlag())
}

// report is what a scenario gives.
type report interface{ Print(io.Writer) error }

// memoryScenario makes the command of a scenario, which checks the flags that all share, and prints.
func memoryScenario(name, usage, description string, measure func(*cli.Context) (report, error), flags ...cli.Flag) *cli.Command {
	return &cli.Command{
		Name: name, Usage: usage, Description: description,
		Flags: append(flags, &cli.BoolFlag{Name: "json", Usage: "the report as JSON"}),
		Action: func(c *cli.Context) error {
			if err := noArgs(c); err != nil {
				return err
			}
			for _, flag := range []string{"repeat", "packets"} {
				if n := c.Int(flag); n < 1 && c.IsSet(flag) {
					return fmt.Errorf("--%s: is %d; allowed: a number from 1", flag, n)
				}
			}
			if c.IsSet("plot") {
				if err := chart.Check(c.String("plot")); err != nil {
					return fmt.Errorf("--%w", err)
				}
			}
			r, err := measure(c)
			if bad := (*perf.OptionError)(nil); errors.As(err, &bad) {
				return fmt.Errorf("--%w", bad)
			}
			if err != nil {
				return fail(statusRuntime, err)
			}
			if c.IsSet("plot") {
				if err := r.(interface{ Plot(string) error }).Plot(c.String("plot")); err != nil {
					return fail(statusRuntime, err)
				}
			}
			if c.Bool("json") {
				return fail(statusRuntime, json.NewEncoder(c.App.Writer).Encode(r))
			}
			return fail(statusRuntime, r.Print(c.App.Writer))
		},
	}
}

func linksFlag(n int) cli.Flag {
	return &cli.IntFlag{Name: "links", Value: n, Usage: "`N` open links"}
}

func packetsFlag(n int) cli.Flag {
	return &cli.IntFlag{Name: "packets", Value: n, Usage: "`N` packets (or searches) in a repetition"}
}

func repeatFlag() cli.Flag {
	return &cli.IntFlag{Name: "repeat", Value: 7, Usage: "`N` repetitions of each measurement, of which median, lowest and highest are given"}
}

func plotFlag() cli.Flag {
	return &cli.StringFlag{Name: "plot", Usage: "draw the curve into `FILE`.svg"}
}

func curveFlag() cli.Flag {
	return &cli.BoolFlag{Name: "curve", Usage: "measure for fewer links, too"}
}
