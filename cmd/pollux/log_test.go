package main

import (
	"bytes"
	"encoding/json"
	"fmt"
	"log/slog"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"pollux/internal/config"
)

// clockwork runs a logLimit by hand.
type clockwork struct {
	now   time.Time
	timed []func()
}

func (c *clockwork) limit(out slog.Handler) *logLimit {
	l := newLogLimit(out)
	l.now = func() time.Time { return c.now }
	l.after = func(_ time.Duration, f func()) { c.timed = append(c.timed, f) }
	return l
}

// turn lets a window pass.
func (c *clockwork) turn() {
	c.now = c.now.Add(logWindow)
	due := c.timed
	c.timed = nil
	for _, f := range due {
		f()
	}
}

// A message that repeats is bounded; another is not held back by it; what was left out is told when the window ends, with
// the highest severity among it, also when the message never comes again.
func TestLogIsRateLimited(t *testing.T) {
	var b bytes.Buffer
	h := slog.NewJSONHandler(&b, nil)
	c := &clockwork{now: time.Unix(1000, 0)}
	log := slog.New(&limitedHandler{next: h, limit: c.limit(h)})
	for range 100 {
		log.Info("link flaps", "port", "eth0")
	}
	log.Warn("link flaps", "port", "eth1")
	log.Info("stopping")
	if n := strings.Count(b.String(), "link flaps"); n != logBurst {
		t.Errorf("%d lines of the same message", n)
	}
	if !strings.Contains(b.String(), "stopping") {
		t.Error("another message was held back")
	}
	b.Reset()
	c.turn()
	var line struct {
		Level, Msg string
		Suppressed int
		Within     time.Duration
	}
	if err := json.Unmarshal(b.Bytes(), &line); err != nil || line.Msg != "link flaps" || line.Suppressed != 101-logBurst || line.Level != "WARN" || line.Within != logWindow {
		t.Errorf("%v, %s", err, &b)
	}
	b.Reset()
	log.Info("link flaps")
	if strings.Count(b.String(), "link flaps") != 1 {
		t.Error("nothing is said in the next window")
	}
	b.Reset()
	c.turn()
	if b.Len() != 0 {
		t.Errorf("nothing was left out, but: %s", &b)
	}
}

// However many different messages there are, memory and output are bounded.
func TestLogOfManyMessages(t *testing.T) {
	var b bytes.Buffer
	h := slog.NewTextHandler(&b, nil)
	c := &clockwork{now: time.Unix(1000, 0)}
	l := c.limit(h)
	log := slog.New(&limitedHandler{next: h, limit: l})
	for i := range 3 * logMessagesMax {
		log.Info(fmt.Sprint("m", i))
	}
	if len(l.counts) > logMessagesMax+1 {
		t.Errorf("%d messages remembered", len(l.counts))
	}
	if n := strings.Count(b.String(), "\n"); n != logMessagesMax+logBurst {
		t.Errorf("%d lines", n)
	}
	b.Reset()
	l.flush()
	if want := fmt.Sprintf("msg=%q suppressed=%d", logOthers, 2*logMessagesMax-logBurst); !strings.Contains(b.String(), want) {
		t.Errorf("want %s in %s", want, &b)
	}
	if len(l.counts) != 0 {
		t.Errorf("%d messages remembered after a flush", len(l.counts))
	}
}

// A logger with attributes shares the limits of the one it came from.
func TestLogWith(t *testing.T) {
	var b bytes.Buffer
	log, flush := newLogger(&b, config.Messages{})
	for i := range 50 {
		log.With(slog.Int("try", i)).WithGroup("g").Warn("again")
	}
	if n := strings.Count(b.String(), "again"); n != logBurst {
		t.Errorf("%d lines", n)
	}
	flush()
	if !strings.Contains(b.String(), "suppressed=45") {
		t.Errorf("not told: %s", &b)
	}
}

// Format and severity are the configuration's.
func TestLogFormat(t *testing.T) {
	var b bytes.Buffer
	log, _ := newLogger(&b, config.Messages{JSON: true, Least: slog.LevelWarn})
	log.Info("unheard")
	log.Warn("heard", "port", "eth0")
	var line struct{ Time, Level, Msg, Port string }
	if err := json.Unmarshal(b.Bytes(), &line); err != nil || line.Level != "WARN" || line.Msg != "heard" || line.Port != "eth0" || line.Time == "" {
		t.Errorf("%v: %s", err, &b)
	}
}

func TestHeldWriter(t *testing.T) {
	var b bytes.Buffer
	w := &heldWriter{to: &b}
	fmt.Fprint(w, "one\n")
	if b.Len() != 0 {
		t.Error("written during the start")
	}
	w.release()
	fmt.Fprint(w, "two\n")
	if b.String() != "one\ntwo\n" {
		t.Errorf("%q", b.String())
	}
}

func TestNotify(t *testing.T) {
	t.Setenv("NOTIFY_SOCKET", "")
	if err := notify("READY=1"); err != nil {
		t.Errorf("without a manager: %v", err)
	}
	path := filepath.Join(t.TempDir(), "n.sock")
	for _, name := range []string{path, "@pollux-test-" + filepath.Base(filepath.Dir(path))} {
		address := name
		if name[0] == '@' {
			address = "\x00" + name[1:]
		}
		ln, err := net.ListenUnixgram("unixgram", &net.UnixAddr{Name: address, Net: "unixgram"})
		if err != nil {
			t.Fatal(err)
		}
		t.Setenv("NOTIFY_SOCKET", name)
		if err := notify("READY=1"); err != nil {
			t.Error(err)
		}
		buf := make([]byte, 64)
		_ = ln.SetReadDeadline(time.Now().Add(2 * time.Second))
		n, err := ln.Read(buf)
		if err != nil || string(buf[:n]) != "READY=1" {
			t.Errorf("%s: %q %v", name, buf[:n], err)
		}
		ln.Close()
	}
	t.Setenv("NOTIFY_SOCKET", filepath.Join(t.TempDir(), "nobody"))
	if err := notify("READY=1"); err == nil {
		t.Error("nobody listens, but no error")
	}
}
