package main

import (
	"errors"
	"fmt"
	"io"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/urfave/cli/v2"

	"pollux/internal/config"
	"pollux/internal/control"
	"pollux/internal/history"
	"pollux/internal/packet"
	"pollux/nat"
	"pollux/pmd"
)

func whoHadCommand() *cli.Command {
	return &cli.Command{
		Name:      "who-had",
		Usage:     "say which inside host has, or had, an alias address and port",
		ArgsUsage: "ADDR:PORT[/PROTO]",
		Description: "Without --at: what the running gateway knows now. The past is known from two sources only: a kept translation\n" +
			"log (--log, docs/logging.md; no gateway is asked), or nat.deterministic, by which a port's owner is computed and\n" +
			"the same at all times, as long as the configuration is: with -c FILE no gateway is asked either.\n\n" +
			"   pollux who-had 203.0.113.1:5000/udp\n" +
			"   pollux who-had 203.0.113.1:5000 --at 2026-11-30T15:04:05Z -c /etc/pollux/pollux.yaml\n" +
			"   pollux who-had 203.0.113.1:5000 --at 2026-11-30T15:04:05Z --log /var/log/pollux.1 --log /var/log/pollux",
		Flags: clientFlags(
			&cli.StringFlag{Name: "at", Usage: "`TIME`: 2026-11-30T15:04:05Z, '2026-11-30 15:04:05' (local time), or @SECONDS"},
			&cli.StringSliceFlag{Name: "log", Usage: "a syslog `FILE` of the gateway, oldest first if several; - is standard input"},
		),
		Action: func(c *cli.Context) error {
			if c.Args().Len() != 1 {
				return errors.New("who-had: which endpoint? allowed: one ADDR:PORT or ADDR:PORT/PROTO as 203.0.113.1:5000/udp")
			}
			alias, proto, err := control.ParseWhose(c.Args().First())
			if err != nil {
				return fmt.Errorf("who-had: %w", err)
			}
			at, err := parseTime(c.String("at"), time.Now())
			if err != nil {
				return err
			}
			if files := c.StringSlice("log"); len(files) > 0 {
				logs, closeAll, err := openLogs(files)
				if err != nil {
					return err
				}
				defer closeAll()
				a, err := history.Read(alias, proto, logs...)
				if err != nil {
					return fail(statusRuntime, fmt.Errorf("--log %s: %w", strings.Join(files, ", "), err))
				}
				return whoInLog(c, alias.String(), &a, at)
			}
			if file := given(c, "config"); file != "" && !at.IsZero() {
				if w, err := computedBy(file, alias); w != nil || err != nil {
					if err != nil {
						return err
					}
					return whoComputed(c, w, at, "what "+file+" says")
				}
			}
			client, err := clientOf(c)
			if err != nil {
				return err
			}
			w, err := client.WhoHad(c.Context, alias.String(), proto)
			if err != nil {
				return fail(statusRuntime, err)
			}
			if !at.IsZero() {
				return whoComputed(c, &w, at, "what they are now")
			}
			if c.Bool("json") {
				return printJSON(c.App.Writer, w)
			}
			whoNow(c.App.Writer, &w)
			return nil
		},
	}
}

// parseTime reads --at; the zero Time: not given.
func parseTime(s string, now time.Time) (t time.Time, err error) {
	if s == "" {
		return t, nil
	}
	if n, e := strconv.ParseInt(strings.TrimPrefix(s, "@"), 10, 64); e == nil && s[0] == '@' {
		t = time.Unix(n, 0)
	} else if t, err = time.Parse(time.RFC3339Nano, s); err != nil {
		for _, layout := range []string{"2006-01-02T15:04:05", time.DateTime, "2006-01-02 15:04"} {
			if t, err = time.ParseInLocation(layout, s, time.Local); err == nil {
				break
			}
		}
	}
	switch {
	case err != nil:
		return t, fmt.Errorf("--at: is %q; allowed: 2026-11-30T15:04:05Z, '2026-11-30 15:04:05' in local time, or @SECONDS since 1970", s)
	case t.After(now):
		return t, fmt.Errorf("--at: %s is in the future", s)
	}
	return t, nil
}

func openLogs(files []string) (logs []io.Reader, closeAll func(), err error) {
	var open []*os.File
	closeAll = func() {
		for _, f := range open {
			f.Close()
		}
	}
	for _, name := range files {
		if name == "-" {
			logs = append(logs, os.Stdin)
			continue
		}
		f, err := os.Open(name)
		if err != nil {
			closeAll()
			return nil, nil, fmt.Errorf("--log: %w", err)
		}
		open, logs = append(open, f), append(logs, f)
	}
	return logs, closeAll, nil
}

const stamp = "2006-01-02 15:04:05.000Z"

// whoInLog tells what a log says, of one time or of all.
func whoInLog(c *cli.Context, alias string, a *history.Answer, at time.Time) error {
	if !at.IsZero() && at.Before(a.First) {
		return fail(statusRuntime, fmt.Errorf("who-had: the log begins at %s: it says nothing about %s; give an older one besides, before it", a.First.UTC().Format(stamp), at.UTC().Format(stamp)))
	}
	list := []history.Holder{}
	for _, h := range a.Holders {
		if at.IsZero() || h.At(at) {
			list = append(list, h)
		}
	}
	a.Holders = list
	w := c.App.Writer
	if c.Bool("json") {
		return printJSON(w, struct {
			Alias string     `json:"alias"`
			At    *time.Time `json:"at"`
			*history.Answer
		}{alias, timeOrNil(at), a})
	}
	for _, h := range list {
		who := h.Host
		if h.Proto != "" {
			who = h.Proto + " " + who
		}
		if h.Remote != "" {
			who += " to " + h.Remote
		}
		until := "on (no end is logged)"
		switch {
		case h.Ended == "restart":
			until = "to " + h.To.UTC().Format(stamp) + " at the latest (the gateway stopped or began anew)"
		case !h.To.IsZero():
			until = "to " + h.To.UTC().Format(stamp)
		}
		by := h.By
		if h.Ports != "" {
			by += " " + h.Ports
		}
		fmt.Fprintf(w, "%s: from %s %s, by %s\n", who, h.From.UTC().Format(stamp), until, by)
	}
	if len(list) == 0 {
		fmt.Fprintf(w, "%s: nobody, says the log\n", alias)
	}
	if at.After(a.Last) {
		fmt.Fprintf(w, "the log ends at %s, before the time asked for\n", a.Last.UTC().Format(stamp))
	}
	if a.Lost > 0 {
		fmt.Fprintf(w, "%d events are missing in the log: there may have been others\n", a.Lost)
	}
	return nil
}

func timeOrNil(t time.Time) *time.Time {
	if t.IsZero() {
		return nil
	}
	return &t
}

// computedBy asks a configuration alone; nil: it does not say, for its nat.deterministic is off or its alias address is the port's.
func computedBy(file string, alias netip.AddrPort) (*control.Whose, error) {
	cfg, err := config.Load(file, nil, config.Run)
	if err != nil || cfg.AliasPort() {
		return nil, err
	}
	rules := cfg.Rules()
	host, on, err := pmd.Computed(&rules, nat.Alias{Addr: packet.AddrFrom(alias.Addr()), Port: alias.Port()})
	if err != nil || !on {
		return nil, err
	}
	w := &control.Whose{Alias: alias.String(), Computed: &control.Computed{}}
	if host != 0 {
		w.Computed.Host = host.String()
	}
	return w, nil
}

// whoComputed tells of the past by the deterministic mapping alone, if the configuration was then as told.
func whoComputed(c *cli.Context, w *control.Whose, at time.Time, as string) error {
	if w.Computed == nil {
		return fail(statusRuntime, errors.New("who-had: the gateway keeps no past; give the log with --log (log.syslog with log.level: block or session writes one), or use nat.deterministic, which needs none"))
	}
	if c.Bool("json") {
		return printJSON(c.App.Writer, struct {
			Alias    string            `json:"alias"`
			At       time.Time         `json:"at"`
			Computed *control.Computed `json:"computed"`
			Assuming string            `json:"assuming"`
		}{w.Alias, at, w.Computed, "nat.deterministic, nat.alias and nat.port_range were then " + as})
	}
	host := w.Computed.Host
	if host == "" {
		host = "nobody"
	}
	_, err := fmt.Fprintf(c.App.Writer, "%s: %s, by nat.deterministic, if nat.deterministic, nat.alias and nat.port_range were then %s\n", w.Alias, host, as)
	return err
}

// whoNow tells what the gateway knows.
func whoNow(w io.Writer, a *control.Whose) {
	fmt.Fprintln(w, a.Alias)
	for _, h := range a.Now {
		switch h.Owner {
		case "nobody":
			fmt.Fprintf(w, "  %s: nobody's\n", h.Proto)
		case "kernel":
			fmt.Fprintf(w, "  %s: the gateway's own: a socket of its kernel has the port\n", h.Proto)
		case "redirect":
			fmt.Fprintf(w, "  %s: published by a redirect\n", h.Proto)
		default:
			fmt.Fprintf(w, "  %s: worker %d's\n", h.Proto, *h.Worker)
		}
		for _, r := range h.Redirects {
			fmt.Fprintf(w, "    redirect %d leads to %s\n", r.ID, strings.Join(r.Local, ", "))
		}
		if b := h.Block; b != nil {
			fmt.Fprintf(w, "    block %d-%d of host %s, %s\n", b.Low, b.High, b.Host, b.State)
		}
		for _, l := range h.Links {
			fmt.Fprintf(w, "    %s to %s, %s, made %d s ago\n", l.Local, l.Remote, l.State, l.Age)
		}
		if h.More {
			fmt.Fprintf(w, "    and more links: pollux show links --alias ADDR --port PORT lists them\n")
		}
	}
	if a.Computed != nil {
		host := a.Computed.Host
		if host == "" {
			host = "nobody"
		}
		fmt.Fprintf(w, "  by nat.deterministic, at any time: %s\n", host)
	}
}
