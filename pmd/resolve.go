package pmd

import (
	"fmt"
	"slices"
	"strings"

	"pollux/internal/packet"
	"pollux/nat"
	"pollux/rtcache"
)

// placeWorkers returns the core of each worker. With Oversubscribe workers share cores, those that may not be used being
// replaced in turn; otherwise each worker has one of its own.
func placeWorkers(o *Options, allowed []int) ([]int, error) {
	if len(o.Cores) == 0 {
		return allowed[len(allowed)-1:], nil
	}
	cores := slices.Clone(o.Cores)
	for i, c := range cores {
		switch {
		case o.Oversubscribe:
			if !slices.Contains(allowed, c) {
				cores[i] = allowed[i%len(allowed)]
			}
		case !slices.Contains(allowed, c) && len(cores) > len(allowed):
			return nil, fmt.Errorf("workers.cores: %d workers need %d cores and one for everything else, %d in all, but this process may use %d (%s): name fewer, or --oversubscribe for tests",
				len(cores), len(cores), len(cores)+1, len(allowed), list(allowed))
		case !slices.Contains(allowed, c):
			return nil, fmt.Errorf("workers.cores: core %d is not among those that this process may use (%s)", c, list(allowed))
		case slices.Contains(cores[:i], c):
			return nil, fmt.Errorf("workers.cores: core %d is named for 2 workers: one is all that a core can carry; --oversubscribe allows it for tests", c)
		}
	}
	return cores, nil
}

func list(cores []int) string { return strings.Trim(fmt.Sprint(cores), "[]") }

// Aliases lists every address that the rules translate to, each once: the pool in order, then those of redirects.
func Aliases(r *nat.Rules) []packet.Addr {
	var list []packet.Addr
	add := func(a packet.Addr) {
		if a != 0 && !slices.Contains(list, a) {
			list = append(list, a)
		}
	}
	for _, a := range r.Alias {
		add(a)
	}
	for i := range r.RedirectPort {
		add(r.RedirectPort[i].Public.Addr)
	}
	for i := range r.RedirectAddr {
		add(r.RedirectAddr[i].Public)
	}
	for i := range r.RedirectProto {
		add(r.RedirectProto[i].Public)
	}
	return list
}

// MSSAuto is the value of mss_clamp: auto. It is the largest TCP segment that fits every port: the smallest MTU less
// IPv4 and TCP headers without options (RFC 6691 2).
func MSSAuto(mtus []int) int {
	return max(slices.Min(mtus)-packet.IPv4Len-packet.TCPLen, 536)
}

// SideOf gives the translator the FIB's view of where a destination lies.
func SideOf(t *rtcache.Table) func(packet.Addr) (nat.Side, bool) {
	return func(dst packet.Addr) (nat.Side, bool) {
		inside, ok := t.SideOf(dst)
		if inside {
			return nat.Inside, ok
		}
		return nat.Outside, ok
	}
}

// Reverse gives the translator the reverse-path check.
func Reverse(t *rtcache.Table) func(packet.Addr, uint16) bool {
	return func(src packet.Addr, ingress uint16) bool { return t.ReversePathOK(ingress, src) }
}
