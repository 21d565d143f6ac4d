package main

import (
	"io"
	"log/slog"
	"sync"

	"pollux/internal/config"
)

// newLogger makes the logger of the process's own messages: structured, a line each, repeats bounded. Nothing on a packet's
// way logs. flush tells what is still to be told of messages that were left out.
func newLogger(w io.Writer, m config.Messages) (log *slog.Logger, flush func()) {
	o := &slog.HandlerOptions{Level: m.Least}
	var h slog.Handler = slog.NewTextHandler(w, o)
	if m.JSON {
		h = slog.NewJSONHandler(w, o)
	}
	limit := newLogLimit(h)
	return slog.New(&limitedHandler{next: h, limit: limit}), limit.flush
}

// heldWriter keeps what is logged during the start until it is known to have succeeded: a start that fails says one line.
type heldWriter struct {
	mu   sync.Mutex
	to   io.Writer
	held []byte
	open bool
}

func (w *heldWriter) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.open {
		return w.to.Write(p)
	}
	w.held = append(w.held, p...)
	return len(p), nil
}

func (w *heldWriter) release() {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.open = true
	if len(w.held) > 0 {
		_, _ = w.to.Write(w.held)
		w.held = nil
	}
}
