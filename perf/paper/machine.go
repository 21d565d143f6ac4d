package paper

import (
	"os"
	"strconv"
	"strings"
	"time"
)

// ticks is what the processors have done so far, in ticks of 1/100 s.
type ticks struct{ busy, idle, stolen float64 }

// machineTime reads the first line of /proc/stat: user nice system idle iowait irq softirq steal.
func machineTime() (t ticks) {
	b, _ := os.ReadFile("/proc/stat")
	line, _, _ := strings.Cut(string(b), "\n")
	for i, s := range strings.Fields(line) {
		v, _ := strconv.ParseFloat(s, 64)
		switch i {
		case 1, 2, 3, 6, 7:
			t.busy += v
		case 4, 5:
			t.idle += v
		case 8:
			t.stolen += v
		}
	}
	return t
}

func (t ticks) since(before ticks) ticks {
	return ticks{t.busy - before.busy, t.idle - before.idle, t.stolen - before.stolen}
}

// shares are percents of all processor time: what neither was idle nor went to a process that used own, and what the hypervisor
// took.
func (t ticks) shares(own time.Duration) (others, stolen float64) {
	all := t.busy + t.idle + t.stolen
	if all <= 0 {
		return 0, 0
	}
	return 100 * max(t.busy-own.Seconds()*100, 0) / all, 100 * t.stolen / all
}
