package integration

import (
	"context"
	"net/netip"
	"os"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"pollux/internal/control"
	"pollux/internal/lab"
)

// TestControlUnderLoad keeps the garbage collector and the control socket busy while traffic flows: neither may hang or
// starve, in either idle mode.
func TestControlUnderLoad(t *testing.T) {
	for _, idle := range []string{"adaptive", "spin"} {
		t.Run(idle, func(t *testing.T) {
			l := newLab(t, lab.Options{Routers: 1})
			t.Setenv("GOGC", "1")
			g := run(t, l, "--idle", idle)
			sniff(t, l)
			pressure(t, l, g, 4*time.Second)
		})
	}
}

// TestSoak repeats pressure with restarts, by SIGTERM and SIGKILL in turn, for POLLUX_SOAK (a duration).
func TestSoak(t *testing.T) {
	length, err := time.ParseDuration(os.Getenv("POLLUX_SOAK"))
	if err != nil {
		t.Skip("set POLLUX_SOAK to a duration (make soak does)")
	}
	l := newLab(t, lab.Options{Routers: 1})
	t.Setenv("GOGC", "1")
	sniff(t, l)
	end := time.Now().Add(length)
	for i := 0; time.Now().Before(end) && !t.Failed(); i++ {
		g := run(t, l)
		pressure(t, l, g, 20*time.Second)
		if i%2 == 0 {
			g.finish()
		} else {
			g.Stop(syscall.SIGKILL, 0)
		}
	}
}

// pressure sends every kind of traffic for a while and asks the control socket all the time.
func pressure(t *testing.T, l *lab.Lab, g *gateway, length time.Duration) {
	t.Helper()
	in, out := l.Inside[0], l.Outside[0]
	web, err := lab.ServeFiles(out.Namespace, at(out.Addr, 80))
	if err != nil {
		t.Fatal(err)
	}
	defer web.Close()
	server := netip.AddrPortFrom(out.Addr, 7)
	echo, err := lab.ServeUDPEcho(out.Namespace, server.String())
	if err != nil {
		t.Fatal(err)
	}
	defer echo.Close()
	end := time.Now().Add(length)
	ctx := limited(t, length+30*time.Second)
	var busy sync.WaitGroup
	var asked, moved atomic.Int64
	repeat := func(what string, f func(context.Context) error) {
		busy.Go(func() {
			for time.Now().Before(end) && ctx.Err() == nil {
				if err := f(ctx); err != nil {
					t.Errorf("%s: %v", what, err)
					return
				}
			}
		})
	}
	repeat("download", func(ctx context.Context) error {
		got, err := lab.Download(ctx, in.Namespace, web.Addr.String(), 10<<20)
		moved.Add(got.Bytes)
		return err
	})
	repeat("udp", func(ctx context.Context) error {
		_, err := lab.UDPFlows(ctx, in.Namespace, server, lab.FlowOptions{Flows: 100, PerFlow: 2, Size: 300})
		return err
	})
	repeat("ping", func(ctx context.Context) error {
		_, err := lab.Ping(ctx, in.Namespace, in.Addr, out.Addr, lab.PingOptions{Count: 5, Interval: 10 * time.Millisecond})
		return err
	})
	var slowest atomic.Int64
	repeat("control socket", func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, 5*time.Second)
		defer cancel()
		start := time.Now()
		if _, err := g.Workers(ctx); err != nil {
			return err
		}
		if _, err := g.Links(ctx, control.Filter{}, func(*control.Link) error { return nil }); err != nil {
			return err
		}
		slowest.Store(max(slowest.Load(), int64(time.Since(start))))
		asked.Add(1)
		return nil
	})
	busy.Wait()
	t.Logf("%d MB moved, control asked %d times, slowest answer %v", moved.Load()>>20, asked.Load(), time.Duration(slowest.Load()).Round(time.Millisecond))
	if moved.Load() == 0 || asked.Load() == 0 {
		t.Error("nothing moved, or the control socket never answered")
	}
}
