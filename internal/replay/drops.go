package replay

import (
	"bufio"
	"encoding/json"
	"os"

	"pollux/internal/packet"
	"pollux/internal/reason"
	"pollux/nat"
)

// drop is one element of the list of packets that were not sent on.
type drop struct {
	Index    int    `json:"index"` // 0-based in its file
	Side     string `json:"side"`
	Reason   string `json:"reason"`
	Answered bool   `json:"answered"` // an ICMP error went back
}

// fate is what became of one input packet.
type fate struct {
	index    int
	side     nat.Side
	reason   reason.Reason // None: sent on
	answered bool
	datagram int // fragments: which datagram it belongs to, counted from 1
}

// ledger follows every input packet to its end. A packet is known by the chunk that holds it: a frame is in one place only.
type ledger struct {
	fates    []fate
	inFlight map[uint64]int // chunk -> fates

	datagrams map[datagramKey]datagram
	count     int
	scratch   []byte
	now       int64 // ns
	life      int64 // ns without a fragment after which the same id is another datagram
}

// datagramKey tells datagrams apart (RFC 791 3.2).
type datagramKey struct {
	src, dst packet.Addr
	id       uint16
	proto    uint8
	side     nat.Side
}

type datagram struct {
	number int
	seen   int64
}

func newLedger(life int64) *ledger {
	return &ledger{inFlight: map[uint64]int{}, datagrams: map[datagramKey]datagram{}, life: life}
}

// begin notes an input packet before the worker sees it.
func (l *ledger) begin(in *input, ns int64) {
	l.now = ns
	f := fate{index: in.index, side: in.side, reason: reason.Held}
	var h packet.Headers
	// Parse may complete a checksum in place: what goes through the worker stays as the capture has it.
	l.scratch = append(l.scratch[:0], in.data...)
	packet.Parse(l.scratch, &h)
	if h.Reason == reason.None && h.Kind != packet.KindIPv6 && h.Fragment() {
		f.datagram = l.datagram(datagramKey{h.Src, h.Dst, h.FragID, h.Proto, in.side})
	}
	l.fates = append(l.fates, f)
}

func (l *ledger) datagram(key datagramKey) int {
	d, ok := l.datagrams[key]
	if !ok || l.now-d.seen > l.life {
		l.count++
		d.number = l.count
	}
	d.seen = l.now
	l.datagrams[key] = d
	return d.number
}

// pushed says which chunk holds the packet that began last.
func (l *ledger) pushed(chunk uint64) { l.inFlight[chunk] = len(l.fates) - 1 }

// refused says that the packet that began last did not even get in.
func (l *ledger) refused(r reason.Reason) { l.fates[len(l.fates)-1].reason = r }

// finished is the worker's hook.
func (l *ledger) finished(chunk uint64, _ []byte, r reason.Reason, answered bool) {
	i, ok := l.inFlight[chunk]
	if !ok {
		return
	}
	delete(l.inFlight, chunk)
	l.fates[i].reason, l.fates[i].answered = r, answered
}

// drops lists, in order of input, what was not sent on. A fragment counts as not sent on when any piece of its datagram
// was dropped: the receiver can't put it together.
func (l *ledger) drops() []drop {
	lost := map[int]reason.Reason{}
	for _, f := range l.fates {
		if f.datagram != 0 && f.reason != reason.None && lost[f.datagram] == reason.None {
			lost[f.datagram] = f.reason
		}
	}
	list := []drop{}
	for _, f := range l.fates {
		r := f.reason
		if r == reason.None {
			r = lost[f.datagram] // None for whatever is no fragment
		}
		if r != reason.None {
			list = append(list, drop{Index: f.index, Side: f.side.String(), Reason: r.String(), Answered: f.answered})
		}
	}
	return list
}

// writeDrops writes the list as JSON, one packet a line.
func writeDrops(name string, list []drop) error {
	file, err := os.Create(name)
	if err != nil {
		return err
	}
	w := bufio.NewWriter(file)
	w.WriteString("[")
	for i := range list {
		b, err := json.Marshal(&list[i])
		if err != nil {
			file.Close()
			return err
		}
		if i > 0 {
			w.WriteString(",")
		}
		w.WriteString("\n")
		w.Write(b)
	}
	w.WriteString("\n]\n")
	if err := w.Flush(); err != nil {
		file.Close()
		return err
	}
	return file.Close()
}
