// Package perf measures pollux as a user would ask: scenarios that run the very packages of the gateway in memory, with the
// traffic made on the spot. Each scenario is a function from an options struct to a report that prints itself as a table
// for people or as JSON for programs, and says what its figures include.
package perf

import "fmt"

// OptionError says which option of a scenario can't be. Nothing was measured.
type OptionError struct {
	Name    string // as the command line calls it
	Is      any
	Allowed string
}

func (e *OptionError) Error() string {
	return fmt.Sprintf("%s: is %v; allowed: %s", e.Name, e.Is, e.Allowed)
}

// between checks that a number lies in a range.
func between(name string, is, low, high int) error {
	if is < low || is > high {
		return &OptionError{name, is, fmt.Sprintf("a number from %d to %d", low, high)}
	}
	return nil
}
