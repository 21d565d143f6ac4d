package rings

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/cilium/ebpf"
)

// The committed object and Go file must be what generating makes of the source. Another compiler makes other instructions
// of it, so only the one that generate.go names can tell.
func TestObjectMatchesItsSource(t *testing.T) {
	text, err := os.ReadFile("generate.go")
	if err != nil {
		t.Fatal(err)
	}
	_, line, ok := strings.Cut(string(text), "//go:generate ")
	args := strings.Fields(line)
	cc := slices.Index(args, "-cc")
	if !ok || cc < 0 || args[0] != "go" {
		t.Fatalf("no compiler in the generate line %q", line)
	}
	missing := ""
	for _, tool := range []string{args[cc+1], strings.Replace(args[cc+1], "clang", "llvm-strip", 1)} {
		if _, err := exec.LookPath(tool); err != nil {
			missing = err.Error()
		}
	}
	if _, err := os.Stat("/usr/include/bpf/bpf_helpers.h"); err != nil {
		missing = err.Error() + " (libbpf-dev)"
	}
	if missing != "" {
		if os.Getenv("POLLUX_REQUIRE_LAB") == "1" {
			t.Fatal(missing)
		}
		t.Skip(missing)
	}
	dir := t.TempDir()
	at := slices.Index(args, "-target")
	args = slices.Insert(args, at, "-output-dir", dir)
	cmd := exec.Command(args[0], args[1:]...)
	cmd.Env = append(os.Environ(), "GOPACKAGE=rings", "GOFILE=generate.go")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("generate: %v\n%s", err, out)
	}
	committed, err := loadSteer()
	if err != nil {
		t.Fatal(err)
	}
	fresh, err := ebpf.LoadCollectionSpec(filepath.Join(dir, "steer_bpfel.o"))
	if err != nil {
		t.Fatal(err)
	}
	if len(fresh.Programs) != len(committed.Programs) || len(fresh.Maps) != len(committed.Maps) {
		t.Errorf("%d programs and %d maps committed, the source has %d and %d",
			len(committed.Programs), len(committed.Maps), len(fresh.Programs), len(fresh.Maps))
	}
	for name, p := range fresh.Programs {
		c := committed.Programs[name]
		if c == nil || len(c.Instructions) != len(p.Instructions) {
			t.Errorf("program %s differs from its source: run go generate ./rings", name)
			continue
		}
		for i := range p.Instructions {
			a, b := p.Instructions[i], c.Instructions[i]
			if a.OpCode != b.OpCode || a.Dst != b.Dst || a.Src != b.Src || a.Offset != b.Offset || a.Constant != b.Constant || a.Reference() != b.Reference() {
				t.Errorf("program %s, instruction %d: %v committed, %v in the source: run go generate ./rings", name, i, b, a)
				break
			}
		}
	}
	for name, m := range fresh.Maps {
		c := committed.Maps[name]
		if c == nil || c.Type != m.Type || c.KeySize != m.KeySize || c.ValueSize != m.ValueSize || c.MaxEntries != m.MaxEntries || c.Flags != m.Flags {
			t.Errorf("map %s differs from its source: run go generate ./rings", name)
		}
	}
	want, err := os.ReadFile(filepath.Join(dir, "steer_bpfel.go"))
	if err != nil {
		t.Fatal(err)
	}
	if got, err := os.ReadFile("steer_bpfel.go"); err != nil || string(got) != string(want) {
		t.Errorf("steer_bpfel.go differs from its source (%v): run go generate ./rings", err)
	}
}

// The Go names of the program's constants must be the C ones.
func TestConstantsMatchTheProgram(t *testing.T) {
	for c, want := range map[Cause]steerCause{
		CauseToWorker: steerCauseTO_WORKER, CauseNoQueue: steerCauseNO_QUEUE, CauseARPAnswered: steerCauseARP_ANSWERED,
		CausePassNotIP: steerCausePASS_NOT_IP, CausePassMAC: steerCausePASS_MAC, CausePassARP: steerCausePASS_ARP,
		CausePassIPv6: steerCausePASS_IPV6, CausePassLocal: steerCausePASS_LOCAL, CausePassFree: steerCausePASS_FREE,
		CausePassKernelPort: steerCausePASS_KERNEL_PORT, CausePassSocket: steerCausePASS_SOCKET, CausePassEcho: steerCausePASS_ECHO,
		CausePassFragment: steerCausePASS_FRAGMENT, Causes: steerCauseCAUSES,
	} {
		if c != Cause(want) {
			t.Errorf("%v is %d in Go, %d in C", c, c, want)
		}
	}
	seen := map[string]bool{}
	for c := range Causes {
		if c.String() == "" || c.Help() == "" || seen[c.String()] {
			t.Errorf("cause %d has no name of its own or no help: %q", c, c)
		}
		seen[c.String()] = true
	}
	spec, err := loadSteer()
	if err != nil {
		t.Fatal(err)
	}
	if n := spec.Maps[steerMapSockets].MaxEntries; n != QueuesMax {
		t.Errorf("%d sockets in C, %d in Go", n, QueuesMax)
	}
	if m := spec.Maps[steerMapOwners].InnerMap; int(m.MaxEntries*m.ValueSize) != AliasBytes || m.ValueSize != AliasRowBytes {
		t.Errorf("owner rows of %d x %d bytes in C", m.MaxEntries, m.ValueSize)
	}
	if m := spec.Maps[steerMapFilter]; m.ValueSize != filterBytes {
		t.Errorf("a filter of %d bytes in C, %d in Go", m.ValueSize, filterBytes)
	}
}
