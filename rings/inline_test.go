package rings

import (
	"os/exec"
	"strings"
	"testing"
)

// What is called for every packet must be inlined: a call costs more than what most of these do.
func TestPerPacketFunctionsAreInlined(t *testing.T) {
	out, err := exec.Command("go", "build", "-gcflags=-m", ".").CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, f := range []string{
		"(*UMEM).Data", "(*UMEM).Chunk", "(*Pool).Get", "(*Pool).Put", "(*chunkSet).add", "(*chunkSet).remove",
		"(*producer[uint64]).slot", "(*producer[pollux/rings.Frame]).slot", "(*consumer[uint64]).slot",
		"(*consumer[pollux/rings.Frame]).available", "(*consumer[pollux/rings.Frame]).take",
	} {
		if !strings.Contains(string(out), "can inline "+f+"\n") {
			t.Errorf("%s is not inlined any more", f)
		}
	}
}
