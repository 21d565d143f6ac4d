package integration

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"pollux/internal/demo"
	"pollux/internal/lab"
)

// leftovers lists the namespaces of labs whose name holds a process's id.
func namespacesOf(stem string) []string {
	list, _ := filepath.Glob("/run/netns/pollux-" + stem + "*")
	return list
}

func TestDemoHolds(t *testing.T) {
	lab.Require(t)
	start := time.Now()
	cmd := exec.Command(pollux(t), "demo", "--json")
	var errors strings.Builder
	cmd.Stderr = &errors
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %s%s", err, errors.String(), out)
	}
	var r demo.Report
	if err := json.Unmarshal(out, &r); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	for _, c := range r.Checks {
		t.Logf("%-15s %s", c.Name, c.Detail)
		if !c.Held {
			t.Errorf("%s did not hold", c.Name)
		}
	}
	if !r.Held || len(r.Checks) < 8 || r.Outside.Foreign != 0 || r.Outside.FromAlias == 0 || r.Links.Count == 0 || len(r.Workers) != 1 || len(r.Drops) == 0 {
		t.Errorf("report: %s", out)
	}
	if took := time.Since(start); took > time.Minute {
		t.Errorf("it took %v; a demo is over within a minute", took)
	}
	if left := namespacesOf(itoa(cmd.Process.Pid) + "-"); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
}

func TestDemoCleansUpWhenInterrupted(t *testing.T) {
	lab.Require(t)
	for _, s := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM} {
		cmd := exec.Command(pollux(t), "demo")
		var out strings.Builder
		cmd.Stdout = &out
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		stem := itoa(cmd.Process.Pid) + "-"
		eventually(t, 20*time.Second, func() error {
			if len(namespacesOf(stem)) < 4 {
				return os.ErrNotExist
			}
			return nil
		})
		time.Sleep(300 * time.Millisecond)
		cmd.Process.Signal(s)
		if err := cmd.Wait(); err == nil {
			t.Errorf("%v: exit status 0 after an interruption", s)
		}
		if left := namespacesOf(stem); len(left) > 0 {
			t.Errorf("%v left behind: %v", s, left)
		}
	}
}

func TestDemoKept(t *testing.T) {
	lab.Require(t)
	if len(namespacesOf("kept-")) > 0 {
		if os.Getenv("POLLUX_REQUIRE_LAB") == "1" {
			t.Fatal("POLLUX_REQUIRE_LAB=1, and a kept lab is up: pollux demo --clean")
		}
		t.Skip("a kept lab is up on this machine; it is left alone")
	}
	t.Cleanup(func() { lab.RemoveKept() })
	cmd := exec.Command(pollux(t), "demo", "--keep", "--json")
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	var r demo.Report
	if err := json.Unmarshal(out, &r); err != nil || r.Kept == nil {
		t.Fatalf("%v: %s", err, out)
	}
	ctx := limited(t, 20*time.Second)
	for _, look := range [][]string{
		{"ip", "netns", "exec", r.Kept.Inside, "ping", "-c", "1", "-W", "2", "198.51.100.100"},
		{"ip", "netns", "exec", r.Kept.Inside, "curl", "-sS", "--max-time", "5", "-o", "/dev/null", "http://198.51.100.100/bytes/100000"},
		{"ip", "netns", "exec", r.Kept.Outside, "curl", "-sS", "--max-time", "5", "--http0.9", "http://203.0.113.1:8080/"},
		{pollux(t), "show", "links", "--control", r.Kept.Socket},
	} {
		if out, err := exec.CommandContext(ctx, look[0], look[1:]...).CombinedOutput(); err != nil {
			t.Errorf("%s: %v: %s", strings.Join(look, " "), err, out)
		}
	}
	if out, err := exec.CommandContext(ctx, pollux(t), "demo", "--clean").CombinedOutput(); err != nil || strings.TrimSpace(string(out)) != "removed" {
		t.Errorf("demo --clean: %s, %v", out, err)
	}
	if left := namespacesOf("kept-"); len(left) > 0 {
		t.Errorf("left behind: %v", left)
	}
	eventually(t, 5*time.Second, func() error { // killed by SIGKILL just now
		if syscall.Kill(r.Kept.PID, 0) == nil {
			return os.ErrExist
		}
		return nil
	})
}
