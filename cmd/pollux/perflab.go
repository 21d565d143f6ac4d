package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"pollux/perf/lab"
	"pollux/perf/pktgen"
)

// labFlags are common to all that runs in the lab.
func labFlags(own ...cli.Flag) []cli.Flag {
	return append(own,
		&cli.IntFlag{Name: "generator-core", Value: -1, DefaultText: "the first allowed one", Usage: "core of generator and end hosts"},
		&cli.IntFlag{Name: "gateway-core", Value: -1, DefaultText: "the last allowed one", Usage: "core of everything that the gateway does"},
		&cli.IntFlag{Name: "generator-priority", Value: 10, Usage: "SCHED_FIFO priority of the generator, 0 for none"},
		&cli.IntFlag{Name: "links", Usage: "links that pollux makes room for", DefaultText: "4000000, soak 1000000"},
		&cli.BoolFlag{Name: "json", Usage: "the result as JSON"},
		&cli.BoolFlag{Name: "quiet", Usage: "no word on standard error while it runs"},
	)
}

func labOptions(c *cli.Context) (o lab.Options, err error) {
	if err := noArgs(c); err != nil {
		return o, err
	}
	if os.Geteuid() != 0 {
		return o, errors.New("the lab makes network namespaces: run it as root")
	}
	o = lab.Options{
		GeneratorCore: c.Int("generator-core"), GatewayCore: c.Int("gateway-core"), GeneratorPriority: c.Int("generator-priority"), Links: c.Int("links"), Progress: c.App.ErrWriter,
		Peers: list(c.String("peers")), Slot: seconds(c.Float64("slot")),
	}
	if c.Bool("quiet") {
		o.Progress = io.Discard
	}
	o.Binary, err = os.Executable()
	return o, err
}

func list(s string) []string {
	if s == "" {
		return nil
	}
	return strings.Split(s, ",")
}

func seconds(s float64) time.Duration { return time.Duration(s * float64(time.Second)) }

// untilSignal is a context that ends at SIGINT or SIGTERM.
func untilSignal() (context.Context, func()) {
	ctx, cancel := context.WithCancel(context.Background())
	stop := onSignal(cancel)
	return ctx, func() { stop(); cancel() }
}

// finishPerf prints a result, or says why there is none.
func finishPerf(c *cli.Context, result interface{ Print(io.Writer) error }, err error) error {
	if err != nil {
		return fail(statusRuntime, err)
	}
	if c.Bool("json") {
		return fail(statusRuntime, json.NewEncoder(c.App.Writer).Encode(result))
	}
	return fail(statusRuntime, result.Print(c.App.Writer))
}

func labCommand() *cli.Command {
	return &cli.Command{
		Name:  "lab",
		Usage: "pollux beside a bare AF_XDP forwarder, kernel forwarding, nftables and iptables",
		Description: "Builds an equal set of network namespaces for each, sends the same packets through all of them in turn,\n" +
			"several rounds, and prints medians, spread, and ratios to nftables in the same round. Nothing outside its\n" +
			"namespaces is touched. Needs root, two cores that are little used, Linux 6.6; takes about 8 s a peer and round.\n\n" +
			"   pollux perf lab --rounds 5 --report perf/report\n" +
			"   pollux perf lab --peers pollux,nft --columns pps,new_flows --json",
		Flags: labFlags(
			&cli.StringFlag{Name: "peers", DefaultText: strings.Join(lab.PeerNames(), ","), Usage: "`LIST` of whom to compare"},
			&cli.StringFlag{Name: "columns", DefaultText: "all", Usage: "`LIST` of what to measure: pps, pps_many, imix, new_flows, new_flows_held, tcp_1, tcp_8, rtt_idle, rtt_half"},
			&cli.IntFlag{Name: "rounds", Value: 5, Usage: "turns through all peers"},
			&cli.Float64Flag{Name: "slot", Value: 0.7, Usage: "seconds of each measurement"},
			&cli.Float64Flag{Name: "warm-up", Value: 0.2, Usage: "seconds before it"},
			&cli.IntFlag{Name: "flows", Value: 1000, Usage: "flows of pps, imix, rtt"},
			&cli.IntFlag{Name: "many-flows", Value: 50000, Usage: "flows of pps_many"},
			&cli.StringFlag{Name: "report", Usage: "write lab.md, lab.json and plots into this `DIR`"},
		),
		Action: func(c *cli.Context) error {
			o, err := labOptions(c)
			if err != nil {
				return fail(statusUsage, err)
			}
			o.Rounds, o.WarmUp, o.Flows, o.ManyFlows = c.Int("rounds"), seconds(c.Float64("warm-up")), c.Int("flows"), c.Int("many-flows")
			for _, name := range list(c.String("columns")) {
				o.Columns = append(o.Columns, lab.Column(name))
			}
			if err := o.Defaults(); err != nil {
				return fail(statusUsage, fmt.Errorf("perf lab: %w", err))
			}
			ctx, stop := untilSignal()
			defer stop()
			r, err := lab.Run(ctx, o)
			if dir := c.String("report"); err == nil && dir != "" {
				err = r.WriteReport(dir)
			}
			return finishPerf(c, r, err)
		},
	}
}

func ndrCommand() *cli.Command {
	return &cli.Command{
		Name:  "ndr",
		Usage: "search the highest rates without loss (RFC 2544, RFC 9693)",
		Description: "Phase 1: every packet opens a session. Phase 2: packets of the open sessions. Both by halving, in the\n" +
			"namespaces of `pollux perf lab`. On a machine that does other things as well no rate is without loss: allow some.\n\n" +
			"   pollux perf ndr --peers pollux,nft --loss 0.01",
		Flags: labFlags(
			&cli.StringFlag{Name: "peers", Value: "pollux", Usage: "`LIST` of " + strings.Join(lab.PeerNames(), ", ")},
			&cli.Float64Flag{Name: "trial", Value: 1, Usage: "seconds of each trial"},
			&cli.Float64Flag{Name: "loss", Usage: "percent of packets that may be lost"},
			&cli.Float64Flag{Name: "step", Value: 2, Usage: "percent to which the rate is found"},
			&cli.IntFlag{Name: "sessions", Value: 10000, Usage: "sessions of phase 2"},
			&cli.StringFlag{Name: "size", Value: "64", Usage: "bytes of each frame in phase 2, or imix"},
			&cli.BoolFlag{Name: "both-ways", Usage: "phase 2: every packet is sent back and must return"},
		),
		Action: func(c *cli.Context) error {
			o, err := labOptions(c)
			if err != nil {
				return fail(statusUsage, err)
			}
			n := lab.NDROptions{Options: o, Trial: seconds(c.Float64("trial")), Percent: c.Float64("loss"), Step: c.Float64("step") / 100,
				Sessions: c.Int("sessions"), Both: c.Bool("both-ways")}
			if n.Sizes, err = pktgen.ParseSizes(c.String("size")); err != nil {
				return fail(statusUsage, fmt.Errorf("--size: %w", err))
			}
			ctx, stop := untilSignal()
			defer stop()
			r, err := lab.NDR(ctx, n)
			return finishPerf(c, r, err)
		},
	}
}

func soakCommand() *cli.Command {
	return &cli.Command{
		Name:  "soak",
		Usage: "mixed traffic for a given time, looking whether every frame is where it belongs",
		Description: "Changing flows, answered packets and TCP through one pollux in namespaces of its own. Ends with status 1\n" +
			"when a frame leaked, links passed their limit, memory grew, more than --loss percent of the packets were lost,\n" +
			"or packets were lost that nobody counted, or the gateway died. Every loss is told with its place.\n\n" +
			"   pollux perf soak --minutes 10",
		Flags: labFlags(
			&cli.Float64Flag{Name: "minutes", Usage: "how long"},
			&cli.Float64Flag{Name: "slot", Value: 2, Usage: "seconds between two looks"},
			&cli.Float64Flag{Name: "rate", DefaultText: "a quarter of what passes at full load, at most 200000", Usage: "packets per second"},
			&cli.Float64Flag{Name: "new-flows", Value: 5000, Usage: "flows per second that give way to new ones"},
			&cli.Float64Flag{Name: "loss", Value: 0.1, Usage: "percent of all packets that may be lost"},
		),
		Action: func(c *cli.Context) error {
			o, err := labOptions(c)
			if err == nil && c.Float64("minutes") <= 0 {
				err = errors.New("--minutes: needed: a soak does not run without end")
			}
			if err != nil {
				return fail(statusUsage, err)
			}
			ctx, stop := untilSignal()
			defer stop()
			r, err := lab.Soak(ctx, lab.SoakOptions{Options: o, Duration: time.Duration(c.Float64("minutes") * float64(time.Minute)),
				Rate: c.Float64("rate"), NewFlows: c.Float64("new-flows"), Loss: c.Float64("loss")})
			if err := finishPerf(c, r, err); err != nil {
				return err
			}
			if len(r.Failures) > 0 {
				return fail(statusRuntime, errors.New("soak: "+r.Failures[0]))
			}
			return nil
		},
	}
}
