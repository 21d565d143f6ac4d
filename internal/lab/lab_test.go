package lab

import (
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

func newLab(t *testing.T, o Options) *Lab {
	t.Helper()
	Require(t)
	l, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.Close)
	return l
}

func TestCloseLeavesNothing(t *testing.T) {
	Require(t)
	l, err := New(Options{InsideHosts: 2, OutsideHosts: 2, Routers: 2})
	if err != nil {
		t.Fatal(err)
	}
	sleeper, err := l.Inside[0].Start("sleep", "60")
	if err != nil {
		t.Fatal(err)
	}
	stem := l.stem
	l.Close()
	select {
	case <-sleeper.Done():
	case <-time.After(5 * time.Second):
		t.Error("a process of the lab outlived it")
	}
	if left, _ := filepath.Glob(filepath.Join(netnsDir, stem+"*")); len(left) > 0 {
		t.Errorf("namespaces left: %v", left)
	}
	if _, err := os.Stat(l.Dir); !os.IsNotExist(err) {
		t.Errorf("directory left: %v", err)
	}
}

// TestSweep kills the maker of a lab with SIGKILL and expects its processes to die and the next lab to remove the rest.
func TestSweep(t *testing.T) {
	if os.Getenv("LAB_TEST_VICTIM") != "" {
		l, err := New(Options{})
		if err != nil {
			t.Fatal(err)
		}
		p, err := l.Gateway.Start("sleep", "61")
		if err != nil {
			t.Fatal(err)
		}
		os.WriteFile(os.Getenv("LAB_TEST_VICTIM"), []byte(l.stem+" "+l.Dir), 0o600)
		<-p.Done()
		return
	}
	Require(t)
	note := filepath.Join(t.TempDir(), "note")
	cmd := exec.Command("/proc/self/exe", "-test.run=^TestSweep$")
	cmd.Env = append(os.Environ(), "LAB_TEST_VICTIM="+note)
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var stem, dir string
	for deadline := time.Now().Add(10 * time.Second); ; time.Sleep(20 * time.Millisecond) {
		if b, _ := os.ReadFile(note); len(b) > 0 {
			stem, dir, _ = strings.Cut(string(b), " ")
			break
		}
		if time.Now().After(deadline) {
			t.Fatal("the victim made no lab")
		}
	}
	cmd.Process.Signal(syscall.SIGKILL)
	cmd.Wait()
	Sweep()
	if left, _ := filepath.Glob(filepath.Join(netnsDir, stem+"*")); len(left) > 0 {
		t.Errorf("namespaces of a dead maker left: %v", left)
	}
	if _, err := os.Stat(dir); !os.IsNotExist(err) {
		t.Errorf("directory of a dead maker left: %v", err)
	}
}

func TestRunTellsOutputAndStatus(t *testing.T) {
	l := newLab(t, Options{})
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
	defer cancel()
	out, err := l.Gateway.Run(ctx, "cat", "/proc/net/dev")
	if err != nil || !strings.Contains(out, "eth1:") || !strings.Contains(out, "eth0:") {
		t.Errorf("the gateway's devices: %q, %v", out, err)
	}
	if out, err = l.Gateway.Run(ctx, "sh", "-c", "echo lost; exit 3"); err == nil || !strings.Contains(err.Error(), "lost") {
		t.Errorf("a failing program gave %q, %v", out, err)
	}
}
