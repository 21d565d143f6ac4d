package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"time"

	tea "charm.land/bubbletea/v2"
	"github.com/urfave/cli/v2"
	"golang.org/x/sys/unix"

	"pollux/internal/control"
	"pollux/internal/top"
)

func topCommand() *cli.Command {
	return &cli.Command{
		Name:  "top",
		Usage: "watch a running gateway: rates, occupancy, links, drops, hosts",
		Description: "Asks over the control socket, as `show` does, and shows what happens per second. It goes on by itself when\n" +
			"the gateway was started again. Keys: q quits, ? lists the others. Colours are left out when NO_COLOR is set.\n\n" +
			"   pollux top --interval 2s --sort refused\n" +
			"   ssh gateway -t pollux top\n" +
			"   pollux top --json --interval 10s      # rates over ten seconds, for a script",
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "control", Usage: "control socket of the gateway", DefaultText: socketDefault},
			&cli.StringFlag{Name: "config", Aliases: []string{"c"}, Usage: "take control.socket from `FILE`, the gateway's configuration"},
			&cli.DurationFlag{Name: "interval", Usage: "`TIME` between two samples", Value: time.Second},
			&cli.StringFlag{Name: "sort", Usage: "hosts by `WHAT`: links or refused", Value: string(top.ByLinks)},
			&cli.BoolFlag{Name: "once", Usage: "print one frame, of one interval, and end"},
			&cli.BoolFlag{Name: "json", Usage: "the same as JSON"},
		},
		Action: func(c *cli.Context) error {
			if err := noArgs(c); err != nil {
				return err
			}
			client, err := clientOf(c)
			if err != nil {
				return err
			}
			interval, by := c.Duration("interval"), top.Order(c.String("sort"))
			switch {
			case interval < top.IntervalMin || interval > top.IntervalMax:
				return fmt.Errorf("--interval: is %s; allowed: %s to %s", interval, top.IntervalMin, top.IntervalMax)
			case by != top.ByLinks && by != top.ByRefused:
				return fmt.Errorf("--sort: is %q; allowed: links or refused", by)
			case c.Bool("once") || c.Bool("json"):
				return fail(statusRuntime, topOnce(c, client, interval, by))
			}
			return topLive(c, client, interval, by)
		},
	}
}

// topOnce prints one frame.
func topOnce(c *cli.Context, client *control.Client, interval time.Duration, by top.Order) error {
	source := top.FromAPI{Client: client}
	first, err := source.Sample(c.Context, by)
	if err != nil {
		return err
	}
	select {
	case <-time.After(interval):
	case <-c.Context.Done():
		return c.Context.Err()
	}
	second, err := source.Sample(c.Context, by)
	if err != nil {
		return err
	}
	f := top.Between(&first, &second)
	if f.Interval == 0 {
		return errors.New("the gateway was started again meanwhile: there are no rates yet")
	}
	if c.Bool("json") {
		return json.NewEncoder(c.App.Writer).Encode(f)
	}
	width := 0
	if terminal(c) {
		if size, err := unix.IoctlGetWinsize(int(c.App.Writer.(*os.File).Fd()), unix.TIOCGWINSZ); err == nil {
			width = int(size.Col)
		}
	}
	for _, line := range top.Text(&f, by, width, false) {
		fmt.Fprintln(c.App.Writer, line)
	}
	return nil
}

// topLive runs the terminal view until the user has seen enough.
func topLive(c *cli.Context, client *control.Client, interval time.Duration, by top.Order) error {
	if !terminal(c) {
		return errors.New("standard output is no terminal; allowed: --once or --json, which print one frame")
	}
	m := top.NewModel(top.FromAPI{Client: client}, interval, by, os.Getenv("NO_COLOR") == "" && os.Getenv("TERM") != "dumb")
	_, err := tea.NewProgram(m, tea.WithContext(c.Context), tea.WithOutput(c.App.Writer)).Run()
	return fail(statusRuntime, err)
}
