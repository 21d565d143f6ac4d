package natlog

import (
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/leodido/go-syslog/v4/rfc5424"

	"pollux/internal/packet"
	"pollux/internal/reason"
	"pollux/nat"
)

func addr(s string) packet.Addr { return packet.AddrFrom(netip.MustParseAddr(s)) }

func wall(s string) int64 {
	t, err := time.Parse(time.RFC3339Nano, s)
	if err != nil {
		panic(err)
	}
	return t.UnixMilli()
}

// dns is a session of an inside host with a name server.
func dns(kind nat.EventKind) record {
	r := record{wall: wall("2026-11-30T15:24:25.123Z")}
	r.Event = nat.Event{
		Kind: kind, Proto: packet.ProtoUDP, Local: nat.Local{Addr: addr("10.0.0.2"), Port: 5353},
		Alias: nat.Alias{Addr: addr("203.0.113.1"), Port: 5353}, Remote: nat.Remote{Addr: addr("198.51.100.7"), Port: 53},
	}
	return r
}

func encoderOf(t testing.TB) *syslogEncoder {
	e, err := newSyslogEncoder("gw1", "v1", 4711, "session")
	if err != nil {
		t.Fatal(err)
	}
	return e
}

// The examples of the documentation are what is sent.
func TestSyslogAsDocumented(t *testing.T) {
	doc, err := os.ReadFile("../../docs/logging.md")
	if err != nil {
		t.Fatal(err)
	}
	ended := dns(nat.EventSessionDelete)
	ended.wall = wall("2026-11-30T15:29:26.001Z")
	ended.Packets, ended.Bytes = [2]uint64{3, 3}, [2]uint64{180, 540}
	block := record{wall: wall("2026-11-30T15:24:25.120Z"), Event: nat.Event{
		Kind: nat.EventBlockTaken, Local: nat.Local{Addr: addr("10.0.0.2")}, Alias: nat.Alias{Addr: addr("203.0.113.1"), Port: 1024}, Remote: nat.Remote{Port: 1087},
	}}
	refused := record{wall: wall("2026-11-30T15:24:26Z"), Event: nat.Event{
		Kind: nat.EventRefused, Reason: reason.NoPort, Proto: packet.ProtoTCP, Local: nat.Local{Addr: addr("10.0.0.2"), Port: 40000},
		Alias: nat.Alias{Addr: addr("203.0.113.1")}, Remote: nat.Remote{Addr: addr("198.51.100.7"), Port: 443},
	}}
	e := encoderOf(t)
	for _, r := range []record{dns(nat.EventSessionCreate), ended, dns(nat.EventMappingCreate), block, refused} {
		if line := string(e.append(nil, &r)); !strings.Contains(string(doc), "\n"+line+"\n") {
			t.Errorf("docs/logging.md does not show\n%s", line)
		}
	}
	for _, name := range messageNames {
		if !strings.Contains(string(doc), "`"+name+"`") {
			t.Errorf("docs/logging.md does not tell of %s", name)
		}
	}
}

func TestSyslogOfTheLogItself(t *testing.T) {
	e := encoderOf(t)
	for _, c := range []struct {
		r    record
		want string
	}{
		{record{extra: extraStart, wall: 1}, `<134>1 1970-01-01T00:00:00.001Z gw1 pollux 4711 start [pollux@32473 level="session" version="v1"]`},
		{record{extra: extraStop, wall: 1}, `<134>1 1970-01-01T00:00:00.001Z gw1 pollux 4711 stop [pollux@32473]`},
		{record{extra: extraLost, wall: 1, Event: nat.Event{Packets: [2]uint64{7, 9}}}, `<132>1 1970-01-01T00:00:00.001Z gw1 pollux 4711 events-lost [pollux@32473 count="7"]`},
	} {
		if got := string(e.append(nil, &c.r)); got != c.want {
			t.Errorf("got  %s\nwant %s", got, c.want)
		}
	}
}

// A hostname that can't stand in a message is left out, and the message is whole.
func TestSyslogHostname(t *testing.T) {
	e, err := newSyslogEncoder("no blanks", "v1", 1, "block")
	if err != nil {
		t.Fatal(err)
	}
	r := record{extra: extraStart}
	m, err := rfc5424.NewParser().Parse(e.append(nil, &r))
	if err != nil {
		t.Fatal(err)
	}
	s := m.(*rfc5424.SyslogMessage)
	if got := (*s.StructuredData)[SDID]["version"]; s.Hostname != nil || got != "v1" {
		t.Errorf("version %s in %+v", got, s)
	}
}

// recordOf makes a record of anything.
func recordOf(kind, proto, why, flags uint8, wall int64, a, b uint64, c, d uint64) record {
	r := record{wall: wall & (1<<41 - 1), worker: int32(flags >> 1)}
	r.Event = nat.Event{
		Kind: nat.EventKind(kind%7) + nat.EventSessionCreate, Proto: proto, Inbound: flags&1 != 0,
		Local:  nat.Local{Addr: packet.Addr(a), Port: uint16(a >> 32)},
		Alias:  nat.Alias{Addr: packet.Addr(b), Port: uint16(b >> 32)},
		Remote: nat.Remote{Addr: packet.Addr(c), Port: uint16(c >> 32)},
	}
	switch r.Kind {
	case nat.EventSessionDelete:
		r.Packets, r.Bytes = [2]uint64{a ^ d, b ^ d}, [2]uint64{c ^ d, d}
	case nat.EventRefused:
		r.Reason = []reason.Reason{reason.NoPort, reason.HostLimit, reason.HostRate, reason.TableFull}[why%4]
		r.Packets[0], r.Bytes[0] = d>>32, d
	}
	if kind >= 250 {
		r.extra, r.Packets = extraLost, [2]uint64{c, d}
	}
	return r
}

// Whatever happened, an independent parser reads it back.
func FuzzSyslog(f *testing.F) {
	f.Add(uint8(0), uint8(6), uint8(0), uint8(0), int64(1796052265123), uint64(1)<<40|0x0a000002, uint64(1)<<40|0xcb007101, uint64(443)<<32|0xc6336407, uint64(9))
	f.Add(uint8(6), uint8(1), uint8(0), uint8(1), int64(0), uint64(1), uint64(0), uint64(443)<<32|7, uint64(1)<<33)
	f.Add(uint8(255), uint8(47), uint8(3), uint8(9), int64(5), uint64(1), uint64(2), uint64(3), uint64(4))
	e := encoderOf(f)
	f.Fuzz(func(t *testing.T, kind, proto, why, flags uint8, wall int64, a, b, c, d uint64) {
		r := recordOf(kind, proto, why, flags, wall, a, b, c, d)
		line := e.append(nil, &r)
		m, err := rfc5424.NewParser().Parse(line)
		if err != nil {
			t.Fatalf("%v: %s", err, line)
		}
		s := m.(*rfc5424.SyslogMessage)
		if !s.Timestamp.Equal(time.UnixMilli(r.wall)) || *s.MsgID != messageNames[messageOf(&r)] || *s.Hostname != "gw1" || *s.ProcID != "4711" || s.Message != nil {
			t.Fatalf("read back as %+v: %s", s, line)
		}
		got := (*s.StructuredData)[SDID]
		want := paramsOf(&r)
		if fmt.Sprint(got) != fmt.Sprint(want) {
			t.Fatalf("got  %v\nwant %v", got, want)
		}
	})
}

// paramsOf says, another way, what the parameters of a record should be.
func paramsOf(r *record) map[string]string {
	if r.extra == extraLost {
		return map[string]string{"count": fmt.Sprint(r.Packets[0])}
	}
	p := map[string]string{"worker": fmt.Sprint(r.worker)}
	ports := r.Proto == 6 || r.Proto == 17 || r.Proto == 1
	end := func(a packet.Addr, port uint16) string {
		if ports {
			return fmt.Sprintf("%v:%d", a, port)
		}
		return a.String()
	}
	proto := map[uint8]string{6: "tcp", 17: "udp", 1: "icmp"}[r.Proto]
	if proto == "" {
		proto = fmt.Sprint(r.Proto)
	}
	if r.Kind == nat.EventBlockTaken || r.Kind == nat.EventBlockGiven {
		p["host"], p["alias"], p["ports"] = r.Local.Addr.String(), r.Alias.Addr.String(), fmt.Sprintf("%d-%d", r.Alias.Port, r.Remote.Port)
		return p
	}
	p["proto"] = proto
	remote := end(r.Remote.Addr, r.Remote.Port)
	if r.Proto == 1 {
		remote = end(r.Remote.Addr, r.Alias.Port)
	}
	if r.Kind == nat.EventRefused {
		p["reason"], p["untold"], p["remote"] = r.Reason.String(), fmt.Sprint(r.Packets[0]), remote
		if r.Local.Addr != 0 {
			p["local"] = end(r.Local.Addr, r.Local.Port)
		}
		if r.Alias.Addr != 0 {
			p["alias"] = r.Alias.Addr.String()
		}
		if r.Proto == 1 {
			p["remote"] = r.Remote.Addr.String()
		}
		return p
	}
	p["local"], p["alias"] = end(r.Local.Addr, r.Local.Port), end(r.Alias.Addr, r.Alias.Port)
	if r.Kind == nat.EventMappingCreate || r.Kind == nat.EventMappingDelete {
		return p
	}
	p["remote"], p["opened"] = remote, "out"
	if r.Inbound {
		p["opened"] = "in"
	}
	if r.Kind == nat.EventSessionDelete {
		p["packets_out"], p["packets_in"] = fmt.Sprint(r.Packets[0]), fmt.Sprint(r.Packets[1])
		p["bytes_out"], p["bytes_in"] = fmt.Sprint(r.Bytes[0]), fmt.Sprint(r.Bytes[1])
	}
	return p
}

// A busy log must not keep the garbage collector busy, too.
func TestEncodingAllocatesNothing(t *testing.T) {
	e, x := encoderOf(t), newIPFIXEncoder(1)
	buf := make([]byte, 0, 1024)
	list := make([]record, 100)
	for i := range list {
		list[i] = dns(nat.EventSessionDelete)
	}
	if n := testing.AllocsPerRun(100, func() {
		e.append(buf, &list[0])
		x.next(list, 1)
		x.done()
	}); n != 0 {
		t.Errorf("%v allocations", n)
	}
}

func BenchmarkSyslog(b *testing.B) {
	e, r, buf := encoderOf(b), dns(nat.EventSessionDelete), make([]byte, 0, 1024)
	b.ReportAllocs()
	for b.Loop() {
		e.append(buf, &r)
	}
}

func BenchmarkIPFIX(b *testing.B) {
	e, list := newIPFIXEncoder(1), make([]record, 16)
	for i := range list {
		list[i] = dns(nat.EventSessionDelete)
	}
	b.ReportAllocs()
	for b.Loop() {
		e.next(list, 1)
		e.done()
	}
	b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N*len(list)), "ns/record")
}
