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

	"pollux/internal/packet"
	"pollux/nat"
	"pollux/pmd"
	"pollux/rtcache"
)

// Gateway is what the API shows: a *pmd.Gateway.
type Gateway interface {
	Workers() []pmd.WorkerStats
	Ports() []pmd.PortStats
	Drops() []pmd.DropStats
	CheckWorker(worker int) error
	SelectLinks(worker int, f *nat.LinkFilter, visit func(*nat.LinkInfo) bool) error
	DeleteLinks(worker int, f *nat.LinkFilter) (int, error)
	Hosts(worker int, within *nat.Network, visit func(*nat.HostInfo) bool) error
	Peers(visit func(*pmd.PeerInfo) bool) error
	Blocks(visit func(*pmd.BlockInfo) bool) error
	Redirects() ([]pmd.RedirectInfo, error)
	Pool() ([]pmd.PoolInfo, error)
	Table() *rtcache.Table
	WhoHas(a nat.Alias, protos []uint8) (list []pmd.Holder, known bool, err error)
	Computed(a nat.Alias) (host packet.Addr, on bool, err error)
	Explain(frame []byte, in string) (pmd.Explanation, error)
	SetRTCache(on bool)
	RTCache() bool
}

// About is what the gateway itself does not know.
type About struct {
	Version  any                        // answered by /v1/version as JSON
	Config   func() (json, yaml string) // the effective configuration now
	Operator Operator                   // nil: nothing can be changed
	Metrics  http.Handler               // answers GET /metrics; nil: there is none
	More     map[string]http.Handler    // further paths, by pattern, as "GET /v1/log"
}

// bodyBytesMax bounds what a client may send.
const bodyBytesMax = 4096

// Limits for clients that take or send nothing. Those that stream an answer set theirs anew as they go.
const (
	bodyDeadline   = 10 * time.Second // for the whole of a request's body
	answerDeadline = 30 * time.Second // from a request's header to its answer's end, unless the handler sets another
)

// Server answers on a Listener until Close.
type Server struct {
	listener *Listener
	http     *http.Server
	done     chan struct{}
}

// Serve starts answering.
func Serve(l *Listener, g Gateway, about About) *Server {
	s := &Server{listener: l, done: make(chan struct{})}
	s.http = newHTTP(g, about)
	go func() {
		defer close(s.done)
		_ = s.http.Serve(l) // ends by Close alone
	}()
	return s
}

// newHTTP is the API with its limits for clients.
func newHTTP(g Gateway, about About) *http.Server {
	return &http.Server{
		Handler:           wholeBodies(Handler(g, about), bodyDeadline),
		ReadHeaderTimeout: 5 * time.Second,
		WriteTimeout:      answerDeadline,
		IdleTimeout:       time.Minute,
		MaxHeaderBytes:    16 << 10,
		ErrorLog:          log.New(io.Discard, "", 0), // clients that hang up are nobody's business
	}
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
	dumps   chan struct{} // tokens of long requests under way
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
	a.lists(mux)
	a.asks(mux)
	mux.HandleFunc("GET /v1/rtcache", func(w http.ResponseWriter, r *http.Request) { a.replyRTCache(w) })
	mux.HandleFunc("PUT /v1/rtcache", a.setRTCache)
	if about.Metrics != nil {
		mux.Handle("GET /metrics", about.Metrics)
	}
	a.operate(mux)
	for pattern, h := range about.More {
		mux.Handle(pattern, h)
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
	patient(w)
	w.Header().Set("Content-Type", "application/json")
	_ = json.NewEncoder(w).Encode(value) // fails only when the client is gone
}

func refuse(w http.ResponseWriter, status int, err error) {
	patient(w)
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	_ = json.NewEncoder(w).Encode(map[string]string{"error": err.Error()})
}

// patient gives the client writeDeadline to take what comes now, however long the question took.
func patient(w http.ResponseWriter) {
	_ = http.NewResponseController(w).SetWriteDeadline(time.Now().Add(writeDeadline)) // a test's recorder has none
}

func (a *api) config(w http.ResponseWriter, r *http.Request) {
	inJSON, inYAML := a.about.Config()
	switch format := r.URL.Query().Get("format"); format {
	case "yaml":
		w.Header().Set("Content-Type", "application/yaml")
		_, _ = io.WriteString(w, inYAML)
	case "", "json":
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, inJSON+"\n")
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
