package paper

import (
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"

	"pollux/perf"
	"pollux/perf/chart"
)

// othersMax is how much of the machine others may have used for a part's figures to stand without a warning. A part in memory
// has one thread, so on two cores half of the machine is free anyway; what matters is what was used beyond that.
const othersMax = 15

// write makes README.md and the plots from the parts that are there. What a person has to say stands in two files that are kept:
// why.txt, lines of a target's name and why it is not met, and profile.md.
func write(dir string) error {
	d, err := read(dir)
	if err != nil {
		return err
	}
	why, err := reasons(filepath.Join(dir, "why.txt"))
	if err != nil {
		return err
	}
	var b strings.Builder
	d.head(&b)
	d.targets(&b, why)
	if _, err := os.Stat(filepath.Join(dir, "profile.md")); err == nil {
		b.WriteString("Where the time of a packet goes, and what to do next: [profile.md](profile.md).\n\n")
	}
	if err := d.chapters(&b, dir); err != nil {
		return err
	}
	return replace(filepath.Join(dir, "README.md"), []byte(b.String()))
}

// reasons reads lines "target: why".
func reasons(file string) (map[string]string, error) {
	text, err := os.ReadFile(file)
	if os.IsNotExist(err) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	known := map[string]bool{}
	for _, t := range targets {
		known[t.id] = true
	}
	m := map[string]string{}
	for i, line := range strings.Split(string(text), "\n") {
		if strings.TrimSpace(line) == "" {
			continue
		}
		id, why, ok := strings.Cut(line, ":")
		if !ok || !known[id] {
			return nil, fmt.Errorf("%s:%d: %q is no target; write lines `target: why`", file, i+1, id)
		}
		m[id] = strings.TrimSpace(why)
	}
	return m, nil
}

// head tells where the figures come from.
func (d *data) head(b *strings.Builder) {
	m, same := d.machine()
	fmt.Fprintf(b, "# What pollux costs\n\n%s, %d cores, Linux %s, %s.", m.CPU, m.Cores, m.Kernel, m.Go)
	if !same {
		b.WriteString(" **Not all parts were made on the same machine with the same kernel: see data/.**")
	}
	b.WriteString(" Figures are medians, in brackets the least and the greatest of the repetitions.\n" +
		"In-memory parts are processor time of one core through the gateway's own packages; the lab is packets through devices. How to make\n" +
		"the same report elsewhere: `pollux perf report DIR`, or part by part with `--only`; [docs/measuring.md](../../docs/measuring.md).\n\n" +
		"| part | command | made | revision | others used | stolen |\n|---|---|---|---|---|---|\n")
	for _, p := range parts {
		x := d.made[p.name]
		if x == nil {
			fmt.Fprintf(b, "| %s | `pollux perf %s` | not made | | | |\n", p.name, strings.Join(p.args, " "))
			continue
		}
		name := p.name
		if x.Quick {
			name += " (quick: shows that it works, not how fast)"
		}
		others := fmt.Sprintf("%.0f %%", x.Others)
		switch {
		case p.lab:
			others = "see the lab's own doubts"
		case x.Others > othersMax:
			others += " **doubtful**"
		}
		fmt.Fprintf(b, "| %s | `%s` | %s, %.0f s | %s | %s | %.0f %% |\n", name, x.Command, x.Made, x.Seconds, x.Revision, others, x.Stolen)
	}
	b.WriteString("\n\"Others used\" is processor time of the whole machine that went to somebody else while a part ran, \"stolen\" what the hypervisor gave away.\n\n")
	if d.lab != nil {
		b.WriteString("The lab's placement and offloads:\n\n")
		for _, s := range d.lab.Setup {
			fmt.Fprintf(b, "* %s\n", s)
		}
		for _, s := range append(d.lab.Absent, d.lab.Doubts...) {
			fmt.Fprintf(b, "* **%s**\n", s)
		}
		b.WriteString("\n")
	}
}

// targets writes the table of what is to be reached.
func (d *data) targets(b *strings.Builder, why map[string]string) {
	b.WriteString("## Targets\n\n| what | elsewhere | target | measured | | by |\n|---|---|---|---|---|---|\n")
	met, judged := 0, 0
	for _, t := range targets {
		v, ok := t.result(d)
		if !ok {
			fmt.Fprintf(b, "| %s | %s | %s | not measured | | `%s` |\n", t.what, t.today, t.must, t.part)
			continue
		}
		judged++
		is := "**not met**"
		if v.met {
			is = "met"
			met++
		} else if why[t.id] != "" {
			is += ": " + why[t.id]
		}
		fmt.Fprintf(b, "| %s | %s | %s | %s | %s | `%s` |\n", t.what, t.today, t.must, v.text, is, t.part)
	}
	fmt.Fprintf(b, "\n%d of %d targets are met. Figures of libalias and VPP are quoted: they were measured with those projects' own code when the\n"+
		"targets were set, not in this run. nftables, iptables, the bare forwarder (l2fwd) and xsync ran beside pollux in the same run.\n"+
		"Bounds on the work that expiry, teardown and dumps do between two bursts are held by tests that count, not by a clock.\n\n", met, judged)
}

// chapters writes a section and a plot for every part.
func (d *data) chapters(b *strings.Builder, dir string) error {
	plot := func(name, what string, draw func(string) error) error {
		if err := draw(filepath.Join(dir, name)); err != nil {
			return err
		}
		fmt.Fprintf(b, "![%s](%s)\n\n", what, name)
		return nil
	}
	table := func(title string, print func(io.Writer) error) error {
		fmt.Fprintf(b, "## %s\n\n```\n", title)
		err := print(b)
		b.WriteString("```\n\n")
		return err
	}
	if e := d.established; e != nil {
		if err := table("A packet of an established link", e.Print); err != nil {
			return err
		}
		if err := plot("established.svg", "cost of a packet over the number of links", e.Plot); err != nil {
			return err
		}
	}
	for _, g := range []struct {
		r     *perf.OneGroup
		title string
		file  string
	}{{d.oneGroup, "One published port, scattered clients", "onegroup.svg"}, {d.consecutive, "One published port, consecutive clients", "onegroup-consecutive.svg"}} {
		if g.r == nil {
			continue
		}
		if err := table(g.title, g.r.Print); err != nil {
			return err
		}
		if err := plot(g.file, "cost over the number of links of one port", g.r.Plot); err != nil {
			return err
		}
	}
	if r := d.newFlows; r != nil {
		if err := table("New flows, endpoint-dependent", r.Print); err != nil {
			return err
		}
	}
	if r := d.independent; r != nil {
		if err := table("New flows, endpoint-independent", r.Print); err != nil {
			return err
		}
	}
	if r := d.exhaustion; r != nil {
		if err := table("A peer's ports run out", r.Print); err != nil {
			return err
		}
		if err := plot("port-exhaustion.svg", "cost of a port over the share in use", r.Plot); err != nil {
			return err
		}
	}
	if l := d.libalias; l != nil {
		b.WriteString("## libalias's own test\n\n")
		fmt.Fprintf(b, "%d packets, %d links at the end. All rounds: [data/libalias.json](data/libalias.json).\n\n", l.Packets, l.Links)
		if err := plot("libalias.svg", "phases of libalias's test, round by round", func(f string) error { return phases(l, f) }); err != nil {
			return err
		}
	}
	if r := d.routes; r != nil {
		if err := table("Remembered next hops", r.Print); err != nil {
			return err
		}
	}
	if r := d.clock; r != nil {
		if err := table("The time, once per burst or per packet", r.Print); err != nil {
			return err
		}
	}
	if r := d.handoff; r != nil {
		if err := table("Several workers", r.Print); err != nil {
			return err
		}
	}
	if d.lab != nil {
		b.WriteString("## Side by side over devices\n\nAll columns, spreads and ratios: [lab.md](lab.md).\n\n")
		for _, f := range []string{"throughput.svg", "latency-idle.svg", "latency-half.svg"} {
			if _, err := os.Stat(filepath.Join(dir, f)); err == nil {
				fmt.Fprintf(b, "![%s](%s)\n\n", strings.TrimSuffix(f, ".svg"), f)
			}
		}
	}
	return nil
}

// phases draws libalias's table, a point for so many rounds that no more than a hundred are drawn.
func phases(l *perf.Libalias, file string) error {
	lines := []chart.Line{{Name: "newNAT"}, {Name: "RANDOM"}, {Name: "ATTACK"}, {Name: "useNAT"}}
	for i := 0; i < len(l.Rounds); i += 1 + len(l.Rounds)/100 {
		r := l.Rounds[i]
		for k, v := range []float64{r.NewNAT, r.Random, r.Attack, r.UseNAT} {
			lines[k].X, lines[k].Y = append(lines[k].X, float64(r.Round)), append(lines[k].Y, v)
		}
	}
	return chart.Chart{Title: "libalias's test", X: "round (2000 more flows each)", Y: "us per packet", Lines: lines}.Write(file)
}
