package control

import (
	"context"
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"pollux/internal/packet"
	"pollux/lport"
	"pollux/nat"
	"pollux/pmd"
)

func TestParsePacket(t *testing.T) {
	for text, want := range map[string]string{
		"udp 10.0.0.2:5000 -> 198.51.100.9:53":                     "17 10.0.0.2:5000 198.51.100.9:53 len 28 ttl 64 flags 0",
		"udp 10.0.0.2:5000 198.51.100.9:53 len 1500 ttl 3 df":      "17 10.0.0.2:5000 198.51.100.9:53 len 1500 ttl 3 flags 0",
		"tcp 10.0.0.2:5000->198.51.100.9:53":                       "6 10.0.0.2:5000 198.51.100.9:53 len 40 ttl 64 flags 2",
		"tcp 10.0.0.2:5000 198.51.100.9:53 fin ack":                "6 10.0.0.2:5000 198.51.100.9:53 len 40 ttl 64 flags 17",
		"icmp 10.0.0.2 198.51.100.9 id 77":                         "1 10.0.0.2:77 198.51.100.9:77 len 28 ttl 64 flags 0",
		"47 10.0.0.2 198.51.100.9":                                 "47 10.0.0.2:0 198.51.100.9:0 len 20 ttl 64 flags 0",
		"45 00 00 14 00 01 00 00 40 2f 00 00 0a 00 00 02 c6336409": "0 0.0.0.0:0 0.0.0.0:0 len 0 ttl 0 flags 0", // a wrong checksum, which explain says
	} {
		f, err := ParsePacket(text)
		if err != nil {
			t.Errorf("%s: %v", text, err)
			continue
		}
		var h packet.Headers
		packet.Parse(append([]byte(nil), f...), &h)
		if h.Reason != 0 {
			h = packet.Headers{}
		}
		got := fmt.Sprintf("%d %v:%d %v:%d len %d ttl %d flags %d", h.Proto, h.Src, h.SrcPort, h.Dst, h.DstPort, h.Len, h.TTL, h.TCPFlags)
		if got != want || [6]byte(f[:6]) != [6]byte{} {
			t.Errorf("%s: %s, MAC %x", text, got, f[:6])
		}
	}
	whole := packet.Build{Src: 1 << 24, Dst: 2 << 24, SrcPort: 3, DstPort: 4}
	frame := whole.UDP(nil)
	for _, text := range []string{fmt.Sprintf("%x", frame), fmt.Sprintf("% X", frame)} {
		if f, err := ParsePacket(text); err != nil || string(f) != string(frame) {
			t.Errorf("%s: %x %v", text, f, err)
		}
	}
	if f, err := ParsePacket(fmt.Sprintf("%x", frame[packet.EthernetLen:])); err != nil || string(f[packet.EthernetLen:]) != string(frame[packet.EthernetLen:]) || f[12] != 8 {
		t.Errorf("%x %v", f, err)
	}
	for text, want := range map[string]string{
		"": "allowed: PROTO SRC", "udp 1.2.3.4:5": "allowed: PROTO SRC", "sctp 1.2.3.4:5 1.2.3.4:5": "proto is", "udp 1.2.3.4 5.6.7.8:1": "source is",
		"udp 1.2.3.4:1 5.6.7.8": "destination is", "udp [::1]:1 1.2.3.4:5": "source is", "icmp 1.2.3.4:1 5.6.7.8": "source is", "udp 1.2.3.4:1 1.2.3.4:2 ttl": "ttl: needs a number",
		"udp 1.2.3.4:1 1.2.3.4:2 ttl 0": "ttl: needs a number from 1 to 255", "udp 1.2.3.4:1 1.2.3.4:2 len 27": "at least the headers, 28", "udp 1.2.3.4:1 1.2.3.4:2 syn": "are TCP's",
		"udp 1.2.3.4:1 1.2.3.4:2 reply": "are ICMP's", "tcp 1.2.3.4:1 1.2.3.4:2 urgent": `"urgent" is not known`, strings.Repeat("0", 29): "two for each byte",
	} {
		if _, err := ParsePacket(text); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", text, err)
		}
	}
}

// askGateway answers questions.
type askGateway struct {
	Gateway
	computed bool
}

func (askGateway) WhoHas(a nat.Alias, protos []uint8) ([]pmd.Holder, bool, error) {
	if a.Addr != addr("203.0.113.1") {
		return nil, false, nil
	}
	var list []pmd.Holder
	for _, p := range protos {
		list = append(list, pmd.Holder{Proto: p, Byte: 3})
	}
	list[0].Links = []nat.LinkInfo{kinds[0], kinds[0]}
	list[0].Byte = lport.ByteKernel
	list[0].Block = &pmd.BlockInfo{BlockInfo: lport.BlockInfo{Low: 1, High: 2, Host: addr("10.0.0.1")}}
	return list, true, nil
}

func (g askGateway) Computed(nat.Alias) (packet.Addr, bool, error) {
	return addr("10.0.0.9"), g.computed, nil
}

func (askGateway) Explain(frame []byte, in string) (pmd.Explanation, error) {
	if in == "eth7" {
		return pmd.Explanation{}, fmt.Errorf("there is no port %q", in)
	}
	return pmd.Explanation{Outcome: "forward", Worker: len(frame)}, nil
}

func TestWhoHad(t *testing.T) {
	client, _, _ := start(t, askGateway{computed: true})
	ctx := context.Background()
	w, err := client.WhoHad(ctx, "203.0.113.1:5000", "")
	if err != nil || len(w.Now) != 3 || w.Now[0].Owner != "kernel" || w.Now[0].Worker != nil || len(w.Now[0].Links) != 2 || len(w.Now[0].Hosts) != 1 ||
		w.Now[0].Block == nil || w.Now[1].Owner != "worker" || *w.Now[1].Worker != 2 || w.Computed == nil || w.Computed.Host != "10.0.0.9" {
		t.Errorf("%+v %v", w, err)
	}
	if l := w.Now[0].Links[0]; l.Local != "10.0.0.1:1000" || l.ExpiresIn != 7440 || l.Age != 61 {
		t.Errorf("%+v", l)
	}
	client, _, _ = start(t, askGateway{})
	if w, err := client.WhoHad(ctx, "203.0.113.1:5000", "udp"); err != nil || len(w.Now) != 1 || w.Computed != nil {
		t.Errorf("%+v %v", w, err)
	}
	for alias, want := range map[string]string{"203.0.113.9:1": "is no alias address of this gateway", "x": "alias is", "[::1]:5": "alias is"} {
		if _, err := client.WhoHad(ctx, alias, ""); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", alias, err)
		}
	}
	if _, err := client.WhoHad(ctx, "203.0.113.1:1", "47"); err == nil || !strings.Contains(err.Error(), "which have ports") {
		t.Error(err)
	}
	for text, want := range map[string]string{"203.0.113.1:5/udp": "", "203.0.113.1:5": "", "203.0.113.1": "no alias endpoint", "203.0.113.1:5/47": "has no ports", "203.0.113.1:5/": ""} {
		at, _, err := ParseWhose(text)
		if want == "" && (err != nil || at != netip.MustParseAddrPort("203.0.113.1:5")) || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
			t.Errorf("%s: %v %v", text, at, err)
		}
	}
}

func TestExplain(t *testing.T) {
	client, _, _ := start(t, askGateway{})
	ctx := context.Background()
	if x, err := client.Explain(ctx, "udp 10.0.0.2:5000 -> 198.51.100.9:53 len 100", ""); err != nil || x.Outcome != "forward" || x.Worker != 114 {
		t.Errorf("%+v %v", x, err)
	}
	if _, err := client.Explain(ctx, "udp 10.0.0.2:5000 -> 198.51.100.9:53", "eth7"); err == nil || !strings.Contains(err.Error(), "there is no port") {
		t.Error(err)
	}
	if _, err := client.Explain(ctx, "nonsense", ""); err == nil || !strings.Contains(err.Error(), "packet is") {
		t.Error(err)
	}
}
