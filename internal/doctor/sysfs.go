package doctor

import (
	"os"
	"path/filepath"
	"strings"

	"golang.org/x/sys/unix"
)

// sysfs reads /sys/class/net of the network namespace that the process is in. The mounted /sys may show another one:
// that of whoever mounted it. So an unnamed mount of our own is made, and the mounted one is the fallback.
type sysfs struct {
	root string
	fd   int
}

func openSysfs() sysfs {
	s := sysfs{root: "/sys", fd: -1}
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
	return sysfs{root: filepath.Join("/proc/self/fd", itoa(fd)), fd: fd}
}

func (s sysfs) close() {
	if s.fd >= 0 {
		unix.Close(s.fd)
	}
}

// net reads a file of a device, "" when it is not there.
func (s sysfs) net(device, file string) string {
	b, err := os.ReadFile(filepath.Join(s.root, "class/net", device, file))
	if err != nil {
		return ""
	}
	return strings.TrimSpace(string(b))
}
