package history

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"
)

// The messages of docs/logging.md.
const log = `<134>1 2026-11-30T10:00:00.000Z gw1 pollux 4711 start [pollux@32473 level="session" version="v1"]
<134>1 2026-11-30T10:00:01.000Z gw1 pollux 4711 block-alloc [pollux@32473 worker="0" host="10.0.0.2" alias="203.0.113.1" ports="1024-1087"]
<134>1 2026-11-30T10:00:02.000Z gw1 pollux 4711 session-create [pollux@32473 worker="0" proto="udp" local="10.0.0.2:5353" alias="203.0.113.1:1050" remote="198.51.100.7:53" opened="out"]
<134>1 2026-11-30T10:00:02.500Z gw1 pollux 4711 session-create [pollux@32473 worker="1" proto="udp" local="10.0.0.3:5353" alias="203.0.113.2:1050" remote="198.51.100.7:53" opened="out"]
Nov 30 10:00:03 gw1 sshd[1]: another program's line, by an older format
<134>1 2026-11-30T10:05:03.000Z gw1 pollux 4711 session-delete [pollux@32473 worker="0" proto="udp" local="10.0.0.2:5353" alias="203.0.113.1:1050" remote="198.51.100.7:53" opened="out" packets_out="3" bytes_out="180" packets_in="3" bytes_in="540"]
<134>1 2026-11-30T10:08:00.000Z gw1 pollux 4711 block-release [pollux@32473 worker="0" host="10.0.0.2" alias="203.0.113.1" ports="1024-1087"]
<134>1 2026-11-30T10:10:00.000Z gw1 pollux 4711 block-alloc [pollux@32473 worker="0" host="10.0.0.9" alias="203.0.113.1" ports="1024-1087"]
<134>1 2026-11-30T10:10:01.000Z gw1 pollux 4711 block-alloc [pollux@32473 worker="0" host="10.0.0.8" alias="203.0.113.1" ports="1088-1151"]
<132>1 2026-11-30T10:11:00.000Z gw1 pollux 4711 events-lost [pollux@32473 count="7"]
<134>1 2026-11-30T10:20:00.000Z gw1 pollux 4712 start [pollux@32473 level="session" version="v1"]
<134>1 2026-11-30T10:20:01.000Z gw1 pollux 4712 mapping-create [pollux@32473 worker="0" proto="tcp" local="10.0.0.4:80" alias="203.0.113.1:1050"]
`

func ask(t *testing.T, alias, proto string) Answer {
	t.Helper()
	a, err := Read(netip.MustParseAddrPort(alias), proto, strings.NewReader(log))
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func TestWhoHad(t *testing.T) {
	at := func(clock string) time.Time {
		v, err := time.Parse(time.RFC3339, "2026-11-30T"+clock+"Z")
		if err != nil {
			t.Fatal(err)
		}
		return v
	}
	for _, c := range []struct {
		alias, proto, clock string
		want                string
	}{
		{"203.0.113.1:1050", "", "10:00:00", ""},
		{"203.0.113.1:1050", "", "10:00:01", "block 10.0.0.2"},
		{"203.0.113.1:1050", "", "10:03:00", "block 10.0.0.2, session 10.0.0.2:5353"},
		{"203.0.113.1:1050", "tcp", "10:03:00", "block 10.0.0.2"}, // a block serves all protocols
		{"203.0.113.1:1051", "udp", "10:03:00", "block 10.0.0.2"},
		{"203.0.113.1:1050", "", "10:06:00", "block 10.0.0.2"},
		{"203.0.113.1:1050", "", "10:09:00", ""},
		{"203.0.113.1:1050", "", "10:15:00", "block 10.0.0.9"},
		{"203.0.113.1:1088", "", "10:15:00", "block 10.0.0.8"},
		{"203.0.113.1:1152", "", "10:15:00", ""},
		{"203.0.113.1:1050", "", "10:30:00", "mapping 10.0.0.4:80"}, // the block ended with the restart
		{"203.0.113.1:1050", "udp", "10:30:00", ""},
		{"203.0.113.2:1050", "", "10:03:00", "session 10.0.0.3:5353"},
		{"203.0.113.11:1050", "", "10:03:00", ""}, // an address that begins alike
	} {
		var got []string
		a := ask(t, c.alias, c.proto)
		for i := range a.Holders {
			if a.Holders[i].At(at(c.clock)) {
				got = append(got, a.Holders[i].By+" "+a.Holders[i].Host)
			}
		}
		if s := strings.Join(got, ", "); s != c.want {
			t.Errorf("%s/%s at %s: %q, want %q", c.alias, c.proto, c.clock, s, c.want)
		}
	}
	a := ask(t, "203.0.113.1:1050", "")
	if a.Lost != 7 || a.Foreign != 1 || a.Events != 11 || !a.First.Equal(at("10:00:00")) || !a.Last.Equal(at("10:20:01")) {
		t.Errorf("%+v", a)
	}
	if h := a.Holders[2]; h.Ended != "restart" || !h.To.Equal(at("10:20:00")) || h.Ports != "1024-1087" {
		t.Errorf("%+v", h)
	}
}

func TestNoLog(t *testing.T) {
	alias := netip.MustParseAddrPort("203.0.113.1:1")
	for text, want := range map[string]string{
		"":                             "no line is a translation log message",
		"hello\nworld\n":               "no line is a translation log message",
		strings.Repeat("x", lineMax+1): "a line is longer than",
		"<134>1 nonsense pollux@32473 alias=\"203.0.113.1\"\n": "no line is",
	} {
		if _, err := Read(alias, "", strings.NewReader(text)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.20q: %v", text, err)
		}
	}
}

// Two files are one log, and a long one needs memory for what it says of the endpoint alone.
func TestManyLines(t *testing.T) {
	var b strings.Builder
	for i := range 20000 {
		fmt.Fprintf(&b, "<134>1 2026-11-30T11:%02d:%02d.000Z gw1 pollux 4712 session-create [pollux@32473 worker=\"0\" proto=\"udp\" local=\"10.0.0.2:%d\" alias=\"203.0.113.9:%d\" remote=\"198.51.100.7:53\" opened=\"out\"]\n", i/60%60, i%60, i+1000, i+1000)
	}
	a, err := Read(netip.MustParseAddrPort("203.0.113.1:1050"), "", strings.NewReader(log), strings.NewReader(b.String()))
	if err != nil || a.Events != 20011 || len(a.Holders) != 4 {
		t.Errorf("%d events, %d holders, %v", a.Events, len(a.Holders), err)
	}
}
