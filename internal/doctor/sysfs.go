package doctor

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"pollux/internal/cpu"
)

// sysfs reads /sys/class/net of the network namespace that the process is in. The mounted /sys may show another one:
// that of whoever mounted it. So an unnamed mount of our own is made, and the mounted one is the fallback.
type sysfs struct {
	root string
	proc string // /proc
	fd   int
}

// openSysfs opens this machine's, or with a directory given what lies under sys and proc there: a machine made by a test.
func openSysfs(machine string) sysfs {
	s := sysfs{root: filepath.Join(machine, "/sys"), proc: filepath.Join(machine, "/proc"), fd: -1}
	if machine != "" {
		return s
	}
	ctx, err := unix.Fsopen("sysfs", unix.FSOPEN_CLOEXEC)
	if err != nil {
		return s
	}
	defer unix.Close(ctx)
	if unix.FsconfigCreate(ctx) != nil {
		return s
	}
	fd, err := unix.Fsmount(ctx, unix.FSMOUNT_CLOEXEC, unix.MOUNT_ATTR_RDONLY)
	if err != nil {
		return s
	}
	return sysfs{root: filepath.Join("/proc/self/fd", itoa(fd)), proc: "/proc", fd: fd}
}

func (s sysfs) close() {
	if s.fd >= 0 {
		unix.Close(s.fd)
	}
}

// net reads a file of a device, "" when it is not there.
func (s sysfs) net(device, file string) string {
	return s.read(filepath.Join("class/net", device, file))
}

// read reads a file, "" when it is not there.
func (s sysfs) read(file string) string {
	b, err := os.ReadFile(filepath.Join(s.root, file))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}

// node returns the NUMA node of a device, -1 when it has none.
func (s sysfs) node(device string) int {
	n, err := strconv.Atoi(s.net(device, "device/numa_node"))
	if err != nil {
		return -1
	}
	return n
}

// nodeCores returns the cores of a NUMA node, nil when it does not exist.
func (s sysfs) nodeCores(node int) []int {
	cores, err := cpu.ParseList(s.read("devices/system/node/node" + itoa(node) + "/cpulist"))
	if err != nil {
		return nil
	}
	return cores
}
