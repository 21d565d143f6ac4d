package config

import (
	"strings"
	"testing"
)

const reloadBase = `ports: [{name: a, role: inside}, {name: b, role: outside}]
nat:
  alias: ["203.0.113.1", "port"]
  redirect_port: [{proto: tcp, public: "203.0.113.1:80", local: "10.0.0.1:80"}]
`

func TestDiff(t *testing.T) {
	base := mustParse(t, reloadBase, Run)
	if d := Diff(base, mustParse(t, reloadBase, Run)); len(d) != 0 {
		t.Errorf("the same twice differs: %v", d)
	}
	next := mustParse(t, strings.Replace(reloadBase, `"203.0.113.1", "port"`, `"port", "203.0.113.8"`, 1)+
		"  timeouts: {udp: 10s}\nlimits: {links: 7}\nrouting: {rtcache: false, ipv6: forward}\n", Run)
	want := []Change{
		{"limits.links", "1000000", "7", true},
		{"nat.alias", `["203.0.113.1"]`, `["203.0.113.8"]`, false},
		{"nat.timeouts.udp", "300s", "10s", false},
		{"routing.rtcache", "true", "false", false},
		{"routing.ipv6", "kernel", "forward", true},
	}
	got := Diff(base, next)
	if len(got) != len(want) {
		t.Fatalf("%+v", got)
	}
	for i := range want {
		if got[i] != want[i] {
			t.Errorf("%+v, want %+v", got[i], want[i])
		}
	}
	turned := mustParse(t, strings.Replace(reloadBase, `"203.0.113.1", "port"`, `"port", "203.0.113.1"`, 1), Run)
	if d := Diff(base, turned); len(d) != 1 || d[0].Old != `["203.0.113.1", "port"]` || d[0].New != `["port", "203.0.113.1"]` {
		t.Errorf("another order: %+v", d)
	}
}

func TestWithRedirect(t *testing.T) {
	base := mustParse(t, reloadBase, Run)
	text := base.YAML()
	c := base
	for _, r := range []Redirect{
		{"port", "udp,port:5000-5001=10.0.0.2:6000-6001,remote=192.0.2.1:9"},
		{"port", "tcp,203.0.113.1:81=10.0.0.2:80+10.0.0.3:80,pick=source-hash"},
		{"addr", "203.0.113.9=10.0.0.9,inbound=false"},
		{"proto", "47,203.0.113.1=10.0.0.7,remote=192.0.2.1"},
	} {
		next, err := c.WithRedirect(r)
		if err != nil {
			t.Fatal(r, err)
		}
		found := false
		for _, x := range next.Redirects() {
			found = found || x == r
		}
		if !found {
			t.Errorf("%v is not among %v", r, next.Redirects())
		}
		again := mustParse(t, next.YAML(), Run)
		if d := Diff(next, again); len(d) > 0 {
			t.Errorf("printed and read again: %v", d)
		}
		c = next
	}
	if base.YAML() != text {
		t.Error("the configuration that it was added to has changed")
	}
	for _, bad := range []struct {
		r    Redirect
		want string
	}{
		{Redirect{"port", "tcp,203.0.113.1:80=10.0.0.2:80"}, "published at"},
		{Redirect{"port", "tcp,203.0.113.1:82=203.0.113.1:80"}, "alias address"},
		{Redirect{"port", "tcp,203.0.113.1:82"}, "not understood"},
		{Redirect{"port", ""}, "not understood"},
		{Redirect{"addr", "x=10.0.0.1"}, "IPv4"},
		{Redirect{"proto", "6,203.0.113.1=10.0.0.1"}, "redirect_port"},
		{Redirect{"range", "x"}, "no kind"},
	} {
		if _, err := c.WithRedirect(bad.r); err == nil || !strings.Contains(err.Error(), bad.want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%v: %v, want %q", bad.r, err, bad.want)
		}
	}
}

func TestPublic(t *testing.T) {
	for r, want := range map[Redirect]string{
		{"port", "tcp,203.0.113.1:80=10.0.0.1:80+10.0.0.2:80,remote=192.0.2.1,pick=rotate"}: "tcp,203.0.113.1:80,remote=192.0.2.1",
		{"port", "tcp,203.0.113.1:80,remote=192.0.2.1"}:                                     "tcp,203.0.113.1:80,remote=192.0.2.1",
		{"port", "tcp,203.0.113.1:80"}:                                                      "tcp,203.0.113.1:80",
		{"addr", "203.0.113.9=10.0.0.9,inbound=false"}:                                      "203.0.113.9",
		{"proto", "47,203.0.113.1=10.0.0.7"}:                                                "47,203.0.113.1",
	} {
		if got := r.Public(); got != want {
			t.Errorf("%v: %q, want %q", r, got, want)
		}
	}
}
