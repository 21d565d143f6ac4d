package demo

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"

	"pollux/internal/lab"
)

// Picture draws the lab.
func Picture() string {
	return fmt.Sprintf(`
   inside host            gateway                       router            outside host
  +----------+      +--------------------+        +---------------+      +----------------+
  | 10.0.0.2 +------+ eth1  pollux  eth0 +--------+ %s +------+ 198.51.100.100 |
  +----------+      | alias %-12s |        +---------------+      +----------------+
                    +--------------------+

`, lab.FirstRouter, lab.GatewayOutside)
}

// PrintCheck prints one check as it is done.
func PrintCheck(w io.Writer, c Check) {
	mark := "ok  "
	if !c.Held {
		mark = "FAIL"
	}
	fmt.Fprintf(w, "  %s  %-15s %s\n", mark, c.Name, c.Detail)
}

// Print prints what comes after the checks: link table, workers, drops, how to look around, and the closing line.
func (r *Report) Print(w io.Writer) {
	var protos []string
	for _, p := range slices.Sorted(maps.Keys(r.Links.ByProto)) {
		protos = append(protos, fmt.Sprintf("%d %s", r.Links.ByProto[p], p))
	}
	fmt.Fprintf(w, "\nlink table: %d links (%s), some of them:\n", r.Links.Count, strings.Join(protos, ", "))
	table(w, "proto\tlocal\talias\tremote\tstate\texpires in\tpackets", func(row func(...any)) {
		for _, l := range r.Links.First {
			row(l.Proto, l.Local, l.Alias, l.Remote, l.State, fmt.Sprintf("%d s", l.ExpiresIn), l.Packets)
		}
	})
	fmt.Fprintln(w, "\npackets per worker:")
	table(w, "worker\tcore\tqueue\treceived\ttranslated\ttransmitted\tdropped\tbursts\tsleeps\tframes leaked", func(row func(...any)) {
		for _, s := range r.Workers {
			row(s.Worker, s.Core, s.Queue, s.Received, s.Translated, s.Sent, s.Dropped, s.Bursts, s.Sleeps, s.Leaked)
		}
	})
	fmt.Fprintln(w, "\nnot sent on, by reason:")
	table(w, "reason\tcount\twhat it means", func(row func(...any)) {
		for _, d := range r.Drops {
			if d.Count > 0 {
				row(d.Name, d.Count, d.Help)
			}
		}
	})
	if r.Kept != nil {
		r.Kept.print(w)
	}
	held := 0
	for _, c := range r.Checks {
		if c.Held {
			held++
		}
	}
	if r.Held {
		fmt.Fprintf(w, "\nAll of it held: %d of %d checks in %.1f s.\n", held, len(r.Checks), r.Seconds)
	} else {
		fmt.Fprintf(w, "\nNOT all of it held: %d of %d checks failed.\n", len(r.Checks)-held, len(r.Checks))
	}
}

// table prints aligned columns, indented.
func table(w io.Writer, head string, rows func(row func(...any))) {
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "  "+head)
	rows(func(cells ...any) {
		parts := make([]string, len(cells))
		for i, c := range cells {
			parts[i] = fmt.Sprint(c)
		}
		fmt.Fprintln(t, "  "+strings.Join(parts, "\t"))
	})
	t.Flush()
}

func (k *Kept) print(w io.Writer) {
	fmt.Fprintf(w, `
The lab stays up (gateway process %d). Look around:
  ip netns exec %s ping 198.51.100.100
  ip netns exec %s curl -s http://198.51.100.100/bytes/1000000 | sha256sum
  ip netns exec %s curl -s --http0.9 http://%s:%d/
  ip netns exec %s tcpdump -ni eth0
  pollux show links --control %s        (also: show workers, show drops, show ports)
Take it down:
  pollux demo --clean
`, k.PID, k.Inside, k.Inside, k.Outside, lab.GatewayOutside, publishedPort, k.Outside, k.Socket)
}
