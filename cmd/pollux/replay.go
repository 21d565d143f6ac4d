package main

import (
	"fmt"
	"strings"

	"github.com/urfave/cli/v2"

	"pollux/internal/config"
	"pollux/internal/replay"
)

// forReplay leaves out the flags that name network devices: --inside and --outside are captures here.
func forReplay(f config.Flag) bool { return f.Key != "ports" }

func replayCommand() *cli.Command {
	flags := &configFlags{}
	return &cli.Command{
		Name:  "replay",
		Usage: "play captures through the dataplane, without a network card or privileges",
		Description: "Takes what came in on either side from pcap or pcapng files, merges it by timestamp, and writes what pollux\n" +
			"would have sent. The timestamps are the clock: links expire as they would have. The same input gives the\n" +
			"same output; --seed changes the random choices. The network around it is the replay block of the file.\n\n" +
			"   pollux replay -c pollux.yaml --inside in.pcap --outside out.pcap \\\n" +
			"      --write-inside wi.pcap --write-outside wo.pcap --drops drops.json --show-links\n\n" +
			"Exit status: 0 played, whatever was dropped; 1 a capture can't be read or a file not written; 2 the\n" +
			"configuration is refused.",
		Flags: append([]cli.Flag{
			&cli.StringFlag{Name: "inside", Usage: "`CAPTURE` of what came in on the inside"},
			&cli.StringFlag{Name: "outside", Usage: "`CAPTURE` of what came in on the outside"},
			&cli.StringFlag{Name: "write-inside", Usage: "write what leaves to the inside to `FILE` (pcap)"},
			&cli.StringFlag{Name: "write-outside", Usage: "write what leaves to the outside to `FILE` (pcap)"},
			&cli.StringFlag{Name: "drops", Usage: "write to `FILE`, as JSON, which packets were not sent on, and why"},
			&cli.BoolFlag{Name: "show-links", Usage: "print the links at the end as JSON"},
			&cli.Uint64Flag{Name: "seed", Usage: "`NUMBER` that the random choices follow from"},
		}, flags.list(forReplay)...),
		Action: func(c *cli.Context) error {
			cfg, err := flags.load(c, config.Replaying)
			if err != nil {
				return fail(statusUsage, err)
			}
			return fail(statusRuntime, replay.Run(replayOptions(c, cfg)))
		},
	}
}

func replayOptions(c *cli.Context, cfg *config.Config) replay.Options {
	o := replay.Options{
		Gateway: cfg.Gateway(), World: replay.World(cfg.Replay()),
		Inside: c.String("inside"), Outside: c.String("outside"),
		WriteInside: c.String("write-inside"), WriteOutside: c.String("write-outside"),
		Drops: c.String("drops"), Seed: c.Uint64("seed"),
		Warn: func(text string) {
			fmt.Fprintln(c.App.ErrWriter, "warning: "+strings.Join(strings.Fields(text), " "))
		},
	}
	o.Gateway.Rules, o.Gateway.AliasPort = cfg.ReplayRules(), false // the port's address is in the rules by now
	if c.Bool("show-links") {
		o.Links = c.App.Writer
	}
	return o
}
