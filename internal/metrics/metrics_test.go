package metrics

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"reflect"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"github.com/prometheus/common/expfmt"
	"github.com/prometheus/common/model"

	"pollux/internal/natlog"
	"pollux/internal/packet"
	"pollux/internal/reason"
	"pollux/lport"
	"pollux/pmd"
	"pollux/rings"
)

// fakeSource counts how often it is asked.
type fakeSource struct {
	sample pmd.Sample
	asked  atomic.Int64
	wait   chan struct{} // nil: answers at once
}

func (f *fakeSource) Sample() pmd.Sample {
	f.asked.Add(1)
	if f.wait != nil {
		<-f.wait
	}
	return f.sample
}

// fakeLog has one collector.
type fakeLog struct{}

func (fakeLog) Stats() natlog.Stats {
	return natlog.Stats{Collectors: []natlog.CollectorStats{{Collector: "udp://192.0.2.1:514", Protocol: "syslog", Connected: true, Sent: 10, Lost: 2, Waiting: 3, Failures: 1}}}
}

// fill gives every number in v, however deep, a value of its own.
func fill(v reflect.Value, next *uint64) {
	switch v.Kind() {
	case reflect.Struct:
		for i := range v.NumField() {
			if v.Type().Field(i).IsExported() {
				fill(v.Field(i), next)
			}
		}
	case reflect.Array, reflect.Slice:
		for i := range v.Len() {
			fill(v.Index(i), next)
		}
	case reflect.Int, reflect.Int64:
		*next++
		v.SetInt(int64(*next))
	case reflect.Uint64, reflect.Uint32:
		*next++
		v.SetUint(*next)
	}
}

// fullSample has two workers, two ports, one alias address, and no number twice.
func fullSample() pmd.Sample {
	s := pmd.Sample{Workers: make([]pmd.WorkerSample, 2), Ports: make([]pmd.PortSample, 2), Pool: make([]pmd.PoolSample, 3)}
	for i := range s.Workers {
		s.Workers[i].Rings = make([]rings.Frames, 2)
	}
	next := uint64(1000)
	fill(reflect.ValueOf(&s).Elem(), &next)
	for i := range s.Workers {
		w := &s.Workers[i]
		w.Worker, w.Core, w.Queue = i, i+2, i
		w.Frames, w.HandedWhy = map[string]uint64{"free": 7, "rx": 1}, map[string]uint64{"dynamic": 5}
		w.RunNS, w.BusyNS, w.SleptNS = 4e9, 2e9, 1e9
	}
	for i := range s.Ports {
		p := &s.Ports[i]
		p.Name, p.Role, p.Mode, p.XDP, p.Up = fmt.Sprintf("eth%d", i), [2]string{"outside", "inside"}[i], "copy", "native", i == 0
	}
	for i := range s.Pool {
		s.Pool[i].Alias, s.Pool[i].Row = packet.AddrFrom(netip.MustParseAddr("203.0.113.1")), lport.Row(i)
	}
	for r := reason.None + 1; r < reason.Count; r++ {
		s.Drops = append(s.Drops, pmd.DropStats{Reason: r, Name: r.String(), Count: uint64(r)})
	}
	return s
}

func newRegistry(t *testing.T, s pmd.Sample) *prometheus.Registry {
	t.Helper()
	r := prometheus.NewPedanticRegistry()
	if err := r.Register(newCollector(&fakeSource{sample: s}, fakeLog{}, Build{"v1", "abc", "go1"}, time.Now)); err != nil {
		t.Fatal(err)
	}
	return r
}

// Names, units and help texts are by Prometheus's conventions, and every metric of the table has values.
func TestLint(t *testing.T) {
	r := newRegistry(t, fullSample())
	problems, err := testutil.GatherAndLint(r)
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range problems {
		t.Errorf("%s: %s", p.Metric, p.Text)
	}
	families, err := r.Gather()
	if err != nil {
		t.Fatal(err)
	}
	if want := len(list) + 2; len(families) != want {
		t.Errorf("%d metrics have values, the table has %d", len(families), want)
	}
}

// Some values of each shape are what the sample says.
func TestValues(t *testing.T) {
	s := fullSample()
	for i := range s.Workers {
		w := &s.Workers[i]
		w.NAT.State = [4]uint64{99, 1, 20, 3}
		w.NAT.Proto = [4]uint64{24, 5, 6, 7}
		w.Polls = 100
		for b := range w.Gaps {
			w.Gaps[b] = 0
		}
		w.Gaps[0], w.Gaps[1], w.Gaps[7] = 90, 8, 2
		for b := range w.Space.Steps {
			w.Space.Steps[b] = 0
		}
		w.Space.Steps[1], w.Space.Steps[3], w.Space.StepsSum = 10, 1, 15
	}
	s.Ports[0].RXBytes, s.Ports[1].RXBytes = 15, 16
	s.Pool[1].Used, s.Pool[0].Used, s.Pool[2].Used = 4, 3, 5
	want := `
# HELP pollux_links Links in the table.
# TYPE pollux_links gauge
pollux_links{protocol="icmp",state="active"} 12
pollux_links{protocol="other",state="active"} 14
pollux_links{protocol="tcp",state="closing"} 6
pollux_links{protocol="tcp",state="established"} 40
pollux_links{protocol="tcp",state="opening"} 2
pollux_links{protocol="udp",state="active"} 10
# HELP pollux_pool_ports_used Of these, in use by links.
# TYPE pollux_pool_ports_used gauge
pollux_pool_ports_used{alias="203.0.113.1",protocol="icmp"} 5
pollux_pool_ports_used{alias="203.0.113.1",protocol="tcp"} 3
pollux_pool_ports_used{alias="203.0.113.1",protocol="udp"} 4
# HELP pollux_port_receive_bytes_total Their bytes, Ethernet headers included.
# TYPE pollux_port_receive_bytes_total counter
pollux_port_receive_bytes_total{port="eth0"} 15
pollux_port_receive_bytes_total{port="eth1"} 16
# HELP pollux_port_up Whether the port is up and has carrier.
# TYPE pollux_port_up gauge
pollux_port_up{port="eth0"} 1
pollux_port_up{port="eth1"} 0
# HELP pollux_worker_busy_seconds_total Time in poll rounds that found work: its rate is the worker's occupancy.
# TYPE pollux_worker_busy_seconds_total counter
pollux_worker_busy_seconds_total{worker="0"} 2
pollux_worker_busy_seconds_total{worker="1"} 2
`
	if err := testutil.GatherAndCompare(newRegistry(t, s), strings.NewReader(want), "pollux_links", "pollux_pool_ports_used",
		"pollux_port_receive_bytes_total", "pollux_port_up", "pollux_worker_busy_seconds_total"); err != nil {
		t.Error(err)
	}
	families, err := newRegistry(t, s).Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		switch f.GetName() {
		case "pollux_worker_poll_gap_seconds":
			h := f.Metric[0].Histogram
			if h.GetSampleCount() != 100 || h.GetSampleSum() != 3 || h.Bucket[0].GetUpperBound() != 1e-6 || h.Bucket[0].GetCumulativeCount() != 90 ||
				h.Bucket[1].GetCumulativeCount() != 98 || h.Bucket[6].GetCumulativeCount() != 98 || h.Bucket[7].GetCumulativeCount() != 100 || h.Bucket[7].GetUpperBound() != 128e-6 {
				t.Errorf("%s: %v", f.GetName(), h)
			}
		case "pollux_pool_choice_steps":
			h := f.Metric[0].Histogram
			if h.GetSampleCount() != 22 || h.GetSampleSum() != 30 || h.Bucket[1].GetUpperBound() != 1 || h.Bucket[1].GetCumulativeCount() != 20 ||
				h.Bucket[3].GetUpperBound() != 7 || h.Bucket[3].GetCumulativeCount() != 22 {
				t.Errorf("%s: %v", f.GetName(), h)
			}
		case "pollux_dropped_packets_total":
			if n := len(f.Metric); n != int(reason.Count)-1-2 {
				t.Errorf("%s has %d reasons", f.GetName(), n)
			}
		}
	}
}

// However many addresses the pool has, the number of series is bounded, and none of the ports is left out.
func TestManyAddresses(t *testing.T) {
	s := fullSample()
	s.Pool = nil
	const addresses = aliasesMax + 100
	for a := range addresses {
		for row := range lport.RowOther {
			s.Pool = append(s.Pool, pmd.PoolSample{Alias: packet.Addr(0xcb007100 + a), Row: row, Ports: 1000, Used: 1})
		}
	}
	families, err := newRegistry(t, s).Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() != "pollux_pool_ports_used" {
			continue
		}
		total := 0.0
		for _, m := range f.Metric {
			total += m.Gauge.GetValue()
		}
		if len(f.Metric) != 3*(aliasesMax+1) || total != 3*addresses {
			t.Errorf("%d series, %v ports in all", len(f.Metric), total)
		}
	}
}

// Scrapes at one time share one sample, and so do those that follow within a moment.
func TestOneSampleForAll(t *testing.T) {
	source := &fakeSource{sample: fullSample(), wait: make(chan struct{})}
	now := atomic.Int64{}
	c := newCollector(source, fakeLog{}, Build{}, func() time.Time { return time.Unix(1000, now.Load()) })
	var all sync.WaitGroup
	for range 8 {
		all.Go(func() { c.sample() })
	}
	close(source.wait)
	all.Wait()
	if n := source.asked.Load(); n != 1 {
		t.Errorf("8 scrapes took %d samples", n)
	}
	now.Store(int64(sampleAge) - 1)
	c.sample()
	if n := source.asked.Load(); n != 1 {
		t.Errorf("a young sample was not used again: %d", n)
	}
	now.Store(int64(sampleAge))
	c.sample()
	if n := source.asked.Load(); n != 2 {
		t.Errorf("an old sample was used again: %d", n)
	}
}

// What is served is what Prometheus reads, the process's own metrics included.
func TestServe(t *testing.T) {
	s, err := Listen(netip.MustParseAddrPort("127.0.0.1:0"))
	if err != nil {
		t.Fatal(err)
	}
	e := New(&fakeSource{sample: fullSample()}, fakeLog{}, Build{"v1", "abc", "go1"})
	s.Serve(e)
	resp, err := http.Get("http://" + s.Addr().String() + "/metrics")
	if err != nil {
		t.Fatal(err)
	}
	parser := expfmt.NewTextParser(model.UTF8Validation)
	families, err := parser.TextToMetricFamilies(resp.Body)
	resp.Body.Close()
	if err != nil || resp.StatusCode != http.StatusOK {
		t.Fatalf("%s: %v", resp.Status, err)
	}
	for _, name := range []string{"pollux_build_info", "pollux_links", "go_goroutines", "process_cpu_seconds_total"} {
		if families[name] == nil {
			t.Errorf("no %s", name)
		}
	}
	for path, want := range map[string]int{"/": 404, "/v1/links": 404} {
		if r, err := http.Get("http://" + s.Addr().String() + path); err != nil || r.StatusCode != want {
			t.Errorf("%s: %v %v", path, r, err)
		}
	}
	if r, err := http.Post("http://"+s.Addr().String()+"/metrics", "text/plain", nil); err != nil || r.StatusCode != http.StatusMethodNotAllowed {
		t.Errorf("POST: %v %v", r, err)
	}
	if err := s.Close(); err != nil {
		t.Error(err)
	}
	if _, err := net.Dial("tcp", s.Addr().String()); err == nil {
		t.Error("it still listens after Close")
	}
	var none *Server
	none.Serve(e)
	if err := none.Close(); err != nil {
		t.Error(err)
	}
}

// A scraper gets the same numbers in OpenMetrics.
func TestOpenMetrics(t *testing.T) {
	e := New(&fakeSource{sample: fullSample()}, fakeLog{}, Build{})
	r := httptest.NewRequest("GET", "/metrics", nil)
	r.Header.Set("Accept", "application/openmetrics-text; version=1.0.0")
	w := httptest.NewRecorder()
	e.ServeHTTP(w, r)
	body, err := io.ReadAll(w.Body)
	if err != nil || w.Code != http.StatusOK || !strings.Contains(string(body), "pollux_links{") {
		t.Errorf("%d %v %.200s", w.Code, err, body)
	}
}

// An address that can't be had is refused in words.
func TestListenRefused(t *testing.T) {
	s, err := Listen(netip.MustParseAddrPort("127.0.0.1:0"))
	if err != nil {
		t.Fatal(err)
	}
	defer s.Close()
	for at, want := range map[string]string{s.Addr().String(): "another program listens there", "198.51.100.77:9464": "has no such address"} {
		if other, err := Listen(netip.MustParseAddrPort(at)); err == nil || !strings.Contains(err.Error(), want) || !strings.Contains(err.Error(), "control.metrics "+at) {
			t.Errorf("%s: %v", at, err)
			other.Close()
		}
	}
}
