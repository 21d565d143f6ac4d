package main

import (
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/urfave/cli/v2"

	"pollux/internal/config"
	"pollux/internal/control"
	"pollux/internal/doctor"
	"pollux/nat"
	"pollux/pmd"
)

func runCommand() *cli.Command {
	flags := &configFlags{}
	return &cli.Command{
		Name:  "run",
		Usage: "translate between the inside and outside ports until told to stop",
		Description: "Binds AF_XDP sockets to the ports' queues, one worker to a core, and prints one line that begins with\n" +
			"`ready` when it forwards. Packets of its own the gateway's kernel keeps getting. While it runs, nft and\n" +
			"iptables rules for forwarding, tc and tcpdump don't see what pollux forwards.\n\n" +
			"   pollux run --inside eth1 --outside eth0 --alias 203.0.113.1 --cores 2 --queues 0\n" +
			"   pollux run --inside eth1 --outside eth0 --alias port --redirect-port tcp,port:443=10.0.0.2:443\n" +
			"   pollux run -c /etc/pollux.yaml --limits-links 4000000\n\n" +
			"SIGTERM or SIGINT ends it (status 0), a second one at once (status 1). SIGHUP reads the file again, as\n" +
			"`pollux reload` does. When it can't start it says why in\n" +
			"one line, changes nothing, and exits with 2.",
		Flags: flags.list(forGateway),
		Action: func(c *cli.Context) error {
			cfg, err := flags.load(c, config.Run)
			if err != nil {
				return fail(statusUsage, err)
			}
			return serve(cfg, &service{left: make(chan struct{}), file: c.String("config"), flags: flags.args, config: cfg}, c.App.Writer, c.App.ErrWriter)
		},
	}
}

// serve claims the sockets and runs the gateway until a signal or a worker's death.
func serve(cfg *config.Config, s *service, stdout, stderr io.Writer) (err error) {
	if s.listener, err = control.Listen(controlOptions(cfg)); err != nil {
		return fail(statusUsage, err)
	}
	if s.scrapes, err = listenMetrics(cfg.Control().Metrics); err != nil {
		s.listener.Close()
		return fail(statusUsage, err)
	}
	return s.run(startGateway, func(error) {
		s.listener.Close()
		s.scrapes.Close()
	}, stdout, stderr)
}

// run runs the gateway that start brings up, until a signal, a worker's death, or a successor. failed is told when it does not
// come up.
func (s *service) run(start func(pmd.Options) (*pmd.Gateway, error), failed func(error), stdout, stderr io.Writer) error {
	cfg := s.config
	logs := &heldWriter{to: stderr}
	log, flush := newLogger(logs, cfg.Messages())
	slog.SetDefault(log)
	defer flush()
	signals := make(chan os.Signal, 2)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGINT)
	hangups := make(chan os.Signal, 1)
	signal.Notify(hangups, syscall.SIGHUP) // from the start: by default it kills

	options := cfg.Gateway()
	records, err := newLog(cfg, &options)
	if err != nil {
		failed(err)
		return fail(statusUsage, err)
	}
	gateway, err := start(options)
	if err != nil {
		failed(err)
		records.Close()
		return fail(statusUsage, err)
	}
	s.gateway = gateway
	records.Start()
	exporter := newExporter(gateway, records)
	s.scrapes.Serve(exporter)
	more := control.CaptureHandlers(gateway, buildVersion().Version)
	more["GET /v1/log"] = showLogHandler(records)
	server := control.Serve(s.listener, gateway, control.About{
		Version: buildVersion(), Config: s.text, Operator: s, Metrics: exporter,
		More: more,
	})
	logs.release()
	fmt.Fprintln(stdout, readyLine(cfg, gateway))
	tell("READY=1")
	defer startWatchdog(watchdogLimit(), gateway.Pulse).Close()

	over := make(chan struct{})
	defer close(over)
	go func() { // apart: a file that can't be read for long must not keep SIGTERM waiting
		for {
			select {
			case <-hangups:
				s.hangup()
			case <-over:
				return
			}
		}
	}()
	var died error
	for ends := false; !ends; {
		select {
		case <-s.left:
			s.leave(server)
			records.Close()
			return nil
		case s := <-signals:
			slog.Info("stopping", "signal", s.String())
			ends = true
		case <-gateway.Done():
			if died = gateway.Err(); died == nil {
				died = errors.New("the dataplane ended by itself")
			}
			ends = true
		}
	}
	go func() {
		<-signals // for who can't wait; XDP programs and sockets go with the process
		os.Exit(statusRuntime)
	}()
	_ = notify("STOPPING=1")
	err = errors.Join(died, server.Close(), s.scrapes.Close(), gateway.Stop())
	records.Close()
	return fail(statusRuntime, err)
}

// startGateway lets the doctor look before anything is touched: its words say more than what a failing call would.
func startGateway(o pmd.Options) (*pmd.Gateway, error) {
	if err := doctor.Check(doctorOf(o)); err != nil {
		return nil, err
	}
	return pmd.Start(o)
}

func controlOptions(cfg *config.Config) control.Options {
	c := cfg.Control()
	return control.Options{Path: c.Socket, Mode: c.Mode, Group: c.Group}
}

// readyLine sums up what runs: ports and their mode, workers and where they poll.
func readyLine(cfg *config.Config, g *pmd.Gateway) string {
	var b strings.Builder
	b.WriteString("ready:")
	for _, side := range []nat.Side{nat.Inside, nat.Outside} {
		fmt.Fprintf(&b, " %s", side)
		for _, p := range g.Ports() {
			if p.Role == side.String() {
				fmt.Fprintf(&b, " %s (%s, %s)", p.Name, p.Mode, p.XDP)
			}
		}
		b.WriteByte(';')
	}
	for _, w := range g.Workers() {
		fmt.Fprintf(&b, " worker %d on core %d, queue %d;", w.Worker, w.Core, w.Queue)
	}
	fmt.Fprintf(&b, " control %s", cfg.Control().Socket)
	return b.String()
}
