package main

import (
	"fmt"

	"github.com/urfave/cli/v2"
)

func rtcacheCommand() *cli.Command {
	return &cli.Command{
		Name:  "rtcache",
		Usage: "say whether a running gateway keeps next hops attached to links, or switch it",
		Description: "Prints on or off. Switching costs or saves a route lookup a packet; use it to measure what the cache is\n" +
			"worth. Forwarding is right either way.",
		Flags: clientFlags(),
		Subcommands: []*cli.Command{
			{Name: "on", Usage: "keep next hops attached to links", Flags: clientFlags(), Action: func(c *cli.Context) error { return switchRTCache(c, true) }},
			{Name: "off", Usage: "look the next hop up for every packet", Flags: clientFlags(), Action: func(c *cli.Context) error { return switchRTCache(c, false) }},
		},
		Action: func(c *cli.Context) error {
			if c.Args().Present() {
				return noSuchCommand(c)
			}
			return printRTCache(c)
		},
	}
}

func switchRTCache(c *cli.Context, on bool) error {
	if err := noArgs(c); err != nil {
		return err
	}
	client, err := clientOf(c)
	if err != nil {
		return err
	}
	if err := client.SetRTCache(c.Context, on); err != nil {
		return fail(statusRuntime, err)
	}
	return printRTCache(c)
}

func printRTCache(c *cli.Context) error {
	client, err := clientOf(c)
	if err != nil {
		return err
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
}
