package doctor

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"pollux/internal/cpu"
	"pollux/internal/offheap"
)

// The oldest kernel that pollux is built for, Debian 12's: BPF links for XDP, live frames in BPF_PROG_TEST_RUN and socket
// look-ups from XDP are all there.
const kernelMajor, kernelMinor = 6, 1

func kernel(o Options) Result {
	release := o.Release
	if release == "" {
		var u unix.Utsname
		if err := unix.Uname(&u); err != nil {
			return fail("kernel", "", "can't tell the kernel's release: %v", err)
		}
		release = unix.ByteSliceToString(u.Release[:])
	}
	var major, minor int
	if n, _ := fmt.Sscanf(release, "%d.%d", &major, &minor); n != 2 {
		return warn("kernel", "", "can't read the kernel release %q; %d.%d or later is needed", release, kernelMajor, kernelMinor)
	}
	if major < kernelMajor || major == kernelMajor && minor < kernelMinor {
		return fail("kernel", "boot Linux 6.1 or later (Debian 12 has it)", "kernel %s is too old: %d.%d or later is needed", release, kernelMajor, kernelMinor)
	}
	return ok("kernel", "%s", release)
}

// capability is one that pollux needs. Any of the alternatives will do.
type capability struct {
	name  string
	bit   int
	other int // a capability that implies it, 0: none
	why   string
}

var capabilities = []capability{
	{"NET_ADMIN", unix.CAP_NET_ADMIN, 0, "attaches XDP, reads routes"},
	{"NET_RAW", unix.CAP_NET_RAW, 0, "opens AF_XDP sockets"},
	{"BPF", unix.CAP_BPF, unix.CAP_SYS_ADMIN, "loads the XDP program and its maps"},
	{"PERFMON", unix.CAP_PERFMON, unix.CAP_SYS_ADMIN, "lets the verifier pass the XDP program"},
}

func effective() (uint64, error) {
	hdr := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	var data [2]unix.CapUserData
	if err := unix.Capget(&hdr, &data[0]); err != nil {
		return 0, err
	}
	return uint64(data[0].Effective) | uint64(data[1].Effective)<<32, nil
}

func has(set uint64, bit int) bool { return set>>bit&1 == 1 }

func privileges(o Options) []Result {
	set, err := effective()
	if err != nil {
		return []Result{fail("privileges", "", "can't read the capabilities: %v", err)}
	}
	if userNamespace() {
		return []Result{fail("privileges", "run it in the initial user namespace (no rootless container)",
			"inside a user namespace: the kernel allows no XDP program there")}
	}
	need := capabilities
	if o.RTPriority > 0 {
		need = append(slices.Clone(need), capability{"SYS_NICE", unix.CAP_SYS_NICE, 0, "sets the workers' real-time priority"})
	}
	var missing, files []string
	for _, c := range need {
		if !has(set, c.bit) && (c.other == 0 || !has(set, c.other)) {
			missing = append(missing, fmt.Sprintf("CAP_%s (%s)", c.name, c.why))
		}
		files = append(files, "cap_"+strings.ToLower(c.name))
	}
	if len(missing) == 0 {
		return []Result{ok("privileges", "all capabilities that are needed")}
	}
	who := "not permitted"
	if os.Geteuid() != 0 {
		who = "not root"
	}
	return []Result{fail("privileges", fmt.Sprintf("run it as root, or: setcap %s,cap_ipc_lock+ep POLLUX", strings.Join(files, ",")),
		"%s: missing %s", who, strings.Join(missing, ", "))}
}

// userNamespace reports whether the process is in a user namespace other than the first, whose map is the identity.
func userNamespace() bool {
	b, err := os.ReadFile("/proc/self/uid_map")
	return err == nil && !slices.Equal(strings.Fields(string(b)), []string{"0", "0", "4294967295"})
}

func cores(o Options) Result {
	allowed, err := cpu.Allowed()
	if err != nil {
		return warn("cores", "", "%v", err)
	}
	used := o.Cores
	if len(used) == 0 {
		used = allowed[len(allowed)-1:]
	}
	if o.Oversubscribe {
		if len(used) > len(allowed) {
			return warn("cores", "for tests only: a core carries one worker", "%d workers share %d cores (%s)", len(used), len(allowed), list(allowed))
		}
		return ok("cores", "workers on %s as far as allowed (%s); they may share cores", list(used), list(allowed))
	}
	for _, c := range used {
		switch {
		case slices.Contains(allowed, c):
		case len(used) > len(allowed):
			return fail("cores", "name fewer cores, start it with a wider mask (taskset, AllowedCPUs), or for tests --oversubscribe",
				"%d workers need %d cores and one for everything else, %d in all, but this process may use %d (%s)",
				len(used), len(used), len(used)+1, len(allowed), list(allowed))
		default:
			return fail("cores", "choose among those, or start it with a wider mask (taskset, AllowedCPUs)", "core %d may not be used: this process is allowed %s", c, list(allowed))
		}
	}
	if len(allowed) < len(used)+1 {
		return warn("cores", "give it one core more than it has workers", "%d workers on %d allowed cores: nothing is left for the control side", len(used), len(allowed))
	}
	return ok("cores", "workers on %s, allowed %s", list(used), list(allowed))
}

// list prints cores or queues as the kernel does: 0-3,8.
func list(n []int) string {
	var parts []string
	for i := 0; i < len(n); {
		j := i
		for j+1 < len(n) && n[j+1] == n[j]+1 {
			j++
		}
		if j == i {
			parts = append(parts, strconv.Itoa(n[i]))
		} else {
			parts = append(parts, fmt.Sprintf("%d-%d", n[i], n[j]))
		}
		i = j + 1
	}
	return strings.Join(parts, ",")
}

func memory(o Options) Result {
	need := o.UMEMBytes + o.TableBytes
	free, found := offheap.Available()
	if !found {
		return warn("memory", "", "can't read MemAvailable in /proc/meminfo")
	}
	if need > free {
		return fail("memory", "lower limits.links, rings.size or rings.frames, or add memory",
			"frames %s + tables %s = %s, but %s is available", mib(o.UMEMBytes), mib(o.TableBytes), mib(need), mib(free))
	}
	return ok("memory", "%s needed, %s available", mib(need), mib(free))
}

// lockedMemory: an AF_XDP socket's frames count against RLIMIT_MEMLOCK unless the process has CAP_IPC_LOCK.
func lockedMemory(o Options) Result {
	set, err := effective()
	if err == nil && has(set, unix.CAP_IPC_LOCK) {
		return ok("locked memory", "unlimited (CAP_IPC_LOCK)")
	}
	var lim unix.Rlimit
	if err := unix.Getrlimit(unix.RLIMIT_MEMLOCK, &lim); err != nil {
		return warn("locked memory", "", "can't read RLIMIT_MEMLOCK: %v", err)
	}
	if lim.Cur < o.UMEMBytes {
		return fail("locked memory", "ulimit -l unlimited (LimitMEMLOCK=infinity in a systemd unit), or give CAP_IPC_LOCK, or lower rings.size",
			"RLIMIT_MEMLOCK is %s, the frames need %s, and CAP_IPC_LOCK is missing", mib(lim.Cur), mib(o.UMEMBytes))
	}
	return ok("locked memory", "RLIMIT_MEMLOCK holds the frames (%s)", mib(o.UMEMBytes))
}

func hugePages(o Options) Result {
	const size = 2 << 20
	want := (o.UMEMBytes + o.TableBytes + size - 1) / size
	var free uint64
	paths, _ := filepath.Glob("/sys/kernel/mm/hugepages/hugepages-2048kB/free_hugepages")
	for _, p := range paths {
		if b, err := os.ReadFile(p); err == nil {
			free, _ = strconv.ParseUint(strings.TrimSpace(string(b)), 10, 64)
		}
	}
	if free < want {
		return warn("huge pages", fmt.Sprintf("sysctl -w vm.nr_hugepages=%d", want), "%d free pages of 2 MiB, %d would hold frames and tables: small pages are used for the rest", free, want)
	}
	return ok("huge pages", "%d free pages of 2 MiB", free)
}

func realTime(o Options) Result {
	switch {
	case o.RTPriority == 0:
		return ok("real-time throttling", "not concerned (workers run without real-time priority)")
	case cpu.Throttled() && !o.Adaptive:
		return warn("real-time throttling", "sysctl -w kernel.sched_rt_runtime_us=-1",
			"a spinning FIFO worker loses its core for part of each second")
	case cpu.Throttled():
		return ok("real-time throttling", "on; idle workers sleep, so it strikes only under full load")
	}
	return ok("real-time throttling", "off")
}

func jit() Result {
	b, err := os.ReadFile("/proc/sys/net/core/bpf_jit_enable")
	if err == nil && strings.TrimSpace(string(b)) == "0" {
		return warn("BPF JIT", "sysctl -w net.core.bpf_jit_enable=1", "off: the XDP program is interpreted")
	}
	return ok("BPF JIT", "on")
}
