package config

import "testing"

// Where workers have cores of their own the memory for links is taken at start, unless it is said otherwise.
func TestLimitsMemory(t *testing.T) {
	for text, want := range map[string]bool{
		"":                            true,
		"workers: {idle: adaptive}\n": false,
		"limits: {memory: use}\n":     false,
		"limits: {memory: start}\n":   true,
		"limits: {memory: auto}\n":    true,
		"workers: {idle: adaptive}\nlimits: {memory: start}\n": true,
	} {
		if got := mustParse(t, base+text, Run).Gateway().Populate; got != want {
			t.Errorf("%q: populate %v, want %v", text, got, want)
		}
	}
}
