package integration

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"pollux/internal/control"
	"pollux/internal/lab"
)

// unit returns the text of the systemd unit, and the values of one of its settings.
func unit(t *testing.T) (text string, setting func(name string) string) {
	t.Helper()
	b, err := os.ReadFile("../deploy/pollux.service")
	if err != nil {
		t.Fatal(err)
	}
	return string(b), func(name string) string {
		m := regexp.MustCompile(`(?m)^`+name+`=(.*)$`).FindAllStringSubmatch(string(b), -1)
		if len(m) != 1 {
			t.Fatalf("the unit has %d lines of %s", len(m), name)
		}
		return m[0][1]
	}
}

// needs skips the test, or fails it in CI, where a program is missing.
func needs(t *testing.T, program string) {
	t.Helper()
	if _, err := exec.LookPath(program); err != nil {
		if os.Getenv("POLLUX_REQUIRE_LAB") != "" {
			t.Fatalf("%s is not installed: make deps", program)
		}
		t.Skipf("%s is not installed: make deps", program)
	}
}

// The unit is one that systemd takes, and exposes little.
func TestUnit(t *testing.T) {
	needs(t, "systemd-analyze")
	text, _ := unit(t)
	path := filepath.Join(t.TempDir(), "pollux.service")
	if err := os.WriteFile(path, []byte(strings.ReplaceAll(text, "/usr/bin/pollux", pollux(t))), 0o644); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.Command("systemd-analyze", "verify", "--man=no", path).CombinedOutput(); err != nil || len(out) > 0 {
		t.Errorf("systemd-analyze verify: %v\n%s", err, out)
	}
	if out, err := exec.Command("systemd-analyze", "security", "--offline=true", "--threshold=25", "--no-pager", path).CombinedOutput(); err != nil {
		t.Errorf("systemd-analyze security: %v\n%s", err, out)
	}
}

// What the unit calls exists.
func TestUnitCommands(t *testing.T) {
	text, _ := unit(t)
	commands := regexp.MustCompile(`(?m)^Exec\w+=/usr/bin/pollux (.*)$`).FindAllStringSubmatch(text, -1)
	if len(commands) != 3 {
		t.Fatalf("the unit calls %d commands, not check, run and reload", len(commands))
	}
	for _, c := range commands {
		words := append(strings.Fields(c[1]), "--help")
		if out, err := exec.Command(pollux(t), words...).CombinedOutput(); err != nil || !strings.Contains(string(out), "USAGE") {
			t.Errorf("%s: %v %s", c[0], err, out)
		}
	}
	if out, err := exec.Command(pollux(t), "check", "-c", "../deploy/pollux.yaml").CombinedOutput(); err != nil {
		t.Errorf("the service's configuration: %v %s", err, out)
	}
}

// A user who is not root and has the unit's capabilities, no others, and may lock no memory by his limits: that is enough to forward,
// to follow routes, to hand packets to the kernel, to reload, and with SYS_NICE for real-time workers.
func TestServiceUser(t *testing.T) {
	needs(t, "setpriv")
	l := newLab(t, lab.Options{Routers: 1})
	_, setting := unit(t)
	if setting("AmbientCapabilities") != setting("CapabilityBoundingSet") {
		t.Error("the unit's ambient and bounding capabilities differ")
	}
	dir, err := os.MkdirTemp("", "pollux-service-") // like RuntimeDirectory; t.TempDir is root's alone
	if err != nil {
		t.Fatal(err)
	}
	defer os.RemoveAll(dir)
	program := filepath.Join(dir, "pollux")
	if b, err := os.ReadFile(pollux(t)); err != nil || os.WriteFile(program, b, 0o755) != nil || os.Chown(dir, 65534, 65534) != nil || os.Chmod(dir, 0o755) != nil {
		t.Fatal(err)
	}
	socket := filepath.Join(dir, "pollux.sock")
	start := func(t *testing.T, extra string, args ...string) *lab.Process {
		caps := "-all"
		for _, c := range strings.Fields(setting("AmbientCapabilities") + extra) {
			caps += ",+" + strings.ToLower(strings.TrimPrefix(c, "CAP_"))
		}
		words := append([]string{"--memlock=0:0", "setpriv", "--reuid", "65534", "--regid", "65534", "--clear-groups", "--no-new-privs",
			"--bounding-set", caps, "--inh-caps", caps, "--ambient-caps", caps,
			program, "run", "--control-socket", socket, "--inside", lab.InsideDevice, "--outside", lab.OutsideDevice, "--alias", lab.GatewayOutside.String(),
			"--idle", "adaptive", "--limits-links", "10000"}, args...)
		p, err := l.Gateway.Start("prlimit", words...)
		if err != nil {
			t.Fatal(err)
		}
		if err := p.WaitFor("ready", 30*time.Second); err != nil {
			t.Fatal(err)
		}
		return p
	}
	pings := func(t *testing.T) {
		t.Helper()
		in, out := l.Inside[0], l.Outside[0]
		for _, to := range []lab.PingOptions{{Count: 3, Interval: 20 * time.Millisecond}} {
			if p, err := lab.Ping(t.Context(), in.Namespace, in.Addr, out.Addr, to); err != nil || len(p.RTT) != 3 {
				t.Errorf("through the gateway: %v %v", p, err)
			}
			if p, err := lab.Ping(t.Context(), in.Namespace, in.Addr, lab.GatewayInside, to); err != nil || len(p.RTT) != 3 {
				t.Errorf("to the gateway itself: %v %v", p, err)
			}
		}
	}
	t.Run("capabilities of the unit", func(t *testing.T) {
		p := start(t, "")
		pings(t)
		if _, err := control.NewClient(socket).Reload(t.Context(), control.ReloadRequest{}); err != nil {
			t.Error(err)
		}
		if err := p.Stop(syscall.SIGTERM, 10*time.Second); err != nil {
			t.Error(err)
		}
		if strings.Contains(p.Output(), "ermission denied") || strings.Contains(p.Output(), "not permitted") {
			t.Errorf("something was not allowed:\n%s", p.Output())
		}
	})
	t.Run("real time", func(t *testing.T) {
		more, err := os.ReadFile("../deploy/realtime.conf")
		if err != nil {
			t.Fatal(err)
		}
		extra := regexp.MustCompile(`(?m)^AmbientCapabilities=(.*)$`).FindStringSubmatch(string(more))
		p := start(t, " "+extra[1], "--rt-priority", "1")
		pings(t)
		if err := p.Stop(syscall.SIGTERM, 10*time.Second); err != nil {
			t.Error(err)
		}
	})
}
