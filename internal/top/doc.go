// Package top is the terminal view of a running gateway: what `pollux top` shows.
//
// A Source reads samples from the control API; Between makes a Frame of rates from two of them; Text lays a frame out for a
// terminal of any size; Model is the interactive program around these (Bubble Tea). Only the Source does I/O.
package top
