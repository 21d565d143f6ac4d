package integration

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"pollux/internal/control"
	"pollux/internal/lab"
)

// restart replaces the gateway's process and returns who runs it now.
func (o *operated) restart() control.Restarted {
	o.t.Helper()
	var r control.Restarted
	out := o.must("restart", "--json")
	if err := json.Unmarshal([]byte(out), &r); err != nil {
		o.t.Fatalf("%v: %s", err, out)
	}
	return r
}

// tuples lists the links by what identifies them.
func (o *operated) tuples() (list []string) {
	for _, l := range o.links(control.Filter{}) {
		list = append(list, fmt.Sprint(l.Proto, l.Local, l.Alias, l.Remote, l.State))
	}
	slices.Sort(list)
	return list
}

// The process is replaced ten times under load in both directions: no datagram is lost, links keep their ports, counters go on.
func TestRestart(t *testing.T) {
	for _, workers := range []int{1, 2} {
		t.Run(fmt.Sprintf("%d workers", workers), func(t *testing.T) {
			l := newLab(t, lab.Options{Queues: workers})
			in, out := l.Inside[0], l.Outside[0]
			const public = "203.0.113.1:5000"
			o := operate(t, l, workers, `alias: ["203.0.113.1", "203.0.113.9"]`, "redirect_port: ["+published(public, 6000)+"]")
			o.must("redirect", "add", "port", "tcp,203.0.113.1:8080=10.0.0.2:80")
			web, err := lab.ServeTCP(in.Namespace, at(in.Addr, 80), lab.Tell("inside"))
			if err != nil {
				t.Fatal(err)
			}
			defer web.Close()
			shell, err := lab.ServeTCP(out.Namespace, at(out.Addr, 22), lab.Echo)
			if err != nil {
				t.Fatal(err)
			}
			defer shell.Close()
			session, err := lab.OpenSession(o.ctx, in.Namespace, at(out.Addr, 22))
			if err != nil {
				t.Fatal(err)
			}
			defer session.Close()
			s := startStreams(t, l, public, 6000)
			before, config := o.tuples(), o.must("show", "config")
			pid := o.PID()
			t.Cleanup(func() {
				if pid != o.PID() {
					syscall.Kill(pid, syscall.SIGKILL) // if the test ended early
				}
			})
			var gaps []time.Duration
			for range 10 {
				r := o.restart()
				if r.PID == pid {
					t.Fatal("the same process goes on")
				}
				pid = r.PID
				gaps = append(gaps, r.Gap)
				if _, err := session.Type("still there", 10*time.Second); err != nil {
					t.Fatal(err)
				}
				s.flow()
			}
			t.Logf("%d workers: nobody polled for %v, median %v", workers, gaps, lab.Median(gaps))
			if after := o.tuples(); !slices.Equal(after, before) {
				t.Errorf("links before: %v\nand after: %v", before, after)
			}
			if now := o.must("show", "config"); now != config || !strings.Contains(now, "redirect port tcp,203.0.113.1:8080") {
				t.Errorf("configuration before:\n%s\nand after:\n%s", config, now)
			}
			if _, _, err := lab.Ask(o.ctx, out.Namespace, "203.0.113.1:8080"); err != nil {
				t.Error(err)
			}
			received := uint64(0)
			for _, w := range o.workers() {
				received += w.Received
			}
			if sent := uint64(s.in.Sent() + s.out.Sent()); received < sent*9/10 {
				t.Errorf("%d packets counted of %d that were sent", received, sent)
			}
			// And it can still be changed and stopped.
			o.write(t, workers, `alias: ["203.0.113.1"]`, "redirect_port: ["+published(public, 6000)+"]")
			if r := o.reload(); !r.Applied || len(r.Dropped) != 1 {
				t.Errorf("reload after the restarts: %+v", r)
			}
			s.stop()
			if leaked := o.leaked(); leaked != 0 {
				t.Errorf("%d frames leaked: %+v", leaked, o.workers())
			}
			if err := syscall.Kill(pid, syscall.SIGTERM); err != nil {
				t.Fatal(err)
			}
			select {
			case <-o.Done(): // the output ends with the last of the processes
			case <-time.After(10 * time.Second):
				t.Fatalf("process %d does not stop", pid)
			}
			if xdpAttached(t, l.Gateway, lab.InsideDevice) {
				t.Error("an XDP program is left")
			}
			if t.Failed() {
				t.Logf("the gateway said:\n%s", o.Output())
			}
		})
	}
}

// A gateway that is killed and started again goes on with the links of its last snapshot: an open session does not notice.
func TestSnapshotAfterACrash(t *testing.T) {
	l := newLab(t, lab.Options{})
	in, out := l.Inside[0], l.Outside[0]
	o := operate(t, l, 1, `alias: ["203.0.113.1"]`, "same_ports: false")
	text, err := os.ReadFile(o.file)
	if err != nil {
		t.Fatal(err)
	}
	if err := o.Stop(syscall.SIGTERM, 5*time.Second); err != nil {
		t.Fatal(err)
	}
	kept := filepath.Join(l.Dir, "links")
	if err := os.WriteFile(o.file, append(text, []byte("snapshot: {file: "+kept+", interval: 100ms}\n")...), 0o644); err != nil {
		t.Fatal(err)
	}
	o.gateway = run(t, l, "-c", o.file)
	shell, err := lab.ServeTCP(out.Namespace, at(out.Addr, 22), lab.Echo)
	if err != nil {
		t.Fatal(err)
	}
	defer shell.Close()
	session, err := lab.OpenSession(o.ctx, in.Namespace, at(out.Addr, 22))
	if err != nil {
		t.Fatal(err)
	}
	defer session.Close()
	if _, err := session.Type("before", 5*time.Second); err != nil {
		t.Fatal(err)
	}
	before := o.tuples()
	var written time.Time
	for range 2 { // the second one was begun after the session was there
		eventually(t, 10*time.Second, func() error {
			info, err := os.Stat(kept)
			if err != nil || info.ModTime().Equal(written) {
				return fmt.Errorf("no new snapshot: %v", err)
			}
			written = info.ModTime()
			return nil
		})
	}
	o.Stop(syscall.SIGKILL, 0)
	o.gateway = run(t, l, "-c", o.file)
	if after := o.tuples(); !slices.Equal(after, before) || len(after) == 0 {
		t.Errorf("links before: %v\nand after: %v", before, after)
	}
	if _, err := session.Type("after", 10*time.Second); err != nil {
		t.Errorf("the session did not survive: %v", err)
	}
}

// What lies in the program's place is no pollux, or one that does not start: the old process goes on, and a right one takes over.
func TestRestartWithABrokenProgram(t *testing.T) {
	l := newLab(t, lab.Options{})
	const public = "203.0.113.1:5000"
	program := filepath.Join(l.Dir, "pollux")
	install := func(text []byte) {
		t.Helper()
		if err := os.WriteFile(program+".new", text, 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.Rename(program+".new", program); err != nil {
			t.Fatal(err)
		}
	}
	right, err := os.ReadFile(pollux(t))
	if err != nil {
		t.Fatal(err)
	}
	install(right)
	o := &operated{file: filepath.Join(l.Dir, "pollux.yaml"), ctx: limited(t, 90*time.Second)}
	o.write(t, 1, `alias: ["203.0.113.1"]`, "redirect_port: ["+published(public, 6000)+"]")
	p, err := l.StartGateway(program, "-c", o.file, "--idle", "adaptive")
	if err != nil {
		t.Fatal(err)
	}
	o.gateway = &gateway{Process: p, Client: control.NewClient(l.Socket()), t: t, l: l}
	pid := p.PID()
	t.Cleanup(func() {
		syscall.Kill(pid, syscall.SIGTERM)
		<-p.Done()
	})
	s := startStreams(t, l, public, 6000)
	before := o.tuples()
	for name, text := range map[string]string{
		"it ends at once": "#!/bin/sh\nexit 0\n", "it is no program": "no program", "it says something else": "#!/bin/sh\necho hello >&3\n",
	} {
		install([]byte(text))
		if out, err := o.do("restart"); err == nil || !strings.Contains(err.Error(), "restart: ") {
			t.Errorf("%s: %v %s", name, err, out)
		}
		s.flow()
	}
	if after := o.tuples(); !slices.Equal(after, before) {
		t.Errorf("links before: %v\nand after: %v", before, after)
	}
	install(right)
	if pid = o.restart().PID; pid == p.PID() {
		t.Error("nobody took over")
	}
	s.flow()
	s.stop()
}
