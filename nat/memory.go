package nat

import (
	"fmt"
	"unsafe"

	"pollux/internal/offheap"
)

// memory is the tables of one shard: off the Go heap, pointer-free, zeroed, of fixed size. Pages cost memory only once they are touched.
type memory struct {
	regions []*offheap.Region
	bytes   uint64
	shared  bool   // a successor process may take it over
	byUse   bool   // shared, and not to take memory at once
	taken   uint64 // of bytes: have their pages already
	private bool   // shared, but some table came out in memory that no other process can have
}

// table maps room for n records. Shared ones take their memory at once, as long as the machine has it and nobody asked for the contrary.
func table[T any](m *memory, n int) ([]T, error) {
	var t *offheap.Table[T]
	var x T
	var err error
	if size := uint64(n) * uint64(unsafe.Sizeof(x)); m.shared {
		ok, free := false, uint64(0)
		if !m.byUse {
			free, _ = offheap.Available()
		}
		dense := free > size+size/4
		if t, ok, err = offheap.AllocShared[T](n, dense); err == nil {
			m.private = m.private || !ok
			if ok && dense && t.Pages() != offheap.Small {
				m.taken += uint64(t.Mapped())
			}
		}
	} else {
		t, err = offheap.Alloc[T](n)
	}
	if err != nil {
		return nil, fmt.Errorf("nat: room for %d records of %d bytes: %w", n, unsafe.Sizeof(x), err)
	}
	m.regions = append(m.regions, t.Region)
	m.bytes += uint64(t.Mapped())
	return t.Items, nil
}

// populate makes the kernel provide every page now.
func (m *memory) populate() error {
	for _, r := range m.regions {
		if err := r.Populate(); err != nil {
			return fmt.Errorf("nat: tables of %d MiB do not fit the memory: %w", m.bytes>>20, err)
		}
	}
	return nil
}

// close gives all tables back.
func (m *memory) close() {
	for _, r := range m.regions {
		_ = r.Free()
	}
	m.regions = nil
}
