package pmd

import (
	"fmt"
	"slices"

	"pollux/internal/packet"
	"pollux/nat"
	"pollux/rtcache"
)

// CheckWorkers refuses what is not built: more than one worker.
func CheckWorkers(n int) error {
	if n > 1 {
		return fmt.Errorf("workers.cores: %d cores are named, but pollux runs one worker for now: name one core", n)
	}
	return nil
}

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
