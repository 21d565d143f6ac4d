package config

import (
	"fmt"
	"net/netip"
	"strconv"
	"strings"
	"time"

	"pollux/internal/packet"
)

// codec reads and prints one key's value. allowed is the second half of its error message.
type codec interface {
	decode(s *settings, path string, n *node) error
	encode(s *settings) *node
	allowed() string
}

// decimal reads a plain decimal number; YAML's other notations (0x1f, 1_000, 1e3) are refused.
func decimal(text string) (int, bool) {
	if text == "" || len(text) > 12 || len(text) > 1 && text[0] == '0' {
		return 0, false
	}
	for _, c := range text {
		if c < '0' || c > '9' {
			return 0, false
		}
	}
	v, err := strconv.Atoi(text)
	return v, err == nil
}

func (n *node) number(path string, min, max int, allowed string) (int, error) {
	if err := n.is(scalar, path, allowed); err != nil {
		return 0, err
	}
	v, ok := decimal(n.text)
	if n.quoted || !ok || v < min || v > max {
		return 0, n.refuse(path, allowed)
	}
	return v, nil
}

// number is a plain number. With none, the word none is allowed too and stands for 0.
type number[T ~int | ~uint8] struct {
	at       func(*settings) *T
	min, max int
	none     bool
	zero     string // what 0, below min, would mean: "computed"; "" when 0 is refused or within min..max
	pow2     bool
}

func (c number[T]) allowed() string {
	what := fmt.Sprintf("a number from %d to %d", c.min, c.max)
	if c.pow2 {
		what = fmt.Sprintf("a power of two from %d to %d", c.min, c.max)
	}
	if c.zero != "" {
		what += ", or 0 for " + c.zero
	}
	if c.none {
		what += ", or none"
	}
	return what
}

func (c number[T]) decode(s *settings, path string, n *node) error {
	if c.none && n.kind == scalar && n.text == "none" {
		*c.at(s) = 0
		return nil
	}
	low := c.min
	if c.zero != "" {
		low = 0
	}
	v, err := n.number(path, low, c.max, c.allowed())
	if err != nil {
		return err
	}
	if !(v == 0 && c.zero != "") && (v < c.min || c.pow2 && v&(v-1) != 0) {
		return n.refuse(path, c.allowed())
	}
	*c.at(s) = T(v)
	return nil
}

func (c number[T]) encode(s *settings) *node {
	if v := *c.at(s); v != 0 || !c.none {
		return word(strconv.Itoa(int(v)))
	}
	return word("none")
}

// boolean is true or false.
type boolean struct{ at func(*settings) *bool }

func (boolean) allowed() string { return "true or false" }

func (boolean) choices() []string { return []string{"true", "false"} }

func (n *node) boolean(path string) (bool, error) {
	if err := n.is(scalar, path, "true or false"); err != nil {
		return false, err
	}
	if n.quoted || n.text != "true" && n.text != "false" {
		return false, n.refuse(path, "true or false")
	}
	return n.text == "true", nil
}

func (c boolean) decode(s *settings, path string, n *node) error {
	v, err := n.boolean(path)
	if err == nil {
		*c.at(s) = v
	}
	return err
}

func (c boolean) encode(s *settings) *node { return word(strconv.FormatBool(*c.at(s))) }

// words is one of a few words; its value is the word's position.
type words[T ~int | ~uint8 | ~bool] struct {
	at    func(*settings) *T
	names []string
	value []T
}

func (c words[T]) allowed() string { return strings.Join(c.names, " | ") }

func (c words[T]) choices() []string { return c.names }

func (c words[T]) decode(s *settings, path string, n *node) error {
	if err := n.is(scalar, path, c.allowed()); err != nil {
		return err
	}
	for i, name := range c.names {
		if n.text == name {
			*c.at(s) = c.value[i]
			return nil
		}
	}
	return n.refuse(path, c.allowed())
}

func (c words[T]) encode(s *settings) *node {
	for i, v := range c.value {
		if v == *c.at(s) {
			return word(c.names[i])
		}
	}
	return word("") // not reached: settings only ever hold values of the table
}

// duration carries a unit.
type duration struct {
	at func(*settings) *time.Duration
}

func (duration) allowed() string { return "a time with its unit from 1ms to 480h, as 300s or 2h4m" }

func (c duration) decode(s *settings, path string, n *node) error {
	if err := n.is(scalar, path, c.allowed()); err != nil {
		return err
	}
	d, err := time.ParseDuration(n.text)
	if err != nil || d < durationMin || d > durationMax || n.text[0] == '+' {
		return n.refuse(path, c.allowed())
	}
	*c.at(s) = d
	return nil
}

func (c duration) encode(s *settings) *node {
	d := *c.at(s)
	if d%time.Second == 0 {
		return word(strconv.FormatInt(int64(d/time.Second), 10) + "s")
	}
	return word(d.String())
}

// text is free text; check says what is wrong with it.
type text struct {
	at    func(*settings) *string
	what  string
	check func(string) bool
}

func (c text) allowed() string { return c.what }

func (c text) decode(s *settings, path string, n *node) error {
	if err := n.is(scalar, path, c.what); err != nil {
		return err
	}
	if strings.ContainsAny(n.text, "\x00\n\r") || !c.check(n.text) {
		return n.refuse(path, c.what)
	}
	*c.at(s) = n.text
	return nil
}

func (c text) encode(s *settings) *node { return quoted(*c.at(s)) }

// listenAddress is where something is served by TCP, or nothing.
type listenAddress struct {
	at func(*settings) *netip.AddrPort
}

func (c listenAddress) allowed() string {
	return `"ADDRESS:PORT" as "127.0.0.1:9464" or "[::1]:9464", or ""`
}

func (c listenAddress) decode(s *settings, path string, n *node) error {
	if err := n.is(scalar, path, c.allowed()); err != nil {
		return err
	}
	if n.text == "" {
		*c.at(s) = netip.AddrPort{}
		return nil
	}
	a, err := netip.ParseAddrPort(n.text)
	if err != nil || a.Port() == 0 || a.Addr().Zone() != "" {
		return n.refuse(path, c.allowed())
	}
	*c.at(s) = a
	return nil
}

func (c listenAddress) encode(s *settings) *node {
	if a := *c.at(s); a.IsValid() {
		return quoted(a.String())
	}
	return quoted("")
}

// ints is a list of small numbers written as "2-5,7".
type ints struct {
	at  func(*settings) *[]int
	max int
	of  string
}

func (c ints) allowed() string {
	return fmt.Sprintf(`%s as "2", "2-5" or "2-5,7", each from 0 to %d and once, or ""`, c.of, c.max)
}

func (c ints) decode(s *settings, path string, n *node) error {
	if err := n.is(scalar, path, c.allowed()); err != nil {
		return err
	}
	values, ok := parseInts(n.text, c.max)
	if !ok {
		return n.refuse(path, c.allowed())
	}
	*c.at(s) = values
	return nil
}

func parseInts(text string, max int) ([]int, bool) {
	if text == "" {
		return nil, true
	}
	var out []int
	seen := map[int]bool{}
	for part := range strings.SplitSeq(text, ",") {
		first, last, isRange := strings.Cut(part, "-")
		low, ok := decimal(first)
		high := low
		if isRange && ok {
			high, ok = decimal(last)
		}
		if !ok || low > high || high > max {
			return nil, false
		}
		for v := low; v <= high; v++ {
			if seen[v] {
				return nil, false
			}
			seen[v] = true
			out = append(out, v)
		}
	}
	return out, true
}

func (c ints) encode(s *settings) *node {
	var b strings.Builder
	values := *c.at(s)
	for i := 0; i < len(values); {
		j := i
		for j+1 < len(values) && values[j+1] == values[j]+1 {
			j++
		}
		if b.Len() > 0 {
			b.WriteByte(',')
		}
		b.WriteString(strconv.Itoa(values[i]))
		if j > i {
			b.WriteString("-" + strconv.Itoa(values[j]))
		}
		i = j + 1
	}
	return quoted(b.String())
}

// address is one IPv4 host address; "" is none when empty says what that means.
type address struct {
	at    func(*settings) *packet.Addr
	empty string
}

func (c address) allowed() string {
	if c.empty != "" {
		return hostAllowed + `, or "" for ` + c.empty
	}
	return hostAllowed
}

func (c address) decode(s *settings, path string, n *node) error {
	if c.empty != "" && n.kind == scalar && n.text == "" {
		*c.at(s) = 0
		return nil
	}
	a, err := n.host(path, c.allowed())
	if err == nil {
		*c.at(s) = a
	}
	return err
}

func (c address) encode(s *settings) *node {
	if a := *c.at(s); a != 0 {
		return quoted(a.String())
	}
	return quoted("")
}

const hostAllowed = "an IPv4 host address as 192.0.2.1"

// host reads an address that a host may have.
func (n *node) host(path, allowed string) (packet.Addr, error) {
	if err := n.is(scalar, path, allowed); err != nil {
		return 0, err
	}
	a, ok := parseHost(n.text)
	if !ok {
		return 0, n.refuse(path, allowed)
	}
	return a, nil
}

func parseHost(text string) (packet.Addr, bool) {
	a, err := netip.ParseAddr(text)
	if err != nil || !a.Is4() || !isHost(packet.AddrFrom(a)) {
		return 0, false
	}
	return packet.AddrFrom(a), true
}

// isHost refuses 0/8, 127/8, multicast, and 240/4 with broadcast.
func isHost(a packet.Addr) bool {
	first := uint32(a) >> 24
	return first != 0 && first != 127 && first < 224
}

// prefixes is a list of IPv4 networks; an address alone is a /32.
type prefixes struct {
	at func(*settings) *[]netip.Prefix
}

const prefixAllowed = "IPv4 networks as 192.0.2.0/24, without host bits, that don't overlap"

func (prefixes) allowed() string { return "a list of " + prefixAllowed }

func (c prefixes) decode(s *settings, path string, n *node) error {
	if err := n.is(list, path, c.allowed()); err != nil {
		return err
	}
	var out []netip.Prefix
	seen := newSpans()
	for _, item := range n.items {
		if err := item.is(scalar, path, c.allowed()); err != nil {
			return err
		}
		p, ok := parsePrefix(item.text)
		if !ok {
			return item.refuse(path, prefixAllowed)
		}
		if other, clash := seen.add(spanOf(p), item.at); clash {
			return errorAt(item.at, "%s: %s overlaps what %s gives; allowed: each network once", path, p, other)
		}
		out = append(out, p)
	}
	*c.at(s) = out
	return nil
}

func (c prefixes) encode(s *settings) *node { return quotedList(*c.at(s)) }

func parsePrefix(text string) (netip.Prefix, bool) {
	if a, err := netip.ParseAddr(text); err == nil && a.Is4() {
		return netip.PrefixFrom(a, 32), true
	}
	p, err := netip.ParsePrefix(text)
	if err != nil || !p.Addr().Is4() || p != p.Masked() {
		return netip.Prefix{}, false
	}
	return p, true
}

// mac is a unicast Ethernet address.
type mac struct{ at func(*settings) *[6]byte }

func (mac) allowed() string { return "a unicast Ethernet address as 02:00:00:00:00:01" }

func (c mac) decode(s *settings, path string, n *node) error {
	if err := n.is(scalar, path, c.allowed()); err != nil {
		return err
	}
	var m [6]byte
	parts := strings.Split(n.text, ":")
	if len(parts) != len(m) {
		return n.refuse(path, c.allowed())
	}
	for i, part := range parts {
		v, err := strconv.ParseUint(part, 16, 8)
		if err != nil || len(part) != 2 {
			return n.refuse(path, c.allowed())
		}
		m[i] = byte(v)
	}
	if m == [6]byte{} || m[0]&1 != 0 {
		return n.refuse(path, c.allowed())
	}
	*c.at(s) = m
	return nil
}

func (c mac) encode(s *settings) *node {
	m := *c.at(s)
	return quoted(fmt.Sprintf("%02x:%02x:%02x:%02x:%02x:%02x", m[0], m[1], m[2], m[3], m[4], m[5]))
}
