package main

import (
	"errors"
	"fmt"
	"os"
	"os/signal"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/urfave/cli/v2"
	"golang.org/x/sys/unix"
)

func watchFlags() []cli.Flag {
	return []cli.Flag{
		&cli.DurationFlag{Name: "watch", Usage: "show it again every `INTERVAL`, as 2s, until interrupted; 1s when no interval follows"},
		&cli.IntFlag{Name: "times", Usage: "with --watch: end after `N` times"},
	}
}

// watchAlone lets --watch stand without an interval, which package flag has no way to say.
func watchAlone(args []string) []string {
	if len(args) < 2 || args[1] != "show" {
		return args
	}
	out := slices.Clone(args)
	for i, a := range out {
		if (a == "--watch" || a == "-watch") && (i+1 == len(out) || strings.HasPrefix(out[i+1], "-")) {
			out[i] = "--watch=1s"
		}
	}
	return out
}

// watch calls show once, or with --watch again and again. On a terminal each time begins at the top of the screen; elsewhere
// an empty line separates them.
func watch(c *cli.Context, show func() error) error {
	every, times := c.Duration("watch"), c.Int("times")
	switch {
	case !c.IsSet("watch") && c.IsSet("times"):
		return errors.New("--times: is given without --watch")
	case !c.IsSet("watch"):
		return show()
	case every < 100*time.Millisecond || every > 24*time.Hour:
		return fmt.Errorf("--watch: is %v; allowed: an interval from 100ms to 24h", every)
	case c.IsSet("times") && times < 1:
		return fmt.Errorf("--times: is %d; allowed: a number from 1", times)
	}
	ctx, stop := signal.NotifyContext(c.Context, os.Interrupt, syscall.SIGTERM)
	defer stop()
	c.Context = ctx
	screen := terminal(c)
	tick := time.NewTicker(every)
	defer tick.Stop()
	for n := 1; ; n++ {
		if screen {
			fmt.Fprint(c.App.Writer, "\x1b[H\x1b[2J")
		} else if n > 1 && !c.Bool("json") {
			fmt.Fprintln(c.App.Writer)
		}
		if err := show(); err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
		if n == times {
			return nil
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// terminal reports whether text goes to a terminal.
func terminal(c *cli.Context) bool {
	f, ok := c.App.Writer.(*os.File)
	if !ok || c.Bool("json") {
		return false
	}
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil
}
