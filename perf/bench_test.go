package perf

import "testing"

// BenchmarkScenario runs the scenarios in memory as `pollux perf` does, shorter, and gives their figures in a form that benchstat
// reads and `make bench-compare` compares. An iteration is a whole run, so ns/op says nothing.
func BenchmarkScenario(b *testing.B) {
	scenario := func(name string, run func() (map[string]float64, error)) {
		b.Run(name, func(b *testing.B) {
			sum := map[string]float64{}
			for range b.N {
				figures, err := run()
				if err != nil {
					b.Fatal(err)
				}
				for unit, v := range figures {
					sum[unit] += v
				}
			}
			for unit, v := range sum {
				b.ReportMetric(v/float64(b.N), unit)
			}
			b.ReportMetric(0, "ns/op")
		})
	}
	for name, links := range map[string]int{"established/16k": 1 << 14, "established/1M": 1 << 20} {
		scenario(name, func() (map[string]float64, error) {
			r, err := MeasureEstablished(EstablishedOptions{Links: links, Packets: 1 << 18, Repeat: 3})
			if err != nil {
				return nil, err
			}
			return map[string]float64{"ns/packet": r.NS.Median}, nil
		})
	}
	scenario("onegroup/100k", func() (map[string]float64, error) {
		r, err := MeasureOneGroup(OneGroupOptions{Links: 100_000, Order: "scattered", Packets: 1 << 13, Repeat: 3})
		if err != nil {
			return nil, err
		}
		return map[string]float64{"ns/existing": r.Existing.Mean, "ns/SYN": r.New.Mean, "ns/existing-burst": r.Burst.Existing.Median, "ns/SYN-burst": r.Burst.New.Median}, nil
	})
	scenario("new-flows/256k", func() (map[string]float64, error) {
		r, err := MeasureNewFlows(NewFlowsOptions{Links: 1 << 18, Repeat: 3})
		if err != nil {
			return nil, err
		}
		return map[string]float64{"ns/flow": r.NS.Median, "ns/expiry": r.Expiry.Median}, nil
	})
	scenario("port-exhaustion", func() (map[string]float64, error) {
		o := ExhaustionDefaults()
		o.Searches, o.Repeat = 1<<14, 3
		r, err := MeasureExhaustion(o)
		if err != nil {
			return nil, err
		}
		return map[string]float64{"ns/port-at-99%": r.Points[2].NS}, nil
	})
	scenario("libalias", func() (map[string]float64, error) {
		o := LibaliasDefaults()
		o.MaxSeconds = 1
		r, err := MeasureLibalias(o)
		if err != nil {
			return nil, err
		}
		return map[string]float64{"ns/packet": 1e9 * r.CPUSeconds / float64(r.Packets)}, nil
	})
	scenario("rtcache/1k", func() (map[string]float64, error) {
		r, err := MeasureRoutes(RoutesOptions{Routes: 1000, Links: 1 << 14, Packets: 1 << 18, Repeat: 3})
		if err != nil {
			return nil, err
		}
		m := map[string]float64{}
		for _, row := range r.Rows {
			m["ns/"+row.Name] = row.NS.Median
		}
		return m, nil
	})
	scenario("handoff", func() (map[string]float64, error) {
		r, err := MeasureHandoff(HandoffOptions{Links: 1 << 12, Packets: 1 << 16, Repeat: 3})
		if err != nil {
			return nil, err
		}
		return map[string]float64{"ns/owner": r.Owner.Median, "ns/handoff": r.Handoff.Median, "ns/xsync": r.Xsync.Median}, nil
	})
}
