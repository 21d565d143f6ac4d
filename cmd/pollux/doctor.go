package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"

	"github.com/urfave/cli/v2"

	"pollux/internal/config"
	"pollux/internal/doctor"
	"pollux/nat"
	"pollux/pmd"
)

// linkBytes is about what one link takes with its share of all indexes.
const linkBytes = 200

var errUnfit = errors.New("pollux can't run like this")

func doctorCommand() *cli.Command {
	flags := &configFlags{}
	return &cli.Command{
		Name:  "doctor",
		Usage: "say what on this machine stands in the way, and the command that mends it",
		Description: "Takes the flags and the configuration file of `pollux run`, looks at the machine and the ports as that\n" +
			"would use them, and changes nothing. Without ports only the machine is looked at.\n\n" +
			"   pollux doctor --inside eth1 --outside eth0 --cores 2 --queues 0\n\n" +
			"Exit status: 0 nothing fails (warnings don't count), 1 something does, 2 bad usage.",
		Flags: append(flags.list(forGateway), &cli.BoolFlag{Name: "json", Usage: "the results as JSON"}),
		Action: func(c *cli.Context) error {
			o, err := doctorOptions(c, flags)
			if err != nil {
				return fail(statusUsage, err)
			}
			results := doctor.Examine(o)
			if c.Bool("json") {
				e := json.NewEncoder(c.App.Writer)
				e.SetIndent("", "  ")
				err = e.Encode(struct {
					Level   doctor.Level    `json:"level"`
					Results []doctor.Result `json:"results"`
				}{doctor.Worst(results), results})
			} else {
				err = printDoctor(c.App.Writer, o, results)
			}
			if err != nil {
				return err
			}
			if doctor.Worst(results) == doctor.Fail {
				return fail(statusRuntime, errUnfit)
			}
			return nil
		},
	}
}

// doctorOptions reads the configuration as `pollux run` would. An alias address need not be given: the doctor then
// assumes the outside port's own.
func doctorOptions(c *cli.Context, flags *configFlags) (doctor.Options, error) {
	if c.String("config") == "" {
		if len(flags.args) == 0 {
			return doctor.Options{}, noArgs(c)
		}
		if !slices.ContainsFunc(flags.args, func(a config.Arg) bool { return a.Name == "alias" || a.Name == "nat-alias" }) {
			flags.args = append(flags.args, config.Arg{Name: "alias", Value: "port"})
		}
	}
	cfg, err := flags.load(c, config.Run)
	if err != nil {
		return doctor.Options{}, err
	}
	return doctorOf(cfg.Gateway()), nil
}

// doctorOf turns what the dataplane would run with into what the doctor looks at.
func doctorOf(g pmd.Options) doctor.Options {
	o := doctor.Options{
		Cores: g.Cores, Queues: g.Queues, Oversubscribe: g.Oversubscribe, SteerFlow: g.SteerFlow,
		SamePorts: g.Rules.SamePorts, PerPeer: g.Rules.Mapping.TCP == nat.AddressAndPortDependent || g.Rules.Mapping.UDP == nat.AddressAndPortDependent,
		Adaptive: g.Idle == pmd.Adaptive, RTPriority: g.RTPriority, ZeroCopy: g.Mode == pmd.ModeZeroCopy, RingSize: g.RingSize,
		PortLow: g.Rules.PortRange.Low, PortHigh: g.Rules.PortRange.High, AliasPort: g.AliasPort,
		TableBytes: uint64(g.Limits.Links) * linkBytes,
	}
	for _, p := range g.Ports {
		o.Ports = append(o.Ports, doctor.Port{Name: p.Name, Inside: p.Side == nat.Inside})
	}
	for _, a := range g.Rules.Alias {
		o.Alias = append(o.Alias, netip.Addr(a.Netip()))
	}
	return o
}

func printDoctor(w io.Writer, o doctor.Options, results []doctor.Result) error {
	warnings, failures := 0, 0
	for _, r := range results {
		switch r.Level {
		case doctor.Warn:
			warnings++
		case doctor.Fail:
			failures++
		}
		fmt.Fprintf(w, "%-4s  %-10s  %-22s %s\n", r.Level, r.Object, r.Check, r.Found)
		if r.Mend != "" {
			fmt.Fprintf(w, "%18s  %22s mend: %s\n", "", "", r.Mend)
		}
	}
	if len(o.Ports) == 0 {
		fmt.Fprintln(w, "No ports were named, so only the machine was looked at: pollux doctor --inside eth1 --outside eth0")
	}
	_, err := fmt.Fprintf(w, "%d checks, %d warnings, %d failures\n", len(results), warnings, failures)
	return err
}
