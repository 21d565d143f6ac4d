package integration

import (
	"context"
	"fmt"
	"io"
	"net/netip"
	"strings"
	"testing"
	"time"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"pollux/internal/lab"
)

// scrapeOf reads a scrape as Prometheus does.
func scrapeOf(t *testing.T, text io.Reader) map[string]*dto.MetricFamily {
	t.Helper()
	parser := expfmt.NewTextParser(model.LegacyValidation)
	families, err := parser.TextToMetricFamilies(text)
	if err != nil {
		t.Fatal(err)
	}
	return families
}

// value adds up the values of a metric whose labels include want, as "name=value".
func value(f *dto.MetricFamily, want ...string) (sum float64) {
metrics:
	for _, m := range f.GetMetric() {
		for _, w := range want {
			name, v, _ := strings.Cut(w, "=")
			has := false
			for _, l := range m.Label {
				has = has || l.GetName() == name && l.GetValue() == v
			}
			if !has {
				continue metrics
			}
		}
		sum += m.GetCounter().GetValue() + m.GetGauge().GetValue() + float64(m.GetHistogram().GetSampleCount())
	}
	return sum
}

// Metrics, by TCP and on the control socket, tell of the traffic that was; scraping all the while loses no packet.
func TestMetrics(t *testing.T) {
	l := newLab(t, lab.Options{})
	g := run(t, l, "--control-metrics", "127.0.0.1:9464")
	in, out := l.Inside[0], l.Outside[0]
	echo, err := lab.ServeUDPEcho(out.Namespace, at(out.Addr, 9000))
	if err != nil {
		t.Fatal(err)
	}
	defer echo.Close()

	ctx := limited(t, time.Minute)
	scraping, stop := context.WithCancel(ctx)
	defer stop()
	scrapes := make(chan error, 1)
	go func() {
		for n := 0; ; n++ {
			body, err := g.Raw(scraping, "/metrics", nil)
			if err == nil {
				_, err = io.Copy(io.Discard, body)
				body.Close()
			}
			if scraping.Err() != nil {
				if n == 0 {
					scrapes <- fmt.Errorf("no scrape was answered")
				}
				close(scrapes)
				return
			}
			if err != nil {
				scrapes <- err
				return
			}
		}
	}()
	const flows, each = 200, 20
	r, err := lab.UDPFlows(ctx, in.Namespace, netip.AddrPortFrom(out.Addr, 9000), lab.FlowOptions{Flows: flows, PerFlow: each, Size: 100, Timeout: 10 * time.Second, At: 20})
	if err != nil || r.Answered != flows*each || r.Wrong != 0 {
		t.Errorf("%+v %v", r, err)
	}
	stop()
	if err := <-scrapes; err != nil {
		t.Errorf("scraping: %v", err)
	}
	time.Sleep(1100 * time.Millisecond) // a sample is good for a second

	body, err := g.Raw(t.Context(), "/metrics", nil)
	if err != nil {
		t.Fatal(err)
	}
	defer body.Close()
	byTCP := mustRun(t, ctx, l.Gateway, "curl", "-sS", "--noproxy", "*", "http://127.0.0.1:9464/metrics")
	for name, families := range map[string]map[string]*dto.MetricFamily{"socket": scrapeOf(t, body), "tcp": scrapeOf(t, strings.NewReader(byTCP+"\n"))} {
		for _, want := range []struct {
			metric string
			labels []string
			least  float64
			most   float64
		}{
			{"pollux_links_created_total", nil, flows, flows + 5},
			{"pollux_links", []string{"protocol=udp", "state=active"}, flows, flows + 5},
			{"pollux_pool_ports_used", []string{"alias=" + lab.GatewayOutside.String(), "protocol=udp"}, flows, flows + 5},
			{"pollux_port_receive_packets_total", []string{"port=" + lab.InsideDevice}, flows * each, 2 * flows * each},
			{"pollux_port_transmit_bytes_total", []string{"port=" + lab.OutsideDevice}, flows * each * 142, 2 * flows * each * 142},
			{"pollux_worker_translated_packets_total", []string{"worker=0"}, 2 * flows * each, 3 * flows * each},
			{"pollux_port_xdp_decisions_total", []string{"decision=to-worker"}, 2 * flows * each, 3 * flows * each},
			{"pollux_dropped_packets_total", []string{"reason=no-port"}, 0, 0},
			{"pollux_worker_frames_leaked", nil, 0, 0},
			{"pollux_pool_choice_steps", nil, flows, flows + 5},
			{"pollux_worker_poll_gap_seconds", nil, 100, 1e12},
			{"pollux_worker_busy_seconds_total", nil, 1e-6, 1e3},
			{"pollux_routes", nil, 1, 100},
			{"pollux_build_info", nil, 1, 1},
			{"process_open_fds", nil, 1, 1000},
		} {
			if families[want.metric] == nil {
				t.Errorf("%s: no %s", name, want.metric)
			} else if v := value(families[want.metric], want.labels...); v < want.least || v > want.most {
				t.Errorf("%s: %s%v is %v, want %v to %v", name, want.metric, want.labels, v, want.least, want.most)
			}
		}
	}
}
