package config

import "testing"

// The memory for links is taken at start, unless it is said otherwise.
func TestLimitsMemory(t *testing.T) {
	for text, want := range map[string]bool{
		"":                            true,
		"workers: {idle: adaptive}\n": true,
		"limits: {memory: use}\n":     false,
		"limits: {memory: start}\n":   true,
	} {
		if got := mustParse(t, base+text, Run).Gateway().Populate; got != want {
			t.Errorf("%q: populate %v, want %v", text, got, want)
		}
	}
}
