package pmd

import (
	"log/slog"
	"net"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"pollux/internal/packet"
	"pollux/lport"
)

// listenersEvery is how often the kernel's sockets are looked at. In between a new listener is safe from XDP anyway, which
// asks the kernel for a socket; marking its port keeps the translator from handing it out.
const listenersEvery = time.Second

// watchListeners marks the ports that the gateway's own sockets use on alias addresses that the kernel has.
func (g *Gateway) watchListeners() {
	marked := g.kernelMarks
	warned := false
	for {
		now, err := g.kernelPorts()
		if err != nil && !warned {
			warned = true
			slog.Warn("the kernel's sockets can't be listed: ports of the gateway's own services may be handed out", "error", err)
		}
		if err == nil {
			for m := range marked {
				if !now[m] {
					g.owners.ClearKernel(m.alias, m.row, m.port)
				}
			}
			for m := range now {
				if !marked[m] {
					g.owners.SetKernel(m.alias, m.row, m.port)
				}
			}
			marked = now
		}
		select {
		case <-g.quit:
			return
		case <-time.After(listenersEvery):
		}
	}
}

// kernelPorts lists the local ports of all TCP and UDP sockets that are bound to an alias address of the kernel's, or to
// any address.
func (g *Gateway) kernelPorts() (map[mark]bool, error) {
	g.world.mu.Lock()
	own := g.world.current.Kernel
	g.world.mu.Unlock()
	ports := map[mark]bool{}
	if len(own) == 0 {
		return ports, nil
	}
	for _, list := range []struct {
		row  lport.Row
		dump func(uint8) ([]*netlink.Socket, error)
	}{{lport.RowTCP, netlink.SocketDiagTCP}, {lport.RowUDP, netlink.SocketDiagUDP}} {
		for _, family := range []uint8{unix.AF_INET, unix.AF_INET6} {
			sockets, err := list.dump(family)
			if err != nil {
				return nil, err
			}
			for _, s := range sockets {
				addMarks(ports, own, list.row, s.ID.Source, s.ID.SourcePort)
			}
		}
	}
	return ports, nil
}

func addMarks(ports map[mark]bool, own []packet.Addr, row lport.Row, bound net.IP, port uint16) {
	if port == 0 {
		return
	}
	for _, a := range own {
		if bound.IsUnspecified() || bound.Equal(net.IP(a.Netip().AsSlice())) {
			ports[mark{a, row, port}] = true
		}
	}
}
