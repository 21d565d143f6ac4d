package control

import (
	"cmp"
	"context"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"pollux/internal/packet"
	"pollux/nat"
)

// manyHosts is a gateway with a list of hosts.
type manyHosts struct {
	*fakeGateway
	hosts []nat.HostInfo
}

func (m *manyHosts) Hosts(_ int, _ *nat.Network, visit func(*nat.HostInfo) bool) error {
	for i := range m.hosts {
		if !visit(&m.hosts[i]) {
			break
		}
	}
	return nil
}

// The top hosts are those that sorting all of them would give.
func TestTopHosts(t *testing.T) {
	g := &manyHosts{fakeGateway: kindsGateway()}
	rng := rand.New(rand.NewPCG(1, 2))
	for i := range packet.Addr(5000) {
		g.hosts = append(g.hosts, nat.HostInfo{Addr: 0x0a000000 + i, Links: rng.Uint32N(1 << 20), Refused: rng.Uint32N(1 << 20), Ports: -1, Blocks: -1})
	}
	c, _, _ := start(t, g)
	for by, of := range hostOrders {
		for _, limit := range []int{1, 10, 1000} {
			got, err := c.TopHosts(context.Background(), by, limit)
			if err != nil {
				t.Fatal(err)
			}
			want := slices.SortedFunc(slices.Values(g.hosts), func(a, b nat.HostInfo) int { return cmp.Or(cmp.Compare(of(&b), of(&a)), cmp.Compare(a.Addr, b.Addr)) })
			if len(got) != limit {
				t.Fatalf("%d hosts, want %d", len(got), limit)
			}
			for i := range got {
				if got[i] != hostOf(&want[i]) {
					t.Fatalf("by %s the %dth is %+v, want %+v", by, i, got[i], hostOf(&want[i]))
				}
			}
		}
	}
	g.hosts = []nat.HostInfo{{Addr: 1, Links: 0, Refused: 5}}
	if got, err := c.TopHosts(context.Background(), "links", 10); err != nil || len(got) != 0 {
		t.Errorf("a host with none: %v %v", got, err)
	}
	for _, bad := range []struct {
		by    string
		limit int
		want  string
	}{{"bytes", 10, "links or refused"}, {"links", 0, "a number from 1"}, {"links", 1001, "1 to 1000"}} {
		if _, err := c.TopHosts(context.Background(), bad.by, bad.limit); err == nil || !strings.Contains(err.Error(), bad.want) {
			t.Errorf("%s: %v", fmt.Sprint(bad), err)
		}
	}
}
