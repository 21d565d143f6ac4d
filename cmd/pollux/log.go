package main

import (
	"context"
	"io"
	"log/slog"
	"sync"
	"time"
)

// A message that repeats is let through logBurst times in each logWindow; the first one after that tells how many were
// left out. Nothing on the packet path logs; this bounds what a flapping link or a flooded control plane writes.
const (
	logBurst       = 5
	logWindow      = 10 * time.Second
	logMessagesMax = 1024 // distinct messages remembered
)

func newLogger(w io.Writer) *slog.Logger {
	return slog.New(&limitedHandler{next: slog.NewTextHandler(w, nil), state: &limitState{seen: map[string]*window{}}})
}

// limitedHandler passes records on, but repeats of one message only at a bounded rate.
type limitedHandler struct {
	next  slog.Handler
	state *limitState
}

type limitState struct {
	mu   sync.Mutex
	seen map[string]*window
}

// window counts one message since start.
type window struct {
	start time.Time
	count int
}

// admit decides about one record; suppressed is how many of its kind were left out before it.
func (s *limitState) admit(message string, now time.Time) (ok bool, suppressed int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	w := s.seen[message]
	if w == nil {
		if len(s.seen) >= logMessagesMax {
			clear(s.seen)
		}
		w = &window{start: now}
		s.seen[message] = w
	}
	if now.Sub(w.start) >= logWindow {
		suppressed = max(0, w.count-logBurst)
		*w = window{start: now}
	}
	w.count++
	return w.count <= logBurst, suppressed
}

func (h *limitedHandler) Enabled(ctx context.Context, level slog.Level) bool {
	return h.next.Enabled(ctx, level)
}

func (h *limitedHandler) Handle(ctx context.Context, r slog.Record) error {
	ok, suppressed := h.state.admit(r.Message, r.Time)
	if !ok {
		return nil
	}
	if suppressed > 0 {
		r = r.Clone()
		r.AddAttrs(slog.Int("suppressed", suppressed))
	}
	return h.next.Handle(ctx, r)
}

func (h *limitedHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &limitedHandler{h.next.WithAttrs(attrs), h.state}
}

func (h *limitedHandler) WithGroup(name string) slog.Handler {
	return &limitedHandler{h.next.WithGroup(name), h.state}
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
