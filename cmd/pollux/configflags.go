package main

import (
	"flag"
	"strings"

	"github.com/urfave/cli/v2"

	"pollux/internal/config"
)

// configFlags are the flags that stand for keys of the configuration. They only collect what was given, in order;
// internal/config reads and checks it, as it does the file.
type configFlags struct{ args []config.Arg }

// arg is one flag under one name.
type arg struct {
	flags  *configFlags
	name   string
	isBool bool
}

func (a *arg) Set(value string) error {
	a.flags.args = append(a.flags.args, config.Arg{Name: a.name, Value: value})
	return nil
}

func (a *arg) String() string   { return "" }
func (a *arg) IsBoolFlag() bool { return a.isBool }

var _ flag.Value = (*arg)(nil)

// list makes the flags for those keys that keep picks. Each name is a flag of its own, so that an error can say which was given.
func (f *configFlags) list(keep func(config.Flag) bool) []cli.Flag {
	out := []cli.Flag{&cli.StringFlag{Name: "config", Aliases: []string{"c"}, Usage: "read the configuration from `FILE` (YAML); flags override it"}}
	for _, k := range config.Flags() {
		if !keep(k) {
			continue
		}
		for i, name := range k.Names {
			out = append(out, f.one(k, name, i > 0 || k.Key == "ports" || k.Key == "mode"))
		}
	}
	return out
}

func (f *configFlags) one(k config.Flag, name string, short bool) cli.Flag {
	usage := k.Usage
	switch {
	case k.Multi:
		usage += " (repeatable)"
	case short:
		usage += " (" + k.Key + ")"
	}
	category := "Every key of the file"
	if short {
		category = "Daily few"
	}
	return &cli.GenericFlag{
		Name: name, Usage: usage, Category: category, DefaultText: k.Default,
		Value: &arg{flags: f, name: name, isBool: k.Bool},
	}
}

// forCheck keeps all; forGateway leaves out what only a replay reads.
func forCheck(config.Flag) bool     { return true }
func forGateway(f config.Flag) bool { return !strings.HasPrefix(f.Key, "replay.") }

// load reads the configuration that the command line asks for.
func (f *configFlags) load(c *cli.Context, use config.Use) (*config.Config, error) {
	if err := noArgs(c); err != nil {
		return nil, err
	}
	return config.Load(c.String("config"), f.args, use)
}

// joinBools lets the flag of a yes-or-no key take its value as the next word, as the flags of all other keys do: package flag
// knows only --name and --name=value for these.
func joinBools(args []string) []string {
	bools := map[string]bool{}
	for _, k := range config.Flags() {
		for _, name := range k.Names {
			bools[name] = k.Bool
		}
	}
	out := make([]string, 0, len(args))
	for i := 0; i < len(args); i++ {
		a := args[i]
		if name := strings.TrimLeft(a, "-"); name != a && bools[name] && i+1 < len(args) && (args[i+1] == "true" || args[i+1] == "false") {
			i++
			a += "=" + args[i]
		}
		out = append(out, a)
	}
	return out
}
