package natlog

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"strconv"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
)

// Target is where records go.
type Target struct {
	Network string // udp | tcp | unixgram
	Address string // HOST:PORT, or a path
}

// String returns the target as the configuration writes it.
func (t Target) String() string {
	if t.Network == "unixgram" {
		return "unix://" + t.Address
	}
	return t.Network + "://" + t.Address
}

// encoder makes what one collector is sent. next encodes some of the records, at least one, into one write, and done is
// called when that was written. A nil write needs none. reset begins a new stream. now is Unix time in milliseconds.
type encoder interface {
	next(list []record, now int64) (write []byte, n int)
	done()
	reset()
}

// Limits of sending.
const (
	dialTimeout  = 3 * time.Second
	writeTimeout = 10 * time.Second
	retryFirst   = 100 * time.Millisecond
	retryLast    = 5 * time.Second
	steadyAfter  = 10 * time.Second // a connection that lasted so long was a good one
	warnInterval = time.Minute
	batchRecords = 512
)

// collector sends one queue's records to one target.
type collector struct {
	target   Target
	protocol string // syslog | ipfix
	encoder  encoder
	queue    *queue

	end    context.Context // when it ends, nothing is waited for any more
	conn   net.Conn
	cut    func() bool // takes away what ends conn with end
	since  time.Time   // of conn
	last   int         // records in the last datagram, of whose end nothing is known yet
	retry  time.Duration
	warned time.Time

	sent, writes, failures atomic.Uint64
	connected              atomic.Bool

	mu      sync.Mutex
	problem string // the last failure, "" since it was mended
}

// run sends until stop is closed, and after that what still waits, until ctx ends.
func (c *collector) run(ctx context.Context, stop <-chan struct{}) {
	c.end = ctx
	defer c.close()
	buf := make([]record, batchRecords)
	for stopping := false; ; {
		if !stopping {
			select {
			case <-c.queue.wake:
			case <-stop:
				stopping = true
			}
		}
		for {
			if !c.connect(stop) {
				break
			}
			n := c.queue.take(buf)
			if n == 0 {
				break
			}
			if left := c.send(buf[:n], stop); left > 0 {
				c.queue.lose(left)
				break
			}
		}
		if stopping {
			waiting, _ := c.queue.counts()
			c.queue.lose(c.queue.take(make([]record, waiting)))
			return
		}
	}
}

// connect makes sure that there is a connection; false: there is none, and no time to wait for one.
func (c *collector) connect(stop <-chan struct{}) bool {
	for c.conn == nil {
		d := net.Dialer{Timeout: dialTimeout}
		conn, err := d.DialContext(c.end, c.target.Network, c.target.Address)
		if err == nil {
			c.conn, c.since, c.last = conn, time.Now(), 0
			c.cut = context.AfterFunc(c.end, func() { _ = conn.Close() })
			c.encoder.reset()
			c.connected.Store(true)
			return true
		}
		c.failed(err)
		if !c.pause(stop) {
			return false
		}
	}
	return true
}

// send writes all records and returns how many it had to give up, because the log ends.
func (c *collector) send(list []record, stop <-chan struct{}) (left int) {
	for len(list) > 0 {
		write, n := c.encoder.next(list, time.Now().UnixMilli())
		if write != nil {
			_ = c.conn.SetWriteDeadline(time.Now().Add(writeTimeout))
			if _, err := c.conn.Write(write); err != nil {
				if errors.Is(err, syscall.ECONNREFUSED) { // so was the datagram before this one
					c.queue.lose(c.last)
				}
				c.failed(err)
				c.close()
				if !c.pause(stop) || !c.connect(stop) {
					return len(list)
				}
				continue
			}
			c.encoder.done()
			c.writes.Add(1)
			c.sent.Add(uint64(n))
			if c.target.Network == "udp" {
				c.last = n
			}
			c.well()
		}
		list = list[n:]
	}
	return 0
}

// failed remembers why sending failed, and says so once in a while.
func (c *collector) failed(err error) {
	c.failures.Add(1)
	if c.retry == 0 || !c.since.IsZero() && time.Since(c.since) > steadyAfter {
		c.retry = retryFirst
	} else {
		c.retry = min(2*c.retry, retryLast)
	}
	c.since = time.Time{}
	c.mu.Lock()
	c.problem = err.Error()
	c.mu.Unlock()
	if time.Since(c.warned) >= warnInterval {
		c.warned = time.Now()
		slog.Warn("the translation log does not get through", "collector", c.target.String(), "error", err)
	}
}

// well forgets the last problem once a connection holds.
func (c *collector) well() {
	if c.retry == 0 || time.Since(c.since) < retryFirst {
		return
	}
	c.mu.Lock()
	c.problem = ""
	c.mu.Unlock()
}

func (c *collector) close() {
	if c.conn != nil {
		c.cut()
		_ = c.conn.Close()
		c.conn = nil
		c.connected.Store(false)
	}
}

// pause waits before the next try; false: the log ends, and there is no next try.
func (c *collector) pause(stop <-chan struct{}) bool {
	if closed(stop) {
		return false
	}
	select {
	case <-time.After(c.retry):
		return true
	case <-stop:
		return c.end.Err() == nil // one try more, at once
	}
}

func closed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

// syslogDatagrams sends a message in each datagram (RFC 5426).
type syslogDatagrams struct {
	*syslogEncoder
	buf []byte
}

func (s *syslogDatagrams) next(list []record, _ int64) ([]byte, int) {
	s.buf = s.append(s.buf[:0], &list[0])
	return s.buf, 1
}

func (s *syslogDatagrams) done()  {}
func (s *syslogDatagrams) reset() {}

// streamBytes is how much is written to a stream at a time, about.
const streamBytes = 32 << 10

// syslogStream sends messages by octet counting (RFC 6587 3.4.1).
type syslogStream struct {
	*syslogEncoder
	buf, one []byte
}

func (s *syslogStream) next(list []record, _ int64) (write []byte, n int) {
	s.buf = s.buf[:0]
	for n < len(list) && len(s.buf) < streamBytes {
		s.one = s.append(s.one[:0], &list[n])
		s.buf = strconv.AppendInt(s.buf, int64(len(s.one)), 10)
		s.buf = append(append(s.buf, ' '), s.one...)
		n++
	}
	return s.buf, n
}

func (s *syslogStream) done()  {}
func (s *syslogStream) reset() {}
