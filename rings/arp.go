package rings

// XDP can answer an ARP request by sending the frame back out of the port, but not everywhere does it arrive: a veth
// hands such a frame to its peer only if the peer has a NAPI of its own (an XDP program or GRO there), else the frame is
// lost without a trace. There the request goes up to the worker, which answers it in the same way.

const (
	arpFrameBytes = 14 + 28
	arpRequestOp  = 1
	arpReplyOp    = 2
)

// CanSendBack reports whether a packet that the XDP program sends back (XDP_TX) can be relied on to leave the netdev.
func CanSendBack(name string) bool { return driverName(name) != "veth" }

// AnswerARP turns an ARP request for an IPv4 address into the answer that mac has it, in place, ready to leave by the
// port it came in on. It returns false, and leaves the frame alone, when that is no request, or one in which the sender
// announces the address as its own. The XDP program hands up only requests for pool addresses, but a frame of any origin
// is safe.
func AnswerARP(frame []byte, mac *[6]byte) bool {
	if len(frame) < arpFrameBytes {
		return false
	}
	f := (*[arpFrameBytes]byte)(frame)
	a := (*[28]byte)(f[14:])
	if f[12] != 0x08 || f[13] != 0x06 ||
		[8]byte(a[:8]) != [8]byte{0, 1, 8, 0, 6, 4, 0, arpRequestOp} || [4]byte(a[14:18]) == [4]byte(a[24:28]) {
		return false
	}
	asker, askerMAC, wanted := [4]byte(a[14:18]), [6]byte(a[8:14]), [4]byte(a[24:28])
	copy(f[0:6], askerMAC[:])
	copy(f[6:12], mac[:])
	a[7] = arpReplyOp
	copy(a[8:14], mac[:])
	copy(a[14:18], wanted[:])
	copy(a[18:24], askerMAC[:])
	copy(a[24:28], asker[:])
	return true
}
