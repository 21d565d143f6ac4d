package lab

import (
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	netlab "pollux/internal/lab"
)

// fillBatch is how many routes go to the kernel in one message to the socket. Only the last is acknowledged, but every one that
// is refused is answered.
const fillBatch = 256

// fill gives a namespace's kernel many routes by one router.
func fill(n *netlab.Namespace, device string, prefixes []netip.Prefix, by netip.Addr) error {
	link, err := n.Netlink().LinkByName(device)
	if err != nil {
		return fmt.Errorf("device %s in %s: %w", device, n.Name, err)
	}
	out := nl.NewRtAttr(unix.RTA_OIF, nl.Uint32Attr(uint32(link.Attrs().Index)))
	gateway := nl.NewRtAttr(unix.RTA_GATEWAY, by.AsSlice())
	return n.Do(func() error {
		s, err := nl.Subscribe(unix.NETLINK_ROUTE)
		if err != nil {
			return err
		}
		defer s.Close()
		var batch []byte
		for i, p := range prefixes {
			last := i == len(prefixes)-1 || (i+1)%fillBatch == 0
			flags := unix.NLM_F_CREATE | unix.NLM_F_EXCL
			if last {
				flags |= unix.NLM_F_ACK
			}
			r := nl.NewNetlinkRequest(unix.RTM_NEWROUTE, flags)
			m := nl.NewRtMsg()
			m.Family, m.Dst_len = unix.AF_INET, uint8(p.Bits())
			r.AddData(m)
			r.AddData(nl.NewRtAttr(unix.RTA_DST, p.Addr().AsSlice()))
			r.AddData(out)
			r.AddData(gateway)
			batch = append(batch, r.Serialize()...)
			if !last {
				continue
			}
			if err := unix.Sendto(s.GetFd(), batch, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
				return fmt.Errorf("give the kernel of %s its routes: %w", n.Name, err)
			}
			if err := acknowledged(s, r.Seq); err != nil {
				return fmt.Errorf("a route of those up to %v in %s: %w", p, n.Name, err)
			}
			batch = batch[:0]
		}
		return nil
	})
}

// acknowledged waits for the answer to the last request of a batch; an answer to an earlier one is a refusal.
func acknowledged(s *nl.NetlinkSocket, seq uint32) error {
	for {
		list, _, err := s.Receive()
		if err != nil {
			return err
		}
		for _, m := range list {
			if m.Header.Type != unix.NLMSG_ERROR || len(m.Data) < 4 {
				continue
			}
			if code := int32(nl.NativeEndian().Uint32(m.Data)); code != 0 {
				return unix.Errno(-code)
			}
			if m.Header.Seq == seq {
				return nil
			}
		}
	}
}
