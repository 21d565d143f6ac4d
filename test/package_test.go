package integration

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestPackage builds the Debian package, looks at it as tools of Debian's do, and installs, removes and purges it on a copy of this
// machine's file system that is thrown away.
func TestPackage(t *testing.T) {
	needs(t, "dpkg-deb")
	needs(t, "gzip")
	const version = "0.0+test"
	out, err := exec.Command("make", "-C", "..", "deb", "VERSION="+version).CombinedOutput()
	if err != nil {
		t.Fatalf("make deb: %v\n%s", err, out)
	}
	found, _ := filepath.Glob("../bin/pollux_" + version + "_*.deb")
	if len(found) != 1 {
		t.Fatalf("make deb made %q", found)
	}
	deb, _ := filepath.Abs(found[0])
	defer os.Remove(deb)
	ask := func(program string, args ...string) string {
		t.Helper()
		out, err := exec.Command(program, args...).CombinedOutput()
		if err != nil {
			t.Fatalf("%s %q: %v\n%s", program, args, err, out)
		}
		return string(out)
	}
	if info := ask("dpkg-deb", "--info", deb); !strings.Contains(info, "Version: "+version) || !strings.Contains(info, "conffiles") {
		t.Error(info)
	}
	contents := ask("dpkg-deb", "--contents", deb)
	for _, want := range []string{"-rwxr-xr-x root/root", "./usr/bin/pollux\n", "./lib/systemd/system/pollux.service\n", "./etc/pollux/pollux.yaml\n", "./usr/share/man/man8/pollux.8.gz\n",
		"./usr/share/bash-completion/completions/pollux\n", "./usr/share/zsh/vendor-completions/_pollux\n", "./usr/share/fish/vendor_completions.d/pollux.fish\n",
		"./usr/share/doc/pollux/docs/operations.md\n", "./usr/share/doc/pollux/examples/grafana-dashboard.json\n", "./usr/share/doc/pollux/examples/prometheus-alerts.yaml\n"} {
		if !strings.Contains(contents, want) {
			t.Errorf("the package lacks %q:\n%s", want, contents)
		}
	}
	dir := t.TempDir()
	ask("dpkg-deb", "--control", deb, dir)
	if b, err := os.ReadFile(filepath.Join(dir, "conffiles")); err != nil || strings.TrimSpace(string(b)) != "/etc/pollux/pollux.yaml" {
		t.Errorf("configuration files: %q %v", b, err)
	}
	for _, script := range []string{"postinst", "prerm", "postrm"} {
		b, err := os.ReadFile(filepath.Join(dir, script))
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(b), "systemctl enable") || strings.Contains(string(b), "systemctl start") || strings.Contains(string(b), "systemctl restart --") {
			t.Errorf("%s starts something:\n%s", script, b)
		}
		if _, err := exec.LookPath("shellcheck"); err == nil {
			ask("shellcheck", filepath.Join(dir, script))
		}
	}
	if _, err := exec.LookPath("lintian"); err == nil {
		// A Go program is linked statically; systemctl is called by hand and only where systemd runs; there is no licence yet, and no
		// maintainer but whoever builds it.
		ask("lintian", "--allow-root", "--fail-on", "error", "--suppress-tags",
			"statically-linked-binary,no-copyright-file,bogus-mail-host,bogus-mail-host-in-debian-changelog,root-in-contact", deb)
	}
	if os.Geteuid() != 0 {
		if os.Getenv("POLLUX_REQUIRE_LAB") == "1" {
			t.Fatal("POLLUX_REQUIRE_LAB=1, and not root: the package can't be installed")
		}
		t.Skip("installing the package needs root")
	}
	const install = `set -e
mount -t tmpfs none "$1"; mkdir "$1/upper" "$1/work" "$1/root"
mount -t overlay none -o "lowerdir=/,upperdir=$1/upper,workdir=$1/work" "$1/root"
cp "$2" "$1/root/pollux.deb"
exec chroot "$1/root" sh -ec '
  dpkg --force-depends -i /pollux.deb
  id pollux; test ! -e /run/systemd/system
  test -z "$(dpkg --verify pollux)"
  pollux check -c /etc/pollux/pollux.yaml
  echo "# changed" >> /etc/pollux/pollux.yaml
  dpkg --force-depends --force-confold -i /pollux.deb; grep "# changed" /etc/pollux/pollux.yaml
  dpkg -r pollux; test ! -e /usr/bin/pollux; test -e /etc/pollux/pollux.yaml
  dpkg -P pollux; test ! -e /etc/pollux
  echo all-done'`
	if got := ask("unshare", "--mount", "sh", "-c", install, "install", dir, deb); !strings.Contains(got, "all-done") {
		t.Error(got)
	}
}
