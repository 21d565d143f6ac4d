package main

import (
	"net/netip"

	"pollux/internal/metrics"
	"pollux/internal/natlog"
	"pollux/pmd"
)

// listenMetrics claims control.metrics; nil: metrics are served on the control socket alone.
func listenMetrics(at netip.AddrPort) (*metrics.Server, error) {
	if !at.IsValid() {
		return nil, nil
	}
	return metrics.Listen(at)
}

func newExporter(g *pmd.Gateway, log *natlog.Log) *metrics.Exporter {
	v := buildVersion()
	return metrics.New(g, log, metrics.Build{Version: v.Version, Revision: v.Revision, Go: v.Go})
}
