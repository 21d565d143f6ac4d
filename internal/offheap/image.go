package offheap

import (
	"encoding/binary"
	"errors"
	"fmt"
	"hash/fnv"
	"reflect"
	"unsafe"
)

// An image is the part of an off-heap structure that lies on the Go heap: counters, heads of lists, slices over regions. A
// successor process of the same build reads it back over the same regions, and goes on.
//
// What is written: numbers, booleans, arrays, structs, and slices: one that lies in a region by its place there, any other with
// its elements. What is not: pointers, functions, interfaces, maps, channels, strings, and fields with the tag `image:"-"`: those
// the reader keeps as it has them. A layout has a fingerprint, so that a reader of another build refuses instead of guessing.

// Encoder writes an image.
type Encoder struct {
	buf     []byte
	regions []*Region
}

// NewEncoder writes images of what lies in these regions.
func NewEncoder(regions []*Region) *Encoder { return &Encoder{regions: regions} }

// Into continues what was written in buf, within whose capacity no memory is taken; Bytes then returns all of it.
func (e *Encoder) Into(buf []byte) { e.buf = buf }

// Bytes returns what was written.
func (e *Encoder) Bytes() []byte { return e.buf }

// Write appends what v points to.
func (e *Encoder) Write(v any) error { return e.value(reflect.ValueOf(v).Elem()) }

const (
	sliceNil = iota
	sliceRegion
	sliceHeap
)

func (e *Encoder) number(n uint64) { e.buf = binary.LittleEndian.AppendUint64(e.buf, n) }

func (e *Encoder) raw(at unsafe.Pointer, n uintptr) {
	e.buf = append(e.buf, unsafe.Slice((*byte)(at), n)...)
}

func (e *Encoder) value(v reflect.Value) error {
	t := v.Type()
	if plain(t) {
		e.raw(v.Addr().UnsafePointer(), t.Size())
		return nil
	}
	switch t.Kind() {
	case reflect.Struct:
		for i := range t.NumField() {
			if t.Field(i).Tag.Get("image") == "-" {
				continue
			}
			if err := e.value(v.Field(i)); err != nil {
				return err
			}
		}
	case reflect.Array:
		for i := range v.Len() {
			if err := e.value(v.Index(i)); err != nil {
				return err
			}
		}
	case reflect.Slice:
		return e.slice(v)
	}
	return nil // the reader's own
}

func (e *Encoder) slice(v reflect.Value) error {
	if v.IsNil() {
		e.number(sliceNil)
		return nil
	}
	at := uintptr(v.UnsafePointer())
	for i, r := range e.regions {
		base := uintptr(unsafe.Pointer(unsafe.SliceData(r.mem)))
		if at < base || at >= base+uintptr(len(r.mem)) {
			continue
		}
		for _, n := range []uint64{sliceRegion, uint64(i), uint64(at - base), uint64(v.Len()), uint64(v.Cap())} {
			e.number(n)
		}
		return nil
	}
	e.number(sliceHeap)
	e.number(uint64(v.Len()))
	elem := v.Type().Elem()
	if plain(elem) {
		e.raw(v.UnsafePointer(), elem.Size()*uintptr(v.Len()))
		return nil
	}
	for i := range v.Len() {
		if err := e.value(v.Index(i)); err != nil {
			return err
		}
	}
	return nil
}

// Decoder reads an image.
type Decoder struct {
	buf     []byte
	regions []*Region
}

// NewDecoder reads an image over the same regions, in the same order. buf is not kept.
func NewDecoder(buf []byte, regions []*Region) *Decoder { return &Decoder{buf, regions} }

// Over goes on over other regions.
func (d *Decoder) Over(regions []*Region) { d.regions = regions }

var errShort = errors.New("offheap: the image is cut off")

// Read fills in what v points to, but for what an image does not hold.
func (d *Decoder) Read(v any) error { return d.value(reflect.ValueOf(v).Elem()) }

// Rest returns how many bytes are left.
func (d *Decoder) Rest() int { return len(d.buf) }

func (d *Decoder) number() (uint64, error) {
	if len(d.buf) < 8 {
		return 0, errShort
	}
	n := binary.LittleEndian.Uint64(d.buf)
	d.buf = d.buf[8:]
	return n, nil
}

func (d *Decoder) raw(at unsafe.Pointer, n uintptr) error {
	if uintptr(len(d.buf)) < n {
		return errShort
	}
	copy(unsafe.Slice((*byte)(at), n), d.buf)
	d.buf = d.buf[n:]
	return nil
}

func (d *Decoder) value(v reflect.Value) error {
	t := v.Type()
	if !v.CanSet() { // an unexported field: its place is known all the same
		v = reflect.NewAt(t, v.Addr().UnsafePointer()).Elem()
	}
	if plain(t) {
		return d.raw(v.Addr().UnsafePointer(), t.Size())
	}
	switch t.Kind() {
	case reflect.Struct:
		for i := range t.NumField() {
			if t.Field(i).Tag.Get("image") == "-" {
				continue
			}
			if err := d.value(v.Field(i)); err != nil {
				return fmt.Errorf("%s: %w", t.Field(i).Name, err)
			}
		}
	case reflect.Array:
		for i := range v.Len() {
			if err := d.value(v.Index(i)); err != nil {
				return err
			}
		}
	case reflect.Slice:
		return d.slice(v)
	}
	return nil
}

func (d *Decoder) slice(v reflect.Value) error {
	kind, err := d.number()
	if err != nil {
		return err
	}
	elem := v.Type().Elem()
	switch kind {
	case sliceNil:
		v.SetZero()
		return nil
	case sliceRegion:
		var n [4]uint64
		for i := range n {
			if n[i], err = d.number(); err != nil {
				return err
			}
		}
		if n[0] >= uint64(len(d.regions)) || n[2] > n[3] || n[3] > 1<<48 || n[1] > 1<<48 ||
			n[1]+n[3]*uint64(elem.Size()) > uint64(len(d.regions[n[0]].mem)) {
			return errors.New("offheap: the image names a place outside of its regions")
		}
		type header struct {
			at       unsafe.Pointer
			len, cap int
		}
		*(*header)(v.Addr().UnsafePointer()) = header{unsafe.Pointer(&d.regions[n[0]].mem[n[1]]), int(n[2]), int(n[3])}
		return nil
	case sliceHeap:
	default:
		return errors.New("offheap: the image is no image")
	}
	n, err := d.number()
	if err != nil {
		return err
	}
	if elem.Size() > 0 && n > uint64(len(d.buf)) || n > 1<<32 {
		return errShort
	}
	s := reflect.MakeSlice(v.Type(), int(n), int(n))
	if plain(elem) {
		if n > 0 {
			if err := d.raw(s.UnsafePointer(), elem.Size()*uintptr(n)); err != nil {
				return err
			}
		}
	} else {
		for i := range int(n) {
			if err := d.value(s.Index(i)); err != nil {
				return err
			}
		}
	}
	v.Set(s)
	return nil
}

// plain reports whether a type's bytes are all that there is to it.
func plain(t reflect.Type) bool {
	switch t.Kind() {
	case reflect.Struct:
		for i := range t.NumField() {
			if f := t.Field(i); f.Tag.Get("image") == "-" || !plain(f.Type) {
				return false
			}
		}
		return true
	case reflect.Array:
		return plain(t.Elem())
	}
	return pointer(t) == ""
}

// Fingerprint tells layouts apart: names, order, sizes and kinds of everything that an image of the values' types holds.
func Fingerprint(values ...any) uint64 {
	h := fnv.New64a()
	var walk func(t reflect.Type, deep int)
	walk = func(t reflect.Type, deep int) {
		fmt.Fprintf(h, "%v %d;", t.Kind(), t.Size())
		if deep > 16 {
			return
		}
		switch t.Kind() {
		case reflect.Struct:
			for i := range t.NumField() {
				if f := t.Field(i); f.Tag.Get("image") != "-" {
					fmt.Fprintf(h, "%s %d ", f.Name, f.Offset)
					walk(f.Type, deep+1)
				}
			}
		case reflect.Array, reflect.Slice:
			walk(t.Elem(), deep+1)
		}
	}
	for _, v := range values {
		walk(reflect.TypeOf(v), 0)
	}
	return h.Sum64()
}
