package metrics

import (
	"math"

	"github.com/prometheus/client_golang/prometheus"

	"pollux/internal/natlog"
	"pollux/pmd"
)

// kind is a metric's type.
type kind uint8

const (
	counter kind = iota
	gauge
	histogram
)

// String returns Prometheus's word.
func (k kind) String() string { return [...]string{"counter", "gauge", "histogram"}[k] }

// metric is one row of the table.
type metric struct {
	name   string // without prefix
	kind   kind
	labels []string
	help   string
	read   func(s *reading, e *emitter)
}

// prefix begins every name of ours.
const prefix = "pollux_"

func (m *metric) fullName() string { return prefix + m.name }

// reading is what metrics are read off.
type reading struct {
	pmd.Sample
	log natlog.Stats
}

// emitter makes values of one metric.
type emitter struct {
	kind kind
	desc *prometheus.Desc
	out  chan<- prometheus.Metric
}

// emit makes one value, with a value for each label. A value that does not fit the labels is a mistake in the table, which
// the scrape reports as an error.
func (e *emitter) emit(value float64, labels ...string) {
	t := prometheus.CounterValue
	if e.kind == gauge {
		t = prometheus.GaugeValue
	}
	m, err := prometheus.NewConstMetric(e.desc, t, value, labels...)
	e.send(m, err)
}

func (e *emitter) send(m prometheus.Metric, err error) {
	if err != nil {
		m = prometheus.NewInvalidMetric(e.desc, err)
	}
	e.out <- m
}

func (e *emitter) count(n uint64, labels ...string) { e.emit(float64(n), labels...) }

func (e *emitter) flag(on bool, labels ...string) {
	n := uint64(0)
	if on {
		n = 1
	}
	e.count(n, labels...)
}

func (e *emitter) seconds(ns uint64, labels ...string) { e.emit(float64(ns)/1e9, labels...) }

// distribution makes one histogram. buckets count what is at most bound(i) and more than bound(i-1); the last one has no bound.
func (e *emitter) distribution(buckets []uint64, bound func(i int) float64, sum float64, labels ...string) {
	upTo, n := map[float64]uint64{}, uint64(0)
	for i, b := range buckets {
		n += b
		if at := bound(i); i < len(buckets)-1 && !math.IsInf(at, 1) {
			upTo[at] = n
		}
	}
	m, err := prometheus.NewConstHistogram(e.desc, n, sum, upTo, labels...)
	e.send(m, err)
}
