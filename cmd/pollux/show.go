package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/url"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/urfave/cli/v2"

	"pollux/internal/config"
	"pollux/internal/control"
)

func showCommand() *cli.Command {
	return &cli.Command{
		Name:  "show",
		Usage: "look into a running gateway",
		Description: "Asks over the control socket. Nothing is stopped to be looked at: counters are what the workers last\n" +
			"published, and links come in slices between bursts.",
		Subcommands: []*cli.Command{
			showLinks(),
			showOne("workers", "each worker's counters, and where its packet buffers are", "/v1/workers", nil, printWorkers),
			showOne("ports", "each port's state, mode and counters", "/v1/ports", nil, printPorts),
			showOne("drops", "why packets were not sent on, by reason", "/v1/drops",
				[]cli.Flag{&cli.BoolFlag{Name: "all", Usage: "reasons that never occurred too"}}, printDrops),
			showConfig(),
		},
	}
}

// clientFlags find the control socket.
func clientFlags(more ...cli.Flag) []cli.Flag {
	return append([]cli.Flag{
		&cli.StringFlag{Name: "control", Usage: "control socket of the gateway", DefaultText: config.DefaultSocket},
		&cli.StringFlag{Name: "config", Aliases: []string{"c"}, Usage: "take control.socket from `FILE`, the gateway's configuration"},
		&cli.BoolFlag{Name: "json", Usage: "the API's own answer"},
	}, more...)
}

// given is a flag's value, wherever on the command line it stands: before or after a subcommand's name.
func given(c *cli.Context, name string) string {
	for _, at := range c.Lineage() {
		if v := at.String(name); v != "" {
			return v
		}
	}
	return ""
}

// clientOf connects to the socket that --control or the gateway's own file names.
func clientOf(c *cli.Context) (*control.Client, error) {
	path := given(c, "control")
	switch file := given(c, "config"); {
	case path != "" && file != "":
		return nil, errors.New("--control: is given besides -c; allowed: one of them")
	case path == "" && file == "":
		path = config.DefaultSocket
	case path == "":
		cfg, err := config.Load(file, nil, config.Run)
		if err != nil {
			return nil, err
		}
		path = cfg.Control().Socket
	}
	return control.NewClient(path), nil
}

// raw copies the API's answer as it comes.
func raw(c *cli.Context, path string, q url.Values) error {
	client, err := clientOf(c)
	if err != nil {
		return err
	}
	body, err := client.Raw(c.Context, path, q)
	if err != nil {
		return fail(statusRuntime, err)
	}
	defer body.Close()
	if _, err := io.Copy(c.App.Writer, body); err != nil {
		return fail(statusRuntime, fmt.Errorf("the answer broke off: %w", err))
	}
	return nil
}

type printer func(ctx context.Context, c *cli.Context, client *control.Client, w io.Writer) error

func showOne(name, usage, path string, flags []cli.Flag, print printer) *cli.Command {
	return &cli.Command{
		Name: name, Usage: usage, Flags: clientFlags(flags...),
		Action: func(c *cli.Context) error {
			if err := noArgs(c); err != nil {
				return err
			}
			if c.Bool("json") {
				return raw(c, path, nil)
			}
			client, err := clientOf(c)
			if err != nil {
				return err
			}
			w := tabwriter.NewWriter(c.App.Writer, 0, 0, 2, ' ', 0)
			if err := print(c.Context, c, client, w); err != nil {
				return fail(statusRuntime, err)
			}
			return w.Flush()
		},
	}
}

func showLinks() *cli.Command {
	return &cli.Command{
		Name:  "links",
		Usage: "the link table",
		Flags: clientFlags(
			&cli.StringFlag{Name: "address", Usage: "only links with this `ADDRESS` or network at either end"},
			&cli.StringFlag{Name: "port", Usage: "only links with this `PORT` or ICMP id"},
			&cli.StringFlag{Name: "proto", Usage: "only links of `PROTO`: tcp, udp, icmp or a number"},
			&cli.StringFlag{Name: "state", Usage: "only links in `STATE`: opening, established, closing or active"},
			&cli.IntFlag{Name: "limit", Usage: "at most `N` links, 0 for all"},
		),
		Action: func(c *cli.Context) error {
			if err := noArgs(c); err != nil {
				return err
			}
			f := control.Filter{Address: c.String("address"), Port: c.String("port"), Proto: c.String("proto"), State: c.String("state"), Limit: c.Int("limit")}
			if f.Limit < 0 {
				return errors.New("--limit: must not be negative; allowed: a number, 0 for all")
			}
			if c.Bool("json") {
				return raw(c, "/v1/links", f.Query())
			}
			client, err := clientOf(c)
			if err != nil {
				return err
			}
			return fail(statusRuntime, printLinks(c, client, f))
		},
	}
}

// printLinks prints as links arrive: fixed columns, since a table can't be held back to be measured.
func printLinks(c *cli.Context, client *control.Client, f control.Filter) error {
	const row = "%-5s  %-21s  %-21s  %-21s  %-11s  %8s  %6s  %-6s  %s\n"
	w, count := bufio.NewWriter(c.App.Writer), 0
	fmt.Fprintf(w, row, "PROTO", "LOCAL", "ALIAS", "REMOTE", "STATE", "EXPIRES", "WORKER", "OPENED", "PACKETS")
	more, err := client.Links(c.Context, f, func(l *control.Link) error {
		count++
		opened := "out" // by the inside host, outbound
		if l.Inbound {
			opened = "in"
		}
		_, err := fmt.Fprintf(w, row, l.Proto, l.Local, l.Alias, l.Remote, l.State, fmt.Sprintf("%ds", l.ExpiresIn), fmt.Sprint(l.Worker), opened, fmt.Sprint(l.Packets))
		return err
	})
	if err != nil {
		return err
	}
	if more {
		fmt.Fprintf(w, "%d links shown, there are more\n", count)
	}
	return w.Flush()
}

func printWorkers(ctx context.Context, _ *cli.Context, client *control.Client, w io.Writer) error {
	workers, err := client.Workers(ctx)
	if err != nil {
		return err
	}
	fmt.Fprintln(w, "WORKER\tCORE\tQUEUE\tRECEIVED\tTRANSLATED\tFORWARDED\tTRANSMITTED\tDROPPED\tLINKS\tSLEEPS\tLEAKED\tFRAMES\tHANDED OVER\tTAKEN\tWHY")
	for _, s := range workers {
		var places []string
		for _, place := range slices.Sorted(maps.Keys(s.Frames)) {
			places = append(places, fmt.Sprintf("%s %d", place, s.Frames[place]))
		}
		var why []string
		for _, name := range slices.Sorted(maps.Keys(s.HandedWhy)) {
			why = append(why, fmt.Sprintf("%s %d", name, s.HandedWhy[name]))
		}
		share := 0.0 // of what came in by this worker's queues
		if s.Received > 0 {
			share = 100 * float64(s.HandedOut) / float64(s.Received)
		}
		fmt.Fprintf(w, "%d\t%d\t%d\t%d\t%d\t%d\t%d\t%d\t%d\t%d\t%d\t%s\t%d (%.0f%%)\t%d\t%s\n", s.Worker, s.Core, s.Queue, s.Received, s.Translated,
			s.Forwarded, s.Sent, s.Dropped, s.Links, s.Sleeps, s.Leaked, strings.Join(places, ", "),
			s.HandedOut, share, s.HandedIn, strings.Join(why, ", "))
	}
	return nil
}

func printPorts(ctx context.Context, _ *cli.Context, client *control.Client, w io.Writer) error {
	ports, err := client.Ports(ctx)
	if err != nil {
		return err
	}
	fmt.Fprintln(w, "PORT\tROLE\tSTATE\tMODE\tXDP\tMAC\tMTU\tADDRESS\tQUEUES\tRX\tTX\tTO KERNEL\tRX DROPPED\tRX FULL\tFILL EMPTY\tTX INVALID")
	for _, p := range ports {
		state := "down"
		if p.Up {
			state = "up"
		}
		queues := strings.Trim(strings.ReplaceAll(fmt.Sprint(p.Queues), " ", ","), "[]")
		fmt.Fprintf(w, "%s\t%s\t%s\t%s\t%s\t%s\t%d\t%s\t%s\t%d\t%d\t%d\t%d\t%d\t%d\t%d\n", p.Name, p.Role, state, p.Mode, p.XDP, p.MAC, p.MTU,
			p.Address, queues, p.RX, p.TX, p.Passed, p.RXDropped, p.RXFull, p.FillEmpty, p.TXInvalid)
	}
	return nil
}

func printDrops(ctx context.Context, c *cli.Context, client *control.Client, w io.Writer) error {
	drops, err := client.Drops(ctx)
	if err != nil {
		return err
	}
	fmt.Fprintln(w, "REASON\tCOUNT\tWHAT IT MEANS")
	for _, d := range drops {
		if d.Count > 0 || c.Bool("all") {
			fmt.Fprintf(w, "%s\t%d\t%s\n", d.Name, d.Count, d.Help)
		}
	}
	return nil
}

func showConfig() *cli.Command {
	return &cli.Command{
		Name:  "config",
		Usage: "the configuration in force, defaults included, as a file that would set it",
		Flags: clientFlags(),
		Action: func(c *cli.Context) error {
			if err := noArgs(c); err != nil {
				return err
			}
			if c.Bool("json") {
				return raw(c, "/v1/config", nil)
			}
			return raw(c, "/v1/config", url.Values{"format": {"yaml"}})
		},
	}
}
