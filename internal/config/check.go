package config

import (
	"pollux/internal/packet"
	"pollux/nat"
)

// check sees to what one key alone can't tell.
func (s *settings) check(use Use) error {
	for _, f := range []func() error{
		s.checkWorkers,
		func() error { return s.checkAlias(use) },
		s.checkTarget, s.checkBlocks, s.checkDeterministic, s.checkSteer, s.checkRedirectPort, s.checkRedirectAddr, s.checkRedirectProto,
		s.checkLog,
	} {
		if err := f(); err != nil {
			return err
		}
	}
	return nil
}

// workers is how many run.
func (s *settings) workers() int { return max(1, len(s.cores)) }

func (s *settings) checkWorkers() error {
	if n := len(s.queues); n > 0 && n != s.workers() {
		cores := "one core (the last allowed)"
		if len(s.cores) > 0 {
			cores = plural(len(s.cores), "core")
		}
		return errorAt(s.where["workers.queues"], "workers.queues has %s for %s; allowed: as many queues as cores, the i-th core polls the i-th queue",
			plural(n, "queue"), cores)
	}
	if n := s.workers(); n > workersMax {
		return errorAt(s.where["workers.cores"], "workers.cores names %d cores, each a worker; allowed: up to %d", n, workersMax)
	}
	return nil
}

func (s *settings) checkAlias(use Use) error {
	for _, a := range s.alias {
		if a.port && use.Replay && s.replay.OutsideAddress == 0 {
			return errorAt(a.at, "nat.alias: \"port\" follows the outside port, which a replay doesn't have; set replay.outside_address to the address to use")
		}
		if a.port && use.Replay && s.contains(s.replay.OutsideAddress) {
			return errorAt(s.where["replay.outside_address"], "replay.outside_address is %s, which nat.alias gives besides \"port\"; allowed: each address once", s.replay.OutsideAddress)
		}
	}
	return nil
}

func (s *settings) contains(a packet.Addr) bool {
	for _, spec := range s.alias {
		if !spec.port && spec.span.first <= a && a <= spec.span.last {
			return true
		}
	}
	return false
}

// checkBlocks: the range must hold a whole block.
func (s *settings) checkBlocks() error {
	size, r := s.rules.Blocks.Size, s.rules.PortRange
	if size == 0 {
		return nil
	}
	if s.snapshotFile != "" {
		return errorAt(s.where["snapshot.file"], "snapshot.file: with nat.blocks (size is %d) links can't be restored from a snapshot; allowed: one of them", size)
	}
	if last := int(r.Low) + size - 1; last > int(r.High) {
		return errorAt(s.where["nat.blocks.size"], "nat.blocks.size is %d, but port_range %d-%d holds no whole block (the first would be %d-%d); allowed: a smaller size or a wider range",
			size, r.Low, r.High, r.Low, last)
	}
	return nil
}

// checkDeterministic does RFC 7422's arithmetic: every inside address gets a range of its own.
func (s *settings) checkDeterministic() error {
	d, r := s.rules.Deterministic, s.rules.PortRange
	at := s.where["nat.deterministic.inside"]
	switch {
	case !d.Inside.IsValid() && d.PortsPerHost == 0:
		return nil
	case !d.Inside.IsValid():
		return errorAt(s.where["nat.deterministic.ports_per_host"], "nat.deterministic.ports_per_host is set, but nat.deterministic.inside is not; needed: both or neither")
	case d.PortsPerHost == 0:
		return errorAt(at, "nat.deterministic.inside is set, but nat.deterministic.ports_per_host is not; needed: both or neither")
	case s.rules.Blocks.Size > 0:
		return errorAt(at, "nat.deterministic excludes nat.blocks (size is %d); allowed: one of them", s.rules.Blocks.Size)
	}
	aliases := len(s.pool())
	if s.aliasPort() {
		aliases++
	}
	hosts := uint64(1) << (32 - d.Inside.Bits())
	size := uint64(r.High) - uint64(r.Low) + 1
	perAlias := size / uint64(d.PortsPerHost)
	if have := perAlias * uint64(aliases); have < hosts {
		return errorAt(at, "nat.deterministic: %s has %d addresses with %d ports each, but %s of %d ports (%d-%d) serve %d x %d = %d; allowed: fewer ports per host, a smaller network, or more alias addresses",
			d.Inside, hosts, d.PortsPerHost, plural(aliases, "alias address"), size, r.Low, r.High, aliases, perAlias, have)
	}
	return nil
}

// checkSteer: with steer: flow one host's flows live in several shards, which blocks and deterministic ranges can't span. A
// configuration in which it would change nothing is refused.
func (s *settings) checkSteer() error {
	switch {
	case !s.steerFlow:
	case s.rules.Blocks.Size > 0 || s.rules.Deterministic.PortsPerHost > 0:
		return errorAt(s.where["workers.steer"], "workers.steer is flow, which nat.blocks and nat.deterministic exclude; allowed: host")
	case len(nat.FlowProtocols(&s.rules)) == 0:
		return errorAt(s.where["workers.steer"], "workers.steer is flow, which needs a protocol whose nat.mapping is endpoint-dependent and whose nat.filtering is address-and-port-dependent; allowed: host")
	}
	return nil
}

type publicKey struct {
	proto  uint8
	public nat.Alias
	remote nat.Remote
}

// checkRedirectPort refuses two rules that match the same packets with the same right.
func (s *settings) checkRedirectPort() error {
	seen := map[publicKey]place{}
	for i := range s.redirectPort {
		r := &s.redirectPort[i]
		if err := s.checkPublic("nat.redirect_port", r.public.addr, r.at); err != nil {
			return err
		}
		for _, l := range r.local {
			if err := s.checkLocal("nat.redirect_port", l.addr, r.at); err != nil {
				return err
			}
		}
		for p := int(r.public.low); p <= int(r.public.high); p++ {
			k := publicKey{r.proto, nat.Alias{Addr: r.public.addr, Port: uint16(p)}, r.remote}
			if other, clash := seen[k]; clash {
				return errorAt(r.at, "nat.redirect_port: %s %s:%d for the same remote is published at %s already; allowed: once for each remote",
					protoText(r.proto), publicText(r.public.addr), p, other)
			}
			seen[k] = r.at
		}
	}
	return nil
}

func (s *settings) checkRedirectAddr() error {
	seen := map[packet.Addr]place{}
	for _, r := range s.redirectAddr {
		if err := s.checkPublic("nat.redirect_addr", r.public, r.at); err != nil {
			return err
		}
		for _, l := range r.local {
			if err := s.checkLocal("nat.redirect_addr", l, r.at); err != nil {
				return err
			}
		}
		if other, clash := seen[r.public]; clash {
			return errorAt(r.at, "nat.redirect_addr: %s is published at %s already; allowed: once (a list in local makes a pool)", publicText(r.public), other)
		}
		seen[r.public] = r.at
	}
	return nil
}

func (s *settings) checkRedirectProto() error {
	seen := map[redirectProto]place{}
	for _, r := range s.redirectProto {
		if err := s.checkPublic("nat.redirect_proto", r.public, r.at); err != nil {
			return err
		}
		if err := s.checkLocal("nat.redirect_proto", r.local, r.at); err != nil {
			return err
		}
		k := redirectProto{proto: r.proto, public: r.public, remote: r.remote}
		if other, clash := seen[k]; clash {
			return errorAt(r.at, "nat.redirect_proto: protocol %d of %s for the same remote is published at %s already; allowed: once for each remote", r.proto, publicText(r.public), other)
		}
		seen[k] = r.at
	}
	return nil
}

// checkPublic: "port" needs an alias that follows the port.
func (s *settings) checkPublic(path string, public packet.Addr, at place) error {
	if public == 0 && !s.aliasPort() {
		return errorAt(at, "%s: public is \"port\", but nat.alias doesn't hold \"port\"; allowed: an IPv4 address, or \"port\" in nat.alias too", path)
	}
	return nil
}

// checkTarget: an alias address as DMZ host would be translated in a circle.
func (s *settings) checkTarget() error {
	if t := s.rules.Target; t != 0 && s.contains(t) {
		return errorAt(s.where["nat.target"], "nat.target: %s is an alias address; allowed: an inside host's address", t)
	}
	return nil
}

// checkLocal: a local host at an alias address would be translated in a circle.
func (s *settings) checkLocal(path string, local packet.Addr, at place) error {
	if s.contains(local) {
		return errorAt(at, "%s: local %s is an alias address; allowed: an inside host's address", path, local)
	}
	return nil
}
