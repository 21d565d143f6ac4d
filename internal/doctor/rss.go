package doctor

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/vishvananda/netlink"

	"pollux/internal/rss"
)

// card is what a device's driver tells of how it spreads packets over its queues.
type card struct {
	state rss.State
	err   error
}

// cardsOf asks every port's driver.
func cardsOf(o Options) map[string]card {
	cards := map[string]card{}
	client, err := rss.Dial()
	if err == nil {
		defer client.Close()
	}
	for _, p := range o.Ports {
		c := card{err: err}
		if link, missing := netlink.LinkByName(p.Name); missing != nil {
			c.err = missing
		} else if err == nil {
			c.state, c.err = client.Get(link.Attrs().Index, p.Name)
		}
		cards[p.Name] = c
	}
	return cards
}

// spreading says how a device spreads packets over the workers, what that costs, and the ethtool lines that make hand-overs
// rare. pollux itself types none of them.
func spreading(p Port, o Options, cards map[string]card) []Result {
	const check = "RSS"
	workers := len(o.Queues)
	c := cards[p.Name]
	switch {
	case workers < 2:
		return nil // every packet comes to the one worker
	case errors.Is(c.err, rss.ErrNotTold):
		return []Result{ok(check, "%v: packets that come in at another worker's queue are handed over", c.err)}
	case c.err != nil:
		return []Result{warn(check, "", "not readable (%v): packets that come in at another worker's queue are handed over", c.err)}
	}
	s := &c.state
	list := []Result{shares(p.Name, s, o)}
	if s.FieldsErr != nil {
		list = append(list, ok("RSS fields", "the driver does not tell which fields it hashes"))
	} else {
		list = append(list, hashed(p.Name, "tcp4", "TCP", s.TCP4), hashed(p.Name, "udp4", "UDP", s.UDP4))
	}
	if p.Inside {
		return append(list, owners(p.Name, s, o, cards))
	}
	return append(list, answers(p.Name, s, o, cards))
}

// firstPort is the first port of a role: pollux goes by its card.
func firstPort(o Options, inside bool) string {
	for _, p := range o.Ports {
		if p.Inside == inside {
			return p.Name
		}
	}
	return ""
}

// otherPort judges a port that is not the first of its role.
func otherPort(check, what, name, first string, s *rss.State, o Options, cards map[string]card) Result {
	f := cards[first]
	if f.err == nil && f.state.Equal(s) {
		return ok(check, "spread as on %s, by which %s", first, what)
	}
	mend := ""
	if f.err == nil && len(f.state.Key) == len(s.Key) && len(s.Key) > 0 {
		mend = fmt.Sprintf("ethtool -X %s hkey %s %s", name, colons(f.state.Key), strings.TrimPrefix(equal(name, o.Queues), "ethtool -X "+name+" "))
	}
	return warn(check, mend, "%s by %s, the first port of its role, and this one spreads otherwise: of what comes in here, %s", what, first, handedOver(o))
}

// handedOver is the price of a hash that knows nothing of the owners.
func handedOver(o Options) string {
	return fmt.Sprintf("about %d%% is handed over", 100*(len(o.Queues)-1)/len(o.Queues))
}

// predicted says whether the card's choice can be computed; ok: it can.
func predicted(check, name string, s *rss.State, o Options) (r Result, yes bool) {
	fields := s.TCP4
	if fields != rss.FourTuple && fields != rss.TwoTuple {
		fields = rss.FourTuple // what the line about the fields asks for
	}
	_, err := s.Linear(fields)
	switch {
	case errors.Is(err, rss.ErrFunction):
		return warn(check, fmt.Sprintf("ethtool -X %s hfunc toeplitz", name), "%v: %s", err, handedOver(o)), false
	case errors.Is(err, rss.ErrTransform):
		return warn(check, fmt.Sprintf("ethtool -X %s xfrm none", name), "%v: %s", err, handedOver(o)), false
	case err != nil:
		return ok(check, "%v: %s", err, handedOver(o)), false
	case s.FieldsErr != nil:
		return ok(check, "the hashed fields are not known: %s", handedOver(o)), false
	}
	return Result{}, true
}

// owners says whether what comes in from the inside can come in at its owner.
func owners(name string, s *rss.State, o Options, cards map[string]card) Result {
	const check = "RSS owners"
	switch first := firstPort(o, true); {
	case !o.SteerFlow && o.PerPeer:
		return ok(check, "owners are picked by the inside address, which no card knows: %s; with workers.steer: flow the card picks them for endpoint-dependent mappings", handedOver(o))
	case !o.SteerFlow || !o.PerPeer:
		return ok(check, "owners are picked by the inside address, which no card knows: %s", handedOver(o))
	case name != first:
		return otherPort(check, "owners of flows are picked", name, first, s, o, cards)
	}
	if r, yes := predicted(check, name, s, o); !yes {
		return r
	}
	return ok(check, "flows of endpoint-dependent mappings have the owners that this card's hash picks (unproven on a NIC)")
}

// shares looks at the table: every entry should lead to a queue with a worker, and to each as many.
func shares(name string, s *rss.State, o Options) Result {
	const check = "RSS table"
	share := s.Shares()
	var bare []int
	lost, least, most := 0, len(s.Table), 0
	for q, n := range share {
		if !slices.Contains(o.Queues, q) {
			bare = append(bare, q)
			lost += n
		}
	}
	slices.Sort(bare)
	for _, q := range o.Queues {
		least, most = min(least, share[q]), max(most, share[q])
	}
	found := fmt.Sprintf("%s, %d entries, a key of %d bytes, transform %s", s.HashFunc, len(s.Table), len(s.Key), s.Transform)
	if l, err := s.Linear(rss.FourTuple); err == nil && l.Symmetric() {
		found += ", symmetric"
	}
	switch {
	case lost > 0:
		return warn(check, equal(name, o.Queues), "%s; %d entries lead to queues without a worker (%s): what they get for the NAT is dropped (no-queue)", found, lost, list(bare))
	case most > 2*least:
		return warn(check, equal(name, o.Queues), "%s; uneven: a worker has between %d and %d entries", found, least, most)
	}
	return ok(check, "%s; a worker has between %d and %d entries", found, least, most)
}

// equal is the ethtool line that spreads evenly over the queues that workers poll.
func equal(name string, queues []int) string {
	sorted := slices.Sorted(slices.Values(queues))
	n := len(sorted)
	switch {
	case sorted[0] == 0 && sorted[n-1] == n-1:
		return fmt.Sprintf("ethtool -X %s equal %d", name, n)
	case sorted[n-1]-sorted[0] == n-1:
		return fmt.Sprintf("ethtool -X %s start %d equal %d", name, sorted[0], n)
	}
	weights := make([]string, sorted[n-1]+1)
	for q := range weights {
		weights[q] = "0"
		if slices.Contains(sorted, q) {
			weights[q] = "1"
		}
	}
	return fmt.Sprintf("ethtool -X %s weight %s", name, strings.Join(weights, " "))
}

func hashed(name, flow, proto string, f rss.Fields) Result {
	check := "RSS " + proto
	if f == rss.FourTuple {
		return ok(check, "addresses and ports are hashed (%s)", f)
	}
	why := "all flows between two addresses come to one queue, and no alias port can change which"
	switch {
	case f == 0:
		why = "everything comes to one queue"
	case f != rss.TwoTuple:
		why = "which queue a packet comes to can't be predicted"
	}
	return warn(check, fmt.Sprintf("ethtool -N %s rx-flow-hash %s sdfn", name, flow), "%s is hashed: %s", f, why)
}

// answers says whether alias ports can be chosen so that answers come in at their owner.
func answers(name string, s *rss.State, o Options, cards map[string]card) Result {
	const check = "RSS answers"
	if first := firstPort(o, false); name != first {
		return otherPort(check, "alias ports are chosen", name, first, s, o, cards)
	}
	r, yes := predicted(check, name, s, o)
	switch {
	case !yes:
		return r
	case !o.PerPeer:
		return ok(check, "no mapping is endpoint-dependent, so no port is chosen for one peer: %s", handedOver(o))
	case o.SamePorts:
		return warn(check, "--nat-same-ports=false (then hosts' own port numbers are not kept)",
			"nat.same_ports goes before: of the answers to hosts' own port numbers %s", handedOver(o))
	}
	return ok(check, "alias ports of endpoint-dependent mappings are chosen so that answers come in at their owner's queue (unproven on a NIC)")
}

func colons(key []byte) string {
	parts := make([]string, len(key))
	for i, b := range key {
		parts[i] = fmt.Sprintf("%02x", b)
	}
	return strings.Join(parts, ":")
}
