package top

import (
	"context"
	"encoding/json"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"testing"

	"pollux/internal/control"
)

// A sample is whole without hosts, when they can't be listed just now, and is none without the rest.
func TestFromAPI(t *testing.T) {
	path := filepath.Join(t.TempDir(), "p.sock")
	ln, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	s, busy, broken := sampleAt(3), false, false
	mux := http.NewServeMux()
	answer := func(pattern string, value any) {
		mux.HandleFunc(pattern, func(w http.ResponseWriter, r *http.Request) {
			if busy && r.URL.Path == "/v1/hosts/top" || broken && r.URL.Path == "/v1/drops" {
				w.WriteHeader(http.StatusServiceUnavailable)
				value = map[string]string{"error": "busy"}
			}
			_ = json.NewEncoder(w).Encode(value)
		})
	}
	answer("GET /v1/workers", map[string]any{"workers": s.Workers})
	answer("GET /v1/ports", map[string]any{"ports": s.Ports})
	answer("GET /v1/drops", map[string]any{"drops": s.Drops})
	answer("GET /v1/hosts/top", map[string]any{"hosts": s.Hosts})
	server := http.Server{Handler: mux}
	go func() { _ = server.Serve(ln) }()
	defer server.Close()
	api := FromAPI{control.NewClient(path)}
	got, err := api.Sample(context.Background(), ByLinks)
	if err != nil || len(got.Workers) != 2 || len(got.Ports) != 2 || len(got.Drops) != 5 || len(got.Hosts) != 2 || got.NoHosts != "" || got.Workers[1].BusyNS != s.Workers[1].BusyNS {
		t.Errorf("%+v %v", got, err)
	}
	busy = true
	if got, err = api.Sample(context.Background(), ByLinks); err != nil || len(got.Workers) != 2 || !strings.Contains(got.NoHosts, "busy") {
		t.Errorf("%+v %v", got, err)
	}
	broken = true
	if _, err = api.Sample(context.Background(), ByLinks); err == nil {
		t.Error("a sample without drops passes")
	}
}
