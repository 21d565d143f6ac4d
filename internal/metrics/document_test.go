package metrics

import (
	"flag"
	"fmt"
	"os"
	"strings"
	"testing"

	"github.com/prometheus/client_golang/prometheus"
)

var update = flag.Bool("update", false, "write the table of metrics into docs/monitoring.md")

const (
	documentFile  = "../../docs/monitoring.md"
	documentBegin = "<!-- metrics: printed by: go test ./internal/metrics -run TestDocument -update -->\n"
	documentEnd   = "<!-- end of metrics -->"
)

// document prints the table of metrics as the collector describes them.
func document() string {
	var b strings.Builder
	b.WriteString("| metric | type | labels | what it is |\n|---|---|---|---|\n")
	row := func(name string, k kind, labels []string, help string) {
		var l string
		for i, label := range labels {
			if i > 0 {
				l += ", "
			}
			l += "`" + label + "`"
		}
		fmt.Fprintf(&b, "| `%s` | %s | %s | %s |\n", strings.TrimPrefix(name, prefix), k, l, help)
	}
	row(buildName, gauge, buildLabels, buildHelp)
	row(tookName, gauge, nil, tookHelp)
	for i := range list {
		row(list[i].fullName(), list[i].kind, list[i].labels, list[i].help)
	}
	return b.String()
}

// The documentation lists the metrics that there are.
func TestDocument(t *testing.T) {
	text := readFile(t, documentFile)
	before, rest, ok := strings.Cut(text, documentBegin)
	_, after, end := strings.Cut(rest, documentEnd)
	if !ok || !end {
		t.Fatalf("%s has no place for the table of metrics", documentFile)
	}
	want := before + documentBegin + document() + documentEnd + after
	if *update {
		if err := os.WriteFile(documentFile, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	if text != want {
		t.Errorf("the table in %s is not that of the program: go test ./internal/metrics -run TestDocument -update", documentFile)
	}
	descs := make(chan *prometheus.Desc, len(list)+2)
	newCollector(nil, nil, Build{}, nil).Describe(descs)
	close(descs)
	for d := range descs {
		if name := strings.Split(d.String(), `"`)[1]; !strings.Contains(text, "| `"+strings.TrimPrefix(name, prefix)+"` |") {
			t.Errorf("%s is described by the collector and not in %s", name, documentFile)
		}
	}
}

// Every alert has its line in the documentation.
func TestAlertsDocumented(t *testing.T) {
	text, n := readFile(t, documentFile), 0
	for line := range strings.Lines(readFile(t, alertsFile)) {
		if name, ok := strings.CutPrefix(strings.TrimSpace(line), "- alert: "); ok {
			n++
			if !strings.Contains(text, "| "+name+" |") {
				t.Errorf("%s says nothing of %s", documentFile, name)
			}
		}
	}
	if n < 10 {
		t.Errorf("%d alerts", n)
	}
}
