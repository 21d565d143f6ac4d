package lab

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync/atomic"
	"time"

	"golang.org/x/net/icmp"
	"golang.org/x/net/ipv4"
)

// PingOptions says how to ping. Zero values mean: once, 56 bytes, a second's patience.
type PingOptions struct {
	Count    int
	Size     int           // payload bytes; above the MTU the host sends fragments
	Interval time.Duration // between an answer and the next request
	Timeout  time.Duration // for each answer
	ID       uint16        // echo identifier; 0: one of its own
}

// Pings is what came of it.
type Pings struct {
	Sent int
	RTT  []time.Duration // of those answered, in order
}

var echoIDs atomic.Uint32

func init() { echoIDs.Store(uint32(os.Getpid())) }

// Ping sends echo requests from a namespace and checks every byte of the answers. Lost ones are not an error.
func Ping(ctx context.Context, n *Namespace, src, dst netip.Addr, o PingOptions) (Pings, error) {
	o.Count = max(o.Count, 1)
	if o.Size == 0 {
		o.Size = 56
	}
	if o.Timeout == 0 {
		o.Timeout = time.Second
	}
	if o.ID == 0 {
		o.ID = uint16(echoIDs.Add(1))
	}
	var p Pings
	conn, err := listenICMP(n, src)
	if err != nil {
		return p, err
	}
	defer conn.Close()
	payload := make([]byte, o.Size)
	for i := range payload {
		payload[i] = byte(i)
	}
	for seq := range o.Count {
		if seq > 0 {
			select {
			case <-ctx.Done():
				return p, ctx.Err()
			case <-time.After(o.Interval):
			}
		}
		request := icmp.Message{Type: ipv4.ICMPTypeEcho, Body: &icmp.Echo{ID: int(o.ID), Seq: seq, Data: payload}}
		b, err := request.Marshal(nil)
		if err != nil {
			return p, err
		}
		start := time.Now()
		if _, err := conn.WriteTo(b, &net.IPAddr{IP: dst.AsSlice()}); err != nil {
			return p, fmt.Errorf("ping %s: %w", dst, err)
		}
		p.Sent++
		rtt, err := awaitEcho(ctx, conn, dst, b, start, o.Timeout)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			continue
		}
		if err != nil {
			return p, fmt.Errorf("ping %s: %w", dst, err)
		}
		p.RTT = append(p.RTT, rtt)
	}
	return p, nil
}

// awaitEcho waits for the answer to request, which differs from it in the type and the checksum only.
func awaitEcho(ctx context.Context, conn *icmp.PacketConn, dst netip.Addr, request []byte, start time.Time, limit time.Duration) (time.Duration, error) {
	conn.SetReadDeadline(deadline(ctx, start.Add(limit)))
	b := make([]byte, 65536)
	for {
		n, from, err := conn.ReadFrom(b)
		if err != nil {
			return 0, err
		}
		rtt := time.Since(start)
		if n < 8 || b[0] != byte(ipv4.ICMPTypeEchoReply) || string(b[4:8]) != string(request[4:8]) {
			continue // somebody else's
		}
		if sum16(b[:n]) != 0 {
			return 0, errors.New("answer with a wrong ICMP checksum")
		}
		if from.String() != dst.String() {
			return 0, fmt.Errorf("answer from %s", from)
		}
		if string(b[8:n]) != string(request[8:]) {
			return 0, fmt.Errorf("answer with other bytes than were sent (%d instead of %d)", n-8, len(request)-8)
		}
		return rtt, nil
	}
}

func listenICMP(n *Namespace, src netip.Addr) (conn *icmp.PacketConn, err error) {
	err = n.Do(func() error {
		conn, err = icmp.ListenPacket("ip4:icmp", src.String())
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("raw ICMP socket in %s: %w", n.Name, err)
	}
	return conn, nil
}

// deadline is the earlier of t and the context's.
func deadline(ctx context.Context, t time.Time) time.Time {
	if d, ok := ctx.Deadline(); ok && d.Before(t) {
		return d
	}
	return t
}

// sum16 is the Internet checksum of b; over a message that carries its checksum it is 0. Raw sockets get ICMP before the
// kernel has verified it.
func sum16(b []byte) uint16 {
	var s uint32
	for i := 0; i+1 < len(b); i += 2 {
		s += uint32(b[i])<<8 | uint32(b[i+1])
	}
	if len(b)%2 == 1 {
		s += uint32(b[len(b)-1]) << 8
	}
	for s > 0xffff {
		s = s>>16 + s&0xffff
	}
	return ^uint16(s)
}
