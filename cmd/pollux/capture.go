package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"os"
	"os/signal"
	"strconv"
	"syscall"
	"time"

	"github.com/urfave/cli/v2"

	"pollux/internal/control"
)

// captureEnd is how long the gateway may take to end a capture that it was asked to end.
const captureEnd = 5 * time.Second

func captureCommand() *cli.Command {
	flags := clientFlags(
		&cli.StringFlag{Name: "write", Aliases: []string{"w"}, Usage: "pcapng `FILE`, - for standard output", Required: true},
		&cli.StringFlag{Name: "stage", Usage: "any of rx (as received), nat (as sent, after translation), drop (not sent on), with commas; all when left out"},
		&cli.StringFlag{Name: "address", Usage: "only packets from or to this `ADDRESS` or network"},
		&cli.StringFlag{Name: "port", Usage: "only packets with this TCP or UDP `PORT`, or echoes with this id"},
		&cli.StringFlag{Name: "proto", Usage: "only packets of `PROTO`: tcp, udp, icmp or a number"},
		&cli.StringFlag{Name: "reason", Usage: "only packets dropped for `REASON`, as show drops names it"},
		&cli.StringFlag{Name: "device", Usage: "only at this `PORT` of the gateway, by its name"},
		&cli.IntFlag{Name: "snaplen", Usage: "at most `N` bytes of each packet, from 64; all when left out"},
		&cli.IntFlag{Name: "count", Usage: "stop after `N` packets"},
		&cli.DurationFlag{Name: "time", Usage: "stop after `DURATION`, in whole seconds"},
		&cli.IntFlag{Name: "buffer", Usage: "memory for each worker in `MiB`", DefaultText: "8"},
	)
	return &cli.Command{
		Name:  "capture",
		Usage: "copy packets of a running gateway to a file for Wireshark",
		Description: "Packets are copied where the gateway receives them, where it sends them, and where it drops them, with the\n" +
			"reason as the packet's comment. Filters are those of `pollux show links`; there are no pcap expressions. What\n" +
			"a filter picks when it is received, it picks at the later stages too, whatever translation makes of it:\n" +
			"both have one packet id.\n\n" +
			"   pollux capture -w all.pcapng --count 1000\n" +
			"   pollux capture -w - --stage drop --address 10.0.0.7 | tshark -r - -T fields -e frame.comment\n\n" +
			"Ctrl-C ends it; the file is whole. It never holds up a packet: what is too fast for the buffer is not\n" +
			"captured, and counted.",
		Flags: withoutFlag(flags, "json"),
		Action: func(c *cli.Context) error {
			if err := noArgs(c); err != nil {
				return err
			}
			q, err := captureQuery(c)
			if err == nil {
				err = control.CheckCapture(q)
			}
			if err != nil {
				return err
			}
			client, err := clientOf(c)
			if err != nil {
				return err
			}
			return fail(statusRuntime, runCapture(c, client, q))
		},
	}
}

func withoutFlag(flags []cli.Flag, name string) (list []cli.Flag) {
	for _, f := range flags {
		if f.Names()[0] != name {
			list = append(list, f)
		}
	}
	return list
}

// captureQuery turns flags into the API's parameters.
func captureQuery(c *cli.Context) (url.Values, error) {
	q := url.Values{}
	for _, name := range []string{"stage", "address", "port", "proto", "reason", "device"} {
		if c.IsSet(name) {
			q.Set(name, c.String(name))
		}
	}
	for _, name := range []string{"snaplen", "count", "buffer"} {
		if c.IsSet(name) {
			q.Set(name, strconv.Itoa(c.Int(name)))
		}
	}
	if d := c.Duration("time"); c.IsSet("time") {
		if d < time.Second || d%time.Second != 0 {
			return nil, fmt.Errorf("--time: is %v; allowed: whole seconds, from 1s", d)
		}
		q.Set("seconds", strconv.Itoa(int(d/time.Second)))
	}
	return q, nil
}

// runCapture copies the stream until it ends. A first signal asks the gateway to end it, so that it ends with its counts.
func runCapture(c *cli.Context, client *control.Client, q url.Values) (err error) {
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, os.Interrupt, syscall.SIGTERM)
	defer signal.Stop(signals)
	ctx, cancel := context.WithCancel(c.Context)
	defer cancel()

	to := io.Writer(c.App.Writer)
	name := c.String("write")
	if name == "-" && isTerminal(to) {
		return errors.New("--write: - is a terminal; allowed: a file, or a pipe as in: pollux capture -w - | wireshark -k -i -")
	}
	body, err := client.Raw(ctx, "/v1/capture", q)
	if err != nil {
		return err
	}
	defer body.Close()
	if name != "-" {
		f, err := os.Create(name)
		if err != nil {
			return fmt.Errorf("--write: %w", err)
		}
		defer func() { err = errors.Join(err, f.Close()) }()
		to = f
	}
	fmt.Fprintln(c.App.ErrWriter, "capturing; Ctrl-C ends it")
	go func() {
		select {
		case <-signals:
		case <-ctx.Done():
			return
		}
		late := time.AfterFunc(captureEnd, cancel)
		defer late.Stop()
		if client.StopCapture(ctx) != nil {
			cancel()
		}
		select {
		case <-signals:
			cancel()
		case <-ctx.Done():
		}
	}()
	out := &flushingWriter{w: bufio.NewWriter(to), live: name == "-"}
	r, err := control.CopyCapture(out, body)
	if e := out.w.Flush(); e != nil && err == nil {
		err = e
	}
	switch {
	case errors.Is(err, syscall.EPIPE):
		err = nil // whoever read it has seen enough
	case err != nil && ctx.Err() != nil:
		err = nil // it was told to end, and did not end by itself
	case err != nil:
		err = fmt.Errorf("the capture broke off: %w", err)
	}
	if r.Whole {
		fmt.Fprintf(c.App.ErrWriter, "%d packets captured, %d were too fast for the buffer\n", r.Packets, r.Lost)
	} else {
		fmt.Fprintf(c.App.ErrWriter, "%d packets captured\n", r.Packets)
	}
	return err
}

// flushingWriter passes each block on at once when somebody looks at it live.
type flushingWriter struct {
	w    *bufio.Writer
	live bool
}

func (f *flushingWriter) Write(b []byte) (int, error) {
	n, err := f.w.Write(b)
	if err == nil && f.live {
		err = f.w.Flush()
	}
	return n, err
}
