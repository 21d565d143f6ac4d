package integration

import (
	"encoding/json"
	"fmt"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"pollux/internal/lab"
)

// A real Prometheus scrapes a running gateway, takes the alert rules, and answers everything that the dashboard asks.
func TestPrometheus(t *testing.T) {
	if _, err := exec.LookPath("prometheus"); err != nil {
		if os.Getenv("POLLUX_REQUIRE_LAB") == "1" {
			t.Fatal("POLLUX_REQUIRE_LAB=1, and prometheus is not there: make deps")
		}
		t.Skip("prometheus is not there: make deps")
	}
	l := newLab(t, lab.Options{})
	run(t, l, "--control-metrics", "127.0.0.1:9464")
	rules, err := filepath.Abs("../deploy/prometheus-alerts.yaml")
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	conf := filepath.Join(dir, "prometheus.yaml")
	if err := os.WriteFile(conf, []byte(`global: {scrape_interval: 1s, evaluation_interval: 1s}
scrape_configs: [{job_name: pollux, static_configs: [{targets: ["127.0.0.1:9464"]}]}]
rule_files: [`+rules+`]
`), 0o644); err != nil {
		t.Fatal(err)
	}
	p, err := l.Gateway.Start("prometheus", "--config.file="+conf, "--storage.tsdb.path="+filepath.Join(dir, "data"), "--web.listen-address=127.0.0.1:9090")
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := p.Stop(syscall.SIGTERM, 10*time.Second); err != nil {
			t.Error(err)
		}
		if t.Failed() {
			t.Logf("prometheus said:\n%s", p.Output())
		}
	}()
	ctx := limited(t, 2*time.Minute)
	client := http.Client{Transport: &http.Transport{DialContext: l.Gateway.Dial}}
	api := func(into any, path string, q url.Values) error {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://127.0.0.1:9090/api/v1/"+path+"?"+q.Encode(), nil)
		if err != nil {
			return err
		}
		resp, err := client.Do(req)
		if err != nil {
			return err
		}
		defer resp.Body.Close()
		answer := struct {
			Status, Error string
			Data          any
		}{Data: into}
		if err := json.NewDecoder(resp.Body).Decode(&answer); err != nil || answer.Status != "success" {
			return fmt.Errorf("%s: %v %+v", path, err, answer)
		}
		return nil
	}
	type vector struct {
		Result []struct {
			Metric map[string]string
			Value  [2]any
		}
	}
	query := func(expr string) (v vector, err error) {
		err = api(&v, "query", url.Values{"query": {expr}})
		return v, err
	}
	eventually(t, 30*time.Second, func() error {
		v, err := query(`rate(pollux_worker_run_seconds_total{job="pollux"}[10s])`) // takes two scrapes
		if err != nil || len(v.Result) == 1 {
			return err
		}
		return fmt.Errorf("%+v", v)
	})
	if v, err := query(`up{job="pollux"}`); err != nil || len(v.Result) != 1 || v.Result[0].Value[1] != "1" {
		t.Errorf("%+v %v", v, err)
	}

	eventually(t, 30*time.Second, func() error {
		var r struct {
			Groups []struct {
				Rules []struct{ Name, Health, LastError, State string }
			}
		}
		if err := api(&r, "rules", nil); err != nil {
			return err
		}
		if len(r.Groups) != 1 || len(r.Groups[0].Rules) < 10 {
			return fmt.Errorf("%+v", r)
		}
		for _, rule := range r.Groups[0].Rules {
			if rule.Health != "ok" || rule.State != "inactive" {
				return fmt.Errorf("%+v", rule)
			}
		}
		return nil
	})

	dashboard, err := os.ReadFile("../deploy/grafana-dashboard.json")
	if err != nil {
		t.Fatal(err)
	}
	found := regexp.MustCompile(`"expr": ("(?:[^"\\]|\\.)*")`).FindAllSubmatch(dashboard, -1)
	if len(found) < 20 {
		t.Errorf("%d queries found in the dashboard", len(found))
	}
	for _, m := range found {
		var expr string
		if err := json.Unmarshal(m[1], &expr); err != nil {
			t.Fatal(err)
		}
		if _, err := query(strings.NewReplacer("$__rate_interval", "10s", "$instance", ".+").Replace(expr)); err != nil {
			t.Errorf("%s: %v", expr, err)
		}
	}
}
