package pmd

import (
	"encoding/binary"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"time"

	"golang.org/x/sys/unix"
)

// Courier carries messages and descriptors between a gateway and its successor, over a stream socket that both inherited.
// A message is its length (4 bytes, little endian) and JSON, or bytes.
type Courier struct{ conn *net.UnixConn }

// NewCourier uses one end of a socket pair.
func NewCourier(conn *net.UnixConn) *Courier { return &Courier{conn} }

// Close ends the conversation: the other side sees an end of file.
func (c *Courier) Close() error { return c.conn.Close() }

const (
	messageBytesMax = 1 << 31
	descriptorsEach = 200 // a message takes 253 (SCM_MAX_FD)
)

func (c *Courier) sendBytes(b []byte) error {
	if _, err := c.conn.Write(binary.LittleEndian.AppendUint32(nil, uint32(len(b)))); err != nil {
		return err
	}
	_, err := c.conn.Write(b)
	return err
}

func (c *Courier) receiveBytes() ([]byte, error) {
	var n [4]byte
	if _, err := io.ReadFull(c.conn, n[:]); err != nil {
		return nil, err
	}
	size := binary.LittleEndian.Uint32(n[:])
	if size > messageBytesMax {
		return nil, fmt.Errorf("pmd: a message of %d bytes", size)
	}
	b := make([]byte, size)
	_, err := io.ReadFull(c.conn, b)
	return b, err
}

func (c *Courier) send(v any) error {
	b, err := json.Marshal(v)
	if err != nil {
		return err
	}
	return c.sendBytes(b)
}

func (c *Courier) receive(v any) error {
	b, err := c.receiveBytes()
	if err != nil {
		return err
	}
	return json.Unmarshal(b, v)
}

// expect receives within a time.
func (c *Courier) expect(v any, within time.Duration) error {
	if err := c.conn.SetReadDeadline(time.Now().Add(within)); err != nil {
		return err
	}
	return c.receive(v)
}

// sendFDs passes descriptors on; they stay the sender's as well.
func (c *Courier) sendFDs(fds []int) error {
	for len(fds) > 0 {
		n := min(len(fds), descriptorsEach)
		if _, _, err := c.conn.WriteMsgUnix([]byte{'+'}, unix.UnixRights(fds[:n]...), nil); err != nil {
			return err
		}
		fds = fds[n:]
	}
	return nil
}

// receiveFDs takes n descriptors.
func (c *Courier) receiveFDs(n int) (fds []int, err error) {
	oob := make([]byte, unix.CmsgSpace(4*descriptorsEach))
	for len(fds) < n {
		var one [1]byte
		_, k, flags, _, err := c.conn.ReadMsgUnix(one[:], oob)
		if err != nil {
			return fds, err
		}
		list, err := unix.ParseSocketControlMessage(oob[:k])
		if err != nil || len(list) != 1 || flags&unix.MSG_CTRUNC != 0 {
			return fds, errors.Join(errors.New("pmd: descriptors got lost on the way; raise the limit of open files (ulimit -n)"), err)
		}
		some, err := unix.ParseUnixRights(&list[0])
		if err != nil {
			return fds, err
		}
		for _, fd := range some {
			unix.CloseOnExec(fd)
		}
		fds = append(fds, some...)
	}
	return fds, nil
}
