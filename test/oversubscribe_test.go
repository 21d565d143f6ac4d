package integration

import (
	"fmt"
	"runtime"
	"strings"
	"testing"
	"time"

	"pollux/internal/lab"
)

// More workers than cores are refused, but tests may have them by --oversubscribe: they run, share cores and forward.
func TestOversubscribe(t *testing.T) {
	n := runtime.NumCPU() + 2
	l := newLab(t, lab.Options{Queues: n})
	g := run(t, l, "--cores", fmt.Sprintf("0-%d", n-1), "--oversubscribe")
	if w := g.workers(); len(w) != n {
		t.Errorf("%d workers, want %d", len(w), n)
	}
	ping, err := lab.Ping(limited(t, 30*time.Second), l.Inside[0].Namespace, l.Inside[0].Addr, l.Outside[0].Addr, lab.PingOptions{Count: 3, Timeout: 10 * time.Second})
	if err != nil || len(ping.RTT) != 3 {
		t.Errorf("%+v %v", ping, err)
	}
	// A veth tells nothing of how it spreads packets: hand-over alone must do, and it is said.
	if out := mustRun(t, limited(t, 30*time.Second), l.Gateway, pollux(t), "show", "ports", "--control", l.Socket()); !strings.Contains(out, "RSS of eth0: the driver does not tell its RSS settings") {
		t.Errorf("show ports: %s", out)
	}
	if out := mustRun(t, limited(t, 30*time.Second), l.Gateway, pollux(t), "show", "workers", "--control", l.Socket()); !strings.Contains(out, "HANDED OVER") || !strings.Contains(out, "NEAR PORTS") {
		t.Errorf("show workers: %s", out)
	}
}
