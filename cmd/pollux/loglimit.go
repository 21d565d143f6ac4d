package main

import (
	"context"
	"log/slog"
	"sync"
	"time"
)

// A message that repeats is let through logBurst times in a window that begins with its first line; when the window ends, a
// line tells how many were left out. Messages are told apart by their text alone, not by their attributes. This bounds what
// a flapping link or a flooded control plane writes.
const (
	logBurst       = 5
	logWindow      = 10 * time.Second
	logMessagesMax = 1024             // distinct messages kept apart at a time
	logOthers      = "other messages" // what the rest is counted as
)

// logLimit counts messages.
type logLimit struct {
	out    slog.Handler
	now    func() time.Time
	after  func(time.Duration, func()) // time.AfterFunc, but for tests
	mu     sync.Mutex
	counts map[string]*logCount
}

// logCount counts one message since its window began.
type logCount struct {
	began      time.Time
	lines      int
	suppressed int
	level      slog.Level // the highest that was suppressed
}

func newLogLimit(out slog.Handler) *logLimit {
	return &logLimit{out: out, now: time.Now, counts: map[string]*logCount{},
		after: func(d time.Duration, f func()) { time.AfterFunc(d, f) }}
}

// admit decides about one line.
func (l *logLimit) admit(message string, level slog.Level) bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	c := l.counts[message]
	if c == nil {
		if len(l.counts) >= logMessagesMax {
			if message = logOthers; l.counts[message] != nil {
				c = l.counts[message]
			}
		}
		if c == nil {
			c = &logCount{began: l.now()}
			l.counts[message] = c
			l.after(logWindow, func() { l.end(message) })
		}
	}
	if c.lines++; c.lines <= logBurst {
		return true
	}
	if c.suppressed++; c.suppressed == 1 || level > c.level {
		c.level = level
	}
	return false
}

// end closes a message's window and tells what was left out.
func (l *logLimit) end(message string) {
	l.mu.Lock()
	c := l.counts[message]
	delete(l.counts, message)
	l.mu.Unlock()
	if c != nil && c.suppressed > 0 {
		now := l.now()
		r := slog.NewRecord(now, c.level, message, 0)
		r.AddAttrs(slog.Int("suppressed", c.suppressed), slog.Duration("within", now.Sub(c.began).Round(time.Millisecond)))
		_ = l.out.Handle(context.Background(), r)
	}
}

// flush ends all windows now.
func (l *logLimit) flush() {
	l.mu.Lock()
	var all []string
	for message := range l.counts {
		all = append(all, message)
	}
	l.mu.Unlock()
	for _, message := range all {
		l.end(message)
	}
}

// limitedHandler passes records on as far as a logLimit, shared with the handlers made from it, admits them.
type limitedHandler struct {
	next  slog.Handler
	limit *logLimit
}

func (h *limitedHandler) Enabled(ctx context.Context, level slog.Level) bool {
	return h.next.Enabled(ctx, level)
}

func (h *limitedHandler) Handle(ctx context.Context, r slog.Record) error {
	if !h.limit.admit(r.Message, r.Level) {
		return nil
	}
	return h.next.Handle(ctx, r)
}

func (h *limitedHandler) WithAttrs(attrs []slog.Attr) slog.Handler {
	return &limitedHandler{h.next.WithAttrs(attrs), h.limit}
}

func (h *limitedHandler) WithGroup(name string) slog.Handler {
	return &limitedHandler{h.next.WithGroup(name), h.limit}
}
