package rings

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// Mode is how a socket is bound. The first bind decides for every socket of a UMEM.
type Mode uint8

const (
	Copy     Mode = iota // the kernel copies each packet between its own memory and ours; works on every driver
	ZeroCopy             // the NIC reads and writes our memory; a matter of the driver
	Auto                 // ZeroCopy if every port can, else Copy; see ChooseMode
)

// String returns the mode's name in configuration and reports.
func (m Mode) String() string {
	switch m {
	case Copy:
		return "copy"
	case ZeroCopy:
		return "zerocopy"
	}
	return "auto"
}

// PortQueue names one queue of one netdev of the calling thread's network namespace.
type PortQueue struct {
	Name  string // for errors
	Index int    // ifindex
	Queue int
}

// String prints "eth1 queue 0".
func (q PortQueue) String() string { return fmt.Sprintf("%s queue %d", q.Name, q.Queue) }

// ChooseMode turns Auto into the one mode that all ports can be bound in, by binding each for a moment (nothing is
// received, no program is attached). notice says why it is Copy. Copy and ZeroCopy are returned as they are.
func ChooseMode(m Mode, ports []PortQueue) (mode Mode, notice string, err error) {
	if m != Auto {
		return m, "", nil
	}
	for _, q := range ports {
		err := probeZeroCopy(q)
		switch {
		case err == nil:
		case errors.Is(err, unix.EOPNOTSUPP), errors.Is(err, unix.EINVAL), errors.Is(err, unix.ENOTSUP):
			return Copy, fmt.Sprintf("%s: the driver has no zero-copy, all ports use copy mode", q.Name), nil
		default:
			return Copy, "", err
		}
	}
	return ZeroCopy, "", nil
}

// probeZeroCopy binds q in zero-copy mode with a UMEM of its own and closes again.
func probeZeroCopy(q PortQueue) error {
	u, err := NewUMEM(UMEMOptions{Frames: 64})
	if err != nil {
		return err
	}
	defer u.Close()
	s, err := OpenSocket(u, SocketOptions{Port: q, Mode: ZeroCopy, RingSize: 64})
	if err != nil {
		return err
	}
	return s.Close(NewPool(64))
}
