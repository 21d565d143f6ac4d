package natlog

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"fmt"
	"strings"
	"testing"

	"github.com/netsampler/goflow2/v2/decoders/netflow"

	"pollux/internal/reason"
	"pollux/nat"
)

// One message with templates and a session, octet for octet.
func TestIPFIXGolden(t *testing.T) {
	r := dns(nat.EventSessionCreate)
	e := newIPFIXEncoder(4711)
	message, n := e.next([]record{r}, r.wall+7)
	if n != 1 {
		t.Fatalf("%d records encoded", n)
	}
	tail := strings.ReplaceAll(`
		0100 0027                                 set: session create
		0000 01a2 2d0e a8a3                       observationTimeMilliseconds
		04                                        natEvent: NAT44 session create
		0a000002 cb007101 11                      source, post-NAT source, protocol
		14e9 14e9                                 source port, post-NAPT source port
		c6336407 c6336407 0035 0035 01            destination, post-NAT destination, ports, realm`, "\t", "")
	var want []byte
	for _, line := range strings.Split(tail, "\n") {
		for _, word := range strings.Fields(line) {
			b, err := hex.DecodeString(strings.TrimSuffix(word, ":"))
			if err != nil {
				break // the rest explains
			}
			want = append(want, b...)
		}
	}
	if !bytes.HasSuffix(message, want) {
		t.Errorf("the message ends with\n%x, not\n%x", message[len(message)-len(want):], want)
	}
	// Header: version, length, export time, sequence, domain; then the template set's id, and the first template.
	head := fmt.Sprintf("000a%04x%08x0000000000000001"+"0002", len(message), (r.wall+7)/1000)
	if got := hex.EncodeToString(message[:18]); got != head {
		t.Errorf("the header is %s, not %s", got, head)
	}
	first := "0100" + "000c" + "01430008" + "00e60001" + "00080004" + "00e10004" + "00040001" + "00070002" + "00e30002" + "000c0004" + "00e20004" + "000b0002" + "00e40002" + "00e50001"
	if got := hex.EncodeToString(message[20:])[:len(first)]; got != first {
		t.Errorf("the first template is %s, not %s", got, first)
	}
}

// decoder reads messages back, and is not ours: for each record its values by information element.
type decoder struct {
	t         testing.TB
	templates netflow.NetFlowTemplateSystem
	sequence  uint32
}

func newDecoder(t testing.TB) *decoder {
	return &decoder{t: t, templates: netflow.CreateTemplateSystem()}
}

func (d *decoder) message(b []byte) (records []map[uint16]uint64) {
	d.t.Helper()
	if len(b) > ipfixMessageMax {
		d.t.Errorf("a message of %d octets", len(b))
	}
	var p netflow.IPFIXPacket
	if err := netflow.DecodeMessageVersion(bytes.NewBuffer(b), d.templates, nil, &p); err != nil {
		d.t.Fatalf("%v: %x", err, b)
	}
	if int(p.Length) != len(b) || p.SequenceNumber != d.sequence || p.ObservationDomainId != observationDomain {
		d.t.Errorf("length %d of %d, sequence number %d, not %d, domain %d", p.Length, len(b), p.SequenceNumber, d.sequence, p.ObservationDomainId)
	}
	add := func(lists ...[]netflow.DataField) {
		m := map[uint16]uint64{}
		for _, l := range lists {
			for _, v := range l {
				var x [8]byte
				raw := v.Value.([]byte)
				copy(x[8-len(raw):], raw)
				m[v.Type] = binary.BigEndian.Uint64(x[:])
			}
		}
		records = append(records, m)
	}
	for _, set := range p.FlowSets {
		switch s := set.(type) {
		case netflow.DataFlowSet:
			for _, r := range s.Records {
				add(r.Values)
			}
		case netflow.OptionsDataFlowSet:
			for _, r := range s.Records {
				add(r.ScopesValues, r.OptionsValues)
			}
		}
	}
	d.sequence += uint32(len(records))
	return records
}

// valuesOf says, another way, what RFC 8158 wants told of a record; nil: nothing.
func valuesOf(r *record, process uint64) map[uint16]uint64 {
	local, alias, remote := uint64(r.Local.Addr), uint64(r.Alias.Addr), uint64(r.Remote.Addr)
	if r.extra == extraLost {
		return map[uint16]uint64{144: process, 323: uint64(r.wall), 166: r.Packets[1]}
	}
	m := map[uint16]uint64{323: uint64(r.wall)}
	ports := func() {
		m[8], m[225], m[4], m[7], m[227] = local, alias, uint64(r.Proto), uint64(r.Local.Port), uint64(r.Alias.Port)
	}
	session := func(event uint64) {
		ports()
		m[230], m[12], m[226], m[11], m[228], m[229] = event, remote, remote, uint64(r.Remote.Port), uint64(r.Remote.Port), 1
		if r.Proto == 1 {
			m[11], m[228] = uint64(r.Local.Port), uint64(r.Alias.Port)
		}
		if r.Inbound {
			m[229] = 2
		}
	}
	switch r.Kind {
	case nat.EventSessionCreate:
		session(4)
	case nat.EventSessionDelete:
		session(5)
		m[231], m[232], m[298], m[299] = r.Bytes[0], r.Bytes[1], r.Packets[0], r.Packets[1]
		if r.Inbound {
			m[231], m[232], m[298], m[299] = r.Bytes[1], r.Bytes[0], r.Packets[1], r.Packets[0]
		}
	case nat.EventMappingCreate:
		ports()
		m[230] = 8
	case nat.EventMappingDelete:
		ports()
		m[230] = 9
	case nat.EventBlockTaken, nat.EventBlockGiven:
		m[230] = 16 + uint64(r.Kind-nat.EventBlockTaken)
		m[8], m[225], m[361], m[362], m[363] = local, alias, uint64(r.Alias.Port), uint64(r.Remote.Port), 1
		m[364] = uint64(r.Remote.Port - r.Alias.Port + 1)
		if r.Remote.Port-r.Alias.Port == 65535 {
			m[364] = 0 // 65,536 is more than the element holds
		}
	default:
		switch {
		case r.Reason == reason.NoPort && alias == 0:
			m[230], m[283] = 3, 1
		case r.Reason == reason.NoPort:
			m[230], m[225], m[4] = 12, alias, uint64(r.Proto)
		case r.Reason == reason.TableFull:
			m[230], m[466] = 13, 1
		case r.Reason == reason.HostLimit:
			m[230], m[466], m[8], m[473] = 13, 3, local, min(r.Bytes[0], 1<<32-1)
		default:
			return nil
		}
	}
	return m
}

// Whatever happened, in whatever order, an independent decoder reads it back whole, in order, in messages that fit a packet.
func FuzzIPFIX(f *testing.F) {
	f.Add([]byte("a few octets that make some records of several kinds, one after the other"), uint64(7))
	f.Add(bytes.Repeat([]byte{0, 6, 0, 1, 5, 17, 2, 8, 6, 1, 0, 0, 255, 0}, 40), uint64(1)<<60)
	f.Fuzz(func(t *testing.T, kinds []byte, x uint64) {
		var list []record
		for i := 0; i+3 < len(kinds) && len(list) < 400; i += 3 {
			x = x*0x9e3779b97f4a7c15 + 1
			list = append(list, recordOf(kinds[i], kinds[i+1], kinds[i+2], kinds[i+3], int64(x>>3), x, x>>7^x<<9, x^x>>31, x>>11))
		}
		var want []map[uint16]uint64
		for i := range list {
			if m := valuesOf(&list[i], 4711); m != nil {
				want = append(want, m)
			}
		}
		e, d := newIPFIXEncoder(4711), newDecoder(t)
		for now := int64(1_000_000); len(list) > 0; now++ {
			message, n := e.next(list, now)
			if n == 0 {
				t.Fatal("no record fits a message")
			}
			list = list[n:]
			if message == nil {
				continue
			}
			got := d.message(message)
			e.done()
			for i := range got {
				if len(want) == 0 || fmt.Sprint(got[i]) != fmt.Sprint(want[0]) {
					t.Fatalf("got  %v\nwant %v", got[i], want[:min(1, len(want))])
				}
				want = want[1:]
			}
		}
		if len(want) > 0 {
			t.Fatalf("%d records are missing", len(want))
		}
	})
}

// A collector that starts late, or that nothing was heard from, gets the templates again: after some messages and after a time.
func TestIPFIXTemplatesAreRepeated(t *testing.T) {
	e := newIPFIXEncoder(1)
	list := []record{dns(nat.EventSessionCreate)}
	has := func(now int64) bool {
		b, _ := e.next(list, now)
		e.done()
		return b[17] == setTemplates
	}
	if !has(1) {
		t.Error("the first message has no templates")
	}
	for i := range 2*templateMessages + 2 {
		if got, want := has(1), (i+1)%(templateMessages+1) == 0; got != want {
			t.Errorf("message %d has templates: %t", i+2, got)
		}
	}
	if !has(1 + templateInterval.Milliseconds()) {
		t.Error("no templates after half a minute")
	}
	e.reset()
	if !has(1 + templateInterval.Milliseconds()) {
		t.Error("a new stream begins without templates")
	}
	// A message that was not sent is encoded again with the same sequence number, and its templates too.
	e.reset()
	one, _ := e.next(list, 2)
	first := bytes.Clone(one)
	if again, _ := e.next(list, 2); !bytes.Equal(first, again) {
		t.Error("a message that failed is another one the next time")
	}
}

// The numbers of information elements mean what they are called here, by a list that is not ours.
func TestInformationElements(t *testing.T) {
	for ie, name := range map[uint16]string{
		ieProtocol: "protocolIdentifier", ieSourcePort: "sourceTransportPort", ieSourceAddress: "sourceIPv4Address",
		ieDestinationPort: "destinationTransportPort", ieDestinationAddress: "destinationIPv4Address",
		ieExportingProcess: "exportingProcessId", ieNotSentFlows: "notSentFlowTotalCount",
		iePostSourceAddress: "postNATSourceIPv4Address", iePostDestAddress: "postNATDestinationIPv4Address",
		iePostSourcePort: "postNAPTSourceTransportPort", iePostDestPort: "postNAPTDestinationTransportPort",
		ieOriginRealm: "natOriginatingAddressRealm", ieNATEvent: "natEvent", ieInitiatorOctets: "initiatorOctets",
		ieResponderOctets: "responderOctets", iePool: "natPoolId", ieInitiatorPackets: "initiatorPackets",
		ieResponderPackets: "responderPackets", ieTimeMilliseconds: "observationTimeMilliseconds", iePortStart: "portRangeStart",
		iePortEnd: "portRangeEnd", iePortStep: "portRangeStepSize", iePortCount: "portRangeNumPorts",
		ieQuotaEvent: "natQuotaExceededEvent",
		// maxEntriesPerUser is newer than that list; tshark names it.
	} {
		if got := netflow.IPFIXTypeToString(ie); !strings.EqualFold(got, name) {
			t.Errorf("%d is %s, not %s", ie, got, name)
		}
	}
}
