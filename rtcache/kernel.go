package rtcache

import (
	"errors"
	"fmt"
	"net/netip"
	"os"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// source is where events come from: the kernel, or a test.
type source interface {
	asker
	// dump gives the whole state: links, addresses, neighbours, routes, rules, in this order.
	dump(sink) error
	// read gives what has happened since, without waiting; more: there may be more. errOverrun: messages were lost.
	read(sink) (more bool, err error)
	// forget throws away what is queued. A dump must follow.
	forget()
	// wait returns when there is something to read, at a wake-up, or after d.
	wait(d time.Duration)
	close()
}

var errOverrun = errors.New("rtcache: the kernel lost routing messages for us")

// kernel is the netlink source. It belongs to the network namespace of the thread that opened it.
type kernel struct {
	events   *nl.NetlinkSocket
	dumps    *nl.SocketHandle
	ask      *netlink.Handle // neighbour requests
	wakeup   *os.File        // eventfd, Table.wake writes it
	wakeupFD int32
	buffer   []byte
	plain    bool // the kernel knows no managed neighbours
}

// groups are what we listen to, on one socket so that the kernel's order is kept.
var groups = []uint{
	unix.RTNLGRP_LINK, unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV6_IFADDR, unix.RTNLGRP_NEIGH,
	unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV6_ROUTE, unix.RTNLGRP_IPV4_RULE, unix.RTNLGRP_IPV6_RULE, unix.RTNLGRP_NEXTHOP,
}

const (
	receiveDefault = 16 << 20 // bytes of receive buffer: a full table arriving while our goroutine waits for a core
	messageMax     = 64 << 10
	readsPerBatch  = 256 // receives before what was read is published
	dumpTries      = 3   // a dump that was disturbed so often is taken: the events that disturbed it follow
)

// openKernel listens from now on; the first dump comes after.
func openKernel(receive int) (_ *kernel, err error) {
	k := &kernel{buffer: make([]byte, messageMax)}
	defer func() {
		if err != nil {
			k.close()
			err = fmt.Errorf("rtcache: open routing sockets: %w", err)
		}
	}()
	if k.events, err = nl.Subscribe(unix.NETLINK_ROUTE, groups...); err != nil {
		return nil, err
	}
	if receive == 0 {
		receive = receiveDefault
	}
	if err = k.events.SetReceiveBufferSize(receive, true); err != nil { // needs NET_ADMIN
		return nil, err
	}
	s, err := nl.Subscribe(unix.NETLINK_ROUTE)
	if err != nil {
		return nil, err
	}
	k.dumps = &nl.SocketHandle{Socket: s}
	if k.ask, err = netlink.NewHandle(unix.NETLINK_ROUTE); err != nil {
		return nil, err
	}
	if err = k.ask.SetSocketTimeout(2 * time.Second); err != nil {
		return nil, err
	}
	fd, err := unix.Eventfd(0, unix.EFD_NONBLOCK|unix.EFD_CLOEXEC)
	if err != nil {
		return nil, err
	}
	k.wakeup, k.wakeupFD = os.NewFile(uintptr(fd), "eventfd"), int32(fd)
	return k, nil
}

func (k *kernel) close() {
	if k.events != nil {
		k.events.Close()
	}
	if k.dumps != nil {
		k.dumps.Close()
	}
	if k.ask != nil {
		k.ask.Close()
	}
	if k.wakeup != nil {
		k.wakeup.Close()
	}
}

func (k *kernel) dump(s sink) error {
	link := nl.NewIfInfomsg(unix.AF_UNSPEC)
	for _, d := range []struct {
		what       string
		ask, reply uint16
		header     nl.NetlinkRequestData
	}{
		{"links", unix.RTM_GETLINK, unix.RTM_NEWLINK, link},
		{"addresses", unix.RTM_GETADDR, unix.RTM_NEWADDR, link},
		{"IPv4 neighbours", unix.RTM_GETNEIGH, unix.RTM_NEWNEIGH, &netlink.Ndmsg{Family: unix.AF_INET}},
		{"IPv6 neighbours", unix.RTM_GETNEIGH, unix.RTM_NEWNEIGH, &netlink.Ndmsg{Family: unix.AF_INET6}},
		{"IPv4 routes", unix.RTM_GETROUTE, unix.RTM_NEWROUTE, &nl.RtMsg{RtMsg: unix.RtMsg{Family: unix.AF_INET}}},
		{"IPv6 routes", unix.RTM_GETROUTE, unix.RTM_NEWROUTE, &nl.RtMsg{RtMsg: unix.RtMsg{Family: unix.AF_INET6}}},
		{"IPv4 rules", unix.RTM_GETRULE, unix.RTM_NEWRULE, nl.NewIfInfomsg(unix.AF_INET)},
		{"IPv6 rules", unix.RTM_GETRULE, unix.RTM_NEWRULE, nl.NewIfInfomsg(unix.AF_INET6)},
	} {
		for try := 1; ; try++ {
			req := nl.NewNetlinkRequest(int(d.ask), unix.NLM_F_DUMP)
			req.Sockets = map[int]*nl.SocketHandle{unix.NETLINK_ROUTE: k.dumps}
			req.AddData(d.header)
			err := req.ExecuteIter(unix.NETLINK_ROUTE, d.reply, func(m []byte) bool {
				decode(d.reply, 0, m, true, s)
				return true
			})
			if errors.Is(err, nl.ErrDumpInterrupted) && try < dumpTries {
				continue
			}
			if err != nil && !errors.Is(err, nl.ErrDumpInterrupted) && !errors.Is(err, unix.EOPNOTSUPP) && !errors.Is(err, unix.EAFNOSUPPORT) {
				return fmt.Errorf("rtcache: read the kernel's %s: %w", d.what, err)
			}
			break
		}
	}
	return nil
}

// receive gets one datagram; n 0: nothing there.
func (k *kernel) receive() (n int, err error) {
	for {
		n, from, err := unix.Recvfrom(k.events.GetFd(), k.buffer, unix.MSG_DONTWAIT|unix.MSG_TRUNC)
		switch {
		case err == unix.EINTR:
			continue
		case err == unix.EAGAIN:
			return 0, nil
		case err == unix.ENOBUFS || n > len(k.buffer):
			return 0, errOverrun
		case err != nil:
			return 0, fmt.Errorf("rtcache: receive routing messages: %w", err)
		}
		if a, ok := from.(*unix.SockaddrNetlink); ok && a.Pid != 0 {
			continue // not from the kernel
		}
		return n, nil
	}
}

func (k *kernel) read(s sink) (more bool, err error) {
	for range readsPerBatch {
		n, err := k.receive()
		if n == 0 {
			return false, err
		}
		for b := k.buffer[:n]; len(b) >= unix.NLMSG_HDRLEN; {
			size := int(native.Uint32(b))
			if size < unix.NLMSG_HDRLEN || size > len(b) {
				break
			}
			decode(native.Uint16(b[4:]), native.Uint16(b[6:]), b[unix.NLMSG_HDRLEN:size], false, s)
			b = b[min((size+3)&^3, len(b)):]
		}
	}
	return true, nil
}

// forget drains the socket; losing more meanwhile does not matter.
func (k *kernel) forget() {
	for range 1 << 20 {
		if n, err := k.receive(); n == 0 && err != errOverrun {
			return
		}
	}
}

func (k *kernel) wait(d time.Duration) {
	fds := [2]unix.PollFd{
		{Fd: int32(k.events.GetFd()), Events: unix.POLLIN},
		{Fd: k.wakeupFD, Events: unix.POLLIN},
	}
	ms := int((d + time.Millisecond - 1) / time.Millisecond)
	unix.Poll(fds[:], max(ms, 0)) // EINTR: an early return does no harm
	if fds[1].Revents != 0 {
		var b [8]byte
		unix.Read(int(k.wakeupFD), b[:])
	}
}

// resolve asks the kernel to look for a neighbour now. An entry that is there keeps its state.
func (k *kernel) resolve(index int, addr netip.Addr, managed bool) error {
	n := netlink.Neigh{
		LinkIndex: index, Family: netlink.FAMILY_V4, IP: addr.AsSlice(), State: unix.NUD_NONE, Flags: unix.NTF_USE,
	}
	if addr.Is6() {
		n.Family = netlink.FAMILY_V6
	}
	if managed && !k.plain {
		n.FlagsExt = netlink.NTF_EXT_MANAGED
		err := k.ask.NeighSet(&n)
		if !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.EOPNOTSUPP) {
			return err
		}
		k.plain, n.FlagsExt = true, 0 // before Linux 5.16
	}
	return k.ask.NeighSet(&n)
}
