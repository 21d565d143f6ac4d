//go:build framecheck

package rings

import "fmt"

// frameCheck makes every pool and socket stop the process at the moment a frame would be in two places.
const frameCheck = true

func (p *Pool) check(addr uint64) {
	if p.in == nil {
		p.in = map[uint64]struct{}{}
	}
	if _, ok := p.in[addr]; ok {
		panic(fmt.Sprintf("rings: frame %#x was given to the pool twice", addr))
	}
	p.in[addr] = struct{}{}
}

func (c *chunkSet) check(i uint64, want uint8) {
	if c.in[i] != want {
		panic(fmt.Sprintf("rings: frame %#x goes to or comes from the kernel twice (in: %d, must be %d)", i<<c.shift, c.in[i], want))
	}
}
