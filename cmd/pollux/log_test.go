package main

import (
	"bytes"
	"fmt"
	"log/slog"
	"net"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// A message that repeats is bounded; another is not held back by it; what was left out is told.
func TestLogIsRateLimited(t *testing.T) {
	var b bytes.Buffer
	log := newLogger(&b)
	for range 100 {
		log.Warn("link flaps", "port", "eth0")
	}
	log.Info("stopping")
	if n := strings.Count(b.String(), "link flaps"); n != logBurst {
		t.Errorf("%d lines of the same message", n)
	}
	if !strings.Contains(b.String(), "stopping") {
		t.Error("another message was held back")
	}
	state := &limitState{seen: map[string]*window{}}
	start := time.Unix(1000, 0)
	for i := range 20 {
		if ok, _ := state.admit("m", start); ok != (i < logBurst) {
			t.Fatalf("message %d: admitted %t", i, ok)
		}
	}
	if ok, suppressed := state.admit("m", start.Add(logWindow)); !ok || suppressed != 20-logBurst {
		t.Errorf("after the window: %t, %d suppressed", ok, suppressed)
	}
	for i := range 3 * logMessagesMax {
		state.admit(fmt.Sprint(i), start)
	}
	if len(state.seen) > logMessagesMax {
		t.Errorf("%d messages remembered", len(state.seen))
	}
}

// A logger with attributes shares the limits of the one it came from.
func TestLogWith(t *testing.T) {
	var b bytes.Buffer
	log := newLogger(&b)
	for i := range 50 {
		log.With(slog.Int("try", i)).WithGroup("g").Warn("again")
	}
	if n := strings.Count(b.String(), "again"); n != logBurst {
		t.Errorf("%d lines", n)
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
