package pmd

import (
	"encoding/binary"
	"log/slog"
	"os"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"pollux/rings"
)

// Limits of what is handed to the kernel: one frame takes the control goroutine about 20 us.
const (
	puntRing      = 256 // frames that wait
	puntPerSecond = 2000
)

// punter is the Punter of a running gateway: a ring of copies between the worker and a control goroutine.
//
//	word  writer   reader   pairs with
//	head  worker   control  slots below head are filled before head is stored
//	tail  control  worker   slots below tail were read before tail is stored
//	idle  control  worker   set before the last look at head; the worker stores head, then looks at idle
type punter struct {
	g      *Gateway
	worker *Worker
	punt   *rings.Punt

	slots [puntRing]puntSlot
	head  atomic.Uint32
	_     [60]byte
	tail  atomic.Uint32
	idle  atomic.Bool
	event *os.File // eventfd: the control goroutine reads, the worker writes when idle

	fd    int     // of event, for the worker
	one   [8]byte // what it writes
	limit bucket  // the worker's
}

type puntSlot struct {
	ingress uint16
	length  uint16
	data    [rings.PuntBytesMax]byte
}

func newPunter(g *Gateway) (*punter, error) {
	punt, err := rings.NewPunt()
	if err != nil {
		return nil, err
	}
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		punt.Close()
		return nil, err
	}
	p := &punter{g: g, punt: punt, event: os.NewFile(uintptr(fd), "punt"), fd: fd}
	binary.NativeEndian.PutUint64(p.one[:], 1)
	return p, nil
}

// Punt is Punter's: it copies the frame into the ring.
func (p *punter) Punt(frame []byte, ingress uint16) bool {
	head := p.head.Load()
	if head-p.tail.Load() == puntRing || len(frame) > rings.PuntBytesMax || !p.limit.has(puntPerSecond, p.worker.advanced) {
		return false
	}
	p.limit.take()
	s := &p.slots[head%puntRing]
	s.ingress, s.length = ingress, uint16(copy(s.data[:], frame))
	p.head.Store(head + 1)
	if p.idle.Load() && p.idle.CompareAndSwap(true, false) {
		_, _ = unix.Write(p.fd, p.one[:]) // fails only when the counter is full: then it is awake
	}
	return true
}

// run hands frames to the kernel until the gateway stops.
func (p *punter) run() {
	go func() {
		<-p.g.quit
		_ = p.event.SetReadDeadline(time.Unix(1, 0)) // ends the read below
	}()
	var failed time.Time
	for {
		for p.tail.Load() != p.head.Load() {
			tail := p.tail.Load()
			s := &p.slots[tail%puntRing]
			ifindex, _ := p.g.bound(int(s.ingress))
			if err := p.punt.Send(ifindex, s.data[:s.length]); err != nil && time.Since(failed) > time.Minute {
				failed = time.Now()
				slog.Warn("a packet for the gateway itself could not be handed to its kernel", "port", p.g.ports[s.ingress].name, "error", err)
			}
			p.tail.Store(tail + 1)
		}
		select {
		case <-p.g.quit:
			return
		default:
		}
		p.idle.Store(true)
		if p.tail.Load() != p.head.Load() {
			p.idle.Store(false)
			continue
		}
		var n [8]byte
		_, _ = p.event.Read(n[:])
		p.idle.Store(false)
	}
}

func (p *punter) close() error {
	p.event.Close()
	return p.punt.Close()
}
