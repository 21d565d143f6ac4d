package main

import "github.com/urfave/cli/v2"

func perfCommand() *cli.Command {
	return &cli.Command{
		Name:        "perf",
		Usage:       "measure what pollux is made of",
		Subcommands: perfScenarios(),
	}
}

// perfScenarios lists them in the order of the help page: first those in memory, then those with network devices.
func perfScenarios() []*cli.Command {
	return []*cli.Command{
		libaliasCommand(),
		oneGroupCommand(),
		establishedCommand(),
		newFlowsCommand(),
		exhaustionCommand(),
		routesCommand(),
		clockCommand(),
		handoffCommand(),

		l2fwdCommand(),
		labCommand(),
		ndrCommand(),
		soakCommand(),
		reportCommand(),
	}
}
