package nat

import (
	"fmt"
	"unsafe"

	"pollux/internal/offheap"
)

// memory is the tables of one shard: off the Go heap, pointer-free, zeroed, of fixed size. Pages cost memory only once they are touched.
type memory struct {
	free  []func() error
	bytes uint64
}

// table maps room for n records.
func table[T any](m *memory, n int) ([]T, error) {
	t, err := offheap.Alloc[T](n)
	if err != nil {
		var x T
		return nil, fmt.Errorf("nat: room for %d records of %d bytes: %w", n, unsafe.Sizeof(x), err)
	}
	m.free = append(m.free, t.Free)
	m.bytes += uint64(t.Mapped())
	return t.Items, nil
}

// close gives all tables back.
func (m *memory) close() {
	for _, f := range m.free {
		_ = f()
	}
	m.free = nil
}
