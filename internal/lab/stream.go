package lab

import (
	"encoding/binary"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// StreamOptions says what a Stream sends. Zero values mean: one flow, 2000 datagrams a second, 64 bytes of payload.
type StreamOptions struct {
	Src   netip.Addr // local address; invalid: the kernel chooses
	Dst   netip.AddrPort
	At    netip.AddrPort // where the receivers listen, behind a redirect; invalid: at Dst
	Flows int            // local ports that take turns
	Rate  int            // datagrams a second, of all flows together
	Size  int            // bytes of payload, at least 16
}

// Stream sends numbered UDP datagrams at an even pace and notes where each arrives. It never catches up: after a pause of
// the machine it goes on at its pace, so that no queue on the way overflows because of the sender.
type Stream struct {
	o     StreamOptions
	socks []*net.UDPConn
	id    uint32        // in every datagram
	sent  atomic.Uint64 // datagrams, whose numbers are 0..sent-1
	quit  chan struct{}
	done  chan struct{}

	mu        sync.Mutex
	receivers []*receiver
	count     []uint8 // per number: arrivals
	by        []int8  // per number: the receiver of the first arrival
	arrived   int
	stale     int
}

type receiver struct {
	conn  *net.UDPConn
	count int // arrivals
	last  time.Time
	next  map[uint32]uint64 // per flow: the number after the highest that came
	late  int
}

// StreamResult is what became of a stream.
type StreamResult struct {
	Sent    int
	Lost    int
	Doubled int           // arrivals beyond the first
	Stale   int           // arrivals of an earlier stream's datagrams, which somebody had kept back
	Late    int           // arrivals behind a later one of their flow at the same receiver
	Missing time.Duration // what the lost ones are of time at the stream's pace
	By      []int         // arrivals by receiver
	Losses  [][2]int      // runs of lost numbers, first and last
}

// String is one line for a test's log.
func (r StreamResult) String() string {
	s := fmt.Sprintf("%d sent, %d lost (%v), %d doubled, %d late, arrived by receiver %v", r.Sent, r.Lost, r.Missing.Round(100*time.Microsecond), r.Doubled, r.Late, r.By)
	if r.Stale > 0 {
		s += fmt.Sprintf(", and %d of an earlier stream", r.Stale)
	}
	return s
}

// StartStream opens a receiver at Dst in each of the namespaces and starts to send.
func StartStream(from *Namespace, o StreamOptions, to ...*Namespace) (*Stream, error) {
	o.Flows = max(o.Flows, 1)
	o.Size = max(o.Size, 64)
	if o.Rate == 0 {
		o.Rate = 2000
	}
	s := &Stream{o: o, id: rand.Uint32(), quit: make(chan struct{}), done: make(chan struct{})}
	for i, n := range to {
		at := o.Dst
		if o.At.IsValid() {
			at = o.At
		}
		pc, err := n.ListenPacket("udp", at.String())
		if err != nil {
			s.close()
			return nil, err
		}
		r := &receiver{conn: pc.(*net.UDPConn), next: map[uint32]uint64{}}
		r.conn.SetReadBuffer(4 << 20)
		s.receivers = append(s.receivers, r)
		go s.receive(int8(i), r)
	}
	for range o.Flows {
		local := netip.AddrPortFrom(o.Src, 0)
		if !o.Src.IsValid() {
			local = netip.AddrPortFrom(netip.IPv4Unspecified(), 0)
			if o.Dst.Addr().Is6() {
				local = netip.AddrPortFrom(netip.IPv6Unspecified(), 0)
			}
		}
		pc, err := from.ListenPacket("udp", local.String()) // not connected: ICMP errors would make it skip a datagram
		if err != nil {
			s.close()
			return nil, err
		}
		s.socks = append(s.socks, pc.(*net.UDPConn))
	}
	go s.send()
	return s, nil
}

func (s *Stream) send() {
	defer close(s.done)
	const tick = 2 * time.Millisecond
	burst := max(1, s.o.Rate*int(tick)/int(time.Second))
	every := time.NewTicker(time.Duration(burst) * time.Second / time.Duration(s.o.Rate)) // drops ticks that it is late for
	defer every.Stop()
	b := make([]byte, s.o.Size)
	for {
		select {
		case <-s.quit:
			return
		case <-every.C:
		}
		for range burst {
			seq := s.sent.Load()
			flow := uint32(seq) % uint32(s.o.Flows)
			binary.BigEndian.PutUint64(b, seq)
			binary.BigEndian.PutUint32(b[8:], flow)
			binary.BigEndian.PutUint32(b[12:], s.id)
			s.sent.Add(1)
			s.socks[flow].WriteToUDPAddrPort(b, s.o.Dst) // one that the sender's own kernel refuses is lost
		}
	}
}

func (s *Stream) receive(index int8, r *receiver) {
	b := make([]byte, 65536)
	for {
		n, err := r.conn.Read(b)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil || n != s.o.Size {
			continue
		}
		seq, flow := binary.BigEndian.Uint64(b), binary.BigEndian.Uint32(b[8:])
		if binary.BigEndian.Uint32(b[12:]) != s.id {
			s.mu.Lock()
			s.stale++
			s.mu.Unlock()
			continue
		}
		if seq >= s.sent.Load() {
			continue // somebody else's
		}
		s.mu.Lock()
		for uint64(len(s.count)) <= seq {
			s.count = append(s.count, 0)
			s.by = append(s.by, -1)
		}
		if s.count[seq] == 0 {
			s.by[seq] = index
			s.arrived++
		}
		if s.count[seq] < 255 {
			s.count[seq]++
		}
		if seq < r.next[flow] {
			r.late++
		} else {
			r.next[flow] = seq + 1
		}
		r.count++
		r.last = time.Now()
		s.mu.Unlock()
	}
}

// Sent returns how many datagrams were sent so far: the number of the next one.
func (s *Stream) Sent() int { return int(s.sent.Load()) }

// Arrived returns how many arrived at a receiver so far, and when the last one did.
func (s *Stream) Arrived(receiver int) (n int, last time.Time) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.receivers[receiver].count, s.receivers[receiver].last
}

// ArrivedSince returns how many of the datagrams from number first on arrived at a receiver so far.
func (s *Stream) ArrivedSince(receiver, first int) (n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for seq := first; seq < len(s.by); seq++ {
		if s.by[seq] == int8(receiver) {
			n++
		}
	}
	return n
}

// Stop ends the stream, waits for what is under way, and tells what became of it.
func (s *Stream) Stop() StreamResult {
	close(s.quit)
	<-s.done
	sent := s.Sent()
	quiet, seen := time.Now(), -1
	for time.Since(quiet) < time.Second { // nothing for a second: the rest is lost
		s.mu.Lock()
		arrived := s.arrived
		s.mu.Unlock()
		if arrived == sent {
			break
		}
		if arrived != seen {
			quiet, seen = time.Now(), arrived
		}
		time.Sleep(5 * time.Millisecond)
	}
	s.close()
	s.mu.Lock()
	defer s.mu.Unlock()
	r := StreamResult{Sent: sent, Lost: sent - s.arrived, Stale: s.stale}
	r.Missing = time.Duration(r.Lost) * time.Second / time.Duration(s.o.Rate)
	for _, n := range s.count {
		r.Doubled += max(int(n)-1, 0)
	}
	for _, rx := range s.receivers {
		r.By = append(r.By, rx.count)
		r.Late += rx.late
	}
	for seq := range sent {
		if seq < len(s.count) && s.count[seq] > 0 {
			continue
		}
		if n := len(r.Losses); n > 0 && r.Losses[n-1][1] == seq-1 {
			r.Losses[n-1][1] = seq
		} else {
			r.Losses = append(r.Losses, [2]int{seq, seq})
		}
	}
	return r
}

// Receivers returns which receiver each datagram from number first on arrived at, -1: none.
func (s *Stream) Receivers(first int) []int8 {
	s.mu.Lock()
	defer s.mu.Unlock()
	all := slices.Clone(s.by[min(first, len(s.by)):])
	for int(s.sent.Load()) > first+len(all) {
		all = append(all, -1)
	}
	return all
}

func (s *Stream) close() {
	for _, r := range s.receivers {
		r.conn.Close()
	}
	for _, c := range s.socks {
		c.Close()
	}
}
