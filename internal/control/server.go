package control

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log"
	"net/http"
	"time"

	"pollux/nat"
	"pollux/pmd"
)

// Gateway is what the API shows: a *pmd.Gateway.
type Gateway interface {
	Workers() []pmd.WorkerStats
	Ports() []pmd.PortStats
	Drops() []pmd.DropStats
	Links(visit func(nat.LinkInfo) bool) error
	SetRTCache(on bool)
	RTCache() bool
}

// About is what does not change while the gateway runs.
type About struct {
	Version    any    // answered by /v1/version as JSON
	ConfigJSON string // the effective configuration
	ConfigYAML string
	Metrics    http.Handler // answers GET /metrics; nil: there is none
}

const (
	bodyBytesMax  = 4096
	dumpsMax      = 2                // dumps of links at a time
	chunkBytes    = 32 << 10         // of a dump, written at a time
	writeDeadline = 10 * time.Second // a client that takes no byte for so long is dropped
)

// Server answers on a Listener until Close.
type Server struct {
	listener *Listener
	http     http.Server
	done     chan struct{}
}

// Serve starts answering.
func Serve(l *Listener, g Gateway, about About) *Server {
	s := &Server{listener: l, done: make(chan struct{})}
	s.http = http.Server{
		Handler:           Handler(g, about),
		ReadHeaderTimeout: 5 * time.Second,
		IdleTimeout:       time.Minute,
		MaxHeaderBytes:    16 << 10,
		ErrorLog:          log.New(io.Discard, "", 0), // clients that hang up are nobody's business
	}
	go func() {
		defer close(s.done)
		_ = s.http.Serve(l.ln) // ends by Close alone
	}()
	return s
}

// Close ends the API: requests have a second to finish.
func (s *Server) Close() error {
	err := s.listener.Close()
	ctx, cancel := context.WithTimeout(context.Background(), time.Second)
	defer cancel()
	if s.http.Shutdown(ctx) != nil {
		s.http.Close()
	}
	<-s.done
	return err
}

// api answers requests.
type api struct {
	gateway Gateway
	about   About
	dumps   chan struct{} // tokens of dumps under way
}

// Handler is the API without its socket.
func Handler(g Gateway, about About) http.Handler {
	a := &api{gateway: g, about: about, dumps: make(chan struct{}, dumpsMax)}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /v1/version", func(w http.ResponseWriter, r *http.Request) { reply(w, about.Version) })
	mux.HandleFunc("GET /v1/config", a.config)
	mux.HandleFunc("GET /v1/workers", func(w http.ResponseWriter, r *http.Request) {
		reply(w, map[string]any{"workers": notNil(g.Workers())})
	})
	mux.HandleFunc("GET /v1/ports", func(w http.ResponseWriter, r *http.Request) {
		reply(w, map[string]any{"ports": notNil(g.Ports())})
	})
	mux.HandleFunc("GET /v1/drops", func(w http.ResponseWriter, r *http.Request) {
		reply(w, map[string]any{"drops": notNil(g.Drops())})
	})
	mux.HandleFunc("GET /v1/links", a.links)
	mux.HandleFunc("GET /v1/rtcache", func(w http.ResponseWriter, r *http.Request) { a.replyRTCache(w) })
	mux.HandleFunc("PUT /v1/rtcache", a.setRTCache)
	if about.Metrics != nil {
		mux.Handle("GET /metrics", about.Metrics)
	}
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		refuse(w, http.StatusNotFound, fmt.Errorf("there is no %s %s", r.Method, r.URL.Path))
	})
	return mux
}

func notNil[T any](list []T) []T {
	if list == nil {
		return []T{}
	}
	return list
}

func reply(w http.ResponseWriter, value any) {
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(value) // fails only when the client is gone
}

func refuse(w http.ResponseWriter, status int, err error) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(map[string]string{"error": err.Error()})
}

func (a *api) config(w http.ResponseWriter, r *http.Request) {
	switch format := r.URL.Query().Get("format"); format {
	case "yaml":
		w.Header().Set("Content-Type", "application/yaml")
		_, _ = io.WriteString(w, a.about.ConfigYAML)
	case "", "json":
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, a.about.ConfigJSON+"\n")
	default:
		refuse(w, http.StatusBadRequest, fmt.Errorf("format is %q; allowed: json or yaml", format))
	}
}

// rtcache is the body of /v1/rtcache; a pointer tells a missing field from false.
type rtcacheBody struct {
	RTCache *bool `json:"rtcache"`
}

func (a *api) replyRTCache(w http.ResponseWriter) {
	on := a.gateway.RTCache()
	reply(w, rtcacheBody{&on})
}

func (a *api) setRTCache(w http.ResponseWriter, r *http.Request) {
	var body rtcacheBody
	d := json.NewDecoder(http.MaxBytesReader(w, r.Body, bodyBytesMax))
	d.DisallowUnknownFields()
	if err := d.Decode(&body); err != nil || body.RTCache == nil {
		refuse(w, http.StatusBadRequest, errors.New(`the body is not {"rtcache": true} or {"rtcache": false}`))
		return
	}
	a.gateway.SetRTCache(*body.RTCache)
	a.replyRTCache(w)
}

// links streams the link table.
func (a *api) links(w http.ResponseWriter, r *http.Request) {
	m, limit, err := parseFilter(r.URL.Query())
	if err != nil {
		refuse(w, http.StatusBadRequest, err)
		return
	}
	select {
	case a.dumps <- struct{}{}:
		defer func() { <-a.dumps }()
	default:
		refuse(w, http.StatusServiceUnavailable, fmt.Errorf("%d dumps of links are under way; try again", dumpsMax))
		return
	}
	w.Header().Set("Content-Type", "application/json")
	d := dump{w: w, rc: http.NewResponseController(w), matcher: m, limit: limit, buf: make([]byte, 0, chunkBytes+1024)}
	d.buf = append(d.buf, `{"links":[`...)
	err = a.gateway.Links(d.visit)
	if err == nil {
		err = d.err
	}
	if err == nil {
		d.buf = fmt.Appendf(d.buf, `],"more":%t}`+"\n", d.more)
		err = d.flush()
	}
	if err != nil {
		panic(http.ErrAbortHandler) // cuts the connection, so that the client sees that it is not whole
	}
}

// dump is one listing on its way out.
type dump struct {
	w       http.ResponseWriter
	rc      *http.ResponseController
	matcher matcher
	limit   int
	sent    int
	more    bool
	buf     []byte
	err     error
}

func (d *dump) visit(l nat.LinkInfo) bool {
	if !d.matcher.match(&l) {
		return true
	}
	if d.limit > 0 && d.sent == d.limit {
		d.more = true
		return false
	}
	if d.sent > 0 {
		d.buf = append(d.buf, ',', '\n')
	}
	d.sent++
	d.buf = AppendLink(d.buf, &l)
	if len(d.buf) >= chunkBytes {
		d.err = d.flush()
	}
	return d.err == nil
}

func (d *dump) flush() error {
	// A transport without deadlines (a test's recorder) says so; then none is needed.
	if err := d.rc.SetWriteDeadline(time.Now().Add(writeDeadline)); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return err
	}
	_, err := d.w.Write(d.buf)
	d.buf = d.buf[:0]
	return err
}
