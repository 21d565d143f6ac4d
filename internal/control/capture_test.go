package control

import (
	"bytes"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"

	"pollux/internal/reason"
	"pollux/pmd"
)

func TestCaptureParameters(t *testing.T) {
	devices := []string{"eth1", "eth0"}
	q := url.Values{"address": {"10.0.0.0/8"}, "port": {"53"}, "proto": {"udp"}, "device": {"eth0"}, "stage": {"rx,nat"},
		"snaplen": {"128"}, "count": {"10"}, "seconds": {"60"}, "buffer": {"2"}}
	s, err := parseCapture(q, devices)
	if err != nil {
		t.Fatal(err)
	}
	f := s.o.Filter
	if s.o.Stages != pmd.CaptureRX|pmd.CaptureSent || s.o.SnapLen != 128 || s.o.Buffer != 2<<20 || s.count != 10 || s.seconds != 60 ||
		!f.Address.Valid || f.Port != 53 || !f.ByPort || f.Proto != 17 || !f.ByProto || f.Device != 1 || s.filter != "address 10.0.0.0/8 port 53 proto udp device eth0" {
		t.Errorf("%+v", s)
	}
	if s, err = parseCapture(nil, devices); err != nil || s.o.Stages != pmd.CaptureRX|pmd.CaptureSent|pmd.CaptureDrop || s.o.Filter.Device != -1 || s.o.Buffer != 8<<20 {
		t.Errorf("%+v, %v", s, err)
	}
	if s, err = parseCapture(url.Values{"reason": {"no-port"}}, devices); err != nil || s.o.Stages != pmd.CaptureDrop || s.o.Filter.Reason != reason.NoPort {
		t.Errorf("%+v, %v", s, err)
	}
	for _, bad := range []struct{ query, why string }{
		{"stage=tx", "rx (as received), nat (as sent"},
		{"stage=", "allowed: rx"},
		{"device=eth2", "allowed: eth1, eth0"},
		{"reason=bored", "show drops --all"},
		{"reason=no-port&stage=rx", "stage=drop, or no stage"},
		{"address=::1", "an IPv4 address"},
		{"port=65536", "0 to 65535"},
		{"snaplen=63", "from 64"},
		{"count=0", "from 1"},
		{"seconds=-1", "from 1"},
		{"buffer=257", "1 to 256"},
		{"filter=tcp", "unknown parameter"},
		{"count=1&count=2", "once"},
	} {
		q, err := url.ParseQuery(bad.query)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := parseCapture(q, devices); err == nil || !strings.Contains(err.Error(), bad.why) {
			t.Errorf("%s: %v", bad.query, err)
		}
	}
}

// refusing is a gateway on which a capture runs already.
type refusing struct{ fakeGateway }

func (*refusing) Capture(pmd.CaptureOptions) (*pmd.Capture, error) { return nil, pmd.ErrCapturing }

func TestCaptureIsRefused(t *testing.T) {
	h := CaptureHandlers(&refusing{}, "v1")
	for method, c := range map[string]struct {
		query  string
		status int
		why    string
	}{
		"GET /v1/capture":    {"?count=x", 400, "count is"},
		"DELETE /v1/capture": {"", 404, "no capture is running"},
	} {
		w := httptest.NewRecorder()
		verb, path, _ := strings.Cut(method, " ")
		h[method].ServeHTTP(w, httptest.NewRequest(verb, path+c.query, nil))
		if w.Code != c.status || !strings.Contains(w.Body.String(), c.why) {
			t.Errorf("%s: %d %s", method, w.Code, w.Body)
		}
	}
	w := httptest.NewRecorder()
	h["GET /v1/capture"].ServeHTTP(w, httptest.NewRequest("GET", "/v1/capture", nil))
	if w.Code != 503 || !strings.Contains(w.Body.String(), "another capture is running") {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}

// pcapng is a file of n packets, with statistics.
func pcapng(t testing.TB, n int, lost uint64) []byte {
	var b bytes.Buffer
	w, err := pcapgo.NewNgWriterInterface(&b, pcapgo.NgInterface{Name: "a", LinkType: layers.LinkTypeEthernet}, pcapgo.NgWriterOptions{})
	if err != nil {
		t.Fatal(err)
	}
	for i := range n {
		data := bytes.Repeat([]byte{byte(i)}, 60+i*100)
		if err := w.WritePacketWithOptions(gopacket.CaptureInfo{Timestamp: time.Unix(1, 0), CaptureLength: len(data), Length: len(data)}, data, pcapgo.NgPacketOptions{Comments: []string{"c"}}); err != nil {
			t.Fatal(err)
		}
	}
	if err := w.WriteInterfaceStats(0, pcapgo.NgInterfaceStatistics{LastUpdate: time.Unix(2, 0), StartTime: time.Unix(1, 0), EndTime: time.Unix(2, 0), PacketsReceived: 9, PacketsDropped: lost}); err != nil {
		t.Fatal(err)
	}
	if err := w.Flush(); err != nil {
		t.Fatal(err)
	}
	return b.Bytes()
}

// Wherever a stream breaks off, what is written is a whole file of the packets that came whole.
func TestCopyCapture(t *testing.T) {
	whole := pcapng(t, 60, 7)
	var out bytes.Buffer
	if r, err := CopyCapture(&out, bytes.NewReader(whole)); err != nil || r != (CaptureResult{60, 7, true}) || !bytes.Equal(out.Bytes(), whole) {
		t.Errorf("%+v, %v, %d of %d bytes", r, err, out.Len(), len(whole))
	}
	for cut := 0; cut < len(whole); cut += 37 {
		var out bytes.Buffer
		r, err := CopyCapture(&out, bytes.NewReader(whole[:cut]))
		if err == nil && !r.Whole || r.Packets > 60 {
			t.Fatalf("cut at %d: %+v, %v", cut, r, err)
		}
		ng, err := pcapgo.NewNgReader(bytes.NewReader(out.Bytes()), pcapgo.DefaultNgReaderOptions)
		if err != nil {
			if r.Packets > 0 {
				t.Fatalf("cut at %d: %v", cut, err)
			}
			continue
		}
		n := uint64(0)
		for {
			if _, _, err = ng.ReadPacketData(); err != nil {
				break
			}
			n++
		}
		if n != r.Packets || err.Error() != "EOF" {
			t.Fatalf("cut at %d: %d of %d packets read, %v", cut, n, r.Packets, err)
		}
	}
}

func FuzzCopyCapture(f *testing.F) {
	f.Add(pcapng(f, 3, 1))
	f.Add([]byte{6, 0, 0, 0, 12, 0, 0, 0, 0, 0, 0, 0})
	f.Fuzz(func(t *testing.T, b []byte) {
		var out bytes.Buffer
		if r, _ := CopyCapture(&out, bytes.NewReader(b)); !bytes.HasPrefix(b, out.Bytes()) || r.Whole && out.Len() != len(b) {
			t.Errorf("%+v, %d of %d bytes", r, out.Len(), len(b))
		}
	})
}
