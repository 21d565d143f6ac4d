package lab

import (
	"errors"
	"net/netip"
	"os"
	"strings"

	"golang.org/x/sys/unix"
)

// Cable lays one more veth pair between two namespaces, gives both ends an address of one net, and brings them up.
func Cable(near *Namespace, nearDevice string, nearAddr netip.Prefix, far *Namespace, farDevice string, farAddr netip.Addr) error {
	return join(cable{near, nearDevice}, cable{far, farDevice}, nearAddr, farAddr, Options{MTU: 1500, Queues: 1})
}

// Send sends a whole Ethernet frame by a device of the namespace.
func (n *Namespace) Send(device string, frame []byte) error {
	link, err := n.nl.LinkByName(device)
	if err != nil {
		return err
	}
	return n.Do(func() error {
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		return errors.Join(unix.Sendto(fd, frame, 0, &unix.SockaddrLinklayer{Ifindex: link.Attrs().Index}), unix.Close(fd))
	})
}

// IP runs `ip` with the words of a command inside the namespace.
func (n *Namespace) IP(command string) error {
	p, err := n.Start("ip", strings.Fields(command)...)
	if err != nil {
		return err
	}
	<-p.Done()
	if p.err != nil {
		return errors.Join(p.err, errors.New(strings.TrimSpace(p.Output())))
	}
	return nil
}

// IPBatch runs the lines of a batch by one `ip` inside the namespace.
func (n *Namespace) IPBatch(lines string) error {
	f, err := os.CreateTemp("", dirPrefix+"*.batch")
	if err != nil {
		return err
	}
	defer os.Remove(f.Name())
	_, err = f.WriteString(lines)
	if err = errors.Join(err, f.Close()); err != nil {
		return err
	}
	return n.IP("-batch " + f.Name())
}
