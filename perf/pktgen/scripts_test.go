package pktgen

import (
	"os"
	"os/exec"
	"strings"
	"testing"
)

// The scripts must say no in one line, and with status 2, to what they can't do; above all where the kernel has no pktgen.
func TestScriptsRefuse(t *testing.T) {
	full := []string{"-i", "lo", "-m", "02:00:00:00:00:01", "-d", "192.0.2.1"}
	for _, c := range []struct {
		name, script, want string
		args               []string
	}{
		{"nothing given", "./kernel-pktgen.sh", "Usage", nil},
		{"no bound", "./kernel-pktgen.sh", "never end", append(full[:6:6], "-n", "0")},
		{"no number", "./kernel-pktgen.sh", "no number", append(full[:6:6], "-r", "fast")},
		{"no such device", "./kernel-pktgen.sh", "", []string{"-i", "none0", "-m", "02:00:00:00:00:01", "-d", "192.0.2.1"}},
		{"sweep of nothing", "./sweep.sh", "Usage", nil},
	} {
		out, err := exec.Command("bash", append([]string{c.script}, c.args...)...).CombinedOutput()
		exit, ok := err.(*exec.ExitError)
		if !ok || exit.ExitCode() != 2 || !strings.Contains(string(out), c.want) {
			t.Errorf("%s: %v: %s", c.name, err, out)
		}
	}
	if _, err := os.Stat("/proc/net/pktgen"); err == nil || os.Geteuid() != 0 {
		t.Skip("this kernel has pktgen, or not root: nothing to refuse")
	}
	if exec.Command("modprobe", "-n", "pktgen").Run() == nil {
		t.Skip("this kernel can load pktgen")
	}
	out, err := exec.Command("bash", append([]string{"./kernel-pktgen.sh"}, full...)...).CombinedOutput()
	if exit, ok := err.(*exec.ExitError); !ok || exit.ExitCode() != 2 || !strings.Contains(string(out), "has no pktgen") || strings.Count(string(out), "\n") != 1 {
		t.Errorf("without pktgen: %v: %s", err, out)
	}
}

// missing skips a test for want of a tool; in CI, where make deps has run, that is a failure.
func missing(t *testing.T, what string) {
	t.Helper()
	if os.Getenv("POLLUX_REQUIRE_LAB") == "1" {
		t.Fatal(what)
	}
	t.Skip(what)
}

func TestScriptsPassShellcheck(t *testing.T) {
	if _, err := exec.LookPath("shellcheck"); err != nil {
		missing(t, "shellcheck is not installed: make deps installs it")
	}
	if out, err := exec.Command("shellcheck", "kernel-pktgen.sh", "sweep.sh").CombinedOutput(); err != nil {
		t.Errorf("%s", out)
	}
}

// The committed object must be what generating makes of the source.
func TestObjectMatchesItsSource(t *testing.T) {
	if _, err := exec.LookPath("clang-14"); err != nil {
		missing(t, "needs clang-14, which made the committed object")
	}
	text, err := os.ReadFile("generate.go")
	if err != nil {
		t.Fatal(err)
	}
	_, line, _ := strings.Cut(string(text), "//go:generate ")
	args := strings.Fields(line)
	dir := t.TempDir()
	args = append(args[:3:3], append([]string{"-output-dir", dir}, args[3:]...)...)
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Env = append(os.Environ(), "GOPACKAGE=pktgen", "GOFILE=generate.go")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("generate: %v\n%s", err, out)
	}
	for _, name := range []string{"kernel_bpfel.go", "kernel_bpfel.o"} {
		fresh, err1 := os.ReadFile(dir + "/" + name)
		committed, err2 := os.ReadFile(name)
		if err1 != nil || err2 != nil || string(fresh) != string(committed) {
			t.Errorf("%s differs from what its source makes: run go generate ./perf/pktgen (%v, %v)", name, err1, err2)
		}
	}
}
