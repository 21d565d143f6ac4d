package rtcache

import (
	"encoding/binary"
	"fmt"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// vrfSlave is the kernel's message about a netdev, as it would be in a VRF or out of it.
func vrfSlave(index int, name string, in bool) []byte {
	body := make([]byte, unix.SizeofIfInfomsg)
	binary.NativeEndian.PutUint32(body[4:], uint32(index))
	binary.NativeEndian.PutUint32(body[8:], unix.IFF_UP)
	attr := func(kind uint16, v []byte) []byte {
		b := binary.NativeEndian.AppendUint16(nil, uint16(unix.SizeofRtAttr+len(v)))
		b = append(binary.NativeEndian.AppendUint16(b, kind), v...)
		return append(b, make([]byte, (4-len(b)%4)%4)...)
	}
	body = append(body, attr(unix.IFLA_IFNAME, append([]byte(name), 0))...)
	if in {
		body = append(body, attr(unix.IFLA_LINKINFO|unix.NLA_F_NESTED, attr(unix.IFLA_INFO_SLAVE_KIND, []byte("vrf\x00")))...)
	}
	return body
}

// A port that is in a VRF when the mirror starts is refused, whatever the kernel at hand can do: the message is made by hand.
func TestVRFRefused(t *testing.T) {
	m := newModel(false)
	m.fake.dumpFrom = func(s sink) {
		decode(unix.RTM_NEWLINK, 0, vrfSlave(1, "dev1", false), true, s)
		decode(unix.RTM_NEWLINK, 0, vrfSlave(2, "dev2", true), true, s)
	}
	ports := []Port{{Name: "dev1", IfIndex: 1, Inside: true}, {Name: "dev2", IfIndex: 2}}
	table, err := start(Options{Hops: 256}, ports, m.fake)
	if err == nil || table != nil || !strings.Contains(err.Error(), "port dev2 is enslaved to a VRF") || !strings.Contains(err.Error(), "ip link set dev2 nomaster") {
		t.Errorf("a port in a VRF: %v", err)
	}
}

// A port that is put into a VRF later is warned about for as long as it is there. Other netdevs in VRFs are nobody's business.
func TestVRFWhileRunning(t *testing.T) {
	b := newBed(t, false)
	var told []string
	b.table.onWarning = func(text string, over bool) { told = append(told, fmt.Sprint(over, " ", text)) }
	says := func(index int, in bool) string {
		b.m.say(func(s sink) {
			decode(unix.RTM_NEWLINK, 0, vrfSlave(index, "dev"+string(rune('0'+index)), in), false, s)
		})
		b.step(time.Millisecond)
		return strings.Join(b.table.Warnings(), "\n")
	}
	if w := says(modelForeign, true); w != "" {
		t.Errorf("a netdev that is no port: %q", w)
	}
	if w := says(2, true); !strings.Contains(w, "port dev2 is enslaved to a VRF") {
		t.Errorf("warnings: %q", w)
	}
	if w := says(2, false); w != "" {
		t.Errorf("taken out again: %q", w)
	}
	if len(told) != 2 || !strings.HasPrefix(told[0], "false port dev2") || told[1] != "true"+told[0][len("false"):] {
		t.Errorf("told %q", told)
	}
}
