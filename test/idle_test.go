package integration

import (
	"fmt"
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"pollux/internal/lab"
)

// cpuTime returns how much CPU a process has used, threads included.
func cpuTime(t *testing.T, pid int) time.Duration {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		t.Fatal(err)
	}
	// Fields after the command's closing parenthesis; utime and stime are the 14th and 15th of all, in ticks of 10 ms.
	fields := strings.Fields(string(b[strings.LastIndexByte(string(b), ')')+1:]))
	var ticks int
	for _, f := range fields[11:13] {
		n, err := strconv.Atoi(f)
		if err != nil {
			t.Fatal(err)
		}
		ticks += n
	}
	return time.Duration(ticks) * 10 * time.Millisecond
}

// An adaptive gateway sleeps when idle and yet answers a single packet at once.
func TestAdaptiveIdle(t *testing.T) {
	l := newLab(t, lab.Options{})
	g := run(t, l)
	in, out := l.Inside[0], l.Outside[0]
	time.Sleep(500 * time.Millisecond) // past the start's own work
	const watch = 3 * time.Second
	before := cpuTime(t, g.PID())
	time.Sleep(watch)
	used := cpuTime(t, g.PID()) - before
	share := float64(used) / float64(watch) * 100
	p, err := lab.Ping(limited(t, 30*time.Second), in.Namespace, in.Addr, out.Addr, lab.PingOptions{Count: 20, Interval: 100 * time.Millisecond})
	if err != nil || len(p.RTT) != 20 {
		t.Errorf("ping at idle: %d of 20 answered, %v", len(p.RTT), err)
	}
	median := lab.Median(p.RTT)
	t.Logf("idle: %.1f %% of a core; single ping: median %v", share, median)
	if share > 10 {
		t.Errorf("an idle gateway uses %.1f %% of a core", share)
	}
	if median > 5*time.Millisecond {
		t.Errorf("median round trip of single pings is %v", median)
	}
	if w := g.workers(); len(w) > 0 && w[0].Sleeps == 0 {
		t.Error("the worker never slept")
	}
}
