package control

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"pollux/internal/packet"
	"pollux/internal/reason"
	"pollux/nat"
	"pollux/pmd"
)

// fakeGateway shows made-up numbers and generates links instead of holding them.
type fakeGateway struct {
	Gateway // what no test asks
	workers []pmd.WorkerStats
	ports   []pmd.PortStats
	drops   []pmd.DropStats
	links   int
	link    func(i int) nat.LinkInfo
	linkErr error // what Links returns after the last link
	rtcache bool
	growing bool // drops
	visited atomic.Int64
}

func (f *fakeGateway) Workers() []pmd.WorkerStats { return f.workers }
func (f *fakeGateway) Ports() []pmd.PortStats     { return f.ports }
func (f *fakeGateway) Drops() []pmd.DropStats {
	list := slices.Clone(f.drops)
	if f.growing {
		f.drops[0].Count += 1000
	}
	return list
}
func (f *fakeGateway) SetRTCache(on bool) { f.rtcache = on }
func (f *fakeGateway) RTCache() bool      { return f.rtcache }

func (f *fakeGateway) CheckWorker(worker int) error {
	if worker > 3 {
		return fmt.Errorf("worker is %d; allowed: 0 to 3", worker)
	}
	return nil
}

func (f *fakeGateway) SelectLinks(worker int, filter *nat.LinkFilter, visit func(*nat.LinkInfo) bool) error {
	var l nat.LinkInfo
	for i := range f.links {
		f.visited.Add(1)
		l = f.link(i)
		if (worker < 0 || l.Worker == worker) && filter.Picks(&l) && !visit(&l) {
			return nil
		}
	}
	return f.linkErr
}

func (f *fakeGateway) DeleteLinks(worker int, filter *nat.LinkFilter) (n int, err error) {
	for i := range f.links {
		if l := f.link(i); (worker < 0 || l.Worker == worker) && filter.Picks(&l) {
			n++
		}
	}
	return n, f.linkErr
}

func addr(s string) packet.Addr { return packet.AddrFrom(netip.MustParseAddr(s)) }

// four links, one of each kind.
var kinds = []nat.LinkInfo{
	{ID: 1, Proto: packet.ProtoTCP, Local: nat.Local{Addr: addr("10.0.0.1"), Port: 1000}, Alias: nat.Alias{Addr: addr("203.0.113.1"), Port: 2000},
		Remote: nat.Remote{Addr: addr("198.51.100.1"), Port: 443}, State: nat.Established, ExpiresIn: 7_440_000, Packets: 7, Bytes: 800, Age: 61_999, Idle: 1500},
	{ID: 2, Proto: packet.ProtoUDP, Local: nat.Local{Addr: addr("10.0.0.2"), Port: 53}, Alias: nat.Alias{Addr: addr("203.0.113.1"), Port: 53},
		Remote: nat.Remote{Addr: addr("198.51.100.2"), Port: 9999}, State: nat.Active, ExpiresIn: 1, Inbound: true, Worker: 3},
	{ID: 3, Proto: packet.ProtoICMP, Local: nat.Local{Addr: addr("10.0.0.1"), Port: 77}, Alias: nat.Alias{Addr: addr("203.0.113.2"), Port: 78},
		Remote: nat.Remote{Addr: addr("198.51.100.1")}, ExpiresIn: 59_001},
	{ID: 4, Proto: packet.ProtoGRE, Local: nat.Local{Addr: addr("10.0.0.4")}, Alias: nat.Alias{Addr: addr("203.0.113.1")},
		Remote: nat.Remote{Addr: addr("198.51.100.4")}, ExpiresIn: 60_000},
}

func kindsGateway() *fakeGateway {
	return &fakeGateway{links: len(kinds), link: func(i int) nat.LinkInfo { return kinds[i] }, rtcache: true,
		workers: []pmd.WorkerStats{{Worker: 0, Core: 2, Received: 11, Leaked: -1, Frames: map[string]uint64{"free": 9}}},
		ports:   []pmd.PortStats{{Name: "eth1", Role: "inside", MTU: 1500, Queues: []int{0}}},
		drops:   []pmd.DropStats{{Reason: reason.NoPort, Name: "no-port", Count: 5, Help: reason.NoPort.Help()}, {Name: "held", Help: "h"}},
	}
}

var about = About{Version: map[string]string{"version": "v9"}, Config: func() (string, string) { return `{"mode":"auto"}`, "mode: auto\n" }}

// start serves on a socket of its own and returns a client.
func start(t *testing.T, g Gateway) (*Client, *Server, string) {
	t.Helper()
	path := filepath.Join(t.TempDir(), "p.sock")
	l, err := Listen(Options{Path: path, Mode: 0o640})
	if err != nil {
		t.Fatal(err)
	}
	s := Serve(l, g, about)
	t.Cleanup(func() { s.Close() })
	return NewClient(path), s, path
}

// AppendLink writes what json would write of a Link, for every kind.
func TestAppendLink(t *testing.T) {
	want := []Link{
		{Proto: "tcp", Local: "10.0.0.1:1000", Alias: "203.0.113.1:2000", Remote: "198.51.100.1:443", State: "established", ExpiresIn: 7440, ID: 1, Packets: 7, Bytes: 800, Age: 61, Idle: 1},
		{Proto: "udp", Local: "10.0.0.2:53", Alias: "203.0.113.1:53", Remote: "198.51.100.2:9999", State: "active", ExpiresIn: 1, Worker: 3, ID: 2, Inbound: true},
		{Proto: "icmp", Local: "10.0.0.1:77", Alias: "203.0.113.2:78", Remote: "198.51.100.1:78", State: "active", ExpiresIn: 60, ID: 3},
		{Proto: "47", Local: "10.0.0.4", Alias: "203.0.113.1", Remote: "198.51.100.4", State: "active", ExpiresIn: 60, ID: 4},
	}
	for i := range kinds {
		text, err := json.Marshal(want[i])
		if err != nil {
			t.Fatal(err)
		}
		if got := string(AppendLink(nil, &kinds[i])); got != string(text) {
			t.Errorf("got  %s\nwant %s", got, text)
		}
	}
	buf := make([]byte, 0, 1024)
	if n := testing.AllocsPerRun(100, func() { buf = AppendLink(buf[:0], &kinds[0]) }); n != 0 {
		t.Errorf("%v allocations a link", n)
	}
}

func TestClient(t *testing.T) {
	g := kindsGateway()
	c, _, _ := start(t, g)
	ctx := context.Background()
	workers, err := c.Workers(ctx)
	if err != nil || len(workers) != 1 || workers[0].Core != 2 || workers[0].Leaked != -1 || workers[0].Frames["free"] != 9 {
		t.Errorf("%+v %v", workers, err)
	}
	ports, err := c.Ports(ctx)
	if err != nil || len(ports) != 1 || ports[0].Name != "eth1" {
		t.Errorf("%+v %v", ports, err)
	}
	drops, err := c.Drops(ctx)
	if err != nil || len(drops) != 2 || drops[0].Name != "no-port" || drops[0].Count != 5 || drops[0].Help == "" {
		t.Errorf("%+v %v", drops, err)
	}
	if on, err := c.RTCache(ctx); err != nil || !on {
		t.Errorf("%t %v", on, err)
	}
	if err := c.SetRTCache(ctx, false); err != nil || g.rtcache {
		t.Errorf("%t %v", g.rtcache, err)
	}
	for path, want := range map[string]string{"/v1/version": `{"version":"v9"}`, "/v1/config": `{"mode":"auto"}`, "/v1/config?format=yaml": "mode: auto"} {
		p, q, _ := strings.Cut(path, "?")
		values, _ := url.ParseQuery(q)
		body, err := c.Raw(ctx, p, values)
		if err != nil {
			t.Error(err)
			continue
		}
		text, _ := io.ReadAll(body)
		body.Close()
		if strings.TrimSpace(string(text)) != want {
			t.Errorf("%s: %s", path, text)
		}
	}
}

func TestLinksFilter(t *testing.T) {
	for _, c := range []struct {
		f    Filter
		want string // ids
		more bool
	}{
		{Filter{}, "1 2 3 4", false},
		{Filter{Limit: 4}, "1 2 3 4", false},
		{Filter{Limit: 2}, "1 2", true},
		{Filter{Address: "10.0.0.1"}, "1 3", false},
		{Filter{Address: "203.0.113.2"}, "3", false},
		{Filter{Address: "198.51.100.0/30"}, "1 2 3", false},
		{Filter{Port: "53"}, "2", false},
		{Filter{Port: "443"}, "1", false},
		{Filter{Port: "78"}, "3", false},
		{Filter{Port: "0"}, "", false}, // GRE has no port 0
		{Filter{Proto: "tcp"}, "1", false},
		{Filter{Proto: "icmp"}, "3", false},
		{Filter{Proto: "47"}, "4", false},
		{Filter{State: "established"}, "1", false},
		{Filter{State: "active", Proto: "udp", Address: "10.0.0.2", Port: "53", Limit: 1}, "2", false},
		{Filter{Address: "10.0.0.1", Limit: 1}, "1", true},
		{Filter{Local: "10.0.0.0/30"}, "1 2 3", false},
		{Filter{Local: "203.0.113.1"}, "", false},
		{Filter{Alias: "203.0.113.2"}, "3", false},
		{Filter{Remote: "198.51.100.1", Alias: "203.0.113.1"}, "1", false},
		{Filter{Address: "0.0.0.0/0"}, "1 2 3 4", false},
		{Filter{Opened: "in"}, "2", false},
		{Filter{Opened: "out", Proto: "icmp"}, "3", false},
		{Filter{Worker: "3"}, "2", false},
		{Filter{Older: "1m"}, "1", false},
		{Filter{Older: "1m2s"}, "", false},
		{Filter{Younger: "1m"}, "2 3 4", false},
		{Filter{Idle: "1500ms"}, "1", false},
		{Filter{Idle: "1501ms"}, "", false},
	} {
		client, _, _ := start(t, kindsGateway())
		var ids []string
		more, err := client.Links(context.Background(), c.f, func(l *Link) error {
			ids = append(ids, fmt.Sprint(l.ID))
			return nil
		})
		if got := strings.Join(ids, " "); err != nil || got != c.want || more != c.more {
			t.Errorf("%+v: got %q more=%t, want %q more=%t, %v", c.f, got, more, c.want, c.more, err)
		}
	}
}

func TestRefusals(t *testing.T) {
	h := Handler(kindsGateway(), about)
	for _, c := range []struct {
		method, target, body string
		status               int
		want                 string
	}{
		{"GET", "/v1/links?adress=1", "", 400, `unknown parameter "adress"; allowed: address, local, alias, remote, port, proto, state, opened, worker, older, younger, idle, limit`},
		{"GET", "/v1/links?address=x", "", 400, "address is"},
		{"GET", "/v1/links?address=2001:db8::1", "", 400, "IPv4"},
		{"GET", "/v1/links?port=65536", "", 400, "port is"},
		{"GET", "/v1/links?proto=sctp", "", 400, "proto is"},
		{"GET", "/v1/links?state=dead", "", 400, "state is"},
		{"GET", "/v1/links?limit=0", "", 400, "limit is"},
		{"GET", "/v1/links?all=true", "", 400, `unknown parameter "all"`},
		{"GET", "/v1/links?worker=4", "", 400, "worker is 4; allowed: 0 to 3"},
		{"GET", "/v1/links?worker=-1", "", 400, "worker is"},
		{"GET", "/v1/links?opened=up", "", 400, "opened is"},
		{"GET", "/v1/links?older=5", "", 400, "older is"},
		{"GET", "/v1/links?idle=0s", "", 400, "idle is"},
		{"GET", "/v1/links?older=2h&younger=1h", "", 400, "older is longer than younger"},
		{"GET", "/v1/links?older=900h", "", 400, "older is"},
		{"DELETE", "/v1/links", "", 400, "nothing says which links; allowed: a filter, or all=true"},
		{"DELETE", "/v1/links?all=false", "", 400, "all is"},
		{"DELETE", "/v1/links?all=true&port=1", "", 400, "all=true is given besides a filter"},
		{"DELETE", "/v1/links?limit=5&port=1", "", 400, `unknown parameter "limit"`},
		{"GET", "/v1/hosts?address=x", "", 400, "address is"},
		{"GET", "/v1/peers?worker=1", "", 400, `unknown parameter "worker"; allowed: address, limit`},
		{"GET", "/v1/pool?x=1", "", 400, `unknown parameter "x"; allowed: none`},
		{"GET", "/v1/routes?within=10.0.0.1/8", "", 400, "within is"},
		{"GET", "/v1/routes?to=x", "", 400, "to is"},
		{"GET", "/v1/routes?to=10.0.0.1&within=10.0.0.0/8", "", 400, "to is given besides within"},
		{"GET", "/v1/drops?interval=1h", "", 400, "interval is"},
		{"GET", "/v1/links?limit=1&limit=2", "", 400, "given 2 times"},
		{"GET", "/v1/config?format=xml", "", 400, "json or yaml"},
		{"GET", "/v2/links", "", 404, "there is no GET /v2/links"},
		{"POST", "/v1/links", "", 404, "there is no POST /v1/links"},
		{"PUT", "/v1/rtcache", `{"rtcache":1}`, 400, "the body is not"},
		{"PUT", "/v1/rtcache", `{}`, 400, "the body is not"},
		{"PUT", "/v1/rtcache", `{"rtcache":true,"x":1}`, 400, "the body is not"},
		{"PUT", "/v1/rtcache", strings.Repeat(" ", bodyBytesMax+1) + `{"rtcache":true}`, 400, "the body is not"},
	} {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest(c.method, c.target, strings.NewReader(c.body)))
		var answer struct{ Error string }
		if err := json.Unmarshal(w.Body.Bytes(), &answer); err != nil {
			t.Errorf("%s %s: %v in %s", c.method, c.target, err, w.Body)
		}
		if w.Code != c.status || !strings.Contains(answer.Error, c.want) {
			t.Errorf("%s %s: %d %s", c.method, c.target, w.Code, answer.Error)
		}
	}
}

// An empty gateway answers with empty lists, never null.
func TestEmpty(t *testing.T) {
	h := Handler(&fakeGateway{}, about)
	for path, want := range map[string]string{
		"/v1/workers": `{"workers":[]}`, "/v1/ports": `{"ports":[]}`, "/v1/drops": `{"drops":[]}`, "/v1/links": `{"links":[],"more":false}`,
	} {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest("GET", path, nil))
		if got := strings.TrimSpace(w.Body.String()); w.Code != 200 || got != want {
			t.Errorf("%s: %d %s", path, w.Code, got)
		}
	}
}

// Links are deleted by the same filter.
func TestDeleteLinks(t *testing.T) {
	client, _, _ := start(t, kindsGateway())
	for _, c := range []struct {
		f   Filter
		all bool
		n   int
	}{
		{Filter{Address: "10.0.0.1"}, false, 2}, {Filter{Worker: "3"}, false, 1}, {Filter{Proto: "47", Port: "1"}, false, 0}, {Filter{}, true, 4},
	} {
		if n, err := client.DeleteLinks(context.Background(), c.f, c.all); err != nil || n != c.n {
			t.Errorf("%+v: %d %v, want %d", c.f, n, err, c.n)
		}
	}
	g := kindsGateway()
	g.linkErr = errors.New("the gateway stops")
	client, _, _ = start(t, g)
	if _, err := client.DeleteLinks(context.Background(), Filter{Proto: "tcp"}, false); err == nil || !strings.Contains(err.Error(), "1 links were deleted, then: the gateway stops") {
		t.Errorf("got %v", err)
	}
}

// Rates are what was counted between two samples.
func TestDropRates(t *testing.T) {
	g := kindsGateway()
	h := Handler(g, about)
	ask := func(target string) (list []Drop) {
		w := httptest.NewRecorder()
		h.ServeHTTP(w, httptest.NewRequest("GET", target, nil))
		var out struct{ Drops []Drop }
		if err := json.Unmarshal(w.Body.Bytes(), &out); err != nil || w.Code != 200 {
			t.Fatalf("%v in %s", err, w.Body)
		}
		return out.Drops
	}
	if list := ask("/v1/drops"); list[0].Rate != nil || list[0].Count != 5 {
		t.Errorf("%+v", list[0])
	}
	g.growing = true
	if list := ask("/v1/drops?interval=10ms"); list[0].Rate == nil || *list[0].Rate <= 0 || list[1].Rate == nil || *list[1].Rate != 0 {
		t.Errorf("%+v", list)
	}
}

// A dump of four million links is the right length and needs no more memory than one of a thousand.
func TestLinksStream(t *testing.T) {
	g := kindsGateway()
	g.link = func(i int) nat.LinkInfo { l := kinds[i%len(kinds)]; l.ID = uint32(i); return l }
	dump := func(n int) (allocated uint64) {
		g.links = n
		client, _, _ := start(t, g)
		body, err := client.Raw(context.Background(), "/v1/links", nil)
		if err != nil {
			t.Fatal(err)
		}
		defer body.Close()
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		size, err := io.Copy(io.Discard, body)
		if err != nil {
			t.Fatal(err)
		}
		runtime.ReadMemStats(&after)
		if size < int64(n)*100 {
			t.Errorf("%d links in %d bytes", n, size)
		}
		return after.TotalAlloc - before.TotalAlloc
	}
	small, large := dump(1000), dump(4_000_000)
	if large > small+32<<20 { // 800 MB went over the socket
		t.Errorf("1000 links: %d bytes allocated; 4000000: %d", small, large)
	}
}

// A dump that breaks off is an error at the client, not a short list.
func TestLinksCutOff(t *testing.T) {
	g := kindsGateway()
	g.linkErr = errors.New("the gateway stops")
	g.links = 1000
	g.link = func(int) nat.LinkInfo { return kinds[0] }
	client, _, _ := start(t, g)
	_, err := client.Links(context.Background(), Filter{}, func(*Link) error { return nil })
	if err == nil || strings.Contains(err.Error(), "\n") {
		t.Errorf("got %v", err)
	}
}

// A client that hangs up ends the dump: the gateway is not asked on.
func TestLinksHangUp(t *testing.T) {
	g := kindsGateway()
	g.links = 100_000_000
	g.link = func(int) nat.LinkInfo { return kinds[0] }
	client, server, _ := start(t, g)
	stop := errors.New("enough")
	if _, err := client.Links(context.Background(), Filter{}, func(*Link) error { return stop }); !errors.Is(err, stop) {
		t.Fatal(err)
	}
	server.Close()
	if int(g.visited.Load()) == g.links {
		t.Error("closing waited for the whole list")
	}
}

// More dumps than allowed are refused, not queued.
func TestDumpsBounded(t *testing.T) {
	block, entered := make(chan struct{}), make(chan struct{}, dumpsMax)
	g := kindsGateway()
	g.links = 1
	g.link = func(int) nat.LinkInfo { entered <- struct{}{}; <-block; return kinds[0] }
	h := Handler(g, about)
	done := make(chan int, dumpsMax)
	for range dumpsMax {
		go func() {
			w := httptest.NewRecorder()
			h.ServeHTTP(w, httptest.NewRequest("GET", "/v1/links", nil))
			done <- w.Code
		}()
	}
	for range dumpsMax {
		<-entered
	}
	w := httptest.NewRecorder()
	h.ServeHTTP(w, httptest.NewRequest("GET", "/v1/links", nil))
	if w.Code != http.StatusServiceUnavailable {
		t.Errorf("status %d", w.Code)
	}
	close(block)
	for range dumpsMax {
		if code := <-done; code != 200 {
			t.Errorf("status %d", code)
		}
	}
}

func TestListen(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "p.sock")
	l, err := Listen(Options{Path: path, Mode: 0o640, Group: fmt.Sprint(os.Getgid())})
	if err != nil {
		t.Fatal(err)
	}
	info, err := os.Lstat(path)
	if err != nil || info.Mode().Perm() != 0o640 || info.Mode()&os.ModeSocket == 0 {
		t.Errorf("%v %v", info, err)
	}
	if left, _ := filepath.Glob(filepath.Join(dir, "*")); len(left) != 1 {
		t.Errorf("left beside the socket: %v", left)
	}

	_, err = Listen(Options{Path: path, Mode: 0o600})
	if want := fmt.Sprintf("control.socket %s is in use by process %d ", path, os.Getpid()); err == nil || !strings.HasPrefix(err.Error(), want) {
		t.Errorf("busy: got %v, want %s", err, want)
	}

	// A socket that nobody listens on any more is taken over; the former owner leaves the new one alone.
	l.ln.Close()
	next, err := Listen(Options{Path: path, Mode: 0o600})
	if err != nil {
		t.Fatal(err)
	}
	if err := l.Close(); err != nil {
		t.Error(err)
	}
	if conn, err := net.Dial("unix", path); err != nil {
		t.Error("the former owner removed its successor's socket")
	} else {
		conn.Close()
	}
	if err := next.Close(); err != nil {
		t.Error(err)
	}
	if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("left behind: %v", err)
	}

	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, []byte("keep"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		o    Options
		want string
	}{
		{Options{Path: file}, "exists and is no socket"},
		{Options{Path: filepath.Join(dir, "none", "p.sock")}, "its directory can't be used: no such file or directory"},
		{Options{Path: path, Group: "no-such-group"}, `there is no group "no-such-group"`},
	} {
		if _, err := Listen(c.o); err == nil || !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("got %v, want %s", err, c.want)
		}
	}
	if text, _ := os.ReadFile(file); string(text) != "keep" {
		t.Error("somebody else's file was touched")
	}
}

func TestNobodyAnswers(t *testing.T) {
	dir := t.TempDir()
	stale := filepath.Join(dir, "stale")
	ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: stale, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	ln.SetUnlinkOnClose(false)
	ln.Close()
	for path, why := range map[string]string{filepath.Join(dir, "none"): "no such file or directory", stale: "connection refused"} {
		_, err := NewClient(path).Drops(context.Background())
		if want := "no gateway answers on " + path + ": " + why; err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("got %v, want %s", err, want)
		}
	}
}
