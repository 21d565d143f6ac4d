// Package perf measures pollux as a user would ask: scenarios that run the very packages of the gateway in memory, with the
// traffic made on the spot. Each scenario is a function from an options struct to a report that prints itself as a table
// for people or as JSON for programs, and says what its figures include.
package perf
