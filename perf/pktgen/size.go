package pktgen

import (
	"fmt"
	"strconv"
)

// Sizes is the pattern of frame sizes that packets follow, with the 4 bytes of the frame's checksum.
type Sizes []int

// Limits of frames, checksum included.
const (
	SizeMin    = 64
	SizeMax    = 1518
	crcBytes   = 4
	patternMax = 16
)

// IMIX is the usual mix of 7 x 64, 4 x 594 and 1 x 1518 bytes, spread out.
var IMIX = Sizes{64, 594, 64, 64, 594, 64, 1518, 64, 594, 64, 594, 64}

// ParseSizes reads "64", any other size, or "imix".
func ParseSizes(s string) (Sizes, error) {
	if s == "imix" {
		return IMIX, nil
	}
	n, err := strconv.Atoi(s)
	if err != nil || n < SizeMin || n > SizeMax {
		return nil, fmt.Errorf("%q is no packet size: write imix or a number from %d to %d", s, SizeMin, SizeMax)
	}
	return Sizes{n}, nil
}

// Mean returns the mean size.
func (s Sizes) Mean() float64 {
	sum := 0
	for _, n := range s {
		sum += n
	}
	return float64(sum) / float64(len(s))
}
