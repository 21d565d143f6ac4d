package pmd

import (
	"time"

	"pollux/internal/clock"
	"pollux/internal/packet"
	"pollux/rings"
	"pollux/rtcache"
)

// announceAgain is the pause between two announcements of an address (RFC 5227 1.1: ANNOUNCE_NUM 2, ANNOUNCE_INTERVAL 2 s).
const announceAgain = 2 * time.Second

// announcements tells the neighbours of all pool addresses where they are now.
func (g *Gateway) announcements() {
	for again := 0; again < 2; again++ {
		g.world.mu.Lock()
		aliases := g.world.aliases
		g.world.mu.Unlock()
		for _, a := range aliases {
			g.announce(a)
		}
		select {
		case <-g.quit:
			return
		case <-time.After(announceAgain):
		}
	}
}

// announce sends an ARP announcement for an alias address that is directly connected and not the kernel's: the kernel sees
// to its own.
func (g *Gateway) announce(a packet.Addr) {
	port, ok := g.table.OnLinkPort(a)
	if !ok || g.table.Local(a) {
		return
	}
	mac := g.table.Ports()[port].MAC
	_ = g.workers[0].loop.Do(func(clock.Tick) bool {
		w := g.workers[0].worker
		if addr, ok := w.pool.Get(); ok {
			w.one[0] = rings.Frame{Addr: addr, Len: ethernetMin}
			frame := w.umem.Data(w.one[0])
			clear(frame[rtcache.Announcement(frame, mac, a):])
			w.emit(port, w.one[:])
		}
		return true
	})
}

// ethernetMin is the shortest frame, without its checksum.
const ethernetMin = 60
