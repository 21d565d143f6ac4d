package natlog

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/leodido/go-syslog/v4/rfc5424"

	"pollux/nat"
)

const patience = 20 * time.Second

// until waits for something to become true.
func until(t *testing.T, what string, is func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !is(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("never: %s", what)
		}
	}
}

func newTestLog(t *testing.T, o Options) *Log {
	t.Helper()
	o.Sessions, o.Workers, o.Version = true, 2, "v1"
	l, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

// tell has sessions happen, numbered by the port of the remote.
func tell(l *Log, from, n int) {
	var list []record
	for i := range n {
		r := dns(nat.EventSessionCreate)
		r.wall, r.Remote.Port = time.Now().UnixMilli(), uint16(from+i)
		list = append(list, r)
	}
	l.toAll(list, 0)
}

// params parses a message.
func params(t *testing.T, line []byte) (id string, p map[string]string) {
	t.Helper()
	m, err := rfc5424.NewParser().Parse(line)
	if err != nil {
		t.Fatalf("%v: %q", err, line)
	}
	s := m.(*rfc5424.SyslogMessage)
	return *s.MsgID, (*s.StructuredData)[SDID]
}

// datagrams reads messages from a packet socket into a channel.
func datagrams(c net.PacketConn) <-chan []byte {
	out := make(chan []byte, 10000)
	go func() {
		defer close(out)
		buf := make([]byte, 64<<10)
		for {
			n, _, err := c.ReadFrom(buf)
			if err != nil {
				return
			}
			out <- append([]byte(nil), buf[:n]...)
		}
	}()
	return out
}

func receive(t *testing.T, c <-chan []byte) []byte {
	t.Helper()
	select {
	case b, ok := <-c:
		if !ok {
			t.Fatal("the socket is closed")
		}
		return b
	case <-time.After(patience):
		t.Fatal("nothing comes")
	}
	return nil
}

// Start, what happened, stop: to a UDP socket and a unix socket at once, each event once and in order.
func TestLogToDatagramSockets(t *testing.T) {
	path := filepath.Join(t.TempDir(), "log")
	local, err := net.ListenPacket("unixgram", path)
	if err != nil {
		t.Fatal(err)
	}
	defer local.Close()
	udp, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer udp.Close()
	l := newTestLog(t, Options{Syslog: []Target{{"unixgram", path}, {"udp", udp.LocalAddr().String()}}})
	if s := l.Stats().Collectors[0]; s.Collector != "unix://"+path || s.Connected {
		t.Errorf("%+v", s)
	}
	at := []<-chan []byte{datagrams(local), datagrams(udp)}
	l.Start()
	tell(l, 1, 100)
	l.Close()
	for _, c := range at {
		if id, p := params(t, receive(t, c)); id != "start" || p["level"] != "session" || p["version"] != "v1" {
			t.Errorf("first: %s %v", id, p)
		}
		for i := range 100 {
			if id, p := params(t, receive(t, c)); id != "session-create" || p["remote"] != fmt.Sprintf("198.51.100.7:%d", i+1) {
				t.Fatalf("%d: %s %v", i, id, p)
			}
		}
		if id, _ := params(t, receive(t, c)); id != "stop" {
			t.Errorf("last: %s", id)
		}
	}
	for _, s := range l.Stats().Collectors {
		if s.Sent != 102 || s.Lost != 0 || s.Waiting != 0 {
			t.Errorf("%+v", s)
		}
	}
}

// octetCounted reads one message of a stream.
func octetCounted(r *bufio.Reader) ([]byte, error) {
	head, err := r.ReadString(' ')
	if err != nil {
		return nil, err
	}
	n, err := strconv.Atoi(strings.TrimSuffix(head, " "))
	if err != nil {
		return nil, err
	}
	b := make([]byte, n)
	_, err = io.ReadFull(r, b)
	return b, err
}

// A syslog server that is not there yet, breaks the connection half-way, and comes back: nothing is missing in the end.
func TestLogReconnects(t *testing.T) {
	first, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := first.Addr().String()
	first.Close()
	l := newTestLog(t, Options{Syslog: []Target{{"tcp", address}}})
	l.Start()
	defer l.Close()
	tell(l, 0, 1000)
	until(t, "a failure is seen", func() bool { s := l.Stats().Collectors[0]; return s.Failures > 0 && s.Problem != "" && !s.Connected })

	server, err := net.Listen("tcp", address)
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	seen := map[string]bool{}
	conn, err := server.Accept()
	if err != nil {
		t.Fatal(err)
	}
	r := bufio.NewReader(conn)
	for len(seen) < 1000 {
		line, err := octetCounted(r)
		if err != nil {
			t.Fatal(err)
		}
		if id, p := params(t, line); id == "session-create" {
			seen[p["remote"]] = true
		}
	}
	until(t, "it is connected", func() bool { return l.Stats().Collectors[0].Connected })
	conn.(*net.TCPConn).SetLinger(0) // a reset
	conn.Close()

	// Writes into a connection that is gone fail from the second on at the latest; what failed comes again. What the kernel took
	// before it knew is lost without notice, so this goes on until something comes by the new connection.
	again := make(chan net.Conn, 1)
	go func() {
		if c, err := server.Accept(); err == nil {
			again <- c
		}
	}()
	n := 1000
	var second net.Conn
	until(t, "the connection is made again", func() bool {
		tell(l, n, 1)
		n++
		select {
		case second = <-again:
			return true
		default:
			return false
		}
	})
	defer second.Close()
	tell(l, n, 1)
	want := fmt.Sprintf("198.51.100.7:%d", n)
	for r := bufio.NewReader(second); ; {
		line, err := octetCounted(r)
		if err != nil {
			t.Fatal(err)
		}
		if _, p := params(t, line); p["remote"] == want {
			break
		}
	}
	if s := l.Stats().Collectors[0]; s.Lost != 0 {
		t.Errorf("%+v", s)
	}
}

// A server that reads nothing: what its queue can't hold is lost and counted, the others get everything, and the server is
// told of the loss once it reads again.
func TestLogSlowCollector(t *testing.T) {
	slow, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer slow.Close()
	l := newTestLog(t, Options{Syslog: []Target{{"tcp", slow.Addr().String()}}, Queue: 1024})
	l.Start()
	conn, err := slow.Accept()
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	told := 1 // the start
	until(t, "something is lost", func() bool { tell(l, told, 500); told += 500; return l.Stats().Collectors[0].Lost > 0 })
	done := make(chan error)
	var got, lost int
	go func() {
		for r := bufio.NewReader(conn); ; {
			line, err := octetCounted(r)
			if err != nil {
				done <- err
				return
			}
			switch id, p := params(t, line); id {
			case "events-lost":
				n, _ := strconv.Atoi(p["count"])
				lost += n
			case "stop":
				done <- nil
				return
			default:
				got++
			}
		}
	}()
	until(t, "the queue is empty", func() bool { return l.Stats().Collectors[0].Waiting == 0 })
	tell(l, told, 1)
	told++
	l.Close()
	if err := <-done; err != nil {
		t.Fatal(err)
	}
	if s := l.Stats().Collectors[0]; uint64(lost) != s.Lost || got+lost != told {
		t.Errorf("%d messages came and %d were told to be lost, of %d: %+v", got, lost, told, s)
	}
}

// With nobody at the other end the log ends in time, and says what became of it.
func TestLogEndsWithoutCollectors(t *testing.T) {
	gone, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	address := gone.LocalAddr().String()
	gone.Close()
	l := newTestLog(t, Options{
		Syslog: []Target{{"tcp", address}, {"unixgram", filepath.Join(t.TempDir(), "none")}, {"udp", address}},
		IPFIX:  []Target{{"udp", address}},
	})
	l.Start()
	tell(l, 0, 5000)
	until(t, "all have failed", func() bool {
		for _, c := range l.Stats().Collectors {
			if c.Failures == 0 {
				return false
			}
		}
		return true
	})
	ended := make(chan struct{})
	go func() { l.Close(); close(ended) }()
	select {
	case <-ended:
	case <-time.After(patience):
		t.Fatal("the log does not end")
	}
	for _, s := range l.Stats().Collectors {
		if s.Waiting != 0 || s.Lost == 0 || s.Connected {
			t.Errorf("%+v", s)
		}
	}
}

// What shards write comes out by IPFIX, with the time at which it happened and not at which it was sent.
func TestLogReadsRings(t *testing.T) {
	udp, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer udp.Close()
	l := newTestLog(t, Options{IPFIX: []Target{{"udp", udp.LocalAddr().String()}}})
	at := datagrams(udp)
	l.Start()
	for w, ring := range l.Rings() {
		e := dns(nat.EventSessionCreate).Event
		e.At, e.Local.Port = monotonic()-60_000, uint16(w)
		if !ring.Write(e) {
			t.Fatal("no room")
		}
	}
	d, seen := newDecoder(t), map[uint64]bool{}
	for len(seen) < 2 {
		for _, m := range d.message(receive(t, at)) {
			age := time.Now().UnixMilli() - int64(m[ieTimeMilliseconds])
			if age < 60_000 || age > 60_000+patience.Milliseconds() {
				t.Errorf("it is said to have happened %d ms ago", age)
			}
			seen[m[ieSourcePort]] = true
		}
	}
	l.Close()
}
