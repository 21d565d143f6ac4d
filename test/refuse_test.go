package integration

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/cilium/ebpf/asm"
	"github.com/cilium/ebpf/link"

	"pollux/internal/lab"
)

// refusal starts pollux with arguments that can't work. It must exit with status 2, say why in one line that holds all
// words, and leave nothing attached.
func refusal(t *testing.T, l *lab.Lab, args []string, words ...string) {
	t.Helper()
	p, err := l.Gateway.Start(args[0], args[1:]...)
	if err != nil {
		t.Fatal(err)
	}
	status, err := p.Wait(10 * time.Second)
	if err != nil {
		p.Stop(syscall.SIGKILL, 0)
		t.Errorf("it did not refuse %v: %v", args[1:], err)
		return
	}
	out := p.Output()
	if status != 2 {
		t.Errorf("exit status %d, want 2: %s", status, out)
	}
	if n := strings.Count(out, "\n"); n != 1 || !strings.HasSuffix(out, "\n") {
		t.Errorf("%d lines instead of one: %q", n, out)
	}
	for _, w := range words {
		if !strings.Contains(out, w) {
			t.Errorf("%q lacks %q", out, w)
		}
	}
	for _, dev := range []string{lab.InsideDevice, lab.OutsideDevice} {
		if xdpAttached(t, l.Gateway, dev) {
			t.Errorf("an XDP program is left on %s after: %s", dev, out)
		}
	}
	if _, err := os.Stat(l.Socket()); err == nil {
		t.Errorf("the control socket is left after: %s", out)
	}
}

func TestBadInputIsRefusedInOneLine(t *testing.T) {
	l := newLab(t, lab.Options{})
	base := []string{pollux(t), "run", "--idle", "adaptive", "--control", l.Socket()}
	ports := append(base[:len(base):len(base)], "--inside", lab.InsideDevice, "--outside", lab.OutsideDevice, "--alias", lab.GatewayOutside.String())
	for name, c := range map[string]struct {
		args  []string
		words []string
	}{
		"unknown interface":        {append(base[:len(base):len(base)], "--inside", "eth9", "--outside", lab.OutsideDevice, "--alias", "203.0.113.1"), []string{"eth9"}},
		"missing queue":            {append(ports, "--cores", "0", "--queues", "3"), []string{"queue 3", "eth"}},
		"unequal cores, queues":    {append(ports, "--cores", "0-1", "--queues", "0"), []string{"cores", "queues"}},
		"core that is not there":   {append(ports, "--cores", "999", "--queues", "0"), []string{"999"}},
		"port range upside down":   {append(ports, "--nat-port-range", "2000-1000"), []string{"port-range", "2000"}},
		"no alias":                 {append(base[:len(base):len(base)], "--inside", lab.InsideDevice, "--outside", lab.OutsideDevice), []string{"alias"}},
		"tables beyond memory":     {append(ports, "--limits-links", "4000000000"), []string{"limits"}},
		"frames beyond memory":     {append(ports, "--rings-frames", "1000000000"), []string{"frames"}},
		"unknown flag":             {append(ports, "--speed", "11"), []string{"--speed", "no such flag"}},
		"zero-copy on a veth":      {append(ports, "--mode", "zerocopy"), []string{"zero"}},
		"loopback":                 {append(base[:len(base):len(base)], "--inside", "lo", "--outside", lab.OutsideDevice, "--alias", "203.0.113.1"), []string{"lo", "loopback"}},
		"one port in both roles":   {append(base[:len(base):len(base)], "--inside", "eth0", "--outside", "eth0", "--alias", "203.0.113.1"), []string{"eth0"}},
		"a file that is not there": {append(base[:len(base):len(base)], "-c", "/nonexistent.yaml"), []string{"/nonexistent.yaml"}},
	} {
		t.Run(name, func(t *testing.T) { refusal(t, l, c.args, c.words...) })
	}
	t.Run("more workers than cores", func(t *testing.T) {
		cores := fmt.Sprintf("0-%d", runtime.NumCPU())
		refusal(t, l, append(ports[:len(ports):len(ports)], "--cores", cores), fmt.Sprintf("%d workers need %d cores", runtime.NumCPU()+1, runtime.NumCPU()+1), "--oversubscribe")
	})
	t.Run("duplicate key", func(t *testing.T) {
		file := filepath.Join(l.Dir, "twice.yaml")
		text := "ports:\n  - {name: eth1, role: inside}\n  - {name: eth0, role: outside}\nnat:\n  alias: [\"203.0.113.1\"]\n  hairpin: true\n  hairpin: false\n"
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		refusal(t, l, append(base[:len(base):len(base)], "-c", file), file+":7:", "hairpin")
	})
}

// A queue that another program holds is refused, and the program's XDP name told.
func TestForeignXDPProgramIsNamed(t *testing.T) {
	l := newLab(t, lab.Options{})
	prog, err := ebpf.NewProgram(&ebpf.ProgramSpec{Name: "somebody_else", Type: ebpf.XDP, License: "GPL",
		Instructions: asm.Instructions{asm.Mov.Imm(asm.R0, 2), asm.Return()}})
	if err != nil {
		t.Fatal(err)
	}
	defer prog.Close()
	eth0, err := l.Gateway.Netlink().LinkByName(lab.OutsideDevice)
	if err != nil {
		t.Fatal(err)
	}
	var held link.Link
	err = l.Gateway.Do(func() error {
		held, err = link.AttachXDP(link.XDPOptions{Program: prog, Interface: eth0.Attrs().Index})
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	p, err := l.Gateway.Start(pollux(t), "run", "--control", l.Socket(), "--inside", lab.InsideDevice, "--outside", lab.OutsideDevice, "--alias", "port")
	if err != nil {
		t.Fatal(err)
	}
	status, err := p.Wait(10 * time.Second)
	if err != nil || status != 2 || strings.Count(p.Output(), "\n") != 1 || !strings.Contains(p.Output(), "somebody_else") || !strings.Contains(p.Output(), "eth0") {
		t.Errorf("status %d, %v, %q: want 2 and one line that names somebody_else on eth0", status, err, p.Output())
	}
	if xdpAttached(t, l.Gateway, lab.InsideDevice) {
		t.Error("an XDP program is left on the other port")
	}
	if x := xdpAttached(t, l.Gateway, lab.OutsideDevice); !x {
		t.Error("somebody else's program was taken off")
	}
	held.Close()
	run(t, l)
}

// A second pollux on the same ports is refused and does the first no harm.
func TestSecondGatewayIsRefused(t *testing.T) {
	l := newLab(t, lab.Options{})
	in, out := l.Inside[0], l.Outside[0]
	run(t, l)
	p, err := l.Gateway.Start(pollux(t), "run", "--idle", "adaptive", "--control", filepath.Join(l.Dir, "second.sock"),
		"--inside", lab.InsideDevice, "--outside", lab.OutsideDevice, "--alias", "port")
	if err != nil {
		t.Fatal(err)
	}
	if status, err := p.Wait(15 * time.Second); err != nil || status != 2 || strings.Count(p.Output(), "\n") != 1 {
		t.Errorf("status %d, %v, %q: want 2 and one line", status, err, p.Output())
	}
	got, err := lab.Ping(limited(t, 5*time.Second), in.Namespace, in.Addr, out.Addr, lab.PingOptions{Count: 3})
	if err != nil || len(got.RTT) != 3 {
		t.Errorf("ping through the first one: %v, %v", got, err)
	}
}

// Without the privileges it needs, pollux says which. setpriv drops them for a process; it is part of util-linux.
func TestMissingPrivileges(t *testing.T) {
	l := newLab(t, lab.Options{})
	if _, err := exec.LookPath("setpriv"); err != nil {
		t.Fatal("setpriv (package util-linux) is missing")
	}
	open := filepath.Join(t.TempDir(), "pollux") // where nobody may read it
	if out, err := exec.Command("install", "-m", "0755", pollux(t), open).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for dir := filepath.Dir(open); strings.HasPrefix(dir, os.TempDir()) && dir != os.TempDir(); dir = filepath.Dir(dir) {
		os.Chmod(dir, 0o755)
	}
	socket := filepath.Join(l.Dir, "p.sock")
	tail := []string{open, "run", "--idle", "adaptive", "--control", socket, "--inside", lab.InsideDevice, "--outside", lab.OutsideDevice, "--alias", "port"}
	as := func(setpriv ...string) []string { return append(append([]string{"setpriv"}, setpriv...), tail...) }

	l.Gateway.Do(func() error { return os.Chmod(l.Dir, 0o777) })
	t.Run("not root", func(t *testing.T) {
		refusal(t, l, as("--reuid", "65534", "--regid", "65534", "--clear-groups"), "not root", "CAP_NET_ADMIN", "setcap")
	})
	t.Run("no CAP_BPF", func(t *testing.T) {
		refusal(t, l, as("--bounding-set", "-bpf,-sys_admin", "--inh-caps", "-bpf,-sys_admin"), "CAP_BPF")
	})
	t.Run("no CAP_IPC_LOCK", func(t *testing.T) {
		args := append([]string{"sh", "-c", `ulimit -l 64 && exec "$0" "$@"`}, as("--bounding-set", "-ipc_lock", "--inh-caps", "-ipc_lock")...)
		refusal(t, l, args, "RLIMIT_MEMLOCK", "CAP_IPC_LOCK")
	})
}

// Without carrier pollux starts, says so, and works when the other end comes up.
func TestNoCarrierIsWaitedFor(t *testing.T) {
	l := newLab(t, lab.Options{})
	in, out := l.Inside[0], l.Outside[0]
	eth0, err := out.Netlink().LinkByName(out.Device)
	if err != nil {
		t.Fatal(err)
	}
	if err := out.Netlink().LinkSetDown(eth0); err != nil {
		t.Fatal(err)
	}
	g := run(t, l)
	if said := g.Output(); !strings.Contains(said, "carrier") || !strings.Contains(said, lab.OutsideDevice) {
		t.Errorf("it does not warn about eth0 without carrier: %q", said)
	}
	if err := out.Netlink().LinkSetUp(eth0); err != nil {
		t.Fatal(err)
	}
	eventually(t, 5*time.Second, func() error {
		p, err := lab.Ping(t.Context(), in.Namespace, in.Addr, out.Addr, lab.PingOptions{Timeout: 200 * time.Millisecond})
		if err == nil && len(p.RTT) == 0 {
			err = fmt.Errorf("no answer")
		}
		return err
	})
}
