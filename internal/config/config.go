package config

import (
	"slices"
	"strings"

	"pollux/internal/packet"
	"pollux/nat"
	"pollux/pmd"
	"pollux/rtcache"
)

// Config is a checked configuration. It never changes; what its methods return is the caller's own.
type Config struct{ s *settings }

// Workers returns how many workers run.
func (c *Config) Workers() int { return c.s.workers() }

// Control returns where the control socket is.
func (c *Config) Control() Control { return c.s.control }

// Messages returns how the process's own messages are written.
func (c *Config) Messages() Messages { return c.s.messages }

// Limits returns the limits of the whole gateway.
func (c *Config) Limits() nat.Limits { return c.s.limits }

// RTCache reports whether next hops are attached to links at start.
func (c *Config) RTCache() bool { return c.s.rtcache }

// ReversePath returns the reverse-path check.
func (c *Config) ReversePath() rtcache.ReversePathMode { return c.s.reversePath }

// MSSAuto reports nat.mss_clamp: auto.
func (c *Config) MSSAuto() bool { return c.s.mssAuto }

// AliasPort reports whether the outside port's own address is an alias address, ahead of Rules().Alias.
func (c *Config) AliasPort() bool { return c.s.aliasPort() }

// Rules returns the translation rules: port ranges expanded, addresses of redirect_addr taken out of the pool. Kernel is
// left empty, and a public address of 0 means the outside port's own; both are for whoever knows the kernel.
func (c *Config) Rules() nat.Rules {
	s := c.s
	r := s.rules
	r.Alias = s.pool()
	r.Exempt = slices.Clone(r.Exempt)
	for _, p := range s.redirectPort {
		r.RedirectPort = p.expand(r.RedirectPort)
	}
	for _, a := range s.redirectAddr {
		r.RedirectAddr = append(r.RedirectAddr, nat.RedirectAddr{Public: a.public, Local: slices.Clone(a.local), Inbound: a.inbound, Pick: a.pick, Added: a.added})
	}
	for _, p := range s.redirectProto {
		r.RedirectProto = append(r.RedirectProto, nat.RedirectProto{Proto: p.proto, Public: p.public, Local: p.local, Remote: p.remote, Added: p.added})
	}
	return r
}

// expand appends one rule for each port of the range.
func (p *redirectPort) expand(rules []nat.RedirectPort) []nat.RedirectPort {
	for i := range p.public.size() {
		r := nat.RedirectPort{
			Proto: p.proto, Remote: p.remote, Pick: p.pick, Added: p.added,
			Public: nat.Alias{Addr: p.public.addr, Port: p.public.low + uint16(i)},
		}
		for _, l := range p.local {
			r.Local = append(r.Local, nat.Local{Addr: l.addr, Port: l.low + uint16(i)})
		}
		rules = append(rules, r)
	}
	return rules
}

// Gateway returns the options of a running gateway.
func (c *Config) Gateway() pmd.Options {
	s := c.s
	o := pmd.Options{
		Cores: slices.Clone(s.cores), Queues: s.queueList(),
		Idle: s.idle, SteerFlow: s.steerFlow, RTPriority: s.rtPriority, Oversubscribe: s.oversubscribe,
		Mode: s.mode, RingSize: s.ringSize, Frames: s.frames,
		Rules: c.Rules(), AliasPort: s.aliasPort(), MSSAuto: s.mssAuto, Limits: s.limits,
		Populate: s.populate,
		RTCache:  s.rtcache, ReversePath: s.reversePath, IPv6Forward: s.ipv6Forward,
	}
	if s.snapshotFile != "" {
		o.SnapshotFile, o.SnapshotEvery = s.snapshotFile, s.snapshotEvery
	}
	for _, p := range s.ports {
		o.Ports = append(o.Ports, pmd.PortOptions{Name: p.name, Side: p.side})
	}
	return o
}

// Live returns the options that a running gateway can follow.
func (c *Config) Live() pmd.Live {
	o := c.Gateway()
	return o.Live()
}

// queueList fills in queues left out: from 0 up, one for each core.
func (s *settings) queueList() []int {
	if len(s.queues) > 0 || len(s.cores) == 0 {
		return slices.Clone(s.queues)
	}
	out := make([]int, len(s.cores))
	for i := range out {
		out[i] = i
	}
	return out
}

// Replay returns the replay block. An OutsideAddress of 0 stays 0: the gateway then speaks from its first alias address, and
// no kernel has an alias address, so that unmatched inbound is no-mapping; a given address is the gateway's own.
func (c *Config) Replay() Replay {
	r := c.s.replay
	r.InsideNetworks = slices.Clone(r.InsideNetworks)
	return r
}

// ReplayRules returns the rules for a replay, in which the outside port's own address is replay.outside_address.
func (c *Config) ReplayRules() nat.Rules {
	r := c.Rules()
	if !c.s.aliasPort() {
		return r
	}
	own, taken := c.s.replay.OutsideAddress, false
	for i := range r.RedirectPort {
		if p := &r.RedirectPort[i].Public; p.Addr == 0 {
			p.Addr = own
		}
	}
	for i := range r.RedirectAddr {
		if p := &r.RedirectAddr[i].Public; *p == 0 {
			*p, taken = own, true
		}
	}
	for i := range r.RedirectProto {
		if p := &r.RedirectProto[i].Public; *p == 0 {
			*p = own
		}
	}
	if !taken {
		r.Alias = append([]packet.Addr{own}, r.Alias...)
	}
	return r
}

// YAML prints the effective configuration, defaults included. Parsing it gives the same configuration.
func (c *Config) YAML() string {
	var b strings.Builder
	c.s.tree().writeYAML(&b, "")
	return b.String()
}

// JSON prints the same as a JSON object.
func (c *Config) JSON() string {
	var b strings.Builder
	c.s.tree().writeJSON(&b)
	return b.String()
}
