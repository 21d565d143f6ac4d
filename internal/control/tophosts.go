package control

import (
	"cmp"
	"context"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"

	"pollux/nat"
)

// topHostsMax is how many hosts GET /v1/hosts/top keeps at most.
const topHostsMax = 1000

// hostOrders are what hosts can be sorted by, most first.
var hostOrders = map[string]func(h *nat.HostInfo) uint32{
	"links":   func(h *nat.HostInfo) uint32 { return h.Links },
	"refused": func(h *nat.HostInfo) uint32 { return h.Refused },
}

// topHosts answers with the hosts that have most of something: memory for these alone, however many hosts there are.
func (a *api) topHosts(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	err := parameters(q, "by", "limit")
	by, limit := hostOrders["links"], 10
	if err == nil && q.Has("by") {
		if by = hostOrders[q.Get("by")]; by == nil {
			err = fmt.Errorf("by is %q; allowed: links or refused", q.Get("by"))
		}
	}
	if err == nil && q.Has("limit") {
		if limit, err = parseLimit(q.Get("limit")); err == nil && (limit < 1 || limit > topHostsMax) {
			err = fmt.Errorf("limit is %d; allowed: 1 to %d", limit, topHostsMax)
		}
	}
	if err != nil {
		refuse(w, http.StatusBadRequest, err)
		return
	}
	release, ok := a.token(w)
	if !ok {
		return
	}
	defer release()
	top := make([]nat.HostInfo, 0, limit+1)
	err = a.gateway.Hosts(-1, &nat.Network{}, func(h *nat.HostInfo) bool {
		if by(h) == 0 || len(top) == limit && by(h) <= by(&top[limit-1]) {
			return true
		}
		i, _ := slices.BinarySearchFunc(top, *h, func(x, y nat.HostInfo) int {
			return cmp.Or(cmp.Compare(by(&y), by(&x)), cmp.Compare(x.Addr, y.Addr), cmp.Compare(x.Worker, y.Worker))
		})
		top = slices.Insert(top, i, *h)
		top = top[:min(len(top), limit)]
		return true
	})
	if err != nil {
		refuse(w, http.StatusServiceUnavailable, err)
		return
	}
	list := []Host{}
	for i := range top {
		list = append(list, hostOf(&top[i]))
	}
	reply(w, map[string]any{"hosts": list})
}

// hostOf describes a host as the API does.
func hostOf(h *nat.HostInfo) Host {
	x := Host{Address: h.Addr.String(), Links: h.Links, Refused: h.Refused, Worker: h.Worker}
	if h.Alias != 0 {
		x.Alias = h.Alias.String()
	}
	if h.Blocks >= 0 {
		x.Blocks = &h.Blocks
	}
	if h.Ports >= 0 {
		x.Ports = &h.Ports
	}
	return x
}

// TopHosts returns the inside hosts with the most links, or refusals.
func (c *Client) TopHosts(ctx context.Context, by string, limit int) ([]Host, error) {
	var out struct{ Hosts []Host }
	err := c.Get(ctx, "/v1/hosts/top", url.Values{"by": {by}, "limit": {strconv.Itoa(limit)}}, &out)
	return out.Hosts, err
}
