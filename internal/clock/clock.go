// Package clock holds the coarse time of the dataplane: a 32-bit count of milliseconds that wraps after 49.7 days.
//
// A worker reads it once per burst and hands it down; nothing below pmd asks for the time (DESIGN 8).
package clock

import "time"

// Tick is a point in time in milliseconds, modulo 2^32. Compare ticks only by Since, Before and After.
type Tick uint32

// PerSecond is how many ticks a second has.
const PerSecond = 1000

// Since returns how many ticks lie between an earlier tick and t. It is right across the wrap as long as they are less
// than 2^31 ticks (24.8 days) apart.
func (t Tick) Since(earlier Tick) uint32 { return uint32(t - earlier) }

// Before reports whether t is earlier than u, across the wrap.
func (t Tick) Before(u Tick) bool { return int32(t-u) < 0 }

// After reports whether t is later than u, across the wrap.
func (t Tick) After(u Tick) bool { return int32(t-u) > 0 }

// Add returns t moved by d, which is rounded up to a whole tick so that nothing ends early.
func (t Tick) Add(d time.Duration) Tick { return t + Tick(Ticks(d)) }

// Ticks converts a duration to ticks, rounded up.
func Ticks(d time.Duration) uint32 {
	return uint32((d + time.Millisecond - 1) / time.Millisecond)
}
