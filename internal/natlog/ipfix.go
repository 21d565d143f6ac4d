package natlog

import (
	"encoding/binary"
	"time"

	"pollux/internal/packet"
	"pollux/internal/reason"
	"pollux/nat"
)

// Information elements (IANA's registry of IPFIX entities).
const (
	ieProtocol           = 4
	ieSourcePort         = 7
	ieSourceAddress      = 8
	ieDestinationPort    = 11
	ieDestinationAddress = 12
	ieExportingProcess   = 144
	ieNotSentFlows       = 166
	iePostSourceAddress  = 225
	iePostDestAddress    = 226
	iePostSourcePort     = 227
	iePostDestPort       = 228
	ieOriginRealm        = 229
	ieNATEvent           = 230
	ieInitiatorOctets    = 231
	ieResponderOctets    = 232
	iePool               = 283
	ieInitiatorPackets   = 298
	ieResponderPackets   = 299
	ieTimeMilliseconds   = 323
	iePortStart          = 361
	iePortEnd            = 362
	iePortStep           = 363
	iePortCount          = 364
	ieQuotaEvent         = 466
	ieEntriesPerUserMax  = 473
)

// NAT events (RFC 8158 4.2) that pollux tells.
const (
	natAddressesExhausted = 3
	natSessionCreate      = 4
	natSessionDelete      = 5
	natBIBCreate          = 8
	natBIBDelete          = 9
	natPortsExhausted     = 12
	natQuotaExceeded      = 13
	natBlockAlloc         = 16
	natBlockRelease       = 17
)

// Kinds of exceeded quota (RFC 8158, natQuotaExceededEvent).
const (
	quotaSessions = 1
	quotaPerUser  = 3
)

// Realms of the one who opened a session (RFC 8158, natOriginatingAddressRealm).
const (
	realmInternal = 1
	realmExternal = 2
)

// field is one element of a template and its length in octets.
type field struct{ ie, length uint16 }

// Templates, by their index; their ids follow from it.
const (
	tmplCreate = iota
	tmplDelete
	tmplBIB
	tmplBlock
	tmplAddresses
	tmplPorts
	tmplQuotaSessions
	tmplQuotaUser
	tmplLost // options: about the exporter
	tmplCount

	tmplNone = -1
)

// templateBase is the id of the first template (RFC 7011 3.4.1).
const templateBase = 256

var (
	when    = []field{{ieTimeMilliseconds, 8}, {ieNATEvent, 1}}
	mapping = append(when[:2:2], []field{{ieSourceAddress, 4}, {iePostSourceAddress, 4}, {ieProtocol, 1}, {ieSourcePort, 2}, {iePostSourcePort, 2}}...)
	session = append(mapping[:7:7], []field{{ieDestinationAddress, 4}, {iePostDestAddress, 4}, {ieDestinationPort, 2}, {iePostDestPort, 2}, {ieOriginRealm, 1}}...)
)

// templates is the one list from which both the template sets and the records are written.
var templates = [tmplCount][]field{
	tmplCreate: session,
	tmplDelete: append(session[:12:12], []field{{ieInitiatorOctets, 8}, {ieResponderOctets, 8}, {ieInitiatorPackets, 8}, {ieResponderPackets, 8}}...),
	tmplBIB:    mapping,
	tmplBlock: append(when[:2:2], []field{{ieSourceAddress, 4}, {iePostSourceAddress, 4},
		{iePortStart, 2}, {iePortEnd, 2}, {iePortStep, 2}, {iePortCount, 2}}...),
	tmplAddresses:     append(when[:2:2], field{iePool, 4}),
	tmplPorts:         append(when[:2:2], []field{{iePostSourceAddress, 4}, {ieProtocol, 1}}...),
	tmplQuotaSessions: append(when[:2:2], field{ieQuotaEvent, 4}),
	tmplQuotaUser:     append(when[:2:2], []field{{ieQuotaEvent, 4}, {ieEntriesPerUserMax, 4}, {ieSourceAddress, 4}}...),
	tmplLost:          {{ieExportingProcess, 4}, {ieTimeMilliseconds, 8}, {ieNotSentFlows, 8}}, // the first is the scope
}

// Templates are repeated, since over UDP nobody says that they arrived (RFC 7011 8.4).
const (
	templateMessages = 20
	templateInterval = 30 * time.Second
)

// ipfixMessageMax is how long a message may get: with headers it fits the MTU of any tunnel over Ethernet.
const ipfixMessageMax = 1400

// Set ids and the length of headers (RFC 7011 3).
const (
	ipfixVersion      = 10
	setTemplates      = 2
	setOptions        = 3
	messageHeader     = 16
	setHeader         = 4
	observationDomain = 1
)

// ipfixEncoder writes messages. It is one stream: sequence numbers count the records of messages that done was told of.
type ipfixEncoder struct {
	process   uint32
	sequence  uint32
	buf       []byte
	records   uint32 // in buf
	messages  int    // since the templates were last sent
	templates int64  // when, in Unix milliseconds; 0: never
	withTmpl  bool   // buf has them
	now       int64
}

func newIPFIXEncoder(process int) *ipfixEncoder {
	return &ipfixEncoder{process: uint32(process), buf: make([]byte, 0, ipfixMessageMax)}
}

// reset forgets what the collector knows: it may be another one.
func (e *ipfixEncoder) reset() { e.templates = 0 }

// next encodes one message of as many of the records as fit, and returns how many those are. The message is nil when none
// of them is told by IPFIX. now is Unix time in milliseconds.
func (e *ipfixEncoder) next(list []record, now int64) (message []byte, n int) {
	e.now = now
	b := append(e.buf[:0], 0, ipfixVersion, 0, 0)
	b = binary.BigEndian.AppendUint32(b, uint32(now/1000))
	b = binary.BigEndian.AppendUint32(b, e.sequence)
	b = binary.BigEndian.AppendUint32(b, observationDomain)
	e.withTmpl = e.templates == 0 || e.messages >= templateMessages || now-e.templates >= templateInterval.Milliseconds()
	if e.withTmpl {
		b = appendTemplates(b)
	}
	e.records = 0
	set, start := tmplNone, 0
	for ; n < len(list); n++ {
		t := templateOf(&list[n])
		if t == tmplNone {
			continue
		}
		need := recordLength(t)
		if t != set {
			need += setHeader
		}
		if len(b)+need > ipfixMessageMax {
			break
		}
		if t != set {
			closeSet(b, start)
			set, start = t, len(b)
			b = binary.BigEndian.AppendUint16(b, uint16(templateBase+t))
			b = append(b, 0, 0)
		}
		for _, f := range templates[t] {
			b = appendValue(b, f.length, e.value(f.ie, &list[n]))
		}
		e.records++
	}
	e.buf = b
	if e.records == 0 {
		return nil, n
	}
	closeSet(b, start)
	binary.BigEndian.PutUint16(b[2:], uint16(len(b)))
	return b, n
}

// done counts the last message as sent.
func (e *ipfixEncoder) done() {
	e.sequence += e.records
	e.messages++
	if e.withTmpl {
		e.messages, e.templates = 0, e.now
	}
}

// closeSet writes the length of the set that starts at start and ends where b does; 0: there is none.
func closeSet(b []byte, start int) {
	if start > 0 {
		binary.BigEndian.PutUint16(b[start+2:], uint16(len(b)-start))
	}
}

// appendTemplates appends a set with all templates and one with the options template.
func appendTemplates(b []byte) []byte {
	start := len(b)
	b = append(b, 0, setTemplates, 0, 0)
	for t, fields := range templates[:tmplLost] {
		b = binary.BigEndian.AppendUint16(b, uint16(templateBase+t))
		b = binary.BigEndian.AppendUint16(b, uint16(len(fields)))
		b = appendFields(b, fields)
	}
	closeSet(b, start)
	start = len(b)
	b = append(b, 0, setOptions, 0, 0)
	b = binary.BigEndian.AppendUint16(b, templateBase+tmplLost)
	b = binary.BigEndian.AppendUint16(b, uint16(len(templates[tmplLost])))
	b = append(b, 0, 1) // one scope field
	b = appendFields(b, templates[tmplLost])
	closeSet(b, start)
	return b
}

func appendFields(b []byte, fields []field) []byte {
	for _, f := range fields {
		b = binary.BigEndian.AppendUint16(b, f.ie)
		b = binary.BigEndian.AppendUint16(b, f.length)
	}
	return b
}

func recordLength(t int) (n int) {
	for _, f := range templates[t] {
		n += int(f.length)
	}
	return n
}

// appendValue appends an unsigned number of 1, 2, 4 or 8 octets.
func appendValue(b []byte, length uint16, v uint64) []byte {
	switch length {
	case 1:
		return append(b, byte(v))
	case 2:
		return binary.BigEndian.AppendUint16(b, uint16(v))
	case 4:
		return binary.BigEndian.AppendUint32(b, uint32(v))
	}
	return binary.BigEndian.AppendUint64(b, v)
}

// templateOf returns which template a record is written by; tmplNone: RFC 8158 has no event for it.
func templateOf(r *record) int {
	switch r.extra {
	case extraLost:
		return tmplLost
	case extraStart, extraStop:
		return tmplNone
	}
	switch r.Kind {
	case nat.EventSessionCreate:
		return tmplCreate
	case nat.EventSessionDelete:
		return tmplDelete
	case nat.EventMappingCreate, nat.EventMappingDelete:
		return tmplBIB
	case nat.EventBlockTaken, nat.EventBlockGiven:
		return tmplBlock
	}
	switch r.Reason {
	case reason.NoPort:
		if r.Alias.Addr == 0 {
			return tmplAddresses
		}
		return tmplPorts
	case reason.TableFull:
		return tmplQuotaSessions
	case reason.HostLimit:
		return tmplQuotaUser
	}
	return tmplNone // a rate is no quota
}

func natEvent(r *record) uint64 {
	switch r.Kind {
	case nat.EventSessionCreate:
		return natSessionCreate
	case nat.EventSessionDelete:
		return natSessionDelete
	case nat.EventMappingCreate:
		return natBIBCreate
	case nat.EventMappingDelete:
		return natBIBDelete
	case nat.EventBlockTaken:
		return natBlockAlloc
	case nat.EventBlockGiven:
		return natBlockRelease
	}
	switch {
	case r.Reason != reason.NoPort:
		return natQuotaExceeded
	case r.Alias.Addr == 0:
		return natAddressesExhausted
	}
	return natPortsExhausted
}

// value returns a record's value of an information element. Sessions are told from inside: the source is the inside host,
// whoever opened them.
func (e *ipfixEncoder) value(ie uint16, r *record) uint64 {
	opener, other := 0, 1
	if r.Inbound {
		opener, other = 1, 0
	}
	switch ie {
	case ieTimeMilliseconds:
		return uint64(r.wall)
	case ieNATEvent:
		return natEvent(r)
	case ieProtocol:
		return uint64(r.Proto)
	case ieSourceAddress:
		return uint64(r.Local.Addr)
	case ieSourcePort:
		return uint64(r.Local.Port)
	case iePostSourceAddress:
		return uint64(r.Alias.Addr)
	case iePostSourcePort, iePortStart:
		return uint64(r.Alias.Port)
	case ieDestinationAddress, iePostDestAddress:
		return uint64(r.Remote.Addr)
	case ieDestinationPort:
		if r.Proto == packet.ProtoICMP { // the id that the host sees, and the one that its peer sees
			return uint64(r.Local.Port)
		}
		return uint64(r.Remote.Port)
	case iePostDestPort:
		return uint64(remotePort(r))
	case ieOriginRealm:
		if r.Inbound {
			return realmExternal
		}
		return realmInternal
	case ieInitiatorOctets:
		return r.Bytes[opener]
	case ieResponderOctets:
		return r.Bytes[other]
	case ieInitiatorPackets:
		return r.Packets[opener]
	case ieResponderPackets:
		return r.Packets[other]
	case iePortEnd:
		return uint64(r.Remote.Port)
	case iePortStep:
		return 1
	case iePortCount:
		return uint64(r.Remote.Port-r.Alias.Port) + 1
	case iePool:
		return 1 // there is one pool
	case ieQuotaEvent:
		if r.Reason == reason.TableFull {
			return quotaSessions
		}
		return quotaPerUser
	case ieEntriesPerUserMax:
		return min(r.Limit(), 1<<32-1)
	case ieExportingProcess:
		return uint64(e.process)
	}
	return r.Packets[1] // ieNotSentFlows
}
