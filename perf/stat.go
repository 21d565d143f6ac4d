package perf

import "slices"

// Stat sums up the repetitions of one measurement.
type Stat struct {
	Median float64 `json:"median"`
	Min    float64 `json:"min"`
	Max    float64 `json:"max"`
}

// NewStat sums up values, which it leaves as they are. Of an even number the lower middle one is the median. No values: zero.
func NewStat(values []float64) Stat {
	if len(values) == 0 {
		return Stat{}
	}
	s := slices.Sorted(slices.Values(values))
	return Stat{Median: s[(len(s)-1)/2], Min: s[0], Max: s[len(s)-1]}
}
