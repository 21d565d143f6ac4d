package integration

import (
	"bufio"
	"bytes"
	"fmt"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"pollux/internal/lab"
)

// traceroute itself, in its three modes, shows every hop by its own address; ping itself gets 4000 bytes to and fro.
func TestTracerouteAndPingPrograms(t *testing.T) {
	l := newLab(t, lab.Options{Routers: 3})
	run(t, l)
	sniff(t, l)
	in, out := l.Inside[0], l.Outside[0]
	web, err := lab.ServeTCP(out.Namespace, at(out.Addr, 80), lab.Echo)
	if err != nil {
		t.Fatal(err)
	}
	defer web.Close()
	want := []string{"10.0.0.1", "203.0.113.254", "192.0.2.6", "192.0.2.10", "198.51.100.100"}
	for _, mode := range []string{"-U", "-I", "-T"} { // -U: UDP to port 53; the default walks through ports
		t.Run("traceroute "+mode, func(t *testing.T) {
			text := mustRun(t, limited(t, time.Minute), in.Namespace, "traceroute", mode, "-n", "-q", "2", "-N", "1", "-w", "3", "-m", "8", out.Addr.String())
			var path []string
			for line := range strings.Lines(text) {
				if w := strings.Fields(line); len(w) > 2 && w[0] == itoa(len(path)+1) {
					path = append(path, w[1])
					if strings.Contains(line, "*") || strings.Contains(line, "!") {
						t.Errorf("a probe was lost or refused: %s", line)
					}
				}
			}
			if strings.Join(path, " ") != strings.Join(want, " ") {
				t.Errorf("path %v, want %v, in\n%s", path, want, text)
			}
		})
	}
	text := mustRun(t, limited(t, time.Minute), in.Namespace, "ping", "-n", "-c", "5", "-i", "0.2", "-W", "3", "-s", "4000", out.Addr.String())
	if !strings.Contains(text, "5 packets transmitted, 5 received, 0% packet loss") || strings.Count(text, "4008 bytes from") != 5 {
		t.Errorf("ping -s 4000 says\n%s", text)
	}
}

// ftpServer is as much of an FTP server (RFC 959, RFC 2428) as a passive download needs.
type ftpServer struct {
	host    *lab.Host
	content []byte
	seen    sync.Map // who came, by address: control and data connections
}

func (s *ftpServer) serve(c net.Conn) {
	s.seen.Store(c.RemoteAddr().(*net.TCPAddr).IP.String(), true)
	say := func(format string, args ...any) { fmt.Fprintf(c, format+"\r\n", args...) }
	say("220 ready")
	var data net.Listener
	lines := bufio.NewScanner(c)
	for lines.Scan() {
		verb, _, _ := strings.Cut(strings.ToUpper(lines.Text()), " ")
		switch verb {
		case "USER":
			say("331 password")
		case "PASS":
			say("230 in")
		case "PWD":
			say(`257 "/"`)
		case "TYPE", "CWD":
			say("200 done")
		case "SIZE":
			say("213 %d", len(s.content))
		case "PASV", "EPSV":
			var err error
			if data, err = s.host.Listen("tcp4", at(s.host.Addr, 0)); err != nil {
				say("425 %v", err)
				continue
			}
			defer data.Close()
			port := data.Addr().(*net.TCPAddr).Port
			if a := s.host.Addr.As4(); verb == "PASV" {
				say("227 Entering Passive Mode (%d,%d,%d,%d,%d,%d)", a[0], a[1], a[2], a[3], port>>8, port&0xff)
			} else {
				say("229 Entering Extended Passive Mode (|||%d|)", port)
			}
		case "RETR":
			if data == nil {
				say("425 no data connection")
				continue
			}
			say("150 coming")
			d, err := data.Accept()
			if err != nil {
				return
			}
			s.seen.Store(d.RemoteAddr().(*net.TCPAddr).IP.String(), true)
			_, err = d.Write(s.content)
			d.Close()
			if err != nil {
				say("426 %v", err)
				continue
			}
			say("226 sent")
		case "QUIT":
			say("221 bye")
			return
		default:
			say("502 no %s here", verb)
		}
	}
}

// A client inside fetches a file by FTP in passive mode, old (PASV) and new (EPSV): two connections, both from inside, so
// that nothing in them needs rewriting.
func TestPassiveFTP(t *testing.T) {
	l := newLab(t, lab.Options{Routers: 1})
	run(t, l)
	sniff(t, l)
	in, out := l.Inside[0], l.Outside[0]
	s := &ftpServer{host: out, content: make([]byte, 3<<20+17)}
	r := rand.New(rand.NewPCG(1, 2))
	for i := range s.content {
		s.content[i] = byte(r.Uint32())
	}
	control, err := lab.ServeTCP(out.Namespace, at(out.Addr, 21), s.serve)
	if err != nil {
		t.Fatal(err)
	}
	defer control.Close()
	for _, mode := range []string{"--disable-epsv", "--ftp-pasv"} {
		file := filepath.Join(t.TempDir(), "got")
		mustRun(t, limited(t, time.Minute), in.Namespace, "curl", "-sS", "--noproxy", "*", mode, "--user", "anonymous:x", "-o", file, fmt.Sprintf("ftp://%s/file", out.Addr))
		if got, err := os.ReadFile(file); err != nil || !bytes.Equal(got, s.content) {
			t.Errorf("curl %s got %d bytes of %d, or others; %v", mode, len(got), len(s.content), err)
		}
	}
	s.seen.Range(func(who, _ any) bool {
		if who != lab.GatewayOutside.String() {
			t.Errorf("the server saw %v", who)
		}
		return true
	})
}

// Short connections, ten times as many as the table holds: those that are over make room, so none is refused.
func TestShortConnectionsTenTimesTheTable(t *testing.T) {
	const table = 200
	l := newLab(t, lab.Options{Routers: 1})
	g := run(t, l, "--limits-links", itoa(table))
	sniff(t, l)
	in, out := l.Inside[0], l.Outside[0]
	server, err := lab.ServeTCP(out.Namespace, at(out.Addr, 80), lab.Tell("web"))
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	ctx := limited(t, 2*time.Minute)
	var next, failed atomic.Int64
	var clients sync.WaitGroup
	for range 8 {
		clients.Go(func() {
			for next.Add(1) <= 10*table {
				name, seen, err := lab.Ask(ctx, in.Namespace, at(out.Addr, 80))
				if (err != nil || name != "web" || seen.Addr() != lab.GatewayOutside) && failed.Add(1) <= 3 {
					t.Errorf("connection %d: %q, seen as %v, %v", next.Load(), name, seen, err)
				}
			}
		})
	}
	clients.Wait()
	if n := failed.Load(); n > 0 {
		t.Errorf("%d of %d connections failed", n, 10*table)
	}
	for _, why := range []string{"table-full", "no-port", "host-limit"} {
		if n := g.drops(why); n > 0 {
			t.Errorf("%d packets refused: %s", n, why)
		}
	}
	if n := g.workers()[0].Links; n > table {
		t.Errorf("%d links in a table of %d", n, table)
	}
}

// A published port seen from its own network: the server's ICMP error finds its way back to the client, and datagrams in
// fragments go round.
func TestHairpinErrorsAndFragments(t *testing.T) {
	l := newLab(t, lab.Options{InsideHosts: 2})
	server, client := l.Inside[0], l.Inside[1]
	run(t, l, "--redirect-port", fmt.Sprintf("udp,%s=%s", at(lab.GatewayOutside, 7), at(server.Addr, 7)))
	// Nobody listens on UDP port 7: the server's ICMP error ends the read at once.
	c, err := client.Dial(limited(t, 10*time.Second), "udp4", at(lab.GatewayOutside, 7))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	start := time.Now()
	if err := tryExchange(c.(*net.UDPConn), "anybody?", 5*time.Second); err == nil || !strings.Contains(err.Error(), "refused") {
		t.Errorf("UDP to a closed port: %v after %v, want connection refused", err, time.Since(start))
	}
	echo, err := lab.ServeUDPEcho(server.Namespace, at(server.Addr, 7))
	if err != nil {
		t.Fatal(err)
	}
	defer echo.Close()
	f, err := lab.UDPFlows(limited(t, 20*time.Second), client.Namespace, netip.AddrPortFrom(lab.GatewayOutside, 7), lab.FlowOptions{Flows: 10, PerFlow: 3, Size: 3000})
	if err != nil || f.Answered != 30 {
		t.Errorf("UDP in fragments: %d of 30 answered, %d wrong, %v", f.Answered, f.Wrong, err)
	}
}
