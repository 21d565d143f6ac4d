package paper

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
)

// part is one command whose result the report is made of.
type part struct {
	name  string
	args  []string // after `pollux perf`
	quick []string // the same with as little as shows that everything works
	lab   bool     // runs over devices: needs root, and is not alone with the processor anyway
}

// parts are in the order of the report.
var parts = []part{
	{name: "established", args: words("established --links 16777216 --curve"), quick: words("established --links 16384 --curve --packets 65536 --repeat 3")},
	{name: "libalias", args: words("libalias"), quick: words("libalias --max-seconds 0.5")},
	{name: "onegroup", args: words("onegroup --links 1000000 --curve"), quick: words("onegroup --links 10000 --curve --packets 4096 --repeat 3")},
	{name: "onegroup-consecutive", args: words("onegroup --links 1000000 --curve --order consecutive"), quick: words("onegroup --links 10000 --curve --order consecutive --packets 4096 --repeat 3")},
	{name: "new-flows", args: words("new-flows"), quick: words("new-flows --links 16384 --repeat 3")},
	{name: "new-flows-independent", args: words("new-flows --mapping endpoint-independent"), quick: words("new-flows --mapping endpoint-independent --links 16384 --repeat 3")},
	{name: "port-exhaustion", args: words("port-exhaustion"), quick: words("port-exhaustion --packets 4096 --repeat 3")},
	{name: "rtcache", args: words("rtcache --routes 1000000"), quick: words("rtcache --routes 1000 --links 4096 --packets 65536 --repeat 3")},
	{name: "clock", args: words("clock"), quick: words("clock --packets 65536 --repeat 3")},
	{name: "handoff", args: words("handoff"), quick: words("handoff --links 4096 --packets 65536 --repeat 3")},
	{name: "lab", lab: true, args: words("lab --rounds 5 --slot 0.4"), quick: words("lab --rounds 1 --slot 0.2 --warm-up 0.05 --links 500000 --many-flows 5000")},
}

func words(s string) []string { return strings.Fields(s) }

// Names lists the parts.
func Names() (names []string) {
	for _, p := range parts {
		names = append(names, p.name)
	}
	return names
}

// choose returns the parts of the names given, in the report's order; none: all.
func choose(names []string) ([]part, error) {
	for _, n := range names {
		if !slices.Contains(Names(), n) {
			return nil, fmt.Errorf("no part %q of a report; there are: %s", n, strings.Join(Names(), ", "))
		}
	}
	var list []part
	for _, p := range parts {
		if len(names) == 0 || slices.Contains(names, p.name) {
			list = append(list, p)
		}
	}
	return list, nil
}

// made is the file of a part: what the command printed, and what went on meanwhile.
type made struct {
	Command  string          `json:"command"`
	Revision string          `json:"revision"`
	Made     string          `json:"made"`
	Seconds  float64         `json:"seconds"`
	Quick    bool            `json:"quick"`
	Others   float64         `json:"others_percent"` // of the machine's processor time: used by others, the kernel's work included
	Stolen   float64         `json:"stolen_percent"` // and given to other machines by the hypervisor
	Result   json.RawMessage `json:"result"`
}
