package pmd

import (
	"os"
	"strconv"
	"strings"
	"testing"
	"time"

	"pollux/internal/lab"
)

// With Populate the memory of the tables is the process's once Start returns: taking it again takes nothing. Without, it does.
func TestPopulate(t *testing.T) {
	l := newLab(t, lab.Options{})
	for _, populate := range []bool{false, true} {
		o := labOptions()
		o.Limits.Links, o.Populate = 300_000, populate
		g, err := startIn(t, l, o)
		if err != nil {
			t.Fatal(err)
		}
		g.o.Populate = true
		before := resident(t)
		if err := g.populate(time.Now()); err != nil {
			t.Fatal(err)
		}
		grown, mapped := resident(t)-before, int(g.workers[0].shard.Counters().Memory)
		if err := g.Stop(); err != nil {
			t.Error(err)
		}
		if populate == (grown > mapped/2) {
			t.Errorf("populate %v: %d MiB more afterwards, the tables are %d MiB", populate, grown>>20, mapped>>20)
		}
	}
}

// resident returns the bytes of memory that the process has, huge pages included.
func resident(t *testing.T) (bytes int) {
	t.Helper()
	b, err := os.ReadFile("/proc/self/smaps_rollup")
	if err != nil {
		t.Fatal(err)
	}
	for line := range strings.Lines(string(b)) {
		f := strings.Fields(line)
		switch f[0] {
		case "Rss:", "Shared_Hugetlb:", "Private_Hugetlb:":
			n, err := strconv.Atoi(f[1])
			if err != nil {
				t.Fatal(err)
			}
			bytes += n << 10
		}
	}
	return bytes
}
