package lport

import (
	"fmt"
	"math/bits"
	"slices"
	"sync"
	"sync/atomic"
	"unsafe"

	"pollux/internal/packet"
)

// WorkersMax is how many workers the owner bytes can tell apart.
const WorkersMax = 253

// Owners is the table that says who owns each alias port: one byte per (alias, row, port), read by every worker and by
// the XDP program (DESIGN 4).
//
// Who writes what:
//
//	an owner byte   0 -> worker       that worker, by 32-bit CAS on the word that holds the byte
//	an owner byte   worker -> 0       that worker, by atomic AND on the word
//	an owner byte   0 <-> 254 <-> 255 whoever holds the control lock, or a worker that has just given the byte up
//	wishes          (kernel, redirect bitsets) under the control lock
//
// A word is never loaded, changed and stored: a claim of a neighbouring byte would get lost. A byte that a worker holds is
// never taken from it: SetKernel and SetRedirect leave a wish that hides the port from new links and that comes true
// when the worker lets go.
//
// Byte, Claim and Release may be called by any goroutine; the others too, they take a lock. The table counts on a
// little-endian machine: the byte of port p is lane p%4 of its word.
type Owners struct {
	table atomic.Pointer[ownerTable] // what Byte and the workers see
	alloc func(packet.Addr) ([]byte, error)

	mu    sync.Mutex
	own   [][]byte // everything mapped here, for Close
	spare [][]byte // memory of removed aliases: a late reader may still look at it, so it is kept for the next alias
}

// ownerTable is a small open-addressed hash table, never changed once published.
type ownerTable struct {
	shift uint32
	slots []ownerSlot
}

type ownerSlot struct {
	addr packet.Addr
	own  *aliasOwners
}

// aliasOwners is one alias address.
type aliasOwners struct {
	addr  packet.Addr
	words *[AliasBytes / 4]uint32
	mem   []byte // keeps memory from a Go allocator alive

	kernel, redirect [Rows][65536 / 32]uint32 // wishes
	wishes           atomic.Int32             // how many bits are set in them; mostly 0, which spares the look
	rows             [Rows]rowNews
}

// rowNews tells starving workers that bytes came back, without costing anybody anything while nobody starves.
type rowNews struct {
	gen    atomic.Uint32 // moves when a byte comes back while somebody is hungry
	hungry atomic.Int32  // workers that rely on gen
	_      [120]byte     // keeps rows off each other's cache lines
}

// NewOwners returns an empty table. alloc is asked for AliasBytes zeroed bytes, 8-byte aligned, for each alias address: the
// mmap'd BPF array that the XDP program reads; the memory stays the allocator's. With alloc nil the table maps its own.
func NewOwners(alloc func(alias packet.Addr) ([]byte, error)) *Owners {
	o := &Owners{alloc: alloc}
	o.table.Store(newOwnerTable(nil))
	return o
}

func newOwnerTable(all []*aliasOwners) *ownerTable {
	log := max(bits.Len(uint(len(all))), 1) + 1 // load at most a half
	t := &ownerTable{shift: 32 - uint32(log), slots: make([]ownerSlot, 1<<log)}
	for _, a := range all {
		i := t.home(a.addr)
		for t.slots[i].own != nil {
			i = (i + 1) & uint32(len(t.slots)-1)
		}
		t.slots[i] = ownerSlot{a.addr, a}
	}
	return t
}

func (t *ownerTable) home(a packet.Addr) uint32 { return uint32(a) * 0x9e3779b1 >> t.shift }

func (t *ownerTable) find(a packet.Addr) *aliasOwners {
	mask := uint32(len(t.slots) - 1)
	for i := t.home(a); ; i++ {
		s := &t.slots[i&mask]
		if s.addr == a || s.own == nil {
			return s.own
		}
	}
}

func (t *ownerTable) all() []*aliasOwners {
	var out []*aliasOwners
	for _, s := range t.slots {
		if s.own != nil {
			out = append(out, s.own)
		}
	}
	return out
}

// Add makes an alias address known, with all bytes free. Adding one twice does nothing. Readers see it at once.
func (o *Owners) Add(alias packet.Addr) error {
	o.mu.Lock()
	defer o.mu.Unlock()
	if alias == 0 {
		return fmt.Errorf("lport: 0.0.0.0 cannot be an alias address")
	}
	t := o.table.Load()
	if t.find(alias) != nil {
		return nil
	}
	mem, err := o.memory(alias)
	if err != nil {
		return fmt.Errorf("lport: owner table of alias %s: %w", alias, err)
	}
	if len(mem) < AliasBytes || uintptr(unsafe.Pointer(&mem[0]))%8 != 0 {
		return fmt.Errorf("lport: owner table of alias %s: got %d bytes, want %d, 8-byte aligned", alias, len(mem), AliasBytes)
	}
	a := &aliasOwners{addr: alias, mem: mem, words: (*[AliasBytes / 4]uint32)(unsafe.Pointer(&mem[0]))}
	o.table.Store(newOwnerTable(append(t.all(), a)))
	return nil
}

func (o *Owners) memory(alias packet.Addr) ([]byte, error) {
	if o.alloc != nil {
		return o.alloc(alias)
	}
	if n := len(o.spare); n > 0 {
		mem := o.spare[n-1]
		o.spare = o.spare[:n-1]
		clear(mem)
		return mem, nil
	}
	mem, err := mapped[byte](AliasBytes)
	if err == nil {
		o.own = append(o.own, mem)
	}
	return mem, err
}

// Remove makes an alias address unknown: its bytes read as free and claims of them fail. Removing an unknown one does nothing.
func (o *Owners) Remove(alias packet.Addr) {
	o.mu.Lock()
	defer o.mu.Unlock()
	t := o.table.Load()
	a := t.find(alias)
	if a == nil {
		return
	}
	o.table.Store(newOwnerTable(slices.DeleteFunc(t.all(), func(x *aliasOwners) bool { return x == a })))
	if o.alloc == nil {
		o.spare = append(o.spare, a.mem)
	}
}

// Aliases returns the known alias addresses in ascending order.
func (o *Owners) Aliases() []packet.Addr {
	var out []packet.Addr
	for _, a := range o.table.Load().all() {
		out = append(out, a.addr)
	}
	slices.Sort(out)
	return out
}

// Close frees the memory that the table mapped itself. No worker may use the table any more.
func (o *Owners) Close() {
	o.mu.Lock()
	defer o.mu.Unlock()
	o.table.Store(newOwnerTable(nil))
	for _, m := range o.own {
		unmap(m)
	}
	o.own, o.spare = nil, nil
}

// Byte returns the owner byte: ByteFree, a worker's index + 1, ByteKernel or ByteRedirect. An unknown alias reads as free.
func (o *Owners) Byte(alias packet.Addr, row Row, port uint16) uint8 {
	a := o.table.Load().find(alias)
	if a == nil {
		return ByteFree
	}
	return a.byte(row, port)
}

// Look is Byte that also says whether the address is an alias.
func (o *Owners) Look(alias packet.Addr, row Row, port uint16) (b uint8, known bool) {
	a := o.table.Load().find(alias)
	if a == nil {
		return ByteFree, false
	}
	return a.byte(row, port), true
}

// Bytes are the owner bytes of one alias address: Byte for who asks for many of them.
type Bytes struct{ words *[AliasBytes / 4]uint32 }

// nobodys are the bytes of an address that is no alias.
var nobodys [AliasBytes / 4]uint32

// Bytes returns those of an address, all of them free when it is no alias. They are not to be kept for longer than a burst.
func (o *Owners) Bytes(alias packet.Addr) Bytes {
	if a := o.table.Load().find(alias); a != nil {
		return Bytes{a.words}
	}
	return Bytes{&nobodys}
}

// At returns the owner byte of a port.
func (b Bytes) At(row Row, port uint16) uint8 {
	w, s := lane(row&(Rows-1), port)
	return uint8(atomic.LoadUint32(&b.words[w]) >> s)
}

// Claim takes a free byte for a worker (its index, from 0) and reports whether the byte is that worker's now. Of any
// number of workers that claim one byte at the same time exactly one gets it.
func (o *Owners) Claim(alias packet.Addr, row Row, port uint16, worker int) bool {
	a := o.table.Load().find(alias)
	return a != nil && (a.claim(row, port, worker) || a.byte(row, port) == uint8(worker+1))
}

// Release gives a byte back that the worker owns; a byte that is not the worker's stays as it is. The byte becomes free,
// or what SetRedirect or SetKernel asked for in the meantime.
func (o *Owners) Release(alias packet.Addr, row Row, port uint16, worker int) {
	if a := o.table.Load().find(alias); a != nil && a.byte(row, port) == uint8(worker+1) {
		a.release(row, port)
		a.tell(row, 0)
	}
}

// SetKernel marks a port as the gateway's own (a listener, a connection): no worker claims it from now on. It reports
// whether the byte says so already; false means that a worker holds it still, or that a redirect goes before.
func (o *Owners) SetKernel(alias packet.Addr, row Row, port uint16) bool {
	return o.wish(alias, row, port, true, kernelWish) == ByteKernel
}

// ClearKernel undoes SetKernel.
func (o *Owners) ClearKernel(alias packet.Addr, row Row, port uint16) {
	o.wish(alias, row, port, false, kernelWish)
}

// SetRedirect takes a port out of the dynamic space because a redirect publishes it. It reports whether the byte says so
// already; false means that a worker holds it still: it turns when the worker has closed its links there.
func (o *Owners) SetRedirect(alias packet.Addr, row Row, port uint16) bool {
	return o.wish(alias, row, port, true, redirectWish) == ByteRedirect
}

// ClearRedirect undoes SetRedirect.
func (o *Owners) ClearRedirect(alias packet.Addr, row Row, port uint16) {
	o.wish(alias, row, port, false, redirectWish)
}

// Redirected reports whether a redirect publishes a port, though a worker may hold the byte still.
func (o *Owners) Redirected(alias packet.Addr, row Row, port uint16) bool {
	a := o.table.Load().find(alias)
	return a != nil && a.wishes.Load() != 0 && a.wished(row, port) == ByteRedirect
}

// SetRedirectAll is SetRedirect for every row and port of an address that an address redirect publishes whole. It reports
// whether every byte says so already.
func (o *Owners) SetRedirectAll(alias packet.Addr) bool {
	all := true
	for row := range Rows {
		for port := range 65536 {
			all = o.SetRedirect(alias, row, uint16(port)) && all
		}
	}
	return all
}

// ClearRedirectAll undoes SetRedirectAll; port redirects of that address must be set again.
func (o *Owners) ClearRedirectAll(alias packet.Addr) {
	for row := range Rows {
		for port := range 65536 {
			o.ClearRedirect(alias, row, uint16(port))
		}
	}
}

const (
	kernelWish = iota
	redirectWish
)

// wish sets or clears one wish, makes the byte follow and returns it.
func (o *Owners) wish(alias packet.Addr, row Row, port uint16, on bool, kind int) uint8 {
	o.mu.Lock()
	defer o.mu.Unlock()
	a := o.table.Load().find(alias)
	if a == nil || row >= Rows {
		return ByteFree
	}
	w, bit := &a.kernel[row][port>>5], uint32(1)<<(port&31)
	if kind == redirectWish {
		w = &a.redirect[row][port>>5]
	}
	switch was := atomic.LoadUint32(w)&bit != 0; {
	case on && !was:
		a.wishes.Add(1) // before the bit: who sees the bit's effect must also see that there are wishes
		atomic.OrUint32(w, bit)
	case !on && was:
		atomic.AndUint32(w, ^bit)
		a.wishes.Add(-1)
	}
	a.settle(row, port)
	a.tell(row, 0)
	return a.byte(row, port)
}

// lane returns the index of the word that holds a port's byte, and the shift of the byte in it.
func lane(row Row, port uint16) (word, shift uint32) {
	return uint32(row)<<14 | uint32(port)>>2, uint32(port&3) * 8
}

func (a *aliasOwners) byte(row Row, port uint16) uint8 {
	w, s := lane(row&(Rows-1), port)
	return uint8(atomic.LoadUint32(&a.words[w]) >> s)
}

// claim turns a free byte into the worker's. False: it was not free.
func (a *aliasOwners) claim(row Row, port uint16, worker int) bool {
	w, s := lane(row&(Rows-1), port)
	p := &a.words[w]
	for {
		old := atomic.LoadUint32(p)
		if old>>s&0xff != 0 {
			return false
		}
		if atomic.CompareAndSwapUint32(p, old, old|uint32(worker+1)<<s) {
			return true
		}
	}
}

// release frees a byte that the caller owns. tell must follow, once for any number of them.
func (a *aliasOwners) release(row Row, port uint16) {
	w, s := lane(row&(Rows-1), port)
	atomic.AndUint32(&a.words[w], ^(uint32(0xff) << s))
	if a.wishes.Load() != 0 {
		a.settle(row, port)
	}
}

// tell moves the row's generation if somebody waits for bytes to come back. It must come after the byte was freed: a
// worker first says that it is hungry, then reads gen, then looks at the bytes, so it either sees the byte or a new gen.
// except is 1 if the caller itself is counted as hungry: it knows what it gave back.
func (a *aliasOwners) tell(row Row, except int32) {
	if n := &a.rows[row&(Rows-1)]; n.hungry.Load() > except {
		n.gen.Add(1)
	}
}

// wished returns what the byte should be while no worker has it.
func (a *aliasOwners) wished(row Row, port uint16) uint8 {
	bit := uint32(1) << (port & 31)
	switch {
	case atomic.LoadUint32(&a.redirect[row&(Rows-1)][port>>5])&bit != 0:
		return ByteRedirect
	case atomic.LoadUint32(&a.kernel[row&(Rows-1)][port>>5])&bit != 0:
		return ByteKernel
	}
	return ByteFree
}

// reserved reports whether a byte that a worker holds must not be used for new links, because it is wished away.
func (a *aliasOwners) reserved(row Row, port uint16) bool {
	return a.wishes.Load() != 0 && a.wished(row, port) != ByteFree
}

// settle makes a byte that no worker holds what the wishes say. Wishes may change meanwhile (a worker settles the byte that
// it has just released), so they are read again after the byte was written.
func (a *aliasOwners) settle(row Row, port uint16) {
	w, s := lane(row&(Rows-1), port)
	p := &a.words[w]
	for {
		want, old := a.wished(row, port), atomic.LoadUint32(p)
		have := uint8(old >> s)
		if have != ByteFree && have <= WorkersMax {
			return // a worker's: it settles when it lets go
		}
		if have != want && !atomic.CompareAndSwapUint32(p, old, old&^(0xff<<s)|uint32(want)<<s) {
			continue
		}
		if a.wished(row, port) == want {
			return
		}
	}
}

// full reports whether none of the four ports from port (a multiple of 4) on is free.
func (a *aliasOwners) full(row Row, port uint16) bool {
	w, _ := lane(row&(Rows-1), port)
	x := atomic.LoadUint32(&a.words[w])
	return (x-0x01010101)&^x&0x80808080 == 0
}
