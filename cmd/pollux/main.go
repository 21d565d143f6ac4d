// Command pollux is a NAT gateway over AF_XDP, and the tools around it.
package main

import (
	"errors"
	"fmt"
	"io"
	"os"
	"strings"

	"github.com/urfave/cli/v2"
)

// Exit statuses. A command that could not even begin exits with statusUsage and has changed nothing.
const (
	statusOK      = 0
	statusRuntime = 1 // it began and failed: a worker died, a capture is unreadable, nobody answers
	statusUsage   = 2 // bad flags, bad configuration, start refused
)

// exitError carries an exit status along with the one line that explains it.
type exitError struct {
	status int
	err    error
}

func (e *exitError) Error() string { return e.err.Error() }
func (e *exitError) Unwrap() error { return e.err }

func fail(status int, err error) error {
	if err == nil {
		return nil
	}
	return &exitError{status, err}
}

func main() { os.Exit(start(os.Args, os.Stdout, os.Stderr)) }

// start runs one command and returns its exit status. An error is one line on stderr.
func start(args []string, stdout, stderr io.Writer) int {
	if len(args) > 1 && args[1] == completeName {
		complete(args[2:], stdout)
		return statusOK
	}
	err := newApp(stdout, stderr).Run(joinBools(watchAlone(flagsFirst(args))))
	if err == nil {
		return statusOK
	}
	status := statusUsage
	var e *exitError
	if errors.As(err, &e) {
		status = e.status
	}
	if line := strings.Join(strings.Fields(err.Error()), " "); line != "" {
		fmt.Fprintln(stderr, line)
	}
	return status
}

func newApp(stdout, stderr io.Writer) *cli.App {
	app := &cli.App{
		Name:  "pollux",
		Usage: "NAT gateway over AF_XDP",
		Description: "pollux translates between inside and outside ports in user space, a whole queue of a network\n" +
			"card to a core. Start with `pollux doctor`, then\n\n" +
			"   pollux run --inside eth1 --outside eth0 --alias 203.0.113.1\n\n" +
			"Exit status: 0 all went well, 1 it ran and failed, 2 it did not start (nothing was changed).",
		Writer:                    stdout,
		ErrWriter:                 stderr,
		HideVersion:               true,
		DisableSliceFlagSeparator: true,
		ExitErrHandler:            func(*cli.Context, error) {}, // start prints and decides
		Action:                    noSuchCommand,
		Commands:                  commands(),
	}
	for _, c := range app.Commands {
		finish(c)
	}
	app.OnUsageError = usageError
	return app
}

// finish gives every command, however deep, the same way of refusing bad usage.
func finish(c *cli.Command) {
	c.OnUsageError = usageError
	c.HideHelpCommand = true
	if c.Action == nil {
		c.Action = noSuchCommand
	}
	for _, sub := range c.Subcommands {
		finish(sub)
	}
}

// noSuchCommand is the action of what only groups commands.
func noSuchCommand(c *cli.Context) error {
	if !c.Args().Present() {
		return cli.ShowSubcommandHelp(c)
	}
	var names []string
	list := c.App.Commands
	if len(c.Command.Subcommands) > 0 {
		list = c.Command.Subcommands
	}
	for _, sub := range list {
		names = append(names, sub.Name)
	}
	return fmt.Errorf("%s: no such command %q; allowed: %s", c.Command.HelpName, c.Args().First(), strings.Join(names, ", "))
}

// usageError turns the flag parser's complaint into our one line.
func usageError(c *cli.Context, err error, _ bool) error {
	what := err.Error()
	if name, ok := strings.CutPrefix(what, "flag provided but not defined: -"); ok {
		what = fmt.Sprintf("--%s: no such flag", name)
	} else if name, ok := strings.CutPrefix(what, "flag needs an argument: -"); ok {
		dashes := "--"
		if len(name) == 1 {
			dashes = "-"
		}
		what = fmt.Sprintf("%s%s: needs a value", dashes, name)
	}
	return fmt.Errorf("%s; `%s --help` lists the flags", what, c.Command.HelpName)
}

// noArgs refuses stray words after the flags.
func noArgs(c *cli.Context) error {
	if c.Args().Present() {
		return fmt.Errorf("%s: unexpected argument %q; `%s --help` lists the flags", c.Command.HelpName, c.Args().First(), c.Command.HelpName)
	}
	return nil
}
