package main

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/url"

	"github.com/urfave/cli/v2"

	"pollux/internal/config"
	"pollux/internal/control"
	"pollux/internal/natlog"
	"pollux/pmd"
)

// newLog makes the translation log and gives the gateway's workers its rings; nil: none is configured.
func newLog(cfg *config.Config, o *pmd.Options) (*natlog.Log, error) {
	c := cfg.Log()
	if !c.On() {
		return nil, nil
	}
	l, err := natlog.New(natlog.Options{
		Syslog: targets(c.Syslog), IPFIX: targets(c.IPFIX), Sessions: c.Sessions, Workers: cfg.Workers(), Version: buildVersion().Version,
	})
	if err != nil {
		return nil, err
	}
	o.Events = l.Rings()
	return l, nil
}

func targets(list []config.Collector) (out []natlog.Target) {
	for _, c := range list {
		out = append(out, natlog.Target(c))
	}
	return out
}

// showLogHandler answers /v1/log.
func showLogHandler(l *natlog.Log) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(l.Stats()) // fails only when the client is gone
	})
}

func showLog() *cli.Command {
	return listing{
		name: "log", usage: "the translation log: what each collector got, what waits, what was lost", path: "/v1/log",
		print: func(c *cli.Context, client *control.Client, q url.Values, w io.Writer) error {
			var s natlog.Stats
			if err := client.Get(c.Context, "/v1/log", q, &s); err != nil {
				return err
			}
			fmt.Fprintf(w, "level %s, %d events lost before any collector\n", s.Level, s.RingLost)
			fmt.Fprintln(w, "COLLECTOR\tPROTOCOL\tCONNECTED\tSENT\tWRITES\tWAITING\tLOST\tFAILURES\tPROBLEM")
			for _, k := range s.Collectors {
				connected := "no"
				if k.Connected {
					connected = "yes"
				}
				fmt.Fprintf(w, "%s\t%s\t%s\t%d\t%d\t%d\t%d\t%d\t%s\n", k.Collector, k.Protocol, connected, k.Sent, k.Writes, k.Waiting, k.Lost, k.Failures, dash(k.Problem))
			}
			return nil
		},
	}.command()
}
