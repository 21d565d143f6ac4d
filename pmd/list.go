package pmd

import (
	"cmp"
	"fmt"
	"slices"

	"pollux/internal/clock"
	"pollux/internal/packet"
	"pollux/lport"
	"pollux/nat"
)

// Lists are copied by the workers in slices between bursts, and visited on the caller's goroutine, which may take its time:
// however long a table is, a list needs one slice of memory and a worker stops for no more than one. What comes or goes
// meanwhile may be seen or not.
const (
	listSlice = 128 // records that a worker looks at in one round
	listRows  = 128 // and copies before it waits for the reader
)

// walk has one worker copy a table. slice copies what it wants of up to listSlice records from cursor on into out, and returns
// where to go on, 0 at the end.
func walk[T any](w *gatewayWorker, slice func(cursor uint32, out []T) (uint32, []T), visit func(*T) bool) (more bool, err error) {
	out := make([]T, 0, listRows+listSlice)
	for cursor := uint32(0); ; {
		out = out[:0]
		err := w.loop.Do(func(clock.Tick) bool {
			cursor, out = slice(cursor, out)
			return cursor == 0 || len(out) >= listRows
		})
		if err != nil {
			return false, err
		}
		for i := range out {
			if !visit(&out[i]) {
				return false, nil
			}
		}
		if cursor == 0 {
			return true, nil
		}
	}
}

// walkAll is walk for all workers, or for one if only is not negative.
func walkAll[T any](g *Gateway, only int, slice func(w *gatewayWorker, cursor uint32, out []T) (uint32, []T), visit func(*T) bool) error {
	for i, w := range g.workers {
		if only >= 0 && i != only {
			continue
		}
		more, err := walk(w, func(cursor uint32, out []T) (uint32, []T) { return slice(w, cursor, out) }, visit)
		if err != nil || !more {
			return err
		}
	}
	return nil
}

// CheckWorker refuses the number of a worker that there is not; a negative one means all.
func (g *Gateway) CheckWorker(worker int) error {
	if worker >= len(g.workers) {
		return fmt.Errorf("worker is %d; allowed: 0 to %d", worker, len(g.workers)-1)
	}
	return nil
}

// Links calls visit for all links until it returns false.
func (g *Gateway) Links(visit func(nat.LinkInfo) bool) error {
	return g.SelectLinks(-1, &nat.LinkFilter{}, func(l *nat.LinkInfo) bool { return visit(*l) })
}

// SelectLinks calls visit for the links of a worker (negative: of all) that a filter picks, until it returns false. The
// filter is evaluated by the workers.
func (g *Gateway) SelectLinks(worker int, f *nat.LinkFilter, visit func(*nat.LinkInfo) bool) error {
	return walkAll(g, worker, func(w *gatewayWorker, cursor uint32, out []nat.LinkInfo) (uint32, []nat.LinkInfo) {
		next := w.shard.Select(cursor, listSlice, f, func(l nat.LinkInfo) bool {
			out = append(out, l)
			return true
		})
		return next, out
	}, visit)
}

// deleteSlice is how many links a worker ends in one round.
const deleteSlice = 32

// DeleteLinks ends the links of a worker (negative: of all) that a filter picks, in slices between bursts, and returns how many
// there were. Their ports are free again, and packets of theirs are treated as if the links had never been.
func (g *Gateway) DeleteLinks(worker int, f *nat.LinkFilter) (deleted int, err error) {
	for i, w := range g.workers {
		if worker >= 0 && i != worker {
			continue
		}
		cursor := uint32(0)
		if err := w.loop.Do(func(now clock.Tick) bool {
			n, next := w.shard.DeleteSome(cursor, listSlice, deleteSlice, f, now)
			deleted += n
			cursor = next
			return next == 0
		}); err != nil {
			return deleted, err
		}
	}
	return deleted, nil
}

// Hosts calls visit for the inside hosts within a network that the workers (one, or all if negative) keep account of, until it
// returns false. A host whose links belong to several workers comes once for each.
func (g *Gateway) Hosts(worker int, within *nat.Network, visit func(*nat.HostInfo) bool) error {
	return walkAll(g, worker, func(w *gatewayWorker, cursor uint32, out []nat.HostInfo) (uint32, []nat.HostInfo) {
		next := w.shard.Hosts(cursor, listSlice, within, func(h nat.HostInfo) bool {
			out = append(out, h)
			return true
		})
		return next, out
	}, visit)
}

// PeerInfo is one worker's cache of the alias ports in use toward a peer.
type PeerInfo struct {
	lport.CacheInfo
	Worker int
}

// Peers calls visit for every such cache until it returns false.
func (g *Gateway) Peers(visit func(*PeerInfo) bool) error {
	return walkAll(g, -1, func(w *gatewayWorker, cursor uint32, out []PeerInfo) (uint32, []PeerInfo) {
		next := w.shard.Ports().Caches(cursor, listSlice, func(c lport.CacheInfo) {
			out = append(out, PeerInfo{c, w.worker.o.Index})
		})
		return next, out
	}, visit)
}

// BlockInfo is a port block and how long it has been as it is.
type BlockInfo struct {
	lport.BlockInfo
	Worker int
	Ticks  uint32 // since it was taken, became idle, or began to rest
}

// Blocks calls visit for every port block that a host holds or that rests, until it returns false.
func (g *Gateway) Blocks(visit func(*BlockInfo) bool) error {
	now := monotonicTick()
	return walkAll(g, -1, func(w *gatewayWorker, cursor uint32, out []BlockInfo) (uint32, []BlockInfo) {
		next := w.shard.Ports().Blocks(cursor, listSlice, func(b lport.BlockInfo) {
			out = append(out, BlockInfo{b, w.worker.o.Index, now.Since(b.Since)})
		})
		return next, out
	}, visit)
}

// RedirectInfo is a redirect, with the hits of all workers.
type RedirectInfo struct {
	nat.RedirectInfo
	Turns []uint64 // hits by worker
}

// Redirects returns the redirects in force, in the order in which they came to be.
func (g *Gateway) Redirects() ([]RedirectInfo, error) {
	at := map[string]int{}
	var list []RedirectInfo
	err := walkAll(g, -1, func(w *gatewayWorker, cursor uint32, out []RedirectInfo) (uint32, []RedirectInfo) {
		next := w.shard.Redirects(cursor, listSlice, func(r nat.RedirectInfo) {
			turns := make([]uint64, len(g.workers))
			turns[w.worker.o.Index] = r.Hits
			out = append(out, RedirectInfo{r, turns})
		})
		return next, out
	}, func(r *RedirectInfo) bool {
		key := fmt.Sprint(r.Kind, r.Proto, r.Public, r.Remote, r.Local, r.Pick, r.Config, r.Inbound, r.OneShot)
		i, known := at[key]
		if !known {
			at[key] = len(list)
			list = append(list, *r)
			return true
		}
		list[i].Hits += r.Hits
		for k, n := range r.Turns {
			list[i].Turns[k] += n
		}
		return true
	})
	slices.SortStableFunc(list, func(a, b RedirectInfo) int { return cmp.Compare(a.ID, b.ID) })
	return list, err
}

// PoolRow is one port space of an alias address.
type PoolRow struct {
	Row     lport.Row `json:"-"`
	Name    string    `json:"proto"` // tcp | udp | icmp | other
	Ports   int       `json:"ports"` // in the port range
	Free    int       `json:"free"`  // nobody's
	Kernel  int       `json:"kernel"`
	Publish int       `json:"redirect"`
	Owned   []int     `json:"owned"`  // by worker, used or kept in a block
	Used    []int     `json:"used"`   // by worker: ports that links have
	Caches  []int     `json:"caches"` // by worker: per-peer caches
}

// PoolInfo is one alias address.
type PoolInfo struct {
	Alias   packet.Addr `json:"-"`
	Addr    string      `json:"alias"`
	Dynamic bool        `json:"dynamic"` // gives ports to hosts: in nat.alias
	Kernel  bool        `json:"kernel"`  // the gateway's kernel has the address too
	Low     uint16      `json:"low"`     // of the port range
	High    uint16      `json:"high"`
	Rows    []PoolRow   `json:"rows"`
	Held    int         `json:"blocks_held"`
	Resting int         `json:"blocks_resting"`
}

// Pool returns every alias address, redirects' included. Owner bytes are counted while workers go on, so that the numbers of
// one moment may miss each other by what happened meanwhile.
func (g *Gateway) Pool() ([]PoolInfo, error) {
	g.world.mu.Lock()
	rules, aliases := g.world.current, slices.Clone(g.world.aliases)
	g.world.mu.Unlock()
	rows := make([][]lport.RowStats, len(g.workers))
	for k, w := range g.workers {
		rows[k] = w.rows()
	}
	blocks := map[packet.Addr][2]int{}
	if rules.Blocks.Size > 0 {
		if err := g.Blocks(func(b *BlockInfo) bool {
			n := blocks[b.Alias]
			if b.Resting {
				n[1]++
			} else {
				n[0]++
			}
			blocks[b.Alias] = n
			return true
		}); err != nil {
			return nil, err
		}
	}
	var list []PoolInfo
	for _, a := range aliases {
		p := PoolInfo{Alias: a, Addr: a.String(), Dynamic: slices.Contains(rules.Alias, a), Kernel: slices.Contains(rules.Kernel, a),
			Low: rules.PortRange.Low, High: rules.PortRange.High, Held: blocks[a][0], Resting: blocks[a][1]}
		for row := range lport.Rows {
			r := g.poolRow(a, row, p.Low, p.High)
			for k := range rows {
				for _, s := range rows[k] {
					if s.Alias == a && s.Row == row {
						r.Owned[k], r.Used[k], r.Caches[k] = s.Owned, s.Used, s.Caches
					}
				}
			}
			p.Rows = append(p.Rows, r)
		}
		list = append(list, p)
	}
	return list, nil
}

// poolRow counts the owner bytes of one row. Protocols without ports are spread over all bytes.
func (g *Gateway) poolRow(a packet.Addr, row lport.Row, low, high uint16) PoolRow {
	n := len(g.workers)
	if row == lport.RowOther {
		low, high = 0, 65535
	}
	c := g.owners.Census(a, row, low, high)
	return PoolRow{Row: row, Name: row.String(), Ports: int(high) - int(low) + 1, Free: c.Free, Kernel: c.Kernel, Publish: c.Redirect,
		Owned: make([]int, n), Used: make([]int, n), Caches: make([]int, n)}
}
