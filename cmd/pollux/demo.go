package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os/signal"
	"syscall"

	"github.com/urfave/cli/v2"

	"pollux/internal/demo"
	"pollux/internal/lab"
)

// errNotHeld makes the exit status 1; the closing line has said what is wrong.
var errNotHeld = errors.New("the demo did not hold")

func demoCommand() *cli.Command {
	return &cli.Command{
		Name:  "demo",
		Usage: "show a NAT at work in network namespaces, with real traffic",
		Description: "Makes an inside host, a gateway, a router and an outside host out of network namespaces, runs `pollux run`\n" +
			"in the gateway, and sends ping, traceroute, a 100 MB download, hundreds of UDP flows and a connection to a\n" +
			"published port through it. Takes seconds, needs root, and leaves nothing behind, interrupted or not. The\n" +
			"machine's own network is not touched.\n\n" +
			"Exit status: 0 everything held, 1 something did not, 2 it could not be run.",
		Flags: []cli.Flag{
			&cli.BoolFlag{Name: "json", Usage: "the report as JSON, nothing else"},
			&cli.BoolFlag{Name: "keep", Usage: "leave the lab and the gateway running and say how to look around"},
			&cli.BoolFlag{Name: "clean", Usage: "take down a lab that was left by --keep, and do nothing else"},
		},
		Subcommands: []*cli.Command{demoServe()},
		Action: func(c *cli.Context) error {
			if err := noArgs(c); err != nil {
				return err
			}
			if c.Bool("clean") {
				word := "there was none"
				if lab.RemoveKept() {
					word = "removed"
				}
				_, err := fmt.Fprintln(c.App.Writer, word)
				return err
			}
			return runDemo(c)
		},
	}
}

func runDemo(c *cli.Context) error {
	if err := lab.Missing(); err != nil {
		return fail(statusUsage, fmt.Errorf("pollux demo: %w", err))
	}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGINT, syscall.SIGTERM)
	defer stop()
	w := c.App.Writer
	o := demo.Options{Binary: "/proc/self/exe", Keep: c.Bool("keep")}
	if !c.Bool("json") {
		fmt.Fprint(w, demo.Picture())
		o.Ready = func(line string) { fmt.Fprintf(w, "  %s\n\n", line) }
		o.Step = func(check demo.Check) { demo.PrintCheck(w, check) }
	}
	report, err := demo.Run(ctx, o)
	if err != nil {
		return fail(statusUsage, fmt.Errorf("pollux demo: %w", err))
	}
	if c.Bool("json") {
		e := json.NewEncoder(w)
		e.SetIndent("", "  ")
		if err := e.Encode(report); err != nil {
			return err
		}
	} else {
		report.Print(w)
	}
	if !report.Held {
		return fail(statusRuntime, errNotHeld)
	}
	return nil
}

// demoServe is what a kept lab's hosts run.
func demoServe() *cli.Command {
	return &cli.Command{
		Name:      "serve",
		Hidden:    true,
		Usage:     "run the servers of a kept lab's host",
		ArgsUsage: "inside|outside ADDRESS",
		Action: func(c *cli.Context) error {
			addr, err := netip.ParseAddr(c.Args().Get(1))
			if err != nil {
				return fail(statusUsage, err)
			}
			return fail(statusRuntime, demo.Serve(c.Args().First(), addr))
		},
	}
}
