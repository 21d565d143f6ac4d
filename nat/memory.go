package nat

import (
	"fmt"
	"unsafe"

	"pollux/internal/offheap"
)

// memory is the tables of one shard: off the Go heap, pointer-free, zeroed, of fixed size. Pages cost memory only once they are touched.
type memory struct {
	free  []func() error
	fill  []func() error
	bytes uint64
}

// table maps room for n records.
func table[T any](m *memory, n int) ([]T, error) {
	t, err := offheap.Alloc[T](n)
	if err != nil {
		var x T
		return nil, fmt.Errorf("nat: room for %d records of %d bytes: %w", n, unsafe.Sizeof(x), err)
	}
	m.free, m.fill = append(m.free, t.Free), append(m.fill, t.Populate)
	m.bytes += uint64(t.Mapped())
	return t.Items, nil
}

// populate makes the kernel provide every page now.
func (m *memory) populate() error {
	for _, f := range m.fill {
		if err := f(); err != nil {
			return fmt.Errorf("nat: tables of %d MiB do not fit the memory: %w", m.bytes>>20, err)
		}
	}
	return nil
}

// close gives all tables back.
func (m *memory) close() {
	for _, f := range m.free {
		_ = f()
	}
	m.free, m.fill = nil, nil
}
