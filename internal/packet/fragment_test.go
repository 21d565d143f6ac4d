package packet

import (
	"bytes"
	"slices"
	"testing"
)

// split collects what Fragment emits.
func split(frame []byte, mtu int) (pieces [][]byte, ok bool) {
	var h Headers
	Parse(frame, &h)
	ok = Fragment(frame, &h, mtu, func() []byte { return make([]byte, 14+mtu) }, func(b []byte) { pieces = append(pieces, b) })
	return pieces, ok
}

// join puts pieces together again by offset; it reports false when there is a hole, an overlap or no end.
func join(t *testing.T, pieces [][]byte) (payload []byte, ok bool) {
	ended := false
	for _, p := range pieces {
		var h Headers
		parseGeneral(bytes.Clone(p), &h)
		if h.Reason != 0 || ended || int(h.FragOff) != len(payload) {
			t.Logf("piece %+v does not follow %d bytes", h, len(payload))
			return nil, false
		}
		payload = append(payload, p[h.L4:int(h.L3)+int(h.Len)]...)
		ended = h.Flags&FlagMF == 0
	}
	return payload, ended
}

func TestFragment(t *testing.T) {
	b := Build{Src: 0x0a000001, Dst: 0xc6336401, SrcPort: 1234, DstPort: 53, ID: 4711, TTL: 3}
	for _, n := range []int{0, 1, 1471, 1472, 1473, 2952, 2953, 4000, 8000} {
		frame := b.UDP(bytes.Repeat([]byte("0123456789a"), 1000)[:n])
		pieces, ok := split(frame, 1500)
		if !ok || len(pieces) != max(1, (n+8+1479)/1480) {
			t.Fatalf("%d bytes: ok %v, %d pieces", n, ok, len(pieces))
		}
		payload, ok := join(t, pieces)
		if !ok || !bytes.Equal(payload, frame[34:]) {
			t.Fatalf("%d bytes: not joined again", n)
		}
		for i, p := range pieces {
			if len(p) > 14+1500 || !bytes.Equal(p[:14], frame[:14]) || !bytes.Equal(p[18:20], frame[18:20]) || p[22] != 3 {
				t.Errorf("%d bytes: piece %d is %x", n, i, p[:34])
			}
		}
	}
}

// Pieces of pieces join as well.
func TestFragmentTwice(t *testing.T) {
	frame := Build{Src: 0x0a000001, Dst: 0xc6336401}.UDP(make([]byte, 5000))
	outer, _ := split(frame, 1500)
	var all [][]byte
	for _, p := range outer {
		inner, ok := split(p, 576)
		if !ok {
			t.Fatal("a fragment can't be split")
		}
		all = append(all, inner...)
	}
	if payload, ok := join(t, all); !ok || !bytes.Equal(payload, frame[34:]) {
		t.Error("not joined again")
	}
}

// Only options with the copied bit go into later pieces (RFC 791 3.1).
func TestFragmentOptions(t *testing.T) {
	route := []byte{7, 7, 4, 0, 0, 0, 0}              // record route: not copied
	alert := []byte{0x94, 4, 0, 0}                    // router alert: copied
	options := slices.Concat([]byte{1}, route, alert) // 12 bytes
	frame := Build{Src: 0x0a000001, Dst: 0xc6336401, Options: options}.UDP(make([]byte, 100))
	pieces, ok := split(frame, 32+40)
	if payload, joined := join(t, pieces); !ok || !joined || !bytes.Equal(payload, frame[46:]) {
		t.Fatal("not joined again")
	}
	if !bytes.Equal(pieces[0][34:46], options) {
		t.Errorf("first piece has options %x", pieces[0][34:46])
	}
	for _, p := range pieces[1:] {
		if p[14] != 0x46 || !bytes.Equal(p[34:38], alert) {
			t.Errorf("later piece has header %x", p[14:38])
		}
	}
}

func TestFragmentRefuses(t *testing.T) {
	b := Build{Src: 0x0a000001, Dst: 0xc6336401}
	df := b
	df.DF = true
	last := b
	last.FragOff = 65528
	for name, c := range map[string]struct {
		frame []byte
		mtu   int
	}{
		"DF":                     {df.UDP(make([]byte, 100)), 68},
		"mtu below a header":     {b.UDP(make([]byte, 100)), 27},
		"beyond the last offset": {last.IP(ProtoUDP, make([]byte, 100)), 68},
		"ARP":                    {append(make([]byte, 12), 8, 6), 1500},
	} {
		if pieces, ok := split(c.frame, c.mtu); ok || len(pieces) > 0 {
			t.Errorf("%s: ok %v with %d pieces", name, ok, len(pieces))
		}
	}
	var h Headers
	frame := b.UDP(make([]byte, 100))
	Parse(frame, &h)
	buffers, emitted := 2, 0
	ok := Fragment(frame, &h, 68, func() []byte {
		if buffers--; buffers < 0 {
			return nil
		}
		return make([]byte, 100)
	}, func([]byte) { emitted++ })
	if ok || emitted != 2 {
		t.Errorf("out of buffers: ok %v, %d emitted", ok, emitted)
	}
}

func FuzzFragment(f *testing.F) {
	b := Build{Src: 0x0a000001, Dst: 0xc6336401, Options: []byte{0x94, 4, 0, 0, 7, 3, 4}}
	f.Add(b.UDP(make([]byte, 3000)), 1500)
	f.Add(b.UDP(make([]byte, 300)), 68)
	b.MF = true
	f.Add(b.UDP(make([]byte, 304)), 68)
	b.FragOff = 800
	f.Add(b.IP(ProtoUDP, make([]byte, 304)), 576)
	f.Fuzz(func(t *testing.T, frame []byte, mtu int) {
		if mtu > 9000 {
			return
		}
		if len(frame) > 14 {
			resum(frame)
		}
		var h Headers
		Parse(frame, &h)
		pieces, ok := split(frame, mtu)
		if !ok {
			if len(pieces) > 0 {
				t.Fatal("refused with pieces emitted")
			}
			return
		}
		var payload []byte
		for i, p := range pieces {
			if len(p) > 14+max(mtu, 0) {
				t.Fatalf("a piece of %d bytes for an mtu of %d", len(p), mtu)
			}
			var q Headers
			headerIPv4(p[14:], &q)
			header := int(p[14]&15) * 4
			more := i < len(pieces)-1 || h.Flags&FlagMF != 0
			if Sum(p[14:14+header], 0) != 0xffff || int(q.FragOff) != int(h.FragOff)+len(payload) || more != (q.Flags&FlagMF != 0) || int(q.Len) != len(p)-14 {
				t.Fatalf("piece %d: %+v of %+v", i, q, h)
			}
			payload = append(payload, p[14+header:]...)
		}
		if !bytes.Equal(payload, frame[h.L4:int(h.L3)+int(h.Len)]) {
			t.Fatal("payload differs")
		}
	})
}
