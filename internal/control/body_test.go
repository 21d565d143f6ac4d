package control

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// A client that sends half a body, or more than there may be, is told so and let go; none is waited for.
func TestBodies(t *testing.T) {
	handled := make(chan string, 10)
	ln, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	if err != nil {
		t.Fatal(err)
	}
	server := http.Server{Handler: wholeBodies(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		body, err := io.ReadAll(r.Body)
		handled <- fmt.Sprint(string(body), err)
	}), 50*time.Millisecond)}
	go server.Serve(ln)
	defer server.Close()
	for _, c := range []struct {
		request string
		status  int
		want    string // handled, or in the answer
	}{
		{"PUT /v1/drain HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n\r\nabcd", 200, "abcd<nil>"},
		{"GET /v1/links HTTP/1.1\r\nHost: x\r\n\r\n", 200, "<nil>"},
		{"PUT /v1/drain HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n", 200, "abc<nil>"},
		{"PUT /v1/drain HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n\r\nab", 408, "did not come within 50ms"},
		{"GET /v1/links HTTP/1.1\r\nHost: x\r\nContent-Length: 4\r\n\r\n", 408, "did not come within 50ms"},
		{"PUT /v1/drain HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999\r\n\r\n" + strings.Repeat("a", bodyBytesMax+1), 413, "more than 4096 bytes"},
		{"POST /v1/reload HTTP/1.1\r\nHost: x\r\nContent-Length: 5000\r\n\r\n" + strings.Repeat("a", 5000), 200, strings.Repeat("a", 5000) + "<nil>"},
		{"PUT /v1/drain HTTP/1.1\r\nHost: x\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", 400, "the body broke off"},
	} {
		conn, err := net.Dial("unix", ln.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		conn.SetDeadline(time.Now().Add(20 * time.Second))
		fmt.Fprint(conn, c.request)
		answer, err := http.ReadResponse(bufio.NewReader(conn), nil)
		if err != nil {
			t.Errorf("%.80q: %v", c.request, err)
			conn.Close()
			continue
		}
		text, _ := io.ReadAll(answer.Body)
		got := string(text)
		if answer.StatusCode == 200 {
			got = <-handled
		} else if _, err := conn.Read(make([]byte, 1)); err != io.EOF { // cut off
			t.Errorf("%.80q: the connection stays open: %v", c.request, err)
		}
		if answer.StatusCode != c.status || !strings.Contains(got, c.want) {
			t.Errorf("%.80q: %d %.200s; want %d, %s", c.request, answer.StatusCode, got, c.status, c.want)
		}
		conn.Close()
	}
}

// notingConn notes in which order deadlines for writing are set and bytes are written.
type notingConn struct {
	net.Conn
	mu     *sync.Mutex
	events *[]string
}

func (c notingConn) note(what string) {
	c.mu.Lock()
	*c.events = append(*c.events, what)
	c.mu.Unlock()
}

func (c notingConn) SetWriteDeadline(at time.Time) error {
	c.note("deadline")
	return c.Conn.SetWriteDeadline(at)
}

func (c notingConn) Write(b []byte) (int, error) {
	c.note("write")
	return c.Conn.Write(b)
}

type notingListener struct {
	net.Listener
	mu     sync.Mutex
	events []string
}

func (l *notingListener) Accept() (net.Conn, error) {
	c, err := l.Listener.Accept()
	return notingConn{c, &l.mu, &l.events}, err
}

// No answer waits for ever for a client that takes nothing.
func TestEachAnswerHasItsTime(t *testing.T) {
	inner, err := net.Listen("unix", filepath.Join(t.TempDir(), "s"))
	if err != nil {
		t.Fatal(err)
	}
	ln := &notingListener{Listener: inner}
	server := newHTTP(kindsGateway(), About{Metrics: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, "metrics") })})
	go server.Serve(ln)
	defer server.Close()
	conn, err := net.Dial("unix", inner.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(20 * time.Second))
	from := bufio.NewReader(conn)
	for _, path := range []string{"/v1/links", "/v1/version", "/metrics", "/v1/nothing", "/v1/links", "/v1/workers"} {
		ln.mu.Lock()
		ln.events = nil
		ln.mu.Unlock()
		fmt.Fprintf(conn, "GET %s HTTP/1.1\r\nHost: x\r\n\r\n", path)
		answer, err := http.ReadResponse(from, nil)
		if err != nil {
			t.Fatal(path, err)
		}
		io.Copy(io.Discard, answer.Body)
		ln.mu.Lock()
		if len(ln.events) == 0 || ln.events[0] != "deadline" {
			t.Errorf("%s: %v; want a deadline before anything is written", path, ln.events)
		}
		ln.mu.Unlock()
	}
}
