package config

import (
	"fmt"
	"strconv"
	"strings"

	"pollux/internal/packet"
	"pollux/nat"
)

const (
	redirectsMax = 1 << 18 // published ports, ranges expanded
	serversMax   = 256     // of one pool
)

// endpoint is an address with an inclusive range of ports (ICMP: ids). Address 0 is the default alias address.
type endpoint struct {
	addr      packet.Addr
	low, high uint16
}

func (e endpoint) size() int { return int(e.high) - int(e.low) + 1 }

func (e endpoint) String() string {
	ports := strconv.Itoa(int(e.low))
	if e.high != e.low {
		ports += "-" + strconv.Itoa(int(e.high))
	}
	return publicText(e.addr) + ":" + ports
}

type redirectPort struct {
	proto  uint8
	public endpoint
	local  []endpoint
	pool   bool // local was given as a list
	remote nat.Remote
	pick   nat.Pick
	added  bool // at run time
	at     place
}

type redirectAddr struct {
	public  packet.Addr
	local   []packet.Addr
	pool    bool
	inbound bool
	pick    nat.Pick
	added   bool
	at      place
}

type redirectProto struct {
	proto  uint8
	public packet.Addr
	local  packet.Addr
	remote packet.Addr
	added  bool
	at     place
}

// publicText prints a public address; 0 follows the outside port's own address.
func publicText(a packet.Addr) string {
	if a == 0 {
		return "port"
	}
	return a.String()
}

// protoNames are the protocols that have names in the contract.
var protoNames = map[string]uint8{"tcp": packet.ProtoTCP, "udp": packet.ProtoUDP, "icmp": packet.ProtoICMP}

// protoText prints tcp | udp | icmp | NUMBER.
func protoText(proto uint8) string {
	for name, v := range protoNames {
		if v == proto {
			return name
		}
	}
	return strconv.Itoa(int(proto))
}

func (n *node) proto(path, allowed string) (uint8, error) {
	if err := n.is(scalar, path, allowed); err != nil {
		return 0, err
	}
	if v, ok := protoNames[n.text]; ok {
		return v, nil
	}
	v, ok := decimal(n.text)
	if n.quoted || !ok || v > 255 {
		return 0, n.refuse(path, allowed)
	}
	return uint8(v), nil
}

// endpoint reads ADDR:PORT or, with ranges, ADDR:LOW-HIGH. ICMP ids start at 0, ports at 1.
func (n *node) endpoint(path string, proto uint8, public, ranges bool) (endpoint, error) {
	allowed := "ADDRESS:PORT"
	if ranges {
		allowed += " or ADDRESS:LOW-HIGH"
	}
	if public {
		allowed += `, the address "port" for the outside port's own`
	}
	if err := n.is(scalar, path, allowed); err != nil {
		return endpoint{}, err
	}
	addr, ports, _ := strings.Cut(n.text, ":")
	host, ok := parseHost(addr)
	e := endpoint{addr: host}
	if !ok && !(public && addr == "port") {
		return endpoint{}, n.refuse(path, allowed)
	}
	first, last, isRange := strings.Cut(ports, "-")
	low, ok := decimal(first)
	high := low
	if isRange && ok {
		high, ok = decimal(last)
	}
	if !ok || isRange && !ranges || high > 65535 || low == 0 && proto != packet.ProtoICMP {
		return endpoint{}, n.refuse(path, allowed+", ports from 1 to 65535")
	}
	if low > high {
		return endpoint{}, errorAt(n.at, "%s: the port range %s is upside down; allowed: LOW-HIGH", path, ports)
	}
	e.low, e.high = uint16(low), uint16(high)
	return e, nil
}

func (n *node) pick(path string) (nat.Pick, error) {
	if err := n.is(scalar, path, "rotate | source-hash"); err != nil {
		return 0, err
	}
	switch n.text {
	case "rotate":
		return nat.Rotate, nil
	case "source-hash":
		return nat.SourceHash, nil
	}
	return 0, n.refuse(path, "rotate | source-hash")
}

func pickText(p nat.Pick) string {
	if p == nat.SourceHash {
		return "source-hash"
	}
	return "rotate"
}

// servers hands out the items of a pool, or the one value.
func (n *node) servers(path, allowed string) (items []*node, pool bool, err error) {
	switch {
	case n.kind == scalar:
		return []*node{n}, false, nil
	case n.kind != list || len(n.items) == 0:
		return nil, false, errorAt(n.at, "%s is %s; allowed: %s", path, describe(n), allowed)
	case len(n.items) > serversMax:
		return nil, false, errorAt(n.at, "%s has %d servers; allowed: up to %d", path, len(n.items), serversMax)
	}
	return n.items, true, nil
}

func describe(n *node) string {
	if n.kind == list {
		return "an empty list"
	}
	return n.kind.String()
}

// redirectPorts is the key nat.redirect_port.
type redirectPorts struct{}

func (redirectPorts) allowed() string {
	return "a list of {proto, public, local} with remote and pick as options"
}

func (c redirectPorts) decode(s *settings, path string, n *node) error {
	if err := n.is(list, path, c.allowed()); err != nil {
		return err
	}
	total := 0
	for i, item := range n.items {
		r, err := decodeRedirectPort(fmt.Sprintf("%s[%d]", path, i), item)
		if err != nil {
			return err
		}
		if total += r.public.size(); total > redirectsMax {
			return errorAt(item.at, "%s publishes more than %d ports with this entry; allowed: up to %d in all", path, redirectsMax, redirectsMax)
		}
		s.redirectPort = append(s.redirectPort, r)
	}
	return nil
}

func decodeRedirectPort(path string, n *node) (r redirectPort, err error) {
	f, err := n.fields(path, []string{"proto", "public", "local"}, []string{"remote", "pick"})
	if err != nil {
		return r, err
	}
	r.at = n.at
	const protos = "tcp | udp | icmp"
	if r.proto, err = f["proto"].proto(path+".proto", protos); err != nil {
		return r, err
	}
	if r.proto != packet.ProtoTCP && r.proto != packet.ProtoUDP && r.proto != packet.ProtoICMP {
		return r, errorAt(f["proto"].at, "%s.proto %s has no ports; allowed: %s, or redirect_proto for others", path, f["proto"].show(), protos)
	}
	if r.public, err = f["public"].endpoint(path+".public", r.proto, true, true); err != nil {
		return r, err
	}
	if err = r.decodeLocal(path+".local", f["local"]); err != nil {
		return r, err
	}
	if remote := f["remote"]; remote != nil {
		if r.remote, err = remote.remote(path+".remote", r.proto); err != nil {
			return r, err
		}
	}
	if pick := f["pick"]; pick != nil {
		if r.pick, err = pick.pick(path + ".pick"); err == nil && !r.pool {
			err = errorAt(pick.at, "%s.pick chooses among several servers, but local is one; needed: a list in local", path)
		}
	}
	return r, err
}

func (r *redirectPort) decodeLocal(path string, n *node) error {
	items, pool, err := n.servers(path, "ADDRESS:PORT, ADDRESS:LOW-HIGH, or a list of ADDRESS:PORT")
	if err != nil {
		return err
	}
	r.pool = pool
	if pool && r.public.size() > 1 {
		return errorAt(n.at, "%s is a pool, but public has %d ports; allowed: a pool for a single public port", path, r.public.size())
	}
	for _, item := range items {
		e, err := item.endpoint(path, r.proto, false, !pool)
		if err != nil {
			return err
		}
		if e.size() != r.public.size() {
			return errorAt(item.at, "%s has %d ports, public has %d; allowed: ranges of equal size", path, e.size(), r.public.size())
		}
		for _, other := range r.local {
			if other == e {
				return errorAt(item.at, "%s: %s is in the pool twice; allowed: once", path, e)
			}
		}
		r.local = append(r.local, e)
	}
	return nil
}

// remote reads ADDR, ADDR:PORT or *:PORT.
func (n *node) remote(path string, proto uint8) (nat.Remote, error) {
	const allowed = "ADDRESS, ADDRESS:PORT or *:PORT"
	if err := n.is(scalar, path, allowed); err != nil {
		return nat.Remote{}, err
	}
	addr, ports, hasPort := strings.Cut(n.text, ":")
	r, ok := nat.Remote{}, true
	if addr != "*" || !hasPort {
		r.Addr, ok = parseHost(addr)
	}
	if ok && hasPort {
		var v int
		v, ok = decimal(ports)
		ok = ok && v > 0 && v <= 65535
		r.Port = uint16(v)
	}
	if !ok {
		return nat.Remote{}, n.refuse(path, allowed)
	}
	if hasPort && proto == packet.ProtoICMP {
		return nat.Remote{}, errorAt(n.at, "%s gives a port, but ICMP has none; allowed: ADDRESS", path)
	}
	return r, nil
}

func remoteText(r nat.Remote) string {
	switch {
	case r.Port == 0:
		return r.Addr.String()
	case r.Addr == 0:
		return "*:" + strconv.Itoa(int(r.Port))
	}
	return r.Addr.String() + ":" + strconv.Itoa(int(r.Port))
}

func (redirectPorts) encode(s *settings) *node {
	n := &node{kind: list}
	for _, r := range s.redirectPort {
		item := &node{kind: mapping}
		item.add("proto", word(protoText(r.proto))).add("public", quoted(r.public.String()))
		item.add("local", serverNode(r.local, r.pool))
		if r.remote != (nat.Remote{}) {
			item.add("remote", quoted(remoteText(r.remote)))
		}
		if r.pool {
			item.add("pick", word(pickText(r.pick)))
		}
		n.items = append(n.items, item)
	}
	return n
}

func serverNode[T fmt.Stringer](local []T, pool bool) *node {
	if pool {
		return quotedList(local)
	}
	return quoted(local[0].String())
}

// public reads an address or "port".
func (n *node) public(path string) (packet.Addr, error) {
	if n.kind == scalar && n.text == "port" {
		return 0, nil
	}
	return n.host(path, hostAllowed+`, or "port" for the outside port's own`)
}

// redirectAddrs is the key nat.redirect_addr.
type redirectAddrs struct{}

func (redirectAddrs) allowed() string {
	return "a list of {public, local} with inbound and pick as options"
}

func (c redirectAddrs) decode(s *settings, path string, n *node) error {
	if err := n.is(list, path, c.allowed()); err != nil {
		return err
	}
	for i, item := range n.items {
		r, err := decodeRedirectAddr(fmt.Sprintf("%s[%d]", path, i), item)
		if err != nil {
			return err
		}
		s.redirectAddr = append(s.redirectAddr, r)
	}
	return nil
}

func decodeRedirectAddr(path string, n *node) (r redirectAddr, err error) {
	f, err := n.fields(path, []string{"public", "local"}, []string{"inbound", "pick"})
	if err != nil {
		return r, err
	}
	r.at, r.inbound = n.at, true
	if r.public, err = f["public"].public(path + ".public"); err != nil {
		return r, err
	}
	items, pool, err := f["local"].servers(path+".local", hostAllowed+", or a list of them")
	if err != nil {
		return r, err
	}
	r.pool = pool
	for _, item := range items {
		a, err := item.host(path+".local", hostAllowed)
		if err != nil {
			return r, err
		}
		for _, other := range r.local {
			if other == a {
				return r, errorAt(item.at, "%s.local: %s is in the pool twice; allowed: once", path, a)
			}
		}
		r.local = append(r.local, a)
	}
	if inbound := f["inbound"]; inbound != nil {
		if r.inbound, err = inbound.boolean(path + ".inbound"); err != nil {
			return r, err
		}
	}
	if pick := f["pick"]; pick != nil {
		if r.pick, err = pick.pick(path + ".pick"); err == nil && !pool {
			err = errorAt(pick.at, "%s.pick chooses among several servers, but local is one; needed: a list in local", path)
		}
	}
	return r, err
}

func (redirectAddrs) encode(s *settings) *node {
	n := &node{kind: list}
	for _, r := range s.redirectAddr {
		item := &node{kind: mapping}
		item.add("public", quoted(publicText(r.public))).add("local", serverNode(r.local, r.pool))
		item.add("inbound", word(strconv.FormatBool(r.inbound)))
		if r.pool {
			item.add("pick", word(pickText(r.pick)))
		}
		n.items = append(n.items, item)
	}
	return n
}

// redirectProtos is the key nat.redirect_proto.
type redirectProtos struct{}

func (redirectProtos) allowed() string {
	return "a list of {proto, public, local} with remote as an option"
}

func (c redirectProtos) decode(s *settings, path string, n *node) error {
	if err := n.is(list, path, c.allowed()); err != nil {
		return err
	}
	for i, item := range n.items {
		r, err := decodeRedirectProto(fmt.Sprintf("%s[%d]", path, i), item)
		if err != nil {
			return err
		}
		s.redirectProto = append(s.redirectProto, r)
	}
	return nil
}

func decodeRedirectProto(path string, n *node) (r redirectProto, err error) {
	f, err := n.fields(path, []string{"proto", "public", "local"}, []string{"remote"})
	if err != nil {
		return r, err
	}
	r.at = n.at
	const protos = "an IP protocol's number from 1 to 255 but those of icmp, tcp and udp (redirect_port is for them)"
	if r.proto, err = f["proto"].proto(path+".proto", protos); err != nil {
		return r, err
	}
	switch r.proto {
	case 0, packet.ProtoICMP, packet.ProtoTCP, packet.ProtoUDP:
		return r, f["proto"].refuse(path+".proto", protos)
	}
	if r.public, err = f["public"].public(path + ".public"); err != nil {
		return r, err
	}
	if r.local, err = f["local"].host(path+".local", hostAllowed); err != nil {
		return r, err
	}
	if remote := f["remote"]; remote != nil {
		r.remote, err = remote.host(path+".remote", hostAllowed)
	}
	return r, err
}

func (redirectProtos) encode(s *settings) *node {
	n := &node{kind: list}
	for _, r := range s.redirectProto {
		item := &node{kind: mapping}
		item.add("proto", word(strconv.Itoa(int(r.proto)))).add("public", quoted(publicText(r.public)))
		item.add("local", quoted(r.local.String()))
		if r.remote != 0 {
			item.add("remote", quoted(r.remote.String()))
		}
		n.items = append(n.items, item)
	}
	return n
}
