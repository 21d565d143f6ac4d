package lab

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"text/tabwriter"

	"pollux/perf"
)

// column is how a figure is shown.
type column struct {
	key, short, title string
	show              func(float64) string
}

func scaled(by float64, format string) func(float64) string {
	return func(v float64) string { return fmt.Sprintf(format, v/by) }
}

var columns = []column{
	{"pps", "64B", "Mpps, 64 B", scaled(1e6, "%.3f")},
	{"pps_many", "many", "Mpps, 64 B, many flows", scaled(1e6, "%.3f")},
	{"imix_pps", "imix", "Mpps, IMIX", scaled(1e6, "%.3f")},
	{"new_flows", "new", "new flows/s (M)", scaled(1e6, "%.3f")},
	{"new_flows_held", "held", "new flows/s (M), sessions held", scaled(1e6, "%.3f")},
	{"tcp_1_bps", "tcp1", "TCP, 1 stream, Gbit/s", scaled(1e9, "%.2f")},
	{"tcp_8_bps", "tcp8", "TCP, 8 streams, Gbit/s", scaled(1e9, "%.2f")},
	{"rtt_idle_p50_ns", "idle50", "RTT idle p50, us", scaled(1e3, "%.1f")},
	{"rtt_idle_p99_ns", "idle99", "RTT idle p99, us", scaled(1e3, "%.1f")},
	{"rtt_half_p50_ns", "half50", "RTT half load p50, us", scaled(1e3, "%.1f")},
	{"rtt_half_p99_ns", "half99", "RTT half load p99, us", scaled(1e3, "%.1f")},
	{"cpu_s_per_mpkt_full", "cpu", "CPU s per M packets, full load", scaled(1, "%.3f")},
	{"cpu_s_per_mpkt_half", "cpu/2", "CPU s per M packets, half load", scaled(1, "%.3f")},
	{"gateway_busy", "busy", "gateway's core busy at full load, %", scaled(0.01, "%.0f")},
	{"session_bytes", "mem", "bytes per session", scaled(1, "%.0f")},
}

// spread is (max - min) / median in percent.
func spread(s perf.Stat) string {
	if s.Median == 0 {
		return ""
	}
	return fmt.Sprintf("%.0f %%", 100*(s.Max-s.Min)/s.Median)
}

// Print writes the result for people.
func (r *Result) Print(w io.Writer) error {
	var b strings.Builder
	r.head(&b, "")
	t := tabwriter.NewWriter(&b, 0, 8, 2, ' ', 0)
	for _, c := range r.present() {
		fmt.Fprintf(t, "\n%s\tmedian\tmin\tmax\tspread\tto nft\tmin\tmax\n", c.title)
		for _, p := range r.Peers {
			s, ok := p.Columns[c.key]
			if !ok {
				continue
			}
			fmt.Fprintf(t, "%s\t%s\t%s\t%s\t%s\t", p.Name, c.show(s.Median), c.show(s.Min), c.show(s.Max), spread(s))
			if q, ok := p.RatiosToNFT[c.key]; ok {
				fmt.Fprintf(t, "%.2f\t%.2f\t%.2f", q.Median, q.Min, q.Max)
			}
			fmt.Fprintln(t)
		}
	}
	t.Flush()
	_, err := io.WriteString(w, b.String())
	return err
}

// head tells machine, command and set-up.
func (r *Result) head(b *strings.Builder, bullet string) {
	fmt.Fprintf(b, "%s%s, %d cores, Linux %s, %s\n", bullet, r.Machine.CPU, r.Machine.Cores, r.Machine.Kernel, r.Machine.Go)
	for _, s := range append(r.Setup, r.Absent...) {
		fmt.Fprintf(b, "%s%s\n", bullet, s)
	}
	for _, s := range r.Doubts {
		fmt.Fprintf(b, "%sDOUBTFUL: %s\n", bullet, s)
	}
}

// present lists the columns that anybody has a figure in.
func (r *Result) present() (list []column) {
	for _, c := range columns {
		for _, p := range r.Peers {
			if _, ok := p.Columns[c.key]; ok {
				list = append(list, c)
				break
			}
		}
	}
	return list
}

// WriteReport writes lab.md, lab.json and the plots it shows into a folder.
func (r *Result) WriteReport(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	plots, err := r.plots(dir)
	if err != nil {
		return err
	}
	var b strings.Builder
	fmt.Fprintf(&b, "# Side by side\n\n`%s`\n\n", r.Command)
	r.head(&b, "* ")
	b.WriteString("\nMedian over the rounds, in brackets the median of the ratios to nft in the same round and their least and greatest.\n" +
		"Figures of peers in the same row were measured within seconds of one another; compare these, not rows of different reports.\n\n")
	cols := r.present()
	fmt.Fprint(&b, "| |")
	for _, p := range r.Peers {
		fmt.Fprintf(&b, " %s |", p.Name)
	}
	fmt.Fprintf(&b, "\n|---|%s\n", strings.Repeat("---|", len(r.Peers)))
	for _, c := range cols {
		fmt.Fprintf(&b, "| %s |", c.title)
		for _, p := range r.Peers {
			s, ok := p.Columns[c.key]
			if !ok {
				b.WriteString(" |")
				continue
			}
			fmt.Fprintf(&b, " %s", c.show(s.Median))
			if q, ok := p.RatiosToNFT[c.key]; ok && p.Name != "nft" {
				fmt.Fprintf(&b, " (%.2f, %.2f-%.2f)", q.Median, q.Min, q.Max)
			} else {
				fmt.Fprintf(&b, " (spread %s)", spread(s))
			}
			b.WriteString(" |")
		}
		b.WriteString("\n")
	}
	b.WriteString("\n")
	for _, p := range r.Peers {
		fmt.Fprintf(&b, "* **%s**: %s\n", p.Name, p.What)
	}
	b.WriteString("* bytes per session: of pollux all resident memory of the process (tables, packet buffers, program) divided by the links it has room for; of the kernel's the growth of its slab memory, without its hash table\n" +
		"* CPU seconds are those of the gateway's threads: NAPI's and, if it is a process, its own; the end hosts' receive path up to the sink runs there as well, the same for all\n\n")
	for _, p := range plots {
		fmt.Fprintf(&b, "![%s](%s)\n\n", strings.TrimSuffix(p, ".svg"), p)
	}
	if err := os.WriteFile(filepath.Join(dir, "lab.md"), []byte(b.String()), 0o644); err != nil {
		return err
	}
	j, err := json.MarshalIndent(r, "", " ")
	if err != nil {
		return err
	}
	return os.WriteFile(filepath.Join(dir, "lab.json"), append(j, '\n'), 0o644)
}
