package pmd

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"reflect"
	"slices"
	"time"

	"pollux/internal/clock"
	"pollux/internal/packet"
	"pollux/nat"
	"pollux/rings"
	"pollux/rtcache"
)

// Live is the part of Options that may change while the gateway runs.
type Live struct {
	Rules       nat.Rules
	AliasPort   bool
	MSSAuto     bool
	RTCache     bool
	ReversePath rtcache.ReversePathMode
}

// Live returns the part of the options that Reload replaces.
func (o *Options) Live() Live {
	return Live{o.Rules, o.AliasPort, o.MSSAuto, o.RTCache, o.ReversePath}
}

func (o *Options) setLive(l Live) {
	o.Rules, o.AliasPort, o.MSSAuto, o.RTCache, o.ReversePath = l.Rules, l.AliasPort, l.MSSAuto, l.RTCache, l.ReversePath
}

// Reloaded says what a change of the options did to the links there were.
type Reloaded struct {
	Kept   uint64 `json:"links_kept"`
	Closed uint64 `json:"links_closed"` // the rule that made them is gone
}

// Reload puts other options in force, whole or not at all. Links whose rule still stands go on; the others are dead at once
// and are cleaned up in slices, which Reload waits for. The options that hold already change nothing.
func (g *Gateway) Reload(l Live) (r Reloaded, err error) {
	closed, err := g.unruled()
	if err != nil {
		return r, err
	}
	if err := g.change(l); err != nil {
		return r, err
	}
	if err := g.swept(); err != nil {
		return r, err
	}
	for _, w := range g.workers {
		r.Kept += g.look(w).nat.Links
	}
	now, err := g.unruled()
	r.Closed = now - closed
	return r, err
}

// swept waits until the workers have cleaned up what the latest change of rules closed.
func (g *Gateway) swept() error {
	for _, w := range g.workers {
		for busy := true; busy; {
			if err := w.loop.Do(func(clock.Tick) bool { busy = w.shard.Sweeping(); return true }); err != nil {
				return err
			}
			if busy {
				time.Sleep(time.Millisecond)
			}
		}
	}
	return nil
}

// unruled counts the links that changes of rules have closed so far.
func (g *Gateway) unruled() (n uint64, err error) {
	for _, w := range g.workers {
		if err := w.loop.Do(func(clock.Tick) bool { n += w.shard.Counters().Unruled; return true }); err != nil {
			return 0, err
		}
	}
	return n, nil
}

func (g *Gateway) change(l Live) error {
	g.changing.Lock()
	defer g.changing.Unlock()
	o := g.o
	o.setLive(l)
	if was, now := nat.FlowProtocols(&g.o.Rules), nat.FlowProtocols(&l.Rules); g.steering != nil && g.o.SteerFlow && !slices.Equal(was, now) {
		return errors.New("nat.mapping, nat.filtering: with workers.steer: flow they decide which protocols are spread over the workers, which can't change while these run: restart")
	}
	if err := g.enforce(&o); err != nil {
		return err
	}
	if l.RTCache != g.o.RTCache {
		g.table.SetCache(l.RTCache)
	}
	if l.ReversePath != g.o.ReversePath {
		g.table.SetReversePath(l.ReversePath)
	}
	g.o.setLive(l) // nothing else is written: readers of what can't change take no lock
	return nil
}

// enforce makes tables, steering and workers follow options and world. Ownership moves under live links here, so the order
// matters:
//
//  1. What the change before has closed is cleaned up: a link that stood for nothing then must not stand for something now.
//     Every worker says whether it could take the rules. Nothing has changed until all have.
//  2. What is new gets known to the XDP programs and the owner table: ports that are published from now on are given to
//     no new flow. Nothing is made by the new rules yet.
//  3. All workers change rules and steering at the same time, between two bursts. From here on links that do not stand are
//     found by no packet; they and their ports go in slices. A port that a worker has becomes a redirect's when the
//     worker has closed what it had there.
//  4. Only now, when nobody steers by them any more, old marks and addresses are taken away.
//
// g.changing is held.
func (g *Gateway) enforce(o *Options) error {
	w := &g.world
	rules, addresses := w.rules(o)
	same := reflect.DeepEqual(&w.current, rules)
	steers := g.steering != nil && !reflect.DeepEqual(g.o.Rules, o.Rules)
	if !same || steers {
		if err := g.swept(); err != nil {
			return err
		}
		for _, k := range g.workers {
			var err error
			if ended := k.loop.Do(func(clock.Tick) bool { err = k.shard.Prepare(*rules); return true }); ended != nil {
				return ended
			}
			if err != nil {
				return err
			}
		}
	}
	known, aliases := w.aliases, Aliases(rules)
	want := wanted(rules)
	if err := g.publishNew(rules, aliases, want, addresses); err != nil {
		for _, a := range aliases {
			if !slices.Contains(known, a) {
				_ = g.tables.RemoveAlias(a) // back to how it was; the error that matters is the first
			}
		}
		return err
	}
	if same && !steers {
		return nil
	}
	refused := make([]error, len(g.workers))
	if err := g.together(func() {
		if steers {
			cards := g.steering.cards // of the start, whatever is configured now
			*g.steering = *NewSteering(len(g.workers), g.owners, &o.Rules, g.o.SteerFlow, g.steering.seed)
			g.steering.cards = cards
		}
	}, func(k *gatewayWorker, now clock.Tick) {
		if err := k.shard.SetRules(*rules, now); err != nil {
			refused[k.worker.o.Index] = fmt.Errorf("worker %d refuses rules that it could take: %w", k.worker.o.Index, err) // not reached: Prepare said so
			return
		}
		k.worker.o.Aliases = aliases
	}); err != nil {
		return err
	}
	if err := errors.Join(refused...); err != nil {
		return err
	}
	if err := g.dropOld(rules, aliases, want); err != nil {
		return err
	}
	if !slices.Equal(known, aliases) {
		slog.Info("alias addresses changed", "aliases", aliases, "own", rules.Kernel)
	}
	for _, a := range aliases {
		if !slices.Contains(known, a) {
			g.announce(a)
		}
	}
	return nil
}

// publishNew makes addresses and redirects known to the owner table and the XDP programs. The rules are not the workers' yet.
func (g *Gateway) publishNew(r *nat.Rules, aliases []packet.Addr, want map[mark]bool, local []netip.Addr) error {
	target := !r.DenyIncoming && r.Target != 0
	for _, a := range aliases {
		if err := g.owners.Add(a); err != nil {
			return err
		}
		if _, err := g.tables.SetAlias(a, rings.AliasOptions{ARPPorts: g.arpPorts(a), Target: target}); err != nil {
			return err
		}
	}
	if err := g.tables.SetLocal(local); err != nil {
		return err
	}
	g.world.markNew(g.owners, want)
	return nil
}

// dropOld takes away what the rules before had and these have not, and notes these as the current ones.
func (g *Gateway) dropOld(r *nat.Rules, aliases []packet.Addr, want map[mark]bool) error {
	w := &g.world
	w.markGone(g.owners, want)
	// An address that is no alias any more is the kernel's business. Its owner bytes stay: the workers give its ports back
	// as they close the links, and the address may return.
	for _, a := range w.aliases {
		if !slices.Contains(aliases, a) {
			if err := g.tables.RemoveAlias(a); err != nil {
				return err
			}
		}
	}
	w.mu.Lock()
	w.current, w.aliases = *r, aliases
	w.mu.Unlock()
	return nil
}
