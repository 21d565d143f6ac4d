package main

import (
	"errors"
	"fmt"
	"os"
	"strings"

	"github.com/urfave/cli/v2"

	"pollux/perf/paper"
)

func reportCommand() *cli.Command {
	return &cli.Command{
		Name:      "report",
		Usage:     "measure everything and write it down: Markdown and plots, with what was to be reached",
		ArgsUsage: "DIR",
		Description: "Runs the scenarios one after the other, keeps each one's JSON in DIR/data and writes DIR/README.md and plots from\n" +
			"all that is there. A part can be made again alone; on a shared machine give each a quiet time. DIR/why.txt (lines\n" +
			"`target: why`) and DIR/profile.md are kept and go into the report. The part lab needs root.\n\n" +
			"   pollux perf report perf/report                      # everything, about 10 minutes\n" +
			"   pollux perf report --only lab,handoff perf/report   # these parts again\n" +
			"   pollux perf report --quick /tmp/try                 # shows that everything works, a minute",
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "only", Usage: "`LIST` of parts to make: " + strings.Join(paper.Names(), ", ")},
			&cli.StringFlag{Name: "revision", DefaultText: "as the build recorded it", Usage: "`COMMIT` that the report names"},
			&cli.BoolFlag{Name: "quick", Usage: "as little of everything as shows that it works; the figures say nothing"},
			&cli.BoolFlag{Name: "write", Usage: "measure nothing, write from what is in DIR/data"},
			&cli.BoolFlag{Name: "quiet", Usage: "no word on standard error while it runs"},
		},
		Action: func(c *cli.Context) error {
			if c.NArg() != 1 {
				return fail(statusUsage, errors.New("perf report: give one folder, after the flags: pollux perf report --quick DIR"))
			}
			o := paper.Options{Dir: c.Args().First(), Only: list(c.String("only")), Quick: c.Bool("quick"), Write: c.Bool("write"), Progress: c.App.ErrWriter}
			if o.Write && (o.Quick || len(o.Only) > 0) {
				return fail(statusUsage, errors.New("--write: measures nothing, so --only and --quick have no use"))
			}
			if c.Bool("quiet") {
				o.Progress = nil
			}
			v := buildVersion()
			if o.Revision = v.Revision[:min(12, len(v.Revision))]; v.Modified {
				o.Revision += ", modified"
			}
			if c.IsSet("revision") {
				o.Revision = c.String("revision")
			}
			var err error
			if o.Binary, err = os.Executable(); err != nil {
				return fail(statusRuntime, err)
			}
			ctx, stop := untilSignal()
			defer stop()
			if err := paper.Make(ctx, o); err != nil {
				return fail(statusRuntime, err)
			}
			_, err = fmt.Fprintf(c.App.Writer, "%s/README.md\n", o.Dir)
			return fail(statusRuntime, err)
		},
	}
}
