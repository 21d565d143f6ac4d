package lab

import (
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/netip"
	"os"
	"slices"
	"sync"
	"time"
)

// UDPEcho is a server that sends every datagram back and remembers where they came from.
type UDPEcho struct {
	conn *net.UDPConn
	mu   sync.Mutex
	seen map[netip.AddrPort]int
}

// ServeUDPEcho starts a UDPEcho at a numeric "addr:port".
func ServeUDPEcho(n *Namespace, address string) (*UDPEcho, error) {
	pc, err := n.ListenPacket("udp4", address)
	if err != nil {
		return nil, err
	}
	e := &UDPEcho{conn: pc.(*net.UDPConn), seen: map[netip.AddrPort]int{}}
	e.conn.SetReadBuffer(4 << 20)
	go func() {
		b := make([]byte, 65536)
		for {
			n, from, err := e.conn.ReadFromUDPAddrPort(b)
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err != nil {
				continue // an ICMP error that an earlier answer caused
			}
			e.mu.Lock()
			e.seen[netip.AddrPortFrom(from.Addr().Unmap(), from.Port())]++
			e.mu.Unlock()
			e.conn.WriteToUDPAddrPort(b[:n], from)
		}
	}()
	return e, nil
}

// Seen returns the sources seen and how many datagrams came from each.
func (e *UDPEcho) Seen() map[netip.AddrPort]int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return maps.Clone(e.seen)
}

// Close ends the server.
func (e *UDPEcho) Close() { e.conn.Close() }

// FlowOptions says what UDPFlows sends. Zero values mean: one flow, one datagram each, 64 bytes, two seconds' patience.
type FlowOptions struct {
	Flows   int
	PerFlow int           // datagrams a flow sends, each after the answer to the one before
	Size    int           // payload bytes, at least 16
	Timeout time.Duration // for each answer
	At      int           // flows in flight at once, 0: all
}

// Flows is what came of it.
type Flows struct {
	Sent     int
	Answered int
	Wrong    int // answers whose bytes were not those sent
	RTT      []time.Duration
}

// Median returns the median round trip, 0 when nothing was answered.
func (f Flows) Median() time.Duration { return Median(f.RTT) }

// Median returns the middle of d, 0 when it is empty.
func Median(d []time.Duration) time.Duration {
	if len(d) == 0 {
		return 0
	}
	s := slices.Sorted(slices.Values(d))
	return s[len(s)/2]
}

// UDPFlows drives many UDP flows from a namespace, each from a socket and local port of its own, against an echo server.
// Lost datagrams are counted, not an error.
func UDPFlows(ctx context.Context, n *Namespace, server netip.AddrPort, o FlowOptions) (Flows, error) {
	o.Flows, o.PerFlow, o.Size = max(o.Flows, 1), max(o.PerFlow, 1), max(o.Size, 16)
	if o.Timeout == 0 {
		o.Timeout = 2 * time.Second
	}
	if o.At == 0 {
		o.At = o.Flows
	}
	var total Flows
	conns := make([]*net.UDPConn, 0, o.Flows)
	defer func() {
		for _, c := range conns {
			c.Close()
		}
	}()
	err := n.Do(func() error {
		for range o.Flows {
			c, err := net.DialUDP("udp4", nil, net.UDPAddrFromAddrPort(server))
			if err != nil {
				return err
			}
			conns = append(conns, c)
		}
		return nil
	})
	if err != nil {
		return total, fmt.Errorf("open %d UDP sockets in %s: %w", o.Flows, n.Name, err)
	}
	var mu sync.Mutex
	var group sync.WaitGroup
	slots := make(chan struct{}, o.At)
	for i, c := range conns {
		slots <- struct{}{}
		group.Go(func() {
			defer func() { <-slots }()
			f := udpFlow(ctx, c, i, o)
			mu.Lock()
			defer mu.Unlock()
			total.Sent += f.Sent
			total.Answered += f.Answered
			total.Wrong += f.Wrong
			total.RTT = append(total.RTT, f.RTT...)
		})
	}
	group.Wait()
	return total, ctx.Err()
}

func udpFlow(ctx context.Context, c *net.UDPConn, number int, o FlowOptions) (f Flows) {
	out, in := make([]byte, o.Size), make([]byte, o.Size+1)
	for seq := range o.PerFlow {
		if ctx.Err() != nil {
			return f
		}
		head := fmt.Sprintf("%08x%08x", uint32(number), uint32(seq))
		copy(out, head)
		for i := len(head); i < len(out); i++ {
			out[i] = byte(i * (number + 7))
		}
		start := time.Now()
		f.Sent++
		if _, err := c.Write(out); err != nil {
			continue // refused by an ICMP error about the one before
		}
		c.SetReadDeadline(deadline(ctx, start.Add(o.Timeout)))
		n, err := c.Read(in)
		if err != nil {
			continue
		}
		if string(in[:n]) != string(out) {
			f.Wrong++
			continue
		}
		f.Answered++
		f.RTT = append(f.RTT, time.Since(start))
	}
	return f
}

// ServeTCP runs handler for every connection to a numeric "addr:port"; the connection is closed when it returns. Close
// the listener to end it.
func ServeTCP(n *Namespace, address string, handler func(net.Conn)) (net.Listener, error) {
	l, err := n.Listen("tcp4", address)
	if err != nil {
		return nil, err
	}
	go func() {
		for {
			c, err := l.Accept()
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err != nil {
				time.Sleep(10 * time.Millisecond) // out of descriptors
				continue
			}
			go func() {
				defer c.Close()
				handler(c)
			}()
		}
	}()
	return l, nil
}

// Echo is a ServeTCP handler that sends back what it gets.
func Echo(c net.Conn) { io.Copy(c, c) }

// Tell is a ServeTCP handler that says name and the address it sees the caller come from, as "name addr:port\n". What the
// caller says is read to its end: closing with unread bytes would reset the connection under the answer.
func Tell(name string) func(net.Conn) {
	return func(c net.Conn) {
		fmt.Fprintf(c, "%s %s\n", name, c.RemoteAddr())
		c.(*net.TCPConn).CloseWrite()
		c.SetReadDeadline(time.Now().Add(2 * time.Second))
		io.Copy(io.Discard, c)
	}
}

// Ask connects from a namespace and returns what a Tell server there says: its name and the address it saw.
func Ask(ctx context.Context, n *Namespace, server string) (name string, seen netip.AddrPort, err error) {
	c, err := n.Dial(ctx, "tcp4", server)
	if err != nil {
		return "", seen, err
	}
	defer c.Close()
	c.SetDeadline(deadline(ctx, time.Now().Add(5*time.Second)))
	b, err := io.ReadAll(io.LimitReader(c, 256))
	if err != nil {
		return "", seen, err
	}
	var addr string
	if _, err := fmt.Sscanf(string(b), "%s %s\n", &name, &addr); err != nil {
		return "", seen, fmt.Errorf("%s answered %q", server, b)
	}
	seen, err = netip.ParseAddrPort(addr)
	return name, seen, err
}

// Session is one TCP connection to an Echo server over which single messages go to and fro, as an interactive session's.
type Session struct{ c net.Conn }

// OpenSession connects from a namespace.
func OpenSession(ctx context.Context, n *Namespace, server string) (*Session, error) {
	c, err := n.Dial(ctx, "tcp4", server)
	if err != nil {
		return nil, err
	}
	return &Session{c}, nil
}

// Type sends a message and waits for its echo.
func (s *Session) Type(message string, limit time.Duration) (time.Duration, error) {
	start := time.Now()
	s.c.SetDeadline(start.Add(limit))
	if _, err := io.WriteString(s.c, message); err != nil {
		return 0, err
	}
	b := make([]byte, len(message))
	if _, err := io.ReadFull(s.c, b); err != nil {
		if errors.Is(err, os.ErrDeadlineExceeded) {
			err = fmt.Errorf("no echo within %v: %w", limit, err)
		}
		return 0, err
	}
	if string(b) != message {
		return 0, fmt.Errorf("sent %q, got %q", message, b)
	}
	return time.Since(start), nil
}

// LocalAddr returns the session's local endpoint.
func (s *Session) LocalAddr() netip.AddrPort {
	return netip.MustParseAddrPort(s.c.LocalAddr().String())
}

// Close ends the connection.
func (s *Session) Close() { s.c.Close() }
