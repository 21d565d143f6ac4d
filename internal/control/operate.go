package control

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"time"

	"pollux/internal/config"
	"pollux/pmd"
)

// Operator changes a running gateway.
type Operator interface {
	Reload(ReloadRequest) (ReloadResult, error)
	AddRedirect(config.Redirect) error
	// DelRedirect takes a redirect away that was added at run time; of its text only what Redirect.Public keeps matters.
	DelRedirect(config.Redirect) error
	Drain(on bool) error
	Draining() bool
	Restart() (Restarted, error)
}

// Restarted is the answer to POST /v1/restart.
type Restarted struct {
	PID int           `json:"pid"`    // of the process that runs the gateway now
	Gap time.Duration `json:"gap_ns"` // for so long no worker polled
}

// ReloadRequest is the body of POST /v1/reload.
type ReloadRequest struct {
	File   string `json:"file,omitempty"` // what Text is called in errors; without Text nothing else is read
	Text   string `json:"text,omitempty"` // the configuration to take; "": the gateway's own file, read again
	DryRun bool   `json:"dry_run,omitempty"`
}

// ReloadResult is the answer to it.
type ReloadResult struct {
	Changes []config.Change `json:"changes"`
	// Redirects that were added at run time and are not in the configuration: a reload drops them.
	Dropped []config.Redirect `json:"runtime_redirects_dropped"`
	Applied bool              `json:"applied"` // false: a dry run, or nothing to change
	pmd.Reloaded
}

// ErrRestart is what Reload returns when keys have changed that a running gateway can't follow.
var ErrRestart = errors.New("can't be changed while it runs")

// DrainState is the body of /v1/drain.
type DrainState struct {
	Drain *bool  `json:"drain"`
	Links uint64 `json:"links"` // left; not read in a request
}

const (
	reloadPath     = "/v1/reload"
	reloadBytesMax = 32 << 20
)

// operate adds the routes that change the gateway.
func (a *api) operate(mux *http.ServeMux) {
	mux.HandleFunc("POST "+reloadPath, func(w http.ResponseWriter, r *http.Request) {
		var body ReloadRequest
		if !a.body(w, r, &body, reloadBytesMax, `{"file": NAME, "text": YAML, "dry_run": BOOL}, all optional`) {
			return
		}
		result, err := a.about.Operator.Reload(body)
		if err != nil {
			refuse(w, http.StatusConflict, err)
			return
		}
		reply(w, result)
	})
	for method, act := range map[string]func(config.Redirect) error{
		http.MethodPost:   func(r config.Redirect) error { return a.about.Operator.AddRedirect(r) },
		http.MethodDelete: func(r config.Redirect) error { return a.about.Operator.DelRedirect(r) },
	} {
		mux.HandleFunc(method+" /v1/redirects", func(w http.ResponseWriter, r *http.Request) {
			var body config.Redirect
			if !a.body(w, r, &body, bodyBytesMax, `{"kind": "port" | "addr" | "proto", "redirect": TEXT}`) {
				return
			}
			if err := act(body); err != nil {
				refuse(w, http.StatusConflict, err)
				return
			}
			reply(w, body)
		})
	}
	mux.HandleFunc("POST /v1/restart", func(w http.ResponseWriter, r *http.Request) {
		if !a.operable(w) {
			return
		}
		result, err := a.about.Operator.Restart()
		if err != nil {
			refuse(w, http.StatusConflict, err)
			return
		}
		w.Header().Set("Connection", "close") // the next request is the new process's
		reply(w, result)
	})
	mux.HandleFunc("GET /v1/drain", func(w http.ResponseWriter, r *http.Request) {
		if a.operable(w) {
			a.replyDrain(w)
		}
	})
	mux.HandleFunc("PUT /v1/drain", func(w http.ResponseWriter, r *http.Request) {
		var body DrainState
		if !a.body(w, r, &body, bodyBytesMax, `{"drain": true} or {"drain": false}`) {
			return
		}
		if body.Drain == nil {
			refuse(w, http.StatusBadRequest, errors.New(`the body is not {"drain": true} or {"drain": false}`))
			return
		}
		if err := a.about.Operator.Drain(*body.Drain); err != nil {
			refuse(w, http.StatusConflict, err)
			return
		}
		a.replyDrain(w)
	})
}

func (a *api) replyDrain(w http.ResponseWriter) {
	on := a.about.Operator.Draining()
	s := DrainState{Drain: &on}
	for _, k := range a.gateway.Workers() {
		s.Links += k.Links
	}
	reply(w, s)
}

// operable refuses where nobody can change the gateway.
func (a *api) operable(w http.ResponseWriter) bool {
	if a.about.Operator == nil {
		refuse(w, http.StatusNotImplemented, errors.New("this gateway can't be changed while it runs"))
		return false
	}
	return true
}

// body reads a request's JSON. False: it was refused.
func (a *api) body(w http.ResponseWriter, r *http.Request, into any, bytesMax int64, want string) bool {
	if !a.operable(w) {
		return false
	}
	d := json.NewDecoder(http.MaxBytesReader(w, r.Body, bytesMax))
	d.DisallowUnknownFields()
	if err := d.Decode(into); err != nil {
		refuse(w, http.StatusBadRequest, fmt.Errorf("the body is not %s: %w", want, err))
		return false
	}
	return true
}

// Reload asks for a reload.
func (c *Client) Reload(ctx context.Context, r ReloadRequest) (out ReloadResult, err error) {
	err = c.send(ctx, http.MethodPost, reloadPath, r, &out)
	return out, err
}

// AddRedirect publishes something at run time, DelRedirect takes it back.
func (c *Client) AddRedirect(ctx context.Context, r config.Redirect) error {
	return c.send(ctx, http.MethodPost, "/v1/redirects", r, nil)
}

func (c *Client) DelRedirect(ctx context.Context, r config.Redirect) error {
	return c.send(ctx, http.MethodDelete, "/v1/redirects", r, nil)
}

// Restart has the gateway hand itself to a new process.
func (c *Client) Restart(ctx context.Context) (out Restarted, err error) {
	err = c.send(ctx, http.MethodPost, "/v1/restart", nil, &out)
	return out, err
}

// Drain turns draining on or off; with nil it only asks.
func (c *Client) Drain(ctx context.Context, on *bool) (out DrainState, err error) {
	if on == nil {
		return out, c.Get(ctx, "/v1/drain", nil, &out)
	}
	err = c.send(ctx, http.MethodPut, "/v1/drain", DrainState{Drain: on}, &out)
	return out, err
}

// send puts a request with a body; into may be nil.
func (c *Client) send(ctx context.Context, method, path string, body, into any) error {
	text, err := json.Marshal(body)
	if err != nil {
		return err
	}
	answer, err := c.do(ctx, method, path, nil, text)
	if err != nil {
		return err
	}
	defer answer.Close()
	if into == nil {
		return nil
	}
	if err := json.NewDecoder(answer).Decode(into); err != nil {
		return fmt.Errorf("control socket %s: the answer to %s is cut off or no JSON: %w", c.path, path, err)
	}
	return nil
}
