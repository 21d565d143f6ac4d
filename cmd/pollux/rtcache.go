package main

import (
	"fmt"

	"github.com/urfave/cli/v2"
)

func rtcacheCommand() *cli.Command {
	return &cli.Command{
		Name:  "rtcache",
		Usage: "say whether a running gateway keeps next hops attached to links, or switch it",
		Description: "With on or off it switches, which costs or saves a route lookup a packet; use it to measure what the\n" +
			"cache is worth. Forwarding is right either way.",
		ArgsUsage: "[on | off]",
		Flags:     clientFlags(),
		Action: func(c *cli.Context) error {
			client, err := clientOf(c)
			if err != nil {
				return err
			}
			switch word := c.Args().First(); {
			case c.NArg() == 0:
			case c.NArg() == 1 && (word == "on" || word == "off"):
				if err := client.SetRTCache(c.Context, word == "on"); err != nil {
					return fail(statusRuntime, err)
				}
			default:
				return fmt.Errorf("pollux rtcache: %q is not understood; allowed: on or off", word)
			}
			on, err := client.RTCache(c.Context)
			if err != nil {
				return fail(statusRuntime, err)
			}
			if c.Bool("json") {
				_, err = fmt.Fprintf(c.App.Writer, "{\"rtcache\":%t}\n", on)
				return err
			}
			_, err = fmt.Fprintln(c.App.Writer, map[bool]string{true: "on", false: "off"}[on])
			return err
		},
	}
}
