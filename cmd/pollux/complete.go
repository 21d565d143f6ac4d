package main

import (
	"fmt"
	"io"
	"net"
	"slices"
	"strings"

	"github.com/urfave/cli/v2"

	"pollux/internal/config"
	"pollux/internal/reason"
)

// completeName is what the shells' scripts (completion.go) call, with the words after the program's name; the last one is to be
// completed. It answers a candidate a line, its meaning behind a tab, or filesWanted alone.
const completeName = "__complete"

const filesWanted = ":files"

// candidate is a word that could stand there.
type candidate struct{ word, meaning string }

func complete(words []string, w io.Writer) {
	list, files := candidates(newApp(io.Discard, io.Discard), words)
	if files {
		fmt.Fprintln(w, filesWanted)
		return
	}
	for _, c := range list {
		meaning, _, _ := strings.Cut(c.meaning, "\n")
		fmt.Fprintf(w, "%s\t%s\n", c.word, meaning)
	}
}

// candidates walks down the commands that the words name and says what may come next; files: the name of a file.
func candidates(app *cli.App, words []string) (list []candidate, files bool) {
	words = slices.DeleteFunc(slices.Clone(words), func(s string) bool { return s == "=" }) // bash splits --flag=value
	if len(words) == 0 {
		words = []string{""}
	}
	last := words[len(words)-1]
	commands, flags, path := app.Commands, []cli.Flag(nil), ""
	var waiting cli.Flag // for its value
	arguments := 0
	for _, word := range words[:len(words)-1] {
		switch {
		case waiting != nil:
			waiting = nil
		case strings.HasPrefix(word, "-"):
			if f := flagNamed(flags, word); f != nil && takesValue(f) && !strings.Contains(word, "=") {
				waiting = f
			}
		default:
			if i := slices.IndexFunc(commands, func(c *cli.Command) bool { return c.HasName(word) }); i >= 0 {
				path = strings.TrimSpace(path + " " + word)
				commands, flags = commands[i].Subcommands, slices.Concat(flags, commands[i].Flags)
			} else {
				arguments++
			}
		}
	}
	name, _, inline := strings.Cut(last, "=")
	switch f := flagNamed(flags, name); {
	case waiting != nil:
		return values(waiting, last)
	case inline && strings.HasPrefix(last, "-") && f != nil:
		list, files = values(f, "")
		for i := range list {
			list[i].word = name + "=" + list[i].word
		}
		return list, files
	case strings.HasPrefix(last, "-"):
		for _, f := range flags {
			for _, n := range f.Names() {
				list = append(list, candidate{dashed(n), f.(cli.DocGenerationFlag).GetUsage()})
			}
		}
		return append(list, candidate{"--help", "what it does and takes"}), false
	}
	for _, c := range commands {
		if !c.Hidden {
			list = append(list, candidate{c.Name, c.Usage})
		}
	}
	if words := argumentWords[path]; arguments == 0 {
		for _, word := range words {
			list = append(list, candidate{word, ""})
		}
	}
	return list, false
}

// argumentWords is what a command's first argument can be.
var argumentWords = map[string][]string{
	"rtcache":    {"on", "off"},
	"explain":    {"tcp", "udp", "icmp"},
	"completion": completionShells,
}

// flagWords is what flags can be that are no keys of the configuration.
func flagWords(name string) []string {
	switch name {
	case "stage":
		return []string{"rx", "nat", "drop"}
	case "reason":
		var list []string
		for r := reason.Reason(1); r < reason.Count; r++ { // 0 is no reason to drop
			list = append(list, r.String())
		}
		return list
	case "proto":
		return []string{"tcp", "udp", "icmp"}
	case "state":
		return []string{"opening", "established", "closing", "active"}
	case "opened":
		return []string{"out", "in"}
	case "sort":
		return sortNames()
	case "inside", "outside", "dev", "device", "in":
		var list []string
		if devices, err := net.Interfaces(); err == nil {
			for _, d := range devices {
				list = append(list, d.Name)
			}
		}
		return list
	}
	return nil
}

// values are those of a flag.
func values(f cli.Flag, begun string) (list []candidate, files bool) {
	if strings.Contains(f.(cli.DocGenerationFlag).GetUsage(), "`FILE`") || strings.Contains(f.(cli.DocGenerationFlag).GetUsage(), "`CAPTURE`") || strings.HasPrefix(begun, "/") || strings.HasPrefix(begun, "./") {
		return nil, true
	}
	words := flagWords(f.Names()[0])
	for _, k := range config.Flags() {
		if slices.Contains(k.Names, f.Names()[0]) && k.Choices != nil {
			words = k.Choices
		}
	}
	for _, word := range words {
		list = append(list, candidate{word, ""})
	}
	return list, false
}

func takesValue(f cli.Flag) bool {
	if g, ok := f.(*cli.GenericFlag); ok {
		return !g.Value.(*arg).isBool
	}
	return f.(cli.DocGenerationFlag).TakesValue()
}

func flagNamed(flags []cli.Flag, word string) cli.Flag {
	name, _, _ := strings.Cut(strings.TrimLeft(word, "-"), "=")
	for _, f := range flags {
		if slices.Contains(f.Names(), name) {
			return f
		}
	}
	return nil
}

func dashed(name string) string {
	if len(name) == 1 {
		return "-" + name
	}
	return "--" + name
}
