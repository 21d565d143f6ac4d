package main

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// Every scenario in memory runs from the command line, as JSON and as a table, and draws where it can.
func TestPerfScenarios(t *testing.T) {
	for name, tc := range map[string]struct {
		args string
		keys string
		plot bool
	}{
		"libalias":        {"--max-seconds 0.1 --batch-size 50 --random-size 20 --attack-size 20 --redir-size 10", "rounds packets", false},
		"onegroup":        {"--links 64 --packets 64 --repeat 1 --order consecutive", "links existing_ns new_ns", true},
		"established":     {"--links 64 --packets 128 --repeat 1", "links ns_per_packet bytes_per_link", true},
		"new-flows":       {"--links 64 --repeat 1 --mapping endpoint-independent", "flows_per_second refused", false},
		"port-exhaustion": {"--packets 64 --repeat 1", "points allocated capacity caches", true},
		"rtcache":         {"--routes 50 --links 64 --packets 128 --repeat 1", "rows memory churn", false},
		"clock":           {"--links 64 --packets 128 --repeat 1", "rows", false},
		"handoff":         {"--links 1024 --packets 1024 --repeat 1", "owner_ns handoff_ns xsync_ns scaling two_cores", false},
	} {
		t.Run(name, func(t *testing.T) {
			args := append([]string{"pollux", "perf", name}, strings.Fields(tc.args)...)
			file := filepath.Join(t.TempDir(), "curve.svg")
			if tc.plot {
				args = append(args, "--plot", file)
			}
			var out, errs bytes.Buffer
			if status := start(append(args, "--json"), &out, &errs); status != statusOK {
				t.Fatalf("status %d: %s", status, &errs)
			}
			var m map[string]any
			if err := json.Unmarshal(out.Bytes(), &m); err != nil {
				t.Fatalf("%v: %s", err, &out)
			}
			for _, key := range strings.Fields(tc.keys + " machine command") {
				if m[key] == nil {
					t.Errorf("%s is missing", key)
				}
			}
			if _, err := os.Stat(file); (err == nil) != tc.plot {
				t.Errorf("plot: %v", err)
			}
			out.Reset()
			if status := start(args, &out, &errs); status != statusOK || !strings.Contains(out.String(), "mapping") {
				t.Errorf("status %d %s: the table does not say which mapping:\n%s", status, &errs, &out)
			}
		})
	}
}

// Bad flags end with one line that names the flag, before anything runs.
func TestPerfUsage(t *testing.T) {
	for args, want := range map[string]string{
		"established --links 1":             "--links: is 1; allowed: a number from 2 to",
		"established --plot curve.png":      `--plot: is "curve.png"; allowed: the name of an .svg file`,
		"established --repeat 0":            "--repeat: is 0; allowed: a number from 1",
		"onegroup --order random":           "--order: is random; allowed: scattered or consecutive",
		"new-flows --mapping x":             "--mapping: is x; allowed: endpoint-dependent or endpoint-independent",
		"libalias --max-seconds 0":          "--max-seconds: is 0; allowed:",
		"rtcache 5":                         `unexpected argument "5"`,
		"port-exhaustion --packets -1":      "--packets: is -1; allowed: a number from 1",
		"rtcache --lab --packets 5":         "--packets: is for the measurement in memory",
		"rtcache --rounds 5":                "--rounds: is for --lab",
		"rtcache --lab --flows 0":           "--flows: must be from 1",
		"clock --plot x.svg":                "--plot: no such flag",
		"rtcache --routes 10 --links 99999": "--links: is 99999; allowed: a number from 2 to 1280",
	} {
		var out, errs bytes.Buffer
		status := start(append([]string{"pollux", "perf"}, strings.Fields(args)...), &out, &errs)
		if status != statusUsage || !strings.Contains(errs.String(), want) || strings.Count(errs.String(), "\n") != 1 || out.Len() > 0 {
			t.Errorf("perf %s: status %d, stderr %q, stdout %q", args, status, &errs, &out)
		}
	}
}
