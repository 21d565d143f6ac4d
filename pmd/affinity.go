package pmd

import (
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"pollux/internal/clock"
	"pollux/internal/rss"
	"pollux/lport"
	"pollux/nat"
)

// Answers on the owner's core: where the first outside port's card tells how it spreads packets over its queues, workers
// prefer alias ports whose answers come in by their own queue. It is a preference and nothing hangs on it: where the card
// does not tell, or chooses by what can't be predicted, or answers come in by another port, packets are handed over.

// rssSource asks the kernel how a device spreads what it receives.
type rssSource interface {
	Get(ifindex int, name string) (rss.State, error)
	Watch(changed func()) error
	Close() error
}

// dialRSS connects to the kernel; tests put another source in its place.
var dialRSS = func() (rssSource, error) { return rss.Dial() }

// Changes are told by the kernel's ethtool monitor group. Older kernels don't tell all of them, so the card is also asked
// from time to time.
const (
	rssPause = 20 * time.Millisecond // for more news: a change comes as several messages
	rssAgain = 10 * time.Second
)

// spread is what the gateway knows of how its first outside port spreads packets. The state is Start's and then followSpread's.
type spread struct {
	port  int // index of the first outside port
	state *rss.State
	told  bool                   // the driver has an answer: worth following
	text  atomic.Pointer[string] // for people

	insidePort int    // the first inside port, with steer: flow
	inside     string // what its card told at the start and what follows, for people
}

// affinities makes, of a card's state, one worker's preferences for TCP and UDP. nil: none. why says in a few words what
// holds for each protocol.
func affinities(s *rss.State, queue int) (tcp, udp *lport.Affinity, why string) {
	if s.FieldsErr != nil {
		return nil, nil, "its driver does not tell which fields it hashes"
	}
	mine := make([]bool, len(s.Table))
	for i, q := range s.Table {
		mine[i] = int(q) == queue
	}
	one := func(proto string, f rss.Fields) (*lport.Affinity, string) {
		l, err := s.Linear(f)
		if err != nil {
			return nil, fmt.Sprintf("%s: %v", proto, err)
		}
		// What comes back is from the peer to the alias.
		a, err := lport.NewAffinity(&lport.Mix{PeerAddr: l.SrcAddr, PeerPort: l.SrcPort, AliasAddr: l.DstAddr, AliasPort: l.DstPort}, mine)
		switch {
		case err != nil:
			return nil, fmt.Sprintf("%s: %v", proto, err)
		case a == nil:
			return nil, fmt.Sprintf("%s: no port is better than another, it hashes %s", proto, f)
		}
		return a, fmt.Sprintf("%s: ports are chosen by its hash of %s", proto, f)
	}
	var words [2]string
	tcp, words[0] = one("tcp", s.TCP4)
	udp, words[1] = one("udp", s.UDP4)
	return tcp, udp, strings.Join(words[:], "; ")
}

// readSpread asks the first outside port's card before the workers start. Whatever comes of it, the gateway starts.
func (g *Gateway) readSpread() error {
	if len(g.workers) == 1 {
		return nil
	}
	g.spread.port = slices.IndexFunc(g.ports, func(p *gatewayPort) bool { return p.side == nat.Outside })
	source, err := dialRSS()
	if err != nil {
		g.spread.say(err.Error())
		return nil
	}
	defer source.Close()
	state, text := g.askSpread(source)
	g.spread.say(text)
	g.spread.state = state
	if state == nil {
		return nil
	}
	for _, w := range g.workers {
		tcp, udp, _ := affinities(state, w.queue)
		if err := setAffinities(w.shard, tcp, udp); err != nil {
			return err
		}
	}
	return nil
}

// askSpread asks the card; nil: it does not tell. text says for people what follows.
func (g *Gateway) askSpread(source rssSource) (state *rss.State, text string) {
	p := g.table.Ports()[g.spread.port]
	s, err := source.Get(p.IfIndex, p.Name)
	if err != nil {
		g.spread.told = g.spread.told || !errors.Is(err, rss.ErrNotTold)
		return nil, err.Error()
	}
	g.spread.told = true
	_, _, why := affinities(&s, g.workers[0].queue)
	return &s, fmt.Sprintf("%s, %d entries; %s", s.HashFunc, len(s.Table), why)
}

func (s *spread) say(text string) { s.text.Store(&text) }

func setAffinities(shard *nat.Shard, tcp, udp *lport.Affinity) error {
	return errors.Join(shard.Ports().SetAffinity(lport.RowTCP, tcp), shard.Ports().SetAffinity(lport.RowUDP, udp))
}

// followSpread keeps the workers' preferences in step with the card: after `ethtool -X`, -L, -N or a driver's reset.
func (g *Gateway) followSpread() {
	if !g.spread.told {
		return
	}
	source, err := dialRSS()
	if err != nil {
		slog.Warn("changes of the NIC's RSS settings are not followed", "error", err)
		return
	}
	defer source.Close()
	changed := make(chan struct{}, 1)
	if watch, err := dialRSS(); err == nil {
		defer watch.Close()
		g.wait.Go(func() {
			if err := watch.Watch(func() {
				select {
				case changed <- struct{}{}:
				default:
				}
			}); err != nil {
				slog.Warn("changes of the NIC's RSS settings are seen late", "error", err, "after", rssAgain)
			}
		})
	}
	again := time.NewTicker(rssAgain)
	defer again.Stop()
	for {
		select {
		case <-g.quit:
			return
		case <-changed:
			select {
			case <-g.quit:
				return
			case <-time.After(rssPause):
			}
		case <-again.C:
		}
		if err := g.adaptSpread(source); errors.Is(err, ErrEnded) {
			return
		} else if err != nil {
			slog.Warn("the NIC's RSS settings changed and could not be followed", "error", err)
		}
	}
}

// adaptSpread asks again and gives every worker new preferences if something changed. Flows that exist keep their ports: what
// now comes in elsewhere is handed over.
func (g *Gateway) adaptSpread(source rssSource) error {
	state, text := g.askSpread(source)
	if state.Equal(g.spread.state) {
		return nil
	}
	for _, w := range g.workers {
		var tcp, udp *lport.Affinity
		if state != nil {
			tcp, udp, _ = affinities(state, w.queue)
		}
		var failed error
		if err := w.loop.Do(func(clock.Tick) bool {
			failed = setAffinities(w.shard, tcp, udp)
			return true
		}); err != nil {
			return err
		}
		if failed != nil {
			return failed
		}
	}
	g.spread.state = state
	g.spread.say(text)
	slog.Info("the NIC spreads packets otherwise now", "port", g.ports[g.spread.port].name, "rss", text)
	return nil
}

// rssText says for people how a port's card spreads packets, as far as it matters; "" where it does not.
func (g *Gateway) rssText(port int) string {
	text := g.spread.text.Load()
	switch {
	case text != nil && port == g.spread.port:
		return *text
	case port == g.spread.insidePort:
		return g.spread.inside
	}
	return ""
}
