package pmd

import (
	"context"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"pollux/internal/lab"
	"pollux/internal/packet"
	"pollux/internal/reason"
	"pollux/nat"
)

// TestManyQueues drives real programs through gateways with several queues and workers. A multi-queue veth sends what its
// hosts send by the hash of the flow, which differs for the two directions, so most packets come in at the wrong worker.
func TestManyQueues(t *testing.T) {
	for _, n := range []int{2, 4, 8} {
		t.Run(fmt.Sprintf("%d", n), func(t *testing.T) {
			l := newLab(t, lab.Options{InsideHosts: 3, Queues: n})
			out := l.Outside[0]
			o := labOptions()
			o.Cores, o.Oversubscribe = rangeOf(n), true
			o.Rules.RedirectPort = []nat.RedirectPort{{Proto: packet.ProtoTCP, Public: nat.Alias{Addr: o.Rules.Alias[0], Port: 8080},
				Local: []nat.Local{{Addr: packet.AddrFrom(l.Inside[0].Addr), Port: 80}}}}
			g, err := startIn(t, l, o)
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(context.Background(), 90*time.Second)
			defer cancel()

			echo, err := lab.ServeUDPEcho(out.Namespace, ":9000")
			if err != nil {
				t.Fatal(err)
			}
			defer echo.Close()
			for _, in := range l.Inside {
				flows, err := lab.UDPFlows(ctx, in.Namespace, netip.AddrPortFrom(out.Addr, 9000), lab.FlowOptions{Flows: 100, PerFlow: 5, Size: 64, Timeout: 10 * time.Second, At: 50})
				if err != nil || flows.Answered != flows.Sent || flows.Wrong != 0 {
					t.Errorf("%s: %+v %v, drops %v", in.Name, flows, err, dropsOf(g))
				}
				big, err := lab.Ping(ctx, in.Namespace, in.Addr, out.Addr, lab.PingOptions{Count: 3, Size: 4000, Timeout: 10 * time.Second, Interval: 20 * time.Millisecond})
				if err != nil || len(big.RTT) != 3 {
					t.Errorf("%s: %d of 3 pings of 4000 bytes answered: %v, drops %v", in.Name, len(big.RTT), err, dropsOf(g))
				}
			}
			for from := range echo.Seen() {
				if from.Addr() != lab.GatewayOutside {
					t.Errorf("the outside saw %v", from)
				}
			}

			files, err := lab.ServeFiles(out.Namespace, ":80")
			if err != nil {
				t.Fatal(err)
			}
			defer files.Close()
			for range 4 {
				if _, err := lab.Download(ctx, l.Inside[1].Namespace, out.Addr.String()+":80", 1<<20); err != nil {
					t.Errorf("download: %v, drops %v", err, dropsOf(g))
				}
			}
			published, err := lab.ServeTCP(l.Inside[0].Namespace, ":80", lab.Tell("inside"))
			if err != nil {
				t.Fatal(err)
			}
			defer published.Close()
			for range 8 {
				if name, _, err := lab.Ask(ctx, out.Namespace, lab.GatewayOutside.String()+":8080"); err != nil || name != "inside" {
					t.Errorf("published port: %q %v, drops %v", name, err, dropsOf(g))
				}
			}

			links, at := 0, map[int]int{}
			if err := g.Links(func(l nat.LinkInfo) bool { links++; at[l.Worker]++; return true }); err != nil || links < 300 || len(at) < 2 {
				t.Errorf("%d links, at workers %v, %v", links, at, err)
			}
			for _, w := range g.Workers() {
				if w.Leaked != 0 || w.Received == 0 || n >= 4 && w.HandedOut == 0 {
					t.Errorf("worker %+v", w)
				}
			}
			if err := g.Stop(); err != nil {
				t.Error(err)
			}
			var received, forwarded, arps, handedOut, handedIn, ended uint64
			for _, w := range g.Workers() {
				received, forwarded, arps = received+w.Received, forwarded+w.Forwarded, arps+w.ARP
				handedOut, handedIn = handedOut+w.HandedOut, handedIn+w.HandedIn
				t.Logf("worker %d: received %d, handed over %d %v, taken %d, links %d, frames %v", w.Worker, w.Received, w.HandedOut, w.HandedWhy, w.HandedIn, w.Links, w.Frames)
			}
			for _, d := range g.Drops() {
				if d.Reason != reason.NoQueue {
					ended += d.Count
				}
			}
			if handedOut == 0 || handedOut != handedIn {
				t.Errorf("%d packets handed over, %d taken", handedOut, handedIn)
			}
			if received != forwarded+ended+arps {
				t.Errorf("received %d, forwarded %d, ended %d, ARP %d: %v", received, forwarded, ended, arps, dropsOf(g))
			}
		})
	}
}
