package integration

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"pollux/internal/control"
	"pollux/internal/lab"
	"pollux/pmd"
)

// binary builds the program under test, once.
var binary = sync.OnceValues(func() (string, error) {
	path := filepath.Join(buildDir, "pollux")
	out, err := exec.Command("go", "build", "-o", path, "pollux/cmd/pollux").CombinedOutput()
	if err != nil {
		return "", fmt.Errorf("go build: %w: %s", err, out)
	}
	return path, nil
})

var buildDir string

func TestMain(m *testing.M) {
	var err error
	if buildDir, err = os.MkdirTemp("", "pollux-test-"); err != nil {
		panic(err)
	}
	status := m.Run()
	os.RemoveAll(buildDir)
	os.Exit(status)
}

// pollux returns the path of the built program.
func pollux(t testing.TB) string {
	t.Helper()
	path, err := binary()
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// newLab builds a lab for the test, which is skipped (or fails, in CI) where there can't be one.
// workers is how many the gateways under test have, each with a queue of its own: POLLUX_WORKERS, or one. Whoever takes whichever
// packet, a test that looks from outside must see the same.
var workers = func() int {
	n, err := strconv.Atoi(os.Getenv("POLLUX_WORKERS"))
	if err != nil {
		return 1
	}
	return n
}()

func newLab(t *testing.T, o lab.Options) *lab.Lab {
	t.Helper()
	lab.Require(t)
	o.Queues = max(o.Queues, workers)
	l, err := lab.New(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.Close)
	return l
}

// gateway is a running pollux.
type gateway struct {
	*lab.Process
	*control.Client
	t *testing.T
	l *lab.Lab
}

// run starts pollux in the lab's gateway with more flags. When the test ends it must have lost no frame and must stop by
// SIGTERM with status 0.
func run(t *testing.T, l *lab.Lab, args ...string) *gateway {
	t.Helper()
	if !slices.Contains(args, "--idle") {
		args = append(args, "--idle", "adaptive") // the machine is shared by hosts, gateway and test
	}
	if workers > 1 && !slices.Contains(args, "--cores") {
		args = append(args, "--cores", fmt.Sprintf("0-%d", workers-1), "--oversubscribe")
	}
	p, err := l.StartGateway(pollux(t), args...)
	if err != nil {
		t.Fatal(err)
	}
	g := &gateway{Process: p, Client: control.NewClient(l.Socket()), t: t, l: l}
	t.Cleanup(g.finish)
	return g
}

// finish checks the frames and stops the gateway, unless it was stopped before.
func (g *gateway) finish() {
	select {
	case <-g.Done():
		return
	default:
	}
	if leaked := g.leaked(); leaked != 0 {
		g.t.Errorf("%d frames leaked: %+v", leaked, g.workers())
	}
	if err := g.Stop(syscall.SIGTERM, 5*time.Second); err != nil {
		g.t.Error(err)
	}
	if g.t.Failed() {
		g.t.Logf("the gateway said:\n%s", g.Output())
	}
}

// leaked returns the frames that are in no place once traffic has ceased. Counters are published once a burst, so a
// number that settles at zero within a second is zero.
func (g *gateway) leaked() (sum int64) {
	for range 20 {
		sum = 0
		for _, w := range g.workers() {
			sum += w.Leaked
		}
		if sum == 0 {
			break
		}
		time.Sleep(50 * time.Millisecond)
	}
	return sum
}

func (g *gateway) workers() []pmd.WorkerStats {
	g.t.Helper()
	w, err := g.Workers(g.t.Context())
	if err != nil {
		// After the test its context is done; the gateway still answers.
		w, err = g.Workers(context.Background())
	}
	if err != nil {
		g.t.Errorf("show workers: %v", err)
	}
	return w
}

// drops returns one reason's count.
func (g *gateway) drops(reason string) uint64 {
	g.t.Helper()
	list, err := g.Drops(g.t.Context())
	if err != nil {
		g.t.Errorf("show drops: %v", err)
	}
	for _, d := range list {
		if d.Name == reason {
			return d.Count
		}
	}
	g.t.Errorf("no reason %q in show drops", reason)
	return 0
}

// links returns the link table.
func (g *gateway) links(f control.Filter) (list []control.Link) {
	g.t.Helper()
	_, err := g.Links(g.t.Context(), f, func(l *control.Link) error {
		list = append(list, *l)
		return nil
	})
	if err != nil {
		g.t.Errorf("show links: %v", err)
	}
	return list
}

// limited gives a test's traffic a time limit.
func limited(t *testing.T, d time.Duration) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

func itoa(n int) string { return strconv.Itoa(n) }

// at joins an address and a port.
func at(a netip.Addr, port uint16) string { return netip.AddrPortFrom(a, port).String() }

// eventually waits until what is nil, and fails with its last error.
func eventually(t *testing.T, limit time.Duration, what func() error) {
	t.Helper()
	var err error
	for deadline := time.Now().Add(limit); ; time.Sleep(10 * time.Millisecond) {
		if err = what(); err == nil {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("not within %v: %v", limit, err)
		}
	}
}

// sniff watches what reaches the outside; nothing but alias addresses may be a source there. It fails the test at its
// end otherwise.
func sniff(t *testing.T, l *lab.Lab, alias ...netip.Addr) *lab.Sniffer {
	t.Helper()
	first := l.Outside[0]
	if len(l.Routers) > 0 {
		first = l.Routers[0]
	}
	if len(alias) == 0 {
		alias = []netip.Addr{lab.GatewayOutside}
	}
	s, err := lab.Sniff(first.Namespace, first.Device, alias...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if seen := s.Stop(); seen.Foreign > 0 {
			t.Errorf("%d packets with a source that is no alias address went out: %v", seen.Foreign, seen.Sources)
		}
	})
	return s
}

// mustRun runs a program inside a namespace and fails the test when it fails.
func mustRun(t *testing.T, ctx context.Context, n *lab.Namespace, name string, args ...string) string {
	t.Helper()
	out, err := n.Run(ctx, name, args...)
	if err != nil {
		t.Fatalf("%s: %v", n.Name, err)
	}
	return strings.TrimSpace(out)
}
