package integration

import (
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"slices"
	"strings"
	"testing"
)

// A layer is a set of packages and what of ours they may import, the layers below it. Sub-packages count as their parent.
type layer struct {
	packages []string
	may      []string
}

var (
	leaves = []string{"internal/reason", "internal/clock", "internal/cpu", "internal/offheap", "internal/rss"}
	low    = append(slices.Clone(leaves), "internal/packet")
	below  = append(slices.Clone(low), "lport", "rings", "nat", "rtcache", "pmd", "internal/doctor")
	upper  = []string{"internal/config", "internal/control", "internal/metrics", "internal/natlog", "internal/replay", "internal/lab", "internal/demo"}
)

// layers is DESIGN's import direction, lowest first. A package of internal/ that is not named here is taken for an upper
// one: it may use everything below and nothing below may use it.
var layers = []layer{
	{leaves, []string{"internal/reason", "internal/clock"}},
	{[]string{"internal/packet"}, []string{"internal/reason"}},
	{[]string{"lport", "rings", "rtcache", "internal/doctor"}, low},
	{[]string{"nat"}, append(slices.Clone(low), "lport")},
	{[]string{"pmd"}, below},
	{[]string{"internal/lab"}, nil},
	{[]string{"internal/"}, append(slices.Clone(below), upper...)},
	{[]string{"perf"}, append(slices.Clone(below), append(slices.Clone(upper), "perf")...)},
	{[]string{"cmd", "test"}, append(slices.Clone(below), append(slices.Clone(upper), "internal/", "perf", "test")...)},
}

// covers reports whether path is one of names or lies below one of them.
func covers(names []string, path string) bool {
	return slices.ContainsFunc(names, func(n string) bool {
		return path == n || strings.HasPrefix(path, strings.TrimSuffix(n, "/")+"/")
	})
}

// forbidden returns why from may not import to, "" when it may. Both are relative to the module.
func forbidden(from, to string) string {
	for _, l := range layers {
		if !covers(l.packages, from) {
			continue
		}
		same := slices.ContainsFunc(l.packages, func(p string) bool {
			return !strings.HasSuffix(p, "/") && covers([]string{p}, from) && covers([]string{p}, to)
		})
		if same || covers(l.may, to) {
			return ""
		}
		return from + " must not import " + to
	}
	return from + " is in no layer: add it to the table in this test"
}

func TestImportDirection(t *testing.T) {
	const module = "pollux/"
	cmd := exec.Command("go", "list", "-json=ImportPath,Imports", module+"...")
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	packages := 0
	dec := json.NewDecoder(strings.NewReader(string(out)))
	for {
		var p struct {
			ImportPath string
			Imports    []string
		}
		if err := dec.Decode(&p); errors.Is(err, io.EOF) {
			break
		} else if err != nil {
			t.Fatal(err)
		}
		packages++
		for _, to := range p.Imports {
			rel, ours := strings.CutPrefix(to, module)
			if !ours {
				continue
			}
			if why := forbidden(strings.TrimPrefix(p.ImportPath, module), rel); why != "" {
				t.Error(why)
			}
		}
	}
	if packages < 10 {
		t.Errorf("go list saw %d packages: this test looks at the wrong tree", packages)
	}
}

// The rule itself is tested, or a table gone soft would pass everything.
func TestForbiddenArrows(t *testing.T) {
	for _, a := range [][2]string{
		{"nat", "rings"}, {"nat", "rtcache"}, {"nat", "pmd"}, {"rings", "nat"}, {"rtcache", "nat"}, {"rtcache", "rings"},
		{"internal/packet", "nat"}, {"internal/packet", "internal/clock"}, {"lport", "nat"}, {"pmd", "internal/config"},
		{"pmd", "internal/lab"}, {"pmd", "internal/new"}, {"internal/config", "perf"}, {"perf", "cmd/pollux"}, {"internal/lab", "pmd"},
	} {
		if forbidden(a[0], a[1]) == "" {
			t.Errorf("%s -> %s passes", a[0], a[1])
		}
	}
	for _, a := range [][2]string{
		{"nat", "lport"}, {"nat", "internal/packet"}, {"pmd", "nat"}, {"pmd", "rings"}, {"rings", "rings/spsc"}, {"rings/spsc", "rings"},
		{"internal/packet", "internal/reason"}, {"cmd/pollux", "perf"}, {"cmd/pollux", "internal/demo"}, {"internal/demo", "internal/lab"},
		{"pmd", "internal/doctor"}, {"internal/replay", "pmd"}, {"perf", "internal/lab"},
	} {
		if why := forbidden(a[0], a[1]); why != "" {
			t.Error(why)
		}
	}
}
