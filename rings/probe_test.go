package rings

import (
	"strings"
	"testing"
)

func TestProbeKernelRefusesOldKernels(t *testing.T) {
	for _, c := range []struct {
		release string
		ok      bool
	}{
		{"6.1.0-13-amd64", true}, {"6.18.44-fc-v782", true}, {"7.0", true}, {"10.0.1", true},
		{"6.0.19", false}, {"5.15.0", false}, {"4.19", false}, {"", false}, {"junk", false}, {"6", false}, {"6.", false},
	} {
		f := probeRelease(c.release)
		if f.OK != c.ok || !f.Required || (f.Remedy == "") != c.ok || !strings.Contains(f.Found, c.release) {
			t.Errorf("%q: %+v, want ok %v", c.release, f, c.ok)
		}
	}
	if f := ProbeKernel("5.4.0")[0]; f.OK || f.Name != "kernel" {
		t.Errorf("an injected version is not looked at: %+v", f)
	}
}

func TestProbeKernelFindsWhatTheTestsUse(t *testing.T) {
	ownNamespace(t)
	for _, f := range ProbeKernel("") {
		if f.Required && !f.OK {
			t.Errorf("%+v, but the other tests run here", f)
		}
		if f.Found == "" || !f.OK && f.Remedy == "" || strings.Contains(f.Found+f.Remedy, "\n") {
			t.Errorf("%+v does not say what and how, in one line", f)
		}
	}
}

func TestProbeDevice(t *testing.T) {
	ownNamespace(t)
	a, _ := veth(t, "a0", "a1", 3)
	d, err := ProbeDevice("a0")
	if err != nil {
		t.Fatal(err)
	}
	if d.Index != a || d.Driver != "veth" || d.Kind != "veth" || d.Queues != 3 || d.MTU != 1500 || !d.Up || !d.Carrier ||
		d.Program != "" || d.MAC.String() != macOf(t, a).String() {
		t.Errorf("%+v", d)
	}
	if !d.Native() || d.ZeroCopy() || d.Told && d.Features&XDPBasic == 0 {
		t.Errorf("features %#x, told %v: a veth runs XDP and has no zero-copy", d.Features, d.Told)
	}
	lo, err := ProbeDevice("lo")
	if err != nil || lo.Native() == lo.Told {
		t.Errorf("the loopback device can't run XDP: %+v %v", lo, err)
	}
	if _, err := ProbeDevice("nope"); err == nil || !strings.Contains(err.Error(), "nope") || !strings.Contains(err.Error(), "ip link") {
		t.Errorf("no such device: %v", err)
	}
}
