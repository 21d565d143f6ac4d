package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/urfave/cli/v2"

	"pollux/internal/config"
	"pollux/internal/control"
)

// changed turns the answer to a change into an exit status: refused ones have changed nothing.
func changed(err error) error {
	if r := new(control.Refused); errors.As(err, &r) {
		return fail(statusUsage, err)
	}
	return fail(statusRuntime, err)
}

func printJSON(w io.Writer, value any) error {
	text, err := json.Marshal(value)
	if err == nil {
		fmt.Fprintf(w, "%s\n", text)
	}
	return err
}

func reloadCommand() *cli.Command {
	return &cli.Command{
		Name:  "reload",
		Usage: "have the running gateway read its configuration again",
		Description: "The gateway takes the new configuration whole or not at all. Links whose rule still stands go on without a\n" +
			"pause; the others are closed in slices. A key that can't change while it runs is named, and nothing is\n" +
			"changed. Redirects that were added by `pollux redirect` are dropped unless the configuration has them.\n" +
			"The flags that `pollux run` was given lie over what is loaded. SIGHUP does the same.\n\n" +
			"   pollux reload                    # the file that the gateway was started with\n" +
			"   pollux reload -c new.yaml --dry-run",
		Flags: []cli.Flag{
			&cli.StringFlag{Name: "control", Usage: "control socket of the gateway", DefaultText: socketDefault + ", or what -c says"},
			&cli.StringFlag{Name: "config", Aliases: []string{"c"}, Usage: "take the configuration from `FILE` instead of the gateway's own; it finds the socket too"},
			&cli.BoolFlag{Name: "dry-run", Usage: "show what would change, change nothing"},
			&cli.BoolFlag{Name: "json", Usage: "the API's own answer"},
		},
		Action: func(c *cli.Context) error {
			if err := noArgs(c); err != nil {
				return err
			}
			request := control.ReloadRequest{DryRun: c.Bool("dry-run")}
			path := usualSocket()
			if file := c.String("config"); file != "" {
				text, err := config.ReadFile(file)
				if err != nil {
					return fail(statusUsage, err)
				}
				if len(text) == 0 {
					return fail(statusUsage, fmt.Errorf("%s: is empty; needed: a configuration", file))
				}
				request.File, request.Text = file, string(text)
				// Flags of `pollux run` may complete the file, so that errors are the gateway's to tell.
				if cfg, err := config.Load(file, nil, config.Run); err == nil {
					path = cfg.Control().Socket
				}
			}
			if c.IsSet("control") {
				path = c.String("control")
			}
			r, err := control.NewClient(path).Reload(c.Context, request)
			if err != nil {
				return changed(err)
			}
			if c.Bool("json") {
				return printJSON(c.App.Writer, r)
			}
			return printReload(c.App.Writer, r, request.DryRun)
		},
	}
}

func printReload(w io.Writer, r control.ReloadResult, dry bool) error {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	if len(r.Changes)+len(r.Dropped) > 0 {
		fmt.Fprintln(t, "KEY\tOLD\tNEW\t")
	}
	stuck := 0
	for _, c := range r.Changes {
		note := ""
		if c.Restart {
			note = "needs a stop and a start"
			stuck++
		}
		fmt.Fprintf(t, "%s\t%s\t%s\t%s\n", c.Key, c.Old, c.New, note)
	}
	for _, x := range r.Dropped {
		fmt.Fprintf(t, "redirect %s\t%s\t\tadded at run time\n", x.Kind, x.Text)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	var err error
	switch {
	case dry && stuck > 0:
		_, err = fmt.Fprintln(w, "dry run: a reload would be refused")
	case dry:
		_, err = fmt.Fprintln(w, "dry run: nothing was changed")
	case !r.Applied:
		_, err = fmt.Fprintln(w, "nothing to change")
	default:
		_, err = fmt.Fprintf(w, "reloaded: %d links kept, %d closed\n", r.Kept, r.Closed)
	}
	return err
}

func redirectCommand() *cli.Command {
	return &cli.Command{
		Name:  "redirect",
		Usage: "publish a port, address or protocol while the gateway runs",
		Description: "Takes a redirect in the words of the flags of `pollux run`. It holds until it is deleted, until the gateway\n" +
			"stops, or until the next reload of a configuration that has not got it. `pollux show config` lists them apart.\n\n" +
			"   pollux redirect add port tcp,203.0.113.1:443=10.0.0.2:443\n" +
			"   pollux redirect add addr 203.0.113.9=10.0.0.9\n" +
			"   pollux redirect del port tcp,203.0.113.1:443",
		Subcommands: []*cli.Command{
			{Name: "add", Usage: "publish it from now on", Subcommands: redirectKinds("added", (*control.Client).AddRedirect, config.RedirectSyntax)},
			{Name: "del", Usage: "take back what was added at run time; links that came by it are closed",
				Subcommands: redirectKinds("deleted", (*control.Client).DelRedirect, func(kind string) string {
					return map[string]string{"port": "PROTO,PUBLIC[,remote=REMOTE]", "addr": "PUBLIC", "proto": "PROTO,PUBLIC[,remote=ADDRESS]"}[kind]
				})},
		},
	}
}

func redirectKinds(done string, act func(*control.Client, context.Context, config.Redirect) error, syntax func(string) string) (list []*cli.Command) {
	for _, kind := range config.RedirectKinds {
		list = append(list, &cli.Command{
			Name: kind, Usage: "nat.redirect_" + kind, ArgsUsage: syntax(kind), Flags: clientFlags(),
			Action: func(c *cli.Context) error {
				if c.NArg() != 1 {
					return fmt.Errorf("%s: needs one redirect; allowed: %s", c.Command.HelpName, syntax(kind))
				}
				client, err := clientOf(c)
				if err != nil {
					return err
				}
				r := config.Redirect{Kind: kind, Text: c.Args().First()}
				if err := act(client, c.Context, r); err != nil {
					return changed(err)
				}
				if c.Bool("json") {
					return printJSON(c.App.Writer, r)
				}
				_, err = fmt.Fprintf(c.App.Writer, "%s: redirect %s %s\n", done, r.Kind, r.Text)
				return err
			},
		})
	}
	return list
}

// drainEvery is how often the progress of a drain is looked at.
const drainEvery = 500 * time.Millisecond

func drainCommand() *cli.Command {
	return &cli.Command{
		Name:  "drain",
		Usage: "take no new flows and wait until the old ones have run out",
		Description: "New flows are turned away with the reason `draining` (inside hosts are told by ICMP); those that have a link\n" +
			"go on. Ends with status 0 when no link is left, with 1 after --timeout. The gateway drains on in either case,\n" +
			"until --undo.",
		Flags: clientFlags(
			&cli.DurationFlag{Name: "timeout", Usage: "wait no longer than this, 0 for ever"},
			&cli.BoolFlag{Name: "undo", Usage: "take new flows again"},
		),
		Action: func(c *cli.Context) error {
			if err := noArgs(c); err != nil {
				return err
			}
			if c.Duration("timeout") < 0 {
				return errors.New("--timeout: must not be negative; allowed: a time with its unit, 0 for ever")
			}
			client, err := clientOf(c)
			if err != nil {
				return err
			}
			return drain(c, client)
		},
	}
}

// drain starts or ends it, and reports until no link is left.
func drain(c *cli.Context, client *control.Client) error {
	on := !c.Bool("undo")
	state, err := client.Drain(c.Context, &on)
	if err != nil {
		return changed(err)
	}
	say := func() {
		if c.Bool("json") {
			_ = printJSON(c.App.Writer, state)
		} else if on {
			fmt.Fprintf(c.App.Writer, "draining: %d links left\n", state.Links)
		} else {
			fmt.Fprintf(c.App.Writer, "takes new flows again, %d links\n", state.Links)
		}
	}
	say()
	if !on {
		return nil
	}
	var over <-chan time.Time
	if d := c.Duration("timeout"); d > 0 {
		over = time.After(d)
	}
	for last := state.Links; state.Links > 0; {
		select {
		case <-over:
			return fail(statusRuntime, fmt.Errorf("%d links are left after %v; the gateway drains on, --undo ends that", state.Links, c.Duration("timeout")))
		case <-c.Context.Done():
			return fail(statusRuntime, c.Context.Err())
		case <-time.After(drainEvery):
		}
		if state, err = client.Drain(c.Context, nil); err != nil {
			return fail(statusRuntime, err)
		}
		if state.Drain == nil || !*state.Drain {
			return fail(statusRuntime, errors.New("somebody ended the drain"))
		}
		if state.Links != last {
			last = state.Links
			say()
		}
	}
	return nil
}
