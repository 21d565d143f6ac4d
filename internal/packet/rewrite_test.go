package packet

import (
	"bytes"
	"testing"
)

// Every builder gives a frame that parses as what it is and verifies; rewriting keeps it so; Restore undoes it.
func TestBuildRewriteRestore(t *testing.T) {
	base := Build{Src: 0x0a000001, Dst: 0xc6336401, SrcPort: 1234, DstPort: 53, TTL: 9, ID: 77}
	odd := []byte("seven b")
	options := base
	options.Options = []byte{0x94, 4, 0, 0}
	first := base
	first.MF = true
	later := base
	later.FragOff = 64
	silent := base
	silent.NoChecksum = true
	cases := []struct {
		name  string
		frame []byte
		kind  Kind
	}{
		{"udp", base.UDP(odd), KindUDP},
		{"udp empty", base.UDP(nil), KindUDP},
		{"udp without checksum", silent.UDP(odd), KindUDP},
		{"udp with options", options.UDP(odd), KindUDP},
		{"udp first fragment", first.UDP(make([]byte, 8)), KindUDP},
		{"tcp", base.TCP(odd), KindTCP},
		{"echo", base.Echo(false, 3, odd), KindICMPQuery},
		{"later fragment", later.IP(ProtoUDP, odd), KindLaterFragment},
		{"gre", base.IP(ProtoGRE, odd), KindOther},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			frame := bytes.Clone(c.frame)
			var h, again Headers
			Parse(frame, &h)
			if h.Kind != c.kind || h.Reason != 0 || h.Src != base.Src || h.Dst != base.Dst || h.TTL != 9 || h.FragID != 77 {
				t.Fatalf("parsed as %+v", h)
			}
			SetEndpoints(frame, &h, 0xcb007101, 40000, 0x01020304, 99)
			DecrementTTL(frame, &h)
			if err := Verify(frame); err != nil {
				t.Error("rewritten:", err)
			}
			Parse(frame, &again)
			if again.Src != 0xcb007101 || again.Dst != 0x01020304 || again.TTL != 8 {
				t.Errorf("rewritten to %+v", again)
			}
			if (h.Kind == KindUDP || h.Kind == KindTCP) && (again.SrcPort != 40000 || again.DstPort != 99) {
				t.Errorf("ports are %d and %d", again.SrcPort, again.DstPort)
			}
			Restore(frame, &h)
			if !bytes.Equal(frame, c.frame) {
				t.Errorf("restored\n%x, was\n%x", frame, c.frame)
			}
		})
	}
}
