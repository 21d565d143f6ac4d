package rings

import (
	"errors"
	"fmt"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// The kernel answers a bind with a bare number. These functions turn it into one line: what, where, what to do.

func explainSocket(q PortQueue, err error) error {
	switch {
	case errors.Is(err, unix.EPERM), errors.Is(err, unix.EACCES):
		return fmt.Errorf("%s: no permission for an AF_XDP socket: %w: run as root or with CAP_NET_RAW and CAP_NET_ADMIN", q, err)
	case errors.Is(err, unix.EAFNOSUPPORT):
		return fmt.Errorf("%s: the kernel has no AF_XDP: %w: a kernel with CONFIG_XDP_SOCKETS is needed", q, err)
	}
	return fmt.Errorf("%s: AF_XDP socket: %w", q, err)
}

func explainRegister(q PortQueue, u *UMEM, err error) error {
	mib := u.frames * u.ChunkSize() >> 20
	switch {
	case errors.Is(err, unix.ENOBUFS), errors.Is(err, unix.ENOMEM):
		var l unix.Rlimit
		_ = unix.Getrlimit(unix.RLIMIT_MEMLOCK, &l)
		return fmt.Errorf("%s: the kernel can't lock the %d MiB of packet memory (limit %d KiB): %w: give CAP_IPC_LOCK, raise it (ulimit -l unlimited) or lower rings.frames",
			q, mib, l.Cur>>10, err)
	case errors.Is(err, unix.EPERM):
		return fmt.Errorf("%s: no permission to register packet memory: %w: run as root or with CAP_NET_RAW and CAP_IPC_LOCK", q, err)
	}
	return fmt.Errorf("%s: register %d MiB of packet memory: %w", q, mib, err)
}

func explainBind(q PortQueue, m Mode, err error) error {
	switch {
	case errors.Is(err, unix.ENODEV), errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENXIO):
		return fmt.Errorf("%s: there is no such interface in this network namespace: %w: see: ip link", q.Name, err)
	case errors.Is(err, unix.EBUSY):
		return fmt.Errorf("%s: already bound by another AF_XDP socket%s: %w: stop that program or choose another queue", q, programOn(q.Index), err)
	case errors.Is(err, unix.EINVAL):
		if n, ok := queueCount(q); ok && q.Queue >= n {
			return fmt.Errorf("%s: there is no such queue, the device has %d (0 to %d): %w: see: ethtool -l %s", q, n, n-1, err, q.Name)
		}
		return fmt.Errorf("%s: the driver refuses %s mode on this queue: %w: try mode: copy", q, m, err)
	case errors.Is(err, unix.EOPNOTSUPP):
		return fmt.Errorf("%s: the driver has no %s mode: %w: use mode: copy or auto", q, m, err)
	case errors.Is(err, unix.EPERM), errors.Is(err, unix.EACCES):
		return fmt.Errorf("%s: no permission to bind: %w: run as root or with CAP_NET_RAW and CAP_NET_ADMIN", q, err)
	case errors.Is(err, unix.ENOMEM), errors.Is(err, unix.ENOBUFS):
		return fmt.Errorf("%s: not enough memory to bind: %w: lower rings.size or rings.frames", q, err)
	case errors.Is(err, unix.ENETDOWN):
		return fmt.Errorf("%s: the interface is down: %w: ip link set %s up", q, err, q.Name)
	}
	return fmt.Errorf("%s: bind: %w", q, err)
}

// programOn names the XDP program attached to a netdev, as an insertion for a sentence; empty when there is none.
func programOn(ifindex int) string {
	link, err := netlink.LinkByIndex(ifindex)
	if err != nil || link.Attrs().Xdp == nil || link.Attrs().Xdp.ProgId == 0 {
		return ""
	}
	id := link.Attrs().Xdp.ProgId
	if prog, err := ebpf.NewProgramFromID(ebpf.ProgramID(id)); err == nil {
		defer prog.Close()
		if info, err := prog.Info(); err == nil && info.Name != "" {
			return fmt.Sprintf(" (XDP program %d, %q)", id, info.Name)
		}
	}
	return fmt.Sprintf(" (XDP program %d)", id)
}

// queueCount returns how many queues a netdev uses now.
func queueCount(q PortQueue) (int, bool) {
	if n, ok := ethtoolChannels(q.Name); ok {
		return n, true
	}
	link, err := netlink.LinkByIndex(q.Index)
	if err != nil {
		return 0, false
	}
	return link.Attrs().NumRxQueues, link.Attrs().NumRxQueues > 0
}
