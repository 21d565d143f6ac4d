package config

import (
	"log/slog"
	"net/netip"
	"time"

	"pollux/internal/packet"
	"pollux/nat"
	"pollux/pmd"
	"pollux/rtcache"
)

// settings is the configuration as it was written, defaults filled in. Config resolves it.
type settings struct {
	ports         []port
	cores, queues []int
	idle          pmd.Idle
	steerFlow     bool
	rtPriority    int
	oversubscribe bool
	mode          pmd.Mode
	ringSize      int
	frames        int
	limits        nat.Limits
	populate      bool

	alias         []aliasSpec
	rules         nat.Rules // its scalar fields, Exempt, Timeouts, Blocks, Deterministic
	mssAuto       bool
	redirectPort  []redirectPort
	redirectAddr  []redirectAddr
	redirectProto []redirectProto

	rtcache     bool
	reversePath rtcache.ReversePathMode
	ipv6Forward bool
	control     Control
	syslog      string
	ipfix       string
	logSessions bool
	messages    Messages
	replay      Replay

	snapshotFile  string
	snapshotEvery time.Duration

	where map[string]place // of each key that was given
}

// Control says where the control socket is and who may use it.
type Control struct {
	Socket string // path of the unix socket
	Mode   uint32 // permission bits
	Group  string // owner group by name or number; "": the process's own

	Metrics netip.AddrPort // where metrics are served by TCP; the zero value: nowhere
}

// Messages says how the process writes what it has to say about itself. (The translation log is another matter.)
type Messages struct {
	JSON  bool       // one JSON object a line, not text
	Least slog.Level // severity
}

// Replay is the world that `pollux replay` plays captures in: there is no kernel and no netdev.
type Replay struct {
	InsideMAC, OutsideMAC [6]byte // the gateway's own
	NextHopMAC            [6]byte // of every neighbour on both sides
	InsideAddress         packet.Addr
	OutsideAddress        packet.Addr // 0 in the file: the first alias address
	InsideNetworks        []netip.Prefix
	InsideMTU, OutsideMTU int
	AnyMAC                bool // frames to any unicast MAC are taken
}

func defaults() *settings {
	return &settings{
		idle:     pmd.Spin,
		mode:     pmd.ModeAuto,
		ringSize: 2048,
		limits:   nat.Limits{Links: 1_000_000, Fragments: 4096},
		rules:    nat.DefaultRules(),
		populate: true,
		rtcache:  true,

		snapshotEvery: time.Minute,
		control:       Control{Socket: DefaultSocket, Mode: 0o660},
		replay: Replay{
			InsideMAC:     [6]byte{2, 0, 0, 0, 0, 1},
			OutsideMAC:    [6]byte{2, 0, 0, 0, 1, 1},
			NextHopMAC:    [6]byte{2, 0, 0, 0, 0, 0xfe},
			InsideAddress: packet.AddrFrom(netip.MustParseAddr("192.0.2.254")),
			InsideNetworks: []netip.Prefix{
				netip.MustParsePrefix("10.0.0.0/8"), netip.MustParsePrefix("172.16.0.0/12"),
				netip.MustParsePrefix("192.168.0.0/16"), netip.MustParsePrefix("100.64.0.0/10"),
			},
			InsideMTU: 1500, OutsideMTU: 1500, AnyMAC: true,
		},
		where: map[string]place{},
	}
}

// DefaultSocket is the control socket's path when nothing else is said.
const DefaultSocket = "/run/pollux.sock"

// ServiceSocket is where the systemd service, which may not write to /run itself, is told to have it.
const ServiceSocket = "/run/pollux/pollux.sock"

const (
	durationMin = time.Millisecond    // the dataplane's tick
	durationMax = 20 * 24 * time.Hour // what the dataplane's wrapping clock can tell apart
)
