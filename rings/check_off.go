//go:build !framecheck

package rings

const frameCheck = false

func (p *Pool) check(uint64)            {}
func (c *chunkSet) check(uint64, uint8) {}
