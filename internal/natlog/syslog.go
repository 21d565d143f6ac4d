package natlog

import (
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/leodido/go-syslog/v4/rfc5424"

	"pollux/internal/packet"
	"pollux/nat"
)

// SDID is the id of the structured data element that holds an event's parameters.
const SDID = "pollux@32473"

// Priorities (RFC 5424 6.2.1): facility local0.
const (
	priInfo    = 16*8 + 6
	priWarning = 16*8 + 4
)

// message names a syslog message.
type message uint8

const (
	msgSessionCreate message = iota
	msgSessionDelete
	msgMappingCreate
	msgMappingDelete
	msgBlockAlloc
	msgBlockRelease
	msgRefused
	msgLost
	msgStart
	msgStop
	messages
)

var messageNames = [messages]string{"session-create", "session-delete", "mapping-create", "mapping-delete", "block-alloc",
	"block-release", "refused", "events-lost", "start", "stop"}

// syslogEncoder writes messages. What is the same in all messages of a name is built and checked once, by go-syslog; what
// differs is appended, because a busy log has more messages a second than its builder, at 4 microseconds and 80 allocations
// a message, should be given.
type syslogEncoder struct {
	before [messages]string // up to the time stamp
	after  [messages]string // from it up to the name of the first parameter
	start  string           // parameters of the start message
}

// noTime stands where the time stamp will be.
const noTime = "2006-01-02T15:04:05.999Z"

// newSyslogEncoder takes what a message says about its sender. A hostname that syslog can't carry is left out.
func newSyslogEncoder(hostname, version string, pid int, level string) (*syslogEncoder, error) {
	e := &syslogEncoder{}
	for i := range e.before {
		pri := uint8(priInfo)
		if m := message(i); m == msgRefused || m == msgLost {
			pri = priWarning
		}
		m := &rfc5424.SyslogMessage{}
		m.SetPriority(pri).SetVersion(1).SetTimestamp(noTime).SetHostname(hostname).SetAppname("pollux").
			SetProcID(strconv.Itoa(pid)).SetMsgID(messageNames[i]).SetElementID(SDID)
		if message(i) == msgStart {
			m.SetParameter(SDID, "level", level).SetParameter(SDID, "version", version)
		}
		text, err := m.String()
		if err != nil {
			return nil, fmt.Errorf("natlog: a syslog message: %w", err)
		}
		before, after, ok := strings.Cut(text, noTime)
		head, params, ok2 := strings.Cut(after, "["+SDID)
		if !ok || !ok2 {
			return nil, fmt.Errorf("natlog: a syslog message looks like %q", text)
		}
		e.before[i], e.after[i] = before, head+"["+SDID
		if message(i) == msgStart {
			e.start = strings.TrimSuffix(params, "]")
		}
	}
	return e, nil
}

// append appends the message for one record.
func (e *syslogEncoder) append(b []byte, r *record) []byte {
	m := messageOf(r)
	b = append(b, e.before[m]...)
	b = time.UnixMilli(r.wall).UTC().AppendFormat(b, "2006-01-02T15:04:05.000Z")
	b = append(b, e.after[m]...)
	switch m {
	case msgStart:
		b = append(b, e.start...)
	case msgStop:
	case msgLost:
		b = appendCount(b, "count", r.Packets[0])
	case msgBlockAlloc, msgBlockRelease:
		b = appendCount(b, "worker", uint64(r.worker))
		b = append(r.Local.Addr.Netip().AppendTo(append(b, ` host="`...)), '"')
		b = append(r.Alias.Addr.Netip().AppendTo(append(b, ` alias="`...)), '"')
		b = strconv.AppendUint(append(b, ` ports="`...), uint64(r.Alias.Port), 10)
		b = strconv.AppendUint(append(b, '-'), uint64(r.Remote.Port), 10)
		b = append(b, '"')
	default:
		b = appendFlow(b, m, r)
	}
	return append(b, ']')
}

// appendFlow appends the parameters of a session, a mapping or a refusal.
func appendFlow(b []byte, m message, r *record) []byte {
	b = appendCount(b, "worker", uint64(r.worker))
	if m == msgRefused {
		b = append(append(append(b, ` reason="`...), r.Reason.String()...), '"')
	}
	b = append(b, ` proto="`...)
	b = append(appendProto(b, r.Proto), '"')
	if m != msgRefused || r.Local.Addr != 0 {
		b = appendEndpoint(b, "local", r.Proto, r.Local.Addr, r.Local.Port)
	}
	switch {
	case m != msgRefused:
		b = appendEndpoint(b, "alias", r.Proto, r.Alias.Addr, r.Alias.Port)
	case r.Alias.Addr != 0:
		b = append(r.Alias.Addr.Netip().AppendTo(append(b, ` alias="`...)), '"')
	}
	switch {
	case m == msgMappingCreate || m == msgMappingDelete:
		return b
	case m == msgRefused && r.Proto == packet.ProtoICMP: // there is no alias id, which is the peer's too
		b = append(r.Remote.Addr.Netip().AppendTo(append(b, ` remote="`...)), '"')
		return appendCount(b, "untold", r.Untold())
	}
	b = appendEndpoint(b, "remote", r.Proto, r.Remote.Addr, remotePort(r))
	if m == msgRefused {
		return appendCount(b, "untold", r.Untold())
	}
	if r.Inbound {
		b = append(b, ` opened="in"`...)
	} else {
		b = append(b, ` opened="out"`...)
	}
	if m == msgSessionDelete {
		b = appendCount(b, "packets_out", r.Packets[0])
		b = appendCount(b, "bytes_out", r.Bytes[0])
		b = appendCount(b, "packets_in", r.Packets[1])
		b = appendCount(b, "bytes_in", r.Bytes[1])
	}
	return b
}

func messageOf(r *record) message {
	switch r.extra {
	case extraStart:
		return msgStart
	case extraStop:
		return msgStop
	case extraLost:
		return msgLost
	}
	switch r.Kind {
	case nat.EventSessionCreate:
		return msgSessionCreate
	case nat.EventSessionDelete:
		return msgSessionDelete
	case nat.EventMappingCreate:
		return msgMappingCreate
	case nat.EventMappingDelete:
		return msgMappingDelete
	case nat.EventBlockTaken:
		return msgBlockAlloc
	case nat.EventBlockGiven:
		return msgBlockRelease
	}
	return msgRefused
}

// remotePort is the port of the peer. An ICMP query has one id only: the peer answers to the one that it sees, the alias's.
func remotePort(r *record) uint16 {
	if r.Proto == packet.ProtoICMP {
		return r.Alias.Port
	}
	return r.Remote.Port
}

func appendCount(b []byte, name string, n uint64) []byte {
	b = append(append(append(b, ' '), name...), `="`...)
	return append(strconv.AppendUint(b, n, 10), '"')
}

func appendProto(b []byte, proto uint8) []byte {
	switch proto {
	case packet.ProtoTCP:
		return append(b, "tcp"...)
	case packet.ProtoUDP:
		return append(b, "udp"...)
	case packet.ProtoICMP:
		return append(b, "icmp"...)
	}
	return strconv.AppendUint(b, uint64(proto), 10)
}

func appendEndpoint(b []byte, name string, proto uint8, addr packet.Addr, port uint16) []byte {
	b = append(append(append(b, ' '), name...), `="`...)
	b = addr.Netip().AppendTo(b)
	switch proto {
	case packet.ProtoTCP, packet.ProtoUDP, packet.ProtoICMP:
		b = strconv.AppendUint(append(b, ':'), uint64(port), 10)
	}
	return append(b, '"')
}
