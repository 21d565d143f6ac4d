package integration

import (
	"testing"
	"time"
)

// What of the kernel's routing is not followed is said when it appears, and when it is gone.
func TestUnfollowedRoutingIsSaid(t *testing.T) {
	f := newFork(t)
	g := f.run()
	wait := func(text string) {
		t.Helper()
		if err := g.WaitFor(text, 30*time.Second); err != nil {
			t.Error(err)
		}
	}
	f.ip("rule add pref 500 from 10.0.0.0/24 lookup 77")
	wait("routing: IPv4 policy rule 500 (table 77) is not followed: tables local and main decide (ip rule del pref 500)")
	f.ip("rule del pref 500")
	wait("routing: no more: IPv4 policy rule 500")
	f.ip("route add 198.51.100.0/24 via 203.0.113.100 tos 0x10")
	wait("routes for a type of service are not followed, for example 198.51.100.0/24")
}
