package main

import (
	"fmt"
	"regexp"
	"slices"
	"strings"

	"github.com/cpuguy83/go-md2man/v2/md2man"
	"github.com/urfave/cli/v2"

	"pollux/internal/config"
)

func manCommand() *cli.Command {
	return &cli.Command{
		Name:  "man",
		Usage: "print the manual page, made from the commands themselves",
		Description: "   pollux man | man -l -\n" +
			"   pollux man > /usr/local/share/man/man8/pollux.8",
		Action: func(c *cli.Context) error {
			if err := noArgs(c); err != nil {
				return err
			}
			_, err := c.App.Writer.Write(md2man.Render([]byte(manText(c.App))))
			return err
		},
	}
}

// manText is the manual page in go-md2man's Markdown. Flags that stand for keys of the configuration come once, not with every command
// that takes them.
func manText(app *cli.App) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%% %s 8\n\n# NAME\n\n%s - %s\n\n# SYNOPSIS\n\n**%s** *command* [*flags*] [*arguments*]\n\n# DESCRIPTION\n\n%s\n\n# COMMANDS\n\n",
		strings.ToUpper(app.Name), app.Name, app.Usage, app.Name, manProse(app.Description))
	manCommands(&b, app.Name, app.Commands)
	b.WriteString("# CONFIGURATION\n\nEach key of the file, as **--config** names it, has a flag, which goes before the file. **pollux check --print** prints the whole\n" +
		"configuration in force.\n\n")
	for _, f := range config.Flags() {
		var names []string
		for _, n := range f.Names {
			names = append(names, "**"+dashed(n)+"**")
		}
		fmt.Fprintf(&b, "%s\n: %s: %s", strings.Join(names, ", "), manEscape(f.Key), manEscape(f.Usage))
		if len(f.Choices) > 0 {
			b.WriteString(" (" + strings.Join(f.Choices, ", ") + ")")
		}
		if f.Default != "" {
			b.WriteString(", by default " + manEscape(f.Default))
		}
		if f.Multi {
			b.WriteString("; may be repeated")
		}
		b.WriteString("\n\n")
	}
	fmt.Fprintf(&b, "# FILES\n\n/etc/pollux/pollux.yaml\n: configuration of the service\n\n%s, %s\n: control socket: by default, and of the service\n\n", config.DefaultSocket, config.ServiceSocket)
	b.WriteString("# EXIT STATUS\n\n0\n: all went well\n\n1\n: it began and failed\n\n2\n: it did not start, and nothing was changed\n\n")
	b.WriteString("# SEE ALSO\n\n**ip**(8), **ethtool**(8), **systemctl**(1); /usr/share/doc/pollux\n")
	return b.String()
}

func manCommands(b *strings.Builder, name string, list []*cli.Command) {
	for _, c := range list {
		if c.Hidden {
			continue
		}
		own := name + " " + c.Name
		if len(c.Subcommands) == 0 || c.Description != "" {
			fmt.Fprintf(b, "## %s\n\n%s\n\n%s\n\n", strings.TrimSpace(own+" "+manEscape(c.ArgsUsage)), manEscape(c.Usage), manProse(c.Description))
			manFlags(b, c.Flags)
		}
		manCommands(b, own, c.Subcommands)
	}
}

func manFlags(b *strings.Builder, flags []cli.Flag) {
	more := false
	for _, f := range flags {
		if g, ok := f.(*cli.GenericFlag); ok {
			if _, ok := g.Value.(*arg); ok {
				more = true
				continue
			}
		}
		d := f.(cli.DocGenerationFlag)
		var names []string
		for _, n := range f.Names() {
			names = append(names, "**"+dashed(n)+"**")
		}
		usage := d.GetUsage()
		if part := placeholder.FindString(usage); part != "" {
			names[len(names)-1] += " *" + strings.Trim(part, "`") + "*"
		} else if d.TakesValue() {
			names[len(names)-1] += " *value*"
		}
		fmt.Fprintf(b, "%s\n: %s", strings.Join(names, ", "), manEscape(strings.ReplaceAll(usage, "`", "")))
		if d.TakesValue() {
			if v := slices.DeleteFunc([]string{d.GetDefaultText(), strings.Trim(d.GetValue(), `"`)}, func(s string) bool { return s == "" }); len(v) > 0 {
				b.WriteString(", by default " + manEscape(v[0]))
			}
		}
		b.WriteString("\n\n")
	}
	if more {
		b.WriteString("And the flags of **CONFIGURATION** below.\n\n")
	}
}

var (
	placeholder = regexp.MustCompile("`[^`]+`")
	example     = regexp.MustCompile(`(?m)^   `)
	quoted      = regexp.MustCompile("`([^`]+)`")
)

// manProse turns a help text into Markdown: examples are indented by three spaces there, by four here.
func manProse(text string) string {
	lines := strings.Split(example.ReplaceAllString(text, "    "), "\n")
	for i, line := range lines {
		if strings.HasPrefix(line, "    ") {
			if i > 0 && lines[i-1] != "" && !strings.HasPrefix(lines[i-1], "    ") {
				lines[i] = "\n" + line // a block of its own
			}
			continue
		}
		lines[i] = manEscape(quoted.ReplaceAllString(line, "$1"))
	}
	return strings.Join(lines, "\n")
}

// manEscape keeps Markdown from reading marks into plain text.
func manEscape(text string) string {
	return strings.NewReplacer(`\`, `\\`, "*", `\*`, "_", `\_`, "<", `\<`, "[", `\[`, "|", `\|`).Replace(text)
}
