package main

import (
	"slices"
	"testing"
)

func TestJoinBools(t *testing.T) {
	got := joinBools([]string{"pollux", "run", "--nat-same-ports", "false", "--nat-port-parity", "--nat-target", "true", "-nat-hairpin", "true", "--nat-same-ports"})
	want := []string{"pollux", "run", "--nat-same-ports=false", "--nat-port-parity", "--nat-target", "true", "-nat-hairpin=true", "--nat-same-ports"}
	if !slices.Equal(got, want) {
		t.Errorf("got  %q\nwant %q", got, want)
	}
}
