package main

import (
	"encoding/json"
	"fmt"
	"runtime"
	"runtime/debug"

	"github.com/urfave/cli/v2"
)

// version says what this binary was built from. Fields the build did not record are empty.
type version struct {
	Version  string `json:"version"`
	Revision string `json:"revision"`
	Time     string `json:"time"`
	Modified bool   `json:"modified"`
	Go       string `json:"go"`
	Platform string `json:"platform"`
}

func buildVersion() version {
	v := version{Version: "(devel)", Go: runtime.Version(), Platform: runtime.GOOS + "/" + runtime.GOARCH}
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return v
	}
	if info.Main.Version != "" {
		v.Version = info.Main.Version
	}
	for _, s := range info.Settings {
		switch s.Key {
		case "vcs.revision":
			v.Revision = s.Value
		case "vcs.time":
			v.Time = s.Value
		case "vcs.modified":
			v.Modified = s.Value == "true"
		}
	}
	return v
}

func (v version) String() string {
	out := "pollux " + v.Version
	if v.Revision != "" {
		out += " " + v.Revision[:min(12, len(v.Revision))]
		if v.Modified {
			out += " (modified)"
		}
	}
	return out + " " + v.Go + " " + v.Platform
}

func versionCommand() *cli.Command {
	return &cli.Command{
		Name:  "version",
		Usage: "say what this binary was built from",
		Flags: []cli.Flag{&cli.BoolFlag{Name: "json", Usage: "as JSON"}},
		Action: func(c *cli.Context) error {
			if err := noArgs(c); err != nil {
				return err
			}
			if c.Bool("json") {
				return json.NewEncoder(c.App.Writer).Encode(buildVersion())
			}
			_, err := fmt.Fprintln(c.App.Writer, buildVersion())
			return err
		},
	}
}
