package perf

import (
	"os"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"
)

// Machine says where a figure comes from. Every report carries it.
type Machine struct {
	CPU    string `json:"cpu"`    // model name
	Cores  int    `json:"cores"`  // that this process may run on
	Kernel string `json:"kernel"` // release
	Go     string `json:"go"`     // version and architecture
}

// ThisMachine reads the machine's own description.
func ThisMachine() Machine {
	m := Machine{CPU: "unknown", Cores: runtime.NumCPU(), Kernel: "unknown", Go: runtime.Version() + " " + runtime.GOARCH}
	if b, err := os.ReadFile("/proc/cpuinfo"); err == nil {
		for line := range strings.Lines(string(b)) {
			if key, value, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(key) == "model name" {
				m.CPU = strings.TrimSpace(value)
				break
			}
		}
	}
	var u unix.Utsname
	if unix.Uname(&u) == nil {
		m.Kernel = unix.ByteSliceToString(u.Release[:])
	}
	return m
}

// Report is what every scenario's JSON carries besides its own fields; embed it.
type Report struct {
	Machine Machine `json:"machine"`
	Command string  `json:"command"` // the line that repeats the run
}
