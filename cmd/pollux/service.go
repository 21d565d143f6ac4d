package main

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"

	"golang.org/x/sys/unix"

	"pollux/internal/config"
	"pollux/internal/control"
	"pollux/internal/metrics"
	"pollux/pmd"
)

// service is a running gateway with its configuration, and how both change together. Its methods may be called by any goroutine.
type service struct {
	file  string       // as `run -c` named it; "" when there is none
	flags []config.Arg // lie over whatever is loaded

	listener *control.Listener // of the control socket
	scrapes  *metrics.Server   // nil: metrics are served on the control socket alone
	left     chan struct{}     // closed when the gateway is another process's; nil where that can't be

	reloads sync.Mutex // taken before mu: one at a time from reading on, which can take long; nobody else waits for that
	mu      sync.Mutex
	gateway *pmd.Gateway
	config  *config.Config    // as file and flags say
	runtime []config.Redirect // added since the last reload
}

var _ control.Operator = (*service)(nil)

// Reload is control.Operator's. The service manager is told that it goes on.
func (s *service) Reload(r control.ReloadRequest) (out control.ReloadResult, err error) {
	s.reloads.Lock()
	defer s.reloads.Unlock()
	next, err := s.load(r)
	if err != nil {
		return out, err
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	out.Changes, out.Dropped = config.Diff(s.config, next), []config.Redirect{}
	if out.Changes == nil {
		out.Changes = []config.Change{}
	}
	written := next.Redirects()
	for _, x := range s.runtime {
		if !slices.Contains(written, x) {
			out.Dropped = append(out.Dropped, x)
		}
	}
	var stuck []string
	for _, c := range out.Changes {
		if c.Restart {
			stuck = append(stuck, c.Key)
		}
	}
	switch {
	case r.DryRun:
		return out, nil
	case len(stuck) > 0:
		return out, fmt.Errorf("%s %w; nothing was changed: stop the gateway and start it again for it (`pollux restart` keeps the configuration)", strings.Join(stuck, ", "), control.ErrRestart)
	case len(out.Changes) == 0 && len(s.runtime) == 0:
		return out, nil
	}
	tell(reloading())
	defer tell("READY=1")
	out.Reloaded, err = s.gateway.Reload(next.Live())
	if err != nil {
		return out, fmt.Errorf("%w; nothing was changed", err)
	}
	out.Applied, s.config, s.runtime = true, next, nil
	for _, c := range out.Changes {
		slog.Info("reload", "key", c.Key, "old", c.Old, "new", c.New)
	}
	slog.Info("reloaded", "changes", len(out.Changes), "runtime_redirects_dropped", len(out.Dropped), "links_kept", out.Kept, "links_closed", out.Closed)
	return out, nil
}

// load reads what a reload shall put in force.
func (s *service) load(r control.ReloadRequest) (*config.Config, error) {
	if r.Text != "" {
		return config.Parse(r.File, []byte(r.Text), s.flags, config.Run)
	}
	return config.Load(s.file, s.flags, config.Run)
}

// hangup is what SIGHUP does.
func (s *service) hangup() {
	r, err := s.Reload(control.ReloadRequest{})
	switch {
	case err != nil:
		slog.Error("the configuration was not reloaded", "error", err)
	case !r.Applied:
		slog.Info("reloaded: nothing has changed")
	}
}

// effective is the configuration with the redirects that were added at run time.
func (s *service) effective(runtime []config.Redirect) (*config.Config, error) {
	c := s.config
	for _, x := range runtime {
		var err error
		if c, err = c.WithRedirect(x); err != nil {
			return nil, err
		}
	}
	return c, nil
}

// AddRedirect is control.Operator's.
func (s *service) AddRedirect(r config.Redirect) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	now, err := s.effective(s.runtime)
	if err != nil {
		return err
	}
	next, err := now.WithRedirect(r)
	if err != nil {
		return err
	}
	if _, err := s.gateway.Reload(next.Live()); err != nil {
		return fmt.Errorf("%w; nothing was changed", err)
	}
	for _, x := range next.Redirects() { // as the configuration writes it
		if x.Kind == r.Kind {
			r = x
		}
	}
	s.runtime = append(s.runtime, r)
	slog.Info("redirect added", "kind", r.Kind, "redirect", r.Text)
	return nil
}

// DelRedirect is control.Operator's.
func (s *service) DelRedirect(r config.Redirect) error {
	s.mu.Lock()
	defer s.mu.Unlock()
	same := func(x config.Redirect) bool { return x.Kind == r.Kind && x.Public() == r.Public() }
	i := slices.IndexFunc(s.runtime, same)
	switch {
	case !slices.Contains(config.RedirectKinds, r.Kind):
		return fmt.Errorf("redirect: %q is no kind of redirect; allowed: %s", r.Kind, strings.Join(config.RedirectKinds, ", "))
	case i < 0 && slices.ContainsFunc(s.config.Redirects(), same):
		return fmt.Errorf("redirect %s: %s is in the configuration; take it out there and reload", r.Kind, r.Public())
	case i < 0:
		return fmt.Errorf("redirect %s: %s was not added at run time; `pollux show config` lists those that were, each by PUBLIC as it stands there", r.Kind, r.Public())
	}
	left := slices.Delete(slices.Clone(s.runtime), i, i+1)
	next, err := s.effective(left)
	if err != nil {
		return err
	}
	if _, err := s.gateway.Reload(next.Live()); err != nil {
		return fmt.Errorf("%w; nothing was changed", err)
	}
	slog.Info("redirect deleted", "kind", r.Kind, "redirect", s.runtime[i].Text)
	s.runtime = left
	return nil
}

// Redirects lists the redirects that were added at run time.
func (s *service) Redirects() []config.Redirect {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.runtime)
}

// Drain is control.Operator's.
func (s *service) Drain(on bool) error {
	if s.gateway.Draining() != on {
		slog.Info("drain", "on", on)
	}
	return s.gateway.Drain(on)
}

// Draining is control.Operator's.
func (s *service) Draining() bool { return s.gateway.Draining() }

// text is the effective configuration, as control shows it: what the file would say, and apart from it what was added since.
func (s *service) text() (inJSON, inYAML string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	inJSON, inYAML = s.config.JSON(), s.config.YAML()
	if len(s.runtime) == 0 {
		return inJSON, inYAML
	}
	list, _ := json.Marshal(s.runtime) // strings always marshal
	inJSON = strings.TrimSuffix(inJSON, "}") + `,"runtime":` + string(list) + "}"
	var b strings.Builder
	b.WriteString(inYAML + "# Added at run time, until the next reload:\n")
	for _, r := range s.runtime {
		fmt.Fprintf(&b, "#   redirect %s %s\n", r.Kind, r.Text)
	}
	return inJSON, b.String()
}

// reloading is what the service manager hears when a reload begins (sd_notify(3)).
func reloading() string {
	var now unix.Timespec
	_ = unix.ClockGettime(unix.CLOCK_MONOTONIC, &now) // can't fail: the clock exists
	return fmt.Sprintf("RELOADING=1\nMONOTONIC_USEC=%d", now.Nano()/1000)
}

// tell notifies the service manager; that it did not hear is worth a line and no more.
func tell(state string) {
	if err := notify(state); err != nil {
		slog.Warn("the service manager was not told", "state", state, "error", err)
	}
}
