package control

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"
)

const (
	dumpsMax      = 2                // lists that are streamed at a time
	chunkBytes    = 32 << 10         // of a list, written at a time
	writeDeadline = 10 * time.Second // a client that takes no byte for so long is dropped
)

// dump is one list on its way out: {"NAME":[...],"more":BOOL}. It holds one chunk, however long the list is.
type dump struct {
	w     http.ResponseWriter
	rc    *http.ResponseController
	limit int // 0: none
	sent  int
	more  bool
	buf   []byte
	err   error
}

// stream answers with a list. fill puts entries in by begin and end, or by add, until one of them returns false. A list that
// breaks off cuts the connection, so that the client sees that it is not whole.
func (a *api) stream(w http.ResponseWriter, name string, limit int, fill func(*dump) error) {
	release, ok := a.token(w)
	if !ok {
		return
	}
	defer release()
	w.Header().Set("Content-Type", "application/json")
	d := dump{w: w, rc: http.NewResponseController(w), limit: limit, buf: make([]byte, 0, chunkBytes+4096)}
	d.buf = fmt.Appendf(d.buf, `{"%s":[`, name)
	err := fill(&d)
	if err == nil {
		err = d.err
	}
	if err == nil {
		d.buf = fmt.Appendf(d.buf, `],"more":%t}`+"\n", d.more)
		err = d.flush()
	}
	if err != nil {
		panic(http.ErrAbortHandler)
	}
}

// token lets a few long requests at a time go on; ok false: the answer says that there are too many.
func (a *api) token(w http.ResponseWriter) (release func(), ok bool) {
	select {
	case a.dumps <- struct{}{}:
		return func() { <-a.dumps }, true
	default:
		refuse(w, http.StatusServiceUnavailable, fmt.Errorf("%d lists are being read or links deleted; try again", dumpsMax))
		return nil, false
	}
}

// begin makes room for one more entry, which the caller appends to buf; false: the limit is reached.
func (d *dump) begin() bool {
	if d.limit > 0 && d.sent == d.limit {
		d.more = true
		return false
	}
	if d.sent > 0 {
		d.buf = append(d.buf, ',', '\n')
	}
	d.sent++
	return true
}

// end finishes an entry; false: the client is gone.
func (d *dump) end() bool {
	if len(d.buf) >= chunkBytes {
		d.err = d.flush()
	}
	return d.err == nil
}

// add is one entry as JSON.
func (d *dump) add(value any) bool {
	if !d.begin() {
		return false
	}
	text, err := json.Marshal(value)
	if err != nil {
		d.err = err
		return false
	}
	d.buf = append(d.buf, text...)
	return d.end()
}

func (d *dump) flush() error {
	// A transport without deadlines (a test's recorder) says so; then none is needed.
	if err := d.rc.SetWriteDeadline(time.Now().Add(writeDeadline)); err != nil && !errors.Is(err, http.ErrNotSupported) {
		return err
	}
	_, err := d.w.Write(d.buf)
	d.buf = d.buf[:0]
	return err
}
