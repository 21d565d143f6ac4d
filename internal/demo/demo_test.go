package demo

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"pollux/internal/lab"
	"pollux/pmd"
)

// drive runs the traffic with the kernel's own NAT in the gateway, or with none: the demo's checks must tell the two
// apart whoever translates.
func drive(t *testing.T, translate bool) *Report {
	lab.Require(t)
	l, err := lab.New(lab.Options{Routers: 1})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.Close)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	if err := l.Gateway.Sysctl("net.ipv4.ip_forward", "1"); err != nil {
		t.Fatal(err)
	}
	d := &driver{lab: l, report: &Report{Held: true},
		public: netip.AddrPortFrom(lab.GatewayOutside, publishedPort), published: netip.AddrPortFrom(l.Inside[0].Addr, 80)}
	if translate {
		rules := fmt.Sprintf(`table ip nat {
 chain post { type nat hook postrouting priority 100; oifname "eth0" masquerade; }
 chain pre { type nat hook prerouting priority -100; iifname "eth0" tcp dport %d dnat to %s; }
}`, publishedPort, d.published)
		if out, err := l.Gateway.Run(ctx, "nft", rules); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	} else {
		ctx, cancel = context.WithTimeout(ctx, 2*time.Second)
		defer cancel()
	}
	if err := d.traffic(ctx); err != nil && translate {
		t.Fatal(err)
	}
	return d.report
}

func TestTrafficHoldsBehindANAT(t *testing.T) {
	r := drive(t, true)
	for _, c := range r.Checks {
		if !c.Held {
			t.Errorf("%s: %s", c.Name, c.Detail)
		}
	}
	if len(r.Checks) != 6 || !r.Held || r.Outside.Foreign != 0 || r.Outside.FromAlias == 0 {
		t.Errorf("report: %+v", r)
	}
}

func TestTrafficFailsWithoutANAT(t *testing.T) {
	if r := drive(t, false); r.Held {
		t.Errorf("everything held without a NAT: %+v", r.Checks)
	}
}

func TestReportSaysWhatFailed(t *testing.T) {
	var steps bytes.Buffer
	d := &driver{report: &Report{Held: true}, step: func(c Check) { PrintCheck(&steps, c) }}
	d.check("ping", nil, "5 of 5")
	d.check("download", fmt.Errorf("cut\noff"), "unused")
	d.report.Workers = []pmd.WorkerStats{{Worker: 0, Translated: 7}}
	d.report.Drops = []pmd.DropStats{{Name: "no-port", Count: 3, Help: "none left"}, {Name: "held"}}
	d.report.Links = LinkTable{Count: 2, ByProto: map[string]int{"udp": 1, "tcp": 1}}
	var out bytes.Buffer
	d.report.Print(&out)
	for _, want := range []string{"ok    ping", "FAIL  download        cut off"} {
		if !strings.Contains(steps.String(), want) {
			t.Errorf("steps lack %q:\n%s", want, &steps)
		}
	}
	for _, want := range []string{"2 links (1 tcp, 1 udp)", "no-port", "none left", "NOT all of it held: 1 of 2 checks failed."} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("report lacks %q:\n%s", want, &out)
		}
	}
	if strings.Contains(out.String(), "held  ") {
		t.Errorf("a reason that never occurred is listed:\n%s", &out)
	}
	b, err := json.Marshal(d.report)
	if err != nil || !strings.Contains(string(b), `"held":false`) {
		t.Errorf("JSON: %s, %v", b, err)
	}
}
