package pmd

import (
	"errors"
	"log/slog"
	"net/netip"
	"slices"
	"sync"
	"time"

	"pollux/internal/clock"
	"pollux/internal/packet"
	"pollux/lport"
	"pollux/nat"
	"pollux/rings"
	"pollux/rtcache"
)

// world is what the kernel tells of ports and addresses, and what was made of it.
type world struct {
	mu        sync.Mutex
	ports     []rtcache.Port // by index; rtcache's goroutine writes
	addresses rtcache.Addresses
	current   nat.Rules     // Start and then whoever holds Gateway.changing write
	aliases   []packet.Addr // of current

	changed chan struct{} // ports or addresses moved
	marks   map[mark]bool // likewise
}

func (w *world) onPort(p rtcache.Port) {
	w.mu.Lock()
	was := w.ports[p.Index]
	w.ports[p.Index] = p
	w.mu.Unlock()
	tellPort(was, p)
	w.poke()
}

func (w *world) onAddresses(a rtcache.Addresses) {
	w.mu.Lock()
	w.addresses = a
	w.mu.Unlock()
	w.poke()
}

func (w *world) poke() {
	select {
	case w.changed <- struct{}{}:
	default:
	}
}

// rules makes of the configured rules those that hold in this world: "port" is the first outside port's own address,
// Kernel says which alias addresses the kernel has, an automatic MSS is the one that fits now. It also returns the kernel's
// own addresses.
func (w *world) rules(o *Options) (*nat.Rules, []netip.Addr) {
	w.mu.Lock()
	defer w.mu.Unlock()
	r := o.Rules
	var own packet.Addr
	var mtus []int
	for i, p := range w.ports {
		mtus = append(mtus, p.MTU)
		if own == 0 && o.Ports[i].Side == nat.Outside {
			own = p.Addr
		}
	}
	if o.AliasPort {
		r = FollowPort(r, own)
	}
	if o.MSSAuto {
		r.MSSClamp = MSSAuto(mtus)
	}
	addresses := slices.Concat(w.addresses.Local, w.addresses.Broadcast)
	r.Kernel = nil
	for _, a := range Aliases(&r) {
		if slices.Contains(w.addresses.Local, a.Netip()) {
			r.Kernel = append(r.Kernel, a)
		}
	}
	return &r, addresses
}

// FollowPort puts the outside port's own address in front of the pool and into redirects that follow it. While the port has
// none they can't be.
func FollowPort(r nat.Rules, own packet.Addr) nat.Rules {
	taken := false
	r.RedirectPort = slices.Clone(r.RedirectPort)
	for i := range r.RedirectPort {
		if p := &r.RedirectPort[i].Public; p.Addr == 0 {
			p.Addr = own
		}
	}
	r.RedirectAddr = slices.Clone(r.RedirectAddr)
	for i := range r.RedirectAddr {
		if p := &r.RedirectAddr[i].Public; *p == 0 {
			*p, taken = own, true
		}
	}
	r.RedirectProto = slices.Clone(r.RedirectProto)
	for i := range r.RedirectProto {
		if p := &r.RedirectProto[i].Public; *p == 0 {
			*p = own
		}
	}
	if own == 0 {
		r.RedirectPort = slices.DeleteFunc(r.RedirectPort, func(p nat.RedirectPort) bool { return p.Public.Addr == 0 })
		r.RedirectAddr = slices.DeleteFunc(r.RedirectAddr, func(p nat.RedirectAddr) bool { return p.Public == 0 })
		r.RedirectProto = slices.DeleteFunc(r.RedirectProto, func(p nat.RedirectProto) bool { return p.Public == 0 })
	} else if !taken && !slices.Contains(r.Alias, own) {
		r.Alias = append([]packet.Addr{own}, r.Alias...)
	}
	return r
}

// arpPorts says by which ports an alias address is directly connected: where ARP for it is answered, unless the kernel has
// the address itself.
func (g *Gateway) arpPorts(a packet.Addr) uint16 {
	if port, ok := g.table.OnLinkPort(a); ok {
		return 1 << port
	}
	return 0
}

// mark is a place in the owner table that a redirect holds. Row lport.Rows stands for a whole address.
type mark struct {
	alias packet.Addr
	row   lport.Row
	port  uint16
}

// Publish makes all alias addresses of the rules known to an owner table that several workers share, and says which of
// their ports redirects publish. A running gateway does the same, and follows changes.
func Publish(owners *lport.Owners, r *nat.Rules) error {
	for _, a := range Aliases(r) {
		if err := owners.Add(a); err != nil {
			return err
		}
	}
	new(world).markNew(owners, wanted(r))
	return nil
}

// wanted lists the places that the redirects of r hold.
func wanted(r *nat.Rules) map[mark]bool {
	want := map[mark]bool{}
	for i := range r.RedirectAddr {
		want[mark{r.RedirectAddr[i].Public, lport.Rows, 0}] = true
	}
	for i := range r.RedirectPort {
		p := &r.RedirectPort[i]
		want[mark{p.Public.Addr, rowOf(p.Proto), p.Public.Port}] = true
	}
	for i := range r.RedirectProto {
		p := &r.RedirectProto[i]
		if p.Remote != 0 {
			want[mark{p.Public, lport.RowOther, rings.OtherSlot(p.Remote, p.Proto)}] = true
			continue
		}
		for port := range 1 << 16 { // any remote may be in any slot
			want[mark{p.Public, lport.RowOther, uint16(port)}] = true
		}
	}
	return want
}

// markNew makes the owner table say which ports redirects publish, markGone which they publish no more. In between both hold.
func (w *world) markNew(owners *lport.Owners, want map[mark]bool) {
	for m := range want {
		switch {
		case w.marks[m]:
		case m.row == lport.Rows:
			owners.SetRedirectAll(m.alias)
		default:
			owners.SetRedirect(m.alias, m.row, m.port)
		}
	}
}

func (w *world) markGone(owners *lport.Owners, want map[mark]bool) {
	for m := range w.marks {
		switch {
		case want[m]:
		case m.row == lport.Rows: // but for ports that are published one by one as well
			for row := range lport.Rows {
				for port := range 1 << 16 {
					if !want[mark{m.alias, row, uint16(port)}] {
						owners.ClearRedirect(m.alias, row, uint16(port))
					}
				}
			}
		case !want[mark{m.alias, lport.Rows, 0}]:
			owners.ClearRedirect(m.alias, m.row, m.port)
		}
	}
	w.marks = want
}

func rowOf(proto uint8) lport.Row {
	switch proto {
	case packet.ProtoTCP:
		return lport.RowTCP
	case packet.ProtoUDP:
		return lport.RowUDP
	case packet.ProtoICMP:
		return lport.RowICMP
	}
	return lport.RowOther
}

// followPause is how long follow waits for more news: an address change comes as several messages.
const followPause = 20 * time.Millisecond

// follow keeps rules, XDP programs and the worker in step with the kernel's addresses and ports.
func (g *Gateway) follow() {
	var again <-chan time.Time // a port could not be bound
	for {
		select {
		case <-g.quit:
			return
		case <-g.world.changed:
		case <-again:
		}
		bound, failed, err := g.rebind() // at once: packets wait for it
		if errors.Is(err, ErrEnded) {
			return
		} else if err != nil {
			slog.Error("sockets of a deleted interface could not be closed", "error", err)
		}
		if again = nil; failed {
			again = time.After(rebindAgain)
		}
		select {
		case <-g.quit:
			return
		case <-time.After(followPause):
		}
		if err := g.adapt(bound); errors.Is(err, ErrEnded) {
			return
		} else if err != nil {
			slog.Error("the kernel's addresses or ports changed and could not be followed", "error", err)
		}
	}
}

// adapt does that. announce: neighbours must be told of all alias addresses again.
func (g *Gateway) adapt(announce bool) error {
	g.changing.Lock()
	defer g.changing.Unlock()
	moved, err := g.adaptMACs()
	if err != nil {
		return err
	}
	if err := g.enforce(&g.o); err != nil {
		return err
	}
	if moved || announce { // neighbours remember the old address
		for _, a := range g.world.aliases {
			g.announce(a)
		}
	}
	return nil
}

// adaptMACs follows MAC addresses of ports and reports whether one changed.
func (g *Gateway) adaptMACs() (moved bool, err error) {
	ports := g.table.Ports()
	for i, p := range ports {
		if err := g.ports[i].program.SetMAC(p.MAC[:]); err != nil {
			return false, err
		}
	}
	for _, w := range g.workers {
		if err := w.loop.Do(func(clock.Tick) bool {
			for i := range ports {
				moved = moved || w.worker.ports[i].mac != ports[i].MAC
				w.worker.ports[i].setMAC(ports[i].MAC)
			}
			return true
		}); err != nil {
			return moved, err
		}
	}
	return moved, nil
}
