package control

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"time"
)

// wholeBodies reads a request's body before its handler runs, so that no client holds one up by sending its body slowly or
// never. The server's own ReadTimeout would also end requests that take long to answer.
func wholeBodies(next http.Handler, limit time.Duration) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.ContentLength == 0 {
			next.ServeHTTP(w, r)
			return
		}
		bytesMax := int64(bodyBytesMax)
		if r.URL.Path == reloadPath {
			bytesMax = reloadBytesMax
		}
		rc := http.NewResponseController(w)
		_ = rc.SetReadDeadline(time.Now().Add(limit)) // a test's recorder has none
		body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, bytesMax))
		if err != nil {
			w.Header().Set("Connection", "close") // the rest of the body is not waited for
			var large *http.MaxBytesError
			switch {
			case errors.As(err, &large):
				refuse(w, http.StatusRequestEntityTooLarge, fmt.Errorf("the body has more than %d bytes", bytesMax))
			case errors.Is(err, os.ErrDeadlineExceeded):
				refuse(w, http.StatusRequestTimeout, fmt.Errorf("the body did not come within %v", limit))
			default:
				refuse(w, http.StatusBadRequest, fmt.Errorf("the body broke off: %w", err))
			}
			return
		}
		_ = rc.SetReadDeadline(time.Time{})
		r.Body = io.NopCloser(bytes.NewReader(body))
		next.ServeHTTP(w, r)
	})
}
