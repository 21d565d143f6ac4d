package rtcache

import (
	"fmt"
	"net"
	"slices"
	"time"
)

// Options describe a table that mirrors the kernel.
type Options struct {
	Ports       []Port // Name (or IfIndex) and Inside count, the rest is the kernel's; Index is the place in the list
	ReversePath ReversePathMode
	CacheOff    bool // start with attached next hops switched off
	Hops        int  // most next hops, on-link hosts included; 0: 65,536; at most 1,048,576. 64 bytes each

	// ReceiveBuffer is the size in bytes of the netlink socket's buffer, 0: 16 MiB. Memory is taken only when used.
	ReceiveBuffer int

	// Generation is that of the first slots; 0: 1. One that follows a predecessor's Table.Generation makes its slots worthless.
	Generation uint32

	// OnPort is told a port whose MAC, MTU, primary address or state changed; OnAddresses the kernel's own addresses
	// when they changed. Both are called from New with the first state, later from the control goroutine, which waits
	// for them; they may call methods of Table but not Close. OnWarning is told likewise what Warnings begins to say and, with
	// over, what it says no more.
	OnPort      func(Port)
	OnAddresses func(Addresses)
	OnWarning   func(text string, over bool)
}

// New mirrors the routing of the calling thread's network namespace: tables local and main of both families. It returns
// when the mirror is complete, or with one line that says what to do. A port in a VRF is refused. Policy rules, other tables,
// routes by source or type of service and encapsulations are not followed: see Warnings. Needs NET_ADMIN.
func New(o Options) (*Table, error) {
	if err := checkPorts(o.Ports); err != nil {
		return nil, err
	}
	if o.Hops == 0 {
		o.Hops = hopsDefault
	}
	if o.Hops < 4*len(o.Ports)+64 || o.Hops > hopsMax {
		return nil, fmt.Errorf("rtcache: room for %d next hops: give %d to %d", o.Hops, 4*len(o.Ports)+64, hopsMax)
	}
	ports := slices.Clone(o.Ports)
	for i := range ports {
		p := &ports[i]
		ifc, err := net.InterfaceByName(p.Name)
		if p.IfIndex != 0 {
			ifc, err = net.InterfaceByIndex(p.IfIndex)
		}
		if err != nil {
			return nil, fmt.Errorf("rtcache: port %s (netdev %d): %w: see `ip link`", p.Name, p.IfIndex, err)
		}
		p.IfIndex, p.Name = ifc.Index, ifc.Name
	}
	k, err := openKernel(o.ReceiveBuffer)
	if err != nil {
		return nil, err
	}
	t, err := start(o, ports, k)
	if err != nil {
		k.close()
		return nil, err
	}
	t.wakeup = k.wakeup
	go t.run()
	return t, nil
}

// start builds a table over a source and reads it once.
func start(o Options, ports []Port, s source) (*Table, error) {
	t := newTable(ports, o.Hops, o.ReversePath)
	t.source = s
	t.c.asks = s
	t.onPort, t.onAddresses, t.onWarning = o.OnPort, o.OnAddresses, o.OnWarning
	if o.Generation != 0 {
		t.generation = (o.Generation-1)%generationMax + 1
	}
	t.SetCache(!o.CacheOff)
	t.mu.Lock()
	defer t.mu.Unlock()
	if err := t.reread(); err != nil {
		return nil, err
	}
	for i := range t.c.ports {
		if w := t.c.warnings["vrf "+t.c.ports[i].Name]; w != "" {
			return nil, fmt.Errorf("rtcache: %s", w)
		}
	}
	t.flush()
	return t, nil
}

// rereadTries is how often an overrun amid a reading makes us start again before we take what we have.
const rereadTries = 4

// reread takes the whole state from the source. Should it fail, what is there stays in use. After an overrun amid the
// reading the state may be behind: then suspect stays set.
func (t *Table) reread() error {
	c := t.c
	for try := 1; ; try++ {
		t.source.forget()
		c.begin()
		err := t.source.dump(c)
		c.reading.complete = true
		for more := true; more && err == nil; {
			more, err = t.source.read(c)
		}
		switch {
		case err == nil:
			c.end()
			return nil
		case err != errOverrun:
			c.abandon()
			return err
		}
		c.stats.Overruns++
		if try == rereadTries {
			c.end()
			c.suspect = true
			return nil
		}
		c.abandon()
	}
}

// run is the control goroutine.
func (t *Table) run() {
	defer close(t.done)
	begun := time.Now()
	var retry time.Duration // not before this is a failed reading tried again
	for !t.closed.Load() {
		t.mu.Lock()
		t.c.now = time.Since(begun) + 1
		next, more := t.step(&retry)
		t.mu.Unlock()
		if more {
			continue
		}
		t.asleep.Store(1)
		if !t.asked() && !t.closed.Load() {
			t.source.wait(next)
		}
		t.asleep.Store(0)
	}
}

// asked tells whether some worker's request waits. It pairs with wake: the worker pushes, then looks at asleep; we set
// asleep, then look at the rings.
func (t *Table) asked() bool {
	for _, v := range *t.views.Load() {
		if !v.ask.empty() {
			return true
		}
	}
	return false
}

const rereadAgain = 100 * time.Millisecond

// step does one round: requests, messages, what is due, publication. The caller holds mu.
func (t *Table) step(retry *time.Duration) (next time.Duration, more bool) {
	c := t.c
	c.takeRequests()
	more, err := t.source.read(c)
	if err != nil {
		if err == errOverrun {
			c.stats.Overruns++
		}
		c.suspect = true
	}
	if c.suspect && c.now >= *retry {
		if err := t.reread(); err != nil {
			c.warn("reading", fmt.Sprintf("the kernel's routing could not be read again, the last known state is in use: %v", err))
		} else {
			c.warn("reading", "")
		}
		*retry = c.now + rereadAgain
	}
	next = c.tick()
	if c.suspect {
		next = min(next, rereadAgain)
	}
	t.flush()
	return next, more
}

// Close ends the mirror and gives back what it asked of the kernel. Views go on with the last state.
func (t *Table) Close() error {
	if t.source == nil || t.closed.Swap(true) {
		return nil
	}
	t.poke()
	<-t.done
	t.mu.Lock()
	defer t.mu.Unlock()
	t.c.unmanage()
	t.asleep.Store(0) // no worker writes the eventfd any more
	t.source.close()
	return nil
}

// Resync reads the kernel's whole state again, soon. Nothing needs it; it is for doubters.
func (t *Table) Resync() {
	if t.source == nil || t.closed.Load() {
		return
	}
	t.mu.Lock()
	t.c.suspect = true
	t.mu.Unlock()
	t.poke()
}
