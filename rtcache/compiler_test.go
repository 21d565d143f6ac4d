package rtcache

import (
	"os/exec"
	"strings"
	"testing"
)

// What the route stage asks for every established packet must be inlined into it: a call would spill all that its loop keeps
// in registers.
func TestCompilerVerdict(t *testing.T) {
	if testing.Short() {
		t.Skip("asks the compiler")
	}
	tool, err := exec.LookPath("go")
	if err != nil {
		t.Skip("no go tool in the path: ", err)
	}
	report, err := exec.Command(tool, "build", "-gcflags=-m", ".").CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, report)
	}
	for _, name := range []string{"Stamps.Current", "Attached.From", "Attached.At", "(*Hop).Usable", "(*Hop).Dress", "Dress.Port", "Dress.MTU", "Dress.MACs", "MACs.Write"} {
		if !strings.Contains(string(report), ": can inline "+name+"\n") {
			t.Errorf("%s is not inlined any more", name)
		}
	}
}
