package config

import (
	"slices"
	"strconv"
	"strings"
)

func join(words []string) string { return strings.Join(words, ", ") }

func contains(words []string, w string) bool { return slices.Contains(words, w) }

func plural(n int, what string) string {
	switch {
	case n == 1:
		return "1 " + what
	case strings.HasSuffix(what, "s"):
		return strconv.Itoa(n) + " " + what + "es"
	}
	return strconv.Itoa(n) + " " + what + "s"
}
