package control

import (
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"strconv"
	"time"

	"pollux/internal/clock"
	"pollux/internal/packet"
	"pollux/nat"
	"pollux/pmd"
	"pollux/rtcache"
)

// Host is one inside host at one worker.
type Host struct {
	Address string `json:"address"`
	Alias   string `json:"alias"`   // its links' address with paired pooling; empty: not settled
	Links   uint32 `json:"links"`   // that it opened itself
	Ports   *int   `json:"ports"`   // different alias ports; null: not counted
	Blocks  *int   `json:"blocks"`  // null: blocks are off
	Refused uint32 `json:"refused"` // new flows refused since the worker knows the host
	Worker  int    `json:"worker"`
}

// Peer is one worker's cache of the alias ports in use toward a peer.
type Peer struct {
	Proto  string `json:"proto"`
	Alias  string `json:"alias"`
	Peer   string `json:"peer"` // "addr:port", or "addr" for any port of it
	Ports  int    `json:"ports"`
	Worker int    `json:"worker"`
}

// Block is one port block.
type Block struct {
	Alias  string `json:"alias"`
	Low    uint16 `json:"low"`
	High   uint16 `json:"high"` // inclusive
	Host   string `json:"host"`
	State  string `json:"state"` // used | idle | resting
	Links  int    `json:"links"`
	Since  uint32 `json:"since"` // seconds since it was given to the host (used), or became idle, or began to rest
	Worker int    `json:"worker"`
}

// Redirect is a published port, address or protocol.
type Redirect struct {
	ID     uint32   `json:"id"`
	Kind   string   `json:"kind"`            // port | address | protocol
	Proto  string   `json:"proto,omitempty"` // empty: all
	Public string   `json:"public"`          // an address of "default" follows the default alias address
	Local  []string `json:"local"`
	Remote string   `json:"remote,omitempty"` // empty: any
	Pick   string   `json:"pick,omitempty"`   // of several local ones: rotate | source-hash
	Origin string   `json:"origin"`           // config | runtime
	Hits   uint64   `json:"hits"`             // links made by it
	Each   []uint64 `json:"hits_by_worker"`
}

// Drop is a reason, its count, and how fast that grew while the request waited.
type Drop struct {
	pmd.DropStats
	Rate *float64 `json:"rate"` // a second; null: not asked for
}

// lists adds the handlers of what is listed.
func (a *api) lists(mux *http.ServeMux) {
	mux.HandleFunc("GET /v1/links", a.links)
	mux.HandleFunc("DELETE /v1/links", a.deleteLinks)
	mux.HandleFunc("GET /v1/hosts", a.hosts)
	mux.HandleFunc("GET /v1/hosts/top", a.topHosts)
	mux.HandleFunc("GET /v1/peers", a.peers)
	mux.HandleFunc("GET /v1/blocks", a.blocks)
	mux.HandleFunc("GET /v1/redirects", a.redirects)
	mux.HandleFunc("GET /v1/pool", a.pool)
	mux.HandleFunc("GET /v1/routes", a.routes)
	mux.HandleFunc("GET /v1/hops", a.hops)
	mux.HandleFunc("GET /v1/drops", a.drops)
}

func (a *api) links(w http.ResponseWriter, r *http.Request) {
	p, err := parsePick(r.URL.Query(), true)
	if err == nil {
		err = a.gateway.CheckWorker(p.worker)
	}
	if err != nil {
		refuse(w, http.StatusBadRequest, err)
		return
	}
	a.stream(w, "links", p.limit, func(d *dump) error {
		return a.gateway.SelectLinks(p.worker, &p.links, func(l *nat.LinkInfo) bool {
			if !d.begin() {
				return false
			}
			d.buf = AppendLink(d.buf, l)
			return d.end()
		})
	})
}

func (a *api) deleteLinks(w http.ResponseWriter, r *http.Request) {
	p, err := parsePick(r.URL.Query(), false)
	if err == nil {
		err = a.gateway.CheckWorker(p.worker)
	}
	if every := p.links.All() && p.worker < 0; err == nil && every != p.all {
		err = errors.New("nothing says which links; allowed: a filter, or all=true for every link")
		if p.all {
			err = errors.New("all=true is given besides a filter; allowed: one of them")
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
	n, err := a.gateway.DeleteLinks(p.worker, &p.links)
	if err != nil {
		refuse(w, http.StatusInternalServerError, fmt.Errorf("%d links were deleted, then: %w", n, err))
		return
	}
	reply(w, map[string]int{"deleted": n})
}

// listed reads the parameters of a plain list.
func (a *api) listed(w http.ResponseWriter, r *http.Request, allowed ...string) (limit, worker int, within nat.Network, ok bool) {
	q := r.URL.Query()
	worker = -1
	err := parameters(q, allowed...)
	if err == nil && q.Has("limit") {
		limit, err = parseLimit(q.Get("limit"))
	}
	if err == nil && q.Has("worker") {
		if worker, err = parseWorker(q.Get("worker")); err == nil {
			err = a.gateway.CheckWorker(worker)
		}
	}
	if err == nil && q.Has("address") {
		within, err = parseNet("address", q.Get("address"))
	}
	if err != nil {
		refuse(w, http.StatusBadRequest, err)
	}
	return limit, worker, within, err == nil
}

func (a *api) hosts(w http.ResponseWriter, r *http.Request) {
	limit, worker, within, ok := a.listed(w, r, "address", "worker", "limit")
	if !ok {
		return
	}
	a.stream(w, "hosts", limit, func(d *dump) error {
		return a.gateway.Hosts(worker, &within, func(h *nat.HostInfo) bool {
			if h.Ports < 0 && within.Valid && within.Mask == 0xffffffff { // of one host they can be counted
				h.Ports = a.portsOf(h)
			}
			x := hostOf(h)
			return d.add(&x)
		})
	})
}

// portsOf counts the different alias ports of one host's links at one worker; -1: the gateway stops.
func (a *api) portsOf(h *nat.HostInfo) int {
	type endpoint struct {
		proto uint8
		alias nat.Alias
	}
	ports := map[endpoint]struct{}{} // at most as many as an alias address has
	f := nat.LinkFilter{Local: nat.Network{Base: h.Addr, Mask: 0xffffffff, Valid: true}}
	if a.gateway.SelectLinks(h.Worker, &f, func(l *nat.LinkInfo) bool {
		if hasPorts(l.Proto) {
			ports[endpoint{l.Proto, l.Alias}] = struct{}{}
		}
		return true
	}) != nil {
		return -1
	}
	return len(ports)
}

func (a *api) peers(w http.ResponseWriter, r *http.Request) {
	limit, _, within, ok := a.listed(w, r, "address", "limit")
	if !ok {
		return
	}
	a.stream(w, "peers", limit, func(d *dump) error {
		return a.gateway.Peers(func(p *pmd.PeerInfo) bool {
			if !within.Has(p.Peer.Addr) {
				return true
			}
			x := Peer{Proto: p.Row.String(), Alias: p.Alias.String(), Peer: p.Peer.Addr.String(), Ports: p.Ports, Worker: p.Worker}
			if p.Peer.Port != 0 {
				x.Peer = netip.AddrPortFrom(p.Peer.Addr.Netip(), p.Peer.Port).String()
			}
			return d.add(&x)
		})
	})
}

func (a *api) blocks(w http.ResponseWriter, r *http.Request) {
	limit, _, within, ok := a.listed(w, r, "address", "limit")
	if !ok {
		return
	}
	a.stream(w, "blocks", limit, func(d *dump) error {
		return a.gateway.Blocks(func(b *pmd.BlockInfo) bool {
			if within.Valid && !within.Has(b.Alias) && !within.Has(b.Host) {
				return true
			}
			return d.add(blockOf(b))
		})
	})
}

func blockOf(b *pmd.BlockInfo) *Block {
	x := &Block{Alias: b.Alias.String(), Low: b.Low, High: b.High, Host: b.Host.String(), State: "used", Links: b.Links,
		Since: b.Ticks / clock.PerSecond, Worker: b.Worker}
	switch {
	case b.Resting:
		x.State = "resting"
	case b.Links == 0:
		x.State = "idle"
	}
	return x
}

func (a *api) redirects(w http.ResponseWriter, r *http.Request) {
	if _, _, _, ok := a.listed(w, r); !ok {
		return
	}
	list, err := a.gateway.Redirects()
	if err != nil {
		refuse(w, http.StatusInternalServerError, err)
		return
	}
	a.stream(w, "redirects", 0, func(d *dump) error {
		for i := range list {
			if !d.add(redirectOf(&list[i])) {
				break
			}
		}
		return nil
	})
}

func redirectOf(r *pmd.RedirectInfo) *Redirect {
	x := &Redirect{ID: r.ID, Kind: r.Kind, Hits: r.Hits, Each: r.Turns, Origin: "runtime", Local: []string{}}
	if r.Config {
		x.Origin = "config"
	}
	ports := r.Kind == "port"
	if r.Kind != "address" {
		x.Proto = string(appendProto(nil, r.Proto))
	}
	x.Public = endpoint(r.Public.Addr, r.Public.Port, ports)
	if r.Public.Addr == 0 {
		x.Public = "default"
		if ports {
			x.Public += ":" + strconv.Itoa(int(r.Public.Port))
		}
	}
	for _, l := range r.Local {
		x.Local = append(x.Local, endpoint(l.Addr, l.Port, ports))
	}
	switch {
	case r.Remote.Port != 0:
		x.Remote = endpoint(r.Remote.Addr, r.Remote.Port, true)
	case r.Remote.Addr != 0:
		x.Remote = r.Remote.Addr.String()
	}
	if len(r.Local) > 1 {
		x.Pick = map[nat.Pick]string{nat.Rotate: "rotate", nat.SourceHash: "source-hash"}[r.Pick]
	}
	return x
}

func endpoint(a packet.Addr, port uint16, ports bool) string {
	if !ports {
		return a.String()
	}
	return netip.AddrPortFrom(a.Netip(), port).String()
}

func (a *api) pool(w http.ResponseWriter, r *http.Request) {
	if _, _, _, ok := a.listed(w, r); !ok {
		return
	}
	list, err := a.gateway.Pool()
	if err != nil {
		refuse(w, http.StatusInternalServerError, err)
		return
	}
	reply(w, map[string]any{"pool": notNil(list)})
}

func (a *api) routes(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	limit, err := 0, parameters(q, "within", "to", "limit")
	var within netip.Prefix
	var to netip.Addr
	if err == nil && q.Has("limit") {
		limit, err = parseLimit(q.Get("limit"))
	}
	if err == nil && q.Has("within") {
		if within, err = netip.ParsePrefix(q.Get("within")); err != nil || within != within.Masked() {
			err = fmt.Errorf("within is %q; allowed: a prefix as 192.0.2.0/24 or 2001:db8::/32", q.Get("within"))
		}
	}
	if err == nil && q.Has("to") {
		if to, err = netip.ParseAddr(q.Get("to")); err != nil {
			err = fmt.Errorf("to is %q; allowed: an address", q.Get("to"))
		} else if q.Has("within") {
			err = errors.New("to is given besides within; allowed: one of them")
		}
	}
	if err != nil {
		refuse(w, http.StatusBadRequest, err)
		return
	}
	a.stream(w, "routes", limit, func(d *dump) error {
		if to.IsValid() {
			if route, ok := a.gateway.Table().RouteTo(to); ok {
				d.add(&route)
			}
			return nil
		}
		a.gateway.Table().Routes(within, func(route rtcache.RouteInfo) bool { return d.add(&route) })
		return nil
	})
}

func (a *api) hops(w http.ResponseWriter, r *http.Request) {
	limit, _, _, ok := a.listed(w, r, "limit")
	if !ok {
		return
	}
	a.stream(w, "hops", limit, func(d *dump) error {
		a.gateway.Table().NextHops(func(h rtcache.HopInfo) bool { return d.add(&h) })
		return nil
	})
}

// intervalMax is the longest that a request waits between two samples.
const intervalMax = 10 * time.Second

// parseInterval reads the time between two samples; 0: one sample only.
func parseInterval(value string) (time.Duration, error) {
	d, err := time.ParseDuration(value)
	if err != nil || d < 10*time.Millisecond || d > intervalMax {
		return 0, fmt.Errorf("interval is %q; allowed: a duration from 10ms to %v", value, intervalMax)
	}
	return d, nil
}

// drops answers with counts, and with rates when it is given the time for two samples.
func (a *api) drops(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	err := parameters(q, "interval")
	var interval time.Duration
	if err == nil && q.Has("interval") {
		interval, err = parseInterval(q.Get("interval"))
	}
	if err != nil {
		refuse(w, http.StatusBadRequest, err)
		return
	}
	var before []pmd.DropStats
	began := time.Now()
	if interval > 0 {
		before = a.gateway.Drops()
		select {
		case <-r.Context().Done():
			return
		case <-time.After(interval):
		}
	}
	now := a.gateway.Drops()
	seconds := time.Since(began).Seconds()
	list := make([]Drop, len(now))
	for i := range now {
		list[i].DropStats = now[i]
		if i < len(before) {
			rate := (float64(now[i].Count) - float64(before[i].Count)) / seconds
			list[i].Rate = &rate
		}
	}
	reply(w, map[string]any{"drops": list})
}
