package offheap

import (
	"fmt"
	"math"
	"reflect"
	"unsafe"
)

// Table is an array of n elements outside the Go heap. Items is what the path works on; copy it into the owner's struct
// to save a load.
type Table[T any] struct {
	*Region
	Items []T
}

// Alloc returns a zeroed table of n elements. It fails when T holds a Go pointer (the garbage collector would not see
// what it points to) or when the memory can't be mapped.
func Alloc[T any](n int) (*Table[T], error) {
	size, err := tableBytes[T](n)
	if err != nil {
		return nil, err
	}
	r, err := NewRegion(size)
	if err != nil {
		return nil, err
	}
	return tableOf[T](r, n), nil
}

func tableBytes[T any](n int) (int, error) {
	t := reflect.TypeFor[T]()
	if where := pointer(t); where != "" {
		return 0, fmt.Errorf("offheap: %v holds a Go pointer: %s", t, where)
	}
	size := int(t.Size())
	if n <= 0 || size == 0 || n > math.MaxInt/size {
		return 0, fmt.Errorf("offheap: a table of %d elements of %d bytes can't be mapped", n, size)
	}
	return n * size, nil
}

func tableOf[T any](r *Region, n int) *Table[T] {
	return &Table[T]{Region: r, Items: unsafe.Slice((*T)(unsafe.Pointer(unsafe.SliceData(r.mem))), n)}
}

// Free unmaps the table and empties Items; copies of Items must not be used any more.
func (t *Table[T]) Free() error {
	t.Items = nil
	return t.Region.Free()
}

// Prefetch brings the first cache line of the elements with the given indexes near, all at once. Indexes are not checked:
// a prefetch of an address that is not mapped does nothing.
func (t *Table[T]) Prefetch(index []uint32) {
	var e T
	PrefetchIndexed(unsafe.Pointer(unsafe.SliceData(t.Items)), unsafe.Sizeof(e), index)
}

// pointer returns the path to the first Go pointer in t, "" if there is none.
func pointer(t reflect.Type) string {
	switch t.Kind() {
	case reflect.Array:
		if t.Len() == 0 {
			return ""
		}
		return pointer(t.Elem())
	case reflect.Struct:
		for i := range t.NumField() {
			f := t.Field(i)
			if where := pointer(f.Type); where != "" {
				return f.Name + " " + where
			}
		}
		return ""
	case reflect.Pointer, reflect.UnsafePointer, reflect.Slice, reflect.String, reflect.Map, reflect.Chan, reflect.Func, reflect.Interface:
		return t.String()
	}
	return ""
}
