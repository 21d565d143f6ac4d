package replay

import (
	"bytes"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"

	"pollux/internal/config"
	"pollux/internal/packet"
	"pollux/nat"
)

const plain = `ports: [{name: i, role: inside}, {name: o, role: outside}]
nat: {alias: ["203.0.113.1"]}
`

// options gives a replay in a directory of its own: inputs i and o, outputs wi and wo, drops d.
func options(t *testing.T, yaml string) (Options, func(string) string) {
	t.Helper()
	cfg, err := config.Parse("test", []byte(yaml), nil, config.Replaying)
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	path := func(name string) string { return filepath.Join(dir, name) }
	o := Options{Gateway: cfg.Gateway(), World: World(cfg.Replay()), WriteInside: path("wi"), WriteOutside: path("wo"), Drops: path("d"),
		Warn: func(s string) { t.Errorf("warning: %s", s) }}
	o.Gateway.Rules = cfg.ReplayRules()
	return o, path
}

func udp(t *testing.T, text string) []byte {
	t.Helper()
	f, err := packetFrom(text)
	if err != nil {
		t.Fatal(err)
	}
	return f
}

type stamped struct {
	at    time.Time
	frame []byte
}

func writePcap(t *testing.T, name string, nano bool, packets ...stamped) {
	t.Helper()
	var b bytes.Buffer
	w := pcapgo.NewWriter(&b)
	if nano {
		w = pcapgo.NewWriterNanos(&b)
	}
	if err := w.WriteFileHeader(65536, layers.LinkTypeEthernet); err != nil {
		t.Fatal(err)
	}
	for _, p := range packets {
		if err := w.WritePacket(gopacket.CaptureInfo{Timestamp: p.at, CaptureLength: len(p.frame), Length: len(p.frame)}, p.frame); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(name, b.Bytes(), 0o600); err != nil {
		t.Fatal(err)
	}
}

func readAll(t *testing.T, name string) (list []stamped) {
	t.Helper()
	readCapture(t, name, func(at time.Time, frame []byte) { list = append(list, stamped{at, frame}) })
	return list
}

func readDrops(t *testing.T, name string) (list []drop) {
	t.Helper()
	b, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(b, &list); err != nil {
		t.Fatal(err)
	}
	return list
}

// TestTimestampsAreKept: exactly, in every kind of capture, and the output is as fine as the input.
func TestTimestampsAreKept(t *testing.T) {
	frame := udp(t, "udp 10.0.0.2:5000 > 8.8.8.8:53")
	at := time.Unix(1_700_000_000, 123_456_789).UTC()
	for _, c := range []struct {
		name  string
		write func(name string)
		want  time.Time
		nano  bool
	}{
		{"micro", func(name string) { writePcap(t, name, false, stamped{at, frame}) }, at.Truncate(time.Microsecond), false},
		{"nano", func(name string) { writePcap(t, name, true, stamped{at, frame}) }, at, true},
		{"pcapng", func(name string) {
			f, err := os.Create(name)
			if err != nil {
				t.Fatal(err)
			}
			defer f.Close()
			w, err := pcapgo.NewNgWriter(f, layers.LinkTypeEthernet)
			if err != nil {
				t.Fatal(err)
			}
			if err := w.WritePacket(gopacket.CaptureInfo{Timestamp: at, CaptureLength: len(frame), Length: len(frame)}, frame); err != nil {
				t.Fatal(err)
			}
			if err := w.Flush(); err != nil {
				t.Fatal(err)
			}
		}, at, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			o, path := options(t, plain)
			o.Inside = path("i")
			c.write(o.Inside)
			if err := Run(o); err != nil {
				t.Fatal(err)
			}
			out := readAll(t, o.WriteOutside)
			if len(out) != 1 || !out[0].at.Equal(c.want) {
				t.Errorf("out at %v, want %v", out, c.want)
			}
			head, err := os.ReadFile(o.WriteOutside)
			if err != nil {
				t.Fatal(err)
			}
			if nano := bytes.HasPrefix(head, []byte{0x4d, 0x3c, 0xb2, 0xa1}); nano != c.nano {
				t.Errorf("nanosecond file: %v", nano)
			}
		})
	}
}

// TestMergeAndClock: inside first on a tie, and a timestamp that runs backwards counts as the latest seen, with one warning.
func TestMergeAndClock(t *testing.T) {
	o, path := options(t, plain)
	var warnings []string
	o.Warn = func(s string) { warnings = append(warnings, s) }
	o.Inside, o.Outside = path("i"), path("o")
	at := func(s float64) time.Time { return epoch.Add(time.Duration(s * float64(time.Second))) }
	question, answer := udp(t, "udp 10.0.0.2:5000 > 8.8.8.8:53"), udp(t, "udp 8.8.8.8:53 > 203.0.113.1:5000")
	writePcap(t, o.Inside, false, stamped{at(1), question}, stamped{at(5), question}, stamped{at(2), question}, stamped{at(3), question})
	writePcap(t, o.Outside, false, stamped{at(1), answer}, stamped{at(4.5), answer}, stamped{at(2), answer}) // no second warning
	if err := Run(o); err != nil {
		t.Fatal(err)
	}
	if len(warnings) != 1 || !strings.Contains(warnings[0], "packet 2") {
		t.Errorf("warnings %q", warnings)
	}
	if d := readDrops(t, o.Drops); len(d) != 0 { // the answer of the tie came after its question
		t.Errorf("dropped %v", d)
	}
	var got []float64
	for _, p := range readAll(t, o.WriteOutside) {
		got = append(got, p.at.Sub(epoch).Seconds())
	}
	if !slices.Equal(got, []float64{1, 5, 5, 5}) {
		t.Errorf("left at %v", got)
	}
}

// TestExpiryIsNeverEarlyAndAtMostASecondLate, with packets only at the ends of the pause.
func TestExpiryIsNeverEarlyAndAtMostASecondLate(t *testing.T) {
	for _, c := range []struct {
		pause time.Duration
		alive bool
	}{{300 * time.Second, true}, {299999500 * time.Microsecond, true}, {301 * time.Second, false}, {40 * 24 * time.Hour, false}} {
		o, path := options(t, plain)
		o.Inside, o.Outside = path("i"), path("o")
		start := epoch.Add(999500 * time.Microsecond)
		writePcap(t, o.Inside, false, stamped{start, udp(t, "udp 10.0.0.2:5000 > 8.8.8.8:53")})
		writePcap(t, o.Outside, false, stamped{start.Add(c.pause), udp(t, "udp 8.8.8.8:53 > 203.0.113.1:5000")})
		var links bytes.Buffer
		o.Links = &links
		if err := Run(o); err != nil {
			t.Fatal(err)
		}
		if alive := len(readAll(t, o.WriteInside)) == 1; alive != c.alive {
			t.Errorf("after %v: alive %v, drops %v", c.pause, alive, readDrops(t, o.Drops))
		}
		if live := strings.Contains(links.String(), "203.0.113.1:5000"); live != c.alive {
			t.Errorf("after %v: links %s", c.pause, links.String())
		}
	}
}

// TestEmptyNgCapture: a section that names no interface holds no packets, and is a capture all the same.
func TestEmptyNgCapture(t *testing.T) {
	o, path := options(t, plain)
	o.Inside = path("i")
	section := []byte{0x0a, 0x0d, 0x0d, 0x0a, 28, 0, 0, 0, 0x4d, 0x3c, 0x2b, 0x1a, 1, 0, 0, 0,
		0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 28, 0, 0, 0}
	if err := os.WriteFile(o.Inside, section, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := Run(o); err != nil {
		t.Error(err)
	}
}

func TestBadCaptures(t *testing.T) {
	frame := udp(t, "udp 10.0.0.2:5000 > 8.8.8.8:53")
	for name, spoil := range map[string]func(name string){
		"missing": func(name string) {},
		"empty":   func(name string) { os.WriteFile(name, nil, 0o600) },
		"text":    func(name string) { os.WriteFile(name, bytes.Repeat([]byte("no capture "), 10), 0o600) },
		"cut": func(name string) {
			writePcap(t, name, false, stamped{epoch, frame}, stamped{epoch, frame})
			os.Truncate(name, 24+16+int64(len(frame))+16+5)
		},
		"not Ethernet": func(name string) {
			var b bytes.Buffer
			pcapgo.NewWriter(&b).WriteFileHeader(65536, layers.LinkTypeRaw)
			os.WriteFile(name, b.Bytes(), 0o600)
		},
	} {
		o, path := options(t, plain)
		o.Inside = path("i")
		spoil(o.Inside)
		err := Run(o)
		if err == nil || !strings.Contains(err.Error(), o.Inside) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestNothingInNothingOut(t *testing.T) {
	o, _ := options(t, plain)
	var links bytes.Buffer
	o.Links = &links
	if err := Run(o); err != nil {
		t.Fatal(err)
	}
	if links.String() != "{\"links\":[]}\n" || len(readDrops(t, o.Drops)) != 0 || len(readAll(t, o.WriteInside)) != 0 {
		t.Errorf("links %q", links.String())
	}
}

// TestPrefix: the same input and seed give the same bytes, and a prefix of the input gives a prefix of the outputs.
func TestPrefix(t *testing.T) {
	random := rand.New(rand.NewPCG(5, 6))
	var in capture
	at := time.Duration(0)
	for range 2000 {
		at += time.Duration(random.IntN(400)) * time.Millisecond
		side := nat.Side(random.IntN(2))
		host, remote := fmt.Sprintf("10.0.0.%d:%d", 2+random.IntN(20), 1000+random.IntN(100)), fmt.Sprintf("198.51.100.%d:53", 1+random.IntN(5))
		text := "udp " + host + " > " + remote
		if side == nat.Outside {
			text = "udp " + remote + " > 203.0.113.1:" + fmt.Sprint(1000+random.IntN(100))
		}
		switch random.IntN(5) {
		case 0:
			text = strings.Replace(text, "udp", "tcp", 1) + " S"
		case 1:
			text += fmt.Sprintf(" ttl %d", 1+random.IntN(2))
		case 2:
			text += fmt.Sprintf(" len 1480 mf ipid %d", random.IntN(5))
		case 3:
			text += fmt.Sprintf(" len 80 off 1488 ipid %d", random.IntN(5))
		}
		in.at, in.side, in.frame = append(in.at, at), append(in.side, side), append(in.frame, udp(t, text))
	}
	for _, workers := range []int{1, 4} {
		run := func(n int, seed uint64) (wi, wo []byte) {
			part := capture{in.at[:n], in.side[:n], in.frame[:n]}
			o, path := options(t, plain)
			o.Gateway.Cores = make([]int, workers)
			o.Inside, o.Outside, o.Seed = path("i"), path("o"), seed
			part.write(t, o.Inside, nat.Inside)
			part.write(t, o.Outside, nat.Outside)
			if err := Run(o); err != nil {
				t.Fatal(err)
			}
			wi, _ = os.ReadFile(o.WriteInside)
			wo, _ = os.ReadFile(o.WriteOutside)
			return wi, wo
		}
		allIn, allOut := run(2000, 0)
		againIn, againOut := run(2000, 0)
		if !bytes.Equal(allIn, againIn) || !bytes.Equal(allOut, againOut) {
			t.Error("two runs of one input differ")
		}
		for _, n := range []int{1, 100, 777, 1500}[(workers-1)/3*2:] {
			wi, wo := run(n, 0)
			if !bytes.HasPrefix(allIn, wi) || !bytes.HasPrefix(allOut, wo) {
				t.Errorf("the outputs for %d packets are no prefix of those for all", n)
			}
		}
		if len(allIn) < 10_000 || len(allOut) < 10_000 {
			t.Errorf("%d and %d bytes left: this test has lost its grip", len(allIn), len(allOut))
		}
	}
}

// TestSeedChangesChoices: where a port is chosen at random another seed chooses another.
func TestSeedChangesChoices(t *testing.T) {
	ports := map[uint16]bool{}
	for seed := range uint64(4) {
		o, path := options(t, "ports: [{name: i, role: inside}, {name: o, role: outside}]\nnat: {alias: [\"203.0.113.1\"], same_ports: false}\n")
		o.Inside, o.Seed = path("i"), seed
		writePcap(t, o.Inside, false, stamped{epoch, udp(t, "udp 10.0.0.2:5000 > 8.8.8.8:53")})
		if err := Run(o); err != nil {
			t.Fatal(err)
		}
		var h packet.Headers
		packet.Parse(readAll(t, o.WriteOutside)[0].frame, &h)
		ports[h.SrcPort] = true
	}
	if len(ports) < 3 {
		t.Errorf("4 seeds chose %v", ports)
	}
}

// TestRepeatedFragments: what a network doubles is sent on doubled, before the datagram is whole and after, by one worker or
// several.
func TestRepeatedFragments(t *testing.T) {
	b := packet.Build{Src: 0x0a000002, Dst: 0x08080808, SrcPort: 5000, DstPort: 53, ID: 9}
	whole := b.UDP(make([]byte, 1000))[packet.EthernetLen+packet.IPv4Len:]
	b.MF = true
	first := b.IP(packet.ProtoUDP, whole[:504])
	b.MF, b.FragOff = false, 504
	tail := b.IP(packet.ProtoUDP, whole[504:])
	for _, workers := range []string{"0", "0-3"} {
		for _, order := range []string{"ftt", "ttf", "tft", "fftt", "fttt", "tftt"} {
			o, path := options(t, plain+"workers: {cores: \""+workers+"\", oversubscribe: true}\n")
			o.Inside = path("i")
			var in []stamped
			for i, c := range order {
				frame := first
				if c == 't' {
					frame = tail
				}
				in = append(in, stamped{epoch.Add(time.Duration(i) * time.Millisecond), frame})
			}
			writePcap(t, o.Inside, false, in...)
			if err := Run(o); err != nil {
				t.Fatal(err)
			}
			if n, d := len(readAll(t, o.WriteOutside)), readDrops(t, o.Drops); n != len(order) || len(d) != 0 {
				t.Errorf("workers %s, %s: %d sent, dropped %v", workers, order, n, d)
			}
		}
	}
}
