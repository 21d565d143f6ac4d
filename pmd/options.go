package pmd

import (
	"time"

	"pollux/nat"
	"pollux/rtcache"
)

// Idle is what a worker does when there is nothing to do.
type Idle uint8

const (
	Spin     Idle = iota // never sleep: dedicated cores
	Adaptive             // spin a little, then sleep in ppoll: shared machines
)

// Mode is how sockets are bound.
type Mode uint8

const (
	ModeAuto Mode = iota
	ModeZeroCopy
	ModeCopy
)

// PortOptions names a netdev and its role.
type PortOptions struct {
	Name string
	Side nat.Side
}

// Options is all a Gateway needs, checked and resolved by internal/config.
type Options struct {
	Ports         []PortOptions
	Cores         []int // one for each worker; empty: one worker on the last allowed core
	Queues        []int // that worker i polls on every port; empty: queue i
	Idle          Idle
	SteerFlow     bool
	RTPriority    int // 0: none; else the FIFO priority of worker threads
	Oversubscribe bool
	Mode          Mode
	RingSize      int
	Frames        int // 0: computed
	Rules         nat.Rules
	AliasPort     bool // nat.alias holds "port": the outside port's own address is the first alias address, followed live
	MSSAuto       bool // nat.mss_clamp: auto
	Limits        nat.Limits
	Populate      bool // take the memory of Limits.Links at start
	RTCache       bool
	ReversePath   rtcache.ReversePathMode
	IPv6Forward   bool
	SnapshotFile  string           // "": no snapshots of the links
	SnapshotEvery time.Duration    // between two of them
	Events        []*nat.EventRing // one for each worker: the translation log; nil: there is none. They outlive the gateway
	RouteBuffer   int              // bytes of the buffer for the kernel's routing messages; 0: what rtcache takes
}
