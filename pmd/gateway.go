package pmd

import (
	"errors"

	"pollux/internal/reason"
	"pollux/nat"
)

// Gateway is a running dataplane: ports bound, XDP attached, workers polling. Its methods may be called from any goroutine.
type Gateway struct{}

// Start brings the dataplane up: it probes first and changes nothing when a check fails. The error is one line for people: what, where, what to do.
func Start(o Options) (*Gateway, error) { return nil, errors.New("pmd: Start is being built") }

// Stop detaches everything and returns when the workers have ended.
func (g *Gateway) Stop() error { return nil }

// Done is closed when a worker died by itself; Err then says why.
func (g *Gateway) Done() <-chan struct{} { return nil }

// Err returns why Done was closed.
func (g *Gateway) Err() error { return nil }

// WorkerStats is one worker's counters. Frame counts are by place; their sum is constant.
type WorkerStats struct {
	Worker     int               `json:"worker"`
	Core       int               `json:"core"`
	Queue      int               `json:"queue"`
	Received   uint64            `json:"received"`
	Translated uint64            `json:"translated"`
	Forwarded  uint64            `json:"forwarded"` // sent on, translated or not
	Sent       uint64            `json:"transmitted"`
	Dropped    uint64            `json:"dropped"`
	Bursts     uint64            `json:"bursts"`
	Polls      uint64            `json:"polls"`
	Sleeps     uint64            `json:"sleeps"`
	Links      uint64            `json:"links"`
	Frames     map[string]uint64 `json:"frames"`
	Leaked     int64             `json:"frames_leaked"`
	PollGapsUS []uint64          `json:"poll_gap_us_log2"` // [i]: gaps of 2^i..2^(i+1)-1 microseconds
}

// PortStats is one netdev's state and counters.
type PortStats struct {
	Name      string `json:"name"`
	Role      string `json:"role"`
	IfIndex   int    `json:"ifindex"`
	MAC       string `json:"mac"`
	MTU       int    `json:"mtu"`
	Address   string `json:"address"`
	Mode      string `json:"mode"` // zerocopy | copy
	XDP       string `json:"xdp"`  // native | generic
	Up        bool   `json:"up"`
	Queues    []int  `json:"queues"`
	RX        uint64 `json:"rx"`
	TX        uint64 `json:"tx"`
	RXDropped uint64 `json:"rx_dropped"`
	RXFull    uint64 `json:"rx_ring_full"`
	FillEmpty uint64 `json:"fill_ring_empty"`
	TXInvalid uint64 `json:"tx_invalid"`
	Passed    uint64 `json:"passed_to_kernel"`
}

// DropStats is one reason's count.
type DropStats struct {
	Reason reason.Reason `json:"-"`
	Name   string        `json:"reason"`
	Count  uint64        `json:"count"`
	Help   string        `json:"help"`
}

// Workers, Ports and Drops read published counters; they never stop a worker.
func (g *Gateway) Workers() []WorkerStats { return nil }

// Ports returns one entry per configured port, in config order.
func (g *Gateway) Ports() []PortStats { return nil }

// Drops returns every reason with its count, zero counts included, in the order of the list.
func (g *Gateway) Drops() []DropStats { return nil }

// Links calls visit for links in bounded slices between bursts until it returns false or all were seen.
func (g *Gateway) Links(visit func(nat.LinkInfo) bool) error { return nil }

// SetRTCache switches the attached next hops on or off at run time.
func (g *Gateway) SetRTCache(on bool) {}

// RTCache reports whether attached next hops are in use.
func (g *Gateway) RTCache() bool { return false }
