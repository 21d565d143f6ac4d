package rss

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/vishvananda/netlink"

	"pollux/internal/lab"
)

// reply reads one of testdata's: remarks, then the attributes as the kernel's numbers say, in hexadecimal.
func reply(t testing.TB, name string) []byte {
	t.Helper()
	text, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	var b []byte
	for line := range strings.Lines(string(text)) {
		if line = strings.TrimSpace(line); line == "" || line[0] == '#' {
			continue
		}
		x, err := hex.DecodeString(line)
		if err != nil {
			t.Fatal(err)
		}
		b = append(b, x...)
	}
	return b
}

// Replies in the shapes that drivers give, and what can be made of them.
func TestReplies(t *testing.T) {
	for _, c := range []struct {
		name      string
		entries   int
		queues    int
		first     int // entries of queue 0
		key       int
		function  HashFunc
		transform Transform
		predicted error
		symmetric bool
	}{
		{"toeplitz-128x4.txt", 128, 4, 32, 40, HashToeplitz, 0, nil, false},
		{"toeplitz-512x6.txt", 512, 6, 86, 52, HashToeplitz, 0, nil, false},
		{"symmetric-xor-2048x8.txt", 2048, 8, 256, 52, HashToeplitz, SymmetricXOR, nil, true},
		{"symmetric-or-xor-256x8.txt", 256, 8, 32, 40, HashToeplitz, SymmetricORXOR, ErrTransform, false},
		{"xor-256x8.txt", 256, 8, 32, 40, HashXOR, 0, ErrFunction, false},
		{"table-only-64.txt", 64, 2, 32, 0, 0, 0, ErrFunction, false},
		{"odd-192.txt", 192, 3, 64, 40, HashToeplitz, 0, ErrTable, false},
		{"weights-128.txt", 128, 2, 96, 40, HashToeplitz, 0, nil, false},
	} {
		s, err := parse(reply(t, c.name))
		if err != nil {
			t.Errorf("%s: %v", c.name, err)
			continue
		}
		shares := s.Shares()
		if len(s.Table) != c.entries || len(shares) != c.queues || shares[0] != c.first || len(s.Key) != c.key || s.HashFunc != c.function || s.Transform != c.transform {
			t.Errorf("%s: %d entries, shares %v, key of %d, %s, %s", c.name, len(s.Table), shares, len(s.Key), s.HashFunc, s.Transform)
		}
		l, err := s.Linear(FourTuple)
		if !errors.Is(err, c.predicted) || l.Symmetric() != c.symmetric && err == nil {
			t.Errorf("%s: symmetric %v, %v; want %v, %v", c.name, l.Symmetric(), err, c.symmetric, c.predicted)
		}
	}
}

// The published vectors by way of a reply: key and table lead to the queue that the low bits of the published hash name.
func TestQueueOfPublishedVectors(t *testing.T) {
	s, err := parse(reply(t, "toeplitz-128x4.txt"))
	if err != nil || !bytes.Equal(s.Key, published) {
		t.Fatalf("key %x, %v", s.Key, err)
	}
	l, err := s.Linear(FourTuple)
	if err != nil {
		t.Fatal(err)
	}
	for _, v := range vectors {
		if q := s.Queue(l.Hash(addr(v.src), addr(v.dst), v.sport, v.dport)); q != int(v.ports&127)%4 {
			t.Errorf("%s:%d -> %s:%d comes in by queue %d", v.src, v.sport, v.dst, v.dport, q)
		}
	}
}

func TestBadReplies(t *testing.T) {
	whole := reply(t, "toeplitz-128x4.txt")
	for name, b := range map[string][]byte{
		"a length beyond the end":     {0xff, 0xff, 4, 0, 1, 2, 3, 4},
		"a length below the header":   {2, 0, 4, 0},
		"a table of 5 bytes":          {9, 0, 4, 0, 1, 2, 3, 4, 5, 0, 0, 0},
		"a hash function of one byte": {5, 0, 3, 0, 1, 0, 0, 0, 8, 0, 4, 0, 0, 0, 0, 0},
		"nothing":                     nil,
		"a header only":               whole[:24],
		"half":                        whole[:100],
	} {
		if s, err := parse(b); err == nil {
			t.Errorf("%s passes: %+v", name, s)
		}
	}
}

func FuzzParse(f *testing.F) {
	names, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(names) < 8 {
		f.Fatalf("%v %v", names, err)
	}
	for _, n := range names {
		f.Add(reply(f, filepath.Base(n)))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		s, err := parse(b)
		if err != nil {
			return
		}
		if 4*len(s.Table)+len(s.Key) > len(b) {
			t.Fatalf("%d entries and %d bytes of key out of %d bytes", len(s.Table), len(s.Key), len(b))
		}
		l, err := s.Linear(FourTuple)
		if err != nil {
			return
		}
		h := l.Hash(0x01020304, 0x05060708, 9, 10)
		if s.Transform == 0 && h != Toeplitz(s.Key, input(0x01020304, 0x05060708, 9, 10)) {
			t.Fatalf("hash %#x", h)
		}
		if q := s.Queue(h); s.Shares()[q] == 0 {
			t.Fatalf("queue %d is not in the table", q)
		}
	})
}

// older lays a state out as struct ethtool_rxfh.
func olderReply(s *State) []byte {
	b := make([]byte, rxfhHeader)
	ne := binary.NativeEndian
	ne.PutUint32(b[8:], uint32(len(s.Table)))
	ne.PutUint32(b[12:], uint32(len(s.Key)))
	b[16], b[17] = byte(s.HashFunc), byte(s.Transform)
	for _, q := range s.Table {
		b = ne.AppendUint32(b, q)
	}
	return append(b, s.Key...)
}

// The ioctl of older kernels tells the same in another form.
func TestOlderReplies(t *testing.T) {
	names, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(names) < 8 {
		t.Fatalf("%v %v", names, err)
	}
	for _, n := range names {
		want, err := parse(reply(t, filepath.Base(n)))
		if err != nil {
			t.Fatal(err)
		}
		b := olderReply(&want)
		got, err := parseOlder(append(b, 0, 0, 0, 0)) // the buffer is larger than needed
		if err != nil || !got.Equal(&want) {
			t.Errorf("%s: %+v, %v", n, got, err)
		}
		for cut := range len(b) {
			if s, err := parseOlder(b[:cut]); err == nil {
				t.Fatalf("%s: %d of %d bytes pass: %+v", n, cut, len(b), s)
			}
		}
	}
	if _, err := parseOlder(make([]byte, rxfhHeader)); !errors.Is(err, ErrNotTold) {
		t.Errorf("neither table nor key: %v", err)
	}
	if _, err := older("a-name-that-is-too-long"); err == nil {
		t.Error("a name that is too long passes")
	}
}

func FuzzParseOlder(f *testing.F) {
	s, err := parse(reply(f, "toeplitz-128x4.txt"))
	if err != nil {
		f.Fatal(err)
	}
	f.Add(olderReply(&s))
	f.Fuzz(func(t *testing.T, b []byte) {
		if s, err := parseOlder(b); err == nil && !bytes.HasPrefix(b[rxfhHeader:], olderReply(&s)[rxfhHeader:]) {
			t.Fatalf("%x became %+v", b, s)
		}
	})
}

func TestHashedFields(t *testing.T) {
	for data, want := range map[uint64]Fields{
		0: 0, 0x30: TwoTuple, 0xf0: FourTuple, 0x10: SrcAddr, 0xc0: SrcPort | DstPort, 0xf8: FourTuple | Other, 1 << 31: Other, 0xf4: FourTuple | Other,
	} {
		if got := fieldsFrom(data); got != want {
			t.Errorf("%#x: %s, want %s", data, got, want)
		}
	}
	if s := FourTuple.String() + " " + TwoTuple.String() + " " + Fields(0).String() + " " + (TwoTuple | Other).String(); s != "sdfn sd none sd?" {
		t.Error(s)
	}
}

func TestEqualStates(t *testing.T) {
	one, err := parse(reply(t, "toeplitz-128x4.txt"))
	if err != nil {
		t.Fatal(err)
	}
	two, _ := parse(reply(t, "toeplitz-128x4.txt"))
	if !one.Equal(&two) || one.Equal(nil) || !(*State)(nil).Equal(nil) {
		t.Error("equal ones differ")
	}
	for name, change := range map[string]func(*State){
		"entry": func(s *State) { s.Table[7]++ }, "size": func(s *State) { s.Table = s.Table[:64] }, "key": func(s *State) { s.Key[0]++ },
		"function": func(s *State) { s.HashFunc = HashXOR }, "transform": func(s *State) { s.Transform = SymmetricXOR },
		"TCP": func(s *State) { s.TCP4 = TwoTuple }, "UDP": func(s *State) { s.UDP4 = TwoTuple }, "fields": func(s *State) { s.FieldsErr = ErrNotTold },
	} {
		if s, _ := parse(reply(t, "toeplitz-128x4.txt")); func() bool { change(&s); return s.Equal(&one) }() {
			t.Errorf("%s makes no difference", name)
		}
	}
}

// The running kernel, asked about a veth: it answers, and cleanly says no.
func TestVethDoesNotTell(t *testing.T) {
	lab.Require(t)
	l, err := lab.New(lab.Options{Queues: 2})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.Close)
	err = l.Gateway.Do(func() error {
		c, err := Dial()
		if err != nil {
			return err
		}
		defer c.Close()
		dev, err := netlink.LinkByName(lab.OutsideDevice)
		if err != nil {
			return err
		}
		for range 2 { // a refusal leaves the connection usable
			if s, err := c.Get(dev.Attrs().Index, lab.OutsideDevice); !errors.Is(err, ErrNotTold) {
				t.Errorf("a veth tells %+v, %v", s, err)
			}
			if s, err := older(lab.OutsideDevice); !errors.Is(err, ErrNotTold) {
				t.Errorf("a veth tells by ioctl %+v, %v", s, err)
			}
		}
		if _, err := c.Get(1<<30, "eth99"); err == nil || !strings.Contains(err.Error(), "no such device") {
			t.Errorf("a device that is not there: %v", err)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
}

// A change of a device's ethtool settings reaches who watches, and Close ends the watch.
func TestWatch(t *testing.T) {
	lab.Require(t)
	l, err := lab.New(lab.Options{Queues: 2})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.Close)
	var c *Client
	if err := l.Gateway.Do(func() (err error) { c, err = Dial(); return err }); err != nil {
		t.Fatal(err)
	}
	poked, ended := make(chan struct{}, 1), make(chan error, 1)
	go func() {
		ended <- c.Watch(func() {
			select {
			case poked <- struct{}{}:
			default:
			}
		})
	}()
	deadline := time.After(30 * time.Second)
	for seen := false; !seen; {
		select {
		case <-poked:
			seen = true
		case err := <-ended:
			t.Fatalf("the watch ended: %v", err)
		case <-deadline:
			t.Fatal("no word of a change")
		case <-time.After(10 * time.Millisecond):
			// Again and again, since the watch may not have joined its group yet.
			if err := l.Gateway.Do(func() error { return toggle(lab.OutsideDevice) }); err != nil {
				t.Fatal(err)
			}
		}
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
	if err := <-ended; err != nil {
		t.Errorf("after Close: %v", err)
	}
}
