package integration

import (
	"bytes"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"pollux/internal/lab"
	"pollux/internal/top"
)

// screen is a terminal of a tmux server of its own, with a program in it.
type screen struct {
	t      *testing.T
	socket string
}

// newScreen runs a program in a terminal. TERM and locale are what many a login has.
func newScreen(t *testing.T, width, height int, env []string, argv ...string) *screen {
	t.Helper()
	if _, err := exec.LookPath("tmux"); err != nil {
		if os.Getenv("POLLUX_REQUIRE_LAB") == "1" {
			t.Fatal("POLLUX_REQUIRE_LAB=1, and tmux is not there: make deps")
		}
		t.Skip("tmux is not there: make deps")
	}
	s := &screen{t, filepath.Join(t.TempDir(), "tmux")}
	args := []string{"new-session", "-d", "-x", itoa(width), "-y", itoa(height)}
	for _, e := range env {
		args = append(args, "-e", e)
	}
	quoted := ""
	for _, a := range argv {
		quoted += "'" + a + "' "
	}
	s.tmux(append(args, quoted+"; echo ended with $?; sleep 600")...)
	t.Cleanup(func() { s.tmux("kill-server") })
	return s
}

func (s *screen) tmux(args ...string) string {
	s.t.Helper()
	cmd := exec.Command("tmux", append([]string{"-S", s.socket, "-f", "/dev/null"}, args...)...)
	cmd.Env = append(os.Environ(), "LC_ALL=C.UTF-8")
	var out, errOut bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errOut
	if err := cmd.Run(); err != nil {
		s.t.Errorf("tmux %s: %v %s", args[0], err, &errOut)
	}
	return out.String()
}

// shows waits until the screen shows all of want and none of what begins with "!", and returns it.
func (s *screen) shows(want ...string) (text string) {
	s.t.Helper()
	eventually(s.t, 20*time.Second, func() error {
		text = s.tmux("capture-pane", "-p")
		for _, w := range want {
			if not, ok := strings.CutPrefix(w, "!"); ok && strings.Contains(text, not) || !ok && !strings.Contains(text, w) {
				return fmt.Errorf("%q, on the screen:\n%s", w, text)
			}
		}
		return nil
	})
	return text
}

// pollux top in a real terminal: it shows the traffic, fits any size, outlives the gateway, and leaves the terminal as it was.
func TestTop(t *testing.T) {
	l := newLab(t, lab.Options{})
	g := run(t, l)
	in, out := l.Inside[0], l.Outside[0]
	echo, err := lab.ServeUDPEcho(out.Namespace, at(out.Addr, 9000))
	if err != nil {
		t.Fatal(err)
	}
	defer echo.Close()
	r, err := lab.UDPFlows(limited(t, time.Minute), in.Namespace, netip.AddrPortFrom(out.Addr, 9000), lab.FlowOptions{Flows: 77, PerFlow: 1, Size: 100, Timeout: 10 * time.Second, At: 20})
	if err != nil || r.Answered != 77 {
		t.Fatalf("%+v %v", r, err)
	}
	s := newScreen(t, 110, 30, nil, pollux(t), "top", "--control", l.Socket(), "--interval", "200ms")
	s.shows("links 77", lab.InsideDevice, lab.OutsideDevice, "WORKER", in.Addr.String(), "every 200ms", "q quit")
	s.tmux("resize-window", "-x", "44", "-y", "12")
	for line := range strings.Lines(s.shows("links 77", "!ROLE", "q quit")) {
		if len(strings.TrimRight(line, "\n")) > 44 {
			t.Errorf("too long: %q", line)
		}
	}
	s.tmux("resize-window", "-x", "110", "-y", "30")
	s.shows("ROLE", "HOST BY LINKS")
	s.tmux("send-keys", "?")
	s.shows("quit", "BURST    packets")
	s.tmux("send-keys", "?")
	s.shows("ROLE", "!BURST    packets")

	if err := g.Process.Stop(syscall.SIGTERM, 10*time.Second); err != nil {
		t.Fatal(err)
	}
	s.shows("no answer since", "links 77") // the last numbers stay
	run(t, l)
	s.shows("every 200ms", "links 0", "!no answer")
	if colours := s.tmux("capture-pane", "-p", "-e"); !strings.Contains(colours, "\x1b[1m") {
		t.Errorf("nothing stands out: %q", colours)
	}
	s.tmux("send-keys", "q")
	s.shows("ended with 0", "!WORKER")

	plain := newScreen(t, 80, 24, []string{"NO_COLOR=1"}, pollux(t), "top", "--control", l.Socket(), "--interval", "200ms")
	plain.shows("links 0", "every 200ms")
	if text := plain.tmux("capture-pane", "-p", "-e"); strings.Contains(text, "\x1b[") {
		t.Errorf("NO_COLOR is set, and it colours: %q", text)
	}
	plain.tmux("send-keys", "C-c")
	plain.shows("ended with 0")
}

// One frame for scripts: as text, and as JSON with rates of the traffic that there was.
func TestTopOnce(t *testing.T) {
	l := newLab(t, lab.Options{})
	run(t, l)
	in, out := l.Inside[0], l.Outside[0]
	echo, err := lab.ServeUDPEcho(out.Namespace, at(out.Addr, 9000))
	if err != nil {
		t.Fatal(err)
	}
	defer echo.Close()
	cmd := exec.Command(pollux(t), "top", "--json", "--control", l.Socket(), "--interval", "2s")
	var text bytes.Buffer
	cmd.Stdout = &text
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	sent := 0
	for done := false; !done; { // until it has looked twice
		r, err := lab.UDPFlows(limited(t, time.Minute), in.Namespace, netip.AddrPortFrom(out.Addr, 9000), lab.FlowOptions{Flows: 20, PerFlow: 5, Size: 100, Timeout: 10 * time.Second})
		if err != nil || r.Answered != r.Sent {
			t.Fatalf("%+v %v", r, err)
		}
		sent += r.Sent
		select {
		case err = <-ended:
			done = true
			if err != nil {
				t.Fatal(err)
			}
		default:
		}
	}
	var f top.Frame
	if err := json.Unmarshal(text.Bytes(), &f); err != nil {
		t.Fatalf("%v in %s", err, &text)
	}
	if most := 2*float64(sent)/f.Interval + 100; f.Interval < 2 || len(f.Ports) != 2 || f.Total.RX <= 0 || f.Total.RX > most || f.Total.RXBits < f.Total.RX*8*142/2 ||
		f.Total.Created <= 0 || f.Total.Links == 0 || f.Workers[0].Occupancy <= 0 || len(f.Hosts) != 1 || f.Hosts[0].Address != in.Addr.String() {
		t.Errorf("%d datagrams were sent, %+v", sent, f)
	}
	lines, err := exec.Command(pollux(t), "top", "--once", "--control", l.Socket(), "--interval", "100ms").Output()
	if err != nil || !strings.Contains(string(lines), "WORKER") || !strings.Contains(string(lines), lab.InsideDevice) || strings.Contains(string(lines), "\x1b") {
		t.Errorf("%v\n%s", err, lines)
	}
}
