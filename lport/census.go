package lport

import (
	"sync/atomic"

	"pollux/internal/packet"
)

// Census counts the owner bytes of one alias address and row by what they say.
type Census struct {
	Free     int
	Owned    int // by workers, in use or not
	Kernel   int
	Redirect int
}

// Census counts the bytes of the ports from low to high. Any goroutine may ask; bytes change meanwhile.
func (o *Owners) Census(alias packet.Addr, row Row, low, high uint16) (c Census) {
	a := o.table.Load().find(alias)
	if a == nil || row >= Rows || low > high {
		return c
	}
	for port, end := uint32(low), uint32(high)+1; port < end; {
		w, s := lane(row, uint16(port))
		x := atomic.LoadUint32(&a.words[w]) >> s
		n := min(4-port&3, end-port)
		if x == 0 { // mostly
			c.Free += int(n)
			port += n
			continue
		}
		for range n {
			switch x & 0xff {
			case ByteFree:
				c.Free++
			case ByteKernel:
				c.Kernel++
			case ByteRedirect:
				c.Redirect++
			default:
				c.Owned++
			}
			x >>= 8
			port++
		}
	}
	return c
}
