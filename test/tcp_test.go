package integration

import (
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"strconv"
	"sync"
	"testing"
	"time"
	"unsafe"

	"golang.org/x/sys/unix"

	"pollux/internal/lab"
)

// volume is how much a bulk transfer moves each way.
func volume() int64 {
	if testing.Short() {
		return 100 << 20
	}
	return 1 << 30
}

// txChecksumOffload reports whether a device leaves checksums to the hardware, which a veth then never computes.
func txChecksumOffload(t *testing.T, n *lab.Namespace, device string) bool {
	t.Helper()
	value := struct{ cmd, data uint32 }{cmd: unix.ETHTOOL_GTXCSUM}
	err := n.Do(func() error {
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		var ifr struct {
			name [unix.IFNAMSIZ]byte
			data unsafe.Pointer
			_    [16]byte
		}
		copy(ifr.name[:], device)
		ifr.data = unsafe.Pointer(&value)
		if _, _, errno := unix.Syscall(unix.SYS_IOCTL, uintptr(fd), unix.SIOCETHTOOL, uintptr(unsafe.Pointer(&ifr))); errno != 0 {
			return errno
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return value.data == 1
}

// Hosts behind a veth send TCP with half-made checksums, as containers do. Both ways at once, hashes compared.
func TestBulkTCPWithChecksumOffloadOn(t *testing.T) {
	l := newLab(t, lab.Options{Routers: 1})
	run(t, l)
	sniff(t, l)
	in, out := l.Inside[0], l.Outside[0]
	for _, h := range []*lab.Host{in, out} {
		if !txChecksumOffload(t, h.Namespace, h.Device) {
			t.Errorf("transmit checksum offload is off at %s: this test would prove nothing", h.Name)
		}
	}
	web, err := lab.ServeFiles(out.Namespace, at(out.Addr, 80))
	if err != nil {
		t.Fatal(err)
	}
	defer web.Close()
	ctx := limited(t, 5*time.Minute)
	var both sync.WaitGroup
	both.Go(func() {
		got, err := lab.Download(ctx, in.Namespace, web.Addr.String(), volume())
		if err != nil {
			t.Errorf("download: %v", err)
		}
		t.Logf("download: %d bytes, %.0f Mbit/s", got.Bytes, got.Mbps())
	})
	both.Go(func() {
		got, err := lab.Upload(ctx, in.Namespace, web.Addr.String(), volume())
		if err != nil {
			t.Errorf("upload: %v", err)
		}
		t.Logf("upload: %d bytes, %.0f Mbit/s", got.Bytes, got.Mbps())
	})
	both.Wait()
}

// seconds is how long iperf3 runs; POLLUX_IPERF_SECONDS asks for more.
func seconds() int {
	if s, err := strconv.Atoi(os.Getenv("POLLUX_IPERF_SECONDS")); err == nil && s > 0 {
		return s
	}
	if testing.Short() {
		return 2
	}
	return 8
}

func TestIperf3EightStreamsBothWays(t *testing.T) {
	l := newLab(t, lab.Options{})
	run(t, l)
	sniff(t, l)
	in, out := l.Inside[0], l.Outside[0]
	server, err := out.Start("iperf3", "--server", "--one-off", "--forceflush", "--bind", out.Addr.String())
	if err != nil {
		t.Fatalf("%v (make deps installs it)", err)
	}
	if err := server.WaitFor("listening", 5*time.Second); err != nil {
		t.Fatal(err)
	}
	ctx := limited(t, time.Duration(seconds()+30)*time.Second)
	report := mustRun(t, ctx, in.Namespace, "iperf3", "--client", out.Addr.String(), "--bidir", "--parallel", "8", "--time", strconv.Itoa(seconds()), "--json")
	var r struct {
		Error string
		End   struct {
			Streams []struct{ Receiver struct{ Bytes float64 } }
			Sum     struct{ Seconds, Bytes float64 } `json:"sum_received"`
			Back    struct{ Seconds, Bytes float64 } `json:"sum_received_bidir_reverse"`
		}
	}
	if err := json.Unmarshal([]byte(report), &r); err != nil || r.Error != "" {
		t.Fatalf("iperf3: %v %s", err, r.Error)
	}
	t.Logf("out %.0f Mbit/s, in %.0f Mbit/s", r.End.Sum.Bytes*8/r.End.Sum.Seconds/1e6, r.End.Back.Bytes*8/r.End.Back.Seconds/1e6)
	if len(r.End.Streams) != 16 {
		t.Errorf("%d streams reported, want 16", len(r.End.Streams))
	}
	for i, s := range r.End.Streams {
		if s.Receiver.Bytes == 0 {
			t.Errorf("stream %d moved nothing", i)
		}
	}
}

// In passive mode an FTP server names a port of its own choice and the client opens a second connection to it.
func TestSecondConnectionToAPortTheServerNames(t *testing.T) {
	l := newLab(t, lab.Options{})
	run(t, l)
	sniff(t, l)
	in, out := l.Inside[0], l.Outside[0]
	const file = "226 what the data connection carries\r\n"
	server, err := lab.ServeTCP(out.Namespace, at(out.Addr, 21), func(c net.Conn) {
		data, err := out.Listen("tcp4", at(out.Addr, 0))
		if err != nil {
			return
		}
		defer data.Close()
		_, port, _ := net.SplitHostPort(data.Addr().String())
		fmt.Fprintf(c, "229 Entering Extended Passive Mode (|||%s|)\r\n", port)
		d, err := data.Accept()
		if err != nil {
			return
		}
		io.WriteString(d, file)
		d.Close()
		io.Copy(io.Discard, c)
	})
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	ctx := limited(t, 10*time.Second)
	c, err := in.Dial(ctx, "tcp4", at(out.Addr, 21))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(5 * time.Second))
	var port uint16
	if _, err := fmt.Fscanf(c, "229 Entering Extended Passive Mode (|||%d|)\r\n", &port); err != nil {
		t.Fatal(err)
	}
	d, err := in.Dial(ctx, "tcp4", at(out.Addr, port))
	if err != nil {
		t.Fatal(err)
	}
	defer d.Close()
	d.SetDeadline(time.Now().Add(5 * time.Second))
	if b, err := io.ReadAll(d); err != nil || string(b) != file {
		t.Errorf("the data connection carried %q, %v", b, err)
	}
}

// A published port answers to outside and, by hairpin, to another inside host; each server sees whom it should.
func TestPublishedPortFromBothSides(t *testing.T) {
	l := newLab(t, lab.Options{InsideHosts: 2, Routers: 1})
	in, other, out := l.Inside[0], l.Inside[1], l.Outside[0]
	run(t, l, "--redirect-port", fmt.Sprintf("tcp,%s=%s", at(lab.GatewayOutside, 443), at(in.Addr, 8443)))
	sniff(t, l)
	server, err := lab.ServeTCP(in.Namespace, at(in.Addr, 8443), lab.Tell("published"))
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	for _, c := range []struct {
		from *lab.Host
		seen netip.Addr
	}{{out, out.Addr}, {other, lab.GatewayOutside}} {
		name, seen, err := lab.Ask(limited(t, 10*time.Second), c.from.Namespace, at(lab.GatewayOutside, 443))
		if err != nil || name != "published" || seen.Addr() != c.seen {
			t.Errorf("from %s: %q answers and sees %s (want %s), %v", c.from.Name, name, seen, c.seen, err)
		}
	}
	// What is not published is not let in.
	if _, _, err := lab.Ask(limited(t, 500*time.Millisecond), out.Namespace, at(in.Addr, 8443)); err == nil {
		t.Error("the inside address itself is reachable from outside")
	}
}
