package control

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"syscall"

	"pollux/pmd"
)

// Client asks a running gateway.
type Client struct {
	path string
	http http.Client
}

// NewClient returns a client for the socket at path; it connects when asked something.
func NewClient(path string) *Client {
	var d net.Dialer
	return &Client{path: path, http: http.Client{Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) { return d.DialContext(ctx, "unix", path) },
	}}}
}

// Raw opens a GET of the API for those who want the bytes; path is as /v1/links. The caller closes it.
func (c *Client) Raw(ctx context.Context, path string, q url.Values) (io.ReadCloser, error) {
	return c.do(ctx, http.MethodGet, path, q, nil)
}

func (c *Client) do(ctx context.Context, method, path string, q url.Values, body []byte) (io.ReadCloser, error) {
	u := url.URL{Scheme: "http", Host: "pollux", Path: path, RawQuery: q.Encode()}
	req, err := http.NewRequestWithContext(ctx, method, u.String(), bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, c.explain(err)
	}
	if resp.StatusCode == http.StatusOK {
		return resp.Body, nil
	}
	defer resp.Body.Close()
	var refused struct {
		Error string `json:"error"`
	}
	if json.NewDecoder(io.LimitReader(resp.Body, bodyBytesMax)).Decode(&refused) != nil || refused.Error == "" {
		refused.Error = resp.Status
	}
	err = fmt.Errorf("control socket %s: %s", c.path, refused.Error)
	if resp.StatusCode == http.StatusConflict {
		return nil, &Refused{refused.Error}
	}
	return nil, err
}

// Refused is the gateway's answer to a change that it does not make: nothing was changed.
type Refused struct{ Why string }

func (r *Refused) Error() string { return r.Why }

// explain says what to do when nobody answers.
func (c *Client) explain(err error) error {
	why := reasonOf(err)
	switch {
	case errors.Is(why, syscall.ENOENT), errors.Is(why, syscall.ECONNREFUSED):
		return fmt.Errorf("no gateway answers on %s: %w; is `pollux run` up, and is its control.socket elsewhere (--control)?", c.path, why)
	case errors.Is(why, syscall.EACCES):
		return fmt.Errorf("control socket %s: %w; control.mode and control.group decide who may use it", c.path, why)
	}
	return fmt.Errorf("control socket %s: %w", c.path, why)
}

// Get asks for an answer that is small enough to be read whole.
func (c *Client) Get(ctx context.Context, path string, q url.Values, into any) error {
	body, err := c.Raw(ctx, path, q)
	if err != nil {
		return err
	}
	defer body.Close()
	if err := json.NewDecoder(body).Decode(into); err != nil {
		return fmt.Errorf("control socket %s: the answer to %s is cut off or no JSON: %w", c.path, path, err)
	}
	return nil
}

// Workers returns every worker's counters.
func (c *Client) Workers(ctx context.Context) ([]pmd.WorkerStats, error) {
	var out struct{ Workers []pmd.WorkerStats }
	err := c.Get(ctx, "/v1/workers", nil, &out)
	return out.Workers, err
}

// Ports returns every port's state and counters.
func (c *Client) Ports(ctx context.Context) ([]pmd.PortStats, error) {
	var out struct{ Ports []pmd.PortStats }
	err := c.Get(ctx, "/v1/ports", nil, &out)
	return out.Ports, err
}

// Drops returns every reason with its count.
func (c *Client) Drops(ctx context.Context) ([]pmd.DropStats, error) {
	var out struct{ Drops []pmd.DropStats }
	err := c.Get(ctx, "/v1/drops", nil, &out)
	return out.Drops, err
}

// Links calls visit for every link of the dump as it arrives, until visit returns an error. more tells that a limit left
// links out.
func (c *Client) Links(ctx context.Context, f Filter, visit func(*Link) error) (more bool, err error) {
	return List(ctx, c, "/v1/links", f.Query(), visit)
}

// DeleteLinks ends the links that a filter picks, or with all every link, and returns how many there were.
func (c *Client) DeleteLinks(ctx context.Context, f Filter, all bool) (deleted int, err error) {
	q := f.Query()
	if all {
		q.Set("all", "true")
	}
	body, err := c.do(ctx, http.MethodDelete, "/v1/links", q, nil)
	if err != nil {
		return 0, err
	}
	defer body.Close()
	var out struct{ Deleted int }
	if err := json.NewDecoder(body).Decode(&out); err != nil {
		return 0, fmt.Errorf("control socket %s: the answer was cut off: %w", c.path, err)
	}
	return out.Deleted, nil
}

// List calls visit for every entry of a list as it arrives, until visit returns an error. more tells that a limit left some
// out.
func List[T any](ctx context.Context, c *Client, path string, q url.Values, visit func(*T) error) (more bool, err error) {
	body, err := c.Raw(ctx, path, q)
	if err != nil {
		return false, err
	}
	defer body.Close()
	d := json.NewDecoder(body)
	for range 3 { // { NAME [
		if _, err := d.Token(); err != nil {
			return false, c.cut(path, err)
		}
	}
	for d.More() {
		var entry T
		if err := d.Decode(&entry); err != nil {
			return false, c.cut(path, err)
		}
		if err := visit(&entry); err != nil {
			return false, err
		}
	}
	for range 2 { // ] "more"
		if _, err := d.Token(); err != nil {
			return false, c.cut(path, err)
		}
	}
	if err := d.Decode(&more); err != nil {
		return false, c.cut(path, err)
	}
	return more, nil
}

func (c *Client) cut(path string, err error) error {
	return fmt.Errorf("control socket %s: the answer to %s broke off: %w", c.path, path, err)
}

// RTCache reports whether next hops are attached to links.
func (c *Client) RTCache(ctx context.Context) (bool, error) {
	var out struct{ RTCache bool }
	err := c.Get(ctx, "/v1/rtcache", nil, &out)
	return out.RTCache, err
}

// SetRTCache switches it.
func (c *Client) SetRTCache(ctx context.Context, on bool) error {
	text, err := json.Marshal(rtcacheBody{&on})
	if err != nil {
		return err
	}
	body, err := c.do(ctx, http.MethodPut, "/v1/rtcache", nil, text)
	if err != nil {
		return err
	}
	return body.Close()
}
