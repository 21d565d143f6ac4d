package pmd

import (
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/vishvananda/netlink"

	"pollux/internal/clock"
	"pollux/rings"
	"pollux/rtcache"
)

// A port outlives its netdev: what is deleted and made again under the same name (a VPN that restarts, a container) is taken into
// use without a restart, and without a pause of the other ports.
//
//	deleted     every worker takes its frames out of the socket, which from then on receives and takes nothing
//	made again  rtcache leads routes to it, whose packets wait; sockets are bound, every worker takes its own, XDP is attached
//	Attach      the next hops come up, what waits is sent

// rebindAgain is how long to wait before another try to bind a port that could not be bound.
const rebindAgain = time.Second

// rebind brings all ports in line with the netdevs that there are. bound: some port got a new one; again: some could not.
func (g *Gateway) rebind() (bound, again bool, err error) {
	for i, p := range g.table.Ports() {
		if !p.Gone && !p.Waiting {
			continue
		}
		if g.ports[i].ifindex != 0 {
			if err := g.abandon(i); err != nil {
				return bound, again, err
			}
		}
		if p.Gone {
			continue
		}
		err := g.bind(i, p)
		switch {
		case errors.Is(err, ErrEnded):
			return bound, again, err
		case err != nil:
			if text := err.Error(); text != g.ports[i].refused {
				g.ports[i].refused = text
				slog.Warn("the interface was made again and can't be used yet: what is routed by it is dropped after five seconds", "port", p.Name, "error", err)
			}
			again = true
			continue
		}
		g.ports[i].refused = ""
		bound = true
		slog.Info("the interface was made again and is in use", "port", p.Name, "ifindex", p.IfIndex)
	}
	return bound, again, nil
}

// abandon takes a port's sockets out of use after its netdev was deleted.
func (g *Gateway) abandon(i int) error {
	p := g.ports[i]
	errs := []error{p.program.Detach()}
	var dead []*rings.Socket
	g.life.Lock()
	p.ifindex = 0
	for _, w := range g.workers {
		err := w.loop.Do(func(clock.Tick) bool {
			dead = append(dead, w.sockets[i].Abandon(w.pool))
			w.loop.refresh()
			return true
		})
		errs = append(errs, err)
	}
	g.life.Unlock()
	nobody := rings.NewPool(0) // the dead have no frames
	for _, s := range dead {
		if s != nil {
			errs = append(errs, s.Close(nobody))
		}
	}
	return errors.Join(errs...)
}

// bind takes a new netdev into use as port i.
func (g *Gateway) bind(i int, to rtcache.Port) (err error) {
	p := g.ports[i]
	if err := g.fits(to); err != nil {
		return err
	}
	select {
	case <-g.quit:
		return ErrEnded
	default:
	}
	nobody := rings.NewPool(0)
	fresh := make([]*rings.Socket, 0, len(g.workers))
	installed := false
	defer func() {
		if err == nil {
			return
		}
		if installed {
			err = errors.Join(err, g.abandon(i))
			return
		}
		for _, s := range fresh {
			err = errors.Join(err, s.Close(nobody))
		}
	}()
	for _, w := range g.workers {
		s, err := rings.OpenSocket(g.umem, rings.SocketOptions{Port: rings.PortQueue{Name: to.Name, Index: to.IfIndex, Queue: w.queue}, Mode: g.mode, RingSize: g.o.RingSize})
		if err != nil {
			return err
		}
		fresh = append(fresh, s)
		note(s.Notice())
		if err := p.program.SetSocket(w.queue, s.FD()); err != nil {
			return err
		}
	}
	byWorker := !rings.CanSendBack(to.Name)
	if err := errors.Join(p.program.SetMAC(to.MAC[:]), p.program.SetARPByWorker(byWorker)); err != nil {
		return err
	}
	if err := g.install(i, to, fresh, byWorker); err != nil {
		return err
	}
	installed = true
	notice, err := p.program.Attach(to.Name, to.IfIndex)
	if err != nil {
		return err
	}
	note(notice)
	g.life.Lock()
	p.generic = notice != ""
	g.life.Unlock()
	return g.table.Attach(uint16(i), to.IfIndex)
}

// fits checks a netdev as Start does, and that its packets fit the frames that there are.
func (g *Gateway) fits(to rtcache.Port) error {
	dev, err := netlink.LinkByIndex(to.IfIndex)
	if err != nil {
		return fmt.Errorf("%s: it is gone again: %w", to.Name, err)
	}
	mtu := mtuMax
	if g.umem.ChunkSize() == chunkSmall {
		mtu = mtuSmall
	}
	switch a := dev.Attrs(); {
	case a.EncapType != "ether":
		return fmt.Errorf("%s: the device has no Ethernet header (%s): make an Ethernet device", to.Name, a.EncapType)
	case a.MTU > mtu:
		return fmt.Errorf("%s: an MTU of %d is too large for the packet buffers there are: ip link set %s mtu %d, or restart pollux", to.Name, a.MTU, to.Name, mtu)
	}
	return nil
}

// install gives each worker its socket. When it returns every fill ring is full.
func (g *Gateway) install(i int, to rtcache.Port, fresh []*rings.Socket, byWorker bool) error {
	g.life.Lock()
	defer g.life.Unlock()
	for k, w := range g.workers {
		if err := w.loop.Do(func(clock.Tick) bool {
			w.sockets[i].Replace(fresh[k])
			w.worker.ports[i].setMAC(to.MAC)
			w.worker.ports[i].arp = byWorker
			w.loop.refresh()
			return true
		}); err != nil {
			return err
		}
	}
	g.ports[i].ifindex = to.IfIndex
	for _, w := range g.workers {
		if err := w.loop.Do(func(clock.Tick) bool { return true }); err != nil {
			return err
		}
	}
	return nil
}

// bound says which netdev a port's sockets are bound to, 0: none, and whether XDP runs in generic mode.
func (g *Gateway) bound(port int) (ifindex int, generic bool) {
	g.life.RLock()
	defer g.life.RUnlock()
	return g.ports[port].ifindex, g.ports[port].generic
}
