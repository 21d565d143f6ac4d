package main

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"

	"pollux/internal/control"
)

func explainCommand() *cli.Command {
	return &cli.Command{
		Name:      "explain",
		Usage:     "say what a running gateway would do with a packet, and why, without sending it",
		ArgsUsage: `PACKET`,
		Description: "Goes through the stages that a packet goes through, by the tables that it would meet now, and leaves no\n" +
			"trace. --in names the port that it comes in by; without it that is the one that leads back to its source.\n\n" +
			"   pollux explain udp 10.0.0.2:5000 198.51.100.9:53\n" +
			"   pollux explain --in eth0 tcp 198.51.100.9:4000 203.0.113.1:443 syn\n" +
			"   pollux explain 'icmp 10.0.0.2 -> 198.51.100.9 ttl 1'\n" +
			"   pollux explain 45 00 00 1c 00 01 00 00 40 11 ...\n\n" +
			"In words: PROTO SRC[:PORT] DST[:PORT], an arrow between the two if it is quoted, then what matters of: ttl N, len N,\n" +
			"df, id N and reply (icmp: otherwise an echo request), syn, ack, fin, rst (tcp: otherwise syn). In hex: an IPv4\n" +
			"packet, or a frame with its Ethernet header, as tcpdump -XX prints it without offsets and text.",
		Flags: clientFlags(&cli.StringFlag{Name: "in", Usage: "the `PORT` that the packet comes in by"}),
		Action: func(c *cli.Context) error {
			text := strings.Join(c.Args().Slice(), " ")
			if text == "" {
				return errors.New("explain: which packet? allowed: as \"udp 10.0.0.2:5000 -> 198.51.100.9:53\", or hex; `pollux explain --help` says more")
			}
			if _, err := control.ParsePacket(text); err != nil {
				return fmt.Errorf("explain: %w", err)
			}
			client, err := clientOf(c)
			if err != nil {
				return err
			}
			if c.Bool("json") {
				q := map[string][]string{"packet": {text}}
				if c.IsSet("in") {
					q["in"] = []string{c.String("in")}
				}
				return raw(c, "/v1/explain", q)
			}
			x, err := client.Explain(c.Context, text, c.String("in"))
			if err != nil {
				return fail(statusRuntime, err)
			}
			fmt.Fprintf(c.App.Writer, "%s\n", x.Packet)
			for _, s := range x.Stages {
				fmt.Fprintf(c.App.Writer, "  %-6s %-10s %s\n", s.Stage, s.Decision, s.Why)
			}
			end := x.Outcome
			switch x.Outcome {
			case "forward":
				end = fmt.Sprintf("forward: leaves by %s as %s -> %s", x.Egress, x.Src, x.Dst)
				if x.SrcPorts != "" {
					end += fmt.Sprintf(", its source port one of %s", x.SrcPorts)
				}
			case "drop":
				end = "drop: " + x.Reason
				if x.ICMP != "" {
					end += ", the sender gets ICMP " + x.ICMP
				}
			}
			if x.Chance {
				end += " (or otherwise: it hangs on a choice left to chance)"
			}
			_, err = fmt.Fprintf(c.App.Writer, "%s\n", end)
			return err
		},
	}
}

// flagsFirst lets the commands that take words have their flags behind them too.
func flagsFirst(args []string) []string {
	if len(args) < 2 {
		return args
	}
	names := map[string]int{"explain": 2, "who-had": 2, "redirect": 4}[args[1]] // words of the command's name, the program's included
	if names == 0 || len(args) < names {
		return args
	}
	var flags, words []string
	for i := names; i < len(args); i++ {
		a := args[i]
		if !strings.HasPrefix(a, "-") || a == "-" || a == "->" {
			words = append(words, a)
			continue
		}
		flags = append(flags, a)
		name := strings.TrimLeft(a, "-")
		if slices.Contains([]string{"in", "control", "config", "c", "at", "log"}, name) && i+1 < len(args) {
			i++
			flags = append(flags, args[i])
		}
	}
	return slices.Concat(args[:names], flags, words)
}
