package main

import (
	"bytes"
	"encoding/json"
	"strconv"
	"strings"
	"testing"
)

// at follows a dotted path into decoded JSON; a number is a place in a list.
func at(v any, path string) any {
	for key := range strings.SplitSeq(path, ".") {
		switch x := v.(type) {
		case map[string]any:
			v = x[key]
		case []any:
			i, err := strconv.Atoi(key)
			if err != nil || i >= len(x) {
				return nil
			}
			v = x[i]
		default:
			return nil
		}
	}
	return v
}

// contract checks that what other programs read is there: numbers, and words after "=".
func contract(t *testing.T, text []byte, paths string) {
	t.Helper()
	var v any
	if err := json.Unmarshal(text, &v); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	for path := range strings.FieldsSeq(paths + " machine.cores") {
		if path, word, ok := strings.Cut(path, "="); ok {
			if got := at(v, path); got != word {
				t.Errorf("%s is %v, want %q", path, got, word)
			}
		} else if _, ok := at(v, path).(float64); !ok {
			t.Errorf("%s is %v, want a number", path, at(v, path))
		}
	}
	for _, path := range []string{"machine.cpu", "machine.kernel", "machine.go", "command"} {
		if s, _ := at(v, path).(string); s == "" {
			t.Errorf("%s is missing", path)
		}
	}
}

// stats are the paths of a median with its bounds.
func stats(path string) string { return path + ".median " + path + ".min " + path + ".max " }

// What scenarios print with --json is read by other programs: fields may be added, none of these may go. Those over devices are
// held by TestL2fwd and the tests of the lab.
func TestPerfContract(t *testing.T) {
	for args, paths := range map[string]string{
		"libalias --max-seconds 0.1 --batch-size 50 --random-size 20 --attack-size 20 --redir-size 10": "rounds.0.round rounds.0.second rounds.0.new_nat_us rounds.0.random_us rounds.0.attack_us rounds.0.use_nat_us packets",
		"onegroup --links 64 --packets 64 --repeat 1 --order consecutive":                              "links existing_ns.mean existing_ns.p50 existing_ns.p99 new_ns.mean new_ns.p50 new_ns.p99",
		"onegroup --links 2000 --packets 64 --repeat 1 --order scattered --curve":                      "curve.0.links curve.1.burst.existing_ns.median order=scattered",
		"established --links 2048 --packets 128 --repeat 1 --curve":                                    "links bytes_per_link curve.1.links " + stats("ns_per_packet") + stats("curve.0.ns_per_packet"),
		"new-flows --links 64 --repeat 1":                                                              stats("flows_per_second"),
		"port-exhaustion --packets 64 --repeat 1":                                                      "points.0.used_percent points.0.ns points.0.steps_p50 points.0.steps_p99 points.0.failures allocated capacity caches",
		"rtcache --routes 50 --links 64 --packets 128 --repeat 1":                                      "rows.0.name=plain rows.1.name=lookup rows.2.name=cache " + stats("rows.0.ns_per_packet") + stats("rows.2.ns_per_packet"),
		"handoff --links 1024 --packets 1024 --repeat 1":                                               stats("owner_ns") + stats("handoff_ns") + stats("xsync_ns"),
		"clock --links 64 --packets 128 --repeat 1":                                                    stats("rows.0.ns_per_packet"),
	} {
		name, _, _ := strings.Cut(args, " ")
		t.Run(name, func(t *testing.T) {
			var out, errs bytes.Buffer
			if status := start(append([]string{"pollux", "perf"}, strings.Fields(args+" --json")...), &out, &errs); status != statusOK {
				t.Fatalf("status %d: %s", status, &errs)
			}
			contract(t, out.Bytes(), paths)
		})
	}
}

// The report is made from the scenarios as they run, and refuses what makes no sense.
func TestPerfReport(t *testing.T) {
	dir := t.TempDir()
	r := pollux(t, "perf", "report", "--quick", "--only", "established,port-exhaustion", dir)
	if r.status != 0 || r.out != dir+"/README.md\n" {
		t.Fatalf("%+v", r)
	}
	if r = pollux(t, "perf", "report", "--write", dir); r.status != 0 || r.errOut != "" {
		t.Errorf("%+v", r)
	}
	for args, want := range map[string]string{
		"":                       "give one folder",
		"a --quick":              "give one folder, after the flags",
		"--write --quick " + dir: "--write: measures nothing",
		"--only x " + dir:        `no part "x" of a report; there are: established, libalias,`,
	} {
		if r := pollux(t, append([]string{"perf", "report"}, strings.Fields(args)...)...); r.status == 0 || !strings.Contains(r.errOut, want) {
			t.Errorf("%s: %+v", args, r)
		}
	}
}
