package lab

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"pollux/internal/control"
	netlab "pollux/internal/lab"
)

// places counts lost packets by where they were lost.
type places map[string]uint64

// since is what was added after an earlier state.
func (p places) since(before places) places {
	d := places{}
	for where, n := range p {
		if n > before[where] {
			d[where] = n - before[where]
		}
	}
	return d
}

func (p places) add(more places) {
	for where, n := range more {
		p[where] += n
	}
}

func (p places) sum() (n uint64) {
	for _, v := range p {
		n += v
	}
	return n
}

// String is empty when nothing was lost.
func (p places) String() string {
	var list []string
	for _, where := range slices.Sorted(maps.Keys(p)) {
		list = append(list, fmt.Sprintf("%s %d", where, p[where]))
	}
	if list == nil {
		return ""
	}
	return " (" + strings.Join(list, ", ") + ")"
}

// losses asks everybody on a packet's way, kernel and gateway, what they have lost so far. A veth's queue is counted at the end
// that sends into it. What an AF_XDP socket can't take is counted by the socket alone.
func (p *peer) losses(c *control.Client) (places, error) {
	l := places{}
	for _, q := range []struct {
		n            *netlab.Namespace
		device, what string
	}{
		{p.net.Inside[0].Namespace, p.net.Inside[0].Device, "queue into the gateway"},
		{p.net.Gateway, netlab.OutsideDevice, "queue to the outside host"},
		{p.net.Outside[0].Namespace, p.net.Outside[0].Device, "answers' queue into the gateway"},
		{p.net.Gateway, netlab.InsideDevice, "queue to the inside host"},
	} {
		link, err := q.n.Netlink().LinkByName(q.device)
		if err != nil {
			return nil, fmt.Errorf("device %s in %s: %w", q.device, q.n.Name, err)
		}
		if s := link.Attrs().Statistics; s != nil {
			l[q.what] = s.TxDropped
		}
	}
	ctx, cancel := context.WithTimeout(context.Background(), commandTime)
	defer cancel()
	ports, err := c.Ports(ctx)
	drops, err2 := c.Drops(ctx)
	if err := errors.Join(err, err2); err != nil {
		return nil, err
	}
	for _, port := range ports {
		l[port.Name+" fill ring empty"] = port.FillEmpty
		l[port.Name+" receive ring full"] = port.RXFull
		l[port.Name+" receive dropped"] = port.RXDropped
		l[port.Name+" transmit descriptor refused"] = port.TXInvalid
	}
	for _, d := range drops {
		l[d.Name] = d.Count
	}
	return l, nil
}
