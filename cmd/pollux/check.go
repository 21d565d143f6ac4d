package main

import (
	"fmt"

	"github.com/urfave/cli/v2"

	"pollux/internal/config"
)

func checkCommand() *cli.Command {
	flags := &configFlags{}
	return &cli.Command{
		Name:  "check",
		Usage: "check a configuration without touching anything",
		Description: "Prints ok, or one line `FILE:LINE:COL: what is wrong, what is allowed` and exits with 2.\n" +
			"Only the configuration is looked at; whether this machine can run it is for `pollux doctor` to say.",
		Flags: append(flags.list(forCheck),
			&cli.BoolFlag{Name: "print", Usage: "print the whole effective configuration, defaults included, instead of ok"},
			&cli.BoolFlag{Name: "replay", Usage: "check for pollux replay, which has no kernel to ask for addresses"},
			&cli.BoolFlag{Name: "json", Usage: "with --print: as JSON"},
		),
		Action: func(c *cli.Context) error {
			use := config.Run
			if c.Bool("replay") {
				use = config.Replaying
			}
			cfg, err := flags.load(c, use)
			if err != nil {
				return fail(statusUsage, err)
			}
			switch {
			case c.Bool("print") && c.Bool("json"):
				fmt.Fprintln(c.App.Writer, cfg.JSON())
			case c.Bool("json"):
				return fmt.Errorf("--json: needs --print")
			case c.Bool("print"):
				fmt.Fprint(c.App.Writer, cfg.YAML())
			default:
				fmt.Fprintln(c.App.Writer, "ok")
			}
			return nil
		},
	}
}
