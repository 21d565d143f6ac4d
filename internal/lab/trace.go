package lab

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"time"

	"golang.org/x/net/icmp"
	"golang.org/x/net/ipv4"
)

// Hop is one line of a traceroute. Addr is invalid when nobody answered.
type Hop struct {
	TTL     int
	Addr    netip.Addr
	RTT     time.Duration
	Reached bool // it is the destination
}

// TraceOptions says how to trace. Zero values mean: UDP probes, 16 hops, a second's patience for each.
type TraceOptions struct {
	ICMP    bool
	HopsMax int
	Timeout time.Duration
}

// Trace finds the path from a namespace to dst. The packet that an ICMP error quotes must be the probe as it was sent:
// a NAT on the way has to translate the quote back.
func Trace(ctx context.Context, n *Namespace, src, dst netip.Addr, o TraceOptions) ([]Hop, error) {
	if o.HopsMax == 0 {
		o.HopsMax = 16
	}
	if o.Timeout == 0 {
		o.Timeout = time.Second
	}
	t := tracer{src: src, dst: dst, id: uint16(echoIDs.Add(1))}
	var err error
	if t.icmp, err = listenICMP(n, src); err != nil {
		return nil, err
	}
	defer t.icmp.Close()
	pc, err := n.ListenPacket("udp4", netip.AddrPortFrom(src, 0).String())
	if err != nil {
		return nil, err
	}
	defer pc.Close()
	t.udp = pc.(*net.UDPConn)

	var hops []Hop
	for ttl := 1; ttl <= o.HopsMax && ctx.Err() == nil; ttl++ {
		send, proto := t.sendUDP, uint8(17)
		if o.ICMP {
			send, proto = t.sendEcho, 1
		}
		start := time.Now()
		key, err := send(ttl)
		if err != nil {
			return hops, fmt.Errorf("traceroute %s: probe with TTL %d: %w", dst, ttl, err)
		}
		t.icmp.SetReadDeadline(deadline(ctx, start.Add(o.Timeout)))
		hop, err := t.await(ttl, proto, key)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			hops = append(hops, Hop{TTL: ttl})
			continue
		}
		if err != nil {
			return hops, fmt.Errorf("traceroute %s: answer to TTL %d: %w", dst, ttl, err)
		}
		hop.RTT = time.Since(start)
		hops = append(hops, hop)
		if hop.Reached {
			break
		}
	}
	return hops, ctx.Err()
}

type tracer struct {
	src, dst netip.Addr
	id       uint16
	icmp     *icmp.PacketConn
	udp      *net.UDPConn
}

// sendUDP and sendEcho send one probe and return the 4 bytes that tell it from others: at the start of the UDP header
// (both ports), at offset 4 of the ICMP one (id and sequence number).
func (t *tracer) sendUDP(ttl int) (key [4]byte, err error) {
	if err := ipv4.NewPacketConn(t.udp).SetTTL(ttl); err != nil {
		return key, err
	}
	port := uint16(33433 + ttl)
	binary.BigEndian.PutUint16(key[:], uint16(t.udp.LocalAddr().(*net.UDPAddr).Port))
	binary.BigEndian.PutUint16(key[2:], port)
	_, err = t.udp.WriteToUDPAddrPort(make([]byte, 32), netip.AddrPortFrom(t.dst, port))
	return key, err
}

func (t *tracer) sendEcho(ttl int) (key [4]byte, err error) {
	if err := t.icmp.IPv4PacketConn().SetTTL(ttl); err != nil {
		return key, err
	}
	binary.BigEndian.PutUint16(key[:], t.id)
	binary.BigEndian.PutUint16(key[2:], uint16(ttl))
	m := icmp.Message{Type: ipv4.ICMPTypeEcho, Body: &icmp.Echo{ID: int(t.id), Seq: ttl, Data: make([]byte, 32)}}
	b, err := m.Marshal(nil)
	if err != nil {
		return key, err
	}
	_, err = t.icmp.WriteTo(b, &net.IPAddr{IP: t.dst.AsSlice()})
	return key, err
}

func (t *tracer) await(ttl int, proto uint8, key [4]byte) (Hop, error) {
	b := make([]byte, 2048)
	for {
		n, from, err := t.icmp.ReadFrom(b)
		if err != nil {
			return Hop{}, err
		}
		m := b[:n]
		if n < 8 {
			continue
		}
		addr, _ := netip.ParseAddr(from.String())
		hop := Hop{TTL: ttl, Addr: addr}
		switch ipv4.ICMPType(m[0]) {
		case ipv4.ICMPTypeEchoReply:
			if proto != 1 || [4]byte(m[4:8]) != key {
				continue
			}
			hop.Reached = true
		case ipv4.ICMPTypeTimeExceeded, ipv4.ICMPTypeDestinationUnreachable:
			mine, err := t.quoted(m[8:], proto, key)
			if err != nil {
				return hop, err
			}
			if !mine {
				continue
			}
			hop.Reached = ipv4.ICMPType(m[0]) == ipv4.ICMPTypeDestinationUnreachable && m[1] == 3
		default:
			continue
		}
		if sum16(m) != 0 {
			return hop, fmt.Errorf("wrong ICMP checksum from %s", addr)
		}
		return hop, nil
	}
}

// quoted reports whether q, an IPv4 header and what follows, is the probe. A quote to our destination by our protocol
// with other addresses or ports in it is one that was not translated back.
func (t *tracer) quoted(q []byte, proto uint8, key [4]byte) (bool, error) {
	if len(q) < 20 || int(q[0]&15)*4+8 > len(q) {
		return false, nil
	}
	l4 := q[int(q[0]&15)*4:]
	if q[9] != proto || netip.AddrFrom4([4]byte(q[16:20])) != t.dst {
		return false, nil
	}
	if src := netip.AddrFrom4([4]byte(q[12:16])); src != t.src {
		return false, fmt.Errorf("it quotes a packet from %s, which this host (%s) did not send", src, t.src)
	}
	if sum16(q[:int(q[0]&15)*4]) != 0 {
		return false, errors.New("it quotes an IPv4 header with a wrong checksum")
	}
	if proto == 1 {
		return [4]byte(l4[4:8]) == key, nil
	}
	return [4]byte(l4[:4]) == key, nil
}
