package lab

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"hash"
	"io"
	"math/rand/v2"
	"net"
	"net/http"
	"strconv"
	"sync/atomic"
	"time"
)

// FileServer is an HTTP server inside a namespace. GET /bytes/N answers with N bytes that are random but for their seed,
// and their SHA-256 as a trailer; PUT /sink answers with the SHA-256 of what it got.
type FileServer struct {
	srv  *http.Server
	Addr net.Addr
}

const sumHeader = "X-Sha256"

var seeds atomic.Uint64

// ServeFiles starts a FileServer at a numeric "addr:port".
func ServeFiles(n *Namespace, address string) (*FileServer, error) {
	l, err := n.Listen("tcp", address)
	if err != nil {
		return nil, err
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /bytes/{n}", func(w http.ResponseWriter, r *http.Request) {
		n, err := strconv.ParseInt(r.PathValue("n"), 10, 64)
		if err != nil || n < 0 {
			http.Error(w, "a number of bytes is wanted", http.StatusBadRequest)
			return
		}
		w.Header().Set("Trailer", sumHeader)
		sum := sha256.New()
		if _, err := io.Copy(w, io.TeeReader(noise(n), sum)); err == nil {
			w.Header().Set(sumHeader, hexSum(sum))
		}
	})
	mux.HandleFunc("PUT /sink", func(w http.ResponseWriter, r *http.Request) {
		sum := sha256.New()
		if _, err := io.Copy(sum, r.Body); err != nil {
			http.Error(w, err.Error(), http.StatusBadRequest)
			return
		}
		io.WriteString(w, hexSum(sum))
	})
	s := &FileServer{srv: &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second}, Addr: l.Addr()}
	go s.srv.Serve(l)
	return s, nil
}

// Close ends the server and its connections.
func (s *FileServer) Close() { s.srv.Close() }

// noise reads as n bytes that no two calls repeat.
func noise(n int64) io.Reader {
	var seed [32]byte
	binary.LittleEndian.PutUint64(seed[:], seeds.Add(1))
	return io.LimitReader(rand.NewChaCha8(seed), n)
}

func hexSum(h hash.Hash) string { return hex.EncodeToString(h.Sum(nil)) }

// Transfer is what a download or an upload moved. It went well when Sum and PeerSum are equal.
type Transfer struct {
	Bytes   int64
	Sum     string // SHA-256 as this side saw the bytes
	PeerSum string // as the other side did
	Took    time.Duration
}

// Mbps is the rate in megabits per second.
func (t Transfer) Mbps() float64 { return float64(t.Bytes) * 8 / t.Took.Seconds() / 1e6 }

// Download gets size bytes from a FileServer at "addr:port" and compares the hashes.
func Download(ctx context.Context, n *Namespace, server string, size int64) (Transfer, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, fmt.Sprintf("http://%s/bytes/%d", server, size), nil)
	if err != nil {
		return Transfer{}, err
	}
	return exchange(n, req, func(resp *http.Response, t *Transfer) error {
		sum := sha256.New()
		var err error
		if t.Bytes, err = io.Copy(sum, resp.Body); err != nil {
			return err
		}
		t.Sum, t.PeerSum = hexSum(sum), resp.Trailer.Get(sumHeader)
		return nil
	}, size)
}

// Upload puts size bytes to a FileServer at "addr:port" and compares the hashes.
func Upload(ctx context.Context, n *Namespace, server string, size int64) (Transfer, error) {
	sum := sha256.New()
	sent := new(counter)
	body := io.TeeReader(noise(size), io.MultiWriter(sum, sent))
	req, err := http.NewRequestWithContext(ctx, http.MethodPut, fmt.Sprintf("http://%s/sink", server), body)
	if err != nil {
		return Transfer{}, err
	}
	req.ContentLength = size
	return exchange(n, req, func(resp *http.Response, t *Transfer) error {
		b, err := io.ReadAll(io.LimitReader(resp.Body, 1024))
		t.Bytes, t.Sum, t.PeerSum = int64(*sent), hexSum(sum), string(b)
		return err
	}, size)
}

type counter int64

func (c *counter) Write(b []byte) (int, error) {
	*c += counter(len(b))
	return len(b), nil
}

func exchange(n *Namespace, req *http.Request, finish func(*http.Response, *Transfer) error, size int64) (Transfer, error) {
	tr := &http.Transport{DialContext: n.Dial, DisableKeepAlives: true, DisableCompression: true, WriteBufferSize: 64 << 10, ReadBufferSize: 64 << 10}
	defer tr.CloseIdleConnections()
	start := time.Now()
	var t Transfer
	resp, err := tr.RoundTrip(req)
	if err == nil {
		defer resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			err = fmt.Errorf("%s %s: %s", req.Method, req.URL, resp.Status)
		} else {
			err = finish(resp, &t)
		}
	}
	t.Took = time.Since(start)
	if err != nil {
		return t, err
	}
	if t.Bytes != size {
		return t, fmt.Errorf("%s %s: %d bytes moved instead of %d", req.Method, req.URL, t.Bytes, size)
	}
	if t.Sum != t.PeerSum {
		return t, fmt.Errorf("%s %s: SHA-256 differs: %s here, %s there", req.Method, req.URL, t.Sum, t.PeerSum)
	}
	return t, nil
}
