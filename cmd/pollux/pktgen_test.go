package main

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"pollux/internal/lab"
	"pollux/perf/pktgen"
)

// Every flag does what it says, judged by a sink that outlives the runs, and the bytes on the way.
func TestPktgen(t *testing.T) {
	l := newLab(t)
	in := l.Inside[0]
	dev, err := l.Gateway.Netlink().LinkByName(lab.InsideDevice)
	if err != nil {
		t.Fatal(err)
	}
	sink, err := l.Gateway.Start(binary, "pktgen", "sink", "--dev", lab.InsideDevice, "--count", "540", "--seconds", "60", "--json")
	if err != nil {
		t.Fatal(err)
	}
	if err := sink.WaitFor("ready", 15*time.Second); err != nil {
		t.Fatal(err)
	}
	const packets = 180 // no more than a veth's queue holds
	sent := uint64(0)
	for i, flags := range []string{
		"--src 10.0.0.0/24 --dst 198.51.100.2 --size imix --proto udp --flows 1000 --order random --new-flows 1000",
		"--src fd00::/120 --dst fd00:1::2 --size 100 --proto tcp-syn --flows 0 --dport 1-65535",
		"--src 10.0.0.1-10.0.0.9 --dst 198.51.100.0/28 --size 128 --proto icmp --flows 0",
	} {
		args := append(strings.Fields(flags), "--dev", in.Device, "--to-mac", dev.Attrs().HardwareAddr.String(), "--count", "180", "--rate", "3000", "--run", string(rune('1'+i)), "--json")
		p, err := in.Start(binary, append([]string{"pktgen"}, args...)...)
		if err != nil {
			t.Fatal(err)
		}
		if status, err := p.Wait(30 * time.Second); err != nil || status != 0 {
			t.Fatalf("%s: status %d, %v: %s", flags, status, err, p.Output())
		}
		var r struct{ Sent pktgen.Report }
		if err := json.Unmarshal([]byte(p.Output()), &r); err != nil {
			t.Fatalf("%v: %s", err, p.Output())
		}
		if r.Sent.Sent != packets || r.Sent.PPS > 3300 {
			t.Errorf("%s: %+v", flags, r.Sent)
		}
		sent += r.Sent.Bytes
	}
	if status, err := sink.Wait(30 * time.Second); err != nil || status != 0 {
		t.Fatalf("sink: status %d, %v: %s", status, err, sink.Output())
	}
	text := sink.Output()
	var r struct{ Arrived pktgen.Arrivals }
	if err := json.Unmarshal([]byte(text[strings.Index(text, "{"):]), &r); err != nil {
		t.Fatalf("%v: %s", err, text)
	}
	a := r.Arrived
	if a.Packets != 3*packets || a.Bytes != sent || a.Streams != 3 || a.Lost != 0 || a.Reordered != 0 || a.Duplicates != 0 || a.BadSum != 0 || a.Looked == 0 || a.Latency.Count != 3*packets {
		t.Errorf("%+v, want %d packets of 3 streams and %d bytes", a, 3*packets, sent)
	}
}

func TestPktgenRefuses(t *testing.T) {
	for args, want := range map[string]string{
		"--count 3": "--dev: needed",
		"--dev lo --to-mac 02:00:00:00:00:01 --src 10.0.0.1 --dst 10.0.0.2":                            "give a duration or a number of packets",
		"--dev lo --to-mac 02:00:00:00:00:01 --src 10.0.0.1 --dst 10.0.0.2 --count 1 --size 63":        `--size: "63" is no packet size`,
		"--dev lo --to-mac 02:00:00:00:00:01 --src 10.0.0.1 --dst fd00::1 --count 1":                   "different families",
		"--dev lo --to-mac 02:00:00:00:00:01 --src 10.0.0.1 --dst 10.0.0.2 --count 1 --flows 65":       "65 flows are asked for, but the ranges hold 64",
		"--dev lo --to-mac 02:00:00:00:00:01 --src 10.0.0.1 --dst 10.0.0.2 --count 1 --rate -1":        "a rate of -1 packets a second",
		"--dev lo --to-mac 02:00:00:00:00:01 --src 10.0.0.1 --dst 10.0.0.2 --count 1 --run 256":        "--run: is 256; allowed: a number from 0 to 255",
		"--dev lo --to-mac 02:00:00:00:00:01 --src 10.0.0.1 --dst 10.0.0.2 --count 1 --proto sctp":     `"sctp" is no protocol`,
		"--dev lo --to-mac 02:00:00:00:00:01 --src 10.0.0.1 --dst 10.0.0.2 --count 1 --order backward": `--order: is "backward"`,
		"sink --dev lo": "give --seconds or --count",
	} {
		if r := pollux(t, append([]string{"pktgen"}, strings.Fields(args)...)...); r.status != statusUsage || !strings.Contains(r.errOut, want) || strings.Count(r.errOut, "\n") != 1 {
			t.Errorf("%s: %+v", args, r)
		}
	}
}
