package rtcache

import (
	"encoding/binary"
	"flag"
	"net/netip"
	"testing"
	"time"

	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// fullTable is how many routes the test of a full table takes.
var fullTable = flag.Int("rtcache.routes", 100_000, "routes in TestKernelFullTable")

// fill gives the gateway's kernel many routes by two routers, in batches without acknowledgement.
func (w *world) fill(prefixes []netip.Prefix) {
	w.t.Helper()
	a, b := w.gateway.link("outa").Attrs().Index, w.gateway.link("outb").Attrs().Index
	w.gateway.do(func() error {
		s, err := nl.Subscribe(unix.NETLINK_ROUTE)
		if err != nil {
			return err
		}
		defer s.Close()
		var batch []byte
		for i, p := range prefixes {
			index, gw := a, []byte{192, 0, 2, 2}
			if i%2 == 1 {
				index, gw = b, []byte{198, 51, 100, 2}
			}
			body := rtm(unix.AF_INET, byte(p.Bits()), 0, 254, unix.RTN_UNICAST,
				rta(unix.RTA_DST, p.Addr().AsSlice()...), rta(unix.RTA_OIF, num(uint32(index))...), rta(unix.RTA_GATEWAY, gw...))
			batch = binary.NativeEndian.AppendUint32(batch, uint32(unix.NLMSG_HDRLEN+len(body)))
			batch = binary.NativeEndian.AppendUint16(batch, unix.RTM_NEWROUTE)
			batch = binary.NativeEndian.AppendUint16(batch, unix.NLM_F_REQUEST|unix.NLM_F_CREATE|unix.NLM_F_REPLACE)
			batch = append(batch, make([]byte, 8)...)
			batch = append(batch, body...)
			if len(batch) > 100_000 || i == len(prefixes)-1 {
				if err := unix.Sendto(s.GetFd(), batch, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
					return err
				}
				batch = batch[:0]
			}
		}
		return nil
	})
}

// A full table in the real kernel: how long New takes, how long a change takes to be followed beside it, and how long the
// loss of a router's port. 100,000 routes, so that it can run everywhere; -v tells the times.
func TestKernelFullTable(t *testing.T) {
	if testing.Short() {
		t.Skip("fills a kernel routing table: not with -short")
	}
	n := *fullTable
	w := newWorld(t)
	g := w.gateway
	prefixes := randomRoutes(n)
	begun := time.Now()
	w.fill(prefixes)
	t.Logf("the kernel took %d routes in %v", n, time.Since(begun).Round(time.Millisecond))
	begun = time.Now()
	w.start(Options{})
	t.Logf("New read them in %v", time.Since(begun).Round(time.Millisecond))
	if s := w.table.Stats(); s.Routes < n || s.PathSets > 20 || s.Hops > 8 {
		t.Errorf("%+v: want %d routes over few next hops", s, n)
	}
	// A route of outa that no more specific one covers.
	var slot [2]uint64
	dst := ""
	for i := 0; dst == ""; i += 2 {
		a := prefixes[i].Addr()
		if h, v := w.route(nil, a.String()); (v == OK || v == Unresolved) && h.Port() == portA {
			dst = a.String()
		} else if i > 1000 {
			t.Fatal("nothing leaves by outa")
		}
	}
	w.eventually("resolved", w.leaves(&slot, dst, portA))
	w.eventually("attached", w.leaves(&slot, dst, portA))
	g.must(g.nl.RouteAdd(g.route(dst+"/32", "198.51.100.2", 0)))
	w.eventually("a more specific route beside a full table", w.leaves(&slot, dst, portB))
	g.must(g.nl.RouteDel(g.route(dst+"/32", "198.51.100.2", 0)))
	w.eventually("withdrawn", w.leaves(&slot, dst, portA))
	g.must(g.nl.RouteAdd(g.route("0.0.0.0/0", "198.51.100.2", 0)))
	begun = time.Now()
	g.must(g.nl.LinkSetDown(g.link("outa")))
	t.Logf("the kernel dropped half of them in %v", time.Since(begun).Round(time.Millisecond))
	w.eventually("half of the routes lost with their port", w.leaves(&slot, dst, portB))
	if s := w.table.Stats(); s.Overruns > 0 {
		t.Errorf("%d overruns", s.Overruns)
	}
}
