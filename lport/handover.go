package lport

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"unsafe"

	"pollux/internal/offheap"
	"pollux/internal/packet"
)

// Handing a Space to a successor process: its big tables are shared memory (Options.Shared), all else goes by an image. The
// rows of alias addresses go by value, 300 KiB each.

// Layout is part of what must be equal in two processes that hand a Space over.
func Layout() uint64 { return offheap.Fingerprint(Space{}, row{}, block{}, cache{}, hold{}) }

// Regions returns the tables, in an order that is always the same.
func (s *Space) Regions() []*offheap.Region {
	return []*offheap.Region{s.caches.table.Region, s.caches.heads.Region, s.ledger.table.Region}
}

// ImageBytes is about how large an image is now.
func (s *Space) ImageBytes() int {
	n := 1<<16 + len(s.events.ring)*int(unsafe.Sizeof(BlockEvent{}))
	for _, a := range s.aliases {
		if a == nil {
			continue
		}
		n += len(a.blocks.all)*int(unsafe.Sizeof(block{})) + int(unsafe.Sizeof(*a))
		for _, r := range a.rows {
			if r != nil {
				n += int(unsafe.Sizeof(*r))
			}
		}
	}
	return n
}

// Freeze writes an image. The Space must not be used afterwards, unless the successor does not come about.
func (s *Space) Freeze(e *offheap.Encoder) error {
	if err := e.Write(s); err != nil {
		return err
	}
	count := len(s.aliases)
	if err := e.Write(&count); err != nil {
		return err
	}
	for _, a := range s.aliases {
		there := a != nil
		if err := e.Write(&there); err != nil {
			return err
		}
		if a == nil {
			continue
		}
		if err := e.Write(a); err != nil {
			return err
		}
		for _, r := range a.rows {
			there := r != nil
			if err := e.Write(&there); err != nil {
				return err
			}
			if r != nil {
				if err := e.Write(r); err != nil {
					return err
				}
			}
		}
		blocks := a.blocks.all
		if err := e.Write(&blocks); err != nil {
			return err
		}
	}
	return nil
}

// Thaw makes a Space of an image and of the tables that Regions returned. Owner bytes are what they were; o is as for New,
// and its owner table knows all alias addresses.
func Thaw(o Options, regions []*offheap.Region, d *offheap.Decoder) (*Space, error) {
	if len(regions) != 3 {
		return nil, fmt.Errorf("lport: %d tables of a predecessor, need 3", len(regions))
	}
	if err := check(o); err != nil {
		return nil, err
	}
	seed := o.Seed
	seed[0] ^= uint8(o.Worker)
	s := &Space{o: o, rng: rand.NewChaCha8(seed)}
	s.caches.table, s.caches.heads = &offheap.Table[cache]{Region: regions[0]}, &offheap.Table[uint32]{Region: regions[1]}
	s.ledger.table = &offheap.Table[hold]{Region: regions[2]}
	if err := d.Read(s); err != nil {
		return nil, fmt.Errorf("lport: a predecessor's ports: %w", err)
	}
	s.caches.table.Items, s.caches.heads.Items, s.ledger.table.Items = s.caches.all, s.caches.head, s.ledger.slots
	if int(s.me) != o.Worker+1 || len(s.events.ring) != eventsMax {
		return nil, errors.New("lport: a predecessor's ports are another worker's")
	}
	count := 0
	if err := d.Read(&count); err != nil || count < 0 || count > 1<<20 {
		return nil, errors.Join(errors.New("lport: a predecessor's alias addresses can't be read"), err)
	}
	for range count {
		a, err := s.thawAlias(d)
		if err != nil {
			return nil, fmt.Errorf("lport: a predecessor's alias address: %w", err)
		}
		s.aliases = append(s.aliases, a)
	}
	s.reindex()
	return s, nil
}

func (s *Space) thawAlias(d *offheap.Decoder) (*aliasSpace, error) {
	there := false
	if err := d.Read(&there); err != nil || !there {
		return nil, err
	}
	a := new(aliasSpace)
	if err := d.Read(a); err != nil {
		return nil, err
	}
	a.table = s.o.Owners.table.Load()
	a.own = a.table.find(a.addr)
	for rw := range a.rows {
		if err := d.Read(&there); err != nil {
			return nil, err
		}
		if !there {
			continue
		}
		mem, err := mapped[row](1)
		if err != nil {
			return nil, err
		}
		if err := d.Read(&mem[0]); err != nil {
			return nil, err
		}
		a.rowMem[rw], a.rows[rw] = mem, &mem[0]
		if mem[0].hungry && a.own != nil {
			a.own.rows[rw].hungry.Add(1)
		}
		mem[0].seen, mem[0].dry = 0, false // of another table: the next search that is in vain looks at everything anew
	}
	var blocks []block
	if err := d.Read(&blocks); err != nil || len(blocks) == 0 {
		return a, err
	}
	var err error
	if a.blocks.all, err = mapped[block](len(blocks)); err != nil {
		return nil, err
	}
	copy(a.blocks.all, blocks)
	a.blocks.seen, a.blocks.dry = 0, false
	return a, nil
}

// AdoptKernelPorts makes the table know which ports of an alias address its bytes, a predecessor's, mark as the kernel's, as if
// SetKernel had been called for each, and calls visit for them.
func (o *Owners) AdoptKernelPorts(alias packet.Addr, visit func(row Row, port uint16)) {
	for row := range Rows {
		for port := range 1 << 16 {
			if o.Byte(alias, row, uint16(port)) == ByteKernel {
				o.SetKernel(alias, row, uint16(port))
				visit(row, uint16(port))
			}
		}
	}
}
