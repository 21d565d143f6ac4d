package lab

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"time"
)

// Process is a program that runs inside a namespace. It dies with the lab, or with the lab's maker however that dies.
type Process struct {
	cmd  *exec.Cmd
	log  output
	done chan struct{}
	err  error // valid once done is closed
}

// Start runs a program inside the namespace, its output collected.
func (n *Namespace) Start(name string, args ...string) (*Process, error) {
	return n.start(false, name, args...)
}

func (n *Namespace) start(outlive bool, name string, args ...string) (*Process, error) {
	p := &Process{cmd: exec.Command(name, args...), done: make(chan struct{})}
	p.cmd.Stdout, p.cmd.Stderr = &p.log, &p.log
	// A process group of its own: Ctrl-C at the terminal reaches the lab's maker only, which then stops things in order.
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	if outlive {
		// A pipe would break when the maker ends: such a process writes to a file.
		f, err := os.CreateTemp(keptDir, "*.log")
		if err != nil {
			return nil, err
		}
		defer f.Close()
		p.cmd.Stdout, p.cmd.Stderr = f, f
		p.log.file = f.Name()
	} else {
		p.cmd.SysProcAttr.Pdeathsig = syscall.SIGKILL
	}
	var err error
	n.onResident(func() { err = p.cmd.Start() })
	if err != nil {
		return nil, fmt.Errorf("start %s in %s: %w", name, n.Name, err)
	}
	go func() {
		p.err = p.cmd.Wait()
		close(p.done)
	}()
	return p, nil
}

// Run runs a program inside the namespace to its end and returns its output, standard error included.
func (n *Namespace) Run(ctx context.Context, name string, args ...string) (string, error) {
	p, err := n.Start(name, args...)
	if err != nil {
		return "", err
	}
	select {
	case <-p.done:
	case <-ctx.Done():
		p.Stop(syscall.SIGKILL, 0)
		return p.Output(), fmt.Errorf("%s: %w", name, ctx.Err())
	}
	if p.err != nil {
		return p.Output(), fmt.Errorf("%s %s: %w: %s", name, strings.Join(args, " "), p.err, strings.TrimSpace(p.Output()))
	}
	return p.Output(), nil
}

// WaitFor waits until the process has written text.
func (p *Process) WaitFor(text string, limit time.Duration) error {
	deadline := time.After(limit)
	for {
		if strings.Contains(p.Output(), text) {
			return nil
		}
		select {
		case <-p.done:
			if strings.Contains(p.Output(), text) {
				return nil
			}
			return fmt.Errorf("%s ended (%v) before it said %q: %s", p.cmd.Path, p.status(), text, strings.TrimSpace(p.Output()))
		case <-deadline:
			return fmt.Errorf("%s did not say %q within %v: %s", p.cmd.Path, text, limit, strings.TrimSpace(p.Output()))
		case <-time.After(10 * time.Millisecond):
		}
	}
}

func (p *Process) status() string {
	if p.err == nil {
		return "exit status 0"
	}
	return p.err.Error()
}

// Signal sends a signal.
func (p *Process) Signal(s syscall.Signal) error { return p.cmd.Process.Signal(s) }

// PID returns the process id.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Done is closed when the process has ended.
func (p *Process) Done() <-chan struct{} { return p.done }

// Output returns what the process has written so far.
func (p *Process) Output() string { return p.log.String() }

// Wait waits for the end and returns the exit status, -1 when a signal ended it.
func (p *Process) Wait(limit time.Duration) (int, error) {
	select {
	case <-p.done:
		return p.cmd.ProcessState.ExitCode(), nil
	case <-time.After(limit):
		return 0, fmt.Errorf("%s still runs after %v: %s", p.cmd.Path, limit, strings.TrimSpace(p.Output()))
	}
}

// Stop sends a signal and waits for the end; a process that does not heed it in time is killed and reported.
func (p *Process) Stop(s syscall.Signal, grace time.Duration) error {
	if err := p.Signal(s); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return err
	}
	if s == syscall.SIGKILL {
		<-p.done
		return nil
	}
	select {
	case <-p.done:
	case <-time.After(grace):
		p.Signal(syscall.SIGKILL)
		<-p.done
		return fmt.Errorf("%s did not end within %v of %v", p.cmd.Path, grace, s)
	}
	if p.err != nil {
		return fmt.Errorf("%s: %w: %s", p.cmd.Path, p.err, strings.TrimSpace(p.Output()))
	}
	return nil
}

// output collects what a process writes; file is set when it goes to a file instead.
type output struct {
	mu   sync.Mutex
	b    bytes.Buffer
	file string
}

func (o *output) Write(b []byte) (int, error) {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.Write(b)
}

func (o *output) String() string {
	if o.file != "" {
		b, _ := os.ReadFile(o.file)
		return string(b)
	}
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.b.String()
}

// readyWithin is how long a gateway may take from start to its ready line: binds are retried for a while after another
// socket on the queue was closed.
const readyWithin = time.Minute

// StartGateway runs `pollux run` in the gateway's namespace on both devices, with the gateway's outside address as alias
// and a control socket of its own (Socket), and waits for its ready line. args come after these flags; with -c or
// --config among them nothing but the control socket is added.
func (l *Lab) StartGateway(binary string, args ...string) (*Process, error) {
	all := []string{"run", "--control", l.Socket()}
	if !hasConfig(args) {
		all = append(all, "--inside", InsideDevice, "--outside", OutsideDevice)
		if !hasFlag(args, "--alias") {
			all = append(all, "--alias", GatewayOutside.String())
		}
	}
	p, err := l.Gateway.start(l.keep, binary, append(all, args...)...)
	if err != nil {
		return nil, err
	}
	if err := p.WaitFor("ready", readyWithin); err != nil {
		p.Stop(syscall.SIGKILL, 0)
		return nil, err
	}
	return p, nil
}

// StartServer starts a program inside a namespace of the lab that lives as long as the lab: past its maker's end when the
// lab is kept.
func (l *Lab) StartServer(n *Namespace, binary string, args ...string) (*Process, error) {
	return n.start(l.keep, binary, args...)
}

func hasConfig(args []string) bool { return hasFlag(args, "-c") || hasFlag(args, "--config") }

func hasFlag(args []string, flag string) bool {
	for _, a := range args {
		if a == flag || strings.HasPrefix(a, flag+"=") {
			return true
		}
	}
	return false
}

// Socket is the path of the gateway's control socket.
func (l *Lab) Socket() string { return filepath.Join(l.Dir, "pollux.sock") }
