package integration

import (
	"fmt"
	"runtime"
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
}
