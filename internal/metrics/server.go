package metrics

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/netip"
	"os"
	"syscall"
	"time"
)

// Server serves an exporter by TCP, at /metrics, until Close.
type Server struct {
	ln   net.Listener
	http http.Server
	done chan struct{}
}

// Listen claims the address. Nothing is answered until Serve. The error is one line for people.
func Listen(at netip.AddrPort) (*Server, error) {
	ln, err := net.Listen("tcp", at.String())
	if err != nil {
		what := "choose another address"
		var errno syscall.Errno
		if errors.As(err, &errno) {
			err = errno
		}
		switch {
		case errors.Is(err, syscall.EADDRINUSE):
			what = "another program listens there: ss -ltnp; choose another port"
		case errors.Is(err, syscall.EADDRNOTAVAIL):
			what = "the machine has no such address: ip address; choose one that it has"
		}
		return nil, fmt.Errorf("control.metrics %s: %w: %s", at, err, what)
	}
	return &Server{ln: ln, done: make(chan struct{})}, nil
}

// Adopt takes over the socket that a predecessor listens on. f is closed.
func Adopt(f *os.File) (*Server, error) {
	defer f.Close()
	ln, err := net.FileListener(f)
	if err != nil {
		return nil, fmt.Errorf("control.metrics: the predecessor's socket: %w", err)
	}
	return &Server{ln: ln, done: make(chan struct{})}, nil
}

// File returns a copy of the listening socket, for a successor.
func (s *Server) File() (*os.File, error) {
	l, ok := s.ln.(*net.TCPListener)
	if !ok {
		return nil, errors.New("control.metrics: no TCP socket")
	}
	return l.File()
}

// Addr returns where it listens.
func (s *Server) Addr() net.Addr { return s.ln.Addr() }

// Serve starts answering. A nil Server serves nobody.
func (s *Server) Serve(e *Exporter) {
	if s == nil {
		return
	}
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", e)
	s.http = http.Server{
		Handler:           mux,
		ReadHeaderTimeout: 5 * time.Second,
		ReadTimeout:       5 * time.Second,
		WriteTimeout:      scrapeDeadline + 5*time.Second,
		IdleTimeout:       2 * time.Minute, // longer than the usual interval between scrapes
		MaxHeaderBytes:    16 << 10,
		ErrorLog:          log.New(io.Discard, "", 0), // clients that hang up are nobody's business
	}
	go func() {
		defer close(s.done)
		_ = s.http.Serve(s.ln) // ends by Close alone
	}()
}

// Close stops listening. After Serve, scrapes under way have a second to finish.
func (s *Server) Close() error {
	if s == nil {
		return nil
	}
	if s.http.Handler == nil { // never served
		return s.ln.Close()
	}
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	err := s.http.Shutdown(ctx)
	if errors.Is(err, context.DeadlineExceeded) {
		err = s.http.Close()
	}
	<-s.done
	return err
}
