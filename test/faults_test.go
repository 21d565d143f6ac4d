package integration

import (
	"context"
	"flag"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"pollux/internal/control"
	"pollux/internal/lab"
)

var updateDocs = flag.Bool("update", false, "write what the commands say into docs/troubleshooting.md")

const troubleshooting = "../docs/troubleshooting.md"

// fault is something wrong in a lab, which show drops, explain and capture have to tell a person.
type fault struct {
	name    string
	args    []string // of the gateway
	config  string   // of the gateway, beside its ports; "" for none
	prepare func(t *testing.T, l *lab.Lab)
	send    func(ctx context.Context, l *lab.Lab) error // the flow that does not work, once; it is repeated
	explain string                                      // the packet
	reason  string
	causes  []string // words without which nobody could find the cause
	mend    func(t *testing.T, l *lab.Lab, g *gateway)
	works   string // what explain then ends with
}

// labPorts is the part of a configuration that says which device is which.
const labPorts = "ports: [{name: eth1, role: inside}, {name: eth0, role: outside}]\n"

const away = "198.51.100.100:53" // a service of the outside host

var faults = []fault{
	{
		name: "no-route-back",
		prepare: func(t *testing.T, l *lab.Lab) {
			if err := l.Inside[0].AddAddress("lo", netip.MustParsePrefix("10.9.9.9/32")); err != nil {
				t.Fatal(err)
			}
		},
		send:    datagram(inside, "10.9.9.9:5000", away, 100),
		explain: "udp 10.9.9.9:5000 " + away + " --in eth1",
		reason:  "reverse-path",
		causes:  []string{"10.9.9.9", "the route back to the source leaves by another port"},
		mend: func(t *testing.T, l *lab.Lab, g *gateway) {
			_, to, _ := net.ParseCIDR("10.9.9.0/24")
			if err := l.Gateway.Netlink().RouteAdd(&netlink.Route{Dst: to, Gw: l.Inside[0].Addr.AsSlice()}); err != nil {
				t.Fatal(err)
			}
		},
		works: "forward: leaves by eth0",
	}, {
		name:   "no-port",
		config: "nat: {alias: [203.0.113.1], port_range: 40000-40003}\n",
		send: func(ctx context.Context, l *lab.Lab) (err error) {
			for port := 5000; port < 5005 && err == nil; port++ { // the fifth is one too many
				err = datagram(inside, fmt.Sprintf("10.0.0.2:%d", port), away, 100)(ctx, l)
			}
			return err
		},
		explain: "udp 10.0.0.2:5004 " + away,
		reason:  "no-port",
		causes:  []string{"10.0.0.2:5004", "no alias port left"},
		mend: func(t *testing.T, l *lab.Lab, g *gateway) {
			text := strings.Replace(labPorts+"nat: {alias: [203.0.113.1], port_range: 40000-40003}\n", "40003", "40010", 1)
			if _, err := g.Reload(t.Context(), control.ReloadRequest{File: "more.yaml", Text: text}); err != nil {
				t.Fatal(err)
			}
		},
		works: "forward: leaves by eth0",
	}, {
		name:    "wrong-server",
		args:    []string{"--redirect-port", "tcp,203.0.113.1:443=10.0.0.99:443"},
		send:    connect,
		explain: "tcp 198.51.100.100:50000 203.0.113.1:443 syn",
		reason:  "no-neighbour",
		causes:  []string{"10.0.0.99"},
		mend: func(t *testing.T, l *lab.Lab, g *gateway) {
			if err := l.Inside[0].AddAddress("eth0", netip.MustParsePrefix("10.0.0.99/24")); err != nil {
				t.Fatal(err)
			}
		},
		works: "forward: leaves by eth1",
	}, {
		name: "small-mtu",
		prepare: func(t *testing.T, l *lab.Lab) {
			link, err := l.Gateway.Netlink().LinkByName(lab.OutsideDevice)
			if err == nil {
				err = l.Gateway.Netlink().LinkSetMTU(link, 1300)
			}
			if err != nil {
				t.Fatal(err)
			}
		},
		send:    datagram(inside, "10.0.0.2:5000", away, 1372),
		explain: "udp 10.0.0.2:5000 " + away + " len 1400 df",
		reason:  "mtu-exceeded",
		causes:  []string{"1300", "the sender gets ICMP 3/4"},
		mend: func(t *testing.T, l *lab.Lab, g *gateway) {
			link, err := l.Gateway.Netlink().LinkByName(lab.OutsideDevice)
			if err == nil {
				err = l.Gateway.Netlink().LinkSetMTU(link, 1500)
			}
			if err != nil {
				t.Fatal(err)
			}
		},
		works: "forward: leaves by eth0",
	}, {
		name: "filtered",
		send: func(ctx context.Context, l *lab.Lab) error {
			if err := datagram(inside, "10.0.0.2:5000", away, 100)(ctx, l); err != nil {
				return err
			}
			return datagram(outside, "198.51.100.150:53", "203.0.113.1:5000", 100)(ctx, l)
		},
		explain: "udp 198.51.100.150:53 203.0.113.1:5000",
		reason:  "filtered",
		causes:  []string{"198.51.100.150:53", "its filter does not admit this remote"},
		mend: func(t *testing.T, l *lab.Lab, g *gateway) {
			if err := datagram(inside, "10.0.0.2:5000", "198.51.100.150:53", 100)(t.Context(), l); err != nil {
				t.Fatal(err)
			}
		},
		works: "forward: leaves by eth1",
	},
}

func inside(l *lab.Lab) *lab.Host  { return l.Inside[0] }
func outside(l *lab.Lab) *lab.Host { return l.Outside[0] }

// datagram sends one from a fixed port, with DF set as path MTU discovery does, whatever ICMP has said.
func datagram(from func(*lab.Lab) *lab.Host, src, dst string, size int) func(context.Context, *lab.Lab) error {
	return func(ctx context.Context, l *lab.Lab) error {
		c, err := from(l).DialFrom(ctx, net.UDPAddrFromAddrPort(netip.MustParseAddrPort(src)), "udp4", dst)
		if err != nil {
			return err
		}
		defer c.Close()
		raw, err := c.(*net.UDPConn).SyscallConn()
		if err != nil {
			return err
		}
		if err := raw.Control(func(fd uintptr) {
			_ = unix.SetsockoptInt(int(fd), unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, unix.IP_PMTUDISC_PROBE) // any socket has it
		}); err != nil {
			return err
		}
		_, _ = c.Write(make([]byte, size)) // an ICMP error of the one before may be told here
		return nil
	}
}

// connect tries to reach the published port, from a fixed port of the outside host, for a moment.
func connect(ctx context.Context, l *lab.Lab) error {
	ctx, cancel := context.WithTimeout(ctx, 200*time.Millisecond)
	defer cancel()
	c, err := outside(l).DialFrom(ctx, &net.TCPAddr{IP: net.IPv4(198, 51, 100, 100), Port: 50000}, "tcp4", "203.0.113.1:443")
	if err == nil {
		c.Close()
	}
	return nil // that it fails is the fault
}

// TestTroubleshooting prepares each fault, runs the very commands of the document, and compares what they say with what stands there,
// numbers that change apart. Then it mends the fault and asks again.
func TestTroubleshooting(t *testing.T) {
	for _, f := range faults {
		t.Run(f.name, func(t *testing.T) { f.test(t) })
	}
}

func (f *fault) test(t *testing.T) {
	l := newLab(t, lab.Options{Routers: 1})
	if f.prepare != nil {
		f.prepare(t, l)
	}
	args := append([]string{"--limits-links", "10000"}, f.args...)
	if f.config != "" {
		path := filepath.Join(t.TempDir(), "pollux.yaml")
		if err := os.WriteFile(path, []byte(labPorts+f.config), 0o644); err != nil {
			t.Fatal(err)
		}
		args = append(args, "-c", path)
	}
	g := run(t, l, args...)
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error)
	go func() {
		var err error
		for err == nil && ctx.Err() == nil {
			err = f.send(ctx, l)
			time.Sleep(20 * time.Millisecond)
		}
		ended <- err
	}()
	defer func() {
		if stop(); t.Context().Err() == nil {
			if err := <-ended; err != nil && ctx.Err() == nil {
				t.Error(err)
			}
		}
	}()
	eventually(t, 20*time.Second, func() error {
		if g.drops(f.reason) == 0 {
			return fmt.Errorf("nothing is dropped as %s", f.reason)
		}
		return nil
	})
	bin := t.TempDir() // a pollux that finds this lab's socket
	script := fmt.Sprintf("#!/bin/sh\nexec %s \"$@\" --control %s\n", pollux(t), l.Socket())
	if err := os.WriteFile(filepath.Join(bin, "pollux"), []byte(script), 0o755); err != nil {
		t.Fatal(err)
	}
	shell := func(command string) string {
		cmd := exec.Command("sh", "-c", command)
		cmd.Env = append(os.Environ(), "PATH="+bin+":"+os.Getenv("PATH"))
		var errOut strings.Builder
		cmd.Stderr = &errOut
		out, err := cmd.Output()
		if err != nil && cmd.ProcessState.ExitCode() > 1 { // explain says 1 for what is not forwarded
			t.Errorf("%s: %v %s", command, err, &errOut)
		}
		return strings.TrimRight(string(out), "\n ")
	}
	commands := []string{
		"pollux show drops",
		"pollux explain " + f.explain,
		"pollux capture -w - --reason " + f.reason + " --count 1 | grep -ao 'dropped: [ -~]*'",
	}
	eventually(t, 20*time.Second, func() error { // a neighbour that fails is asked for again now and then
		var said []string
		for _, c := range commands {
			said = append(said, "$ "+c)
			for line := range strings.Lines(shell(c)) {
				said = append(said, strings.TrimRight(line, " \n"))
			}
		}
		text := strings.Join(said, "\n")
		for _, cause := range append(f.causes, "drop: "+f.reason, "dropped: "+f.reason) {
			if !strings.Contains(text, cause) {
				return fmt.Errorf("nothing says %q:\n%s", cause, text)
			}
		}
		return f.compare(t, said)
	})

	f.mend(t, l, g)
	eventually(t, 20*time.Second, func() error {
		if got := shell("pollux explain " + f.explain); !strings.Contains(got, f.works) {
			return fmt.Errorf("after the fault was mended: %s", got)
		}
		return nil
	})
	if err := g.Stop(syscall.SIGTERM, 10*time.Second); err != nil {
		t.Error(err)
	}
}

// compare holds the document's block of the fault against what was said.
func (f *fault) compare(t *testing.T, said []string) error {
	t.Helper()
	b, err := os.ReadFile(troubleshooting)
	if err != nil {
		t.Fatal(err)
	}
	begin := "<!-- fault " + f.name + " -->\n```console\n"
	before, rest, ok := strings.Cut(string(b), begin)
	block, after, ok2 := strings.Cut(rest, "\n```\n")
	if !ok || !ok2 {
		t.Fatalf("docs/troubleshooting.md has no block %q", begin)
	}
	if *updateDocs {
		if err := os.WriteFile(troubleshooting, []byte(before+begin+strings.Join(said, "\n")+"\n```\n"+after), 0o644); err != nil {
			t.Fatal(err)
		}
		return nil
	}
	var now []string
	for _, line := range said {
		now = append(now, steady(line))
	}
	for line := range strings.Lines(block) {
		if line = strings.TrimRight(line, "\n"); !slices.Contains(now, steady(line)) {
			return fmt.Errorf("docs/troubleshooting.md says\n  %s\nand that is said no more (go test ./test -run TestTroubleshooting -update):\n%s", line, strings.Join(said, "\n"))
		}
	}
	return nil
}

var (
	changing = regexp.MustCompile(`\b\d+(\.\d+)?(ns|µs|ms|s)?(\s|$)|([0-9a-f]{2}:){5}[0-9a-f]{2}`)
	blanks   = regexp.MustCompile(`\s+`)
)

// steady is a line without counts, times and MAC addresses.
func steady(line string) string {
	return strings.TrimSpace(blanks.ReplaceAllString(changing.ReplaceAllString(line, "# "), " "))
}
