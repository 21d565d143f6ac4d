package rss

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"sync/atomic"

	"github.com/mdlayher/genetlink"
	"github.com/mdlayher/netlink"
	"golang.org/x/sys/unix"
)

// The "ethtool" generic netlink family (Documentation/networking/ethtool-netlink.rst): RSS_GET, since Linux 6.2.
const (
	familyName   = "ethtool"
	monitorGroup = "monitor"

	msgRSSGet      = 38
	msgRSSGetReply = 38

	attrHeader    = 1
	attrHashFunc  = 3
	attrTable     = 4
	attrKey       = 5
	attrTransform = 6

	headerIfindex = 1
)

// Client asks the kernel, in the network namespace of the thread that dialled. Not for use by several goroutines at once, but
// for Close.
type Client struct {
	conn   *genetlink.Conn
	family genetlink.Family
	closed atomic.Bool
}

// Dial connects to the kernel's ethtool family.
func Dial() (*Client, error) {
	conn, err := genetlink.Dial(nil)
	if err != nil {
		return nil, fmt.Errorf("generic netlink: %w", err)
	}
	family, err := conn.GetFamily(familyName)
	if err != nil {
		conn.Close()
		return nil, fmt.Errorf("the kernel's ethtool netlink family: %w", err)
	}
	return &Client{conn: conn, family: family}, nil
}

// Close ends the connection; a Watch that waits returns.
func (c *Client) Close() error {
	c.closed.Store(true)
	return c.conn.Close()
}

// Get asks for the state of a device, hashed fields included. ErrNotTold: driver or kernel has no answer, as with veth.
func (c *Client) Get(ifindex int, name string) (State, error) {
	attrs := netlink.NewAttributeEncoder()
	attrs.Nested(attrHeader, func(e *netlink.AttributeEncoder) error {
		e.Uint32(headerIfindex, uint32(ifindex))
		return nil
	})
	data, err := attrs.Encode()
	if err != nil {
		return State{}, err
	}
	request := genetlink.Message{Header: genetlink.Header{Command: msgRSSGet, Version: c.family.Version}, Data: data}
	msgs, err := c.conn.Execute(request, c.family.ID, netlink.Request)
	switch {
	case errors.Is(err, unix.EOPNOTSUPP): // the driver, or a kernel before 6.2
		s, err := older(name)
		if err == nil {
			s.TCP4, s.UDP4, s.FieldsErr = fields(name)
		}
		return s, err
	case errors.Is(err, os.ErrNotExist), errors.Is(err, unix.ENODEV):
		return State{}, fmt.Errorf("%s: there is no such device", name)
	case err != nil:
		return State{}, fmt.Errorf("%s: RSS settings: %w", name, err)
	}
	for _, m := range msgs {
		if m.Header.Command != msgRSSGetReply {
			continue
		}
		s, err := parse(m.Data)
		switch {
		case errors.Is(err, ErrNotTold): // a virtio card without the feature
			return State{}, ErrNotTold
		case err != nil:
			return State{}, fmt.Errorf("%s: RSS settings: %w", name, err)
		}
		s.TCP4, s.UDP4, s.FieldsErr = fields(name)
		return s, nil
	}
	return State{}, ErrNotTold // a kernel that answers with nothing
}

// parse reads the attributes of a reply. Those that are not known are skipped, as the kernel adds some.
func parse(b []byte) (s State, err error) {
	d, err := netlink.NewAttributeDecoder(b)
	if err != nil {
		return s, err
	}
	for d.Next() {
		switch d.Type() {
		case attrHashFunc:
			s.HashFunc = HashFunc(d.Uint32())
		case attrTransform:
			s.Transform = Transform(d.Uint32())
		case attrKey:
			s.Key = append([]byte(nil), d.Bytes()...)
		case attrTable:
			raw := d.Bytes()
			if len(raw)%4 != 0 {
				return State{}, fmt.Errorf("the indirection table has %d bytes, no multiple of 4", len(raw))
			}
			s.Table = make([]uint32, len(raw)/4)
			for i := range s.Table {
				s.Table[i] = binary.NativeEndian.Uint32(raw[4*i:])
			}
		}
	}
	if err := d.Err(); err != nil {
		return State{}, err
	}
	if len(s.Table) == 0 && len(s.Key) == 0 {
		return State{}, ErrNotTold
	}
	return s, nil
}

// Watch calls changed whenever a device's ethtool settings change, until Close; it then returns nil. Changes of RSS itself are
// told since Linux 6.17, changes of the number of queues, which reset the table, by all kernels: who must know of every
// change asks again from time to time.
func (c *Client) Watch(changed func()) error {
	for _, g := range c.family.Groups {
		if g.Name != monitorGroup {
			continue
		}
		if err := c.conn.JoinGroup(g.ID); err != nil {
			if c.closed.Load() {
				return nil
			}
			return fmt.Errorf("the ethtool monitor group: %w", err)
		}
		for {
			_, _, err := c.conn.Receive()
			switch {
			case c.closed.Load():
				return nil
			case err == nil, errors.Is(err, unix.ENOBUFS): // messages were lost: something changed
				changed()
			default:
				return fmt.Errorf("the ethtool monitor group: %w", err)
			}
		}
	}
	return errors.New("this kernel has no ethtool monitor group")
}
