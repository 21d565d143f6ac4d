package top

import (
	"context"
	"time"

	"pollux/internal/control"
	"pollux/pmd"
)

// Sample is what the gateway said at one time.
type Sample struct {
	At      time.Time
	Workers []pmd.WorkerStats
	Ports   []pmd.PortStats
	Drops   []pmd.DropStats
	Hosts   []control.Host // the first of the order asked for
	NoHosts string         // why there are none: as when too many lists are being read
}

// Order is what inside hosts are sorted by.
type Order string

const (
	ByLinks   Order = "links"
	ByRefused Order = "refused"
)

// hostsMost is how many hosts are asked for.
const hostsMost = 50

// Source reads samples.
type Source interface {
	Sample(ctx context.Context, by Order) (Sample, error)
}

// FromAPI reads samples from a gateway's control API. It connects anew when the gateway was started again.
type FromAPI struct{ Client *control.Client }

// Sample is Source's.
func (f FromAPI) Sample(ctx context.Context, by Order) (s Sample, err error) {
	if s.Workers, err = f.Client.Workers(ctx); err != nil {
		return s, err
	}
	s.At = time.Now()
	if s.Ports, err = f.Client.Ports(ctx); err != nil {
		return s, err
	}
	if s.Drops, err = f.Client.Drops(ctx); err != nil {
		return s, err
	}
	if s.Hosts, err = f.Client.TopHosts(ctx, string(by), hostsMost); err != nil {
		s.NoHosts = err.Error()
	}
	return s, nil
}
