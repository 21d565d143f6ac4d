// Package history reads translation logs back: who had an alias endpoint, and when. It knows the syslog messages that
// docs/logging.md describes, and nothing of a running gateway.
package history

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/leodido/go-syslog/v4/rfc5424"

	"pollux/internal/natlog"
)

// Holder is somebody who had the endpoint.
type Holder struct {
	Host   string    `json:"host"`            // inside address; with a port or id when a session or mapping says so
	Proto  string    `json:"proto,omitempty"` // empty: all (a block)
	Remote string    `json:"remote,omitempty"`
	By     string    `json:"by"` // block | session | mapping
	From   time.Time `json:"from"`
	To     time.Time `json:"to,omitzero"`      // zero: no end is logged
	Ports  string    `json:"ports,omitempty"`  // of a block
	Ended  string    `json:"ended,omitempty"`  // event | restart: the log began anew, so it ended then at the latest
	Worker string    `json:"worker,omitempty"` //
}

// At reports whether the endpoint was the holder's at a time.
func (h *Holder) At(t time.Time) bool { return !t.Before(h.From) && (h.To.IsZero() || !t.After(h.To)) }

// Answer is what logs say of an endpoint.
type Answer struct {
	Holders []Holder  `json:"holders"` // in the order in which they began
	First   time.Time `json:"first"`   // of the log's events, of any endpoint
	Last    time.Time `json:"last"`
	Lost    int       `json:"lost"`    // events that the log itself says are missing
	Events  int       `json:"events"`  // messages of pollux's
	Foreign int       `json:"foreign"` // lines that are none
}

// lineMax is the longest line that is looked at.
const lineMax = 64 << 10

// reader follows the log of one endpoint.
type reader struct {
	alias netip.AddrPort
	proto string
	parse func([]byte) (*rfc5424.SyslogMessage, bool)
	open  map[string]int // by what names a holder: its place in the answer
	a     *Answer
}

// Read reads logs, oldest first, one RFC 5424 message a line. proto is empty for any. The answer holds what was found until an
// error occurred.
func Read(alias netip.AddrPort, proto string, logs ...io.Reader) (Answer, error) {
	a := Answer{Holders: []Holder{}}
	machine := rfc5424.NewParser()
	r := reader{alias: alias, proto: proto, open: map[string]int{}, a: &a, parse: func(line []byte) (*rfc5424.SyslogMessage, bool) {
		m, err := machine.Parse(line)
		if err != nil || m == nil {
			return nil, false
		}
		msg, ok := m.(*rfc5424.SyslogMessage)
		return msg, ok
	}}
	for _, log := range logs {
		s := bufio.NewScanner(log)
		s.Buffer(make([]byte, lineMax), lineMax)
		for s.Scan() {
			r.line(s.Bytes())
		}
		if err := s.Err(); err != nil {
			if errors.Is(err, bufio.ErrTooLong) {
				err = fmt.Errorf("a line is longer than %d bytes: not a syslog file", lineMax)
			}
			return a, err
		}
	}
	slices.SortStableFunc(a.Holders, func(x, y Holder) int { return x.From.Compare(y.From) })
	if a.Events == 0 {
		return a, errors.New("no line is a translation log message: it must be syslog of this gateway, one RFC 5424 message a line (rsyslog: template RSYSLOG_SyslogProtocol23Format)")
	}
	return a, nil
}

// line takes one message in. Most are about other endpoints: of these only the time is wanted, now and then.
func (r *reader) line(line []byte) {
	if !bytes.Contains(line, []byte(natlog.SDID)) && !bytes.Contains(line, []byte(" stop ")) {
		if len(bytes.TrimSpace(line)) > 0 {
			r.a.Foreign++
		}
		return
	}
	about := bytes.Contains(line, []byte(`alias="`+r.alias.Addr().String()))
	r.a.Events++
	if !about && r.a.Events > 1 && !bytes.Contains(line, []byte(" events-lost ")) && !bytes.Contains(line, []byte(" start ")) && !bytes.Contains(line, []byte(" stop ")) {
		if t, ok := stamp(line); ok {
			r.a.Last = t
		}
		return
	}
	m, ok := r.parse(line)
	if !ok || m.Timestamp == nil || m.MsgID == nil {
		r.a.Events--
		r.a.Foreign++
		return
	}
	if r.a.First.IsZero() {
		r.a.First = *m.Timestamp
	}
	r.a.Last = *m.Timestamp
	var p map[string]string
	if m.StructuredData != nil {
		p = (*m.StructuredData)[natlog.SDID]
	}
	r.event(*m.MsgID, *m.Timestamp, p)
}

// stamp reads the time of a message without the rest: <PRI>1 TIME ...
func stamp(line []byte) (time.Time, bool) {
	f := bytes.SplitN(line, []byte(" "), 3)
	if len(f) < 3 {
		return time.Time{}, false
	}
	t, err := time.Parse(time.RFC3339Nano, string(f[1]))
	return t, err == nil
}

func (r *reader) event(name string, at time.Time, p map[string]string) {
	switch name {
	case "block-alloc":
		if r.inBlock(p) {
			r.begin("block "+p["host"]+" "+p["ports"], Holder{Host: p["host"], By: "block", From: at, Ports: p["ports"], Worker: p["worker"]})
		}
	case "block-release":
		if r.inBlock(p) {
			r.end("block "+p["host"]+" "+p["ports"], at, "event")
		}
	case "session-create", "mapping-create":
		if r.isOurs(p) {
			by, _, _ := strings.Cut(name, "-")
			r.begin(flowKey(by, p), Holder{Host: p["local"], Proto: p["proto"], Remote: p["remote"], By: by, From: at, Worker: p["worker"]})
		}
	case "session-delete", "mapping-delete":
		if r.isOurs(p) {
			by, _, _ := strings.Cut(name, "-")
			r.end(flowKey(by, p), at, "event")
		}
	case "events-lost":
		n, _ := strconv.Atoi(p["count"])
		r.a.Lost += n
	case "start", "stop":
		for key := range r.open {
			r.end(key, at, "restart")
		}
	}
}

func flowKey(by string, p map[string]string) string {
	return strings.Join([]string{by, p["proto"], p["local"], p["remote"]}, " ")
}

// isOurs reports whether a session or mapping has the endpoint.
func (r *reader) isOurs(p map[string]string) bool {
	return p["alias"] == r.alias.String() && (r.proto == "" || p["proto"] == r.proto)
}

// inBlock reports whether a block of the alias address holds the port.
func (r *reader) inBlock(p map[string]string) bool {
	lo, hi, ok := strings.Cut(p["ports"], "-")
	low, err1 := strconv.ParseUint(lo, 10, 16)
	high, err2 := strconv.ParseUint(hi, 10, 16)
	port := uint64(r.alias.Port())
	return ok && err1 == nil && err2 == nil && p["alias"] == r.alias.Addr().String() && low <= port && port <= high
}

func (r *reader) begin(key string, h Holder) {
	r.end(key, h.From, "event") // what is begun again has ended, though its end was lost
	r.open[key] = len(r.a.Holders)
	r.a.Holders = append(r.a.Holders, h)
}

func (r *reader) end(key string, at time.Time, how string) {
	if i, ok := r.open[key]; ok {
		r.a.Holders[i].To, r.a.Holders[i].Ended = at, how
		delete(r.open, key)
	}
}
