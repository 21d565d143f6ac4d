// Package demo shows a NAT at work: it builds a lab of network namespaces, runs `pollux run` in the middle as a process
// of its own, sends real traffic through it and says whether everything held that should.
package demo

import (
	"context"
	"fmt"
	"net/netip"
	"syscall"
	"time"

	"pollux/internal/control"
	"pollux/internal/lab"
	"pollux/pmd"
)

// The traffic.
const (
	pings         = 5
	downloadBytes = 100_000_000
	udpFlows      = 500
	udpPerFlow    = 4
	publishedPort = 8080
	linksShown    = 8
	stopWithin    = 5 * time.Second
)

// Options says how to run the demo.
type Options struct {
	Binary string       // the pollux program
	Keep   bool         // leave the lab up with servers and gateway running
	Step   func(Check)  // called as each check is done, may be nil
	Ready  func(string) // called with the gateway's ready line, may be nil
}

// Check is one thing that must hold.
type Check struct {
	Name   string `json:"name"`
	Held   bool   `json:"held"`
	Detail string `json:"detail"` // what was seen, one line
}

// Report is all that was seen.
type Report struct {
	Held    bool              `json:"held"`
	Seconds float64           `json:"seconds"`
	Ready   string            `json:"ready"` // the gateway's ready line
	Checks  []Check           `json:"checks"`
	Outside Sources           `json:"outside_host_saw"`
	Links   LinkTable         `json:"links"`
	Workers []pmd.WorkerStats `json:"workers"`
	Ports   []pmd.PortStats   `json:"ports"`
	Drops   []pmd.DropStats   `json:"drops"`
	Kept    *Kept             `json:"kept,omitempty"`
}

// Sources says whom packets that reached the outside came from.
type Sources struct {
	FromAlias uint64             `json:"from_alias"`
	Foreign   uint64             `json:"foreign"`
	Addresses map[netip.Addr]int `json:"foreign_addresses,omitempty"`
	Alias     netip.Addr         `json:"alias"`
}

// LinkTable is the gateway's link table, the first few links spelled out.
type LinkTable struct {
	Count   int            `json:"count"`
	ByProto map[string]int `json:"by_proto"`
	First   []control.Link `json:"first"`
}

// Kept says how to reach a lab that was left up.
type Kept struct {
	Inside  string `json:"inside"` // names of namespaces
	Gateway string `json:"gateway"`
	Outside string `json:"outside"`
	Socket  string `json:"socket"`
	PID     int    `json:"pid"` // of the gateway
}

// Run runs the demo. The error says why it could not be run to its end; whether everything held is in the report.
func Run(ctx context.Context, o Options) (r *Report, err error) {
	start := time.Now()
	l, err := lab.New(lab.Options{Routers: 1, Keep: o.Keep})
	if err != nil {
		return nil, err
	}
	defer func() {
		if err != nil {
			l.Destroy()
		} else {
			l.Close()
		}
	}()
	public := netip.AddrPortFrom(lab.GatewayOutside, publishedPort)
	published := netip.AddrPortFrom(l.Inside[0].Addr, 80)
	gateway, err := l.StartGateway(o.Binary, "--idle", "adaptive", "--redirect-port", fmt.Sprintf("tcp,%s=%s", public, published))
	if err != nil {
		return nil, err
	}
	r = &Report{Held: true, Ready: readyLine(gateway.Output())}
	if o.Ready != nil {
		o.Ready(r.Ready)
	}
	d := &driver{lab: l, report: r, step: o.Step, public: public, published: published}
	if err := d.traffic(ctx); err != nil {
		return nil, err
	}
	if err := d.look(ctx, control.NewClient(l.Socket())); err != nil {
		return nil, err
	}
	if o.Keep {
		if err := d.keep(o.Binary, gateway.PID()); err != nil {
			return nil, err
		}
	} else {
		d.check("stop", gateway.Stop(syscall.SIGTERM, stopWithin), "SIGTERM ended the gateway with exit status 0")
	}
	r.Seconds = time.Since(start).Seconds()
	return r, nil
}
