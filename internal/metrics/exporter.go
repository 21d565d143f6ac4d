package metrics

import (
	"net/http"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"pollux/internal/natlog"
	"pollux/pmd"
)

// Source is where the numbers come from: a *pmd.Gateway.
type Source interface {
	Sample() pmd.Sample
}

// LogSource is where the translation log's numbers come from: a *natlog.Log, which may be nil.
type LogSource interface {
	Stats() natlog.Stats
}

// Build is what the binary was built from, for pollux_build_info.
type Build struct{ Version, Revision, Go string }

const (
	sampleAge      = time.Second      // how long a sample is good for
	scrapesMax     = 4                // at a time; more are told to come back
	scrapeDeadline = 10 * time.Second // of one scrape
)

// Exporter answers scrapes.
type Exporter struct {
	registry *prometheus.Registry
	handler  http.Handler
}

// New makes an exporter of the gateway's numbers, its translation log's, and the process's own.
func New(source Source, log LogSource, b Build) *Exporter {
	e := &Exporter{registry: prometheus.NewRegistry()}
	e.registry.MustRegister(
		newCollector(source, log, b, time.Now),
		collectors.NewGoCollector(),
		collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}),
	)
	e.handler = promhttp.HandlerFor(e.registry, promhttp.HandlerOpts{
		MaxRequestsInFlight: scrapesMax, Timeout: scrapeDeadline, ErrorHandling: promhttp.HTTPErrorOnError,
	})
	return e
}

// ServeHTTP answers a scrape in the format that the client asks for.
func (e *Exporter) ServeHTTP(w http.ResponseWriter, r *http.Request) { e.handler.ServeHTTP(w, r) }

// collector turns samples into metrics.
type collector struct {
	source Source
	log    LogSource
	now    func() time.Time
	descs  []*prometheus.Desc // of list, by index
	build  prometheus.Metric
	took   *prometheus.Desc

	mu     sync.Mutex // one sample is taken at a time; whoever waited for it uses it too
	last   reading
	at     time.Time // when last was complete; zero: there is none
	length time.Duration
}

// Metrics that are no part of a sample.
const (
	buildName = prefix + "build_info"
	buildHelp = "What the running binary was built from; always 1."
	tookName  = prefix + "sample_duration_seconds"
	tookHelp  = "How long it took to read the numbers of this scrape."
)

var buildLabels = []string{"version", "revision", "goversion"}

func newCollector(source Source, log LogSource, b Build, now func() time.Time) *collector {
	c := &collector{source: source, log: log, now: now, took: prometheus.NewDesc(tookName, tookHelp, nil, nil)}
	c.build = prometheus.MustNewConstMetric(prometheus.NewDesc(buildName, buildHelp, buildLabels, nil), prometheus.GaugeValue, 1, b.Version, b.Revision, b.Go)
	for i := range list {
		c.descs = append(c.descs, prometheus.NewDesc(list[i].fullName(), list[i].help, list[i].labels, nil))
	}
	return c
}

// Describe is prometheus.Collector's.
func (c *collector) Describe(out chan<- *prometheus.Desc) {
	out <- c.build.Desc()
	out <- c.took
	for _, d := range c.descs {
		out <- d
	}
}

// Collect is prometheus.Collector's.
func (c *collector) Collect(out chan<- prometheus.Metric) {
	s, took := c.sample()
	out <- c.build
	out <- prometheus.MustNewConstMetric(c.took, prometheus.GaugeValue, took.Seconds())
	for i := range list {
		list[i].read(s, &emitter{kind: list[i].kind, desc: c.descs[i], out: out})
	}
}

// sample returns a sample that is fresh enough; nobody changes it.
func (c *collector) sample() (*reading, time.Duration) {
	c.mu.Lock()
	defer c.mu.Unlock()
	begin := c.now()
	if c.at.IsZero() || begin.Sub(c.at) >= sampleAge {
		c.last = reading{c.source.Sample(), c.log.Stats()}
		c.at = c.now()
		c.length = c.at.Sub(begin)
	}
	s := c.last
	return &s, c.length
}
