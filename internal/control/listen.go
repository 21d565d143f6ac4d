package control

import (
	"errors"
	"fmt"
	"net"
	"os"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// Options says where the socket is and who may use it.
type Options struct {
	Path  string
	Mode  uint32 // permission bits
	Group string // name or number; "": the process's own group
}

// Listener is a claimed control socket. Nothing is answered until Serve.
type Listener struct {
	ln   *net.UnixListener
	path string

	mu     sync.Mutex
	paused chan struct{} // closed when it is over; nil: connections are accepted
}

// Pause accepts no connection until Resume; who connects waits. So a successor gets all who come while it takes over.
func (l *Listener) Pause() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.paused == nil {
		l.paused = make(chan struct{})
		_ = l.ln.SetDeadline(time.Unix(1, 0)) // wakes Accept
	}
}

// Resume ends Pause.
func (l *Listener) Resume() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.paused != nil {
		_ = l.ln.SetDeadline(time.Time{})
		close(l.paused)
		l.paused = nil
	}
}

// Accept is net.Listener's.
func (l *Listener) Accept() (net.Conn, error) {
	for {
		c, err := l.ln.Accept()
		if !errors.Is(err, os.ErrDeadlineExceeded) {
			return c, err
		}
		l.mu.Lock()
		paused := l.paused
		l.mu.Unlock()
		if paused != nil {
			<-paused
		}
	}
}

// Addr is net.Listener's.
func (l *Listener) Addr() net.Addr { return l.ln.Addr() }

// Listen claims the socket: a file left behind by a process that is gone is removed, one that somebody listens on is an
// error that names who. The socket appears at its path with its mode and group already set.
func Listen(o Options) (*Listener, error) {
	gid, err := groupID(o.Group)
	if err != nil {
		return nil, err
	}
	if err := clearStale(o.Path); err != nil {
		return nil, err
	}
	private := o.Path + "." + strconv.Itoa(os.Getpid())
	umask := unix.Umask(0o177) // nobody else connects before the mode is right
	ln, err := net.ListenUnix("unix", &net.UnixAddr{Name: private, Net: "unix"})
	unix.Umask(umask)
	if err != nil {
		return nil, fmt.Errorf("control.socket %s: %w; choose another path with --control", o.Path, reasonOf(err))
	}
	ln.SetUnlinkOnClose(false)
	err = publish(private, o.Path, os.FileMode(o.Mode), gid)
	os.Remove(private)
	if err != nil {
		ln.Close()
		return nil, fmt.Errorf("control.socket %s: %w", o.Path, reasonOf(err))
	}
	return &Listener{ln: ln, path: o.Path}, nil
}

// Adopt takes over the socket that a predecessor listens on. f is closed.
func Adopt(f *os.File, path string) (*Listener, error) {
	defer f.Close()
	ln, err := net.FileListener(f)
	if err != nil {
		return nil, fmt.Errorf("control.socket %s: the predecessor's: %w", path, reasonOf(err))
	}
	u, ok := ln.(*net.UnixListener)
	if !ok {
		ln.Close()
		return nil, fmt.Errorf("control.socket %s: the predecessor's is none", path)
	}
	u.SetUnlinkOnClose(false)
	return &Listener{ln: u, path: path}, nil
}

// File returns a copy of the listening socket, for a successor.
func (l *Listener) File() (*os.File, error) { return l.ln.File() }

// publish gives the socket its rights and then its name; link fails when somebody else took the name meanwhile.
func publish(private, path string, mode os.FileMode, gid int) error {
	if err := os.Chown(private, -1, gid); err != nil {
		return err
	}
	if err := os.Chmod(private, mode); err != nil {
		return err
	}
	return os.Link(private, path)
}

// Close gives the socket up. The file is removed unless somebody else listens there by now.
func (l *Listener) Close() error {
	err := l.ln.Close()
	l.Resume() // Accept finds it closed
	if errors.Is(err, net.ErrClosed) {
		err = nil
	}
	conn, dialErr := net.DialTimeout("unix", l.path, time.Second)
	switch {
	case dialErr == nil:
		conn.Close()
	case errors.Is(dialErr, syscall.ECONNREFUSED):
		os.Remove(l.path)
	}
	return err
}

func groupID(group string) (int, error) {
	if group == "" {
		return -1, nil
	}
	if gid, err := strconv.Atoi(group); err == nil && gid >= 0 {
		return gid, nil
	}
	g, err := user.LookupGroup(group)
	if err != nil {
		return 0, fmt.Errorf("control.group: there is no group %q on this machine; allowed: a group's name or number", group)
	}
	return strconv.Atoi(g.Gid)
}

func clearStale(path string) error {
	info, err := os.Lstat(path)
	switch {
	case errors.Is(err, os.ErrNotExist):
		if _, err := os.Stat(filepath.Dir(path)); err != nil {
			return fmt.Errorf("control.socket %s: its directory can't be used: %w", path, reasonOf(err))
		}
		return nil
	case err != nil:
		return fmt.Errorf("control.socket %s: %w", path, reasonOf(err))
	case info.Mode()&os.ModeSocket == 0:
		return fmt.Errorf("control.socket %s exists and is no socket; remove it or choose another path with --control", path)
	}
	conn, err := net.DialTimeout("unix", path, time.Second)
	if err == nil {
		defer conn.Close()
		return fmt.Errorf("control.socket %s is in use by %s; stop it or choose another path with --control", path, peerOf(conn))
	}
	if !errors.Is(err, syscall.ECONNREFUSED) {
		return fmt.Errorf("control.socket %s: can't tell whether it is in use: %w", path, reasonOf(err))
	}
	if err := os.Remove(path); err != nil {
		return fmt.Errorf("control.socket %s was left behind and can't be removed: %w", path, reasonOf(err))
	}
	return nil
}

// peerOf names the process that listens on the other end.
func peerOf(conn net.Conn) string {
	raw, err := conn.(*net.UnixConn).SyscallConn()
	if err != nil {
		return "another process"
	}
	var cred *unix.Ucred
	if err := raw.Control(func(fd uintptr) {
		cred, _ = unix.GetsockoptUcred(int(fd), unix.SOL_SOCKET, unix.SO_PEERCRED)
	}); err != nil || cred == nil || cred.Pid == 0 {
		return "another process"
	}
	comm, _ := os.ReadFile(fmt.Sprintf("/proc/%d/comm", cred.Pid))
	return strings.TrimSpace(fmt.Sprintf("process %d %s", cred.Pid, strings.TrimSpace(string(comm))))
}

// reasonOf strips the wrapping that repeats the path.
func reasonOf(err error) error {
	var errno syscall.Errno
	if errors.As(err, &errno) {
		return errno
	}
	return err
}
