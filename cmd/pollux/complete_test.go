package main

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"pollux/internal/reason"
)

// completed asks as the shells' scripts do.
func completed(t *testing.T, words ...string) []string {
	t.Helper()
	var out, errOut bytes.Buffer
	if status := start(append([]string{"pollux", completeName}, words...), &out, &errOut); status != 0 || errOut.Len() > 0 {
		t.Fatalf("%q: %d %s", words, status, &errOut)
	}
	var list []string
	for line := range strings.Lines(out.String()) {
		word, _, _ := strings.Cut(strings.TrimSuffix(line, "\n"), "\t")
		list = append(list, word)
	}
	return list
}

func TestComplete(t *testing.T) {
	for _, c := range []struct {
		words  string
		want   []string // all of these
		unwant []string // none of these
	}{
		{"", []string{"run", "show", "completion"}, []string{completeName, "--control"}},
		{"show ", []string{"links", "hosts", "drops", "config"}, []string{"run"}},
		{"show links --", []string{"--proto", "--sort", "--control", "--json", "--help"}, []string{"--inside"}},
		{"show links --json --proto ", []string{"tcp", "udp", "icmp"}, []string{"links", "--json"}},
		{"show links --sort ", []string{"bytes", "age"}, nil},
		{"run --idle ", []string{"spin", "adaptive"}, []string{"run"}},
		{"run --workers-steer=", []string{"--workers-steer=host", "--workers-steer=flow"}, nil},
		{"run --idle = s", []string{"spin"}, nil}, // as bash splits it
		{"run --nat-hairpin=", []string{"--nat-hairpin=true", "--nat-hairpin=false"}, nil},
		{"run --inside ", []string{"lo"}, nil},
		{"capture --stage ", []string{"rx", "nat", "drop"}, nil},
		{"capture --reason ", []string{"no-route", "filtered"}, nil},
		{"redirect add ", []string{"port", "addr", "proto"}, nil},
		{"rtcache ", []string{"on", "off"}, nil},
		{"rtcache on ", nil, []string{"on", "off"}},
		{"completion ", []string{"bash", "zsh", "fish"}, nil},
		{"run -c ", []string{filesWanted}, nil},
		{"replay --inside ", []string{filesWanted}, []string{"lo"}},
		{"capture -w x --co", []string{"--count", "--control"}, nil},
		{"nonsense ", nil, []string{completeName}},
	} {
		got := completed(t, strings.Split(c.words, " ")...)
		for _, w := range c.want {
			if !slices.Contains(got, w) {
				t.Errorf("%q: %q is missing among %q", c.words, w, got)
			}
		}
		for _, w := range c.unwant {
			if slices.Contains(got, w) {
				t.Errorf("%q: %q is offered", c.words, w)
			}
		}
	}
	if n := len(completed(t, "capture", "--reason", "")); n != int(reason.Count)-1 {
		t.Errorf("%d reasons are offered, there are %d", n, int(reason.Count)-1)
	}
}

// What is offered must be what the program takes.
func TestCompletedFlagsExist(t *testing.T) {
	for _, command := range []string{"run", "check", "doctor", "replay", "show links", "capture", "top", "reload", "who-had"} {
		words := strings.Fields(command)
		for _, flag := range completed(t, append(words, "--")...) {
			var out, errOut bytes.Buffer
			start(slices.Concat([]string{"pollux"}, words, []string{flag, "--help"}), &out, &errOut)
			if strings.Contains(errOut.String(), "no such flag") {
				t.Errorf("%s %s: %s", command, flag, &errOut)
			}
		}
	}
}

// The scripts are run by the shells themselves, where they are installed.
func TestCompletionScripts(t *testing.T) {
	dir := t.TempDir()
	if err := os.Symlink(binary, filepath.Join(dir, "pollux")); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	for _, shell := range completionShells {
		script := filepath.Join(dir, "_pollux")
		var out, errOut bytes.Buffer
		if status := start([]string{"pollux", "completion", shell}, &out, &errOut); status != 0 {
			t.Fatal(errOut.String())
		}
		if err := os.WriteFile(script, out.Bytes(), 0o644); err != nil {
			t.Fatal(err)
		}
		if _, err := exec.LookPath(shell); err != nil {
			if shell == "bash" {
				t.Fatal("there is no bash")
			}
			t.Logf("%s is not installed: its script is not run", shell)
			continue
		}
		ask := map[string]string{
			"bash": `source %[1]s; COMP_WORDS=(pollux show wo); COMP_CWORD=2; _pollux; echo "${COMPREPLY[@]}"; COMP_WORDS=(pollux run --idle = ad); COMP_CWORD=4; _pollux; echo "${COMPREPLY[@]}"`,
			"zsh": `compdef() { :; }; source %[1]s; _describe() { for e in $entries; do print -r -- ${e%%%%:*}; done }; words=(pollux show ""); CURRENT=3; _pollux
				words=(pollux run --idle ""); CURRENT=4; _pollux; _files() { echo files; }; words=(pollux run -c ""); CURRENT=4; _pollux`,
			"fish": `source %[1]s; complete -C "pollux show wo"; complete -C "pollux run --idle "`,
		}[shell]
		got, err := exec.Command(shell, "-c", fmt.Sprintf(ask, script)).CombinedOutput()
		if err != nil {
			t.Errorf("%s: %v: %s", shell, err, got)
		}
		for _, want := range []string{"workers", "adaptive"} {
			if !strings.Contains(string(got), want) {
				t.Errorf("%s does not offer %q: %s", shell, want, got)
			}
		}
		if strings.Contains(string(got), "not found") {
			t.Errorf("%s: %s", shell, got)
		}
	}
	if r := pollux(t, "completion", "tcsh"); r.status != statusUsage || !strings.Contains(r.errOut, "bash, zsh, fish") {
		t.Errorf("%+v", r)
	}
}

func TestMan(t *testing.T) {
	r := pollux(t, "man")
	if r.status != 0 {
		t.Fatalf("%+v", r)
	}
	for _, want := range []string{".SH NAME", "pollux show links", "pollux redirect add port", "--nat-timeouts-udp", "control.socket", ".SH EXIT STATUS"} {
		if !strings.Contains(strings.ReplaceAll(r.out, `\-`, "-"), want) {
			t.Errorf("the manual page lacks %q", want)
		}
	}
	for _, c := range newApp(nil, nil).Commands {
		if !c.Hidden && len(c.Subcommands) == 0 && !strings.Contains(strings.ReplaceAll(r.out, `\-`, "-"), "pollux "+c.Name) {
			t.Errorf("the manual page lacks the command %s", c.Name)
		}
	}
	if _, err := exec.LookPath("man"); err != nil {
		t.Log("man is not installed: the page is not formatted")
		return
	}
	page := file(t, "pollux.8", r.out)
	out, err := exec.Command("man", "--warnings", "-E", "UTF-8", "-l", page).CombinedOutput()
	if err != nil {
		t.Fatalf("%v: %.300s", err, out)
	}
	if strings.Contains(string(out), "warning:") || !strings.Contains(string(out), "nat.timeouts.udp") {
		t.Errorf("man says: %.500s", out)
	}
}
