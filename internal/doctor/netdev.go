package doctor

import (
	"encoding/binary"
	"syscall"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// What the kernel's "netdev" generic netlink family tells (linux/netdev.h; XDP features since 6.3, queues and NAPI
// since 6.8). Commands and attributes have fixed numbers.
const (
	netdevDevGet   = 1
	netdevQueueGet = 10
	netdevNAPIGet  = 11

	devIfindex, devFeatures, devZCSegments      = 1, 3, 4
	queueID, queueIfindex, queueType, queueNAPI = 1, 2, 3, 4
	napiIfindex, napiID, napiIRQ, napiPID       = 1, 2, 3, 4
	queueRX                                     = 0
)

// Bits of the XDP features.
const (
	xdpBasic    = 1 << 0
	xdpRedirect = 1 << 1
	xdpZeroCopy = 1 << 3
)

// genlHeader is struct genlmsghdr: command, version and two reserved bytes, which the kernel wants to be zero
// (nl.Genlmsg sends whatever lies behind its two).
type genlHeader [nl.SizeofGenlmsg]byte

func (h genlHeader) Len() int          { return len(h) }
func (h genlHeader) Serialize() []byte { return h[:] }

// netdevGet sends one request to the family and returns the attributes of each answer.
func netdevGet(cmd uint8, flags int, attrs ...*nl.RtAttr) ([]map[uint16]syscall.NetlinkRouteAttr, error) {
	family, err := netlink.GenlFamilyGet("netdev")
	if err != nil {
		return nil, err
	}
	req := nl.NewNetlinkRequest(int(family.ID), flags)
	req.AddData(genlHeader{cmd, 1})
	for _, a := range attrs {
		req.AddData(a)
	}
	msgs, err := req.Execute(unix.NETLINK_GENERIC, 0)
	if err != nil {
		return nil, err
	}
	var list []map[uint16]syscall.NetlinkRouteAttr
	for _, m := range msgs {
		if len(m) < nl.SizeofGenlmsg {
			continue
		}
		a, err := nl.ParseRouteAttrAsMap(m[nl.SizeofGenlmsg:])
		if err != nil {
			return nil, err
		}
		list = append(list, a)
	}
	return list, nil
}

// number reads an unsigned attribute of any width, 0 when it is absent.
func number(m map[uint16]syscall.NetlinkRouteAttr, attr uint16) uint64 {
	switch b := m[attr].Value; len(b) {
	case 4:
		return uint64(binary.NativeEndian.Uint32(b))
	case 8:
		return binary.NativeEndian.Uint64(b)
	}
	return 0
}

// xdpFeatures returns a device's XDP features; known is false when the kernel can't tell.
func xdpFeatures(ifindex int) (features uint64, known bool) {
	a, err := netdevGet(netdevDevGet, 0, nl.NewRtAttr(devIfindex, nl.Uint32Attr(uint32(ifindex))))
	if err != nil || len(a) != 1 {
		return 0, false
	}
	_, known = a[0][devFeatures]
	return number(a[0], devFeatures), known
}

// napi is where a receive queue's NAPI runs: a thread's pid if it is threaded, else an interrupt, else neither is known.
type napi struct{ pid, irq int }

// napiOf returns the NAPI of one receive queue; known is false when the kernel or the driver can't tell.
func napiOf(ifindex, queue int) (n napi, known bool) {
	index := nl.NewRtAttr(queueIfindex, nl.Uint32Attr(uint32(ifindex)))
	qs, err := netdevGet(netdevQueueGet, 0, index,
		nl.NewRtAttr(queueType, nl.Uint32Attr(queueRX)), nl.NewRtAttr(queueID, nl.Uint32Attr(uint32(queue))))
	if err != nil || len(qs) != 1 {
		return n, false
	}
	id := number(qs[0], queueNAPI)
	if id == 0 {
		return n, false
	}
	ns, err := netdevGet(netdevNAPIGet, 0, nl.NewRtAttr(napiID, nl.Uint32Attr(uint32(id))))
	if err != nil || len(ns) != 1 {
		return n, false
	}
	return napi{pid: int(number(ns[0], napiPID)), irq: int(number(ns[0], napiIRQ))}, true
}
