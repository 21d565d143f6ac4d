package integration

import (
	"os"
	"slices"
	"syscall"
	"testing"
	"time"

	"pollux/internal/lab"
)

// TestRestartGap measures for how long nobody forwards when a gateway with a million links is replaced, ten times:
//
//	POLLUX_MEASURE=1 go test ./test -run RestartGap -v
func TestRestartGap(t *testing.T) {
	if os.Getenv("POLLUX_MEASURE") == "" {
		t.Skip("a measurement: it needs the machine alone, and POLLUX_MEASURE=1")
	}
	l := newLab(t, lab.Options{})
	in, out := l.Inside[0], l.Outside[0]
	const public, links = "203.0.113.1:5000", 1_000_000
	o := operate(t, l, 1, `alias: ["203.0.113.1", "203.0.113.128/26"]`, "redirect_port: ["+published(public, 6000)+"]", "timeouts: {udp: 1h}")
	text, err := os.ReadFile(o.file)
	if err != nil {
		t.Fatal(err)
	}
	o.Stop(syscall.SIGTERM, 10*time.Second)
	if err := os.WriteFile(o.file, append(text, []byte("limits: {links: 1200000}\n")...), 0o644); err != nil {
		t.Fatal(err)
	}
	o.gateway = run(t, l, "-c", o.file)
	pid := o.PID()
	defer func() { syscall.Kill(pid, syscall.SIGTERM); <-o.Done() }()
	quiet, err := out.ListenPacket("udp4", at(out.Addr, 9)) // so that nobody is told by ICMP
	if err != nil {
		t.Fatal(err)
	}
	defer quiet.Close()
	have := uint64(0)
	for range 4 { // the generator is faster than a veth at times
		mustRun(t, o.ctx, in.Namespace, pollux(t), "pktgen", "--dev", in.Device, "--to-mac", deviceMAC(t, l.Gateway, lab.InsideDevice),
			"--src", "10.0.0.10-10.0.0.44", "--dst", out.Addr.String(), "--sport", "1024-33000", "--flows", "1110000", "--count", "1110000", "--rate", "150000")
		if have = o.workers()[0].Links; have >= links {
			break
		}
	}
	t.Logf("%d links", have)
	if have < links {
		t.Fatalf("%d links were made: %s", have, o.must("show", "drops"))
	}
	s := startStreams(t, l, public, 6000)
	var gaps []time.Duration
	for range 10 {
		r := o.restart()
		pid = r.PID
		gaps = append(gaps, r.Gap)
		s.flow()
	}
	slices.Sort(gaps)
	t.Logf("nobody forwarded for %v: median %v, longest %v", gaps, lab.Median(gaps), gaps[len(gaps)-1])
	if now := o.workers()[0].Links; now < have {
		t.Errorf("%d links before, %d after", have, now)
	}
	s.stop()
}

// deviceMAC is the Ethernet address of a device.
func deviceMAC(t *testing.T, n *lab.Namespace, device string) string {
	t.Helper()
	link, err := n.Netlink().LinkByName(device)
	if err != nil {
		t.Fatal(err)
	}
	return link.Attrs().HardwareAddr.String()
}
