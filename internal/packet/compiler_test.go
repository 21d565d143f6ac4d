package packet

import (
	"os"
	"os/exec"
	"strconv"
	"strings"
	"testing"
)

// The compiler is under test too: what an established packet meets must be inlined into its caller, and the fast path of
// ParseEach must read the frame without a bounds check after its one test of the length.
func TestCompilerVerdict(t *testing.T) {
	if testing.Short() {
		t.Skip("asks the compiler")
	}
	tool, err := exec.LookPath("go")
	if err != nil {
		t.Skip("no go tool in the path: ", err)
	}
	report, err := exec.Command(tool, "build", "-gcflags=-m -d=ssa/check_bce/debug=1", ".").CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, report)
	}
	for _, name := range []string{"Delta16", "DeltaAddr", "AddDelta", "ApplyDelta", "ApplyDeltaUDP", "(*Headers).Fragment", "hostSource"} {
		if !strings.Contains(string(report), ": can inline "+name+"\n") {
			t.Errorf("%s is not inlined any more", name)
		}
	}
	source, err := os.ReadFile("parse.go")
	if err != nil {
		t.Fatal(err)
	}
	before, rest, _ := strings.Cut(string(source), "\nfunc ParseEach(")
	body, _, ok := strings.Cut(rest, "\n}\n")
	if !ok {
		t.Fatal("where is ParseEach?")
	}
	first := strings.Count(before, "\n") + 2
	last := first + strings.Count(body, "\n")
	checks := 0
	for line := range strings.Lines(string(report)) {
		place, what, ok := strings.Cut(strings.TrimPrefix(line, "./"), ": Found ")
		if !ok {
			continue
		}
		checks++
		file, at, _ := strings.Cut(place, ":")
		at, _, _ = strings.Cut(at, ":")
		if n, _ := strconv.Atoi(at); file == "parse.go" && n >= first && n <= last {
			t.Errorf("a bounds check in ParseEach, line %d: %s", n, strings.TrimSpace(what))
		}
	}
	if checks == 0 {
		t.Error("the compiler reports no bounds check at all: is the flag still understood?")
	}
}
