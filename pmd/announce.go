package pmd

import (
	"encoding/binary"
	"time"

	"pollux/internal/clock"
	"pollux/internal/packet"
	"pollux/rings"
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
	_ = g.loop.Do(func(clock.Tick) bool {
		w := g.worker
		if addr, ok := w.pool.Get(); ok {
			w.one[0] = rings.Frame{Addr: addr, Len: arpBytes}
			putAnnouncement(w.umem.Data(w.one[0]), mac, a)
			w.emit(port, w.one[:])
		}
		return true
	})
}

const arpBytes = 60 // the shortest Ethernet frame

// putAnnouncement writes an ARP announcement: a request for the address that names it as sender's and target's (RFC 5227 3).
func putAnnouncement(frame []byte, mac [6]byte, a packet.Addr) {
	clear(frame)
	copy(frame[0:6], []byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff})
	copy(frame[6:12], mac[:])
	copy(frame[12:22], []byte{0x08, 0x06, 0, 1, 0x08, 0, 6, 4, 0, 1})
	copy(frame[22:28], mac[:])
	binary.BigEndian.PutUint32(frame[28:32], uint32(a))
	binary.BigEndian.PutUint32(frame[38:42], uint32(a))
}
