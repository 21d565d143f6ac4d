// Package doctor looks at a machine the way pollux will use it and says what is wrong and how to mend it. It changes
// nothing. The dataplane asks it (Check) before it touches a device; `pollux doctor` prints everything (Examine).
package doctor

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
)

// Level grades a result.
type Level string

const (
	OK   Level = "ok"
	Warn Level = "warn" // pollux runs, but slower or less safely than it could
	Fail Level = "fail" // pollux can't run like this
)

// Result is the outcome of one check.
type Result struct {
	Check  string `json:"check"`
	Object string `json:"object,omitempty"` // the device concerned
	Level  Level  `json:"level"`
	Found  string `json:"found"`          // what is there or wrong, one line
	Mend   string `json:"mend,omitempty"` // what to do or type
}

// String gives the result as one line: what, where, what to do.
func (r Result) String() string {
	s := r.Found
	if r.Object != "" && !strings.HasPrefix(s, r.Object) {
		s = r.Object + ": " + s
	}
	if r.Mend != "" {
		s += "; " + r.Mend
	}
	return s
}

// Port is a device that pollux is to use.
type Port struct {
	Name   string
	Inside bool
}

// Options says how pollux is to run. Zero values mean what they mean to `pollux run`.
type Options struct {
	Ports      []Port
	Cores      []int // empty: the last allowed core
	Queues     []int // that worker i polls on every port; empty: queue i
	Adaptive   bool  // idle workers sleep
	RTPriority int   // FIFO priority of the workers, 0: none
	ZeroCopy   bool  // zero-copy is demanded, not just preferred
	RingSize   int   // descriptors; 0: 2048

	Oversubscribe bool // workers may share cores
	SteerFlow     bool // flows have owners of their own, not hosts
	SamePorts     bool // hosts keep their own port numbers
	PerPeer       bool // a mapping of TCP or UDP is endpoint-dependent: its ports are chosen for one peer

	PortLow    uint16
	PortHigh   uint16       // nat.port_range; 0: not looked at
	Alias      []netip.Addr // alias addresses, with AliasPort those of the outside port are added
	AliasPort  bool
	UMEMBytes  uint64 // locked memory of the frames; 0: reckoned from rings and queues
	TableBytes uint64 // memory of link tables and indexes; 0: not looked at

	Release string // kernel release, "" for this kernel's: for tests
	Machine string // a directory with what /sys and /proc tell of cards and cores, "" for this machine's: for tests
}

// What frames are reckoned at when nobody gave UMEMBytes: 2 KiB each, and four ring sizes of them for each socket, half
// of which sit in its rings.
const (
	frameBytes    = 2048
	framesPerRing = 4
)

func (o Options) withDefaults() Options {
	if len(o.Queues) == 0 {
		for i := range max(len(o.Cores), 1) {
			o.Queues = append(o.Queues, i)
		}
	}
	if o.RingSize == 0 {
		o.RingSize = 2048
	}
	if o.UMEMBytes == 0 {
		o.UMEMBytes = uint64(len(o.Ports)*len(o.Queues)*o.RingSize) * framesPerRing * frameBytes
	}
	return o
}

// Examine makes every check that applies, those of the machine first, then port by port.
func Examine(o Options) []Result {
	return append(essentials(o), leak(o)...)
}

// essentials are the checks that can find a reason not to start.
func essentials(o Options) []Result {
	o = o.withDefaults()
	sys := openSysfs(o.Machine)
	defer sys.close()
	cards := cardsOf(o)
	list := []Result{kernel(o)}
	list = append(list, privileges(o)...)
	list = append(list, cores(o), memory(o), lockedMemory(o), hugePages(o), realTime(o), jit())
	list = append(list, processors(o, sys)...)
	for _, p := range o.Ports {
		list = append(list, port(p, o, sys, cards)...)
	}
	return list
}

// Check makes those checks that can keep pollux from starting and returns the first failure as one line for people, nil when
// there is none.
func Check(o Options) error {
	for _, r := range essentials(o) {
		if r.Level == Fail {
			return errors.New(r.String())
		}
	}
	return nil
}

// Worst is the gravest level among results.
func Worst(list []Result) Level {
	worst := OK
	for _, r := range list {
		if r.Level == Fail || r.Level == Warn && worst == OK {
			worst = r.Level
		}
	}
	return worst
}

func ok(check, format string, args ...any) Result {
	return Result{Check: check, Level: OK, Found: fmt.Sprintf(format, args...)}
}

func warn(check, mend, format string, args ...any) Result {
	return Result{Check: check, Level: Warn, Found: fmt.Sprintf(format, args...), Mend: mend}
}

func fail(check, mend, format string, args ...any) Result {
	return Result{Check: check, Level: Fail, Found: fmt.Sprintf(format, args...), Mend: mend}
}

func (r Result) on(device string) Result {
	r.Object = device
	return r
}

// mib gives bytes as people read memory.
func mib(b uint64) string {
	if b >= 10<<30 {
		return fmt.Sprintf("%d GiB", b>>30)
	}
	return fmt.Sprintf("%d MiB", (b+1<<20-1)>>20)
}
