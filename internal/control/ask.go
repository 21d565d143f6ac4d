package control

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"net/url"
	"strconv"

	"pollux/internal/clock"
	"pollux/internal/packet"
	"pollux/lport"
	"pollux/nat"
	"pollux/pmd"
)

// Whose is the answer to who had an alias endpoint.
type Whose struct {
	Alias    string    `json:"alias"`
	Now      []Holding `json:"now"`      // by protocol
	Computed *Computed `json:"computed"` // with nat.deterministic, at any time; null: it is off
}

// Computed is what nat.deterministic says, which holds as long as the configuration does.
type Computed struct {
	Host string `json:"host"` // empty: the port is nobody's
}

// Holding is one protocol's part.
type Holding struct {
	Proto     string     `json:"proto"`
	Owner     string     `json:"owner"`     // nobody | worker | kernel | redirect
	Worker    *int       `json:"worker"`    // if a worker is
	Hosts     []string   `json:"hosts"`     // local endpoints of the links
	Links     []Link     `json:"links"`     // those there are now
	More      bool       `json:"more"`      // links were left out
	Block     *Block     `json:"block"`     // that the port lies in; null: none
	Redirects []Redirect `json:"redirects"` // that publish the endpoint
}

// asks adds the handlers of questions.
func (a *api) asks(mux *http.ServeMux) {
	mux.HandleFunc("GET /v1/who-had", a.whoHad)
	mux.HandleFunc("GET /v1/explain", a.explain)
}

func (a *api) whoHad(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	err := parameters(q, "alias", "proto")
	var at netip.AddrPort
	protos := []uint8{packet.ProtoTCP, packet.ProtoUDP, packet.ProtoICMP}
	if err == nil {
		if at, err = netip.ParseAddrPort(q.Get("alias")); err != nil || !at.Addr().Is4() {
			err = fmt.Errorf("alias is %q; allowed: an IPv4 address and port as 203.0.113.1:5000", q.Get("alias"))
		}
	}
	if err == nil && q.Has("proto") {
		var proto uint8
		if proto, err = parseProto(q.Get("proto")); err == nil && !hasPorts(proto) {
			err = fmt.Errorf("proto is %q; allowed: tcp, udp or icmp, which have ports or ids", q.Get("proto"))
		}
		protos = []uint8{proto}
	}
	if err != nil {
		refuse(w, http.StatusBadRequest, err)
		return
	}
	alias := nat.Alias{Addr: packet.AddrFrom(at.Addr()), Port: at.Port()}
	list, known, err := a.gateway.WhoHas(alias, protos)
	switch {
	case err != nil:
		refuse(w, http.StatusInternalServerError, err)
		return
	case !known:
		refuse(w, http.StatusNotFound, fmt.Errorf("%v is no alias address of this gateway; `pollux show pool` lists them", at.Addr()))
		return
	}
	out := Whose{Alias: at.String(), Now: []Holding{}}
	for i := range list {
		out.Now = append(out.Now, holdingOf(&list[i]))
	}
	host, on, err := a.gateway.Computed(alias)
	if err != nil {
		refuse(w, http.StatusInternalServerError, err)
		return
	}
	if on {
		out.Computed = &Computed{}
		if host != 0 {
			out.Computed.Host = host.String()
		}
	}
	reply(w, out)
}

func holdingOf(h *pmd.Holder) Holding {
	x := Holding{Proto: string(appendProto(nil, h.Proto)), More: h.More, Hosts: []string{}, Links: []Link{}, Redirects: []Redirect{}}
	switch h.Byte {
	case lport.ByteFree:
		x.Owner = "nobody"
	case lport.ByteKernel:
		x.Owner = "kernel"
	case lport.ByteRedirect:
		x.Owner = "redirect"
	default:
		n := int(h.Byte) - 1
		x.Owner, x.Worker = "worker", &n
	}
	seen := map[string]bool{}
	for i := range h.Links {
		l := linkOf(&h.Links[i])
		x.Links = append(x.Links, l)
		if !seen[l.Local] {
			seen[l.Local] = true
			x.Hosts = append(x.Hosts, l.Local)
		}
	}
	if h.Block != nil {
		x.Block = blockOf(h.Block)
	}
	for i := range h.Redirects {
		x.Redirects = append(x.Redirects, *redirectOf(&h.Redirects[i]))
	}
	return x
}

// linkOf is AppendLink for few.
func linkOf(l *nat.LinkInfo) Link {
	end := func(a packet.Addr, port uint16) string { return string(appendEndpoint(nil, l.Proto, a, port)) }
	const second = clock.PerSecond
	return Link{Proto: string(appendProto(nil, l.Proto)), Local: end(l.Local.Addr, l.Local.Port), Alias: end(l.Alias.Addr, l.Alias.Port),
		Remote: end(l.Remote.Addr, remotePort(l)), State: l.State.String(), ExpiresIn: (l.ExpiresIn + second - 1) / second, Worker: l.Worker, ID: l.ID,
		Inbound: l.Inbound, Packets: l.Packets, Bytes: l.Bytes, Age: l.Age / second, Idle: l.Idle / second}
}

func (a *api) explain(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	err := parameters(q, "packet", "in")
	var frame []byte
	if err == nil {
		if !q.Has("packet") {
			err = errors.New("packet is missing; allowed: a packet in words or hex")
		} else {
			frame, err = ParsePacket(q.Get("packet"))
		}
	}
	if err != nil {
		refuse(w, http.StatusBadRequest, err)
		return
	}
	x, err := a.gateway.Explain(frame, q.Get("in"))
	switch {
	case errors.Is(err, pmd.ErrEnded):
		refuse(w, http.StatusInternalServerError, err)
	case err != nil:
		refuse(w, http.StatusBadRequest, err)
	default:
		reply(w, x)
	}
}

// WhoHad asks who has an alias endpoint, "addr:port"; proto may be empty.
func (c *Client) WhoHad(ctx context.Context, alias, proto string) (out Whose, err error) {
	q := url.Values{"alias": {alias}}
	if proto != "" {
		q.Set("proto", proto)
	}
	err = c.Get(ctx, "/v1/who-had", q, &out)
	return out, err
}

// Explain asks what would become of a packet; in may be empty.
func (c *Client) Explain(ctx context.Context, packet, in string) (out pmd.Explanation, err error) {
	q := url.Values{"packet": {packet}}
	if in != "" {
		q.Set("in", in)
	}
	err = c.Get(ctx, "/v1/explain", q, &out)
	return out, err
}

// ParseWhose reads ADDR:PORT[/PROTO].
func ParseWhose(text string) (alias netip.AddrPort, proto string, err error) {
	for i := range text {
		if text[i] == '/' {
			text, proto = text[:i], text[i+1:]
			break
		}
	}
	alias, err = netip.ParseAddrPort(text)
	if err != nil || !alias.Addr().Is4() {
		return alias, proto, fmt.Errorf("%q is no alias endpoint; allowed: ADDR:PORT or ADDR:PORT/PROTO as 203.0.113.1:5000/udp", text)
	}
	if proto != "" {
		if p, err := parseProto(proto); err != nil || !hasPorts(p) {
			return alias, proto, fmt.Errorf("%s has no ports; allowed after the slash: tcp, udp or icmp", strconv.Quote(proto))
		}
	}
	return alias, proto, nil
}
