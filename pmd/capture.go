package pmd

import (
	"encoding/binary"
	"errors"
	"fmt"
	"sync/atomic"
	"time"
	"unsafe"

	"pollux/internal/clock"
	"pollux/internal/offheap"
	"pollux/internal/packet"
	"pollux/internal/reason"
	"pollux/nat"
	"pollux/rings"
)

// CaptureStage is a place at which packets are copied. Stages are bits.
type CaptureStage uint8

const (
	CaptureRX   CaptureStage = 1 << iota // as received
	CaptureSent                          // as sent: translated, with its next hop's MACs; pollux's own packets too
	CaptureDrop                          // not sent on: as it was when it ended
)

// CaptureFilter picks packets; its zero value picks all but for Device, which is -1 then. What was picked when it was received
// is picked at the later stages too, whatever translation makes of it.
type CaptureFilter struct {
	Address nat.Network // source or destination
	Port    uint16      // of TCP or UDP, source or destination, or the id of an echo
	Proto   uint8
	ByPort  bool
	ByProto bool
	Reason  reason.Reason // of a drop; None: any
	Device  int           // by index: where it was received or sent; -1: any
}

// CaptureOptions says what is captured and how much memory that may take.
type CaptureOptions struct {
	Stages  CaptureStage
	Filter  CaptureFilter
	SnapLen int // bytes of a packet that are kept, 0: all
	Buffer  int // bytes for each worker
}

// Captured is a copy of one packet.
type Captured struct {
	At       time.Time    // when its worker took the burst it was in
	ID       uint64       // the same at all stages of a packet that was picked when it was received; else 0
	Length   int          // of the packet
	Device   int          // where it was received, or for CaptureSent where it is sent; -1: not known
	Worker   int          // that copied it
	Stage    CaptureStage // one
	Reason   reason.Reason
	Answered bool   // dropped, and an ICMP error was sent back
	Data     []byte // valid until visit returns
}

// tapHead precedes a packet's bytes in a slot of a tap.
type tapHead struct {
	at       int64
	id       uint64
	length   uint32
	kept     uint32
	device   int16
	stage    CaptureStage
	reason   reason.Reason
	answered bool
}

const tapHeadBytes = int(unsafe.Sizeof(tapHead{}))

// origin is what a tap remembers of a received packet, by chunk, until it ends.
type origin struct {
	id     uint64 // 0: the filter did not pick it
	device int16  // plus 1; 0: it was there before the capture began
}

// tap is a worker's part of a capture: a filter, and a ring of slots of one size, in which it writes and another goroutine
// reads. What finds the ring full is not captured, and counted.
//
//	put, lost  written by the worker (store-release), read by the reader
//	get        written by the reader (store-release), read by the worker
type tap struct {
	o       CaptureOptions
	umem    *rings.UMEM
	worker  int
	chunks  []origin // by number of the chunk; shared by all workers, as frames are: whose the frame is, reads and writes
	region  *offheap.Region
	mem     []byte
	stride  int
	slots   uint32
	now     int64  // Unix time in ns
	next    uint64 // id
	onlyOne bool   // Device is asked for

	_    [128]byte
	put  atomic.Uint32
	_    [128]byte
	get  atomic.Uint32
	_    [128]byte
	lost []atomic.Uint64 // by device, the last for none
}

// round reads the clock. What happens until it is read again bears that time: a burst, what timers let go, what another
// worker handed over; so a packet is never sent before it was received.
func (t *tap) round() { t.now = time.Now().UnixNano() }

// received sees a burst that came in by a device.
//
//go:noinline
func (t *tap) received(b []nat.Packet, device int) {
	t.round()
	for i := range b {
		p := &b[i]
		o := &t.chunks[t.chunk(p.Frame)]
		*o = origin{device: int16(device) + 1}
		if !t.o.Filter.picks(p.Data) {
			continue
		}
		t.next++
		o.id = uint64(t.worker+1)<<48 | t.next
		if t.o.Stages&CaptureRX != 0 {
			t.keep(tapHead{id: o.id, device: int16(device), stage: CaptureRX}, p.Data)
		}
	}
}

// sent sees frames that a device's transmit ring took.
//
//go:noinline
func (t *tap) sent(frames []rings.Frame, device int) {
	for _, f := range frames {
		data := t.umem.Data(f)
		o := &t.chunks[t.chunk(f.Addr)]
		id := o.id
		*o = origin{}
		if t.o.Stages&CaptureSent != 0 && (id != 0 || t.o.Filter.picks(data)) {
			t.keep(tapHead{id: id, device: int16(device), stage: CaptureSent}, data)
		}
	}
}

// dropped sees a packet that is not sent on.
//
//go:noinline
func (t *tap) dropped(chunk uint64, data []byte, r reason.Reason, answered bool) {
	o := &t.chunks[t.chunk(chunk)]
	id, device := o.id, o.device-1
	*o = origin{}
	if t.o.Stages&CaptureDrop == 0 || t.o.Filter.Reason != reason.None && r != t.o.Filter.Reason {
		return
	}
	if id != 0 || t.o.Filter.picks(data) {
		t.keep(tapHead{id: id, device: device, stage: CaptureDrop, reason: r, answered: answered}, data)
	}
}

// forget ends a packet that goes on as fragments.
//
//go:noinline
func (t *tap) forget(chunk uint64) { t.chunks[t.chunk(chunk)] = origin{} }

func (t *tap) chunk(addr uint64) int { return int(addr / uint64(t.umem.ChunkSize())) }

// keep copies a packet into the ring.
func (t *tap) keep(h tapHead, data []byte) {
	if t.onlyOne && int(h.device) != t.o.Filter.Device {
		return
	}
	put := t.put.Load()
	if put-t.get.Load() >= t.slots {
		device := int(h.device)
		if device < 0 {
			device = len(t.lost) - 1
		}
		t.lost[device].Store(t.lost[device].Load() + 1)
		return
	}
	slot := t.mem[int(put%t.slots)*t.stride:]
	h.at, h.length = t.now, uint32(len(data))
	h.kept = uint32(copy(slot[tapHeadBytes:t.stride], data))
	if h.kept > uint32(t.o.SnapLen) { // the slot is rounded up
		h.kept = uint32(t.o.SnapLen)
	}
	*(*tapHead)(unsafe.Pointer(&slot[0])) = h
	t.put.Store(put + 1)
}

// picks reads the headers of a frame without changing it. A filter that asks for an address, a port or a protocol picks
// IPv4 only; later fragments have no ports.
func (f *CaptureFilter) picks(b []byte) bool {
	if !f.Address.Valid && !f.ByPort && !f.ByProto {
		return true
	}
	const l3 = packet.EthernetLen
	if len(b) < l3+20 || b[12] != 8 || b[13] != 0 || b[l3]>>4 != 4 {
		return false
	}
	proto := b[l3+9]
	if f.ByProto && proto != f.Proto {
		return false
	}
	if f.Address.Valid {
		src, dst := packet.Addr(binary.BigEndian.Uint32(b[l3+12:])), packet.Addr(binary.BigEndian.Uint32(b[l3+16:]))
		if !f.Address.Has(src) && !f.Address.Has(dst) {
			return false
		}
	}
	if !f.ByPort {
		return true
	}
	l4 := l3 + int(b[l3]&15)*4
	if len(b) < l4+8 || l4 < l3+20 || binary.BigEndian.Uint16(b[l3+6:])&0x1fff != 0 {
		return false
	}
	switch proto {
	case packet.ProtoTCP, packet.ProtoUDP:
		return binary.BigEndian.Uint16(b[l4:]) == f.Port || binary.BigEndian.Uint16(b[l4+2:]) == f.Port
	case packet.ProtoICMP:
		return (b[l4] == 0 || b[l4] == 8) && binary.BigEndian.Uint16(b[l4+4:]) == f.Port
	}
	return false
}

// ErrCapturing refuses a second capture.
var ErrCapturing = errors.New("another capture is running: there can be one at a time")

// Limits of a capture.
const (
	SnapLenMin       = 64
	CaptureBufferMin = 1 << 20
	CaptureBufferMax = 1 << 28
)

// Capture is a capture under way. One goroutine uses it.
type Capture struct {
	g    *Gateway
	taps []*tap
}

// Capture starts to copy packets. It costs the workers nothing before and after, and copies what the memory holds between
// two calls of Read. The caller ends it by Close.
func (g *Gateway) Capture(o CaptureOptions) (*Capture, error) {
	switch {
	case o.Stages == 0 || o.Stages&^(CaptureRX|CaptureSent|CaptureDrop) != 0:
		return nil, errors.New("capture: no stage is asked for")
	case o.SnapLen != 0 && o.SnapLen < SnapLenMin:
		return nil, fmt.Errorf("capture: a snap length of %d; allowed: from %d, or 0 for whole packets", o.SnapLen, SnapLenMin)
	case o.Buffer < CaptureBufferMin || o.Buffer > CaptureBufferMax:
		return nil, fmt.Errorf("capture: a buffer of %d bytes; allowed: %d to %d", o.Buffer, CaptureBufferMin, CaptureBufferMax)
	case o.Filter.Device >= len(g.ports):
		return nil, fmt.Errorf("capture: there is no device %d", o.Filter.Device)
	}
	if !g.capturing.CompareAndSwap(false, true) {
		return nil, ErrCapturing
	}
	c := &Capture{g: g}
	if err := c.open(o); err != nil {
		c.Close()
		return nil, err
	}
	return c, nil
}

func (c *Capture) open(o CaptureOptions) error {
	g := c.g
	g.life.RLock()
	defer g.life.RUnlock()
	if g.gone {
		return ErrEnded
	}
	chunks := make([]origin, g.umem.Frames())
	for i, w := range g.workers {
		t, err := newTap(o, g.umem, i, len(g.ports), chunks)
		if err != nil {
			return fmt.Errorf("capture: %w", err)
		}
		c.taps = append(c.taps, t)
		if err := w.loop.Do(func(clock.Tick) bool { w.worker.tapBy(t); return true }); err != nil {
			return err
		}
	}
	return nil
}

func newTap(o CaptureOptions, umem *rings.UMEM, worker, devices int, chunks []origin) (*tap, error) {
	if o.SnapLen == 0 || o.SnapLen > umem.ChunkSize() {
		o.SnapLen = umem.ChunkSize()
	}
	t := &tap{o: o, umem: umem, worker: worker, chunks: chunks, stride: (tapHeadBytes + o.SnapLen + 63) &^ 63, lost: make([]atomic.Uint64, devices+1), onlyOne: o.Filter.Device >= 0}
	t.slots = 1
	for int(t.slots)*2*t.stride <= o.Buffer {
		t.slots *= 2
	}
	var err error
	if t.region, err = offheap.NewRegion(int(t.slots) * t.stride); err != nil {
		return nil, err
	}
	t.mem = t.region.Bytes()
	t.round()
	return t, nil
}

// tapBy puts a tap on the worker, or takes it off: nil. It is the worker's to call, between rounds.
func (w *Worker) tapBy(t *tap) { w.tap = t }

// Read calls visit for what was captured since it was called last, as far as it is there, by time, until visit returns
// false. It never waits.
func (c *Capture) Read(visit func(*Captured) bool) {
	var p Captured
	// What is there by the first look is read, and with it whatever came before it: a packet that one worker received and
	// another sent is in two rings, and what the second look finds holds the cause of all that the first one found.
	var due, ends [256]uint32
	left := uint32(0)
	for i, t := range c.taps {
		due[i] = t.put.Load()
		left += due[i] - t.get.Load()
	}
	for i, t := range c.taps {
		ends[i] = t.put.Load()
	}
	for left > 0 {
		var first *tap
		var head *tapHead
		which := 0
		for i, t := range c.taps {
			if t.get.Load() == ends[i] {
				continue
			}
			if h := t.head(); first == nil || h.at < head.at || h.at == head.at && h.stage < head.stage {
				first, head, which = t, h, i
			}
		}
		if int32(due[which]-first.get.Load()) > 0 {
			left--
		}
		slot := first.slot(first.get.Load())
		p = Captured{
			At: time.Unix(0, head.at), ID: head.id, Length: int(head.length), Device: int(head.device), Worker: first.worker, Stage: head.stage,
			Reason: head.reason, Answered: head.answered, Data: slot[tapHeadBytes : tapHeadBytes+int(head.kept)],
		}
		more := visit(&p)
		first.get.Store(first.get.Load() + 1)
		if !more {
			return
		}
	}
}

func (t *tap) slot(n uint32) []byte { return t.mem[int(n%t.slots)*t.stride:] }

func (t *tap) head() *tapHead { return (*tapHead)(unsafe.Pointer(&t.slot(t.get.Load())[0])) }

// Lost returns how many packets found no room, by device; the last is for those whose device is not known.
func (c *Capture) Lost() []uint64 {
	list := make([]uint64, len(c.g.ports)+1)
	for _, t := range c.taps {
		for i := range t.lost {
			list[i] += t.lost[i].Load()
		}
	}
	return list
}

// Close takes the taps off the workers and gives the memory back.
func (c *Capture) Close() {
	for i := range c.taps {
		w := c.g.workers[i]
		// A worker that has ended does not look at its tap any more.
		_ = w.loop.Do(func(clock.Tick) bool { w.worker.tapBy(nil); return true })
	}
	for _, t := range c.taps {
		_ = t.region.Free() // munmap of a mapping that is there does not fail
	}
	c.taps = nil
	c.g.capturing.Store(false)
}
