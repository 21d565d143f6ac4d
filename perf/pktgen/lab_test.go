package pktgen

import (
	"fmt"
	"net"
	"testing"
	"time"

	"pollux/internal/lab"
)

// run sends from the inside host to the gateway's inside device, where a sink listens.
func run(t *testing.T, l *lab.Lab, o Options, s SinkOptions) (Report, Arrivals) {
	t.Helper()
	var sink Sink
	err := l.Gateway.Do(func() (err error) {
		s.Device = lab.InsideDevice
		sink, err = OpenSink(s)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	defer sink.Close()
	var r Report
	err = l.Inside[0].Do(func() error {
		o.Device = l.Inside[0].Device
		g, err := NewGenerator(o)
		if err != nil {
			return err
		}
		defer g.Close()
		r, err = g.Run()
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	for end := time.Now().Add(2 * time.Second); sink.Received() < r.Sent && time.Now().Before(end); {
		time.Sleep(5 * time.Millisecond)
	}
	a, err := sink.Arrivals()
	if err != nil {
		t.Fatal(err)
	}
	return r, a
}

func gatewayMAC(t *testing.T, l *lab.Lab) (mac net.HardwareAddr) {
	t.Helper()
	err := l.Gateway.Do(func() error {
		dev, err := net.InterfaceByName(lab.InsideDevice)
		if err == nil {
			mac = dev.HardwareAddr
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return mac
}

func TestBackendsAgree(t *testing.T) {
	lab.Require(t)
	l, err := lab.New(lab.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	mac := gatewayMAC(t, l)
	const packets, rate = 240, 2400 // no more than a device's queue holds, if the sink has to wait for its processor
	for _, gen := range []Backend{AFXDP, Kernel} {
		for _, sink := range []Backend{AFXDP, Kernel} {
			if gen == Kernel && sink == Kernel {
				continue // a veth takes redirected frames only where the other end has XDP or GRO; the perf lab's have
			}
			for _, p := range []Protocol{UDP, TCPSYN, ICMP} {
				for _, v6 := range []bool{false, true} {
					t.Run(fmt.Sprintf("%v to %v, %v, IPv6 %v", gen, sink, p, v6), func(t *testing.T) {
						f := testFlows(t, v6, 100)
						o := Options{DstMAC: mac, Protocol: p, Sizes: Sizes{94, 700, 1400}, Flows: *f, Rate: rate, Count: packets, Backend: gen}
						r, a := run(t, l, o, SinkOptions{Backend: sink})
						if r.Sent != packets || a.Packets != packets || a.Lost != 0 || a.Reordered != 0 || a.Duplicates != 0 || a.Streams != 1 {
							t.Errorf("sent %+v, arrived %+v; want %d in order", r, a, packets)
						}
						if a.Bytes != r.Bytes || a.Bytes != packets/3*(94+700+1400) {
							t.Errorf("%d bytes sent, %d arrived", r.Bytes, a.Bytes)
						}
						if a.BadSum != 0 || sink == AFXDP && a.Looked == 0 {
							t.Errorf("%d of %d checksums are wrong", a.BadSum, a.Looked)
						}
						if a.Latency.Count != packets || a.Latency.P50 <= 0 || a.Latency.P50 > int64(time.Second) || a.Latency.P50 > a.Latency.P99 {
							t.Errorf("latency %+v", a.Latency)
						}
						if r.PPS > 1.05*rate {
							t.Errorf("%d packets at %d/s took %.3f s", packets, rate, r.Seconds)
						}
					})
				}
			}
		}
	}
}

// However late the machine lets the generator begin and however long its last system call goes on, the time that it tells is that
// of the packets, and no packet is sent after it.
func TestKernelTellsTheTimeOfThePackets(t *testing.T) {
	lab.Require(t)
	l, err := lab.New(lab.Options{})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	const d, rate = 200 * time.Millisecond, 10000
	for _, r := range []float64{rate, 0} {
		o := Options{DstMAC: gatewayMAC(t, l), Sizes: Sizes{64}, Flows: *testFlows(t, false, 100), Rate: r, Duration: d, Backend: Kernel}
		got, _ := run(t, l, o, SinkOptions{Backend: AFXDP})
		if got.Sent == 0 || got.Seconds <= 0 || got.Seconds > (d+2*time.Second/rate).Seconds() {
			t.Errorf("rate %v: %+v, want at most %v", r, got, d)
		}
		if r > 0 && got.Sent > uint64(d.Seconds()*rate)+1 {
			t.Errorf("%d packets in %v at %d/s", got.Sent, d, rate)
		}
	}
}
