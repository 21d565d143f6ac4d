package metrics

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/grafana/grafana-foundation-sdk/go/cog/plugins"
	"github.com/grafana/grafana-foundation-sdk/go/dashboard"

	"pollux/internal/reason"
)

const (
	alertsFile    = "../../deploy/prometheus-alerts.yaml"
	alertsTest    = "../../deploy/prometheus-alerts_test.yaml"
	dashboardFile = "../../deploy/grafana-dashboard.json"
)

// panel is the part of a dashboard's panel that these tests look at.
type panel struct {
	ID      int
	Title   string
	Type    string
	GridPos struct{ H, W, X, Y int }
	Targets []struct{ Expr string }
	Panels  []panel
}

func readFile(t *testing.T, name string) string {
	t.Helper()
	text, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

func readDashboard(t *testing.T) (panels []panel) {
	t.Helper()
	var d struct{ Panels []panel }
	if err := json.Unmarshal([]byte(readFile(t, dashboardFile)), &d); err != nil {
		t.Fatal(err)
	}
	return d.Panels
}

// The dashboard is one that Grafana takes: by its schema, with a place of its own for every panel.
func TestDashboard(t *testing.T) {
	plugins.RegisterDefaultPlugins()
	//lint:ignore SA1019 the classic schema is the one that every Grafana imports from a file
	var d dashboard.Dashboard
	for _, err := range []error{d.UnmarshalJSONStrict([]byte(readFile(t, dashboardFile))), d.Validate()} {
		if err != nil && err.Error() != "" { // a query without faults gives an empty list of them as its error
			t.Error(err)
		}
	}
	if len(d.Panels) < 10 {
		t.Errorf("the schema sees %d panels", len(d.Panels))
	}
	taken, ids := map[[2]int]string{}, map[int]string{}
	for _, p := range readDashboard(t) {
		if other := ids[p.ID]; other != "" {
			t.Errorf("%q and %q have one id, %d", other, p.Title, p.ID)
		}
		ids[p.ID] = p.Title
		if p.Type != "row" && len(p.Targets) == 0 {
			t.Errorf("%q shows nothing", p.Title)
		}
		g := p.GridPos
		if g.X < 0 || g.X+g.W > 24 || g.W < 1 || g.H < 1 {
			t.Errorf("%q is at %+v: a dashboard is 24 wide", p.Title, g)
		}
		for x := g.X; x < g.X+g.W; x++ {
			for y := g.Y; y < g.Y+g.H; y++ {
				if other := taken[[2]int{x, y}]; other != "" {
					t.Fatalf("%q lies over %q", p.Title, other)
				}
				taken[[2]int{x, y}] = p.Title
			}
		}
	}
}

// scrape returns the text that Prometheus would get.
func scrape(t *testing.T) string {
	t.Helper()
	w := httptest.NewRecorder()
	New(&fakeSource{sample: fullSample()}, fakeLog{}, Build{"v1", "abc", "go1"}).ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	return w.Body.String()
}

var (
	nameUsed   = regexp.MustCompile(`\b(?:pollux|process|go)_[a-z0-9_]+`)
	reasonUsed = regexp.MustCompile(`\breason=~?\\?"([a-z|-]+)\\?"`)
	boundUsed  = regexp.MustCompile(`\ble=\\?"([0-9.]+)\\?"`)
)

// Dashboard and alerts use only metrics, reasons and bounds that there are.
func TestNamesInUse(t *testing.T) {
	text := scrape(t)
	for _, file := range []string{dashboardFile, alertsFile, alertsTest} {
		used := readFile(t, file)
		names := nameUsed.FindAllString(used, -1)
		if len(names) < 10 {
			t.Errorf("%s: only %d names were found", file, len(names))
		}
		slices.Sort(names)
		for _, name := range slices.Compact(names) {
			if !strings.Contains(text, "\n"+name+" ") && !strings.Contains(text, "\n"+name+"{") {
				t.Errorf("%s uses %s, which there is not", file, name)
			}
		}
		for _, m := range reasonUsed.FindAllStringSubmatch(used, -1) {
			for _, name := range strings.Split(m[1], "|") {
				if !strings.Contains(text, fmt.Sprintf(`pollux_dropped_packets_total{reason="%s"}`, name)) {
					t.Errorf("%s uses the reason %s, which there is not among the %d", file, name, reason.Count)
				}
			}
		}
		for _, m := range boundUsed.FindAllStringSubmatch(used, -1) {
			if !strings.Contains(text, fmt.Sprintf(`,le="%s"}`, m[1])) {
				t.Errorf("%s uses the bound %s, which no histogram has", file, m[1])
			}
		}
	}
}

// promtool runs Prometheus's own tool (Debian: prometheus) and returns what it said.
func promtool(t *testing.T, stdin string, args ...string) {
	t.Helper()
	if _, err := exec.LookPath("promtool"); err != nil {
		if os.Getenv("POLLUX_REQUIRE_LAB") == "1" {
			t.Fatalf("POLLUX_REQUIRE_LAB=1, and promtool is not there: make deps")
		}
		t.Skip("promtool is not there: make deps")
	}
	cmd := exec.Command("promtool", args...)
	cmd.Stdin = strings.NewReader(stdin)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &out
	if err := cmd.Run(); err != nil {
		t.Errorf("promtool %s: %v\n%s", strings.Join(args, " "), err, &out)
	}
}

// Prometheus's own tool finds nothing wrong with the metrics, the rules, and what the dashboard asks for; the rules fire when
// they should and not otherwise.
func TestPromtool(t *testing.T) {
	t.Run("check metrics", func(t *testing.T) {
		var own strings.Builder // the process's collectors have names that are not ours to choose
		for line := range strings.Lines(scrape(t)) {
			if strings.Contains(line, prefix) {
				own.WriteString(line)
			}
		}
		promtool(t, own.String(), "check", "metrics")
	})
	t.Run("check rules", func(t *testing.T) { promtool(t, "", "check", "rules", alertsFile) })
	t.Run("test rules", func(t *testing.T) { promtool(t, "", "test", "rules", alertsTest) })
	t.Run("dashboard", func(t *testing.T) {
		var b strings.Builder
		b.WriteString("groups:\n- name: dashboard\n  rules:\n")
		n := 0
		for _, p := range readDashboard(t) {
			for _, q := range p.Targets {
				expr := strings.NewReplacer("$__rate_interval", "5m", "$instance", ".+").Replace(q.Expr)
				n++
				fmt.Fprintf(&b, "  - {record: 'panel:%d', expr: '%s'}\n", n, strings.ReplaceAll(expr, "'", "''"))
			}
		}
		file := filepath.Join(t.TempDir(), "dashboard.yaml")
		if err := os.WriteFile(file, []byte(b.String()), 0o644); err != nil {
			t.Fatal(err)
		}
		promtool(t, "", "check", "rules", file)
	})
}
