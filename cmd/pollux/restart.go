package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"os"
	"os/exec"
	"runtime"
	"syscall"
	"time"

	"github.com/urfave/cli/v2"
	"golang.org/x/sys/unix"

	"pollux/internal/config"
	"pollux/internal/control"
	"pollux/internal/cpu"
	"pollux/internal/metrics"
	"pollux/pmd"
)

// ownPath is this program's file, as it was named when the process started: by now another version may lie there.
var ownPath, errOwnPath = os.Executable()

// succeedCommandName is what a gateway starts its successor with.
const succeedCommandName = "succeed"

// testament is what a service leaves to its successor, beside the gateway itself.
type testament struct {
	File    string
	Flags   []config.Arg
	Config  string // as file and flags said
	Runtime []config.Redirect
	RTCache bool
	Metrics bool // the listener of control.metrics comes second, after that of the control socket
}

// Restart is control.Operator's: it starts the program anew and hands the gateway to it.
func (s *service) Restart() (out control.Restarted, err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	select {
	case <-s.left:
		return out, errors.New("restart: the gateway is another process's already")
	default:
	}
	if errOwnPath != nil {
		return out, fmt.Errorf("restart: the program's own file is not known: %w", errOwnPath)
	}
	will := testament{File: s.file, Flags: s.flags, Config: s.config.YAML(), Runtime: s.runtime, RTCache: s.gateway.RTCache()}
	listeners := []interface{ File() (*os.File, error) }{s.listener}
	if s.scrapes != nil {
		will.Metrics, listeners = true, append(listeners, s.scrapes)
	}
	var fds []int
	for _, l := range listeners {
		f, err := l.File()
		if err != nil {
			return out, fmt.Errorf("restart: %w", err)
		}
		defer f.Close()
		raw, err := f.SyscallConn() // File.Fd would make the listener block, for both processes
		if err != nil {
			return out, fmt.Errorf("restart: %w", err)
		}
		if err := raw.Control(func(fd uintptr) { fds = append(fds, int(fd)) }); err != nil {
			return out, fmt.Errorf("restart: %w", err)
		}
	}
	app, err := json.Marshal(will)
	if err != nil {
		return out, err
	}
	child, courier, err := startSuccessor()
	if err != nil {
		return out, fmt.Errorf("restart: %w", err)
	}
	defer courier.Close()
	abort := func() {
		_ = child.Process.Kill() // may be gone already
		_ = child.Wait()
	}
	tell(reloading())
	s.listener.Pause() // who connects from now on is the successor's
	gap, err := s.gateway.HandOver(courier, app, fds, abort)
	if err != nil {
		s.listener.Resume()
		tell("READY=1")
		return out, fmt.Errorf("restart: %w", err)
	}
	tell(fmt.Sprintf("MAINPID=%d", child.Process.Pid))
	slog.Info("handed over", "pid", child.Process.Pid, "gap", gap)
	close(s.left)
	return control.Restarted{PID: child.Process.Pid, Gap: gap}, nil
}

// startSuccessor starts the program's file with one end of a socket pair. The child gets all cores that this process was given,
// not those that are left beside the workers.
func startSuccessor() (*exec.Cmd, *pmd.Courier, error) {
	pair, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, err
	}
	theirs := os.NewFile(uintptr(pair[1]), "successor")
	defer theirs.Close()
	mine := os.NewFile(uintptr(pair[0]), "predecessor")
	defer mine.Close()
	conn, err := net.FileConn(mine)
	if err != nil {
		return nil, nil, err
	}
	cmd := exec.Command(ownPath, succeedCommandName)
	cmd.Stdout, cmd.Stderr, cmd.ExtraFiles = os.Stdout, os.Stderr, []*os.File{theirs}
	if os.Getenv("NOTIFY_SOCKET") != "" {
		// A service manager must be the successor's parent before it is told of it: systemd gives a main process that is not its
		// child no time to stop.
		cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_PARENT}
	}
	started := make(chan error)
	go func() {
		runtime.LockOSThread() // for good: the thread ends with the goroutine, and its affinity with it
		if all, err := cpu.Allowed(); err == nil {
			_ = cpu.PinTo(all)
		}
		started <- cmd.Start()
	}()
	if err := <-started; err != nil {
		conn.Close()
		return nil, nil, err
	}
	return cmd, pmd.NewCourier(conn.(*net.UnixConn)), nil
}

// leave ends a process that has handed its gateway over: its answers go out, nothing else is touched.
func (s *service) leave(server *control.Server) {
	_ = server.Close()
	_ = s.scrapes.Close()
}

// succeedCommand is the other end of Restart. It is nobody's to call.
func succeedCommand() *cli.Command {
	return &cli.Command{
		Name: succeedCommandName, Hidden: true,
		Usage: "take a gateway over from the process that started this one",
		Action: func(c *cli.Context) error {
			conn, err := net.FileConn(os.NewFile(3, "predecessor"))
			if err != nil {
				return fail(statusUsage, errors.New("succeed: only a gateway that restarts calls this: use pollux restart"))
			}
			unixConn, ok := conn.(*net.UnixConn)
			if !ok {
				return fail(statusUsage, errors.New("succeed: only a gateway that restarts calls this: use pollux restart"))
			}
			return succeed(pmd.NewCourier(unixConn), c)
		},
	}
}

func succeed(courier *pmd.Courier, c *cli.Context) error {
	h, err := pmd.Inherit(courier)
	if err != nil {
		if h != nil {
			h.Refuse(err)
		}
		return fail(statusUsage, err)
	}
	refuse := func(err error) error {
		h.Refuse(err)
		return fail(statusUsage, err)
	}
	var will testament
	if err := json.Unmarshal(h.App, &will); err != nil {
		return refuse(fmt.Errorf("what the old process left can't be read: %w", err))
	}
	cfg, err := config.Parse("running configuration", []byte(will.Config), nil, config.Run)
	if err != nil {
		return refuse(fmt.Errorf("this version does not take the configuration that is in force: %w", err))
	}
	s := &service{left: make(chan struct{}), file: will.File, flags: will.Flags, config: cfg, runtime: will.Runtime}
	effective, err := s.effective(will.Runtime)
	if err != nil {
		return refuse(err)
	}
	if want := 1; len(h.Files) < want || will.Metrics && len(h.Files) < 2 {
		return refuse(errors.New("the old process's sockets did not come along"))
	}
	if s.listener, err = control.Adopt(h.Files[0], cfg.Control().Socket); err != nil {
		return refuse(err)
	}
	if will.Metrics {
		if s.scrapes, err = metrics.Adopt(h.Files[1]); err != nil {
			return refuse(err)
		}
	}
	start := func(o pmd.Options) (*pmd.Gateway, error) {
		o.Rules, o.RTCache = effective.Rules(), will.RTCache
		return h.Start(o)
	}
	return s.run(start, h.Refuse, c.App.Writer, c.App.ErrWriter)
}

func restartCommand() *cli.Command {
	return &cli.Command{
		Name:  "restart",
		Usage: "replace the running gateway's process by the program as it is on disk now, and keep its links",
		Description: "For an upgrade: install the new binary in the place of the old one, then restart. The new process takes links,\n" +
			"ports, timers, sockets and packet memory over; packets wait in the receive rings for the moment in between. If it\n" +
			"can't, it says why and the old one goes on. It runs with the configuration that is in force: reload changes that.",
		Flags: clientFlags(),
		Action: func(c *cli.Context) error {
			if err := noArgs(c); err != nil {
				return err
			}
			client, err := clientOf(c)
			if err != nil {
				return err
			}
			r, err := client.Restart(c.Context)
			if err != nil {
				return changed(err)
			}
			if c.Bool("json") {
				return printJSON(c.App.Writer, r)
			}
			_, err = fmt.Fprintf(c.App.Writer, "process %d took over; nobody forwarded for %v\n", r.PID, r.Gap.Round(10*time.Microsecond))
			return err
		},
	}
}
