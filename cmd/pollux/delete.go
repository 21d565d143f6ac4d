package main

import (
	"errors"
	"fmt"

	"github.com/urfave/cli/v2"
)

func deleteCommand() *cli.Command {
	return &cli.Command{
		Name:        "delete",
		Usage:       "end links of a running gateway",
		Description: "Says what it did in one line. Rules, redirects and other links are left alone.",
		Subcommands: []*cli.Command{deleteLinks()},
	}
}

func deleteLinks() *cli.Command {
	return &cli.Command{
		Name:  "links",
		Usage: "end the links that a filter picks, in both directions; their ports are free again",
		Description: "A link that is ended and still has traffic is made anew by the next packet if rules allow it: from inside\n" +
			"nearly always, from outside by a redirect only. Workers do it in slices between bursts, so other flows\n" +
			"don't suffer. Look first what a filter picks: show links takes the same one.\n\n" +
			"   pollux delete links --local 10.0.0.7\n" +
			"   pollux delete links --proto tcp --idle 1h",
		Flags: clientFlags(append(filterFlags(), &cli.BoolFlag{Name: "all", Usage: "every link there is"})...),
		Action: func(c *cli.Context) error {
			if err := noArgs(c); err != nil {
				return err
			}
			f, err := filterOf(c)
			if err != nil {
				return err
			}
			switch picks := len(f.Query()) > 0; {
			case picks && c.Bool("all"):
				return errors.New("--all: is given besides a filter; allowed: one of them")
			case !picks && !c.Bool("all"):
				return errors.New("delete links: nothing says which; allowed: a filter as --local 10.0.0.7, or --all for every link")
			}
			client, err := clientOf(c)
			if err != nil {
				return err
			}
			n, err := client.DeleteLinks(c.Context, f, c.Bool("all"))
			if err != nil {
				return fail(statusRuntime, err)
			}
			if c.Bool("json") {
				_, err = fmt.Fprintf(c.App.Writer, "{\"deleted\":%d}\n", n)
			} else {
				_, err = fmt.Fprintf(c.App.Writer, "%d links deleted\n", n)
			}
			return err
		},
	}
}
