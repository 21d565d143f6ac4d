package control

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/gopacket/gopacket"
	"github.com/gopacket/gopacket/layers"
	"github.com/gopacket/gopacket/pcapgo"

	"pollux/internal/reason"
	"pollux/pmd"
)

// Capturer is what a capture is of: a *pmd.Gateway.
type Capturer interface {
	Capture(pmd.CaptureOptions) (*pmd.Capture, error)
	Ports() []pmd.PortStats
}

// CaptureNames are the parameters of a capture.
var CaptureNames = []string{"stage", "address", "port", "proto", "reason", "device", "snaplen", "count", "seconds", "buffer"}

// captureStages are the words for stages, in the order of a packet's way.
var captureStages = []struct {
	name  string
	stage pmd.CaptureStage
}{{"rx", pmd.CaptureRX}, {"nat", pmd.CaptureSent}, {"drop", pmd.CaptureDrop}}

// Limits of a capture, as its parameters say it.
const (
	captureBuffer  = 8 // MiB for each worker
	captureBuffers = pmd.CaptureBufferMax >> 20
	captureSeconds = 7 * 24 * 3600
	captureRead    = 5 * time.Millisecond
)

// captureSpec is a capture's parameters made ready.
type captureSpec struct {
	o       pmd.CaptureOptions
	count   int // 0: no limit
	seconds int
	filter  string // as its interfaces say it
}

// parseCapture reads the parameters; devices are the names of the gateway's ports.
func parseCapture(q url.Values, devices []string) (s captureSpec, err error) {
	if err := parameters(q, CaptureNames...); err != nil {
		return s, err
	}
	f := &s.o.Filter
	f.Device = -1
	s.o.Buffer = captureBuffer << 20
	for _, name := range CaptureNames {
		if !q.Has(name) {
			continue
		}
		switch value := q.Get(name); name {
		case "stage":
			s.o.Stages, err = parseStages(value)
		case "address":
			f.Address, err = parseNet(name, value)
		case "port":
			f.Port, err = parsePort(value)
			f.ByPort = true
		case "proto":
			f.Proto, err = parseProto(value)
			f.ByProto = true
		case "reason":
			f.Reason, err = parseReason(value)
		case "device":
			if f.Device = slices.Index(devices, value); f.Device < 0 {
				err = fmt.Errorf("device is %q; allowed: %s", value, strings.Join(devices, ", "))
			}
		case "snaplen":
			s.o.SnapLen, err = parseWithin(name, value, pmd.SnapLenMin, 65535)
		case "count":
			s.count, err = parseWithin(name, value, 1, 1<<40)
		case "seconds":
			s.seconds, err = parseWithin(name, value, 1, captureSeconds)
		case "buffer":
			s.o.Buffer, err = parseWithin(name, value, 1, captureBuffers)
			s.o.Buffer <<= 20
		}
		if err != nil {
			return s, err
		}
		if slices.Contains([]string{"address", "port", "proto", "reason", "device"}, name) {
			s.filter += " " + name + " " + q.Get(name)
		}
	}
	s.filter = strings.TrimSpace(s.filter)
	switch only := f.Reason != reason.None; {
	case s.o.Stages == 0 && only:
		s.o.Stages = pmd.CaptureDrop
	case s.o.Stages == 0:
		s.o.Stages = pmd.CaptureRX | pmd.CaptureSent | pmd.CaptureDrop
	case only && s.o.Stages != pmd.CaptureDrop:
		return s, errors.New("reason is given, which dropped packets alone have; allowed: stage=drop, or no stage")
	}
	return s, nil
}

func parseStages(value string) (list pmd.CaptureStage, err error) {
	for word := range strings.SplitSeq(value, ",") {
		i := slices.IndexFunc(captureStages, func(s struct {
			name  string
			stage pmd.CaptureStage
		}) bool {
			return s.name == word
		})
		if i < 0 {
			return 0, fmt.Errorf("stage is %q; allowed: rx (as received), nat (as sent, after translation), drop (not sent on), several with commas", value)
		}
		list |= captureStages[i].stage
	}
	return list, nil
}

func parseReason(value string) (reason.Reason, error) {
	for r := reason.None + 1; r < reason.Count; r++ {
		if r.String() == value {
			return r, nil
		}
	}
	return reason.None, fmt.Errorf("reason is %q; allowed: one that `pollux show drops --all` lists", value)
}

func parseWithin(name, value string, low, high int) (int, error) {
	v, err := strconv.Atoi(value)
	if err != nil || v < low || v > high {
		return 0, fmt.Errorf("%s is %q; allowed: a number from %d to %d", name, value, low, high)
	}
	return v, nil
}

// CheckCapture says what is wrong with a capture's parameters, as the gateway would, but for the device, which it alone knows.
func CheckCapture(q url.Values) error {
	_, err := parseCapture(q, []string{q.Get("device")})
	return err
}

// captures serves captures, of which there is one at a time.
type captures struct {
	gateway Capturer
	version string

	mu   sync.Mutex
	stop func() // ends the one under way
}

// CaptureHandlers returns what answers /v1/capture: GET starts a capture and answers with it as a stream of pcapng; DELETE
// ends the one under way, whose stream then ends whole.
func CaptureHandlers(g Capturer, version string) map[string]http.Handler {
	c := &captures{gateway: g, version: version}
	return map[string]http.Handler{"GET /v1/capture": http.HandlerFunc(c.run), "DELETE /v1/capture": http.HandlerFunc(c.end)}
}

func (c *captures) end(w http.ResponseWriter, _ *http.Request) {
	c.mu.Lock()
	stop := c.stop
	c.mu.Unlock()
	if stop == nil {
		refuse(w, http.StatusNotFound, errors.New("no capture is running"))
		return
	}
	stop()
	reply(w, map[string]bool{"stopping": true})
}

func (c *captures) run(w http.ResponseWriter, r *http.Request) {
	ports := c.gateway.Ports()
	var devices []string
	for _, p := range ports {
		devices = append(devices, p.Name)
	}
	spec, err := parseCapture(r.URL.Query(), devices)
	if err != nil {
		refuse(w, http.StatusBadRequest, err)
		return
	}
	capture, err := c.gateway.Capture(spec.o)
	if err != nil {
		refuse(w, http.StatusServiceUnavailable, err)
		return
	}
	defer capture.Close()
	ctx, cancel := context.WithCancel(r.Context())
	defer cancel()
	if spec.seconds > 0 {
		var late context.CancelFunc
		ctx, late = context.WithTimeout(ctx, time.Duration(spec.seconds)*time.Second)
		defer late()
	}
	c.mu.Lock()
	c.stop = cancel
	c.mu.Unlock()
	defer func() {
		c.mu.Lock()
		c.stop = nil
		c.mu.Unlock()
	}()
	w.Header().Set("Content-Type", "application/x-pcapng")
	s := &captureStream{spec: &spec, rc: http.NewResponseController(w), capture: capture}
	if err = s.open(w, ports, c.version); err == nil {
		err = s.copy(ctx)
	}
	if err != nil || r.Context().Err() != nil {
		panic(http.ErrAbortHandler) // the client is gone, or takes nothing
	}
}

// captureStream is one capture on its way out.
type captureStream struct {
	spec    *captureSpec
	rc      *http.ResponseController
	ng      *pcapgo.NgWriter
	capture *pmd.Capture
	start   time.Time
	count   int
	each    []uint64 // packets by interface
	err     error
}

// open writes the section and an interface for each port, and a last one for packets of which it is not known where they came in.
func (s *captureStream) open(w io.Writer, ports []pmd.PortStats, version string) (err error) {
	s.start = time.Now()
	for _, p := range ports {
		i := s.device(p.Name, fmt.Sprintf("%s port, MAC %s, MTU %d", p.Role, p.MAC, p.MTU))
		if s.ng == nil {
			o := pcapgo.NgWriterOptions{SectionInfo: pcapgo.NgSectionInfo{Application: "pollux " + version, Comment: "times are those at which workers took the bursts"}}
			s.ng, err = pcapgo.NewNgWriterInterface(w, i, o)
		} else {
			_, err = s.ng.AddInterface(i)
		}
		if err != nil {
			return err
		}
	}
	s.each = make([]uint64, len(ports)+1)
	if _, err := s.ng.AddInterface(s.device("unknown", "received before the capture began")); err != nil {
		return err
	}
	return s.flush()
}

func (s *captureStream) device(name, description string) pcapgo.NgInterface {
	return pcapgo.NgInterface{
		Name: name, Description: description, Filter: s.spec.filter, LinkType: layers.LinkTypeEthernet,
		SnapLength: uint32(s.spec.o.SnapLen), TimestampResolution: 9,
	}
}

// copy writes packets until there are enough of them, or ctx ends; then what the interfaces have seen.
func (s *captureStream) copy(ctx context.Context) error {
	tick := time.NewTicker(captureRead)
	defer tick.Stop()
	for last := false; !last && s.err == nil; {
		select {
		case <-ctx.Done():
			last = true
		case <-tick.C:
		}
		before := s.count
		s.capture.Read(s.packet)
		if s.err == nil && s.count > before {
			s.err = s.flush()
		}
		last = last || s.full()
	}
	for i, lost := range s.capture.Lost() {
		if s.err == nil {
			s.err = s.ng.WriteInterfaceStats(i, pcapgo.NgInterfaceStatistics{
				LastUpdate: time.Now(), StartTime: s.start, EndTime: time.Now(), PacketsReceived: s.each[i] + lost, PacketsDropped: lost,
			})
		}
	}
	if s.err == nil {
		s.err = s.flush()
	}
	return s.err
}

func (s *captureStream) full() bool { return s.spec.count > 0 && s.count >= s.spec.count }

func (s *captureStream) packet(p *pmd.Captured) bool {
	info := gopacket.CaptureInfo{Timestamp: p.At, CaptureLength: len(p.Data), Length: p.Length, InterfaceIndex: p.Device}
	if p.Device < 0 {
		info.InterfaceIndex = len(s.each) - 1
	}
	worker := uint32(p.Worker)
	o := pcapgo.NgPacketOptions{Flags: &pcapgo.NgEpbFlags{Direction: pcapgo.NgEpbFlagDirectionInbound}, Queue: &worker}
	if p.ID != 0 {
		o.PacketID = &p.ID
	}
	switch p.Stage {
	case pmd.CaptureSent:
		o.Flags.Direction = pcapgo.NgEpbFlagDirectionOutbound
	case pmd.CaptureDrop:
		comment := fmt.Sprintf("dropped: %s: %s", p.Reason, p.Reason.Help())
		if p.Reason == reason.Punted {
			comment = fmt.Sprintf("not forwarded: %s: %s", p.Reason, p.Reason.Help())
		}
		if p.Answered {
			comment += "; answered by an ICMP error"
		}
		o.Comments = []string{comment}
	}
	s.extend()
	if s.err == nil {
		s.err = s.ng.WritePacketWithOptions(info, p.Data, o)
	}
	s.count++
	s.each[info.InterfaceIndex]++
	return s.err == nil && !s.full()
}

// extend gives the client time for what is written next. A transport without deadlines (a test's recorder) says so; then
// none is needed.
func (s *captureStream) extend() {
	if err := s.rc.SetWriteDeadline(time.Now().Add(writeDeadline)); err != nil && !errors.Is(err, http.ErrNotSupported) {
		s.err = err
	}
}

func (s *captureStream) flush() error {
	if s.extend(); s.err != nil {
		return s.err
	}
	if err := s.ng.Flush(); err != nil {
		return err
	}
	return s.rc.Flush()
}

// CaptureResult is what a capture was.
type CaptureResult struct {
	Packets uint64 // written
	Lost    uint64 // that found no room, by the stream's end
	Whole   bool   // the stream came to its end
}

// Types of pcapng blocks that CopyCapture looks at, and the option of the statistics that counts losses.
const (
	blockPacket     = 6
	blockStatistics = 5
	optionLost      = 5
	blockMax        = 1 << 20
)

// CopyCapture copies a stream of pcapng block by block, so that what is written is whole however the stream ends.
func CopyCapture(to io.Writer, from io.Reader) (r CaptureResult, err error) {
	b := make([]byte, 4096)
	for {
		if _, err := io.ReadFull(from, b[:8]); err != nil {
			r.Whole = err == io.EOF
			if r.Whole {
				err = nil
			}
			return r, err
		}
		kind, length := binary.LittleEndian.Uint32(b), int(binary.LittleEndian.Uint32(b[4:]))
		if length < 12 || length > blockMax || length%4 != 0 {
			return r, fmt.Errorf("a pcapng block of %d bytes", length)
		}
		if length > len(b) {
			b = append(make([]byte, 0, length), b[:8]...)[:length]
		}
		if _, err := io.ReadFull(from, b[8:length]); err != nil {
			return r, err
		}
		switch kind {
		case blockPacket:
			r.Packets++
		case blockStatistics:
			r.Lost += lostOf(b[8 : length-4])
		}
		if _, err := to.Write(b[:length]); err != nil {
			return r, err
		}
	}
}

// lostOf reads how many packets an interface statistics block says were lost.
func lostOf(b []byte) uint64 {
	for b = b[min(12, len(b)):]; len(b) >= 4; {
		code, n := binary.LittleEndian.Uint16(b), int(binary.LittleEndian.Uint16(b[2:]))
		if len(b) < 4+n {
			break
		}
		if code == optionLost && n == 8 {
			return binary.LittleEndian.Uint64(b[4:])
		}
		b = b[min(4+(n+3)&^3, len(b)):]
	}
	return 0
}

// StopCapture ends the capture that is running.
func (c *Client) StopCapture(ctx context.Context) error {
	body, err := c.do(ctx, http.MethodDelete, "/v1/capture", nil, nil)
	if err != nil {
		return err
	}
	return body.Close()
}
