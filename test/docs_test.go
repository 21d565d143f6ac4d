package integration

import (
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// documents returns what people read, by path.
func documents(t *testing.T) map[string]string {
	t.Helper()
	paths, err := filepath.Glob("../docs/*.md")
	if err != nil {
		t.Fatal(err)
	}
	list := map[string]string{}
	for _, p := range append(paths, "../README.md", "../ARCHITECTURE.md", "../RFC.md") {
		b, err := os.ReadFile(p)
		if err != nil {
			t.Fatal(err)
		}
		list[p] = string(b)
	}
	return list
}

var offered = map[string][]string{} // by words: many lines ask the same

// words asks the program what may come after these words.
func words(t *testing.T, line ...string) []string {
	t.Helper()
	key := strings.Join(line, " ")
	if list, ok := offered[key]; ok {
		return list
	}
	out, err := exec.Command(pollux(t), append([]string{"__complete"}, line...)...).Output()
	if err != nil {
		t.Fatalf("complete %q: %v", line, err)
	}
	var list []string
	for l := range strings.Lines(string(out)) {
		word, _, _ := strings.Cut(strings.TrimSuffix(l, "\n"), "\t")
		list = append(list, word)
	}
	offered[key] = list
	return list
}

var (
	commandLine = regexp.MustCompile("(?m)(?:^    |^\\$ |\\| |`)(?:sudo )?(?:bin/)?pollux ([a-z-][^`\n]*)")
	commandEnd  = regexp.MustCompile(`\s+(\||>|#|&&|;|\.\.\.).*$`)
)

// TestDocumentedCommands: every command of pollux's in the documents exists, and so does every flag that it is given there.
func TestDocumentedCommands(t *testing.T) {
	n := 0
	for path, text := range documents(t) {
		for _, m := range commandLine.FindAllStringSubmatch(text, -1) {
			n++
			line := commandEnd.ReplaceAllString(m[1], "")
			checkCommand(t, path, strings.Fields(line))
		}
	}
	if n < 100 {
		t.Errorf("only %d commands were found: are they looked for rightly?", n)
	}
}

func checkCommand(t *testing.T, path string, line []string) {
	t.Helper()
	var command []string
	group := true // sub-commands may follow
	for i := 0; i < len(line); i++ {
		word := strings.Trim(line[i], "[],.;:()")
		switch {
		case strings.HasPrefix(word, "-") && word != "-" && word != "->":
			name, _, _ := strings.Cut(word, "=")
			if have := words(t, append(slices.Clone(command), "-")...); !slices.Contains(have, name) && name != "--help" {
				t.Errorf("%s: pollux %s: there is no flag %s", path, strings.Join(line, " "), name)
			}
			if !strings.Contains(word, "=") && i+1 < len(line) && !strings.HasPrefix(line[i+1], "-") {
				i++ // its value, or an argument: commands come before flags here
			}
		case group:
			have := words(t, append(slices.Clone(command), "")...)
			for one := range strings.SplitSeq(word, "|") {
				if len(command) == 0 && !slices.Contains(have, one) || len(command) == 1 && slices.Contains([]string{"show", "redirect", "perf", "delete"}, command[0]) && !slices.Contains(have, one) {
					t.Errorf("%s: pollux %s: there is no command %q", path, strings.Join(line, " "), one)
				}
			}
			word, _, _ = strings.Cut(word, "|")
			if group = slices.Contains(have, word); group {
				command = append(command, word)
			}
		}
	}
}

// TestDocumentedKeys: every key of the configuration that a document names exists, and every piece of a configuration is one that
// `pollux check` takes.
func TestDocumentedKeys(t *testing.T) {
	out, err := exec.Command(pollux(t), "check", "-c", "../deploy/pollux.yaml", "--print", "--json").Output()
	if err != nil {
		t.Fatal(err)
	}
	var tree map[string]any
	if err := json.Unmarshal(out, &tree); err != nil {
		t.Fatal(err)
	}
	var sections []string
	for name := range tree {
		sections = append(sections, name)
	}
	section := "(?:" + strings.Join(sections, "|") + ")"
	keyName := regexp.MustCompile(`(^|[^\w/.])(` + section + `\.[a-z0-9_]+(?:\.[a-z_]+)?)`)
	keyLine := regexp.MustCompile("`(" + section + ")\\.([a-z0-9_.]+): ([^`\n]+)`")
	n := 0
	for path, text := range documents(t) {
		for _, code := range regexp.MustCompile("`[^`\n]+`").FindAllString(text, -1) {
			for _, m := range keyName.FindAllStringSubmatch(code, -1) {
				if ext := filepath.Ext(m[2]); ext == ".go" || ext == ".md" || ext == ".txt" {
					continue
				}
				n++
				at, ok := any(tree), true
				for part := range strings.SplitSeq(m[2], ".") {
					var section map[string]any
					if section, ok = at.(map[string]any); ok {
						at, ok = section[part]
					}
					if !ok {
						t.Errorf("%s: %s: there is no key %s", path, code, m[2])
						break
					}
				}
			}
		}
		for _, m := range regexp.MustCompile("(?ms)^```yaml\n(.*?)^```").FindAllStringSubmatch(text, -1) {
			checkYAML(t, path, m[1])
		}
		// What is written as one line, key and value: `nat.mss_clamp: auto`.
		for _, m := range keyLine.FindAllStringSubmatch(text, -1) {
			if strings.ContainsAny(m[3], "ABCDEFGHIJKLMNOPQRSTUVWXYZ|") {
				continue // a placeholder
			}
			open, close := m[1]+": {", "}"
			for section, rest, deeper := strings.Cut(m[2], "."); ; section, rest, deeper = strings.Cut(rest, ".") {
				if !deeper {
					open += section + ": "
					break
				}
				open, close = open+section+": {", close+"}"
			}
			checkYAML(t, path, open+m[3]+close+"\n")
		}
	}
	if n < 30 {
		t.Errorf("only %d keys were found: are they looked for rightly?", n)
	}
}

// checkYAML has `pollux check` read a piece of a configuration, with what it needs besides given by flags.
func checkYAML(t *testing.T, path, text string) {
	t.Helper()
	if strings.Contains(text, "scrape_configs:") {
		return // Prometheus's
	}
	file := filepath.Join(t.TempDir(), "piece.yaml")
	if err := os.WriteFile(file, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	args := []string{"check", "-c", file}
	if !regexp.MustCompile(`(?m)^ports:`).MatchString(text) {
		args = append(args, "--inside", "eth1", "--outside", "eth0")
	}
	if !strings.Contains(text, "alias:") {
		args = append(args, "--alias", "203.0.113.1")
	}
	if strings.Contains(text, "level:") && !strings.Contains(text, "syslog:") && !strings.Contains(text, "ipfix:") {
		args = append(args, "--log-syslog", "udp://192.0.2.20:514")
	}
	if strings.Contains(text, "level: block") && !strings.Contains(text, "blocks:") {
		args = append(args, "--nat-blocks-size", "64")
	}
	if out, err := exec.Command(pollux(t), args...).CombinedOutput(); err != nil {
		t.Errorf("%s: %s\n%s", path, out, text)
	}
}

// TestDocumentLinks: no link between the documents is dead, and each page is in the index.
func TestDocumentLinks(t *testing.T) {
	list := documents(t)
	for path, text := range list {
		for _, m := range regexp.MustCompile(`\]\(([^)]+)\)`).FindAllStringSubmatch(text, -1) {
			to, anchor, _ := strings.Cut(m[1], "#")
			if strings.Contains(to, "://") {
				continue
			}
			file := path
			if to != "" {
				file = filepath.Join(filepath.Dir(path), to)
			}
			b, err := os.ReadFile(file)
			if err != nil {
				t.Errorf("%s: link to %s: %v", path, m[1], err)
			} else if anchor != "" && !slices.Contains(anchors(string(b)), anchor) {
				t.Errorf("%s: link to %s: there is no such heading", path, m[1])
			}
		}
		if filepath.Base(filepath.Dir(path)) == "docs" && filepath.Base(path) != "README.md" && !strings.Contains(list["../docs/README.md"], "]("+filepath.Base(path)+")") {
			t.Errorf("%s is not in docs/README.md", path)
		}
	}
}

// anchors are the headings of a document, as links name them.
func anchors(text string) (list []string) {
	for _, m := range regexp.MustCompile(`(?m)^#+ (.*)$`).FindAllStringSubmatch(text, -1) {
		slug := regexp.MustCompile(`[^a-z0-9 _-]`).ReplaceAllString(strings.ToLower(m[1]), "")
		list = append(list, strings.ReplaceAll(slug, " ", "-"))
	}
	return list
}
