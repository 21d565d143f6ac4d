package main

import "github.com/urfave/cli/v2"

// commands lists them in the order of the help page.
func commands() []*cli.Command {
	return []*cli.Command{
		runCommand(),
		checkCommand(),
		demoCommand(),
		doctorCommand(),
		replayCommand(),
		showCommand(),
		topCommand(),
		captureCommand(),
		deleteCommand(),
		whoHadCommand(),
		explainCommand(),
		reloadCommand(),
		redirectCommand(),
		drainCommand(),
		restartCommand(),
		succeedCommand(),
		rtcacheCommand(),
		pktgenCommand(),
		perfCommand(),
		completionCommand(),
		manCommand(),
		versionCommand(),
	}
}
