package perf

import (
	"fmt"
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

// NewReport describes this machine and this run.
func NewReport() Report { return Report{Machine: ThisMachine(), Command: strings.Join(os.Args, " ")} }

// resident is the memory that the process has right now, in bytes: of the heap, and of every table as far as it was touched.
func resident() uint64 {
	b, err := os.ReadFile("/proc/self/statm")
	if err != nil {
		return 0
	}
	var size, pages uint64
	if _, err := fmt.Sscan(string(b), &size, &pages); err != nil {
		return 0
	}
	return pages * uint64(os.Getpagesize())
}
