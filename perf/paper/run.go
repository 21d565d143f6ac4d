package paper

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"
)

// Options says what to make.
type Options struct {
	Dir      string
	Binary   string // pollux itself
	Revision string // of the binary, for the report
	Only     []string
	Quick    bool
	Write    bool // run nothing, write from what is there
	Progress io.Writer
}

// Make runs parts and writes the report. A part that fails leaves its file as it was; the others are made all the same.
func Make(ctx context.Context, o Options) error {
	list, err := choose(o.Only)
	if err != nil {
		return err
	}
	if o.Progress == nil {
		o.Progress = io.Discard
	}
	if !o.Write && os.Geteuid() != 0 && slices.ContainsFunc(list, func(p part) bool { return p.lab }) {
		return errors.New("the part lab makes network namespaces: run it as root, or choose others with --only")
	}
	if err := os.MkdirAll(filepath.Join(o.Dir, "data"), 0o755); err != nil {
		return err
	}
	var errs []error
	for _, p := range list {
		if o.Write || ctx.Err() != nil {
			break
		}
		if err := p.run(ctx, &o); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", p.name, err))
		}
	}
	return errors.Join(append(errs, ctx.Err(), write(o.Dir))...)
}

// run makes one part.
func (p *part) run(ctx context.Context, o *Options) error {
	args := p.args
	if o.Quick {
		args = p.quick
	}
	full := append([]string{"perf"}, args...)
	if p.lab {
		full = append(full, "--report", o.Dir)
	}
	m := made{Command: "pollux perf " + strings.Join(args, " "), Revision: o.Revision, Quick: o.Quick, Made: time.Now().UTC().Format("2006-01-02 15:04 UTC")}
	fmt.Fprintln(o.Progress, m.Command)
	cmd := exec.CommandContext(ctx, o.Binary, append(full, "--json")...)
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) } // a lab takes its namespaces down
	cmd.WaitDelay = 20 * time.Second
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	before, start := machineTime(), time.Now()
	err := cmd.Run()
	m.Seconds = time.Since(start).Seconds()
	if err != nil {
		return fmt.Errorf("%w: %s", err, lastLine(errs.String()))
	}
	own := cmd.ProcessState.UserTime() + cmd.ProcessState.SystemTime()
	m.Others, m.Stolen = machineTime().since(before).shares(own)
	if m.Result = bytes.TrimSpace(out.Bytes()); !json.Valid(m.Result) {
		return errors.New("the scenario printed no JSON")
	}
	b, err := json.MarshalIndent(&m, "", " ")
	if err != nil {
		return err
	}
	if p.lab { // its result is kept as every part's is
		_ = os.Remove(filepath.Join(o.Dir, "lab.json"))
	}
	return replace(filepath.Join(o.Dir, "data", p.name+".json"), append(b, '\n'))
}

// lastLine is what a command that failed said in the end.
func lastLine(s string) string {
	lines := strings.Split(strings.TrimSpace(s), "\n")
	return lines[len(lines)-1]
}

// replace writes a file as a whole or not at all.
func replace(file string, b []byte) error {
	f, err := os.CreateTemp(filepath.Dir(file), ".new")
	if err != nil {
		return err
	}
	_, err = f.Write(b)
	if err = errors.Join(err, f.Chmod(0o644), f.Close()); err == nil {
		err = os.Rename(f.Name(), file)
	}
	if err != nil {
		_ = os.Remove(f.Name())
	}
	return err
}
