package clock

import (
	"testing"
	"time"
)

func TestTickWrap(t *testing.T) {
	var near Tick = 0xffffff00
	later := near.Add(time.Second)
	if later >= near {
		t.Fatalf("%d does not wrap past %d", later, near)
	}
	if got := later.Since(near); got != 1000 {
		t.Errorf("Since across the wrap = %d, want 1000", got)
	}
	if !near.Before(later) || !later.After(near) || later.Before(near) || near.After(later) || near.Before(near) {
		t.Error("order across the wrap is wrong")
	}
}

func TestTicksRoundsUp(t *testing.T) {
	if got := Ticks(time.Microsecond); got != 1 {
		t.Errorf("Ticks(1us) = %d, want 1: a timeout never ends early", got)
	}
	if got := Ticks(2 * time.Second); got != 2000 {
		t.Errorf("Ticks(2s) = %d, want 2000", got)
	}
}
