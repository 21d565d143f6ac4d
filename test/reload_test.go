package integration

import (
	"context"
	"encoding/json"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"pollux/internal/control"
	"pollux/internal/lab"
)

// operated is a gateway that runs from a file, and is changed by the commands of the built program.
type operated struct {
	*gateway
	file string
	ctx  context.Context
}

// operate starts pollux from a file that holds ports, two workers if wanted, and whatever nat keys are given.
func operate(t *testing.T, l *lab.Lab, workers int, nat ...string) *operated {
	t.Helper()
	o := &operated{file: filepath.Join(l.Dir, "pollux.yaml"), ctx: limited(t, 90*time.Second)}
	o.write(t, workers, nat...)
	o.gateway = run(t, l, "-c", o.file)
	return o
}

func (o *operated) write(t *testing.T, workers int, nat ...string) {
	t.Helper()
	text := fmt.Sprintf("ports: [{name: %s, role: inside}, {name: %s, role: outside}]\n", lab.InsideDevice, lab.OutsideDevice)
	if workers == 2 {
		text += "workers: {cores: 0-1}\n"
	}
	text += "nat:\n  " + strings.Join(nat, "\n  ") + "\n"
	if err := os.WriteFile(o.file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
}

// do runs a pollux command against the gateway and returns what it printed; the flags that find the gateway are added.
func (o *operated) do(args ...string) (string, error) {
	at := map[string]int{"redirect": 3, "show": 2}[args[0]] // words that name the command
	at = max(at, 1)
	all := append(append(append([]string{}, args[:at]...), "--control", o.l.Socket()), args[at:]...)
	return o.l.Gateway.Run(o.ctx, pollux(o.t), all...)
}

func (o *operated) must(args ...string) string {
	o.t.Helper()
	out, err := o.do(args...)
	if err != nil {
		o.t.Fatalf("pollux %v: %v\n%s", args, err, out)
	}
	return out
}

func (o *operated) reload(args ...string) control.ReloadResult {
	o.t.Helper()
	var r control.ReloadResult
	out := o.must(append([]string{"reload", "--json"}, args...)...)
	if err := json.Unmarshal([]byte(out), &r); err != nil {
		o.t.Fatalf("%v: %s", err, out)
	}
	return r
}

// published is a redirect of a UDP port to the first inside host, in the file's words.
func published(public string, local int) string {
	return fmt.Sprintf("{proto: udp, public: %q, local: %q}", public, fmt.Sprintf("10.0.0.2:%d", local))
}

// streams run through the gateway both ways while it is changed; none of their datagrams may get lost.
type streams struct {
	t       *testing.T
	out, in *lab.Stream
}

func startStreams(t *testing.T, l *lab.Lab, public string, local uint16) *streams {
	t.Helper()
	in, out := l.Inside[0], l.Outside[0]
	s := &streams{t: t}
	var err error
	if s.out, err = lab.StartStream(in.Namespace, lab.StreamOptions{Src: in.Addr, Dst: netip.AddrPortFrom(out.Addr, 9000), Flows: 16}, out.Namespace); err != nil {
		t.Fatal(err)
	}
	s.in, err = lab.StartStream(out.Namespace, lab.StreamOptions{Src: out.Addr, Dst: netip.MustParseAddrPort(public), At: netip.AddrPortFrom(in.Addr, local), Flows: 16}, in.Namespace)
	if err != nil {
		t.Fatal(err)
	}
	s.flow()
	return s
}

// flow waits until both streams have got some more through.
func (s *streams) flow() {
	s.t.Helper()
	for _, x := range []*lab.Stream{s.out, s.in} {
		before, _ := x.Arrived(0)
		eventually(s.t, 10*time.Second, func() error {
			if now, _ := x.Arrived(0); now < before+100 {
				return fmt.Errorf("%d datagrams arrived", now-before)
			}
			return nil
		})
	}
}

func (s *streams) stop() {
	s.t.Helper()
	for name, x := range map[string]*lab.Stream{"outbound": s.out, "inbound": s.in} {
		r := x.Stop()
		s.t.Logf("%s: %v", name, r)
		if r.Lost > 0 || r.Doubled > 0 {
			s.t.Errorf("%s: %v, runs of lost ones %v", name, r, r.Losses)
		}
	}
}

// Reloads of every kind under load: what stands loses nothing, what does not stand is closed, and the same twice is nothing.
func TestReload(t *testing.T) {
	for _, workers := range []int{1, 2} {
		t.Run(fmt.Sprintf("%d workers", workers), func(t *testing.T) {
			l := newLab(t, lab.Options{Queues: workers})
			in, out := l.Inside[0], l.Outside[0]
			const public = "203.0.113.1:5000"
			base := []string{`alias: ["203.0.113.1"]`, "redirect_port: [" + published(public, 6000) + "]"}
			o := operate(t, l, workers, base...)
			s := startStreams(t, l, public, 6000)
			echo, err := lab.ServeUDPEcho(in.Namespace, at(in.Addr, 6001))
			if err != nil {
				t.Fatal(err)
			}
			defer echo.Close()
			const second = "203.0.113.7:5001"
			answered := func(public string, want int) error {
				f, err := lab.UDPFlows(o.ctx, out.Namespace, netip.MustParseAddrPort(public), lab.FlowOptions{Flows: 10, Timeout: 300 * time.Millisecond})
				if err == nil && f.Answered != want {
					err = fmt.Errorf("%d of 10 answered at %s, want %d", f.Answered, public, want)
				}
				return err
			}

			if r := o.reload(); r.Applied || len(r.Changes) > 0 {
				t.Errorf("the file that holds already: %+v", r)
			}
			for range 3 {
				// The pool grows, a port of the new address is published, a timeout and a limit of the path change.
				o.write(t, workers, `alias: ["203.0.113.1", "203.0.113.4/30"]`, "timeouts: {udp: 30s}", "exempt: [192.0.2.0/24]", "mss_clamp: 1200",
					"redirect_port: ["+published(public, 6000)+", "+published(second, 6001)+"]")
				dry := o.reload("--dry-run")
				if dry.Applied || len(dry.Changes) != 5 {
					t.Errorf("dry run: %+v", dry)
				}
				if err := answered(second, 0); err != nil {
					t.Error("after a dry run: ", err)
				}
				r := o.reload()
				if !r.Applied || len(r.Changes) != 5 || r.Closed != 0 || r.Kept < 32 {
					t.Errorf("grown: %+v", r)
				}
				eventually(t, 10*time.Second, func() error { return answered(second, 10) })
				s.flow()
				if r := o.reload(); r.Applied || len(r.Changes) > 0 {
					t.Errorf("the same again: %+v", r)
				}
				// And shrinks: the links of the address that goes are closed, no other.
				gone := uint64(len(o.links(control.Filter{Address: "203.0.113.7"})))
				o.write(t, workers, base...)
				if r = o.reload(); !r.Applied || r.Closed != gone || gone < 10 || r.Kept < 32 {
					t.Errorf("shrunk: %+v, %d links on the address that went", r, gone)
				}
				if left := o.links(control.Filter{Address: "203.0.113.7"}); len(left) > 0 {
					t.Errorf("%d links left on an address that is gone", len(left))
				}
				if err := answered(second, 0); err != nil {
					t.Error("after the redirect went: ", err)
				}
				s.flow()
			}
			o.refusals(t, workers, base)
			s.stop()
		})
	}
}

// refusals are reloads that change nothing.
func (o *operated) refusals(t *testing.T, workers int, base []string) {
	t.Helper()
	before := o.must("show", "config")
	// A file that is not right.
	o.write(t, workers, append([]string{"pooling: wild"}, base...)...)
	line := 3 + workers - 1
	out, err := o.do("reload")
	if want := fmt.Sprintf("%s:%d:12: nat.pooling", o.file, line); err == nil || !strings.Contains(err.Error(), want) {
		t.Errorf("a broken file: %v, %s, want %s", err, out, want)
	}
	// Keys that need a restart, all of them named.
	o.write(t, workers, append([]string{"timeouts: {udp: 10s}"}, base...)...)
	text, _ := os.ReadFile(o.file)
	other := filepath.Join(filepath.Dir(o.file), "other.yaml")
	if err := os.WriteFile(other, append(text, []byte("limits: {links: 5000}\nrings: {size: 1024}\n")...), 0o644); err != nil {
		t.Fatal(err)
	}
	_, err = o.do("reload", "-c", other)
	for _, key := range []string{"limits.links", "rings.size"} {
		if err == nil || !strings.Contains(err.Error(), key) {
			t.Errorf("%s is not named: %v", key, err)
		}
	}
	if after := o.must("show", "config"); after != before {
		t.Errorf("a refused reload changed the configuration:\n%s\n%s", before, after)
	}
	// SIGHUP takes what the file says now.
	o.Signal(syscall.SIGHUP)
	eventually(t, 10*time.Second, func() error {
		if now := o.must("show", "config"); !strings.Contains(now, "udp: 10s") {
			return fmt.Errorf("SIGHUP: %s", now)
		}
		return nil
	})
}

// A port is published, and taken back, while traffic runs.
func TestRedirectAtRunTime(t *testing.T) {
	for _, workers := range []int{1, 2} {
		t.Run(fmt.Sprintf("%d workers", workers), func(t *testing.T) {
			l := newLab(t, lab.Options{Queues: workers})
			in, out := l.Inside[0], l.Outside[0]
			const public = "203.0.113.1:5000"
			base := []string{`alias: ["203.0.113.1"]`, "redirect_port: [" + published(public, 6000) + "]"}
			o := operate(t, l, workers, base...)
			s := startStreams(t, l, public, 6000)
			web, err := lab.ServeTCP(in.Namespace, at(in.Addr, 80), lab.Tell("inside"))
			if err != nil {
				t.Fatal(err)
			}
			defer web.Close()
			ask := func() error {
				ctx, cancel := context.WithTimeout(o.ctx, time.Second)
				defer cancel()
				_, _, err := lab.Ask(ctx, out.Namespace, "203.0.113.1:8080")
				return err
			}
			const spec = "tcp,203.0.113.1:8080=10.0.0.2:80"
			for range 3 {
				o.must("redirect", "add", "port", spec)
				eventually(t, 10*time.Second, ask)
				if show := o.must("show", "config"); !strings.Contains(show, "#   redirect port "+spec) {
					t.Errorf("show config does not tell of it:\n%s", show)
				}
				if show := o.must("show", "redirects", "--json"); strings.Count(show, `"origin":"runtime"`) != 1 || strings.Count(show, `"origin":"config"`) != 1 {
					t.Errorf("show redirects:\n%s", show)
				}
				s.flow()
				o.must("redirect", "del", "port", "tcp,203.0.113.1:8080")
				if err := ask(); err == nil {
					t.Error("a deleted redirect still answers")
				}
				if left := o.links(control.Filter{Port: "8080"}); len(left) > 0 {
					t.Errorf("%d links of a deleted redirect", len(left))
				}
			}
			for _, bad := range []struct{ args, want string }{
				{"add port tcp,203.0.113.1:8080", "not understood"},
				{"add port udp,203.0.113.1:5000=10.0.0.2:1", "published"},
				{"add port tcp,203.0.113.1:8080=203.0.113.1:80", "alias address"},
				{"add addr 203.0.113.1", "not understood"},
				{"del port tcp,203.0.113.1:1", "not added"},
				{"del port udp,203.0.113.1:5000", "configuration"},
			} {
				if out, err := o.do(append([]string{"redirect"}, strings.Fields(bad.args)...)...); err == nil || !strings.Contains(err.Error(), bad.want) {
					t.Errorf("redirect %s: %v %s, want %q", bad.args, err, out, bad.want)
				}
			}
			// An address and a protocol, too.
			o.must("redirect", "add", "addr", "203.0.113.9=10.0.0.2")
			o.must("redirect", "add", "proto", "47,203.0.113.1=10.0.0.2")
			eventually(t, 10*time.Second, func() error {
				ctx, cancel := context.WithTimeout(o.ctx, time.Second)
				defer cancel()
				_, _, err := lab.Ask(ctx, out.Namespace, "203.0.113.9:80")
				return err
			})
			// A reload drops what the file has not got, and keeps what it has.
			o.must("redirect", "add", "port", spec)
			o.write(t, workers, base[0], "redirect_port: ["+published(public, 6000)+`, {proto: tcp, public: "203.0.113.1:8080", local: "10.0.0.2:80"}]`)
			conn, err := out.Dial(o.ctx, "tcp4", "203.0.113.1:8080")
			if err != nil {
				t.Fatal(err)
			}
			conn.Close()
			r := o.reload()
			if !r.Applied || len(r.Dropped) != 2 || r.Dropped[0].Kind != "addr" || r.Dropped[1].Kind != "proto" {
				t.Errorf("reload: %+v", r)
			}
			if err := ask(); err != nil {
				t.Errorf("what the file has was dropped: %v", err)
			}
			s.stop()
		})
	}
}

// No new flow while it drains, and the old ones go on until they have run out.
func TestDrain(t *testing.T) {
	l := newLab(t, lab.Options{})
	in, out := l.Inside[0], l.Outside[0]
	const public = "203.0.113.1:5000"
	o := operate(t, l, 1, `alias: ["203.0.113.1"]`, "redirect_port: ["+published(public, 6000)+"]", "timeouts: {udp: 2s}")
	echo, err := lab.ServeUDPEcho(out.Namespace, at(out.Addr, 7))
	if err != nil {
		t.Fatal(err)
	}
	defer echo.Close()
	fresh := func() int {
		f, err := lab.UDPFlows(o.ctx, in.Namespace, netip.AddrPortFrom(out.Addr, 7), lab.FlowOptions{Flows: 5, Timeout: 300 * time.Millisecond})
		if err != nil {
			t.Fatal(err)
		}
		return f.Answered
	}
	s := startStreams(t, l, public, 6000)
	if out, err := o.do("drain", "--timeout", "1s"); err == nil || !strings.Contains(err.Error(), "links are left") || !strings.Contains(out+err.Error(), "draining: ") {
		t.Errorf("drain with flows that go on: %v\n%s", err, out)
	}
	if n := fresh(); n != 0 {
		t.Errorf("%d of 5 new flows got through", n)
	}
	if o.drops("draining") < 5 {
		t.Errorf("%d drops of the reason draining", o.drops("draining"))
	}
	s.flow()
	o.must("drain", "--undo")
	if n := fresh(); n != 5 {
		t.Errorf("after the undo %d of 5 new flows got through", n)
	}
	s.stop()
	if text := o.must("drain", "--timeout", "30s"); !strings.HasSuffix(strings.TrimSpace(text), "draining: 0 links left") {
		t.Errorf("drained: %s", text)
	}
}

// The service manager hears that a reload begins and that it is over.
func TestReloadTellsTheServiceManager(t *testing.T) {
	l := newLab(t, lab.Options{})
	path := filepath.Join(l.Dir, "notify.sock")
	manager, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: path, Net: "unixgram"})
	if err != nil {
		t.Fatal(err)
	}
	defer manager.Close()
	t.Setenv("NOTIFY_SOCKET", path)
	hear := func() string {
		t.Helper()
		b := make([]byte, 1000)
		manager.SetReadDeadline(time.Now().Add(10 * time.Second))
		n, err := manager.Read(b)
		if err != nil {
			t.Fatal(err)
		}
		return string(b[:n])
	}
	o := operate(t, l, 1, `alias: ["203.0.113.1"]`)
	if got := hear(); got != "READY=1" {
		t.Errorf("at the start: %q", got)
	}
	o.write(t, 1, `alias: ["203.0.113.1"]`, "hairpin: false")
	o.reload()
	if got := hear(); !strings.HasPrefix(got, "RELOADING=1\nMONOTONIC_USEC=") {
		t.Errorf("as the reload begins: %q", got)
	}
	if got := hear(); got != "READY=1" {
		t.Errorf("when it is over: %q", got)
	}
}
