package main

import (
	"bufio"
	"cmp"
	"container/heap"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"

	"pollux/internal/control"
)

// filterFlags pick links.
func filterFlags() []cli.Flag {
	return []cli.Flag{
		&cli.StringFlag{Name: "address", Usage: "only links with this `ADDRESS` or network at either end, or as alias"},
		&cli.StringFlag{Name: "local", Usage: "only links of this inside `ADDRESS` or network"},
		&cli.StringFlag{Name: "alias", Usage: "only links with this alias `ADDRESS` or network"},
		&cli.StringFlag{Name: "remote", Usage: "only links to this remote `ADDRESS` or network"},
		&cli.StringFlag{Name: "port", Usage: "only links with this `PORT` or ICMP id: local, alias or remote"},
		&cli.StringFlag{Name: "proto", Usage: "only links of `PROTO`: tcp, udp, icmp or a number"},
		&cli.StringFlag{Name: "state", Usage: "only links in `STATE`: opening, established, closing or active"},
		&cli.StringFlag{Name: "opened", Usage: "only links opened `out` by the inside host, or in from outside"},
		&cli.StringFlag{Name: "worker", Usage: "only links of worker `N`"},
		&cli.StringFlag{Name: "older", Usage: "only links made at least `DURATION` ago, as 90s or 2h"},
		&cli.StringFlag{Name: "younger", Usage: "only links made at most `DURATION` ago"},
		&cli.StringFlag{Name: "idle", Usage: "only links without a packet for `DURATION`"},
	}
}

// filterOf reads them, and refuses what the gateway would.
func filterOf(c *cli.Context) (f control.Filter, err error) {
	for _, name := range control.FilterNames {
		f.Set(name, c.String(name))
	}
	if err := f.Check(); err != nil {
		return f, errors.New("--" + err.Error())
	}
	return f, nil
}

// sortMost is how many links are kept to be sorted.
const sortMost = 100_000

func showLinks() *cli.Command {
	return &cli.Command{
		Name:  "links",
		Usage: "the link table",
		Description: "Links come in the order of the table unless --sort is given; --limit then says how many of the first ones\n" +
			"are kept. The gateway evaluates the filter, this command sorts.\n\n" +
			"   pollux show links --local 10.0.0.0/24 --proto tcp --state established\n" +
			"   pollux show links --sort bytes,desc --limit 20 --watch 2s",
		Flags: clientFlags(append(append(filterFlags(),
			&cli.IntFlag{Name: "limit", Usage: "at most `N` links, 0 for all"},
			&cli.StringFlag{Name: "sort", Usage: "by `FIELD`, or FIELD,desc: " + strings.Join(sortNames(), ", ")},
		), watchFlags()...)...),
		Action: func(c *cli.Context) error {
			if err := noArgs(c); err != nil {
				return err
			}
			f, err := filterOf(c)
			if err != nil {
				return err
			}
			if f.Limit = c.Int("limit"); f.Limit < 0 {
				return errors.New("--limit: must not be negative; allowed: a number, 0 for all")
			}
			client, err := clientOf(c)
			if err != nil {
				return err
			}
			if !c.IsSet("sort") {
				return watch(c, func() error {
					if c.Bool("json") {
						return raw(c, "/v1/links", f.Query())
					}
					return fail(statusRuntime, printLinks(c, func(visit func(*control.Link) error) (bool, error) {
						return client.Links(c.Context, f, visit)
					}))
				})
			}
			order, err := parseSort(c.String("sort"))
			if err != nil {
				return err
			}
			if f.Limit > sortMost {
				return fmt.Errorf("--limit: is %d; allowed with --sort: up to %d", f.Limit, sortMost)
			}
			return watch(c, func() error { return fail(statusRuntime, showSorted(c, client, f, order)) })
		},
	}
}

// showSorted keeps the first links of an order, and refuses to guess when there are more than it keeps.
func showSorted(c *cli.Context, client *control.Client, f control.Filter, order order) error {
	most := f.Limit
	if most == 0 {
		most = sortMost
	}
	limit := f.Limit
	f.Limit = 0
	first := &firstLinks{order: order}
	more := false
	if _, err := client.Links(c.Context, f, func(l *control.Link) error {
		if heap.Push(first, *l); first.Len() > most {
			if limit == 0 {
				return fmt.Errorf("more than %d links match, too many to sort: narrow the filter, or say with --limit how many of the first ones are wanted", sortMost)
			}
			heap.Pop(first)
			more = true
		}
		return nil
	}); err != nil {
		return err
	}
	list := first.list
	slices.SortFunc(list, order)
	if c.Bool("json") {
		return json.NewEncoder(c.App.Writer).Encode(map[string]any{"links": append([]control.Link{}, list...), "more": more})
	}
	return printLinks(c, func(visit func(*control.Link) error) (bool, error) {
		for i := range list {
			if err := visit(&list[i]); err != nil {
				return false, err
			}
		}
		return more, nil
	})
}

// printLinks prints as links arrive: fixed columns, since a table can't be held back to be measured.
func printLinks(c *cli.Context, links func(visit func(*control.Link) error) (more bool, err error)) error {
	const row = "%-5s  %-21s  %-21s  %-21s  %-11s  %8s  %8s  %6s  %-6s  %s\n"
	w, count := bufio.NewWriter(c.App.Writer), 0
	fmt.Fprintf(w, row, "PROTO", "LOCAL", "ALIAS", "REMOTE", "STATE", "EXPIRES", "AGE", "WORKER", "OPENED", "PACKETS")
	more, err := links(func(l *control.Link) error {
		count++
		opened := "out" // by the inside host, outbound
		if l.Inbound {
			opened = "in"
		}
		_, err := fmt.Fprintf(w, row, l.Proto, l.Local, l.Alias, l.Remote, l.State, fmt.Sprintf("%ds", l.ExpiresIn), fmt.Sprintf("%ds", l.Age),
			fmt.Sprint(l.Worker), opened, fmt.Sprint(l.Packets))
		return err
	})
	if err != nil {
		return err
	}
	if more {
		fmt.Fprintf(w, "%d links shown, there are more\n", count)
	}
	return w.Flush()
}

// order compares two links.
type order func(a, b control.Link) int

var orders = map[string]order{
	"proto":   func(a, b control.Link) int { return cmp.Compare(a.Proto, b.Proto) },
	"local":   func(a, b control.Link) int { return compareEnds(a.Local, b.Local) },
	"alias":   func(a, b control.Link) int { return compareEnds(a.Alias, b.Alias) },
	"remote":  func(a, b control.Link) int { return compareEnds(a.Remote, b.Remote) },
	"state":   func(a, b control.Link) int { return cmp.Compare(a.State, b.State) },
	"expires": func(a, b control.Link) int { return cmp.Compare(a.ExpiresIn, b.ExpiresIn) },
	"age":     func(a, b control.Link) int { return cmp.Compare(a.Age, b.Age) },
	"idle":    func(a, b control.Link) int { return cmp.Compare(a.Idle, b.Idle) },
	"worker":  func(a, b control.Link) int { return cmp.Compare(a.Worker, b.Worker) },
	"packets": func(a, b control.Link) int { return cmp.Compare(a.Packets, b.Packets) },
	"bytes":   func(a, b control.Link) int { return cmp.Compare(a.Bytes, b.Bytes) },
}

func sortNames() (names []string) {
	for name := range orders {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}

// compareEnds orders "addr:port" and "addr" by number.
func compareEnds(a, b string) int {
	x, y := parseEnd(a), parseEnd(b)
	return x.Compare(y)
}

func parseEnd(s string) netip.AddrPort {
	if p, err := netip.ParseAddrPort(s); err == nil {
		return p
	}
	a, _ := netip.ParseAddr(s) // the gateway's own words
	return netip.AddrPortFrom(a, 0)
}

// parseSort reads FIELD or FIELD,desc. Among equals the id decides, so that the answer is the same each time.
func parseSort(s string) (order, error) {
	name, way, has := strings.Cut(s, ",")
	by, ok := orders[name]
	if !ok || has && way != "desc" && way != "asc" {
		return nil, fmt.Errorf("--sort: is %q; allowed: FIELD or FIELD,desc, with FIELD one of %s", s, strings.Join(sortNames(), ", "))
	}
	return func(a, b control.Link) int {
		d := by(a, b)
		if way == "desc" {
			d = -d
		}
		return cmp.Or(d, cmp.Compare(a.Worker, b.Worker), cmp.Compare(a.ID, b.ID))
	}, nil
}

// firstLinks is a heap with the last in order on top.
type firstLinks struct {
	list  []control.Link
	order order
}

func (h *firstLinks) Len() int           { return len(h.list) }
func (h *firstLinks) Less(i, j int) bool { return h.order(h.list[i], h.list[j]) > 0 }
func (h *firstLinks) Swap(i, j int)      { h.list[i], h.list[j] = h.list[j], h.list[i] }
func (h *firstLinks) Push(x any)         { h.list = append(h.list, x.(control.Link)) }
func (h *firstLinks) Pop() any {
	last := len(h.list) - 1
	l := h.list[last]
	h.list = h.list[:last]
	return l
}
