package top

import (
	"fmt"
	"strconv"
	"strings"
	"time"
)

// Text lays a frame out as lines of at most width characters (0: as long as they are).
func Text(f *Frame, by Order, width int, colour bool) []string {
	s := style(colour)
	lines := summary(f, width, s)
	for _, part := range [][]string{portLines(f, width, s), workerLines(f, width, s), dropLines(f, width, s), hostLines(f, by, width, s)} {
		if len(part) > 0 {
			lines = append(append(lines, ""), part...)
		}
	}
	return lines
}

func summary(f *Frame, width int, s style) []string {
	t := &f.Total
	lines := pack([]string{
		fmt.Sprintf("in %spps %sb/s", short(t.RX), short(t.RXBits)), fmt.Sprintf("out %spps %sb/s", short(t.TX), short(t.TXBits)),
		fmt.Sprintf("dropped %s/s", short(t.Dropped)),
	}, width)
	lines = append(lines, pack([]string{
		fmt.Sprintf("links %d", t.Links), fmt.Sprintf("new %s/s", short(t.Created)), fmt.Sprintf("expired %s/s", short(t.Expired)), fmt.Sprintf("hosts %d", t.Hosts),
	}, width)...)
	if t.Leaked != 0 {
		lines = append(lines, s.paint(alarm, cut(fmt.Sprintf("%d packet buffers are missing: a bug", t.Leaked), width)))
	}
	return lines
}

func portLines(f *Frame, width int, s style) []string {
	var rows []row
	for _, p := range f.Ports {
		state, m := "up", none
		if p.Lost > 0 {
			m = warning
		}
		if !p.Up {
			state, m = "down", alarm
		}
		rows = append(rows, row{[]string{plain(p.Name), p.Role, state, short(p.RX), short(p.RXBits), short(p.TX), short(p.TXBits), short(p.Passed), short(p.Lost)}, m})
	}
	return layOut([]column{{"PORT", true, 0, false}, {"ROLE", true, 3, false}, {"STATE", true, 2, false}, {"IN PPS", false, 0, false}, {"IN B/S", false, 1, false}, {"OUT PPS", false, 0, false},
		{"OUT B/S", false, 1, false}, {"TO KERNEL", false, 4, false}, {"LOST", false, 2, false}}, rows, width, s)
}

// Occupancy from which on a worker is marked.
const (
	busy     = 0.7
	overBusy = 0.9
)

func workerLines(f *Frame, width int, s style) []string {
	var rows []row
	for _, w := range f.Workers {
		m := none
		switch {
		case w.Leaked != 0, w.Occupancy >= overBusy:
			m = alarm
		case w.Occupancy >= busy:
			m = warning
		}
		rows = append(rows, row{[]string{strconv.Itoa(w.Worker), strconv.Itoa(w.Core), strconv.Itoa(w.Queue), bar(w.Occupancy), fmt.Sprintf("%.0f%%", 100*w.Occupancy), short(w.Received), short(w.Forwarded),
			short(w.Dropped), short(w.HandedOver), fmt.Sprintf("%.1f", w.Burst), strconv.FormatUint(w.Links, 10), short(w.Created), gap(w.GapUS)}, m})
	}
	return layOut([]column{{"WORKER", false, 0, false}, {"CORE", false, 5, false}, {"QUEUE", false, 6, false}, {"", true, 4, false}, {"BUSY", false, 0, false}, {"IN PPS", false, 0, false}, {"OUT PPS", false, 1, false},
		{"DROPPED", false, 2, false}, {"HANDED OVER", false, 4, false}, {"BURST", false, 5, false}, {"LINKS", false, 1, false}, {"NEW/S", false, 3, false}, {"GAP", false, 3, false}}, rows, width, s)
}

// dropsMost is how many reasons are shown.
const dropsMost = 8

func dropLines(f *Frame, width int, s style) []string {
	var rows []row
	for _, d := range f.Drops[:min(len(f.Drops), dropsMost)] {
		m := none
		if d.Rate > 0 {
			m = warning
		}
		rows = append(rows, row{[]string{d.Reason, short(d.Rate), strconv.FormatUint(d.Count, 10), d.Help}, m})
	}
	if len(rows) == 0 {
		return nil
	}
	return layOut([]column{{"DROPPED", true, 0, false}, {"A SECOND", false, 0, false}, {"EVER", false, 1, false}, {"WHAT IT MEANS", true, 2, true}}, rows, width, s)
}

func hostLines(f *Frame, by Order, width int, s style) []string {
	if f.NoHosts != "" {
		return []string{s.paint(warning, cut("no hosts: "+plain(f.NoHosts), width))}
	}
	var rows []row
	for _, h := range f.Hosts {
		rows = append(rows, row{[]string{h.Address, h.Alias, strconv.FormatUint(uint64(h.Links), 10), optional(h.Ports), optional(h.Blocks), strconv.FormatUint(uint64(h.Refused), 10), strconv.Itoa(h.Worker)}, none})
	}
	if len(rows) == 0 {
		return nil
	}
	return layOut([]column{{"HOST BY " + strings.ToUpper(string(by)), true, 0, false}, {"ALIAS", true, 1, false}, {"LINKS", false, 0, false}, {"PORTS", false, 3, false}, {"BLOCKS", false, 4, false}, {"REFUSED", false, 2, false}, {"WORKER", false, 5, false}}, rows, width, s)
}

func optional(n *int) string {
	if n == nil {
		return "-"
	}
	return strconv.Itoa(*n)
}

// bar draws a share.
func bar(share float64) string {
	const length = 10
	n := min(int(share*length+0.5), length)
	return strings.Repeat("#", n) + strings.Repeat(".", length-n)
}

// gap prints the bound of a time in microseconds.
func gap(us uint64) string {
	if us == 0 {
		return "-"
	}
	if us < 1000 {
		return fmt.Sprintf("<%dus", us) // in ASCII: not every terminal has more
	}
	return "<" + (time.Duration(us) * time.Microsecond).Round(100*time.Microsecond).String()
}

// short prints a number in few characters: 999, 1.23k, 12.3M.
func short(x float64) string {
	for _, unit := range []string{"", "k", "M", "G"} {
		if x < 999.5 {
			switch {
			case unit == "" && (x >= 10 || x == 0):
				return fmt.Sprintf("%.0f", x)
			case x < 9.995:
				return fmt.Sprintf("%.2f", x) + unit
			case x < 99.95:
				return fmt.Sprintf("%.1f", x) + unit
			}
			return fmt.Sprintf("%.0f", x) + unit
		}
		x /= 1000
	}
	return fmt.Sprintf("%.0fT", x)
}
